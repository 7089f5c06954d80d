mod names;
mod peers;

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
        "169.254.170.23",
        "100.100.100.200",
        "168.63.129.16",
        "192.0.0.192",
        "fd00:ec2::254",
        "fd00:ec2::23",
        "fd20:ce::254",
        "::ffff:169.254.169.254",
        "::a9fe:a9fe",
        "::ffff:0:169.254.169.254",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::a9fe:a9fe",
        "2002:a9fe:a9fe::1",
        "2001:0:a9fe:a9fe::",
        "2001:0:808:808::5601:5601",
        "fe80::5efe:169.254.169.254",
        "2606:4700::200:5efe:a9fe:a9fe",
    ] {
        assert_eq!(
            allowed(text.parse().unwrap(), &allow),
            Err(Blocked { class: "metadata" }),
            "{text}"
        );
    }
}

fn spelled(v4: Ipv4Addr) -> [(&'static str, Ipv6Addr); 7] {
    let [a, b, c, d] = v4.octets().map(u16::from);
    let (high, low) = (a << 8 | b, c << 8 | d);
    [
        ("mapped", v4.to_ipv6_mapped()),
        ("compatible", Ipv6Addr::new(0, 0, 0, 0, 0, 0, high, low)),
        ("SIIT", Ipv6Addr::new(0, 0, 0, 0, 0xffff, 0, high, low)),
        ("NAT64", Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, low)),
        (
            "local NAT64",
            Ipv6Addr::new(0x64, 0xff9b, 1, 0, 0, 0, high, low),
        ),
        ("6to4", Ipv6Addr::new(0x2002, high, low, 0, 0, 0, 0, 1)),
        (
            "Teredo",
            Ipv6Addr::new(0x2001, 0, 0x808, 0x808, 0, 0, !high, !low),
        ),
    ]
}

proptest! {
    #[test]
    fn no_spelling_of_an_ipv4_address_is_allowed_where_it_is_not(bits: u32) {
        let v4 = Ipv4Addr::from(bits);
        for (name, v6) in spelled(v4) {
            let verdict = allowed(v6.into(), &[]);
            if name == "NAT64" {
                prop_assert_eq!(verdict, allowed(v4.into(), &[]), "{}", name);
            } else {
                prop_assert!(verdict.is_err(), "{}", name);
            }
        }
    }

    #[test]
    fn a_metadata_address_is_one_in_every_spelling(at in 0_usize..6) {
        let all: Vec<IpNet> = ["0.0.0.0/0", "::/0"].map(|net| net.parse().unwrap()).to_vec();
        let v4: [Ipv4Addr; 6] = ["169.254.169.254", "169.254.170.2", "169.254.170.23", "100.100.100.200", "168.63.129.16", "192.0.0.192"]
            .map(|text| text.parse().unwrap());
        for (name, v6) in spelled(v4[at]) {
            prop_assert_eq!(allowed(v6.into(), &all), Err(Blocked { class: "metadata" }), "{}", name);
        }
    }
}
