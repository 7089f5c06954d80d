//! Memory stays flat however much lies in the log: the bench's scenario, small enough for every run.

use std::process::Command;

/// Bodies of the backlog and of what waits are 190 MB together, above the bar: a process that held them would not pass.
#[test]
fn a_backlog_and_full_tiers_do_not_lie_in_memory() {
    let output = Command::new(env!("CARGO_BIN_EXE_fencepost"))
        .args(["bench", "backlog", "--webhooks", "10000"])
        .args(["--waiting", "2000", "--body-bytes", "16384"])
        .args(["--resident-mib-max", "150", "--seconds-max", "400"])
        .arg("--enforce")
        .output()
        .expect("the binary runs");
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    println!("{stdout}");
    assert!(output.status.success(), "{stdout}\n{stderr}");
    assert!(stdout.contains("delivered=10000"), "{stdout}");
}
