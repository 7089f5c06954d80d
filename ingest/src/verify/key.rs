//! Secrets as keys, and signatures made and checked with them.

use crate::rule::{Algorithm, SecretEncoding, SecretRule};
use base64::{
    Engine,
    alphabet::STANDARD as ALPHABET,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use hmac::{Hmac, KeyInit, Mac, digest::block_api::EagerHash};
use ring::signature::{self, ECDSA_P256_SHA256_ASN1, ED25519, UnparsedPublicKey};
use sha1::Sha1;
use sha2::{Digest, Sha256, Sha512};
use std::borrow::Cow;
use subtle::ConstantTimeEq;

/// A secret whose text is not a key of the rule. Holds nothing of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Not the encoding that the rule names.
    #[error("is not {0}")]
    Encoding(&'static str),
    /// Nothing is left to sign with.
    #[error("is empty")]
    Empty,
    /// Not a key of the rule's algorithm.
    #[error("is not {0}")]
    Kind(&'static str),
}

/// Accepts a missing padding: secrets are copied by hand.
const LENIENT_BASE64: GeneralPurpose = GeneralPurpose::new(
    &ALPHABET,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// What stands before the point in the SubjectPublicKeyInfo of a P-256 key (RFC 5480): the only form there is.
const P256_SPKI_PREFIX: &[u8] = b"\x30\x59\x30\x13\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07\x03\x42\x00";

/// The key that a secret's text stands for.
///
/// # Errors
/// See [`KeyError`]. An empty key is refused: anybody can sign with it.
pub fn key<'a>(
    algorithm: Algorithm,
    rule: &SecretRule,
    secret: &'a [u8],
) -> Result<Cow<'a, [u8]>, KeyError> {
    let key = decoded(rule, secret)?;
    match algorithm {
        Algorithm::HmacSha256 | Algorithm::HmacSha1 | Algorithm::HmacSha512 | Algorithm::Token => {
            Ok(key)
        }
        Algorithm::Ed25519 if key.len() == 32 => Ok(key),
        Algorithm::Ed25519 => Err(KeyError::Kind("an Ed25519 public key, which has 32 bytes")),
        Algorithm::EcdsaP256Sha256 => match key.strip_prefix(P256_SPKI_PREFIX) {
            Some(point) if point.len() == 65 => Ok(Cow::Owned(point.to_vec())),
            _ => Err(KeyError::Kind("a P-256 public key (SubjectPublicKeyInfo)")),
        },
    }
}

/// The bytes that a secret's text stands for, whatever they are used for.
///
/// # Errors
/// `Encoding` and `Empty` of [`KeyError`].
pub(crate) fn decoded<'a>(rule: &SecretRule, secret: &'a [u8]) -> Result<Cow<'a, [u8]>, KeyError> {
    let text = secret
        .strip_prefix(rule.strip_prefix.as_bytes())
        .unwrap_or(secret);
    let bytes = match rule.encoding {
        SecretEncoding::Utf8 => Cow::Borrowed(text),
        SecretEncoding::Base64 => match LENIENT_BASE64.decode(text) {
            Ok(key) => Cow::Owned(key),
            Err(_) => return Err(KeyError::Encoding("base64")),
        },
        SecretEncoding::Hex => match hex::decode(text) {
            Ok(key) => Cow::Owned(key),
            Err(_) => return Err(KeyError::Encoding("hexadecimal")),
        },
    };
    if bytes.is_empty() {
        Err(KeyError::Empty)
    } else {
        Ok(bytes)
    }
}

/// Whether any of `candidates` is a signature of `parts`, one after the other. Looks at all of them; what is compared is
/// compared in constant time.
pub(crate) fn fits(
    algorithm: Algorithm,
    key: &[u8],
    parts: &[Cow<'_, [u8]>],
    candidates: &[Vec<u8>],
) -> bool {
    let public: &dyn signature::VerificationAlgorithm = match algorithm {
        Algorithm::Ed25519 => &ED25519,
        Algorithm::EcdsaP256Sha256 => &ECDSA_P256_SHA256_ASN1,
        Algorithm::Token => {
            // Of equal length for every secret: the time tells nothing of the length either.
            let secret = Sha256::digest(key);
            return any(candidates, |given| {
                secret.ct_eq(&Sha256::digest(given)).into()
            });
        }
        Algorithm::HmacSha256 | Algorithm::HmacSha1 | Algorithm::HmacSha512 => {
            let Some(made) = mac(algorithm, key, parts) else {
                return false;
            };
            return any(candidates, |given| made.as_slice().ct_eq(given).into());
        }
    };
    let message: Vec<u8> = parts.concat();
    let key = UnparsedPublicKey::new(public, key);
    any(candidates, |given| key.verify(&message, given).is_ok())
}

/// The MAC of `parts`, one after the other; none without a key, and none for an algorithm that makes none.
pub(crate) fn mac<P: AsRef<[u8]>>(
    algorithm: Algorithm,
    key: &[u8],
    parts: &[P],
) -> Option<Vec<u8>> {
    match algorithm {
        Algorithm::HmacSha256 => hmac_of::<Sha256, P>(key, parts),
        Algorithm::HmacSha1 => hmac_of::<Sha1, P>(key, parts),
        Algorithm::HmacSha512 => hmac_of::<Sha512, P>(key, parts),
        Algorithm::Token | Algorithm::Ed25519 | Algorithm::EcdsaP256Sha256 => None,
    }
}

fn hmac_of<D: EagerHash, P: AsRef<[u8]>>(key: &[u8], parts: &[P]) -> Option<Vec<u8>> {
    let mut mac = <Hmac<D> as KeyInit>::new_from_slice(key)
        .ok()
        .filter(|_| !key.is_empty())?;
    for part in parts {
        mac.update(part.as_ref());
    }
    Some(mac.finalize().into_bytes().to_vec())
}

fn any(candidates: &[Vec<u8>], fits: impl Fn(&[u8]) -> bool) -> bool {
    candidates
        .iter()
        .fold(false, |found, candidate| fits(candidate) | found)
}
