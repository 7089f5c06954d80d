//! Getting a session: contact points, user, TLS, and an execution profile in which the driver decides nothing.

use super::{
    fault,
    issue::{TooLate, pause},
};
use crate::{
    StoreError,
    config::{CqlConfig, Serial, TlsConfig},
};
use runtime::Secret;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use scylla::{
    authentication::{
        AuthError, AuthenticatorProvider, AuthenticatorSession, PlainTextAuthenticator,
    },
    client::{
        execution_profile::ExecutionProfile, session::Session, session_builder::SessionBuilder,
    },
    policies::{load_balancing::DefaultPolicy, retry::FallthroughRetryPolicy},
    statement::{Consistency, SerialConsistency},
};
use std::{future::Future, path::Path, pin::Pin, sync::Arc, time::Duration};
use tokio::time::Instant;

/// A peer is asked so often whether it is there.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(1);

/// Without an answer its connections are dropped after this time. What was asked of it then goes to another node at once;
/// together with the interval less than a statement's timeout, which would otherwise be waited for by every statement that
/// is sent to a node that hangs (scylla-rust-driver#718).
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(4);

/// More than any configuration that is checked asks for.
const WITHIN_MAX: Duration = Duration::from_secs(86_400);

/// User and secret; the secret is read anew for every connection, so that a rotated password is taken up.
struct Login {
    user: String,
    password: Secret,
}

/// Connects, trying again until [`CqlConfig::connect_timeout`] + [`CqlConfig::deadline`] have passed.
///
/// # Errors
/// [`StoreError::Refused`] when trying again does not help (secret, TLS files, wrong password, data centre), otherwise
/// [`StoreError::Unavailable`].
pub(super) async fn session(
    config: &CqlConfig,
    secrets_base: &Path,
) -> Result<Session, StoreError> {
    let builder = builder(config, secrets_base)?;
    let deadline = deadline(config);
    let mut last = TooLate::of("connecting");
    for tries in 0.. {
        match tokio::time::timeout_at(deadline, Box::pin(builder.build())).await {
            Err(_elapsed) => return Err(last.unavailable()),
            Ok(Ok(session)) => {
                check_datacenter(&session, config)?;
                return Ok(session);
            }
            Ok(Err(error)) => match fault::refusal(&error) {
                Some(cause) => return Err(StoreError::Refused(cause)),
                None => last.note(&error),
            },
        }
        let paused = tokio::time::timeout_at(deadline, pause(tries)).await;
        if paused.is_err() {
            break;
        }
    }
    Err(last.unavailable())
}

/// The end of a start that begins now.
pub(super) fn deadline(config: &CqlConfig) -> Instant {
    within(config.connect_timeout.saturating_add(config.deadline))
}

/// The end of a call that begins now. A time that no clock can tell is cut.
pub(super) fn within(duration: Duration) -> Instant {
    Instant::now() + duration.min(WITHIN_MAX)
}

/// The level of the Paxos rounds.
pub(super) fn serial(serial: Serial) -> SerialConsistency {
    match serial {
        Serial::Local => SerialConsistency::LocalSerial,
        Serial::Global => SerialConsistency::Serial,
    }
}

fn builder(config: &CqlConfig, secrets_base: &Path) -> Result<SessionBuilder, StoreError> {
    let balancing = DefaultPolicy::builder()
        .token_aware(true)
        .permit_dc_failover(false);
    let balancing = match &config.datacenter {
        Some(datacenter) => balancing.prefer_datacenter(datacenter.clone()),
        None => balancing,
    };
    let profile = ExecutionProfile::builder()
        .consistency(Consistency::LocalQuorum)
        .serial_consistency(Some(serial(config.serial)))
        .request_timeout(Some(config.request_timeout))
        .retry_policy(Arc::new(FallthroughRetryPolicy::new()))
        .speculative_execution_policy(None)
        .load_balancing_policy(balancing.build())
        .build();
    let mut builder = SessionBuilder::new()
        .known_nodes(&config.contact_points)
        .default_execution_profile_handle(profile.into_handle())
        .connection_timeout(config.connect_timeout)
        .keyspaces_to_fetch([config.keyspace.as_str()])
        .keepalive_interval(KEEPALIVE_INTERVAL)
        .keepalive_timeout(KEEPALIVE_TIMEOUT);
    if let Some(datacenter) = &config.datacenter {
        builder = builder.prefer_datacenter(datacenter.clone());
    }
    if let (Some(user), Some(password)) = (&config.user, &config.password) {
        let password = Secret::open(password, secrets_base)
            .map_err(|error| StoreError::Refused(format!("password of {user}: {error}")))?;
        builder = builder.authenticator_provider(Arc::new(Login {
            user: user.clone(),
            password,
        }));
    }
    if let Some(files) = &config.tls {
        builder = builder.tls_context(Some(tls(files, secrets_base)?));
    }
    Ok(builder)
}

/// Data centres with quorums of their own would each let a claim through.
fn check_datacenter(session: &Session, config: &CqlConfig) -> Result<(), StoreError> {
    let cluster = session.get_cluster_state();
    let nodes = cluster.get_nodes_info().iter();
    let mut found = nodes
        .filter_map(|node| node.datacenter.clone())
        .collect::<Vec<_>>();
    found.sort_unstable();
    found.dedup();
    match datacenter_problem(config.datacenter.as_deref(), config.serial, &found) {
        Some(problem) => Err(StoreError::Refused(problem)),
        None => Ok(()),
    }
}

fn datacenter_problem(named: Option<&str>, serial: Serial, found: &[String]) -> Option<String> {
    let list = found.join(", ");
    match named {
        Some(named) if !found.iter().any(|datacenter| datacenter == named) => Some(format!(
            "the cluster has no data centre {named:?}, but {list}"
        )),
        None if found.len() > 1 && serial == Serial::Local => Some(format!(
            "the cluster has the data centres {list}: name one in `datacenter`, or decide claims in all with `serial = \"global\"`"
        )),
        Some(_) | None => None,
    }
}

fn tls(files: &TlsConfig, base: &Path) -> Result<Arc<ClientConfig>, StoreError> {
    let wrong = |place: &Path, cause: &dyn std::fmt::Display| {
        StoreError::Refused(format!("tls: {}: {cause}", place.display()))
    };
    let certificates = |place: &Path| {
        let place = base.join(place);
        let read = CertificateDer::pem_file_iter(&place).map_err(|error| wrong(&place, &error))?;
        let read = read
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| wrong(&place, &error))?;
        if read.is_empty() {
            return Err(wrong(&place, &"holds no certificate"));
        }
        Ok(read)
    };
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&files.ca)? {
        roots
            .add(certificate)
            .map_err(|error| wrong(&files.ca, &error))?;
    }
    // The provider is named: the process may have another default, or none.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| StoreError::Refused(format!("tls: {error}")))?
        .with_root_certificates(roots);
    let (Some(cert), Some(key)) = (&files.cert, &files.key) else {
        return Ok(Arc::new(builder.with_no_client_auth()));
    };
    let place = base.join(key);
    let read = PrivateKeyDer::from_pem_file(&place).map_err(|error| wrong(&place, &error))?;
    let client = builder.with_client_auth_cert(certificates(cert)?, read);
    Ok(Arc::new(client.map_err(|error| wrong(&place, &error))?))
}

// === impl Login ===

type Started = Result<(Option<Vec<u8>>, Box<dyn AuthenticatorSession>), AuthError>;

impl AuthenticatorProvider for Login {
    fn start_authentication_session<'a, 'b, 'c>(
        &'a self,
        authenticator_name: &'b str,
    ) -> Pin<Box<dyn Future<Output = Started> + Send + 'c>>
    where
        'a: 'c,
        'b: 'c,
    {
        Box::pin(async move {
            let password = self
                .password
                .with(|bytes| String::from_utf8(bytes.to_vec()));
            let password = password
                .map_err(|_not_shown| format!("the password of {} is not UTF-8", self.user))?;
            let plain = PlainTextAuthenticator::new(self.user.clone(), password);
            plain.start_authentication_session(authenticator_name).await
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Login, datacenter_problem, tls};
    use crate::{
        StoreError,
        config::{Serial, TlsConfig},
    };
    use runtime::Secret;
    use scylla::authentication::AuthenticatorProvider;
    use std::path::Path;

    #[test]
    fn two_quorums_are_not_one() {
        let two = ["dc1".to_owned(), "dc2".to_owned()];
        let one = ["dc1".to_owned()];
        assert!(
            datacenter_problem(None, Serial::Local, &two)
                .unwrap()
                .contains("dc1, dc2")
        );
        assert_eq!(datacenter_problem(None, Serial::Global, &two), None);
        assert_eq!(datacenter_problem(None, Serial::Local, &one), None);
        assert_eq!(datacenter_problem(Some("dc2"), Serial::Local, &two), None);
        assert!(
            datacenter_problem(Some("dc3"), Serial::Global, &two)
                .unwrap()
                .contains("dc3")
        );
    }

    #[tokio::test]
    async fn login_is_sent_as_the_servers_want_it() {
        let login = Login {
            user: "fence".to_owned(),
            password: Secret::from_bytes("post"),
        };
        let (sent, _session) = login.start_authentication_session("x").await.unwrap();
        assert_eq!(sent.unwrap(), b"\0fence\0post");
        let login = Login {
            user: "fence".to_owned(),
            password: Secret::from_bytes([0xff, 0xfe]),
        };
        let error = login.start_authentication_session("x").await.err().unwrap();
        assert_eq!(error, "the password of fence is not UTF-8");
    }

    #[test]
    fn a_missing_or_empty_ca_file_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let files = TlsConfig {
            ca: "ca.pem".into(),
            cert: None,
            key: None,
        };
        let refused = |base: &Path| match tls(&files, base) {
            Err(StoreError::Refused(cause)) => cause,
            other => panic!("{other:?}"),
        };
        assert!(refused(dir.path()).contains("ca.pem"));
        std::fs::write(dir.path().join("ca.pem"), "").unwrap();
        assert!(refused(dir.path()).contains("holds no certificate"));
    }
}
