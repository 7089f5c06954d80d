//! The keys that a rule's sender and receiver have.

use base64::{Engine, engine::general_purpose::STANDARD};
use ingest::{
    Rule,
    rule::{Algorithm, SecretEncoding},
};

/// Keys of one sender, as the receiver and as the sender has them.
pub struct Keys {
    pub public: Vec<u8>,
    pub private: Vec<u8>,
}

const ED25519_SEED: &[u8] = b"fencepost fuzz fencepost fuzz 01";
const ED25519_PUBLIC: &str = "0c2c3dd30a69df0d4f5fa08fa5e594a788aa18f18a761258c19f83d069aa68b1";
const P256_PRIVATE: &str = "308187020100301306072a8648ce3d020106082a8648ce3d030107046d306b020101042066656e6365706f73742066757a7a2066656e6365706f73742066757a7a203031a14403420004ed65fcae1c908add784e82da6567afc344c3c32c1603fd170d968706b685ac3a9797f481e76543dc5274b05e1d7e761270342a2180852107015b51ce4fba1667";
const P256_PUBLIC: &str = "3059301306072a8648ce3d020106082a8648ce3d03010703420004ed65fcae1c908add784e82da6567afc344c3c32c1603fd170d968706b685ac3a9797f481e76543dc5274b05e1d7e761270342a2180852107015b51ce4fba1667";

/// The key in the words of the rule, on either side.
pub fn keys(rule: &Rule, key: &[u8]) -> Keys {
    let from_hex = |text: &str| hex::decode(text).unwrap_or_default();
    let (public, private) = match rule.algorithm {
        Algorithm::Ed25519 => (from_hex(ED25519_PUBLIC), ED25519_SEED.to_vec()),
        Algorithm::EcdsaP256Sha256 => (from_hex(P256_PUBLIC), from_hex(P256_PRIVATE)),
        Algorithm::HmacSha256 | Algorithm::HmacSha1 | Algorithm::HmacSha512 | Algorithm::Token => {
            (key.to_vec(), key.to_vec())
        }
    };
    let written = |key: Vec<u8>| {
        let text = match rule.secret.encoding {
            SecretEncoding::Utf8 => key,
            SecretEncoding::Base64 => STANDARD.encode(key).into_bytes(),
            SecretEncoding::Hex => hex::encode(key).into_bytes(),
        };
        [rule.secret.strip_prefix.as_bytes(), &text].concat()
    };
    Keys {
        public: written(public),
        private: written(private),
    }
}
