//! One process by itself: it starts, keeps its directory to itself, and ends when it is asked to.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::Path,
    process::{Child, Command, Output, Stdio},
    sync::mpsc,
    time::Duration,
};

const DEADLINE: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(10);

const CONFIG: &str = r#"
[ingest]
listen = "127.0.0.1:0"
[admin]
listen = "127.0.0.1:0"
[telemetry]
log = "json"
[sources.github]
scheme = "github"
secrets = [{ file = "secret" }]
"#;

/// A standalone process, killed when the test ends.
struct Process {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Process {
    fn start(dir: &Path) -> Self {
        let mut command = fencepost(dir);
        command.arg("standalone");
        Self::spawn(command)
    }

    fn spawn(mut command: Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().expect("binary runs");
        let stderr = child.stderr.take().expect("piped");
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { child, lines }
    }

    /// The next line of the log that holds `text`.
    fn line(&self, text: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(DEADLINE);
            let line = line.unwrap_or_else(|_| panic!("no line with {text:?}"));
            if line.contains(text) {
                return line;
            }
        }
    }

    /// The address in a line of the log.
    fn address(&self, text: &str) -> String {
        let line = self.line(text);
        let (_, rest) = line.split_once("\"address\":\"").expect("an address");
        rest.split('"').next().expect("a quote").to_owned()
    }

    fn terminate(&mut self) -> Option<i32> {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill")
            .args(["-TERM", &pid])
            .status()
            .expect("kill runs");
        assert!(sent.success());
        for _ in 0..DEADLINE.as_millis() / LOOK.as_millis() {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return status.code();
            }
            std::thread::sleep(LOOK);
        }
        panic!("still running");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn fencepost(dir: &Path) -> Command {
    std::fs::write(dir.join("fencepost.toml"), CONFIG).expect("config written");
    std::fs::write(dir.join("secret"), "s3cret\n").expect("secret written");
    let mut command = Command::new(env!("CARGO_BIN_EXE_fencepost"));
    command.current_dir(dir).env_remove("FENCEPOST_CONFIG");
    command
}

/// A command line of the binary under limits of open files: `-Sn` or `-n`, and the number.
fn limited(dir: &Path, limit: &str, number: u32, args: &[&str]) -> Command {
    fencepost(dir);
    let mut command = Command::new("sh");
    let script = format!("ulimit {limit} {number} && exec \"$0\" \"$@\"");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_fencepost")]);
    command
        .args(args)
        .current_dir(dir)
        .env_remove("FENCEPOST_CONFIG");
    command
}

fn tool(dir: &Path, args: &[&str]) -> Output {
    fencepost(dir).args(args).output().expect("binary runs")
}

fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("port is open");
    stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    )
    .expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

/// The answer of `/readyz`, once it is 200.
fn until_ready(admin: &str) -> String {
    let mut answer = String::new();
    for _ in 0..DEADLINE.as_millis() / LOOK.as_millis() {
        answer = get(admin, "/readyz");
        if answer.starts_with("HTTP/1.1 200") {
            return answer;
        }
        std::thread::sleep(LOOK);
    }
    panic!("{answer}");
}

#[test]
fn starts_keeps_others_out_and_ends_on_a_signal() {
    let dir = tempfile::tempdir().expect("a directory");
    for args in [
        ["dlq", "list"].as_slice(),
        &["store", "get", "github", "1", "billing"],
    ] {
        let output = tool(dir.path(), args);
        assert_eq!(
            output.status.code(),
            Some(69),
            "nothing there yet: {output:?}"
        );
    }
    assert!(
        !dir.path().join("fencepost-data").exists(),
        "looking creates nothing"
    );

    let mut process = Process::start(dir.path());
    let admin = process.address("admin port");
    let ingest = process.address("receiving webhooks");
    assert!(get(&admin, "/livez").starts_with("HTTP/1.1 200"));
    let ready = until_ready(&admin);
    assert!(
        ["log", "store", "dispatcher"]
            .iter()
            .all(|name| ready.contains(&format!("\"{name}\":\"ok\""))),
        "{ready}"
    );
    assert!(get(&admin, "/metrics").contains("fencepost_build_info{version="));
    assert!(get(&ingest, "/hooks/github").starts_with("HTTP/1.1 405"));

    let output = tool(dir.path(), &["standalone"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(69), "{stderr}");
    assert!(stderr.contains("another process"), "{stderr}");

    // The tools look, beside the process and after it.
    let look = || {
        let output = tool(dir.path(), &["dlq", "list"]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let output = tool(dir.path(), &["store", "get", "github", "1", "billing"]);
        assert_eq!(output.status.code(), Some(1), "never seen: {output:?}");
    };
    look();
    assert_eq!(process.terminate(), Some(0));
    look();
    let mut process = Process::start(dir.path());
    process.line("receiving webhooks");
    assert_eq!(
        process.terminate(),
        Some(0),
        "looking has left nothing in the way"
    );
}

#[test]
fn a_low_limit_of_open_files_is_raised_or_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let output = limited(dir.path(), "-n", 1_151, &["standalone"]).output();
    let output = output.expect("sh runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(64), "{stderr}");
    assert!(stderr.starts_with("ingest.connections_max: "), "{stderr}");
    for part in ["1151", "need 1152", "ulimit -n 1152", "LimitNOFILE=1152"] {
        assert!(stderr.contains(part), "{part}: {stderr}");
    }
    let output = limited(dir.path(), "-n", 1_151, &["check"]).output();
    let output = output.expect("sh runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(
        stderr.contains("warning: ingest.connections_max: "),
        "{stderr}"
    );

    // A soft limit alone keeps nobody from starting.
    let mut process = Process::spawn(limited(dir.path(), "-Sn", 256, &["standalone"]));
    let line = process.line("open files");
    let (_, soft) = line.split_once("\"soft\":").expect("the soft limit");
    let digits = soft.split(|c: char| !c.is_ascii_digit()).next();
    let soft: u64 = digits.and_then(|text| text.parse().ok()).expect("a number");
    assert!(soft >= 1_152, "{line}");
    process.line("receiving webhooks");
    assert_eq!(process.terminate(), Some(0));
}
