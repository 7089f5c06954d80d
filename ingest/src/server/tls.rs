//! TLS at the port, with a certificate that may change while connections are served.

use crate::config::TlsConfig;
use runtime::{Problem, Secret, SecretRef};
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use sha2::{Digest, Sha256};
use std::{
    fmt::Display,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

/// The protocols that are offered in a handshake, the preferred one first.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// Instead of the parser's own words: it quotes what it stumbled over, and of a key without its line breaks that is the key.
const NO_PEM: &str =
    "can not be read as PEM: are its lines whole, and the line breaks still there?";

/// Certificate and key, as their files are now.
pub(crate) struct Tls {
    /// Both watch their files as secrets do: about once a second, and a file that has become unreadable keeps its old value.
    cert: Secret,
    key: Secret,
    current: Mutex<Current>,
}

struct Current {
    config: Arc<ServerConfig>,
    /// Of the pair that was looked at last, whether it was good or not.
    seen: [u8; 32],
}

// === impl Tls ===

impl Tls {
    /// Reads both files; `key` is where they stand in the config, e.g. `ingest.tls`.
    ///
    /// # Errors
    /// What can not be read or does not fit together.
    pub(crate) fn open(files: &TlsConfig, base: &Path, key: &str) -> Result<Self, Vec<Problem>> {
        let mut problems = Vec::new();
        let mut open = |path: &Path, name: &str| {
            let place = SecretRef {
                env: None,
                file: Some(path.to_owned()),
                not_after: None,
            };
            Secret::open(&place, base)
                .map_err(|error| {
                    problems.push(Problem::new(format!("{key}.{name}"), error.to_string()))
                })
                .ok()
        };
        let opened = (open(&files.cert, "cert"), open(&files.key, "key"));
        let (Some(cert), Some(private)) = opened else {
            return Err(problems);
        };
        let config = cert
            .with(|cert| private.with(|key| server_config(cert, key)))
            .map_err(|(name, message)| vec![Problem::new(format!("{key}.{name}"), message)])?;
        let seen = cert.with(|cert| private.with(|key| digest(cert, key)));
        Ok(Self {
            cert,
            key: private,
            current: Mutex::new(Current {
                config: Arc::new(config),
                seen,
            }),
        })
    }

    /// The config for the next handshake. A new pair that is no good, or of which only one half has been replaced so far, is
    /// logged once and the old one stays.
    pub(crate) fn current(&self) -> Arc<ServerConfig> {
        self.cert.with(|cert| {
            self.key.with(|key| {
                let now = digest(cert, key);
                let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
                if current.seen != now {
                    current.seen = now;
                    match server_config(cert, key) {
                        Ok(config) => {
                            current.config = Arc::new(config);
                            tracing::info!("certificate replaced");
                        }
                        Err((file, cause)) => {
                            tracing::warn!(file, cause, "certificate kept: the new one is no good");
                        }
                    }
                }
                Arc::clone(&current.config)
            })
        })
    }
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

fn digest(cert: &[u8], key: &[u8]) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update((cert.len() as u64).to_be_bytes());
    hash.update(cert);
    hash.update(key);
    hash.finalize().into()
}

/// On an error: the file, and what is wrong with it. Never a part of the key.
fn server_config(cert: &[u8], key: &[u8]) -> Result<ServerConfig, (&'static str, String)> {
    let wrong = |file: &'static str, what: &dyn Display| (file, what.to_string());
    let chain = CertificateDer::pem_slice_iter(cert)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|_quoting| wrong("cert", &NO_PEM))?;
    if chain.is_empty() {
        return Err(wrong("cert", &"holds no certificate"));
    }
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|_quoting| wrong("key", &NO_PEM))?;
    // The provider is named: the process may have another default, or none.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong("cert", &error))?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(|error| {
            if matches!(error, rustls::Error::InconsistentKeys(_)) {
                wrong("key", &"does not belong to the certificate in `cert`")
            } else {
                wrong("key", &error)
            }
        })?;
    config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
    Ok(config)
}
