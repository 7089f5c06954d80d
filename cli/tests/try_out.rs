//! `fencepost send` and `fencepost verify` through the real binary, against an ingest of its own.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Output, Stdio},
    sync::mpsc,
    time::Duration,
};

const DEADLINE: Duration = Duration::from_secs(30);
const SECRET: &str = "a-secret-nobody-may-see";
const BODY: &str = "{\"zen\":\"Keep it logically awesome.\"}";

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
[sources.token]
scheme = "gitlab-token"
secrets = [{ file = "secret" }]
"#;

struct Standalone {
    child: Child,
    address: String,
}

impl Standalone {
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
        let mut standalone = Self {
            child,
            address: String::new(),
        };
        while standalone.address.is_empty() {
            let line: String = lines.recv_timeout(DEADLINE).expect("it listens");
            if line.contains("receiving webhooks") {
                let (_, rest) = line.split_once("\"address\":\"").expect("an address");
                standalone.address = rest.split('"').next().expect("a quote").to_owned();
            }
        }
        standalone
    }
}

impl Drop for Standalone {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn fencepost(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fencepost"));
    command
        .current_dir(dir)
        .args(args)
        .env_remove("FENCEPOST_CONFIG")
        .stdin(Stdio::null());
    command
}

/// Code, standard output and standard error; none of them holds the secret.
fn ran(dir: &Path, args: &[&str]) -> (Option<i32>, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = fencepost(dir, args).output().expect("binary runs");
    let (stdout, stderr) = (
        String::from_utf8(stdout).expect("text"),
        String::from_utf8(stderr).expect("text"),
    );
    for text in [&stdout, &stderr] {
        assert!(!text.contains(SECRET), "{args:?}: {text}");
    }
    (status.code(), stdout, stderr)
}

fn prepared() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    for (name, text) in [
        ("fencepost.toml", CONFIG),
        ("secret", SECRET),
        ("body", BODY),
    ] {
        std::fs::write(dir.path().join(name), text).expect("written");
    }
    dir
}

#[test]
fn what_is_sent_is_taken_and_what_was_changed_is_explained() {
    let dir = prepared();
    let dir = dir.path();
    let standalone = Standalone::start(dir);
    let url = |source: &str| format!("http://{}/hooks/{source}", standalone.address);

    let (github, token) = (url("github"), url("token"));
    let base = [
        "send", "--source", "github", "--body", "body", "--to", &github,
    ];
    let (code, stdout, stderr) = ran(
        dir,
        &[&base[..], &["--event", "push", "--id", "7", "--count", "3"]].concat(),
    );
    assert_eq!(code, Some(0), "{stdout}{stderr}");
    assert_eq!(stdout.matches("< 202 Accepted\n").count(), 3, "{stdout}");
    assert!(stdout.contains("> x-github-delivery: 7\n"), "{stdout}");
    assert!(
        stdout.contains("> x-hub-signature-256: sha256="),
        "{stdout}"
    );

    let args = [
        "send", "--source", "token", "--body", "body", "--to", &token,
    ];
    let (code, stdout, stderr) = ran(dir, &args);
    assert_eq!(code, Some(0), "{stdout}{stderr}");
    assert!(stdout.contains("> x-gitlab-token: [secret]\n"), "{stdout}");

    // Signed with another key: refused, and what was sent is explained as the server saw it.
    std::fs::write(dir.join("key"), "another key").expect("written");
    let (code, stdout, _) = ran(dir, &[&base[..], &["--signing-key-file", "key"]].concat());
    assert_eq!(code, Some(1), "{stdout}");
    assert!(stdout.contains("< 401 Unauthorized\n"), "{stdout}");
    std::fs::write(dir.join("sent"), &stdout).expect("written");
    let explain = [
        "verify",
        "--source",
        "github",
        "--headers",
        "sent",
        "--body",
        "body",
    ];
    let (code, stdout, _) = ran(dir, &explain);
    assert_eq!(code, Some(1), "{stdout}");
    assert!(stdout.contains("slot 0 does not fit"), "{stdout}");

    let (code, headers, _) = ran(dir, &[&base[..], &["--dry-run"]].concat());
    assert_eq!(code, Some(0), "{headers}");
    std::fs::write(dir.join("sent"), headers).expect("written");
    let (code, stdout, _) = ran(dir, &explain);
    assert_eq!(code, Some(0), "{stdout}");
    assert!(stdout.contains("taken: 202, accepted\n"), "{stdout}");
    std::fs::write(dir.join("body"), BODY.replace(':', " : ")).expect("written");
    let (code, stdout, _) = ran(dir, &explain);
    assert_eq!(code, Some(1), "{stdout}");
    assert!(
        stdout.contains("it fits without the white space in the JSON"),
        "{stdout}"
    );
    assert!(
        stdout.contains("refused: 401, bad_signature: no signature fits\n"),
        "{stdout}"
    );
}

#[test]
fn nobody_answers_and_nothing_is_configured() {
    let dir = prepared();
    let dir = dir.path();
    let port = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/", port.local_addr().expect("bound"));
    drop(port);
    let (code, _, stderr) = ran(
        dir,
        &["send", "--source", "github", "--body", "body", "--to", &url],
    );
    assert_eq!(code, Some(69), "{stderr}");
    assert!(
        stderr.contains("no answer from http://127.0.0.1:"),
        "{stderr}"
    );

    let (code, _, stderr) = ran(dir, &["send", "--source", "stripe", "--body", "body"]);
    assert_eq!(code, Some(64), "{stderr}");
    assert_eq!(
        stderr,
        "sources.stripe: is not configured; there are github, token\n"
    );
    for command in ["send", "verify"] {
        let (code, stdout, _) = ran(dir, &[command, "--help"]);
        assert_eq!(code, Some(0));
        assert!(
            stdout.contains("Examples:\n") && stdout.contains("Exit codes:"),
            "{stdout}"
        );
    }
}

/// Mistakes elsewhere are for `fencepost check`.
#[test]
fn only_the_source_has_to_be_right() {
    let dir = prepared();
    let dir = dir.path();
    let config = format!(
        "{CONFIG}[sources.other]\nscheme = \"github\"\nsecrets = [{{ env = \"NOT_SET_ANYWHERE\" }}]\n[[routes]]\nsource = \"x\"\nto = [\"y\"]\n"
    );
    std::fs::write(dir.join("fencepost.toml"), config).expect("written");
    let args = [
        "send",
        "--source",
        "github",
        "--body",
        "body",
        "--to",
        "http://127.0.0.1:1/",
        "--dry-run",
    ];
    let (code, headers, stderr) = ran(dir, &args);
    assert_eq!(code, Some(0), "{stderr}");
    std::fs::write(dir.join("sent"), headers).expect("written");
    let (code, stdout, stderr) = ran(
        dir,
        &[
            "verify",
            "--source",
            "github",
            "--headers",
            "sent",
            "--body",
            "body",
        ],
    );
    assert_eq!(code, Some(0), "{stdout}{stderr}");
}
