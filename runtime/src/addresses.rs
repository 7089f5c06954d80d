//! Which addresses may be dialled (invariant 6), and the HTTP clients that dial no others.
//!
//! The addresses that were checked are the addresses that are dialled, so a name can not change its mind in between; the peer
//! of a new connection is checked again. A name with one forbidden address among its answers is refused whole. No list of this kind
//! in the field is complete; this one is the union of those of Hook0, Svix and smokescreen.

mod client;
mod dns;
#[cfg(test)]
mod tests;

pub use client::{Guard, client};
pub use dns::{Dns, DnsError};

use ipnet::IpNet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An address that may not be dialled. Found by type in an error's chain of sources, never by its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.text())]
pub struct Blocked {
    /// Kind of the address; `port` when it is public and only its port is not allowed.
    pub class: &'static str,
}

// === impl Blocked ===

impl Blocked {
    fn text(self) -> String {
        match self.class {
            "port" => "port is not allowed at a public address".to_owned(),
            class => format!("address is not public ({class})"),
        }
    }
}

/// Whether `ip` may be dialled: public, or inside one of `allow`. Cloud metadata addresses never are.
///
/// # Errors
/// [`Blocked`] with the kind of the address.
pub fn allowed(ip: IpAddr, allow: &[IpNet]) -> Result<(), Blocked> {
    match class(ip) {
        None => Ok(()),
        Some("metadata") => Err(Blocked { class: "metadata" }),
        Some(_) if allow.iter().any(|net| net.contains(&ip)) => Ok(()),
        Some(class) => Err(Blocked { class }),
    }
}

/// Kind of an address that is not public.
fn class(ip: IpAddr) -> Option<&'static str> {
    match ip {
        IpAddr::V4(v4) => class_v4(v4),
        IpAddr::V6(v6) => class_v6(v6),
    }
}

/// Class of a forbidden IPv4 address (IANA special-purpose registry and the clouds' metadata services).
fn class_v4(ip: Ipv4Addr) -> Option<&'static str> {
    let [a, b, c, d] = ip.octets();
    match (a, b, c, d) {
        // AWS, GCP, Azure and most others; AWS for containers; Alibaba; Azure's host; Oracle.
        (169, 254, 169, 254)
        | (169, 254, 170, 2 | 23)
        | (100, 100, 100, 200)
        | (168, 63, 129, 16)
        | (192, 0, 0, 192) => Some("metadata"),
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
fn class_v6(ip: Ipv6Addr) -> Option<&'static str> {
    let s = ip.segments();
    let metadata = matches!(
        s,
        [0xfd00, 0x0ec2, 0, 0, 0, 0, 0, 0x23 | 0x254] | [0xfd20, 0x00ce, 0, 0, 0, 0, 0, 0x254]
    );
    if metadata || embedded(ip).any(|v4| class_v4(v4) == Some("metadata")) {
        return Some("metadata");
    }
    match (s[0], s[1]) {
        (0x0064, 0xff9b) if s[2..6] == [0, 0, 0, 0] => class_v4(two(s[6], s[7])),
        (0x0064, 0xff9b) if s[2] == 1 => Some("local NAT64"),
        // ::/8 as a whole: unspecified, loopback, v4-mapped, v4-compatible, SIIT.
        (0x0000..=0x00ff, _) => Some("reserved"),
        (0x0100, 0) if s[2] == 0 && s[3] <= 1 => Some("discard"),
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

/// The IPv4 addresses that an IPv6 address may stand for: mapped, compatible, SIIT, NAT64 (both prefixes), ISATAP, 6to4,
/// Teredo. Wrong guesses do no harm: only metadata addresses are looked for.
fn embedded(ip: Ipv6Addr) -> impl Iterator<Item = Ipv4Addr> {
    let s = ip.segments();
    let last = two(s[6], s[7]);
    let at_end = s[0] == 0
        || (s[0] == 0x0064 && s[1] == 0xff9b)
        || (matches!(s[4], 0 | 0x0200) && s[5] == 0x5efe);
    let six_to_four = (s[0] == 0x2002).then(|| two(s[1], s[2]));
    let teredo = (s[0] == 0x2001 && s[1] == 0).then(|| [two(s[2], s[3]), two(!s[6], !s[7])]);
    at_end
        .then_some(last)
        .into_iter()
        .chain(six_to_four)
        .chain(teredo.into_iter().flatten())
}

fn two(high: u16, low: u16) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(high) << 16 | u32::from(low))
}
