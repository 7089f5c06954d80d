//! Produces with bounds, and survives a producer that has become unusable.
//!
//! An idempotent producer that meets an error it can not order around is *fatal*: every later send fails at once, for
//! ever. One that acknowledges nothing for long is *stuck* (`stuck` says when). A supervisor thread then builds a new one;
//! readiness fails meanwhile. What was in flight is answered as not acknowledged.

mod load;
mod stuck;

use crate::{
    Appended, LogError, ProduceError, Record,
    kafka::client::{Clients, MESSAGE_TIMEOUT_MS, log_error, log_line},
};
use load::{Load, Permit};
use rdkafka::{
    ClientContext, Message, Statistics,
    config::RDKafkaLogLevel,
    error::{KafkaError, RDKafkaErrorCode},
    message::{DeliveryResult, Header, OwnedHeaders},
    producer::{BaseRecord, Producer as _, ProducerContext, PurgeConfig, ThreadedProducer},
};
use std::{
    sync::{
        Arc, Mutex, PoisonError, RwLock, Weak,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};
use stuck::{Patience, Progress};
use tokio::{sync::oneshot, time::Instant};

/// Pause between two tries to build a new producer.
const REBUILD_PAUSE: Duration = Duration::from_secs(1);
/// How long a former producer may take to answer what was in flight there. What it can not purge (a request that is half
/// sent) times out by itself.
const PURGE_PATIENCE: Duration = Duration::from_secs(10);
const PATIENCE: Patience = Patience {
    message_timeout_ms: MESSAGE_TIMEOUT_MS,
    stuck_ms: 30_000,
};

/// The producer. Cheap to clone.
#[derive(Clone)]
pub(super) struct Producer(Arc<Inner>);

struct Inner {
    clients: Clients,
    patience: Patience,
    native: RwLock<Native>,
    load: Arc<Load>,
    health: Arc<Health>,
    failures: mpsc::SyncSender<()>,
}

/// librdkafka's producer and how many were there before it.
struct Native {
    generation: u64,
    producer: Arc<ThreadedProducer<Context>>,
}

/// A record on its way.
struct Pending {
    permit: Permit,
    answer: oneshot::Sender<Result<Appended, ProduceError>>,
}

/// What readiness asks, and the supervisor.
struct Health {
    /// Start of the clock of every [`Progress`].
    started: Instant,
    current: Mutex<Current>,
    /// No broker can be reached, as librdkafka last said.
    unreachable: AtomicBool,
}

#[derive(Default)]
struct Current {
    /// Producers before this one are history: what they still say changes nothing.
    generation: u64,
    /// Why the producer is unusable, until there is a new one.
    broken: Option<Broken>,
}

/// A producer of this generation is unusable.
struct Broken {
    generation: u64,
    reason: String,
}

struct Context {
    generation: u64,
    patience: Patience,
    progress: Mutex<Progress>,
    health: Arc<Health>,
    failures: mpsc::SyncSender<()>,
}

// === impl Producer ===

impl Producer {
    pub(super) fn start(clients: Clients) -> Result<Self, LogError> {
        Self::start_with(clients, PATIENCE)
    }

    fn start_with(clients: Clients, patience: Patience) -> Result<Self, LogError> {
        // One note is enough, however many records fail: the health says what there is to do.
        let (failures, failed) = mpsc::sync_channel(1);
        let health = Arc::new(Health::default());
        let native = build(&clients, patience, 0, &health, &failures)?;
        let config = clients.config();
        let load = Load::new(config.queue_records_max, config.queue_bytes_max);
        let inner = Arc::new(Inner {
            clients,
            patience,
            native: RwLock::new(native),
            load: Arc::new(load),
            health,
            failures,
        });
        let weak = Arc::downgrade(&inner);
        thread::Builder::new()
            .name("kafka-producer".into())
            .spawn(move || supervise(&weak, &failed))
            .map_err(|error| LogError::Fatal(format!("no thread for the producer: {error}")))?;
        Ok(Self(inner))
    }

    pub(super) async fn produce(&self, record: Record) -> Result<Appended, ProduceError> {
        let answer = self.enqueue(&record)?;
        drop(record);
        answer
            .await
            .unwrap_or_else(|_gone| Err(ProduceError::Unacknowledged("producer closed".into())))
    }

    pub(super) fn ready(&self) -> Result<(), LogError> {
        let health = &self.0.health;
        if let Some(Broken { reason, .. }) = &lock(&health.current).broken {
            return Err(LogError::Unavailable(format!(
                "producer is being replaced: {reason}"
            )));
        }
        if health.unreachable.load(Ordering::Relaxed) {
            return Err(LogError::Unavailable("no broker can be reached".into()));
        }
        Ok(())
    }

    /// Blocks until everything is acknowledged or `deadline` has passed.
    pub(super) fn flush(&self, deadline: Duration) {
        let native = self.native();
        if let Err(error) = native.flush(deadline) {
            let records = native.in_flight_count();
            tracing::warn!(%error, records, "records are still not acknowledged");
        }
    }

    fn native(&self) -> Arc<ThreadedProducer<Context>> {
        let native = self.0.native.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&native.producer)
    }

    /// Hands the record to librdkafka, which copies it.
    fn enqueue(
        &self,
        record: &Record,
    ) -> Result<oneshot::Receiver<Result<Appended, ProduceError>>, ProduceError> {
        let inner = &self.0;
        let bytes = record.bytes_within(inner.clients.config().record_bytes_max)?;
        let permit = inner.load.acquire(bytes).ok_or(ProduceError::Busy)?;
        let (answer, receiver) = oneshot::channel();
        let topic = inner.clients.names().name(record.topic);
        let native_record =
            BaseRecord::with_opaque_to(&topic, Box::new(Pending { permit, answer }))
                .key(record.key.as_ref())
                .payload(record.value.as_ref())
                .headers(native_headers(record));
        // Held over the send, which never blocks: the last owner of a producer joins its thread, so it must not be here.
        let native = inner.native.read().unwrap_or_else(PoisonError::into_inner);
        match native.producer.send(native_record) {
            Ok(()) => Ok(receiver),
            Err((error, _record)) => {
                if error.rdkafka_error_code() == Some(RDKafkaErrorCode::Fatal) {
                    let reason = error.to_string();
                    if inner.health.fail(native.generation, &reason) {
                        tracing::error!(reason, "producer unusable, building a new one");
                    }
                    call_supervisor(&inner.failures);
                }
                Err(produce_error(&error, bytes))
            }
        }
    }
}

/// Builds a new producer for each one that fails; ends with the last handle.
fn supervise(inner: &Weak<Inner>, failed: &mpsc::Receiver<()>) {
    while failed.recv() == Ok(()) {
        while let Some(inner) = inner.upgrade() {
            let generation = {
                let current = lock(&inner.health.current);
                if current.broken.is_none() {
                    break;
                }
                current.generation
            };
            match build(
                &inner.clients,
                inner.patience,
                generation + 1,
                &inner.health,
                &inner.failures,
            ) {
                Ok(new) => {
                    let old = {
                        let mut native =
                            inner.native.write().unwrap_or_else(PoisonError::into_inner);
                        std::mem::replace(&mut *native, new)
                    };
                    inner.health.replaced(generation + 1);
                    tracing::info!(generation = generation + 1, "producer replaced");
                    retire(old);
                    break;
                }
                Err(error) => {
                    tracing::error!(%error, "no new producer yet");
                    drop(inner);
                    thread::sleep(REBUILD_PAUSE);
                }
            }
        }
    }
}

/// Answers what is in flight at a former producer, and ends it: on a thread of its own, since nobody knows what a producer
/// that is stuck still does, and the supervisor must go on.
fn retire(old: Native) {
    let end = move || {
        // Somebody may still flush it: that ends with this.
        let purge = PurgeConfig::default().queue().inflight();
        old.producer.purge(purge);
        if let Err(error) = old.producer.flush(PURGE_PATIENCE) {
            let records = old.producer.in_flight_count();
            tracing::warn!(%error, records, "a former producer does not answer");
        }
    };
    let thread = thread::Builder::new().name("kafka-producer-end".into());
    if let Err(error) = thread.spawn(end) {
        // The closure is gone, and with it the producer: its end purges too, if less patiently.
        tracing::warn!(%error, "no thread to end a former producer");
    }
}

// === impl Health ===

impl Default for Health {
    fn default() -> Self {
        Self {
            started: Instant::now(),
            current: Mutex::default(),
            unreachable: AtomicBool::default(),
        }
    }
}

impl Health {
    /// Milliseconds since the start; never goes back.
    fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Notes that the producer of `generation` is unusable; says whether that is news.
    fn fail(&self, generation: u64, reason: &str) -> bool {
        let mut current = lock(&self.current);
        let known = current.broken.as_ref().map(|broken| broken.generation);
        // A new one may fail before it is the current one.
        let news = generation >= current.generation && known.is_none_or(|known| known < generation);
        if news {
            current.broken = Some(Broken {
                generation,
                reason: reason.to_owned(),
            });
        }
        news
    }

    fn replaced(&self, generation: u64) {
        let mut current = lock(&self.current);
        current.generation = generation;
        current
            .broken
            .take_if(|broken| broken.generation < generation);
    }
}

// === impl Context ===

impl Context {
    /// Never blocks and drops no producer: this runs on the producer's own thread.
    fn fail(&self, reason: &str) {
        if self.health.fail(self.generation, reason) {
            tracing::error!(reason, "producer unusable, building a new one");
        }
        call_supervisor(&self.failures);
    }

    /// A record has timed out: one too many? Never blocks either.
    fn timed_out(&self) {
        let now_ms = self.health.now_ms();
        let (stuck_for_ms, timeouts) = {
            let mut progress = lock(&self.progress);
            progress.timed_out(now_ms);
            (
                progress.stuck_for_ms(self.patience, now_ms),
                progress.timeouts(),
            )
        };
        let Some(silent_ms) = stuck_for_ms else {
            return;
        };
        let reason = format!(
            "no acknowledgement for {silent_ms} ms, {timeouts} records timed out meanwhile"
        );
        if self.health.fail(self.generation, &reason) {
            // An outage comes here too: a warning, not an error.
            tracing::warn!(reason, "producer stuck, building a new one");
        }
        call_supervisor(&self.failures);
    }
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        log_line(level, facility, message);
    }

    fn stats(&self, statistics: Statistics) {
        if statistics
            .brokers
            .values()
            .any(|broker| broker.state == "UP")
        {
            self.health.unreachable.store(false, Ordering::Relaxed);
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        log_error(&error, reason);
        match error.rdkafka_error_code() {
            Some(RDKafkaErrorCode::Fatal) => self.fail(reason),
            Some(RDKafkaErrorCode::AllBrokersDown) => {
                self.health.unreachable.store(true, Ordering::Relaxed);
            }
            Some(_) | None => {}
        }
    }
}

impl ProducerContext for Context {
    type DeliveryOpaque = Box<Pending>;

    fn delivery(&self, result: &DeliveryResult<'_>, pending: Box<Pending>) {
        let Pending { permit, answer } = *pending;
        let result = match result {
            Ok(message) => {
                self.health.unreachable.store(false, Ordering::Relaxed);
                lock(&self.progress).acknowledged(self.health.now_ms());
                Ok(Appended {
                    partition: u32::try_from(message.partition()).unwrap_or_default(),
                    offset: message.offset(),
                })
            }
            Err((error, _message)) => {
                match error.rdkafka_error_code() {
                    Some(RDKafkaErrorCode::Fatal) => self.fail(&error.to_string()),
                    Some(RDKafkaErrorCode::MessageTimedOut) => self.timed_out(),
                    Some(_) | None => {}
                }
                Err(produce_error(error, permit.bytes()))
            }
        };
        drop(permit);
        // Whoever asked may have stopped waiting.
        drop(answer.send(result));
    }
}

// === helpers ===

fn build(
    clients: &Clients,
    patience: Patience,
    generation: u64,
    health: &Arc<Health>,
    failures: &mpsc::SyncSender<()>,
) -> Result<Native, LogError> {
    let context = Context {
        generation,
        patience,
        progress: Mutex::new(Progress::new(health.now_ms())),
        health: Arc::clone(health),
        failures: failures.clone(),
    };
    let producer = clients
        .producer(patience.message_timeout_ms)?
        .create_with_context(context)
        .map_err(|error| LogError::Fatal(format!("no producer: {error}")))?;
    Ok(Native {
        generation,
        producer: Arc::new(producer),
    })
}

/// Never blocks. Full: a note waits already, and the supervisor looks at the health after taking it.
fn call_supervisor(failures: &mpsc::SyncSender<()>) {
    if failures.try_send(()) == Err(mpsc::TrySendError::Disconnected(())) {
        tracing::error!("the producer's supervisor has ended");
    }
}

fn produce_error(error: &KafkaError, bytes: usize) -> ProduceError {
    match error.rdkafka_error_code() {
        Some(RDKafkaErrorCode::QueueFull) => ProduceError::Busy,
        Some(RDKafkaErrorCode::MessageSizeTooLarge) => ProduceError::TooLarge { bytes },
        Some(_) | None => ProduceError::Unacknowledged(error.to_string()),
    }
}

fn native_headers(record: &Record) -> OwnedHeaders {
    record.headers.iter().fold(
        OwnedHeaders::new_with_capacity(record.headers.len()),
        |headers, (key, value)| {
            headers.insert(Header {
                key,
                value: Some(value.as_ref()),
            })
        },
    )
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
