//! Mistakes in what a destination says of its connections, each with its key.
#![expect(
    clippy::needless_pass_by_value,
    reason = "so that tables of literals stay short"
)]

use dispatcher::DestinationConfig;
use serde_json::{Value, json};

/// Key paths of the mistakes, or what the parser says.
fn mistakes(with: Value) -> Result<Vec<String>, String> {
    let mut config = json!({ "url": "https://billing.example/hooks" });
    let fields = with.as_object().unwrap().clone();
    config.as_object_mut().unwrap().extend(fields);
    let config: DestinationConfig =
        serde_json::from_value(config).map_err(|error| error.to_string())?;
    let problems = config.check("d");
    Ok(problems.into_iter().map(|problem| problem.key).collect())
}

fn found(with: Value, keys: &[&str]) {
    assert_eq!(mistakes(with.clone()).unwrap(), keys, "{with}");
}

#[test]
fn ports() {
    found(json!({ "url": "https://x.example:8443/" }), &[]);
    found(
        json!({ "url": "http://x.example/", "allow_http": true }),
        &[],
    );
    found(json!({ "url": "https://x.example:9443/" }), &["d.url"]);
    found(
        json!({ "url": "https://x.example:9443/", "ports": [9443] }),
        &[],
    );
    found(
        json!({ "url": "https://x.example:22/", "ports": [9443] }),
        &["d.url"],
    );
    // Judged when the address is known.
    found(
        json!({ "url": "https://x.example:9443/", "allow_cidrs": ["10.0.0.0/8"] }),
        &[],
    );
    found(json!({ "ports": [0] }), &["d.ports"]);
}

#[test]
fn tls() {
    let key = json!({ "env": "KEY" });
    found(json!({ "tls": { "ca": "ca.pem" } }), &[]);
    found(json!({ "tls": { "cert": "c.pem", "key": key } }), &[]);
    found(json!({ "tls": {} }), &["d.tls"]);
    found(json!({ "tls": { "cert": "c.pem" } }), &["d.tls.key"]);
    found(
        json!({ "tls": { "ca": "ca.pem", "key": key } }),
        &["d.tls.cert"],
    );
    let plain =
        json!({ "url": "http://x.example/", "allow_http": true, "tls": { "ca": "ca.pem" } });
    found(plain, &["d.tls"]);
}

#[test]
fn headers() {
    found(
        json!({ "headers": { "x-key": "text", "User-Agent": { "env": "UA" } } }),
        &[],
    );
    found(json!({ "headers": { "authorization": "Token x" } }), &[]);
    for name in [
        "Host",
        "content-length",
        "Content-Type",
        "transfer-encoding",
        "connection",
        "expect",
        "te",
        "webhook-id",
        "webhook-signature",
        "idempotency-key",
        "traceparent",
        "accept-encoding",
        "proxy-authorization",
    ] {
        let key = format!("d.headers.{name}");
        found(json!({ "headers": { name: "x" } }), &[key.as_str()]);
    }
    found(
        json!({ "headers": { "bad name": "x" } }),
        &["d.headers.bad name"],
    );
    found(
        json!({ "headers": { "x-lines": "a\r\nb" } }),
        &["d.headers.x-lines"],
    );
    found(
        json!({ "headers": { "X-Key": "a", "x-key": "b" } }),
        &["d.headers.x-key"],
    );
    let both = json!({ "headers": { "Authorization": "x" }, "auth": { "bearer": { "env": "T" } } });
    found(both, &["d.headers.Authorization"]);
    let error = mistakes(json!({ "headers": { "x-key": 1 } })).unwrap_err();
    assert!(error.contains("a text, or a place such as"), "{error}");
}

#[test]
fn auth() {
    let secret = json!({ "env": "SECRET" });
    let oauth2 =
        |url: &str| json!({ "token_url": url, "client_id": "me", "client_secret": secret });
    let basic = |user: &str| json!({ "user": user, "password": secret });
    found(json!({ "auth": { "bearer": secret } }), &[]);
    found(json!({ "auth": { "basic": basic("me") } }), &[]);
    found(
        json!({ "auth": { "oauth2": oauth2("https://login.example/") } }),
        &[],
    );
    found(json!({ "auth": {} }), &["d.auth"]);
    found(
        json!({ "auth": { "bearer": secret, "basic": basic("me") } }),
        &["d.auth"],
    );
    found(
        json!({ "auth": { "basic": basic("me:you") } }),
        &["d.auth.basic.user"],
    );
    for url in [
        "http://login.example/",
        "https://u:p@login.example/",
        "https://login.example:9443/",
        "ftp://login.example/",
        "https://login.example/#x",
    ] {
        let keys = mistakes(json!({ "auth": { "oauth2": oauth2(url) } })).unwrap();
        assert!(!keys.is_empty(), "{url}");
        assert!(
            keys.iter().all(|key| key == "d.auth.oauth2.token_url"),
            "{url}: {keys:?}"
        );
    }
    assert!(mistakes(json!({ "auth": { "digest": secret } })).is_err());
}

#[test]
fn proxy() {
    let secret = json!({ "env": "SECRET" });
    let proxy = |url: &str| json!({ "proxy": { "url": url } });
    found(proxy("http://proxy.internal:3128"), &[]);
    found(
        json!({ "proxy": { "url": "http://p", "user": "u", "password": secret } }),
        &[],
    );
    found(
        json!({ "proxy": { "url": "http://p", "user": "u" } }),
        &["d.proxy.password"],
    );
    found(
        json!({ "proxy": { "url": "http://p", "password": secret } }),
        &["d.proxy.user"],
    );
    for url in ["socks5://p:1080", "http://u:p@p/", "http://p/x", "mailto:x"] {
        assert_eq!(mistakes(proxy(url)).unwrap()[0], "d.proxy.url", "{url}");
    }
    let with =
        |url: &str| json!({ "url": url, "allow_http": true, "proxy": { "url": "http://p" } });
    found(with("http://x.example/"), &["d.url"]);
    let inside = json!({ "url": "https://x.example:9443/", "proxy": { "url": "http://p" }, "allow_cidrs": ["10.0.0.0/8"] });
    found(inside, &["d.url"]);
}
