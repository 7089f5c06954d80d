//! Why an attempt brought no answer, for people and for what follows.

use crate::outcome::{Outcome, without_answer};
use runtime::addresses::{Blocked, DnsError};
use rustls::{AlertDescription, CertificateError};
use schemas::OutcomeKind;
use std::{error::Error, io};

/// POSIX: the process's, and the system's, table of open files is full. The same numbers on Linux, BSD and macOS.
const EMFILE: i32 = 24;
const ENFILE: i32 = 23;

/// An attempt that brought no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) detail: String,
    /// Kind of the address that may not be dialled.
    pub(super) blocked: Option<&'static str>,
}

// === impl Failure ===

impl Failure {
    pub(super) fn new(detail: impl Into<String>) -> Self {
        Self {
            detail: detail.into(),
            blocked: None,
        }
    }

    pub(super) fn timeout() -> Self {
        Self::new("timeout: no answer in time")
    }

    /// What the client says, without URL, address or anything that the other side wrote.
    pub(super) fn of(error: &reqwest::Error) -> Self {
        for cause in causes(error) {
            if let Some(blocked) = cause.downcast_ref::<Blocked>() {
                return Self::from(*blocked);
            }
            if let Some(error) = cause.downcast_ref::<DnsError>() {
                return Self::new(format!("dns: {error}"));
            }
            if let Some(error) = cause.downcast_ref::<rustls::Error>() {
                return Self::new(format!("tls: {}", of_tls(error)));
            }
        }
        let class = if error.is_timeout() {
            "timeout"
        } else if error.is_connect() {
            "connect"
        } else if error.is_body() || error.is_request() {
            "request"
        } else {
            "transport"
        };
        let root = causes(error)
            .last()
            .map(ToString::to_string)
            .unwrap_or_default();
        Self::new(format!("{class}: {root}"))
    }

    /// The same with `prefix` before the detail.
    pub(super) fn after(self, prefix: &str) -> Self {
        Self {
            detail: format!("{prefix}{}", self.detail),
            ..self
        }
    }

    pub(super) fn outcome(&self) -> Outcome {
        let kind = if self.blocked.is_some() {
            OutcomeKind::Blocked
        } else {
            OutcomeKind::Failed
        };
        without_answer(kind, &self.detail)
    }
}

impl From<Blocked> for Failure {
    fn from(blocked: Blocked) -> Self {
        Self {
            detail: blocked.to_string(),
            blocked: Some(blocked.class),
        }
    }
}

/// Whether a connection was not made because this process, or the machine, has no file descriptors left.
pub(super) fn no_descriptors(error: &reqwest::Error) -> bool {
    causes(error)
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .filter_map(io::Error::raw_os_error)
        .any(|code| code == EMFILE || code == ENFILE)
}

/// An error and what caused it.
fn causes(error: &reqwest::Error) -> impl Iterator<Item = &(dyn Error + 'static)> {
    let first: &(dyn Error + 'static) = error;
    std::iter::successors(Some(first), |error| cause_of(*error))
}

/// An I/O error names as its source what its inner error was caused by, not the inner error itself.
fn cause_of<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    let outer = error.downcast_ref::<io::Error>();
    match outer.and_then(io::Error::get_ref) {
        Some(inner) => Some(inner),
        None => error.source(),
    }
}

/// The mistakes of receivers that come up, in words; the library's words for the rest.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "the library's lists are long and grow"
)]
fn of_tls(error: &rustls::Error) -> String {
    let known = match error {
        rustls::Error::InvalidCertificate(error) => match error {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                "the certificate has expired"
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "the certificate is not valid yet"
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                "the certificate is for another name"
            }
            CertificateError::UnknownIssuer => "the certificate's issuer is not trusted",
            CertificateError::Revoked => "the certificate was revoked",
            other => return format!("the certificate is not accepted: {other:?}"),
        },
        rustls::Error::AlertReceived(alert) => match alert {
            AlertDescription::ProtocolVersion | AlertDescription::InsufficientSecurity => {
                "no version or cipher in common; 1.2 is the least"
            }
            AlertDescription::HandshakeFailure => {
                "the receiver broke off the handshake: no cipher in common, or it wants a client certificate"
            }
            AlertDescription::CertificateRequired
            | AlertDescription::NoCertificate
            | AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied => {
                return format!("the receiver does not accept our certificate ({alert:?})");
            }
            other => return format!("the receiver broke off ({other:?})"),
        },
        rustls::Error::PeerIncompatible(_) => "no version or cipher in common; 1.2 is the least",
        rustls::Error::InvalidMessage(_) => "what the receiver speaks is no TLS",
        other => return other.to_string(),
    };
    known.to_owned()
}
