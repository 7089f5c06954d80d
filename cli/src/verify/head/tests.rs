use super::*;
use proptest::{collection::vec, prelude::*};

fn of(pairs: &[(&str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
        headers.append(name, HeaderValue::from_str(value).unwrap());
    }
    headers
}

fn parsed(text: &str) -> Head {
    Head::parse(text.as_bytes()).unwrap_or_else(|error| panic!("{error} in {text:?}"))
}

fn refused(text: &str) -> String {
    Head::parse(text.as_bytes()).unwrap_err().to_string()
}

/// Names of token characters, values of what a header may hold, without white space around.
fn any_headers() -> impl Strategy<Value = HeaderMap> {
    let letters: Vec<u8> = b"abcz019!#$%&'*+-.^_`|~".to_vec();
    let name = vec(proptest::sample::select(letters), 1..12);
    let value = vec(
        prop_oneof![Just(b'\t'), 0x20..0x7f_u8, 0x80..=0xff_u8],
        0..24,
    );
    vec((name, value), 0..12).prop_map(|pairs| {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            let name = HeaderName::from_bytes(&name).unwrap();
            headers.append(name, HeaderValue::from_bytes(value.trim_ascii()).unwrap());
        }
        headers
    })
}

proptest! {
    #[test]
    fn what_is_printed_is_read(headers in any_headers()) {
        let text = printed(&headers);
        let expected = Head { headers, ..Head::default() };
        prop_assert_eq!(Head::parse(&text), Ok(expected.clone()));
        // As it stands in what curl prints, with CRLF.
        let mut curl = b"* Connected\n> ".to_vec();
        let lines = text.strip_suffix(b"\n").unwrap_or(&text);
        for byte in lines {
            curl.extend(if *byte == b'\n' { b"\r\n> ".as_slice() } else { std::slice::from_ref(byte) });
        }
        curl.extend(b"\r\n> \r\n< HTTP/1.1 202 Accepted\r\n< x: y\r\n");
        if !text.is_empty() {
            prop_assert_eq!(Head::parse(&curl), Ok(expected));
        }
    }

    #[test]
    fn whatever_comes_is_answered(text in vec(any::<u8>(), 0..200)) {
        drop(Head::parse(&text));
    }
}

#[test]
fn lines_in_every_dress() {
    let expected = of(&[("x-github-event", "push"), ("x-id", "1"), ("x-id", "2")]);
    for text in [
        "X-GitHub-Event: push\nX-Id: 1\nX-Id:2",
        "\r\nx-github-event:push \r\nx-id: 1\r\nx-id: 2\r\n\r\n",
        "POST /hooks/github HTTP/1.1\nx-github-event: push\nx-id: 1\nx-id: 2\n",
        "* Connected to localhost\n> POST /hooks/github HTTP/1.1\n> x-github-event: push\n> x-id: 1\n> x-id: 2\n>\n\
         * upload completely sent off: 27 bytes\n< HTTP/1.1 401 Unauthorized\n< x-other: 1\n<\n{ [5 bytes data]\nbody",
        "< POST /hooks/github HTTP/1.1\n< x-github-event: push\n< x-id: 1\n< x-id: 2\n<\nbody: 1",
        ":method: POST\n:path: /hooks/github\n:scheme: https\nx-github-event: push\nx-id: 1\nx-id: 2\n",
        "Request URL: https://hooks.example.com/hooks/github\nRequest method: POST\nx-github-event: push\nx-id: 1\nx-id: 2\n",
        "Headers\n\nRequest method: POST\nX-GitHub-Event: push\nX-Id: 1\nX-Id: 2\n\nPayload\n\n{\n \"zen\": 1\n}",
        r#"{"X-GitHub-Event": "push", "x-id": ["1", "2"]}"#,
        r#"{"X-GitHub-Event": "push", "x-id": 1, "X-ID": "2"}"#,
        r#"{"id": 5, "request": {"headers": {"X-GitHub-Event": "push", "x-id": ["1", "2"]}, "payload": {"a": null}}}"#,
    ] {
        assert_eq!(parsed(text).headers, expected, "{text}");
    }
}

#[test]
fn the_request_line_gives_method_and_query() {
    for text in [
        "GET /hooks/meta?hub.mode=subscribe HTTP/1.1\nhost: x\n",
        "GET https://example.com/hooks/meta?hub.mode=subscribe\nhost: x\n",
        "> GET /hooks/meta?hub.mode=subscribe HTTP/2\n> host: x\n",
        "Request URL: https://example.com/x?hub.mode=subscribe#top\nRequest method: GET\nhost: x",
    ] {
        let head = parsed(text);
        assert_eq!(head.method, Some(Method::GET), "{text}");
        assert_eq!(head.query.as_deref(), Some("hub.mode=subscribe"), "{text}");
        assert_eq!(head.headers, of(&[("host", "x")]), "{text}");
    }
}

#[test]
fn what_is_no_header_is_named_by_its_line() {
    for (text, line, part) in [
        ("a: 1\nfoo bar\n", 2, "`Name: value`"),
        ("a: 1\nb c: 2\n", 2, "not a header name"),
        ("a: 1\n\nb: 2\n", 3, "nothing may follow"),
        ("a: 1\n b: 2\n", 2, "white space"),
        ("a: 1\r\nb: \u{1}\r\n", 2, "the value of b"),
        ("HTTP/1.1 200 OK\na: 1\n", 1, "begins an answer"),
        ("> a: 1\nb: 2\n> c: 3\n", 2, "without >"),
        ("< HTTP/1.1 200 OK\n< a: 1\n", 1, "begins an answer"),
        ("{\n\"a\": 1,\n}", 3, "not JSON"),
        ("{\"a\": {}}", 1, "\"a\""),
        ("{\"a\": [[]]}", 1, "\"a\""),
        ("{\"a b\": \"\"}", 1, "not a header name"),
    ] {
        let message = refused(text);
        assert!(
            message.starts_with(&format!("line {line}: ")),
            "{text:?}: {message}"
        );
        assert!(message.contains(part), "{text:?}: {message}");
    }
}
