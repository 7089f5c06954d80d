//! GitHub's answers: what a page says, where the next one is, and what an answer that is no success asks for.
//!
//! <https://docs.github.com/rest/repos/webhooks#list-deliveries-for-a-repository-webhook>,
//! <https://docs.github.com/rest/using-the-rest-api/rate-limits-for-the-rest-api>

use http::{HeaderMap, StatusCode, header};
use reqwest::Url;
use std::time::Duration;

/// As for every delivery id, see ingest.
const NAME_BYTES_MAX: usize = 256;
const CURSOR_BYTES_MAX: usize = 2_048;

/// One try of GitHub to deliver a webhook, as it lists it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
pub(super) struct Delivery {
    pub id: u64,
    /// `X-GitHub-Delivery` of the request; the same for redeliveries.
    pub guid: String,
    pub delivered_at: jiff::Timestamp,
    /// 0 or none without an answer.
    #[serde(default)]
    pub status_code: Option<i64>,
    pub event: String,
    #[serde(default)]
    pub action: Option<String>,
}

/// One page, the newest deliveries first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Page {
    pub deliveries: Vec<Delivery>,
    /// Where the next page begins.
    pub next: Option<String>,
}

/// What an answer means for the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Fine,
    /// A rate limit. Wait this long; none: GitHub does not say.
    Limited(Option<Duration>),
    /// Its own trouble.
    Again,
    /// It would be the same next time.
    Refused,
}

/// Reads a page. Unknown fields are allowed; GitHub adds some now and then.
///
/// # Errors
/// What is wrong with it, without its values.
pub(super) fn page(headers: &HeaderMap, body: &[u8]) -> Result<Page, String> {
    let deliveries: Vec<Delivery> = serde_json::from_slice(body).map_err(|error| {
        format!(
            "no list of deliveries, at line {} column {}",
            error.line(),
            error.column()
        )
    })?;
    let is_name = |name: &str| {
        !name.is_empty() && name.len() <= NAME_BYTES_MAX && !name.contains(char::is_control)
    };
    for delivery in &deliveries {
        if !is_name(&delivery.guid) || !is_name(&delivery.event_type()) {
            return Err("a delivery whose guid or event is no name".to_owned());
        }
    }
    let next = next(headers)?;
    Ok(Page { deliveries, next })
}

/// What to do after an answer. Forbidden may be a limit as well as a lack of rights; GitHub tells them apart by its headers and
/// by the text of the secondary limit's answer.
pub(super) fn verdict(
    status: StatusCode,
    headers: &HeaderMap,
    body: &[u8],
    now_ms: i64,
) -> Verdict {
    if status.is_success() {
        return Verdict::Fine;
    }
    let wait = wait(headers, now_ms);
    let limit_told = || {
        let text = String::from_utf8_lossy(body).to_ascii_lowercase();
        text.contains("rate limit")
    };
    match status {
        StatusCode::TOO_MANY_REQUESTS => Verdict::Limited(wait),
        StatusCode::FORBIDDEN if wait.is_some() || limit_told() => Verdict::Limited(wait),
        StatusCode::REQUEST_TIMEOUT => Verdict::Again,
        _ if status.is_server_error() => Verdict::Again,
        _ => Verdict::Refused,
    }
}

/// What GitHub says of itself in an answer that is no success; one line.
pub(super) fn message(body: &[u8]) -> String {
    #[derive(serde::Deserialize)]
    struct Told {
        message: String,
    }
    let told: Result<Told, _> = serde_json::from_slice(body);
    let text = told.map_or_else(|_| String::new(), |told| told.message);
    crate::output::plain(&text)
}

/// `retry-after` in seconds, else the end of the primary limit when nothing of it is left.
fn wait(headers: &HeaderMap, now_ms: i64) -> Option<Duration> {
    let number =
        |name: &str| -> Option<u64> { headers.get(name)?.to_str().ok()?.trim().parse().ok() };
    if let Some(seconds) = number("retry-after") {
        return Some(Duration::from_secs(seconds));
    }
    if number("x-ratelimit-remaining") != Some(0) {
        return None;
    }
    let reset_ms = i64::try_from(number("x-ratelimit-reset")?.saturating_mul(1_000)).ok()?;
    // The clocks of two machines, and its seconds are cut off.
    let wait_ms = reset_ms.saturating_sub(now_ms).saturating_add(1_000);
    Some(Duration::from_millis(u64::try_from(wait_ms).unwrap_or(0)))
}

/// The cursor of the `Link` with `rel="next"` (RFC 8288). Only the cursor is taken out of it: the token goes to no address that
/// an answer names.
fn next(headers: &HeaderMap) -> Result<Option<String>, String> {
    for value in headers.get_all(header::LINK) {
        let mut rest = value.to_str().map_err(|_binary| "a Link that is no text")?;
        while let Some((_, after)) = rest.split_once('<') {
            let (target, after) = after.split_once('>').ok_or("a Link without an end")?;
            let parameters = after.split_once('<').map_or(after, |(before, _)| before);
            if parameters.split([';', ',']).any(is_next) {
                return cursor(target).map(Some);
            }
            rest = after;
        }
    }
    Ok(None)
}

fn is_next(parameter: &str) -> bool {
    parameter.split_once('=').is_some_and(|(name, value)| {
        let mut relations = value.trim().trim_matches('"').split_ascii_whitespace();
        name.trim().eq_ignore_ascii_case("rel")
            && relations.any(|relation| relation.eq_ignore_ascii_case("next"))
    })
}

fn cursor(target: &str) -> Result<String, String> {
    let url = Url::parse(target).map_err(|_relative| "a next page without an address")?;
    let cursor = url
        .query_pairs()
        .find_map(|(name, value)| (name == "cursor").then(|| value.into_owned()));
    cursor
        .filter(|cursor| !cursor.is_empty() && cursor.len() <= CURSOR_BYTES_MAX)
        .ok_or_else(|| "a next page without a cursor".to_owned())
}

// === impl Delivery ===

impl Delivery {
    /// As ingest names it: the event, and the action when there is one.
    pub(super) fn event_type(&self) -> String {
        match &self.action {
            Some(action) => format!("{}.{action}", self.event),
            None => self.event.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| {
                let name = http::HeaderName::from_static(name);
                (name, http::HeaderValue::from_static(value))
            })
            .collect()
    }

    #[test]
    fn a_page_as_the_documentation_shows_it() {
        let body = br#"[
          {"id": 12345678901234567, "guid": "0b989ba4-242f-11e5-81e1-c7b6966d2516",
           "delivered_at": "2019-06-03T00:57:16Z", "redelivery": false, "duration": 0.27, "status": "OK",
           "status_code": 200, "event": "issues", "action": "opened", "installation_id": 123,
           "repository_id": 456, "throttled_at": "2019-06-03T00:57:16Z"},
          {"id": 123456789, "guid": "0b989ba4-242f-11e5-81e1-c7b6966d2517",
           "delivered_at": "2019-06-04T00:57:16.25Z", "redelivery": true, "duration": 0.28, "status": "failed to connect",
           "status_code": null, "event": "push", "action": null, "installation_id": null, "repository_id": null}
        ]"#;
        let page = page(&HeaderMap::new(), body).unwrap();
        assert_eq!(page.next, None);
        let [first, second] = page.deliveries.as_slice() else {
            panic!("{page:?}")
        };
        assert_eq!(first.id, 12_345_678_901_234_567, "not as a float");
        assert_eq!(first.event_type(), "issues.opened");
        assert_eq!(first.status_code, Some(200));
        assert_eq!(second.event_type(), "push");
        assert_eq!(second.status_code, None);
        assert_eq!(second.delivered_at.as_millisecond(), 1_559_609_836_250);
    }

    #[test]
    fn what_is_no_page_is_told_without_its_values() {
        let long = format!(
            r#"[{{"id":1,"guid":"{}","delivered_at":"2019-06-03T00:57:16Z","event":"push"}}]"#,
            "x".repeat(257)
        );
        for body in [
            "",
            "<html>secret</html>",
            r#"{"message":"secret"}"#,
            r#"[{"id":"secret"}]"#,
            r#"[{"id":1,"guid":"secret","delivered_at":"soon","event":"push"}]"#,
            r#"[{"id":-1,"guid":"secret","delivered_at":"2019-06-03T00:57:16Z","event":"push"}]"#,
            r#"[{"id":1,"guid":"secret\u001b","delivered_at":"2019-06-03T00:57:16Z","event":"push"}]"#,
            &long,
        ] {
            let error = page(&HeaderMap::new(), body.as_bytes()).unwrap_err();
            assert!(
                !error.contains("secret") && !error.contains("xx"),
                "{error}"
            );
        }
    }

    #[test]
    fn the_next_page_is_found_wherever_it_stands() {
        for (link, expected) in [
            (
                "<https://api.github.com/app/hook/deliveries?per_page=100&cursor=v1_77>; rel=\"next\"",
                Some("v1_77"),
            ),
            (
                "<https://x/?cursor=a>; rel=\"prev\", <https://x/?cursor=b%2B1&per_page=1>; rel=\"next\"",
                Some("b+1"),
            ),
            (
                "<https://x/?cursor=b>;rel=next,<https://x/?cursor=c>; rel=prev",
                Some("b"),
            ),
            (
                "<https://x/?q=1,2&cursor=b>; title=\"a\"; REL=\"last next\"",
                Some("b"),
            ),
            ("<https://x/?cursor=a>; rel=\"prev\"", None),
            ("<https://x/?cursor=a>; rel=\"nextish\"", None),
            ("", None),
        ] {
            let found = next(&headers(&[("link", link)]));
            assert_eq!(found, Ok(expected.map(str::to_owned)), "{link}");
        }
        let two = headers(&[
            ("link", "<https://x/?cursor=a>; rel=prev"),
            ("link", "<https://x/?cursor=b>; rel=next"),
        ]);
        assert_eq!(next(&two), Ok(Some("b".to_owned())));
        for broken in [
            "<https://x/?page=2>; rel=next",
            "<nowhere>; rel=next",
            "<https://x/?cursor=>; rel=next",
        ] {
            assert!(next(&headers(&[("link", broken)])).is_err(), "{broken}");
        }
    }

    #[test]
    fn limits_are_told_from_lack_of_rights() {
        let now_ms = 1_000_000_000;
        let of = |status: u16, pairs: &[(&'static str, &'static str)], body: &str| {
            let status = StatusCode::from_u16(status).unwrap();
            verdict(status, &headers(pairs), body.as_bytes(), now_ms)
        };
        let seconds = |seconds| Verdict::Limited(Some(Duration::from_secs(seconds)));
        assert_eq!(
            of(200, &[("x-ratelimit-remaining", "0")], ""),
            Verdict::Fine
        );
        assert_eq!(of(202, &[], ""), Verdict::Fine);
        assert_eq!(of(403, &[("retry-after", "30")], ""), seconds(30));
        assert_eq!(of(429, &[("retry-after", "0")], ""), seconds(0));
        let used_up = [
            ("x-ratelimit-remaining", "0"),
            ("x-ratelimit-reset", "1000060"),
        ];
        assert_eq!(of(403, &used_up, ""), seconds(61));
        let past = [
            ("x-ratelimit-remaining", "0"),
            ("x-ratelimit-reset", "900000"),
        ];
        assert_eq!(of(403, &past, ""), seconds(0));
        assert_eq!(of(429, &[], ""), Verdict::Limited(None));
        let told = r#"{"message":"You have exceeded a secondary rate limit."}"#;
        assert_eq!(
            of(403, &[("x-ratelimit-remaining", "77")], told),
            Verdict::Limited(None)
        );
        let rights = r#"{"message":"Resource not accessible by personal access token"}"#;
        let some_left = [
            ("x-ratelimit-remaining", "77"),
            ("x-ratelimit-reset", "1000060"),
        ];
        assert_eq!(of(403, &some_left, rights), Verdict::Refused);
        for status in [301, 400, 401, 404, 410, 422] {
            assert_eq!(of(status, &some_left, ""), Verdict::Refused, "{status}");
        }
        for status in [408, 500, 502, 503] {
            assert_eq!(of(status, &[], ""), Verdict::Again, "{status}");
        }
        assert_eq!(
            message(told.as_bytes()),
            "You have exceeded a secondary rate limit."
        );
        assert_eq!(message(b"<html>"), "");
    }
}
