//! `fencepost destinations` through the real binary, beside a process that has the directory open.

use std::{
    cell::RefCell,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Output, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering},
        mpsc,
    },
    time::Duration,
};

const DEADLINE: Duration = Duration::from_secs(60);

/// A receiver that answers as it is told, and tells who was there.
struct Receiver {
    address: SocketAddr,
    status: Arc<AtomicU16>,
    ids: mpsc::Receiver<String>,
}

impl Receiver {
    fn start(status: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let status = Arc::new(AtomicU16::new(status));
        let answer = Arc::clone(&status);
        let (sender, ids) = mpsc::channel();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let id = take(stream, answer.load(Ordering::SeqCst));
                if sender.send(id).is_err() {
                    return;
                }
            }
        });
        Self {
            address,
            status,
            ids,
        }
    }

    fn answers(&self, status: u16) {
        self.status.store(status, Ordering::SeqCst);
    }

    fn next(&self) -> String {
        self.ids.recv_timeout(DEADLINE).expect("a request")
    }
}

/// Reads one request, answers it; its `webhook-id`.
fn take(mut stream: TcpStream, status: u16) -> String {
    stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
    let mut lines = BufReader::new(stream.try_clone().expect("a handle"));
    let (mut id, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        lines.read_line(&mut line).expect("a head");
        let Some((name, value)) = line.trim().split_once(": ") else {
            if line.trim().is_empty() {
                break;
            }
            continue;
        };
        match name.to_ascii_lowercase().as_str() {
            "webhook-id" => id = value.to_owned(),
            "content-length" => length = value.parse().expect("a length"),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    lines.read_exact(&mut body).expect("a body");
    write!(
        stream,
        "HTTP/1.1 {status} x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    )
    .expect("answered");
    id
}

/// A standalone process, killed when the test ends.
struct Process {
    child: Child,
    lines: mpsc::Receiver<String>,
    seen: RefCell<Vec<String>>,
}

impl Process {
    fn start(dir: &Path) -> Self {
        let mut command = fencepost(dir, &["standalone"]);
        let mut child = command.stderr(Stdio::piped()).spawn().expect("binary runs");
        let stderr = child.stderr.take().expect("piped");
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                // Whoever waited has gone; the pipe must be read on.
                drop(sender.send(line));
            }
        });
        Self {
            child,
            lines,
            seen: RefCell::default(),
        }
    }

    /// The first line of the log that holds all of these, in whatever order the lines come.
    fn line(&self, texts: &[&str]) -> String {
        let mut seen = self.seen.borrow_mut();
        let fits = |line: &String| texts.iter().all(|text| line.contains(text));
        loop {
            if let Some(line) = seen.iter().find(|line| fits(line)) {
                return line.clone();
            }
            let line = self.lines.recv_timeout(DEADLINE);
            seen.push(line.unwrap_or_else(|_| panic!("no line with {texts:?}")));
        }
    }

    fn address(&self, text: &str) -> String {
        let line = self.line(&[text]);
        let (_, rest) = line.split_once("\"address\":\"").expect("an address");
        rest.split('"').next().expect("a quote").to_owned()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn fencepost(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fencepost"));
    command
        .args(args)
        .current_dir(dir)
        .env_remove("FENCEPOST_CONFIG");
    command
}

/// Runs a command; its exit code, what it printed and what it complained of.
fn tool(dir: &Path, args: &[&str]) -> (Option<i32>, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = fencepost(dir, args).output().expect("binary runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (status.code(), text(&stdout), text(&stderr))
}

fn fine(dir: &Path, args: &[&str]) -> String {
    let (code, stdout, stderr) = tool(dir, args);
    assert_eq!(code, Some(0), "{args:?}: {stderr}");
    stdout
}

fn send(dir: &Path, ingest: &str, id: &str) {
    let to = format!("http://{ingest}/hooks/github");
    let args = [
        "send",
        "--source",
        "github",
        "--body",
        "body.json",
        "--to",
        &to,
        "--id",
        id,
    ];
    fine(dir, &args);
}

fn metrics(admin: &str) -> String {
    let mut stream = TcpStream::connect(admin).expect("port is open");
    stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
    write!(
        stream,
        "GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    )
    .expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

fn prepare(dir: &Path, receiver: SocketAddr, more: &str) {
    let config = format!(
        r#"
[ingest]
listen = "127.0.0.1:0"
[admin]
listen = "127.0.0.1:0"
[telemetry]
log = "json"
[sources.github]
scheme = "github"
secrets = [{{ file = "secret" }}]
[destinations.billing]
url = "http://{receiver}/"
allow_http = true
allow_cidrs = ["127.0.0.0/8"]
{more}
[[routes]]
source = "github"
to = ["billing"]
"#
    );
    std::fs::write(dir.join("fencepost.toml"), config).expect("config written");
    std::fs::write(dir.join("secret"), "s3cret\n").expect("secret written");
    std::fs::write(dir.join("body.json"), "{}").expect("body written");
}

#[test]
fn a_410_pauses_and_a_resume_beside_the_running_process_ends_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path();
    let receiver = Receiver::start(410);
    prepare(dir, receiver.address, "");
    for args in [
        ["destinations", "list"].as_slice(),
        &["destinations", "pause", "billing"],
        &["destinations", "resume", "billing"],
    ] {
        assert_eq!(tool(dir, args).0, Some(69), "nothing there yet: {args:?}");
    }
    assert!(
        !dir.join("fencepost-data").exists(),
        "asking creates nothing"
    );

    let process = Process::start(dir);
    let admin = process.address("admin port");
    let ingest = process.address("receiving webhooks");
    let list = fine(dir, &["destinations", "list"]);
    assert!(list.contains("billing      active"), "{list}");
    for command in ["pause", "resume"] {
        let (code, _, stderr) = tool(dir, &["destinations", command, "biling"]);
        assert_eq!(code, Some(64), "{stderr}");
        assert_eq!(
            stderr,
            "destinations.biling: is not configured; known: billing\n"
        );
    }

    send(dir, &ingest, "1");
    assert!(receiver.next().contains('1'));
    let line = process.line(&["destination paused", "\"cause\":\"gone\""]);
    assert!(line.contains("http status 410"), "{line}");
    let list = fine(dir, &["destinations", "list", "--json"]);
    assert!(
        list.contains("\"state\":\"paused\"") && list.contains("\"cause\":\"gone\""),
        "{list}"
    );
    let gauge = metrics(&admin);
    let gauge = gauge
        .lines()
        .find(|line| line.starts_with("fencepost_destination_paused{"));
    let gauge = gauge.expect("a gauge");
    assert!(
        gauge.contains("cause=\"gone\"") && gauge.ends_with(" 1"),
        "{gauge}"
    );

    // The receiver is well again, but nobody asks it.
    receiver.answers(204);
    send(dir, &ingest, "2");
    process.line(&["record ended", "\"ended\":\"deferred\""]);
    assert!(
        receiver.ids.try_recv().is_err(),
        "a request to a paused destination"
    );

    let resumed = fine(dir, &["destinations", "resume", "billing"]);
    assert!(resumed.starts_with("billing is resumed"), "{resumed}");
    process.line(&["destination resumed", "\"cause\":\"gone\""]);
    send(dir, &ingest, "3");
    assert!(receiver.next().contains('3'));
    let again = fine(dir, &["destinations", "resume", "billing"]);
    assert_eq!(again, "billing is not paused\n");
}

#[test]
fn a_pause_by_hand_outlives_the_process_and_its_deliveries_end_by_policy() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path();
    let receiver = Receiver::start(204);
    prepare(
        dir,
        receiver.address,
        "pause = { deliveries = \"dead-letter\" }",
    );
    let process = Process::start(dir);
    process.line(&["receiving webhooks"]);
    let paused = fine(
        dir,
        &["destinations", "pause", "billing", "--note", "ask Kim"],
    );
    assert!(paused.contains("go to the dead letters"), "{paused}");
    process.line(&["destination paused", "ask Kim"]);
    let again = fine(dir, &["destinations", "pause", "billing"]);
    assert!(
        again.starts_with("billing is paused since 20") && again.ends_with("(manual)\n"),
        "{again}"
    );
    drop(process);

    let process = Process::start(dir);
    process.line(&["destination paused", "ask Kim"]);
    let ingest = process.address("receiving webhooks");
    send(dir, &ingest, "1");
    process.line(&["record ended", "dead_lettered"]);
    let letters = fine(dir, &["dlq", "list", "--reason", "destination_paused"]);
    assert!(
        letters.contains("github/1/billing") && letters.contains("attempts 0"),
        "{letters}"
    );
    assert!(receiver.ids.try_recv().is_err());
    drop(process);

    // Without a process, and of a destination that is not configured any more.
    let config = std::fs::read_to_string(dir.join("fencepost.toml")).expect("a config");
    std::fs::write(
        dir.join("fencepost.toml"),
        config.replace("billing", "accounts"),
    )
    .expect("written");
    let list = fine(dir, &["destinations", "list"]);
    assert!(list.contains("accounts     active"), "{list}");
    assert!(
        list.contains("billing      paused, not configured"),
        "{list}"
    );
    fine(dir, &["destinations", "resume", "billing"]);
    let list = fine(dir, &["destinations", "list"]);
    assert!(!list.contains("billing"), "{list}");
}
