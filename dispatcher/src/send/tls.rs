//! Certificates towards one receiver, as their files are now.

use crate::config::TlsConfig;
use base64::{Engine, engine::general_purpose::STANDARD};
use reqwest::{Certificate, ClientBuilder, Identity};
use runtime::{Problem, Secret, SecretRef};
use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    sign::CertifiedKey,
};
use std::path::Path;

/// Instead of the parser's own words: it quotes what it stumbled over, and of a key without its line breaks that is the key.
const NO_PEM: &str =
    "can not be read as PEM: are its lines whole, and the line breaks still there?";

/// Watches its files as secrets are watched: about once a second, and a file that has become unreadable keeps its old value.
#[derive(Debug)]
pub(super) struct Certificates {
    ca: Option<Secret>,
    cert: Option<Secret>,
    key: Option<Secret>,
}

/// Which setting is wrong, and how. Never a part of a key.
pub(super) type Wrong = (&'static str, String);

// === impl Certificates ===

impl Certificates {
    /// Reads the files; `key` is where they stand in the config, e.g. `destinations.x.tls`.
    ///
    /// # Errors
    /// What can not be read.
    pub(super) fn open(config: &TlsConfig, base: &Path, key: &str) -> Result<Self, Vec<Problem>> {
        let mut problems = Vec::new();
        let file = |path: &std::path::PathBuf| SecretRef {
            env: None,
            file: Some(path.clone()),
            not_after: None,
        };
        let mut open = |place: Option<SecretRef>, name: &str| {
            let opened = Secret::open(&place?, base);
            opened
                .map_err(|error| {
                    problems.push(Problem::new(format!("{key}.{name}"), error.to_string()));
                })
                .ok()
        };
        let opened = Self {
            ca: open(config.ca.as_ref().map(file), "ca"),
            cert: open(config.cert.as_ref().map(file), "cert"),
            key: open(config.key.clone(), "key"),
        };
        if problems.is_empty() {
            Ok(opened)
        } else {
            Err(problems)
        }
    }

    /// All that is read, in one order.
    pub(super) fn secrets(&self) -> impl Iterator<Item = &Secret> {
        [&self.ca, &self.cert, &self.key].into_iter().flatten()
    }

    /// Puts authorities and identity into a client.
    ///
    /// # Errors
    /// See [`Wrong`].
    pub(super) fn apply(&self, mut client: ClientBuilder) -> Result<ClientBuilder, Wrong> {
        if let Some(ca) = &self.ca {
            client = client.tls_certs_only(ca.with(authorities)?);
        }
        if let (Some(cert), Some(key)) = (&self.cert, &self.key) {
            client = client.identity(cert.with(|cert| key.with(|key| identity(cert, key)))?);
        }
        Ok(client)
    }
}

fn authorities(ca: &[u8]) -> Result<Vec<Certificate>, Wrong> {
    let mut authorities = Vec::new();
    let mut store = RootCertStore::empty();
    for der in chain(ca, "ca")? {
        let wrong = |error: &dyn std::fmt::Display| {
            let message = format!("a certificate in it can not be an authority: {error}");
            ("ca", message)
        };
        store.add(der.clone()).map_err(|e| wrong(&e))?;
        authorities.push(Certificate::from_der(&der).map_err(|e| wrong(&e))?);
    }
    Ok(authorities)
}

fn identity(cert: &[u8], key: &[u8]) -> Result<Identity, Wrong> {
    let chain = chain(cert, "cert")?;
    let der = PrivateKeyDer::from_pem_slice(key).map_err(|_quoting| ("key", NO_PEM.to_owned()))?;
    let provider = rustls::crypto::ring::default_provider();
    let text = pem_of(&chain, &der)?;
    CertifiedKey::from_der(chain, der, &provider).map_err(|error| {
        if matches!(error, rustls::Error::InconsistentKeys(_)) {
            (
                "key",
                "does not belong to the certificate in `cert`".to_owned(),
            )
        } else {
            ("key", error.to_string())
        }
    })?;
    Identity::from_pem(text.as_bytes()).map_err(|error| ("cert", error.to_string()))
}

fn chain(pem: &[u8], name: &'static str) -> Result<Vec<CertificateDer<'static>>, Wrong> {
    let chain = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|_quoting| (name, NO_PEM.to_owned()))?;
    if chain.is_empty() {
        return Err((name, "holds no certificate".to_owned()));
    }
    Ok(chain)
}

/// Nothing but certificates and key: the client refuses a file with anything else, such as the parameters that OpenSSL writes
/// before an EC key.
fn pem_of(chain: &[CertificateDer<'_>], key: &PrivateKeyDer<'_>) -> Result<String, Wrong> {
    let label = match key {
        PrivateKeyDer::Pkcs1(_) => "RSA PRIVATE KEY",
        PrivateKeyDer::Sec1(_) => "EC PRIVATE KEY",
        PrivateKeyDer::Pkcs8(_) => "PRIVATE KEY",
        _ => return Err(("key", "is of a kind that is not known".to_owned())),
    };
    let block = |label: &str, der: &[u8]| {
        let text = STANDARD.encode(der);
        format!("-----BEGIN {label}-----\n{text}\n-----END {label}-----\n")
    };
    let chain = chain.iter().map(|der| block("CERTIFICATE", der));
    Ok(chain.chain([block(label, key.secret_der())]).collect())
}
