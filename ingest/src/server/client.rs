//! Whose request it is: the address that log lines name and that caps count by.

use http::HeaderMap;
use ipnet::IpNet;
use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
};

/// Addresses of `X-Forwarded-For` that are looked at, from the right. No chain of trusted proxies is longer.
const FORWARDED_MAX: usize = 32;

/// The client of a request. Rides in the request's extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Client(pub(crate) IpAddr);

/// `trusted_proxies`.
#[derive(Clone, Debug)]
pub(super) struct Trusted(pub(super) Vec<IpNet>);

/// Counts open connections by address. As large as there are connections at most.
#[derive(Clone, Debug)]
pub(super) struct Addresses {
    max: Option<usize>,
    open: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

/// A connection's place among those of its address; given back when dropped.
#[derive(Debug)]
pub(super) struct Counted {
    of: Addresses,
    key: IpAddr,
}

// === impl Trusted ===

impl Trusted {
    pub(super) fn contains(&self, address: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(&address))
    }

    /// The right-most address that is no trusted proxy's. What stands left of it was said by a stranger. A word that is no
    /// address ends the search as well: the client is then the proxy that wrote it down.
    pub(super) fn client(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let mut client = peer;
        let lines = headers.get_all("x-forwarded-for").iter().rev();
        let words = lines.flat_map(|line| line.as_bytes().rsplit(|byte| *byte == b','));
        for word in words.take(FORWARDED_MAX) {
            if !self.contains(client) {
                break;
            }
            let Some(address) = std::str::from_utf8(word).ok().and_then(address) else {
                break;
            };
            client = address;
        }
        client
    }
}

// === impl Addresses ===

impl Addresses {
    pub(super) fn new(max: Option<usize>) -> Self {
        Self {
            max,
            open: Arc::default(),
        }
    }

    /// A place for one more connection of this address; none when it has enough.
    pub(super) fn enter(&self, address: IpAddr) -> Option<Counted> {
        let key = counted_as(address);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(key).or_default();
        // Only a count above zero stays in the map.
        if self.max.is_some_and(|max| *count >= max) {
            return None;
        }
        *count += 1;
        drop(open);
        Some(Counted {
            of: self.clone(),
            key,
        })
    }
}

// === impl Counted ===

impl Drop for Counted {
    fn drop(&mut self) {
        let mut open = self.of.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&self.key) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                open.remove(&self.key);
            }
        }
    }
}

/// One customer usually has a whole /64 of IPv6.
fn counted_as(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => {
            let network = Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX));
            IpAddr::V6(network)
        }
    }
}

/// An address, with or without a port: some proxies write one.
fn address(word: &str) -> Option<IpAddr> {
    let word = word.trim_matches([' ', '\t']);
    let with_port = || word.parse::<SocketAddr>().ok().map(|at| at.ip());
    let address = word.parse::<IpAddr>().ok().or_else(with_port)?;
    Some(address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn the_client_is_the_first_from_the_right_that_is_not_trusted() {
        let trusted = Trusted(vec![
            "10.0.0.0/8".parse().unwrap(),
            "fd00::/8".parse().unwrap(),
        ]);
        for (peer, lines, client) in [
            ("10.0.0.1", &[][..], "10.0.0.1"),
            ("10.0.0.1", &["192.0.2.1"], "192.0.2.1"),
            ("192.0.2.9", &["192.0.2.1"], "192.0.2.9"),
            ("10.0.0.1", &["6.6.6.6, 192.0.2.1 ,10.0.0.2"], "192.0.2.1"),
            (
                "10.0.0.1",
                &["6.6.6.6", "192.0.2.1", "fd00::2"],
                "192.0.2.1",
            ),
            ("10.0.0.1", &["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
            ("10.0.0.1", &["192.0.2.1:4711"], "192.0.2.1"),
            ("10.0.0.1", &["[2001:db8::1]:4711"], "2001:db8::1"),
            ("10.0.0.1", &["::ffff:10.0.0.2"], "10.0.0.2"),
            ("10.0.0.1", &["192.0.2.1, unknown, 10.0.0.2"], "10.0.0.2"),
            ("10.0.0.1", &["192.0.2.1,"], "10.0.0.1"),
        ] {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append("x-forwarded-for", line.parse().unwrap());
            }
            assert_eq!(trusted.client(ip(peer), &headers), ip(client), "{lines:?}");
        }
        let mut headers = HeaderMap::new();
        headers.append("x-forwarded-for", "192.0.2.1".parse().unwrap());
        assert_eq!(Trusted(Vec::new()).client(ip("::1"), &headers), ip("::1"));
    }

    #[test]
    fn connections_count_by_address_and_by_network() {
        let addresses = Addresses::new(Some(2));
        let first = addresses.enter(ip("2001:db8::1")).unwrap();
        let second = addresses.enter(ip("2001:db8::ffff:0:0:2")).unwrap();
        assert!(addresses.enter(ip("2001:db8::3")).is_none());
        let mapped = addresses.enter(ip("::ffff:192.0.2.1")).unwrap();
        let plain = addresses.enter(ip("192.0.2.1")).unwrap();
        assert!(addresses.enter(ip("192.0.2.1")).is_none());
        let other = addresses.enter(ip("2001:db8:0:1::1")).unwrap();
        drop(first);
        let third = addresses.enter(ip("2001:db8::3")).unwrap();
        drop((second, third, mapped, plain, other));
        assert!(addresses.open.lock().unwrap().is_empty());
    }

    #[test]
    fn without_a_limit_there_is_always_a_place() {
        let addresses = Addresses::new(None);
        let places: Vec<_> = (0..10).map(|_| addresses.enter(ip("192.0.2.1"))).collect();
        assert!(places.iter().all(Option::is_some));
    }
}
