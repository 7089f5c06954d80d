//! Honest senders: a few connections that are kept, and an even pace.

use crate::wire;
use bytes::Bytes;
use harness::sender::Webhook;
use std::{
    fmt, io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::AsyncWriteExt,
    task::JoinSet,
    time::{Instant, sleep_until, timeout},
};

const CONNECTIONS: usize = 20;
const PER_SECOND: u32 = 500;
/// An answer must come within this time.
const PATIENCE: Duration = Duration::from_secs(30);

/// What became of all webhooks.
#[derive(Debug, Default)]
pub(crate) struct Sent {
    count: usize,
    took: Duration,
    /// From the time it was due to its answer, each.
    waits: Vec<Duration>,
    /// 2xx.
    pub(crate) answered: usize,
    /// All else.
    pub(crate) failures: Vec<String>,
}

/// A webhook of about 1 KB.
pub(crate) fn webhook(number: usize) -> Webhook {
    let message = "0123456789abcdef".repeat(62);
    Webhook {
        delivery_id: format!("good-{number:05}"),
        event: "push".into(),
        body: Bytes::from(format!(r#"{{"number":{number},"message":"{message}"}}"#)),
    }
}

/// Sends `count` webhooks, each when it is due or, when no connection is free then, later. Nothing is sent twice.
pub(crate) async fn send(port: u16, count: usize) -> Sent {
    let next = Arc::new(AtomicUsize::new(0));
    let start = Instant::now();
    let mut senders = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let next = Arc::clone(&next);
        senders.spawn(async move { one(port, start, &next, count).await });
    }
    let mut sent = Sent::default();
    while let Some(one) = senders.join_next().await {
        let one = one.expect("a sender does not panic");
        sent.waits.extend(one.waits);
        sent.answered += one.answered;
        sent.failures.extend(one.failures);
    }
    sent.waits.sort_unstable();
    Sent {
        count,
        took: start.elapsed(),
        ..sent
    }
}

/// One connection's part.
async fn one(port: u16, start: Instant, next: &AtomicUsize, count: usize) -> Sent {
    let mut sent = Sent::default();
    let mut open = None;
    loop {
        let number = next.fetch_add(1, Ordering::SeqCst);
        if number >= count {
            return sent;
        }
        let request = wire::whole(&webhook(number));
        let due = start + Duration::from_secs(1) * number as u32 / PER_SECOND;
        sleep_until(due).await;
        let post = async {
            let (mut reader, mut writer) = match open.take() {
                Some(open) => open,
                None => wire::connect(port).await?,
            };
            writer.write_all(&request).await?;
            let (status, goes_on) = wire::answer(&mut reader).await?;
            open = goes_on.then_some((reader, writer));
            io::Result::Ok(status)
        };
        match timeout(PATIENCE, post).await {
            Ok(Ok(200..=299)) => sent.answered += 1,
            other => sent.failures.push(format!("{number}: {other:?}")),
        }
        sent.waits.push(due.elapsed());
    }
}

// === impl Sent ===

impl Sent {
    /// So many of a hundred waited no longer.
    fn percentile(&self, percent: usize) -> Duration {
        let last = self.waits.len().saturating_sub(1);
        self.waits
            .get(last * percent / 100)
            .copied()
            .unwrap_or_default()
    }
}

impl fmt::Display for Sent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "good: {} sent, {} answered 2xx, {:.0} a second of {PER_SECOND}; from due to answered p50 {:.1} ms, p99 {:.1} ms",
            self.count,
            self.answered,
            self.count as f64 / self.took.as_secs_f64(),
            self.percentile(50).as_secs_f64() * 1e3,
            self.percentile(99).as_secs_f64() * 1e3,
        )
    }
}
