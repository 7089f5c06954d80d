//! A rolling restart of ingest under load: a client that goes when it is told to go sees no answer but 2xx, and no request
//! of its broken.
//!
//! Needs the stack (`tests/stack/stack up`), as `e2e.rs` does.

use harness::{
    http, now_ms,
    oracle::Oracle,
    payload,
    process::{Process, Role},
    receiver::Receiver,
    sender::{Sent, Webhook, sha256, signature},
    site::{GITHUB_SECRET, Limits, Site},
    stack::{stack, turn},
    until, within,
};
use std::{
    io,
    net::Ipv4Addr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, timeout},
};

/// Workers of the client, each with one connection at a time.
const WORKERS: usize = 16;
/// Of each worker: some three hundred requests a second in all.
const PAUSE: Duration = Duration::from_millis(50);
/// Requests after which a worker goes to the next instance by itself, so that one that comes back gets its share.
const TURN_REQUESTS: usize = 10;
/// Requests that must be answered before, in and after each restart.
const ENOUGH: usize = 200;
/// A request, a start, a stop, a step of the load.
const PATIENCE: Duration = Duration::from_secs(60);

/// One place in the set: the port stays, processes come and go.
#[derive(Debug)]
struct Place {
    port: u16,
    ready_url: Mutex<String>,
    /// Requests that were answered.
    answered: AtomicUsize,
    /// Answers that said `connection: close`.
    told: AtomicUsize,
}

/// A balancer with keep-alive connections: a new one goes to the next instance that says that it is ready.
#[derive(Debug)]
struct Balancer {
    instances: [Place; 2],
    turn: AtomicUsize,
    stop: AtomicBool,
}

/// What the client needs to know of an answer.
struct Answer {
    status: u16,
    is_last: bool,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_client_that_respects_connection_close_sees_nothing_of_a_rolling_restart() {
    let Some(stack) = stack() else { return };
    let _turn = turn().await;
    let receiver = Receiver::start().await;
    let mut site = Site::on_stack(&stack, "rolling", 12);
    site.admin("drain_delay = \"2s\"");
    site.destination("billing", &receiver.url("/billing"), &Limits::default());
    site.prepare().await;
    let mut dispatcher = site.start(Role::Dispatcher).await;
    let mut running = [
        site.start(Role::Ingest).await,
        site.start(Role::Ingest).await,
    ];
    let balancer = Arc::new(Balancer::new(&running));
    let mut load = JoinSet::new();
    for number in 0..WORKERS {
        load.spawn(worker(Arc::clone(&balancer), number));
    }

    for place in [0, 1, 0] {
        let figures = restart(&site, &balancer, place, &mut running[place]).await;
        println!("{figures}");
    }
    balancer.stop.store(true, Ordering::SeqCst);
    let sent = timeout(PATIENCE, load.join_all()).await;
    let sent = sent.expect("the load stops when asked to").concat();

    let failed: Vec<_> = sent.iter().filter(|sent| !sent.acknowledged()).collect();
    let broken = failed.iter().filter(|sent| sent.status.is_none()).count();
    println!(
        "{} requests, {} without 2xx, {broken} broken",
        sent.len(),
        failed.len() - broken
    );
    assert!(failed.is_empty(), "{failed:#?}");

    all_arrived(&receiver, sent.len()).await;
    for ingest in &mut running {
        assert_eq!(ingest.terminate(PATIENCE).await.code(), Some(0));
    }
    assert!(dispatcher.terminate(PATIENCE).await.success());
    let oracle = Oracle {
        sent,
        arrivals: receiver.arrivals(),
        destinations: vec![("billing".to_owned(), "/billing".to_owned())],
        ..Oracle::default()
    };
    let report = oracle.judge();
    println!("{report}");
    report.assert_clean();
}

/// SIGTERM, the end, a new start on the same port, all of it under load. Gives the figures.
async fn restart(site: &Site, balancer: &Balancer, place: usize, process: &mut Process) -> String {
    let (restarted, other) = (&balancer.instances[place], &balancer.instances[1 - place]);
    restarted.answers_more("under load").await;
    let [answered, told, others] = [&restarted.answered, &restarted.told, &other.answered]
        .map(|count| count.load(Ordering::SeqCst));

    let status = process.terminate(PATIENCE).await;
    assert_eq!(status.code(), Some(0), "{status}");
    let answered = restarted.answered.load(Ordering::SeqCst) - answered;
    let told = restarted.told.load(Ordering::SeqCst) - told;
    assert!(told > 0, "nobody was told to go");
    other.answers_more("alone").await;
    *process = site.launch_on(Role::Ingest, restarted.port);
    restarted.is_now(process);
    process.wait_ready().await;
    let others = other.answered.load(Ordering::SeqCst) - others;
    assert!(others >= ENOUGH, "{others}");
    restarted.answers_more("back again").await;
    format!(
        "instance {place} answered {answered} while it drained, {told} of them with connection: close; the other answered \
         {others} until it was ready again"
    )
}

/// Sends one request after another until the load is stopped; nothing is sent again.
///
/// A server that closes a connection which nobody uses can collide with a request, and no client can tell what became of it:
/// the one race that HTTP/1.1 leaves. It can not come up here, since each connection is used every few milliseconds and so
/// hears with an answer that it ends, long before the drain delay is over.
async fn worker(balancer: Arc<Balancer>, number: usize) -> Vec<Sent> {
    let mut sent = Vec::new();
    let mut pace = interval(PAUSE);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !balancer.stop.load(Ordering::SeqCst) {
        let instance = balancer.next().await;
        let mut connection = None;
        for _ in 0..TURN_REQUESTS {
            pace.tick().await;
            let seed = number * 1_000_000 + sent.len();
            let [webhook] = payload::generated(seed as u64, 1).try_into().expect("one");
            let posted = post(&mut connection, instance.port, &webhook);
            let answer = timeout(PATIENCE, posted).await;
            let answer = answer.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
            let is_last = answer.as_ref().map_or(true, |answer| answer.is_last);
            if let Ok(answer) = &answer {
                instance.answered.fetch_add(1, Ordering::SeqCst);
                instance
                    .told
                    .fetch_add(usize::from(answer.is_last), Ordering::SeqCst);
            }
            sent.push(Sent {
                delivery_id: webhook.delivery_id,
                body_sha256: sha256(&webhook.body),
                status: answer.as_ref().ok().map(|answer| answer.status),
                failure: answer.map_or_else(|error| format!("{error:?}"), |_| String::new()),
                at_ms: now_ms(),
            });
            if is_last {
                break;
            }
        }
    }
    sent
}

/// One request over `connection`, which is opened first when there is none.
async fn post(
    connection: &mut Option<TcpStream>,
    port: u16,
    webhook: &Webhook,
) -> io::Result<Answer> {
    let stream = match connection {
        Some(stream) => stream,
        none => none.insert(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?),
    };
    let head = format!(
        "POST /hooks/github HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n\
         x-github-delivery: {}\r\nx-github-event: {}\r\nx-hub-signature-256: {}\r\ncontent-length: {}\r\n\r\n",
        webhook.delivery_id,
        webhook.event,
        signature(GITHUB_SECRET, &webhook.body),
        webhook.body.len()
    );
    stream
        .write_all(&[head.as_bytes(), &webhook.body].concat())
        .await?;
    read_answer(stream).await
}

/// Waits until `count` deliveries were accepted, however long it takes, while it goes on.
async fn all_arrived(receiver: &Receiver, count: usize) {
    let mut seen = 0;
    while seen < count {
        let more = within(PATIENCE, async || {
            Some(receiver.accepted("/billing")).filter(|now| *now > seen)
        });
        seen = more
            .await
            .unwrap_or_else(|| panic!("stands still at {seen} of {count} deliveries"));
    }
}

// === impl Place ===

impl Place {
    fn new(process: &Process) -> Self {
        Self {
            port: process.ingest_port(),
            ready_url: Mutex::new(process.ready_url()),
            answered: AtomicUsize::new(0),
            told: AtomicUsize::new(0),
        }
    }

    /// Another process has its place.
    fn is_now(&self, process: &Process) {
        *self
            .ready_url
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = process.ready_url();
    }

    async fn is_ready(&self) -> bool {
        let url = self
            .ready_url
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let answer = http::client().get(url).send().await;
        answer.is_ok_and(|answer| answer.status().is_success())
    }

    /// Waits until it has answered enough from now on.
    async fn answers_more(&self, how: &str) {
        let before = self.answered.load(Ordering::SeqCst);
        until(PATIENCE, how, async || {
            (self.answered.load(Ordering::SeqCst) >= before + ENOUGH).then_some(())
        })
        .await;
    }
}

// === impl Balancer ===

impl Balancer {
    fn new(running: &[Process; 2]) -> Self {
        Self {
            instances: running.each_ref().map(Place::new),
            turn: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
        }
    }

    /// The next instance that is ready.
    async fn next(&self) -> &Place {
        let end = Instant::now() + PATIENCE;
        let mut pace = interval(PAUSE);
        while Instant::now() < end {
            let turn = self.turn.fetch_add(1, Ordering::SeqCst);
            let instance = &self.instances[turn % self.instances.len()];
            if instance.is_ready().await {
                return instance;
            }
            pace.tick().await;
        }
        panic!("not within {PATIENCE:?}: an instance is ready");
    }
}

/// One answer with `content-length`, to its last byte and not further.
async fn read_answer(stream: &mut TcpStream) -> io::Result<Answer> {
    let mut bytes = Vec::new();
    loop {
        if let Some((answer, end)) = parse(&bytes)? {
            match bytes.len() {
                length if length == end => return Ok(answer),
                length if length > end => return Err(io::Error::other("more than one answer")),
                _ => {}
            }
        }
        if stream.read_buf(&mut bytes).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// The answer and where it ends, once its head is there.
fn parse(bytes: &[u8]) -> io::Result<Option<(Answer, usize)>> {
    let Some(head) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
        return Ok(None);
    };
    let text = String::from_utf8_lossy(&bytes[..head]).to_ascii_lowercase();
    let field = |name: &str| {
        let mut fields = text.lines().filter_map(|line| line.split_once(':'));
        fields.find_map(|(known, value)| (known == name).then_some(value.trim()))
    };
    let status = text.split(' ').nth(1).and_then(|word| word.parse().ok());
    let length: Option<usize> = field("content-length").and_then(|word| word.parse().ok());
    let (Some(status), Some(length)) = (status, length) else {
        return Err(io::Error::other(format!("no answer of ours: {text}")));
    };
    let is_last = field("connection") == Some("close");
    Ok(Some((Answer { status, is_last }, head + 4 + length)))
}
