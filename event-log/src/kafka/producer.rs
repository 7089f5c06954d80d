//! Produces with bounds, and survives a producer that has become unusable.
//!
//! An idempotent producer that meets an error it can not order around is *fatal*: every later send fails at once, for
//! ever. A supervisor thread then builds a new one; readiness fails meanwhile. What was in flight is answered as not
//! acknowledged.

mod load;

use crate::{
    Appended, LogError, ProduceError, Record,
    kafka::client::{Clients, log_error, log_line},
};
use load::{Load, Permit};
use rdkafka::{
    ClientContext, Message, Statistics,
    config::RDKafkaLogLevel,
    error::{KafkaError, RDKafkaErrorCode},
    message::{DeliveryResult, Header, OwnedHeaders},
    producer::{BaseRecord, Producer as _, ProducerContext, ThreadedProducer},
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
use tokio::sync::oneshot;

/// Pause between two tries to build a new producer.
const REBUILD_PAUSE: Duration = Duration::from_secs(1);

/// The producer. Cheap to clone.
#[derive(Clone)]
pub(super) struct Producer(Arc<Inner>);

struct Inner {
    clients: Clients,
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
#[derive(Default)]
struct Health {
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
    health: Arc<Health>,
    failures: mpsc::SyncSender<()>,
}

// === impl Producer ===

impl Producer {
    pub(super) fn start(clients: Clients) -> Result<Self, LogError> {
        // One note is enough, however many records fail: the health says what there is to do.
        let (failures, failed) = mpsc::sync_channel(1);
        let health = Arc::new(Health::default());
        let native = build(&clients, 0, &health, &failures)?;
        let config = clients.config();
        let load = Load::new(config.queue_records_max, config.queue_bytes_max);
        let inner = Arc::new(Inner {
            clients,
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
                    inner.health.fail(native.generation, &error.to_string());
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
                    // Answers what was in flight there.
                    drop(old);
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

// === impl Health ===

impl Health {
    fn fail(&self, generation: u64, reason: &str) {
        let mut current = lock(&self.current);
        let known = current.broken.as_ref().map(|broken| broken.generation);
        // A new one may fail before it is the current one.
        if generation >= current.generation && known.is_none_or(|known| known < generation) {
            tracing::error!(reason, "producer unusable, building a new one");
            current.broken = Some(Broken {
                generation,
                reason: reason.to_owned(),
            });
        }
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
        self.health.fail(self.generation, reason);
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
                Ok(Appended {
                    partition: u32::try_from(message.partition()).unwrap_or_default(),
                    offset: message.offset(),
                })
            }
            Err((error, _message)) => {
                if error.rdkafka_error_code() == Some(RDKafkaErrorCode::Fatal) {
                    self.fail(&error.to_string());
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
    generation: u64,
    health: &Arc<Health>,
    failures: &mpsc::SyncSender<()>,
) -> Result<Native, LogError> {
    let context = Context {
        generation,
        health: Arc::clone(health),
        failures: failures.clone(),
    };
    let producer = clients
        .producer()?
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
