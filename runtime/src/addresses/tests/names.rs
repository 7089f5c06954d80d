//! Names, asked of a small name server on the loopback.

use super::super::*;
use hickory_resolver::proto::{
    op::{Message, ResponseCode},
    rr::{
        Name, RData, Record, RecordType,
        rdata::{A, AAAA, CNAME},
    },
};
use reqwest::dns::Resolve;
use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, UdpSocket},
    sync::Semaphore,
};

/// What the server says to one question.
enum Reply {
    /// Addresses with a lifetime in seconds; those of the other family are left out.
    Addresses(Vec<&'static str>, u32),
    /// An alias and what it stands for.
    Alias(&'static str, Vec<&'static str>),
    /// The name does not exist.
    NoName,
    /// "Ask me by TCP": there it is these.
    Long(Vec<&'static str>),
    Broken,
    Silence,
}

struct Server {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<(String, RecordType)>>>,
}

impl Server {
    async fn start(zone: fn(&str, usize) -> Reply) -> Self {
        let (udp, tcp) = loop {
            let udp = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            if let Ok(tcp) = TcpListener::bind(udp.local_addr().unwrap()).await {
                break (udp, tcp);
            }
        };
        let address = udp.local_addr().unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&asked);
        tokio::spawn(async move {
            let mut bytes = [0; 1_500];
            while let Ok((length, from)) = udp.recv_from(&mut bytes).await {
                if let Some(answer) = answer(&bytes[..length], zone, &told, true) {
                    udp.send_to(&answer, from).await.unwrap();
                }
            }
        });
        let told = Arc::clone(&asked);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = tcp.accept().await {
                while let Ok(length) = stream.read_u16().await {
                    let mut bytes = vec![0; length.into()];
                    stream.read_exact(&mut bytes).await.unwrap();
                    if let Some(answer) = answer(&bytes, zone, &told, false) {
                        let length = u16::try_from(answer.len()).unwrap();
                        stream.write_u16(length).await.unwrap();
                        stream.write_all(&answer).await.unwrap();
                    }
                }
            }
        });
        Self { address, asked }
    }

    fn dns(&self) -> Dns {
        Dns::with_servers(
            &[self.address],
            "10.9.8.7 billing.internal billing\n::1 six\n",
        )
    }

    fn asked(&self) -> Vec<(String, RecordType)> {
        self.asked.lock().unwrap().clone()
    }
}

fn answer(
    bytes: &[u8],
    zone: fn(&str, usize) -> Reply,
    asked: &Mutex<Vec<(String, RecordType)>>,
    by_udp: bool,
) -> Option<Vec<u8>> {
    let question = Message::from_vec(bytes).unwrap();
    let query = question.queries[0].clone();
    let (name, kind) = (
        query.name().to_ascii().to_ascii_lowercase(),
        query.query_type(),
    );
    let earlier = {
        let mut asked = asked.lock().unwrap();
        asked.push((name.clone(), kind));
        asked
            .iter()
            .filter(|it| **it == (name.clone(), kind))
            .count()
            - 1
    };
    let mut message = question.into_response();
    message.additionals.clear();
    message.edns = None;
    let mut add = |of: &Name, texts: Vec<&str>, ttl_s: u32| {
        for ip in texts.into_iter().map(|text| text.parse().unwrap()) {
            let data = match (ip, kind) {
                (IpAddr::V4(v4), RecordType::A) => RData::A(A(v4)),
                (IpAddr::V6(v6), RecordType::AAAA) => RData::AAAA(AAAA(v6)),
                _ => continue,
            };
            message.add_answer(Record::from_rdata(of.clone(), ttl_s, data));
        }
    };
    match zone(&name, earlier) {
        Reply::Silence => return None,
        Reply::Addresses(texts, ttl_s) => add(query.name(), texts, ttl_s),
        Reply::Long(texts) if !by_udp => add(query.name(), texts, 60),
        Reply::Long(_) => message.metadata.truncation = true,
        Reply::Alias(target, texts) => {
            let target = Name::from_ascii(target).unwrap();
            add(&target, texts, 60);
            let alias = RData::CNAME(CNAME(target));
            let alias = Record::from_rdata(query.name().clone(), 60, alias);
            message.answers.insert(0, alias);
        }
        Reply::NoName => message.metadata.response_code = ResponseCode::NXDomain,
        Reply::Broken => message.metadata.response_code = ResponseCode::ServFail,
    }
    Some(message.to_vec().unwrap())
}

async fn find(dns: &Dns, name: &str) -> Result<Vec<String>, DnsError> {
    let found = dns.resolve(name, &Semaphore::new(1)).await?;
    Ok(found.iter().map(ToString::to_string).collect())
}

/// The verdict as a client sees it.
async fn judged(guard: &Guard, name: &str) -> Result<usize, Option<Blocked>> {
    match guard.resolve(name.parse().unwrap()).await {
        Ok(addresses) => Ok(addresses.count()),
        Err(error) => Err(error.downcast_ref::<Blocked>().copied()),
    }
}

fn blocked(class: &'static str) -> Result<usize, Option<Blocked>> {
    Err(Some(Blocked { class }))
}

#[tokio::test]
async fn one_bad_answer_refuses_the_name() {
    let server = Server::start(|name, _| match name {
        "good.test." => Reply::Addresses(vec!["8.8.8.8", "2606:4700::1111"], 60),
        "six.test." => Reply::Addresses(vec!["2606:4700::1111"], 60),
        "aaaa-bad.test." => Reply::Addresses(vec!["8.8.8.8", "::1"], 60),
        "one-bad.test." => Reply::Addresses(vec!["8.8.8.8", "1.1.1.1", "10.0.0.1"], 60),
        "mapped.test." => Reply::Addresses(vec!["8.8.8.8", "::ffff:8.8.8.8"], 60),
        "nat64.test." => Reply::Addresses(vec!["64:ff9b::808:808"], 60),
        "nat64-bad.test." => Reply::Addresses(vec!["8.8.8.8", "64:ff9b::a00:1"], 60),
        "alias.test." => Reply::Alias("elsewhere.test.", vec!["8.8.8.8"]),
        "alias-bad.test." => Reply::Alias("elsewhere.test.", vec!["127.0.0.1"]),
        _ => Reply::NoName,
    })
    .await;
    let guard = Guard::new(Vec::new(), server.dns());
    assert_eq!(judged(&guard, "good.test").await, Ok(2));
    assert_eq!(judged(&guard, "six.test").await, Ok(1));
    assert_eq!(judged(&guard, "nat64.test").await, Ok(1));
    assert_eq!(judged(&guard, "alias.test").await, Ok(1));
    for (name, class) in [
        ("aaaa-bad.test", "reserved"),
        ("one-bad.test", "private"),
        ("mapped.test", "reserved"),
        ("nat64-bad.test", "private"),
        ("alias-bad.test", "loopback"),
    ] {
        assert_eq!(judged(&guard, name).await, blocked(class), "{name}");
    }
    assert_eq!(judged(&guard, "absent.test").await, Err(None));
}

#[tokio::test]
async fn a_port_that_is_not_for_the_public_is_only_dialled_inside() {
    let server = Server::start(|name, _| match name {
        "inside.test." => Reply::Addresses(vec!["10.0.0.1"], 60),
        _ => Reply::Addresses(vec!["8.8.8.8"], 60),
    })
    .await;
    let allow = vec!["10.0.0.0/8".parse().unwrap(), "9.9.9.9/32".parse().unwrap()];
    let guard = Guard::new(allow, server.dns()).without_public();
    assert_eq!(judged(&guard, "inside.test").await, Ok(1));
    assert_eq!(judged(&guard, "outside.test").await, blocked("port"));
    assert_eq!(guard.judge("9.9.9.9".parse().unwrap()), Ok(()));
    assert!(guard.judge("192.168.0.1".parse().unwrap()).is_err());
}

#[tokio::test]
async fn a_name_that_turns_inwards_is_refused_from_then_on() {
    let server = Server::start(|_, earlier| match earlier {
        0 => Reply::Addresses(vec!["8.8.8.8"], 0),
        _ => Reply::Addresses(vec!["192.168.1.1"], 0),
    })
    .await;
    let guard = Guard::new(Vec::new(), server.dns());
    assert_eq!(judged(&guard, "turns.test").await, Ok(1));
    let patience = Duration::from_secs(20);
    let turned = async {
        while judged(&guard, "turns.test").await == Ok(1) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(patience, turned)
        .await
        .expect("asked again");
    assert_eq!(judged(&guard, "turns.test").await, blocked("private"));
}

#[tokio::test]
async fn many_answers_have_an_end() {
    // More than fit into a datagram: asked again by TCP.
    let server = Server::start(|name, _| match name {
        "64.test." => Reply::Long(vec!["8.8.8.8"; 64]),
        "65.test." => Reply::Long(vec!["8.8.8.8"; 65]),
        _ => Reply::Long(vec!["8.8.8.8"; 2_000]),
    })
    .await;
    let dns = server.dns();
    assert_eq!(find(&dns, "64.test").await.map(|found| found.len()), Ok(64));
    assert_eq!(find(&dns, "65.test").await, Err(DnsError::TooMany));
    assert_eq!(find(&dns, "2000.test").await, Err(DnsError::TooMany));
}

#[tokio::test]
async fn names_are_absolute_and_remembered() {
    let server = Server::start(|name, _| match name {
        "good.test." => Reply::Addresses(vec!["8.8.8.8"], 60),
        "kubernetes.search.example." => Reply::Addresses(vec!["8.8.4.4"], 60),
        _ => Reply::NoName,
    })
    .await;
    let dns = server.dns();
    for _ in 0..3 {
        assert_eq!(find(&dns, "kubernetes").await, Err(DnsError::NoAddress));
        assert_eq!(find(&dns, "Good.TEST").await.unwrap(), ["8.8.8.8"]);
        assert_eq!(find(&dns, "good.test.").await.unwrap(), ["8.8.8.8"]);
    }
    let mut asked = server.asked();
    asked.sort_unstable_by_key(|(name, kind)| (name.clone(), u16::from(*kind)));
    let both = |name: &str| [RecordType::A, RecordType::AAAA].map(|kind| (name.to_owned(), kind));
    assert_eq!(asked, [both("good.test."), both("kubernetes.")].concat());
}

#[tokio::test]
async fn waiting_attempts_share_one_question() {
    let server = Server::start(|_, _| Reply::Addresses(vec!["8.8.8.8"], 60)).await;
    let guard = Guard::new(Vec::new(), server.dns());
    let all = (0..50).map(|_| {
        let guard = guard.clone();
        tokio::spawn(async move { judged(&guard, "good.test").await })
    });
    for one in all.collect::<Vec<_>>() {
        assert_eq!(one.await.unwrap(), Ok(1));
    }
    assert_eq!(server.asked().len(), 2);
}

#[tokio::test]
async fn lifetimes_are_capped_both_ways() {
    let server = Server::start(|name, _| match name {
        "short.test." => Reply::Addresses(vec!["8.8.8.8"], 0),
        _ => Reply::Addresses(vec!["8.8.8.8"], 2_000_000_000),
    })
    .await;
    let resolver = server.dns().resolver().unwrap();
    let short = resolver.ipv4_lookup("short.test.").await.unwrap();
    let long = resolver.ipv4_lookup("long.test.").await.unwrap();
    let apart = long.valid_until() - short.valid_until();
    let most = Duration::from_secs(300);
    assert!(
        apart > most - Duration::from_secs(30) && apart <= most,
        "{apart:?}"
    );
}

/// The clock is paused: nothing is waited for but what has a limit.
#[tokio::test(start_paused = true)]
async fn silence_and_nonsense_use_up_the_budget_at_most() {
    let server = Server::start(|name, _| match name {
        "broken.test." => Reply::Broken,
        "good.test." => Reply::Addresses(vec!["8.8.8.8"], 60),
        _ => Reply::Silence,
    })
    .await;
    let dns = server.dns();
    let start = tokio::time::Instant::now();
    assert_eq!(find(&dns, "silent.test").await, Err(DnsError::Timeout));
    assert!(start.elapsed() <= Duration::from_millis(5_010));
    let broken = find(&dns, "broken.test").await;
    assert!(broken.is_err(), "{broken:?}");

    // Somebody else has the turn and keeps it.
    let start = tokio::time::Instant::now();
    let turn = Semaphore::new(0);
    assert_eq!(
        dns.resolve("good.test", &turn).await,
        Err(DnsError::Timeout)
    );
    assert!(start.elapsed() <= Duration::from_millis(5_010));
}

#[tokio::test]
async fn hosts_and_localhost_are_not_asked_for() {
    let server = Server::start(|_, _| Reply::Addresses(vec!["8.8.8.8"], 60)).await;
    let dns = server.dns();
    for (name, addresses) in [
        ("billing.internal", vec!["10.9.8.7"]),
        ("BILLING", vec!["10.9.8.7"]),
        ("six.", vec!["::1"]),
        ("localhost", vec!["127.0.0.1", "::1"]),
        ("a.b.LocalHost.", vec!["127.0.0.1", "::1"]),
    ] {
        assert_eq!(find(&dns, name).await.unwrap(), addresses, "{name}");
    }
    assert_eq!(server.asked(), []);
    assert_eq!(find(&dns, "localhost.test").await.unwrap(), ["8.8.8.8"]);
    let guard = Guard::new(Vec::new(), server.dns());
    assert_eq!(judged(&guard, "x.localhost").await, blocked("loopback"));
    assert_eq!(judged(&guard, "billing").await, blocked("private"));
}
