//! The HTTP client towards one endpoint, made anew when the files behind it change.

use super::{
    failure::Failure,
    tls::{Certificates, Wrong},
};
use crate::config::{DestinationConfig, TlsConfig};
use reqwest::{Client, Proxy};
use runtime::{
    Problem, Secret,
    addresses::{Blocked, Dns, Guard},
};
use sha2::{Digest, Sha256};
use std::{
    net::{IpAddr, Ipv4Addr},
    path::Path,
    sync::{Mutex, PoisonError},
    time::Duration,
};
use url::{Host, Url};

/// Below the 5 s after which Node's server closes idle connections, so that we rarely send into a closing one
/// (hyperium/hyper#2136).
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(4);

/// Where settings and their files stand.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    /// Directory of relative paths.
    pub(super) base: &'a Path,
    /// Key path of the destination.
    pub(super) key: &'a str,
}

/// Connections to one endpoint: the destination itself, or where its tokens are fetched.
#[derive(Debug)]
pub(super) struct Connections {
    pub(super) url: Url,
    /// Judges the endpoint.
    guard: Guard,
    /// Judges what is dialled: the endpoint, or the proxy.
    dialled: Guard,
    https_only: bool,
    timeout: Duration,
    idle_max: usize,
    certificates: Option<Certificates>,
    way_out: Option<WayOut>,
    current: Mutex<Current>,
}

#[derive(Debug)]
struct WayOut {
    proxy: Url,
    user: Option<(String, Secret)>,
}

#[derive(Debug, Default)]
struct Current {
    client: Option<Client>,
    /// Of the files that were looked at last, whether they were good or not.
    seen: [u8; 32],
}

// === impl Connections ===

impl Connections {
    /// Reads the files and builds the client. `url_key` is where `url` stands below the destination, `tls_key` where `tls` does.
    ///
    /// # Errors
    /// Every problem found, with its key path.
    pub(super) fn open(
        config: &DestinationConfig,
        (url, url_key): (&Url, &str),
        (tls, tls_key): (Option<&TlsConfig>, &str),
        place: Place<'_>,
        dns: &Dns,
    ) -> Result<Self, Vec<Problem>> {
        let mut problems = Vec::new();
        let mut keep = |found: Vec<Problem>| problems.extend(found);
        let key = |name: &str| format!("{}.{name}", place.key);
        let certificates = tls.map(|tls| Certificates::open(tls, place.base, &key(tls_key)));
        let certificates = certificates.transpose().map_err(&mut keep).ok().flatten();
        let way_out = WayOut::open(config, place, dns)
            .map_err(&mut keep)
            .ok()
            .flatten();
        let mut guard = Guard::new(config.allow_cidrs.clone(), dns.clone());
        if !config.is_public_port(url) {
            guard = guard.without_public();
        }
        let connections = Self {
            url: url.clone(),
            dialled: match &way_out {
                Some(_) => any_but_metadata(dns),
                None => guard.clone(),
            },
            guard,
            https_only: !config.allow_http,
            timeout: config.timeout,
            idle_max: config.concurrency,
            certificates,
            way_out,
            current: Mutex::default(),
        };
        if let Err(blocked) = connections.judge() {
            let hint = match blocked.class {
                "port" => "name it in `ports` to allow it",
                "metadata" => "it is never dialled",
                _ => "name its network in `allow_cidrs` to allow it",
            };
            problems.push(Problem::new(key(url_key), format!("{blocked}; {hint}")));
        }
        if problems.is_empty()
            && let Err((name, message)) = connections.client()
        {
            let key = match name {
                "" => place.key.to_owned(),
                name => key(&format!("{tls_key}.{name}")),
            };
            problems.push(Problem::new(key, message));
        }
        if problems.is_empty() {
            Ok(connections)
        } else {
            Err(problems)
        }
    }

    /// The client for the next request, once the URL's host is judged: of an address in it no resolver is asked, and of no
    /// name where a proxy finds the address. There `localhost` would be the proxy's own machine.
    ///
    /// # Errors
    /// An address that may not be dialled.
    pub(super) fn ready(&self) -> Result<Client, Failure> {
        self.judge()?;
        self.client()
            .map_err(|(_, message)| Failure::new(format!("no client: {message}")))
    }

    fn judge(&self) -> Result<(), Blocked> {
        let name = self.url.domain().unwrap_or_default();
        let local = (self.way_out.is_some() && is_localhost(name))
            .then_some(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let known = literal(&self.url).or(local);
        known.map_or(Ok(()), |ip| self.guard.judge(ip))
    }

    /// A new set of files that is no good, or of which only a part has been replaced so far, is logged once and the client
    /// of the old one stays.
    fn client(&self) -> Result<Client, Wrong> {
        let now = self.digest();
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = &current.client
            && current.seen == now
        {
            return Ok(client.clone());
        }
        current.seen = now;
        match (self.build(), &current.client) {
            (Ok(client), old) => {
                if old.is_some() {
                    tracing::info!(host = self.url.host_str(), "certificates replaced");
                }
                current.client = Some(client.clone());
                Ok(client)
            }
            (Err((file, cause)), Some(old)) => {
                let host = self.url.host_str();
                tracing::warn!(host, file, cause, "certificates kept: the new are no good");
                Ok(old.clone())
            }
            (Err(wrong), None) => Err(wrong),
        }
    }

    fn build(&self) -> Result<Client, Wrong> {
        let failed = |error: reqwest::Error| ("", format!("no client can be built: {error}"));
        // Every try is an attempt that is counted; the client makes none of its own.
        let mut client = self
            .dialled
            .client()
            .https_only(self.https_only)
            .connect_timeout(self.timeout)
            .pool_idle_timeout(POOL_IDLE_TIMEOUT)
            .pool_max_idle_per_host(self.idle_max);
        if let Some(certificates) = &self.certificates {
            client = certificates.apply(client)?;
        }
        if let Some(way_out) = &self.way_out {
            client = client.proxy(way_out.proxy().map_err(failed)?);
        }
        client.build().map_err(failed)
    }

    /// Of all files, each with its length.
    fn digest(&self) -> [u8; 32] {
        let files = self.certificates.iter().flat_map(Certificates::secrets);
        let user = self.way_out.iter().flat_map(|way_out| &way_out.user);
        let mut hash = Sha256::new();
        for secret in files.chain(user.map(|(_, password)| password)) {
            secret.with(|bytes| {
                hash.update((bytes.len() as u64).to_be_bytes());
                hash.update(bytes);
            });
        }
        hash.finalize().into()
    }
}

// === impl WayOut ===

impl WayOut {
    fn open(
        config: &DestinationConfig,
        place: Place<'_>,
        dns: &Dns,
    ) -> Result<Option<Self>, Vec<Problem>> {
        let Some(proxy) = &config.proxy else {
            return Ok(None);
        };
        if let Some(Err(blocked)) = literal(&proxy.url).map(|ip| any_but_metadata(dns).judge(ip)) {
            let key = format!("{}.proxy.url", place.key);
            let message = format!("{blocked}; it is never dialled");
            return Err(vec![Problem::new(key, message)]);
        }
        let password = proxy.password.as_ref();
        let opened = password.map(|password| Secret::open(password, place.base));
        let password = opened.transpose().map_err(|error| {
            let key = format!("{}.proxy.password", place.key);
            vec![Problem::new(key, error.to_string())]
        })?;
        Ok(Some(Self {
            proxy: proxy.url.clone(),
            user: proxy.user.clone().zip(password),
        }))
    }

    fn proxy(&self) -> reqwest::Result<Proxy> {
        let proxy = Proxy::all(self.proxy.as_str())?;
        Ok(match &self.user {
            Some((user, password)) => {
                password.with(|password| proxy.basic_auth(user, &String::from_utf8_lossy(password)))
            }
            None => proxy,
        })
    }
}

fn literal(url: &Url) -> Option<IpAddr> {
    match url.host()? {
        Host::Ipv4(ip) => Some(ip.into()),
        Host::Ipv6(ip) => Some(ip.into()),
        Host::Domain(_) => None,
    }
}

/// The operator has named the proxy, so it may be anywhere but at a cloud's metadata.
fn any_but_metadata(dns: &Dns) -> Guard {
    let all = ["0.0.0.0/0", "::/0"].iter();
    Guard::new(
        all.filter_map(|net| net.parse().ok()).collect(),
        dns.clone(),
    )
}

/// RFC 6761 section 6.3.
fn is_localhost(name: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name);
    name == "localhost" || name.ends_with(".localhost")
}
