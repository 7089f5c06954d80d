//! What went wrong elsewhere, by the report that tells of it: bodies that were changed before they were verified, signatures that
//! were looked for at the wrong place, verification that was skipped. Each goes through ingest as a request.

use crate::{NOW_MS, SECRET, app, fake_log::FakeLog, try_app};
use axum::body::Body;
use http::Request;
use ingest::{IngestConfig, Unsigned, router, rule::presets, sign};
use schemas::Webhook;
use tower::ServiceExt;

const JSON: &str = "application/json";
const FORM: &str = "application/x-www-form-urlencoded";

/// `[sources]` with one of a preset.
fn source(scheme: &str) -> String {
    format!("[{scheme}]\nscheme = \"{scheme}\"\nsecrets = [{{ file = \"s\" }}]\n")
}

/// Sends `body` as the preset's sender would, with further headers; the status, and the webhook when one is in the log.
async fn sent(
    scheme: &str,
    content_type: &str,
    body: &[u8],
    further: &[(&str, &str)],
) -> (u16, Option<Webhook>) {
    let rule = presets().unwrap().remove(scheme).unwrap().verify;
    let unsigned = Unsigned {
        delivery_id: "d-1",
        event_type: "push",
        public_url: None,
        body,
        now_ms: NOW_MS,
    };
    let mut request =
        Request::post(format!("/hooks/{scheme}")).header("content-type", content_type);
    for (name, value) in sign(&rule, &[SECRET.as_bytes()], &unsigned).unwrap() {
        request = request.header(name, value);
    }
    for (name, value) in further {
        request = request.header(*name, *value);
    }
    let request = request.body(Body::from(body.to_vec())).unwrap();
    let log = FakeLog::new();
    let app = app(IngestConfig::default(), &source(scheme), &log);
    let response = router(app).oneshot(request).await.unwrap();
    let record = log.asked().pop();
    let webhook = record.map(|record| {
        let codec = schemas::Codec::default();
        codec.decode_webhook(&record.value).unwrap()
    });
    (response.status().as_u16(), webhook)
}

/// octokit/webhooks.js#1155, github/docs#3567 and #3315 (decoded as text); jonpulice/node-shopify-auth#2,
/// workos-node#517 and frain-dev/convoy#2392 (parsed and written again); grnhse/greenhouse-api-docs#276 and #485,
/// box/box-python-sdk-gen#596 (escapes made one).
#[tokio::test]
async fn bodies_are_verified_and_kept_as_they_came() {
    let bodies: [&[u8]; 9] = [
        "{\"a\":\"\u{1f600}\u{fe0f} \u{2026} \u{2028}\"}".as_bytes(),
        b"{\"a\":\"\x1b[34m\"}",
        b"{\"a\":\"\xff\xfe\"}",
        b"{ \"b\" : 1.50 ,\r\n\t\"a\" : 1e2, \"a\" : 12345678901234567890 }\r\n",
        b"{\"a\":\"\\u003cb\\u003e\"}",
        b"{\"a\":\"<b>\"}",
        b"{\"a\":\"\\/\"}",
        b"\xef\xbb\xbf{}",
        b"",
    ];
    for body in bodies {
        let (status, webhook) = sent("github", JSON, body, &[]).await;
        assert_eq!(status, 202, "{}", body.escape_ascii());
        assert_eq!(webhook.unwrap().body, body, "{}", body.escape_ascii());
    }
}

/// frain-dev/convoy#2392: the signature is over the form as it was sent, not over the JSON in it.
#[tokio::test]
async fn a_form_is_verified_raw_and_its_json_has_the_event() {
    let body = b"payload=%7B%22action%22%3A%22opened%22%2C+%22n%22%3A1.10%7D";
    let (status, webhook) = sent("github", FORM, body, &[]).await;
    let webhook = webhook.unwrap();
    assert_eq!((status, webhook.event_type.as_str()), (202, "push.opened"));
    assert_eq!(webhook.body.as_ref(), body);
}

/// adnanh/webhook#662: Bitbucket's `x-hub-signature` is SHA-256, which GitHub has under another name.
#[tokio::test]
async fn the_source_says_which_hash_a_header_has() {
    let (status, webhook) = sent("bitbucket", JSON, b"{}", &[]).await;
    assert_eq!((status, webhook.is_some()), (202, true));
}

/// go-playground/webhooks#209 (an id was taken for a proof), argoproj/argo-cd#1142 (no secret, no check).
#[tokio::test]
async fn nothing_is_taken_without_a_proof() {
    let log = FakeLog::new();
    let app = app(IngestConfig::default(), &source("bitbucket"), &log);
    let id = "{6a1f9b3e-0000-4000-8000-5c3c1d5f0e11}";
    let request = Request::post("/hooks/bitbucket")
        .header("x-request-uuid", id)
        .header("x-hook-uuid", id)
        .header("x-event-key", "repo:push");
    let request = request.body(Body::from("{}")).unwrap();
    let response = router(app).oneshot(request).await.unwrap();
    assert_eq!((response.status().as_u16(), log.asked().len()), (401, 0));

    for scheme in presets().unwrap().into_keys() {
        let bare = format!("[a]\nscheme = \"{scheme}\"\npublic_url = \"https://a.example/\"\n");
        let problems = try_app(IngestConfig::default(), &bare, FakeLog::new()).unwrap_err();
        let keys: Vec<&str> = problems.iter().map(|it| it.key.as_str()).collect();
        assert_eq!(keys, ["sources.a.secrets"], "{scheme}");
    }
}

/// OneUptime/oneuptime#3404 (GHSA-cp58-wc9q-qv53), headroom#3284: nothing is inflated, however well it is signed.
#[tokio::test]
async fn an_encoded_body_is_refused_unread() {
    for coding in ["gzip", "zstd", "br", "deflate", "identity, gzip"] {
        let further = [("content-encoding", coding)];
        let (status, webhook) = sent("github", JSON, b"\x1f\x8b\x08", &further).await;
        assert_eq!((status, webhook), (415, None), "{coding}");
    }
}

/// Shopify's change of 2024-09-10: a repeat carries the payload of its first try, and only a header tells its age.
#[tokio::test]
async fn headers_that_tell_of_age_travel_on() {
    let further = [("x-shopify-triggered-at", "2023-11-14T22:13:20.000000000Z")];
    let (_, webhook) = sent("shopify", JSON, b"{}", &further).await;
    let headers = webhook.unwrap().headers;
    let found = headers
        .iter()
        .any(|it| it.name == "x-shopify-triggered-at" && it.value == further[0].1.as_bytes());
    assert!(found);
}
