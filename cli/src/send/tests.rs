use super::*;
use crate::{args::VerifyArgs, config::DEFAULT_TOML, verify};
use std::path::{Path, PathBuf};

const NOW_MS: i64 = 1_700_000_000_000;
/// Text, base64 and hexadecimal at once.
const SECRET: &str = "abcdef0123456789abcdef0123456789";

/// Has an id, type and time for every preset that looks for them in the body.
const BODY: &str = r#"{"id":"1","type":"a.b","event":{"id":"2","type":"x","event_type":"y"},"event_id":"3","event_type":"z",
"webhookTimestamp":1700000000000,"topic":"t","object_kind":"push","object":"page","event-data":{"event":"opened"},
"notificationItems":[{"NotificationRequestItem":{"pspReference":"P1","originalReference":"","merchantAccountCode":"M",
"merchantReference":"R","amount":{"value":1,"currency":"EUR"},"eventCode":"AUTHORISATION","success":"true"}}]}"#;

fn loaded(dir: &Path, scheme: &str) -> Loaded {
    std::fs::write(dir.join("secret"), SECRET).unwrap();
    std::fs::write(dir.join("body"), BODY).unwrap();
    let text = format!(
        "[sources.it]\nscheme = \"{scheme}\"\nsecrets = [{{ file = \"secret\" }}]\npublic_url = \"https://hooks.example.com/hooks/it\"\n"
    );
    let config = runtime::config::read(Some(("t.toml".into(), text)), DEFAULT_TOML, &[]).unwrap();
    Loaded {
        config,
        file: None,
        base: dir.to_path_buf(),
    }
}

fn args(dir: &Path) -> SendArgs {
    SendArgs {
        source: "it".to_owned(),
        body: dir.join("body"),
        to: None,
        event: None,
        id: None,
        secret_slot: 0,
        signing_key_env: None,
        signing_key_file: None,
        count: 1,
        dry_run: true,
        header: Vec::new(),
        content_type: None,
    }
}

fn verified(loaded: &Loaded, headers: PathBuf, body: PathBuf) -> verify::Verdict {
    let args = VerifyArgs {
        source: "it".to_owned(),
        headers,
        body,
        at: Some("1700000000".to_owned()),
        query: None,
        method: None,
        cert: None,
        json: false,
    };
    verify::run(&args, loaded, 0, false).unwrap()
}

#[test]
fn what_a_dry_run_prints_is_verified_for_every_symmetric_preset() {
    let dir = tempfile::tempdir().unwrap();
    let mut seen = 0;
    for (name, preset) in ingest::rule::presets().unwrap() {
        let algorithm = preset.verify.algorithm;
        let asymmetric = matches!(algorithm, Algorithm::Ed25519 | Algorithm::EcdsaP256Sha256);
        let loaded = loaded(dir.path(), &name);
        let args = args(dir.path());
        if asymmetric || preset.verify.verifier == Some(Verifier::Paypal) {
            let made = Sender::new(&args, &loaded).and_then(|sender| sender.signed(NOW_MS));
            assert!(matches!(made, Err(Failure::Config(_))), "{name}");
            continue;
        }
        seen += 1;
        let sender = Sender::new(&args, &loaded).unwrap_or_else(|error| panic!("{name}: {error}"));
        let signed = sender
            .signed(NOW_MS)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let text = sender.head(&signed);
        assert!(!text.contains(SECRET), "{name}: {text}");
        let (head, body) = (dir.path().join("head"), dir.path().join("signed"));
        std::fs::write(&head, &text).unwrap();
        std::fs::write(&body, &signed.body).unwrap();
        let verdict = verified(&loaded, head.clone(), body.clone());
        assert!(!verdict.text.contains(SECRET), "{name}: {}", verdict.text);
        if algorithm == Algorithm::Token {
            assert!(text.contains("x-gitlab-token: [secret]\n"), "{text}");
            assert!(!verdict.taken, "{name}: {}", verdict.text);
            std::fs::write(&head, text.replace("[secret]", SECRET)).unwrap();
            let verdict = verified(&loaded, head, body);
            assert!(verdict.taken, "{name}: {}", verdict.text);
            continue;
        }
        assert!(verdict.taken, "{name}: {}\n{text}", verdict.text);
        let mut changed = signed.body.clone();
        changed.push(b' ');
        if preset.verify.verifier.is_none() {
            std::fs::write(&body, &changed).unwrap();
            let verdict = verified(&loaded, head, body);
            assert!(!verdict.taken, "{name}: {}", verdict.text);
        }
    }
    assert!(seen > 20, "{seen}");
}

#[test]
fn a_private_key_signs_where_the_source_has_the_public_one() {
    let dir = tempfile::tempdir().unwrap();
    let loaded = loaded(dir.path(), "discord");
    // RFC 8032, section 7.1, test 1.
    let public = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";
    let private = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60";
    std::fs::write(dir.path().join("secret"), public).unwrap();
    std::fs::write(dir.path().join("key"), private).unwrap();
    let args = SendArgs {
        signing_key_file: Some(dir.path().join("key")),
        ..args(dir.path())
    };
    let sender = Sender::new(&args, &loaded).unwrap();
    let signed = sender.signed(NOW_MS).unwrap();
    let head = dir.path().join("head");
    std::fs::write(&head, sender.head(&signed)).unwrap();
    let verdict = verified(&loaded, head, dir.path().join("body"));
    assert!(verdict.taken, "{}", verdict.text);
}

#[test]
fn arguments_without_effect_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let notes = |scheme: &str, args: &SendArgs| {
        let loaded = loaded(dir.path(), scheme);
        let sender = Sender::new(args, &loaded).unwrap();
        sender.signed(NOW_MS).unwrap().notes
    };
    let args = SendArgs {
        id: Some("7".to_owned()),
        event: Some("push".to_owned()),
        ..args(dir.path())
    };
    assert_eq!(notes("github", &args), Vec::<String>::new());
    assert_eq!(
        notes("stripe", &args),
        [
            "--id has no effect: the delivery id is 1, from id of the body",
            "the event type is \"a.b\", from type of the body: not what --event says"
        ]
    );
    std::fs::write(dir.path().join("empty"), "{}").unwrap();
    let args = SendArgs {
        body: dir.path().join("empty"),
        id: None,
        event: None,
        ..args
    };
    assert_eq!(
        notes("stripe", &args),
        ["the delivery id is missing: ingest looks for it in id of the body"]
    );
}

#[test]
fn the_url_is_where_ingest_listens() {
    let dir = tempfile::tempdir().unwrap();
    let mut loaded = loaded(dir.path(), "square");
    let url = |loaded: &Loaded, to: Option<&str>| {
        let args = SendArgs {
            to: to.map(str::to_owned),
            ..args(dir.path())
        };
        let sender = Sender::new(&args, loaded).map_err(|error| error.to_string())?;
        Ok::<_, String>(sender.signed(NOW_MS).unwrap().url.to_string())
    };
    assert_eq!(
        url(&loaded, None).unwrap(),
        "http://127.0.0.1:8080/hooks/it"
    );
    let to = "https://example.com/x?a=1";
    assert_eq!(url(&loaded, Some(to)).unwrap(), to);
    for to in ["example.com", "ftp://example.com/"] {
        assert!(
            url(&loaded, Some(to)).unwrap_err().starts_with("--to: "),
            "{to}"
        );
    }
    loaded.config.ingest.listen = "[::]:9000".parse().unwrap();
    assert_eq!(url(&loaded, None).unwrap(), "http://[::1]:9000/hooks/it");
    loaded.config.ingest.tls = Some(ingest::config::TlsConfig {
        cert: "cert.pem".into(),
        key: "key.pem".into(),
    });
    assert_eq!(url(&loaded, None).unwrap(), "https://[::1]:9000/hooks/it");
    loaded.config.ingest.listen = "0.0.0.0:0".parse().unwrap();
    assert!(
        url(&loaded, None)
            .unwrap_err()
            .starts_with("--to: is missing")
    );
}

#[test]
fn a_clouds_metadata_is_not_called() {
    let url = Url::parse("http://169.254.169.254/hooks/it").unwrap();
    assert!(matches!(Poster::new(&url), Err(Failure::Config(_))));
    let url = Url::parse("http://[::1]:80/hooks/it").unwrap();
    assert!(Poster::new(&url).is_ok());
}
