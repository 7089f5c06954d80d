//! A log, a store, a receiver and a clock that goes with tokio's.

use super::{faults::Faults, log::FakeLog, send::FakeSend, store::FakeStore};
use bytes::Bytes;
use dedup_store::{Retention, memory::MemoryStore};
use dispatcher::{
    DestinationConfig, DispatcherConfig, Path, RouteConfig, config::SourcePolicy, process::Parts,
};
use event_log::{EventLog, Record, memory::MemoryLog};
use runtime::{Clock, Dice};
use schemas::{Codec, DeadLetter, Header, Topic, TopicNames, Webhook};
use std::{collections::BTreeMap, time::Duration};
use tokio_util::task::AbortOnDropHandle;

pub(crate) const START_MS: i64 = 1_800_000_000_000;
pub(crate) const DAY_MS: i64 = 86_400_000;
/// Step of the clock.
const TICK_MS: i64 = 50;

/// Everything outside of the dispatcher. A dispatcher is made by [`World::path`], as often as one crashes.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) clock: Clock,
    pub(crate) faults: Faults,
    pub(crate) log: FakeLog,
    pub(crate) store: FakeStore,
    pub(crate) send: FakeSend,
    pub(crate) codec: Codec,
    pub(crate) config: DispatcherConfig,
    pub(crate) destinations: BTreeMap<String, DestinationConfig>,
    pub(crate) routes: Vec<RouteConfig>,
    pub(crate) sources: BTreeMap<String, SourcePolicy>,
    #[expect(dead_code, reason = "ends the ticking when it is dropped")]
    ticking: AbortOnDropHandle<()>,
}

pub(crate) type FakePath = Path<FakeLog, FakeStore, FakeSend>;

// === impl World ===

impl World {
    /// A world with one destination, `billing`, for all webhooks of `github`. Jitter is off.
    pub(crate) fn new(partitions: u32, faults: Faults) -> Self {
        let clock = Clock::manual(START_MS);
        let inner = MemoryLog::new(partitions, clock.clone());
        let retention = Retention {
            open_ms: DAY_MS,
            failed_ms: 14 * DAY_MS,
            completed_ms: 30 * DAY_MS,
        };
        let mut billing: DestinationConfig = destination();
        billing.retry.jitter = 0.0;
        Self {
            ticking: AbortOnDropHandle::new(tokio::spawn(tick(clock.clone(), inner.clone()))),
            log: FakeLog {
                inner,
                faults: faults.clone(),
            },
            store: FakeStore::new(MemoryStore::new(retention), faults.clone()),
            send: FakeSend::new(clock.clone(), faults.clone()),
            codec: Codec::default(),
            config: DispatcherConfig::default(),
            destinations: BTreeMap::from([("billing".to_owned(), billing)]),
            routes: vec![RouteConfig {
                source: "github".to_owned(),
                events: None,
                to: vec!["billing".to_owned()],
            }],
            sources: BTreeMap::new(),
            clock,
            faults,
        }
    }

    /// A new dispatcher.
    pub(crate) fn path(&self) -> FakePath {
        Path::new(Parts {
            log: self.log.clone(),
            store: self.store.clone(),
            send: self.send.clone(),
            codec: self.codec.clone(),
            clock: self.clock.clone(),
            dice: Dice::system(),
            names: TopicNames::new("fencepost"),
            config: self.config.clone(),
            destinations: self.destinations.clone(),
            routes: self.routes.clone(),
            sources: self.sources.clone(),
            store_deadline: Duration::from_secs(2),
        })
    }

    /// What ingest does.
    pub(crate) async fn publish(&self, webhook: &Webhook) {
        let record = Record {
            topic: Topic::Webhooks,
            key: Bytes::copy_from_slice(webhook.delivery_id.as_bytes()),
            value: self.codec.encode_webhook(webhook).unwrap(),
            headers: Vec::new(),
        };
        self.log.inner.produce(record).await.unwrap();
    }

    /// The dead letters published so far.
    pub(crate) fn letters(&self) -> Vec<DeadLetter> {
        let records = self.log.inner.records(Topic::DeadLetters);
        records
            .iter()
            .map(|record| self.codec.decode_dead_letter(&record.value).unwrap())
            .collect()
    }
}

/// Moves the clock along with tokio's time.
async fn tick(clock: Clock, log: MemoryLog) {
    let step = Duration::from_millis(TICK_MS.unsigned_abs());
    let mut interval = tokio::time::interval(step);
    interval.tick().await;
    loop {
        interval.tick().await;
        clock.advance(TICK_MS);
        log.wake();
    }
}

/// A webhook of `github`, received now, with bytes that are no text.
pub(crate) fn webhook(delivery_id: &str, received_at_ms: i64) -> Webhook {
    Webhook {
        source: "github".to_owned(),
        delivery_id: delivery_id.to_owned(),
        event_type: "push".to_owned(),
        content_type: Some("application/json; charset=utf-8".to_owned()),
        headers: vec![Header {
            name: "x-github-event".to_owned(),
            value: Bytes::from_static(b"push\xff"),
        }],
        body: Bytes::from_static(b"{\"a\":\r\n 1}\0\xff\xfe  \n"),
        received_at_ms,
        generation: 0,
    }
}

fn destination() -> DestinationConfig {
    DestinationConfig::to("https://billing.example/hooks".parse().unwrap())
}

/// Waits until `done` says so, for at most two minutes of the paused time.
pub(crate) async fn eventually(what: &str, done: impl Fn() -> bool) {
    for _ in 0..12_000 {
        if done() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never: {what}");
}
