//! 6: no forbidden address is dialled, by whatever name; and nobody in between is asked.

use crate::receiver::{Receiver, destination, send, sender, sender_in, webhook};
use dispatcher::HttpSend;
use runtime::Clock;
use schemas::OutcomeKind;
use std::{collections::BTreeMap, path::Path, process::Command};

#[tokio::test]
async fn a_forbidden_address_is_refused_in_every_spelling() {
    let receiver = Receiver::willing().await;
    let port = receiver.address.port();
    for host in [
        "127.0.0.1",
        "127.0.0.1.",
        "127.1",
        "127.255.0.9",
        "2130706433",
        "0x7f000001",
        "0x7f.1",
        "0177.0.0.1",
        "017700000001",
        "%31%32%37.0.0.1",
        "１２７.0.0.1",
        "0",
        "0.0.0.0",
        "[::1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "[::ffff:7f00:1]",
        "[::ffff:0:127.0.0.1]",
        "[2002:7f00:1::]",
        "①②⑦.0.0.1",
        "%EF%BC%91%EF%BC%92%EF%BC%97.1",
        "169.254.169.254",
        "10.1.2.3",
    ] {
        let mut config = destination(&format!("http://{host}:{port}/"));
        config.allow_cidrs.clear();
        let destinations = BTreeMap::from([("billing".to_owned(), config)]);
        let refused = HttpSend::new(&destinations, Path::new("."), Clock::system());
        let problems = refused.expect_err(host);
        assert_eq!(problems.len(), 1, "{host}");
        assert!(
            problems[0].to_string().contains("destinations.billing.url"),
            "{host}"
        );
    }
    assert_eq!(receiver.connections(), 0);
}

#[tokio::test]
async fn a_name_of_a_forbidden_address_is_blocked() {
    let receiver = Receiver::willing().await;
    for host in ["localhost", "LOCALHOST", "localhost.", "deep.er.localhost"] {
        let mut config = destination(&format!("http://{host}:{}/", receiver.address.port()));
        config.allow_cidrs.clear();
        let got = send(&sender(config.clone()), &webhook(b"{}")).await;
        assert_eq!(got.kind, OutcomeKind::Blocked, "{host}: {got:?}");
        config.allow_cidrs = vec!["10.0.0.0/8".parse().unwrap()];
        let got = send(&sender(config), &webhook(b"{}")).await;
        assert_eq!(got.kind, OutcomeKind::Blocked, "{host}: {got:?}");
    }
    assert_eq!(receiver.connections(), 0);
}

#[tokio::test]
async fn an_allowed_network_is_dialled_by_name() {
    let receiver = Receiver::willing().await;
    let mut config = destination(&format!("http://localhost:{}/", receiver.address.port()));
    config.allow_cidrs.push("::1/128".parse().unwrap());
    let got = send(&sender(config), &webhook(b"{}")).await;
    assert_eq!(got.kind, OutcomeKind::Delivered, "{got:?}");
}

/// A public address is dialled at the ports that are named; one inside at every port, as all tests here show.
#[tokio::test]
async fn a_port_of_a_public_address_must_be_named() {
    let ready = |url: &str, ports: &[u16]| {
        let mut config = destination(url);
        config.allow_cidrs = vec!["9.9.9.9/32".parse().unwrap()];
        config.ports = ports.to_vec();
        sender_in(Path::new("."), config).err()
    };
    for url in [
        "https://8.8.8.8/",
        "http://8.8.8.8/",
        "https://8.8.8.8:8443/",
        "https://9.9.9.9:22/",
    ] {
        assert_eq!(ready(url, &[]), None, "{url}");
    }
    assert_eq!(ready("https://8.8.8.8:9443/", &[9443]), None);
    for url in [
        "https://8.8.8.8:9443/",
        "https://134744072:22/",
        "https://[64:ff9b::808:808]:1/",
    ] {
        let problem = ready(url, &[8000]).unwrap();
        assert!(problem.contains("destinations.billing.url"), "{problem}");
        assert!(problem.contains("`ports`"), "{problem}");
    }
}

#[tokio::test]
async fn plain_http_is_not_spoken_unless_allowed() {
    let receiver = Receiver::willing().await;
    let mut config = destination(&receiver.url());
    config.allow_http = false;
    let got = send(&sender(config), &webhook(b"{}")).await;
    assert_eq!(got.kind, OutcomeKind::Failed, "{got:?}");
    assert_eq!(receiver.connections(), 0);
}

/// Runs the test above this one again, in a process whose environment names a proxy.
#[tokio::test]
async fn a_proxy_of_the_environment_is_not_asked() {
    let proxy = Receiver::willing().await;
    let url = format!("http://{}", proxy.address);
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args([
        "--exact",
        "addresses::an_allowed_network_is_dialled_by_name",
    ]);
    for name in [
        "HTTP_PROXY",
        "http_proxy",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "all_proxy",
    ] {
        again.env(name, &url);
    }
    for name in ["NO_PROXY", "no_proxy", "REQUEST_METHOD"] {
        again.env_remove(name);
    }
    let output = tokio::task::spawn_blocking(move || again.output().unwrap());
    let output = output.await.unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{said}"
    );
    assert_eq!(proxy.connections(), 0);
}
