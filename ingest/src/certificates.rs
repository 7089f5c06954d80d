//! Certificates that a request names by URL: which are fetched, how, and for how long they are known.
//!
//! The URL is a stranger's, and it names the key that the stranger is judged by. So only two hosts of PayPal's are ever
//! asked, over TLS, at their public addresses, and the trust in a certificate is the trust in that: it came from
//! `api.paypal.com`. Its own chain is not followed, for PayPal does not serve the authorities between it and a root; it must be good
//! at the time and have the name of PayPal's signing certificates.
//!
//! Whatever is asked for, there are at most [`FETCHES_MAX`] fetches at once and [`FETCHES_A_MINUTE_MAX`] in a minute, and
//! certificates that are known go on being known.

mod certificate;

pub(crate) use certificate::Certificate;

use reqwest::{Client, ClientBuilder, StatusCode};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    sync::{OnceCell, Semaphore},
    time::{Instant, timeout, timeout_at},
};

/// Hosts that PayPal names in `paypal-cert-url`, live and sandbox.
const HOSTS: [&str; 2] = ["api.paypal.com", "api.sandbox.paypal.com"];
const PATH: &str = "/v1/notifications/certs/";
/// Longest last part of the path, bytes. PayPal's look like `CERT-360caa42-fca2a594-a5cafa77`.
const ID_BYTES_MAX: usize = 100;
/// Fetches under way at once.
const FETCHES_MAX: usize = 4;
/// Fetches begun within a minute.
const FETCHES_A_MINUTE_MAX: u32 = 60;
/// DNS, connection, TLS, head and body of one fetch.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);
/// Largest answer; a chain of three has about 6 KiB.
const BYTES_MAX: usize = 64 << 10;
/// URLs whose certificate or failure is known.
const ENTRIES_MAX: usize = 256;
/// How long a certificate is taken for what is at its URL. PayPal makes a new URL for a new certificate.
const KEEP_MS: i64 = 24 * 60 * 60 * 1_000;
/// How long a URL that failed is not asked again.
const KEEP_FAILURE_MS: i64 = 30 * 1_000;
const MINUTE_MS: i64 = 60 * 1_000;

/// Fetches certificates and knows those that it has fetched.
#[derive(Debug)]
pub(crate) struct Certificates {
    /// `name` or `name:port`, as they stand in a URL.
    hosts: Vec<String>,
    client: Client,
    fetches: Semaphore,
    known: Mutex<Known>,
}

/// Why there is no certificate. The text holds nothing that the request chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoCertificate {
    /// The URL is none of PayPal's. It will not become one: refuse the request.
    #[error("the address of the certificate is not one of PayPal's")]
    NotAllowed,
    /// Not now: too many fetches. The sender may come again.
    #[error("too many certificates are being fetched")]
    Busy,
    /// Not now: the fetch failed, a moment ago or just now. The sender may come again.
    #[error("the certificate can not be had: {0}")]
    Failed(&'static str),
}

#[derive(Debug, Default)]
struct Known {
    entries: BTreeMap<String, Entry>,
    /// When the current minute began, and the fetches begun in it.
    minute_ms: i64,
    begun: u32,
}

/// Shared by all that wait for the same URL: the first fetches. When that one goes away, the next does.
type Entry = Arc<OnceCell<Fetched>>;

#[derive(Debug)]
struct Fetched {
    result: Result<Arc<Certificate>, NoCertificate>,
    until_ms: i64,
}

// === impl Certificates ===

impl Certificates {
    /// For PayPal's certificates.
    ///
    /// # Errors
    /// When no client can be built.
    pub(crate) fn of_paypal() -> reqwest::Result<Self> {
        let hosts = HOSTS.map(str::to_owned).to_vec();
        Self::new(hosts, runtime::addresses::client(Vec::new()))
    }

    /// For certificates of `hosts`, with a client that can reach them.
    fn new(hosts: Vec<String>, client: ClientBuilder) -> reqwest::Result<Self> {
        Ok(Self {
            hosts,
            client: client.https_only(true).build()?,
            fetches: Semaphore::new(FETCHES_MAX),
            known: Mutex::default(),
        })
    }

    /// The certificate at `url`, before `deadline`.
    ///
    /// # Errors
    /// See [`NoCertificate`].
    pub(crate) async fn get(
        &self,
        url: &str,
        deadline: Instant,
        now_ms: i64,
    ) -> Result<Arc<Certificate>, NoCertificate> {
        if !self.allows(url) {
            return Err(NoCertificate::NotAllowed);
        }
        let entry = self.entry(url, now_ms)?;
        let fetching = entry.get_or_try_init(|| self.fetched(url, now_ms));
        match timeout_at(deadline, fetching).await {
            Ok(fetched) => fetched?.result.clone(),
            Err(_) => Err(NoCertificate::Failed("not in time")),
        }
    }

    fn allows(&self, url: &str) -> bool {
        allows(&self.hosts, url)
    }

    /// Where the certificate at `url` is or will be.
    fn entry(&self, url: &str, now_ms: i64) -> Result<Entry, NoCertificate> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.entry(url, now_ms).ok_or(NoCertificate::Busy)
    }

    /// Fetches, when there is room for it; what comes of it is kept for a while, good or bad.
    async fn fetched(&self, url: &str, now_ms: i64) -> Result<Fetched, NoCertificate> {
        let Ok(_permit) = self.fetches.try_acquire() else {
            return Err(NoCertificate::Busy);
        };
        let allowed = {
            let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            known.may_begin(now_ms)
        };
        if !allowed {
            return Err(NoCertificate::Busy);
        }
        let result = match timeout(FETCH_TIMEOUT, self.fetch(url)).await {
            Ok(result) => result,
            Err(_) => Err("no answer in time"),
        };
        Ok(match result {
            Ok(certificate) => Fetched {
                until_ms: now_ms
                    .saturating_add(KEEP_MS)
                    .min(certificate.not_after_ms()),
                result: Ok(Arc::new(certificate)),
            },
            Err(reason) => {
                tracing::warn!(reason, "certificate could not be fetched");
                Fetched {
                    until_ms: now_ms.saturating_add(KEEP_FAILURE_MS),
                    result: Err(NoCertificate::Failed(reason)),
                }
            }
        })
    }

    async fn fetch(&self, url: &str) -> Result<Certificate, &'static str> {
        let Ok(mut response) = self.client.get(url).send().await else {
            return Err("no answer");
        };
        if response.status() != StatusCode::OK {
            return Err("not status 200");
        }
        let mut pem = Vec::new();
        loop {
            match response.chunk().await {
                Ok(Some(chunk)) if pem.len() + chunk.len() > BYTES_MAX => return Err("too long"),
                Ok(Some(chunk)) => pem.extend_from_slice(&chunk),
                Ok(None) => break,
                Err(_) => return Err("the answer broke off"),
            }
        }
        match Certificate::from_pem(&pem) {
            Ok(certificate) if certificate.is_paypals() => Ok(certificate),
            Ok(_) => Err("the certificate has another name"),
            Err(_) => Err("the answer is no certificate"),
        }
    }
}

// === impl Known ===

impl Known {
    /// The entry of `url`, made when there is none; none when there is no room for it.
    fn entry(&mut self, url: &str, now_ms: i64) -> Option<Entry> {
        if let Some(entry) = self
            .entries
            .get(url)
            .filter(|entry| is_fresh(entry, now_ms))
        {
            return Some(Arc::clone(entry));
        }
        self.entries.remove(url);
        if self.entries.len() >= ENTRIES_MAX {
            self.entries
                .retain(|_, entry| is_fresh(entry, now_ms) && is_wanted(entry));
        }
        if self.entries.len() >= ENTRIES_MAX {
            // Failures are what a flood of made-up URLs leaves behind.
            let failed = |(_, entry): &(&String, &Entry)| {
                entry.get().is_some_and(|fetched| fetched.result.is_err())
            };
            let url = self.entries.iter().find(failed)?.0.clone();
            self.entries.remove(&url);
        }
        let entry = Entry::default();
        self.entries.insert(url.to_owned(), Arc::clone(&entry));
        Some(entry)
    }

    /// Counts a fetch, unless the minute has had its number.
    fn may_begin(&mut self, now_ms: i64) -> bool {
        if !(self.minute_ms..self.minute_ms.saturating_add(MINUTE_MS)).contains(&now_ms) {
            (self.minute_ms, self.begun) = (now_ms, 0);
        }
        let may = self.begun < FETCHES_A_MINUTE_MAX;
        self.begun += u32::from(may);
        may
    }
}

fn is_fresh(entry: &Entry, now_ms: i64) -> bool {
    entry.get().is_none_or(|fetched| now_ms < fetched.until_ms)
}

/// Whether something came of it, or somebody still waits for that.
fn is_wanted(entry: &Entry) -> bool {
    entry.initialized() || Arc::strong_count(entry) > 1
}

/// Whether `url` is one at which PayPal has certificates.
pub(crate) fn is_paypals_url(url: &str) -> bool {
    allows(&HOSTS, url)
}

/// Whether `url` is `https://`, one of the hosts and a path of the known form. What it is not made of it can not
/// hold: user, port, escapes, query, fragment.
fn allows(hosts: &[impl AsRef<str>], url: &str) -> bool {
    let parts = url
        .strip_prefix("https://")
        .and_then(|rest| {
            let mut hosts = hosts.iter();
            hosts.find_map(|host| rest.strip_prefix(host.as_ref()))
        })
        .and_then(|path| path.strip_prefix(PATH));
    parts.is_some_and(|id| {
        (1..=ID_BYTES_MAX).contains(&id.len())
            && id
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    })
}

#[cfg(test)]
pub(crate) mod tests;
