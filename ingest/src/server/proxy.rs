//! The PROXY protocol, versions 1 and 2: what a balancer says of its client before it passes the client's bytes on.
//!
//! <https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt>. Strict: whatever is not clearly a header is none.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Longest header that is read, bytes. Version 1 has at most 107; version 2 with the additions that balancers make stays
/// well below.
pub(super) const HEADER_BYTES_MAX: usize = 2_048;

const V1_BYTES_MAX: usize = 107;
const V2_SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
const V2_FIXED_BYTES: usize = 16;

/// What the bytes so far are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Parsed {
    /// The beginning of a header.
    Part,
    /// A header of so many bytes. No client: the proxy speaks for itself (a health check), or does not know.
    Header {
        bytes: usize,
        client: Option<IpAddr>,
    },
    /// No header.
    Malformed,
}

/// Reads the header at the beginning of `bytes`.
pub(super) fn parse(bytes: &[u8]) -> Parsed {
    let signature = bytes.get(..V2_SIGNATURE.len()).unwrap_or(bytes);
    if V2_SIGNATURE.starts_with(signature) {
        return parse_v2(bytes).unwrap_or(Parsed::Part);
    }
    let word = bytes.get(..6).unwrap_or(bytes);
    if !b"PROXY ".starts_with(word) {
        return Parsed::Malformed;
    }
    let line = bytes.get(..V1_BYTES_MAX).unwrap_or(bytes);
    let Some(end) = line.windows(2).position(|pair| pair == b"\r\n") else {
        return if bytes.len() < V1_BYTES_MAX {
            Parsed::Part
        } else {
            Parsed::Malformed
        };
    };
    let text = line
        .get(..end)
        .and_then(|line| std::str::from_utf8(line).ok());
    match text.and_then(parse_v1) {
        Some(client) => Parsed::Header {
            bytes: end + 2,
            client,
        },
        None => Parsed::Malformed,
    }
}

/// A whole line of version 1, without its end. None: malformed.
fn parse_v1(line: &str) -> Option<Option<IpAddr>> {
    let mut words = line.split(' ').skip(1);
    let family = words.next()?;
    if family == "UNKNOWN" {
        return Some(None);
    }
    let (client, server) = (words.next()?, words.next()?);
    let ports = [words.next()?, words.next()?];
    if words.next().is_some() || !ports.into_iter().all(is_port) {
        return None;
    }
    let client = match family {
        "TCP4" => {
            server.parse::<Ipv4Addr>().ok()?;
            IpAddr::V4(client.parse().ok()?)
        }
        "TCP6" => {
            server.parse::<Ipv6Addr>().ok()?;
            IpAddr::V6(client.parse().ok()?)
        }
        _ => return None,
    };
    Some(Some(client.to_canonical()))
}

fn is_port(word: &str) -> bool {
    let canonical = word == "0" || !word.starts_with(['0', '+']);
    canonical && word.parse::<u16>().is_ok()
}

/// None: not all there yet.
fn parse_v2(bytes: &[u8]) -> Option<Parsed> {
    let command = *bytes.get(12)?;
    if command != 0x20 && command != 0x21 {
        return Some(Parsed::Malformed);
    }
    let family = *bytes.get(13)?;
    let rest = usize::from(u16::from_be_bytes([*bytes.get(14)?, *bytes.get(15)?]));
    let whole = V2_FIXED_BYTES + rest;
    if whole > HEADER_BYTES_MAX {
        return Some(Parsed::Malformed);
    }
    let addresses = bytes.get(V2_FIXED_BYTES..whole)?;
    let client = match (command, family) {
        // LOCAL: whatever else it says has no meaning. UNSPEC and UNIX: nothing that we could use.
        (0x20, _) | (0x21, 0x00 | 0x31 | 0x32) => Some(None),
        (0x21, 0x11) => v4(addresses).map(Some),
        (0x21, 0x21) => v6(addresses).map(Some),
        _ => None,
    };
    Some(client.map_or(Parsed::Malformed, |client| Parsed::Header {
        bytes: whole,
        client: client.map(|client| client.to_canonical()),
    }))
}

/// Two addresses and two ports, at least.
fn v4(addresses: &[u8]) -> Option<IpAddr> {
    let client: [u8; 4] = addresses.get(..12)?.get(..4)?.try_into().ok()?;
    Some(IpAddr::from(client))
}

fn v6(addresses: &[u8]) -> Option<IpAddr> {
    let client: [u8; 16] = addresses.get(..36)?.get(..16)?.try_into().ok()?;
    Some(IpAddr::from(client))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn v2_header(command: u8, family: u8, addresses: &[u8]) -> Vec<u8> {
        let length = u16::try_from(addresses.len()).unwrap().to_be_bytes();
        [&V2_SIGNATURE[..], &[command, family], &length, addresses].concat()
    }

    fn header(bytes: usize, client: &str) -> Parsed {
        let client = (!client.is_empty()).then(|| client.parse().unwrap());
        Parsed::Header { bytes, client }
    }

    #[test]
    fn the_client_is_read() {
        let v4 = [192, 0, 2, 7, 10, 0, 0, 1, 0, 1, 0, 2];
        let mut v6 = [0; 36];
        (v6[0], v6[1], v6[15]) = (0x20, 0x01, 9);
        let mapped = [&[0; 10][..], &[0xff, 0xff, 192, 0, 2, 7], &[0; 20]].concat();
        let with_more = [&v4[..], &[0x04, 0, 1, 0]].concat();
        for (bytes, client) in [
            (
                b"PROXY TCP4 192.0.2.7 10.0.0.1 56324 443\r\n".to_vec(),
                "192.0.2.7",
            ),
            (b"PROXY TCP6 2001::9 ::1 0 65535\r\n".to_vec(), "2001::9"),
            (b"PROXY UNKNOWN\r\n".to_vec(), ""),
            (b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n".to_vec(), ""),
            (v2_header(0x21, 0x11, &v4), "192.0.2.7"),
            (v2_header(0x21, 0x11, &with_more), "192.0.2.7"),
            (v2_header(0x21, 0x21, &v6), "2001::9"),
            (v2_header(0x21, 0x21, &mapped), "192.0.2.7"),
            (v2_header(0x20, 0x00, &[]), ""),
            (v2_header(0x20, 0x11, &v4), ""),
            (v2_header(0x21, 0x00, &[]), ""),
        ] {
            let whole = [&bytes[..], b"POST"].concat();
            assert_eq!(parse(&whole), header(bytes.len(), client), "{bytes:?}");
            for end in 0..bytes.len() {
                assert_eq!(parse(&bytes[..end]), Parsed::Part, "{bytes:?} to {end}");
            }
        }
    }

    #[test]
    fn what_is_not_clearly_a_header_is_none() {
        let long = format!("PROXY UNKNOWN {}", "x".repeat(V1_BYTES_MAX));
        for bytes in [
            &b"POST / HTTP/1.1\r\n"[..],
            b"PROXY\r\n",
            b"PROXY  TCP4 1.2.3.4 1.2.3.4 1 2\r\n",
            b"PROXY TCP4 1.2.3.4 1.2.3.4 1\r\n",
            b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2 3\r\n",
            b"PROXY TCP4 1.2.3.4 1.2.3.4 1 02\r\n",
            b"PROXY TCP4 1.2.3.4 1.2.3.4 1 +2\r\n",
            b"PROXY TCP4 1.2.3.4 1.2.3.4 1 65536\r\n",
            b"PROXY TCP4 01.2.3.4 1.2.3.4 1 2\r\n",
            b"PROXY TCP4 ::1 ::1 1 2\r\n",
            b"PROXY TCP6 1.2.3.4 1.2.3.4 1 2\r\n",
            b"PROXY UDP4 1.2.3.4 1.2.3.4 1 2\r\n",
            b"PROXY TCP4 1.2.3.4\xff 1.2.3.4 1 2\r\n",
            b"proxy UNKNOWN\r\n",
            b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2\n\r\n",
            long.as_bytes(),
            &v2_header(0x22, 0x11, &[0; 12]),
            &v2_header(0x11, 0x11, &[0; 12]),
            &v2_header(0x21, 0x12, &[0; 12]),
            &v2_header(0x21, 0x11, &[0; 11]),
            &v2_header(0x21, 0x21, &[0; 35]),
            &v2_header(0x20, 0x00, &[0; HEADER_BYTES_MAX]),
        ] {
            assert_eq!(parse(bytes), Parsed::Malformed, "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), v2: bool) {
            if v2 {
                bytes.splice(0..0, V2_SIGNATURE);
            }
            if let Parsed::Header { bytes: length, .. } = parse(&bytes) {
                prop_assert!(length <= bytes.len());
            }
        }
    }
}
