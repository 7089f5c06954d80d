//! Which addresses may be dialled (invariant 6), the resolver that only hands out such, and the HTTP client that asks it.
//!
//! The addresses that were checked are the addresses that are dialled, so a name can not change its mind in between. A
//! name with one forbidden address among its answers is refused whole. No list of this kind in the field is complete; this one is the
//! union of those of Hook0, Svix and smokescreen.

use ipnet::IpNet;
use reqwest::{
    Client, ClientBuilder,
    dns::{Addrs, Name, Resolve, Resolving},
    redirect, retry,
};
use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

/// Total time for one name.
const DNS_TIMEOUT: Duration = Duration::from_secs(5);
/// Answers looked at; a name with more is refused.
const ADDRESSES_MAX: usize = 64;

/// An address that may not be dialled. Found by type in an error's chain of sources, never by its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("address is not public ({class})")]
pub struct Blocked {
    /// Kind of the address.
    pub class: &'static str,
}

/// Resolves names to addresses that are all allowed.
#[derive(Clone, Debug)]
pub struct PublicResolver {
    allow: Vec<IpNet>,
}

/// Whether `ip` may be dialled: public, or inside one of `allow`. Cloud metadata addresses never are.
///
/// # Errors
/// [`Blocked`] with the kind of the address.
pub fn allowed(ip: IpAddr, allow: &[IpNet]) -> Result<(), Blocked> {
    let class = match ip {
        IpAddr::V4(v4) => forbidden_v4(v4),
        IpAddr::V6(v6) => forbidden_v6(v6),
    };
    match class {
        None => Ok(()),
        Some("metadata") => Err(Blocked { class: "metadata" }),
        Some(_) if allow.iter().any(|net| net.contains(&ip)) => Ok(()),
        Some(class) => Err(Blocked { class }),
    }
}

/// The start of every HTTP client that goes out: names are resolved by [`PublicResolver`]; no proxy, no redirect, no
/// retry of its own, no referer. **Not judged here:** a URL whose host is an IP address, for which no resolver is asked;
/// see [`allowed`].
#[expect(
    clippy::disallowed_methods,
    reason = "the one place where a client begins, hardened"
)]
pub fn client(allow: Vec<IpNet>) -> ClientBuilder {
    // Somebody else in the process may have chosen a provider already; that one serves as well.
    drop(rustls::crypto::ring::default_provider().install_default());
    Client::builder()
        .dns_resolver(Arc::new(PublicResolver::new(allow)))
        .no_proxy()
        .redirect(redirect::Policy::none())
        .retry(retry::never())
        .referer(false)
}

// === impl PublicResolver ===

impl PublicResolver {
    /// A resolver that also allows the networks in `allow`.
    pub fn new(allow: Vec<IpNet>) -> Self {
        Self { allow }
    }
}

impl Resolve for PublicResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let allow = self.allow.clone();
        Box::pin(async move {
            let lookup = tokio::net::lookup_host((name.as_str(), 0));
            let found = tokio::time::timeout(DNS_TIMEOUT, lookup).await??;
            let addresses: Vec<SocketAddr> = found.take(ADDRESSES_MAX + 1).collect();
            if addresses.len() > ADDRESSES_MAX {
                return Err("too many addresses".into());
            }
            for address in &addresses {
                allowed(address.ip(), &allow)?;
            }
            let addresses: Addrs = Box::new(addresses.into_iter());
            Ok(addresses)
        })
    }
}

/// Class of a forbidden IPv4 address (IANA special-purpose registry and the clouds' metadata services).
fn forbidden_v4(ip: Ipv4Addr) -> Option<&'static str> {
    let [a, b, c, d] = ip.octets();
    match (a, b, c, d) {
        (169, 254, 169, 254) | (169, 254, 170, 2) | (100, 100, 100, 200) | (168, 63, 129, 16) => {
            Some("metadata")
        }
        (0, ..) => Some("this network"),
        (10, ..) | (172, 16..=31, ..) | (192, 168, ..) => Some("private"),
        (100, 64..=127, ..) => Some("shared"),
        (127, ..) => Some("loopback"),
        (169, 254, ..) => Some("link-local"),
        (192, 0, 0 | 2, _) | (198, 51, 100, _) | (203, 0, 113, _) => Some("reserved"),
        (192, 88, 99, _) => Some("6to4 relay"),
        (198, 18..=19, ..) => Some("benchmarking"),
        (224..=239, ..) => Some("multicast"),
        (240..=255, ..) => Some("reserved"),
        _ => None,
    }
}

/// Class of a forbidden IPv6 address. `64:ff9b::/96` (NAT64) is judged by the IPv4 address inside it.
fn forbidden_v6(ip: Ipv6Addr) -> Option<&'static str> {
    let s = ip.segments();
    if ip == Ipv6Addr::new(0xfd00, 0x0ec2, 0, 0, 0, 0, 0, 0x254) {
        return Some("metadata");
    }
    if let Some(v4) = ip.to_ipv4_mapped()
        && forbidden_v4(v4) == Some("metadata")
    {
        return Some("metadata");
    }
    match (s[0], s[1]) {
        (0x0064, 0xff9b) if s[2..6] == [0, 0, 0, 0] => {
            let [a, b] = s[6].to_be_bytes();
            let [c, d] = s[7].to_be_bytes();
            forbidden_v4(Ipv4Addr::new(a, b, c, d))
        }
        (0x0064, 0xff9b) if s[2] == 1 => Some("local NAT64"),
        // ::/8 as a whole: unspecified, loopback, v4-mapped, v4-compatible, SIIT.
        (0x0000..=0x00ff, _) => Some("reserved"),
        (0x0100, 0) if s[2..4] == [0, 0] => Some("discard"),
        // 2001::/23: Teredo, ORCHID, benchmarking.
        (0x2001, 0x0000..=0x01ff) => Some("special"),
        (0x2001, 0x0db8) | (0x3fff, 0x0000..=0x0fff) => Some("documentation"),
        (0x2002, _) => Some("6to4"),
        (0x5f00, _) => Some("segment routing"),
        (0xfc00..=0xfdff, _) => Some("private"),
        (0xfe80..=0xfebf, _) => Some("link-local"),
        (0xfec0..=0xfeff, _) => Some("site-local"),
        (0xff00..=0xffff, _) => Some("multicast"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn forbidden_in_every_spelling() {
        for text in [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "100.64.0.1",
            "127.0.0.1",
            "127.255.255.254",
            "169.254.1.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.8",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.19.255.255",
            "198.51.100.1",
            "203.0.113.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::7f00:1",
            "::ffff:127.0.0.1",
            "::ffff:8.8.8.8",
            "::ffff:0:1.2.3.4",
            "64:ff9b::7f00:1",
            "64:ff9b:1::808:808",
            "100::1",
            "2001::1",
            "2001:1ff::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "3fff::1",
            "5f00::1",
            "fc00::1",
            "fd12::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ] {
            assert!(allowed(text.parse().unwrap(), &[]).is_err(), "{text}");
        }
        for text in [
            "1.1.1.1",
            "8.8.8.8",
            "100.128.0.1",
            "172.32.0.1",
            "192.0.1.1",
            "198.20.0.1",
            "2606:4700::1111",
            "2001:200::1",
            "64:ff9b::808:808",
        ] {
            assert_eq!(allowed(text.parse().unwrap(), &[]), Ok(()), "{text}");
        }
    }

    #[test]
    fn a_cidr_allows_but_never_metadata() {
        let allow: Vec<IpNet> = ["127.0.0.0/8", "169.254.0.0/16", "::/0"]
            .map(|net| net.parse().unwrap())
            .to_vec();
        assert_eq!(allowed("127.0.0.1".parse().unwrap(), &allow), Ok(()));
        assert_eq!(allowed("169.254.1.1".parse().unwrap(), &allow), Ok(()));
        assert!(allowed("10.0.0.1".parse().unwrap(), &allow).is_err());
        for text in [
            "169.254.169.254",
            "169.254.170.2",
            "fd00:ec2::254",
            "::ffff:169.254.169.254",
            "64:ff9b::a9fe:a9fe",
        ] {
            assert_eq!(
                allowed(text.parse().unwrap(), &allow),
                Err(Blocked { class: "metadata" }),
                "{text}"
            );
        }
    }

    proptest! {
        #[test]
        fn nat64_inherits_the_verdict(bits: u32) {
            let v4 = Ipv4Addr::from(bits);
            let [a, b, c, d] = v4.octets().map(u16::from);
            let v6 = Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, a << 8 | b, c << 8 | d);
            prop_assert_eq!(allowed(v4.into(), &[]), allowed(v6.into(), &[]));
        }
    }

    #[tokio::test]
    async fn a_name_with_a_forbidden_answer_is_refused() {
        let resolve = |allow: Vec<IpNet>| async move {
            PublicResolver::new(allow)
                .resolve("localhost".parse().unwrap())
                .await
        };
        let error = resolve(Vec::new()).await.err().unwrap();
        assert!(error.downcast_ref::<Blocked>().is_some(), "{error}");
        let allow = ["127.0.0.0/8", "::1/128"]
            .map(|net| net.parse().unwrap())
            .to_vec();
        assert!(resolve(allow).await.is_ok());
    }
}
