//! What an attempt produced, as a value: a status or a transport error becomes an [`Outcome`].

use schemas::OutcomeKind;
use std::time::Duration;

/// What an attempt produced. A delivery failure is a value; only our own infrastructure makes an `Err`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub kind: OutcomeKind,
    /// HTTP status, when an answer came.
    pub status: Option<u16>,
    /// The receiver's Retry-After, counted from the end of the answer.
    pub retry_after: Option<Duration>,
    /// Short cause for people, at most [`DETAIL_CHARS_MAX`] characters. Never a response body.
    pub detail: String,
}

/// Characters kept of a cause.
pub const DETAIL_CHARS_MAX: usize = 200;

/// Classifies an answer. Statuses in `retry_statuses` count as failed instead of rejected.
pub fn of_status(
    status: u16,
    retry_after: Option<&[u8]>,
    retry_statuses: &[u16],
    now_ms: i64,
) -> Outcome {
    let retry_after = retry_after.and_then(|value| parse_retry_after(value, now_ms));
    let kind = match status {
        200..=299 => OutcomeKind::Delivered,
        429 => OutcomeKind::Throttled,
        503 if retry_after.is_some() => OutcomeKind::Throttled,
        410 if !retry_statuses.contains(&410) => OutcomeKind::Gone,
        408 | 425 | 500..=599 => OutcomeKind::Failed,
        other if retry_statuses.contains(&other) => OutcomeKind::Failed,
        _ => OutcomeKind::Rejected,
    };
    Outcome {
        kind,
        status: Some(status),
        retry_after,
        detail: format!("http status {status}"),
    }
}

/// An attempt without an answer, or one that must not be made.
pub fn without_answer(kind: OutcomeKind, detail: &str) -> Outcome {
    let detail = detail.chars().take(DETAIL_CHARS_MAX).collect();
    Outcome {
        kind,
        status: None,
        retry_after: None,
        detail,
    }
}

/// Retry-After (RFC 9110 section 10.2.3): delta-seconds or one of the three HTTP-date forms. A date in the past is no
/// wait; nonsense is none at all.
pub fn parse_retry_after(value: &[u8], now_ms: i64) -> Option<Duration> {
    let text = std::str::from_utf8(value).ok()?.trim_ascii();
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        // More digits than u64 has is still "very long".
        return Some(Duration::from_secs(text.parse().unwrap_or(u64::MAX)));
    }
    let at = httpdate::parse_http_date(text).ok()?;
    let at_ms = at.duration_since(std::time::UNIX_EPOCH).ok()?.as_millis();
    let wait_ms = i64::try_from(at_ms).ok()?.saturating_sub(now_ms);
    Some(Duration::from_millis(u64::try_from(wait_ms).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_become_outcomes() {
        let kind = |status| of_status(status, None, &[], 0).kind;
        for status in [200, 201, 202, 204, 299] {
            assert_eq!(kind(status), OutcomeKind::Delivered, "{status}");
        }
        for status in [408, 425, 500, 502, 503, 504, 599] {
            assert_eq!(kind(status), OutcomeKind::Failed, "{status}");
        }
        for status in [
            301, 302, 304, 400, 401, 403, 404, 405, 413, 422, 100, 101, 600, 999,
        ] {
            assert_eq!(kind(status), OutcomeKind::Rejected, "{status}");
        }
        assert_eq!(kind(429), OutcomeKind::Throttled);
        assert_eq!(kind(410), OutcomeKind::Gone);
        assert_eq!(
            of_status(503, Some(b"2"), &[], 0).kind,
            OutcomeKind::Throttled
        );
        assert_eq!(of_status(404, None, &[404], 0).kind, OutcomeKind::Failed);
        assert_eq!(of_status(410, None, &[410], 0).kind, OutcomeKind::Failed);
    }

    #[test]
    fn retry_after_in_every_form() {
        // Sun, 06 Nov 1994 08:49:37 GMT, the example of RFC 9110 section 5.6.7.
        let at_ms = 784_111_777_000;
        let parse = |text: &str| parse_retry_after(text.as_bytes(), at_ms - 90_000);
        assert_eq!(parse("120"), Some(Duration::from_secs(120)));
        assert_eq!(parse(" 0 "), Some(Duration::ZERO));
        assert_eq!(
            parse("99999999999999999999999"),
            Some(Duration::from_secs(u64::MAX))
        );
        for date in [
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994",
        ] {
            assert_eq!(parse(date), Some(Duration::from_secs(90)), "{date}");
        }
        assert_eq!(parse("Sat, 06 Nov 1993 08:49:37 GMT"), Some(Duration::ZERO));
        for nonsense in ["", "-1", "+5", "1.5", "soon", "5s", "１２"] {
            assert_eq!(parse(nonsense), None, "{nonsense:?}");
        }
        assert_eq!(parse_retry_after(b"\xff\xfe", 0), None);
    }
}
