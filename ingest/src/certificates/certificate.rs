//! One certificate: what of it is looked at, and signatures checked with its key.

use rustls::pki_types::{CertificateDer, pem::PemObject};
use std::fmt;
use webpki::{EndEntityCert, ring::RSA_PKCS1_2048_8192_SHA256};

/// Names longer than this are not those of PayPal's certificates.
const NAME_BYTES_MAX: usize = 256;
/// Names of one certificate that are looked at.
const NAMES_MAX: usize = 64;

/// X.509 (RFC 5280): a key for RSA signatures, its names and its time.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Certificate {
    der: CertificateDer<'static>,
    /// Common name of the subject, and DNS names.
    names: Vec<String>,
    not_before_ms: i64,
    not_after_ms: i64,
}

/// A certificate that can not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unreadable {
    #[error("no certificate in PEM form")]
    Pem,
    #[error("not an X.509 certificate")]
    X509,
}

/// The rest of a DER text (X.690); takes it apart from the front.
#[derive(Clone, Copy)]
struct Der<'a>(&'a [u8]);

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const INTEGER: u8 = 0x02;
const OBJECT: u8 = 0x06;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
/// Explicit `[0]`: the certificate's version.
const VERSION: u8 = 0xa0;
/// 2.5.4.3
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];

// === impl Certificate ===

impl Certificate {
    /// The first certificate of a PEM text; further ones are its authorities.
    ///
    /// # Errors
    /// See [`Unreadable`].
    pub(crate) fn from_pem(pem: &[u8]) -> Result<Self, Unreadable> {
        let Some(Ok(der)) = CertificateDer::pem_slice_iter(pem).next() else {
            return Err(Unreadable::Pem);
        };
        let (not_before_ms, not_after_ms, common_name) = read(&der).ok_or(Unreadable::X509)?;
        let mut names: Vec<String> = common_name.into_iter().collect();
        match EndEntityCert::try_from(&der) {
            Ok(leaf) => names.extend(leaf.valid_dns_names().take(NAMES_MAX).map(str::to_owned)),
            Err(_) => return Err(Unreadable::X509),
        }
        Ok(Self {
            der,
            names,
            not_before_ms,
            not_after_ms,
        })
    }

    /// Whether it is one of those that PayPal signs webhooks with: `messageverificationcerts`, something or nothing, and
    /// `.paypal.com`, as PayPal's own Java SDK has it.
    pub(crate) fn is_paypals(&self) -> bool {
        self.names.iter().any(|name| {
            let name = name.to_ascii_lowercase();
            let middle = name
                .strip_prefix("messageverificationcerts.")
                .and_then(|rest| rest.strip_suffix("paypal.com"));
            middle.is_some_and(|middle| middle.is_empty() || middle.ends_with('.'))
        })
    }

    /// Last moment at which it is good, milliseconds since the Unix epoch.
    pub(crate) fn not_after_ms(&self) -> i64 {
        self.not_after_ms
    }

    /// Whether `signature` is one of `message` with its RSA key (PKCS #1 v1.5, SHA-256), and it is good at `now_ms`.
    pub(crate) fn signed(&self, message: &[u8], signature: &[u8], now_ms: i64) -> bool {
        let good = (self.not_before_ms..=self.not_after_ms).contains(&now_ms);
        let leaf = EndEntityCert::try_from(&self.der);
        let fits = leaf.is_ok_and(|leaf| {
            leaf.verify_signature(RSA_PKCS1_2048_8192_SHA256, message, signature)
                .is_ok()
        });
        good && fits
    }
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificate")
            .field("names", &self.names)
            .field("not_after_ms", &self.not_after_ms)
            .finish_non_exhaustive()
    }
}

// === impl Der ===

impl<'a> Der<'a> {
    /// Takes the next value: its tag and its content.
    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (tag, rest) = self.0.split_first()?;
        let (first, rest) = rest.split_first()?;
        let (len, rest) = match first {
            0..=0x7f => (usize::from(*first), rest),
            0x81..=0x83 => {
                let (len, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
                let len = len
                    .iter()
                    .fold(0, |sum, byte| sum << 8 | usize::from(*byte));
                (len, rest)
            }
            _ => return None,
        };
        let (content, rest) = rest.split_at_checked(len)?;
        self.0 = rest;
        Some((*tag, content))
    }

    /// Takes the next value, which is of the kind `tag`.
    fn take(&mut self, tag: u8) -> Option<Self> {
        let (found, content) = self.next()?;
        (found == tag).then_some(Self(content))
    }
}

/// Begin, end and the subject's common name: what the library does not tell of a certificate without its authorities.
fn read(certificate: &[u8]) -> Option<(i64, i64, Option<String>)> {
    let mut fields = Der(certificate).take(SEQUENCE)?.take(SEQUENCE)?;
    if fields.0.first() == Some(&VERSION) {
        fields.take(VERSION)?;
    }
    fields.take(INTEGER)?;
    let _algorithm = fields.take(SEQUENCE)?;
    let _issuer = fields.take(SEQUENCE)?;
    let mut validity = fields.take(SEQUENCE)?;
    let not_before_ms = instant_ms(validity.next()?)?;
    let not_after_ms = instant_ms(validity.next()?)?;
    let name = common_name(fields.take(SEQUENCE)?);
    Some((not_before_ms, not_after_ms, name))
}

/// The only one; with several it would not be clear whose certificate it is.
fn common_name(mut subject: Der<'_>) -> Option<String> {
    let mut found = None;
    while let Some(mut set) = subject.take(SET) {
        while let Some(mut pair) = set.take(SEQUENCE) {
            if pair.take(OBJECT)?.0 != COMMON_NAME {
                continue;
            }
            let (_, text) = pair.next()?;
            let text = std::str::from_utf8(text).ok()?;
            if found.is_some() || text.len() > NAME_BYTES_MAX {
                return None;
            }
            found = Some(text.to_owned());
        }
    }
    found
}

/// `YYMMDDhhmmssZ` of the years 1950 to 2049, or `YYYYMMDDhhmmssZ` (RFC 5280, 4.1.2.5).
fn instant_ms((tag, text): (u8, &[u8])) -> Option<i64> {
    let text = std::str::from_utf8(text).ok()?;
    let text = match tag {
        UTC_TIME if text.len() == 13 => {
            let century = if text < "50" { "20" } else { "19" };
            format!("{century}{text}")
        }
        GENERALIZED_TIME if text.len() == 15 => text.to_owned(),
        _ => return None,
    };
    let digits = text.strip_suffix('Z')?;
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let part = |from: usize, to: usize| digits.get(from..to);
    let (year, month, day) = (part(0, 4)?, part(4, 6)?, part(6, 8)?);
    let (hour, minute, second) = (part(8, 10)?, part(10, 12)?, part(12, 14)?);
    let instant: jiff::Timestamp = format!("{year}-{month}-{day}T{hour}:{minute}:{second}Z")
        .parse()
        .ok()?;
    Some(instant.as_millisecond())
}
