//! What a request came to, and how that is said in HTTP.

use crate::{certificates::NoCertificate, handshake::Answered, rule::Answer, verify::Refusal};
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;
use std::num::NonZeroU64;

/// Seconds after which a sender may try again; those that read it do so with their own jitter.
const RETRY_AFTER_SECONDS: &str = "5";

const NO_CERTIFICATE: &str = "The sender's certificate could not be had; try again later.";
const NOT_STORED: &str = "The webhook could not be stored; try again later.";

/// A request that needs nothing further from its sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// In the log. Answered as the source wants it.
    Accepted(Option<Answer>),
    /// In the spool, on its way to the log. Answered as if it were there.
    Spooled(Option<Answer>),
    /// Verified, but of an event type that the source's allow-list leaves out.
    Ignored(Option<Answer>),
    /// No webhook, but a sender that tries the endpoint out.
    Handshake(Answered),
}

/// A request that was not taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refused {
    #[error("no such source")]
    UnknownSource,
    #[error("more headers than are taken")]
    ManyHeaders,
    #[error("not a POST")]
    Method,
    #[error("the body is encoded")]
    Encoded,
    #[error("the body is not of a media type that the source takes")]
    MediaType,
    #[error("the body has a transfer coding other than chunked")]
    Coded,
    #[error("the source sends more requests than its rate limit takes")]
    TooMany { retry_after_seconds: NonZeroU64 },
    #[error("the body is larger than the source may send")]
    TooLarge,
    #[error("the body did not arrive in time")]
    Slow,
    #[error("the body broke off")]
    BrokenOff,
    #[error(transparent)]
    Unverified(#[from] Refusal),
    #[error(transparent)]
    NoCertificate(NoCertificate),
    #[error("the process ended before the signature was verified")]
    Ended,
    #[error("the budget of bytes in flight is used up")]
    Full,
    #[error("the log is not ready: {0}")]
    NotReady(event_log::LogError),
    #[error(transparent)]
    NotProduced(event_log::ProduceError),
    #[error(transparent)]
    NotEncoded(schemas::EncodeError),
    #[error("the log does not take it, and the spool is full")]
    SpoolFull,
    #[error("the spool can not be written: {0}")]
    NotSpooled(event_log::ProduceError),
    #[error("the log did not acknowledge within the source's deadline")]
    Late,
}

/// How one kind of refusal is said. `outcome` is the metric's label and the end of the problem's type: stable.
struct Saying {
    outcome: &'static str,
    status: StatusCode,
    title: &'static str,
    detail: &'static str,
}

const MANY_HEADERS: Saying = Saying {
    outcome: "too_many_headers",
    status: StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
    title: "Too many headers",
    detail: "The request has more headers than are taken.",
};

/// RFC 9457.
#[derive(Serialize)]
struct Problem {
    r#type: String,
    title: &'static str,
    status: u16,
    detail: &'static str,
}

// === impl Taken ===

impl Taken {
    /// Stable name, as in logs and metrics.
    pub(crate) fn outcome(&self) -> &'static str {
        match self {
            Self::Accepted(_) => "accepted",
            Self::Spooled(_) => "spooled",
            Self::Ignored(_) => "ignored",
            Self::Handshake(_) => "handshake",
        }
    }

    pub(crate) fn status(&self) -> StatusCode {
        let usual = match self {
            Self::Accepted(_) | Self::Spooled(_) => StatusCode::ACCEPTED,
            Self::Ignored(_) | Self::Handshake(_) => StatusCode::OK,
        };
        match self {
            Self::Accepted(Some(answer))
            | Self::Spooled(Some(answer))
            | Self::Ignored(Some(answer)) => StatusCode::from_u16(answer.status).unwrap_or(usual),
            Self::Handshake(answered) => StatusCode::from_u16(answered.status).unwrap_or(usual),
            Self::Accepted(None) | Self::Spooled(None) | Self::Ignored(None) => usual,
        }
    }
}

impl IntoResponse for Taken {
    fn into_response(self) -> Response {
        let status = self.status();
        let (content_type, body) = match self {
            Self::Accepted(Some(answer))
            | Self::Spooled(Some(answer))
            | Self::Ignored(Some(answer)) => {
                (HeaderValue::from_str(&answer.content_type), answer.body)
            }
            Self::Handshake(Answered {
                content_type, body, ..
            }) => (Ok(HeaderValue::from_static(content_type)), body),
            Self::Accepted(None) | Self::Spooled(None) | Self::Ignored(None) => {
                return status.into_response();
            }
        };
        let mut response = (status, body).into_response();
        let headers = response.headers_mut();
        if let Ok(content_type) = content_type {
            headers.insert(header::CONTENT_TYPE, content_type);
        }
        // What is echoed is text, whatever a browser makes of it.
        let no_sniff = HeaderValue::from_static("nosniff");
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, no_sniff);
        response
    }
}

// === impl Refused ===

impl Refused {
    /// Stable name, as in logs and metrics.
    pub(crate) fn outcome(&self) -> &'static str {
        self.saying().outcome
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.saying().status
    }

    /// The details are the same whatever the values were: they help who set the sender up and tell a forger nothing.
    fn saying(&self) -> Saying {
        let (outcome, status, title, detail) = match self {
            Self::UnknownSource => (
                "unknown_source",
                StatusCode::NOT_FOUND,
                "No such source",
                "There is no source at this path.",
            ),
            Self::ManyHeaders => return MANY_HEADERS,
            Self::Method => (
                "bad_method",
                StatusCode::METHOD_NOT_ALLOWED,
                "Method not allowed",
                "Webhooks are sent with POST.",
            ),
            Self::Encoded => (
                "unsupported_encoding",
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "Content encoding not supported",
                "Send the body without a content encoding.",
            ),
            Self::MediaType => (
                "unsupported_media_type",
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "Media type not supported",
                "The body is not of a media type that this source may send.",
            ),
            Self::Coded => (
                "unsupported_transfer_coding",
                StatusCode::BAD_REQUEST,
                "Transfer coding not supported",
                "Send the body with a content length, or with the transfer coding chunked alone.",
            ),
            Self::TooLarge
            | Self::NotProduced(event_log::ProduceError::TooLarge { .. })
            | Self::NotEncoded(_) => (
                "too_large",
                StatusCode::PAYLOAD_TOO_LARGE,
                "Body too large",
                "The body is larger than this source may send.",
            ),
            Self::Slow => (
                "slow_body",
                StatusCode::REQUEST_TIMEOUT,
                "Body too slow",
                "The body did not arrive in time.",
            ),
            Self::BrokenOff => (
                "broken_body",
                StatusCode::BAD_REQUEST,
                "Broken body",
                "The body broke off.",
            ),
            Self::Unverified(refusal) => return of_refusal(refusal),
            Self::NoCertificate(_)
            | Self::TooMany { .. }
            | Self::Full
            | Self::SpoolFull
            | Self::Ended
            | Self::NotReady(_)
            | Self::NotProduced(_)
            | Self::NotSpooled(_)
            | Self::Late => return self.not_now(),
        };
        Saying {
            outcome,
            status,
            title,
            detail,
        }
    }

    /// What may be sent again as it is, later.
    fn not_now(&self) -> Saying {
        if matches!(self, Self::TooMany { .. }) {
            return Saying {
                outcome: "rate_limited",
                status: StatusCode::TOO_MANY_REQUESTS,
                title: "Too many requests",
                detail: "This source sends more requests than it may; try again later.",
            };
        }
        let (outcome, detail) = if matches!(self, Self::NoCertificate(_)) {
            ("no_certificate", NO_CERTIFICATE)
        } else if matches!(self, Self::Full) {
            ("overloaded", "Too much is under way; try again later.")
        } else if matches!(self, Self::SpoolFull) {
            (
                "spool_full",
                "Too much waits to be stored; try again later.",
            )
        } else {
            ("unavailable", NOT_STORED)
        };
        Saying {
            outcome,
            status: StatusCode::SERVICE_UNAVAILABLE,
            title: "Not available",
            detail,
        }
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let Saying {
            outcome,
            status,
            title,
            detail,
        } = self.saying();
        let problem = Problem {
            r#type: format!("urn:fencepost:problem:{outcome}"),
            title,
            status: status.as_u16(),
            detail,
        };
        // Words of ours only: they can not fail to be JSON.
        let text = serde_json::to_string(&problem).unwrap_or_default();
        let mut response = (status, text).into_response();
        let headers = response.headers_mut();
        let json = HeaderValue::from_static("application/problem+json");
        headers.insert(header::CONTENT_TYPE, json);
        match status {
            StatusCode::SERVICE_UNAVAILABLE => {
                let seconds = HeaderValue::from_static(RETRY_AFTER_SECONDS);
                headers.insert(header::RETRY_AFTER, seconds);
            }
            StatusCode::TOO_MANY_REQUESTS => {
                if let Self::TooMany {
                    retry_after_seconds,
                } = self
                {
                    headers.insert(header::RETRY_AFTER, retry_after_seconds.get().into());
                }
            }
            StatusCode::METHOD_NOT_ALLOWED => {
                headers.insert(header::ALLOW, HeaderValue::from_static("POST"));
            }
            // Where such a body ends is anybody's guess (RFC 9112 section 6.1).
            StatusCode::BAD_REQUEST if matches!(self, Self::Coded) => {
                headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            _ => {}
        }
        response
    }
}

fn of_refusal(refusal: &Refusal) -> Saying {
    let (outcome, status, title, detail) = match refusal {
        Refusal::Unsigned | Refusal::Mismatch => (
            "bad_signature",
            StatusCode::UNAUTHORIZED,
            "Signature not accepted",
            "The request is not signed with a secret of this source.",
        ),
        Refusal::Stale | Refusal::Early => (
            "stale",
            StatusCode::UNAUTHORIZED,
            "Signature out of time",
            "The signed time is too far from now; check the clock.",
        ),
        Refusal::Repeated(_) | Refusal::Missing(_) | Refusal::Malformed(_) => (
            "malformed",
            StatusCode::BAD_REQUEST,
            "Malformed webhook",
            "An id, type, time or signature that this source must send is missing, repeated or malformed.",
        ),
    };
    Saying {
        outcome,
        status,
        title,
        detail,
    }
}
