//! Names to addresses: absolute names only, within a budget, remembered for a while.

use crate::clock::monotonic_ms;
use hickory_resolver::{
    Hosts, TokioResolver,
    config::{LookupIpStrategy, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts},
    net::{NetError, runtime::TokioRuntimeProvider},
    proto::{
        op::Query,
        rr::{Name, RecordType},
    },
    system_conf::read_system_conf,
};
use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};
use tokio::sync::Semaphore;

/// Total time for one name, the wait for a place included.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);
/// One question to one server; a second one fits into the total.
const QUERY_TIMEOUT: Duration = Duration::from_secs(2);
/// Names looked up at once. Each takes two sockets.
const LOOKUPS_MAX: usize = 32;
/// Answers looked at; a name with more is refused.
const ADDRESSES_MAX: usize = 64;
/// Answers remembered.
const CACHE_ANSWERS_MAX: u64 = 1_024;
/// A lifetime of 0 must not make every attempt a question, and one of a day must not outlive a move by much.
const TTL_MIN: Duration = Duration::from_secs(1);
const TTL_MAX: Duration = Duration::from_secs(300);
/// A name that was just made is found soon.
const NEGATIVE_TTL_MAX: Duration = Duration::from_secs(10);

const SERVERS_FILE: &str = "/etc/resolv.conf";
const HOSTS_FILE: &str = "/etc/hosts";
/// How often the two files are looked at, milliseconds.
const CHECK_EVERY_MS: u64 = 5_000;

/// Resolves names: the hosts file, `localhost`, then the system's name servers. Search domains are never appended, so that
/// `kubernetes` does not become `kubernetes.default.svc.cluster.local`. Clones share places and memory.
#[derive(Clone)]
pub struct Dns {
    shared: Arc<Shared>,
}

struct Shared {
    places: Semaphore,
    /// The system's files are followed; else what is in `current` stays.
    is_system: bool,
    check_at_ms: AtomicU64,
    current: RwLock<Arc<Current>>,
}

struct Current {
    resolver: Result<TokioResolver, NetError>,
    hosts: Hosts,
    seen: [Option<SystemTime>; 2],
}

/// A name that has no addresses now. The texts say nothing of the network inside.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DnsError {
    /// No such name, or no addresses.
    #[error("name has no address")]
    NoAddress,
    /// Not a name that could be asked for.
    #[error("is no name")]
    NoName,
    /// The budget is used up.
    #[error("name was not resolved in time")]
    Timeout,
    /// More addresses than anybody needs.
    #[error("name has more than 64 addresses")]
    TooMany,
    /// Name servers are not known or do not answer properly.
    #[error("name servers failed: {0}")]
    Servers(String),
}

// === impl Dns ===

impl Dns {
    /// As the system's files say, now and when they change.
    pub fn system() -> Self {
        Self::new(Current::of_system(), true)
    }

    /// These name servers and hosts (lines as in the hosts file) instead of the system's, for tests. A search domain is given,
    /// as a system would, and must not matter.
    pub fn with_servers(servers: &[SocketAddr], hosts: &str) -> Self {
        let of = |server: &SocketAddr| {
            let mut config = NameServerConfig::udp_and_tcp(server.ip());
            for connection in &mut config.connections {
                connection.port = server.port();
            }
            config
        };
        let servers = servers.iter().map(of).collect();
        let search = Name::from_ascii("search.example.").ok();
        let config = ResolverConfig::from_parts(None, search.into_iter().collect(), servers);
        let mut known = Hosts::default();
        // Reading from memory does not fail.
        drop(known.read_hosts_conf(hosts.as_bytes()));
        let current = Current {
            resolver: resolver(config, ResolverOpts::default()),
            hosts: known,
            seen: [None; 2],
        };
        Self::new(current, false)
    }

    fn new(current: Current, is_system: bool) -> Self {
        Self {
            shared: Arc::new(Shared {
                places: Semaphore::new(LOOKUPS_MAX),
                is_system,
                check_at_ms: AtomicU64::new(monotonic_ms().saturating_add(CHECK_EVERY_MS)),
                current: RwLock::new(Arc::new(current)),
            }),
        }
    }

    #[cfg(test)]
    pub(super) fn resolver(&self) -> Option<TokioResolver> {
        self.current().resolver.as_ref().ok().cloned()
    }

    /// All addresses of `host`, IPv4 first, at most 64. `turn` is the caller's own limit, waited for within the budget.
    ///
    /// # Errors
    /// See [`DnsError`].
    pub(super) async fn resolve(
        &self,
        host: &str,
        turn: &Semaphore,
    ) -> Result<Vec<IpAddr>, DnsError> {
        let found = tokio::time::timeout(LOOKUP_TIMEOUT, self.find(host, turn)).await;
        let addresses = found.unwrap_or(Err(DnsError::Timeout))?;
        match addresses.len() {
            0 => Err(DnsError::NoAddress),
            1..=ADDRESSES_MAX => Ok(addresses),
            _ => Err(DnsError::TooMany),
        }
    }

    async fn find(&self, host: &str, turn: &Semaphore) -> Result<Vec<IpAddr>, DnsError> {
        let mut name = Name::from_ascii(host).map_err(|_unusable| DnsError::NoName)?;
        name.set_fqdn(true);
        let current = self.current();
        let known = current.known(&name);
        if !known.is_empty() {
            return Ok(known);
        }
        if is_localhost(host) {
            return Ok(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
        }
        let resolver = current.resolver.as_ref().map_err(of_net)?;
        // Neither is ever closed.
        let _turn = turn.acquire().await;
        let _place = self.shared.places.acquire().await;
        let found = resolver.lookup_ip(name).await.map_err(|e| of_net(&e))?;
        Ok(found.iter().take(ADDRESSES_MAX + 1).collect())
    }

    /// What is known of servers and hosts; read again when a look is due and a file has changed. Among racing callers one looks.
    fn current(&self) -> Arc<Current> {
        let shared = &self.shared;
        let read = || {
            let current = shared.current.read();
            Arc::clone(&current.unwrap_or_else(PoisonError::into_inner))
        };
        let (now_ms, due_ms) = (monotonic_ms(), shared.check_at_ms.load(Ordering::Relaxed));
        if !shared.is_system || now_ms < due_ms {
            return read();
        }
        let next_ms = now_ms.saturating_add(CHECK_EVERY_MS);
        let first = shared.check_at_ms.compare_exchange(
            due_ms,
            next_ms,
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
        if first.is_ok() && read().seen != seen() {
            let new = Arc::new(Current::of_system());
            tracing::info!("name servers or hosts have changed");
            *shared
                .current
                .write()
                .unwrap_or_else(PoisonError::into_inner) = new;
        }
        read()
    }
}

impl fmt::Debug for Dns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dns").finish_non_exhaustive()
    }
}

// === impl Current ===

impl Current {
    fn of_system() -> Self {
        // Before the bytes: a write in between is seen by the next look.
        let seen = seen();
        Self {
            resolver: read_system_conf().and_then(|(config, options)| resolver(config, options)),
            hosts: Hosts::from_system().unwrap_or_default(),
            seen,
        }
    }

    /// Addresses in the hosts file. A name that stands there is not asked for elsewhere.
    fn known(&self, name: &Name) -> Vec<IpAddr> {
        let mut addresses = Vec::new();
        for kind in [RecordType::A, RecordType::AAAA] {
            let found = self
                .hosts
                .lookup_static_host(&Query::query(name.clone(), kind));
            let records = found.iter().flat_map(|lookup| lookup.answers());
            addresses.extend(records.filter_map(|record| record.data.ip_addr()));
        }
        addresses
    }
}

fn resolver(config: ResolverConfig, mut options: ResolverOpts) -> Result<TokioResolver, NetError> {
    let (_domain, _search, servers) = config.into_parts();
    let config = ResolverConfig::from_parts(None, Vec::new(), servers);
    options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
    options.use_hosts_file = ResolveHosts::Never;
    options.timeout = options.timeout.min(QUERY_TIMEOUT);
    options.cache_size = CACHE_ANSWERS_MAX;
    options.positive_min_ttl = Some(TTL_MIN);
    options.positive_max_ttl = Some(TTL_MAX);
    options.negative_min_ttl = Some(TTL_MIN);
    options.negative_max_ttl = Some(NEGATIVE_TTL_MAX);
    TokioResolver::builder_with_config(config, TokioRuntimeProvider::default())
        .with_options(options)
        .build()
}

/// RFC 6761 section 6.3: these names are the loopback, and nobody is asked.
fn is_localhost(host: &str) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host);
    let last = host.rsplit('.').next().unwrap_or_default();
    last.eq_ignore_ascii_case("localhost")
}

fn seen() -> [Option<SystemTime>; 2] {
    [SERVERS_FILE, HOSTS_FILE].map(|path| std::fs::metadata(path).ok()?.modified().ok())
}

fn of_net(error: &NetError) -> DnsError {
    if error.is_nx_domain() || error.is_no_records_found() {
        DnsError::NoAddress
    } else if matches!(error, NetError::Timeout) {
        DnsError::Timeout
    } else {
        DnsError::Servers(error.to_string())
    }
}
