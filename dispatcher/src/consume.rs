//! The loop: log events in, jobs out, watermarks back. No policy.

mod figures;

use crate::{
    consume::figures::Figures,
    partitions::{Partitions, Ticket},
    pause,
    process::{self, Finished, Infra, Job, Path, Place},
    publish, routes,
    send::Send,
    waiting::Waiting,
    window::{self, Bounds, Load, Size},
};
use dedup_store::Store;
use event_log::{Consumer, Event, EventLog, LogError, Received, Revoked, Room};
use schemas::{DecodeError, Delivery, Topic};
use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    task::{Id, JoinError, JoinSet},
    time::{Instant, MissedTickBehavior},
};
use tokio_util::sync::CancellationToken;

/// Records asked of the log at once.
const BATCH_MAX: usize = 256;
/// Assumed of a record before any was seen: the default limit of a body.
const RECORD_BYTES_ASSUMED: usize = 1 << 20;
/// Moved watermarks are handed to the log this often; revocations are looked at as often.
const TICK: Duration = Duration::from_millis(100);
/// Figures are refreshed every so many ticks.
const FIGURES_TICKS: u32 = 10;
/// How long attempts that run may hold up a rebalance.
const REVOKE_PATIENCE: Duration = Duration::from_secs(2);
/// Pause after the log did not answer.
const LOG_PAUSE: Duration = Duration::from_secs(1);
/// For the log to commit and leave the group.
const CLOSE_DEADLINE: Duration = Duration::from_secs(5);

/// Why a dispatcher ends without having been asked to. The process ends with it; the log still has all that is open.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The log can not be used any more.
    #[error(transparent)]
    Log(#[from] LogError),
    /// A defect: the delivery's attempts are counted, so it can not bring down the process for ever.
    #[error("a delivery's task panicked: {0}")]
    Panicked(String),
}

/// What others may know of a running dispatcher. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Status {
    partitions_owned: Arc<AtomicUsize>,
    in_flight: Arc<AtomicUsize>,
    last_tick_ms: Arc<AtomicI64>,
}

struct Loop<L: EventLog, S, H> {
    path: Arc<Path<L, S, H>>,
    consumer: L::Consumer,
    partitions: Partitions,
    jobs: JoinSet<Result<Finished, Infra>>,
    open: HashMap<Id, Open>,
    in_flight_bytes: usize,
    /// Longest time that an attempt may take.
    timeout_max: Duration,
    /// Size of a large record of late, for how many more fit into memory.
    record_bytes: usize,
    /// Deliveries that one record can make, at most.
    fan_out_max: usize,
    figures: Figures,
    /// After an error of the log, nothing is asked of it until then.
    log_paused_until: Instant,
    status: Status,
}

/// A job in flight: the record to finish and the memory that it holds.
struct Open {
    ticket: Ticket,
    delivery_id: String,
    destination: String,
    waiting: Waiting,
}

/// Takes records and works on them until `shutdown`; then lets attempts that run end within the grace, commits, and gives
/// up ownership.
///
/// # Errors
/// See [`RunError`].
pub async fn run<L: EventLog, S: Store, H: Send>(
    path: Arc<Path<L, S, H>>,
    status: Status,
    shutdown: CancellationToken,
) -> Result<(), RunError> {
    // Before the first attempt. A store that does not answer lets nobody claim anything either.
    tokio::select! {
        biased;
        () = shutdown.cancelled() => return Ok(()),
        looked = pause::look(&path) => if let Err(error) = looked {
            tracing::warn!(%error, "can not see which destinations are paused yet");
        },
    }
    let consumer = path.log.consumer().await?;
    let timeouts = path.destinations.values().map(|it| it.timeout);
    let mut this = Loop {
        fan_out_max: routes::fan_out_max(&path.routes),
        timeout_max: timeouts.max().unwrap_or_default(),
        path,
        consumer,
        partitions: Partitions::default(),
        jobs: JoinSet::new(),
        open: HashMap::new(),
        in_flight_bytes: 0,
        record_bytes: RECORD_BYTES_ASSUMED,
        figures: Figures::default(),
        log_paused_until: Instant::now(),
        status,
    };
    let path = Arc::clone(&this.path);
    let result = tokio::select! {
        biased;
        result = this.take(&shutdown) => result,
        never = Box::pin(pause::watch(&path)) => match never {},
    };
    this.wind_up().await;
    result
}

// === impl Loop ===

impl<L: EventLog, S: Store, H: Send> Loop<L, S, H> {
    async fn take(&mut self, shutdown: &CancellationToken) -> Result<(), RunError> {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut ticks = 0_u32;
        loop {
            let room = self.room();
            // In this order, and not by lot, so that a simulation can repeat a run. None of the first three can starve the
            // next: the tick is due ten times a second; jobs that have ended are taken all at once, and new ones only
            // come with events.
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return Ok(()),
                now = tick.tick() => {
                    self.partitions.release(now);
                    self.commit();
                    self.status.tick(self.path.clock.now_ms());
                    // `now` is when the tick was due, which may be long ago on a busy machine.
                    self.figures.tick(&self.path, Instant::now());
                    ticks = ticks.wrapping_add(1);
                    if ticks.is_multiple_of(FIGURES_TICKS) {
                        self.figures(now);
                    }
                }
                Some(ended) = self.jobs.join_next_with_id() => self.end_all(ended)?,
                events = self.consumer.next(room), if Instant::now() >= self.log_paused_until => match events {
                    Ok(events) => self.handle_all(events),
                    Err(LogError::Unavailable(cause)) => {
                        tracing::warn!(cause, "log unavailable");
                        self.path.metrics.infrastructure_error("log");
                        // Not a sleep: attempts end and revocations are answered in the meantime.
                        self.log_paused_until = Instant::now() + LOG_PAUSE;
                    }
                    Err(fatal @ LogError::Fatal(_)) => return Err(fatal.into()),
                },
            }
        }
    }

    /// Ends in order: no new work, waiting ends, attempts get their grace, commit, give up ownership. Rebalances go on
    /// meanwhile; the rest of the group must not wait for us.
    async fn wind_up(mut self) {
        let grace_until = Instant::now() + self.path.config.shutdown_grace;
        self.partitions.cancel_all();
        let mut tick = tokio::time::interval(TICK);
        let mut reading = true;
        while !self.jobs.is_empty() && Instant::now() < grace_until {
            // The order of `take`.
            tokio::select! {
                biased;
                now = tick.tick() => {
                    self.partitions.release(now);
                    self.commit();
                }
                // A panic here changes nothing: the record stays unfinished.
                Some(ended) = self.jobs.join_next_with_id() => drop(self.end(ended)),
                events = self.consumer.next(0), if reading && Instant::now() >= self.log_paused_until => match events {
                    Ok(events) => {
                        self.handle_all(events);
                        self.partitions.cancel_all();
                    }
                    Err(LogError::Unavailable(_)) => self.log_paused_until = Instant::now() + LOG_PAUSE,
                    Err(LogError::Fatal(_)) => reading = false,
                },
            }
        }
        if !self.jobs.is_empty() {
            let attempts = self.jobs.len();
            tracing::warn!(attempts, "grace is over, attempts are given up");
            self.jobs.abort_all();
        }
        self.consumer
            .close(self.partitions.watermarks(), CLOSE_DEADLINE)
            .await;
    }

    /// Bounds of each partition, with as many as are owned now.
    fn bounds(&self) -> Bounds {
        Bounds::new(&self.path.config, self.partitions.count(), self.timeout_max)
    }

    /// What is in work. Deliveries that only wait for their last seconds have a budget of their own.
    fn load(&self) -> Load {
        Load {
            deliveries: self.jobs.len().saturating_sub(self.path.held.count()),
            bytes: self.in_flight_bytes,
        }
    }

    fn room(&self) -> Room {
        let config = &self.path.config;
        let max = Load {
            deliveries: config.in_flight_max,
            bytes: config.in_flight_bytes_max,
        };
        let size = Size {
            fan_out_max: self.fan_out_max,
            bytes: self.record_bytes,
        };
        let records = window::spare(max, self.load(), size).min(BATCH_MAX);
        let mut room = Room::new(records);
        let bounds = self.bounds();
        for (partition, load, window) in self.partitions.loads() {
            // Held deliveries do not count here either: they are due soon, and their budget is the process's.
            let load = load.without(self.path.held.of(partition));
            let spare = bounds.spare(load, window, size);
            if spare < records {
                room.limit(partition, spare);
            }
        }
        room
    }

    fn handle_all(&mut self, events: Vec<Event>) {
        for event in events {
            match event {
                Event::Assigned { partition, epoch } => {
                    tracing::info!(partition, epoch = epoch.0, "partition assigned");
                    self.partitions.assign(partition, epoch);
                }
                Event::Revoked(revoked) => self.revoke(revoked),
                Event::Record(record) => self.receive(record),
            }
        }
    }

    fn revoke(&mut self, revoked: Revoked) {
        for (partition, epoch) in &revoked.partitions {
            tracing::info!(
                partition,
                epoch = epoch.0,
                lost = revoked.lost,
                "partition revoked"
            );
        }
        let now = Instant::now();
        self.partitions.revoke(revoked, now + REVOKE_PATIENCE);
        self.partitions.release(now);
    }

    fn receive(&mut self, record: Received) {
        self.figures.received(&record, self.path.clock.now_ms());
        // Grows at once and shrinks slowly, so that a batch after a large record is small.
        let shrunk = self.record_bytes - self.record_bytes / 64;
        self.record_bytes = record.value.len().max(shrunk).max(1);
        match self.deliveries(&record) {
            Ok(deliveries) => {
                let open = u32::try_from(deliveries.len()).unwrap_or(u32::MAX);
                let bytes = deliveries.first().map_or(0, |it| it.webhook.body.len());
                let Some(owned) = self.partitions.receive(&record, open, bytes) else {
                    return;
                };
                let trace = publish::trace_of(&record.headers);
                for delivery in deliveries {
                    let path = Arc::clone(&self.path);
                    let waiting = Waiting::default();
                    let open = Open {
                        ticket: ticket(&record, bytes),
                        delivery_id: delivery.webhook.delivery_id.clone(),
                        destination: delivery.destination.clone(),
                        waiting: waiting.clone(),
                    };
                    let mut job = Job {
                        delivery,
                        place: Place::of(&record),
                        trace: trace.clone(),
                        owned: owned.clone(),
                        waiting,
                    };
                    self.spawn(open, async move {
                        let result = process::process(&path, &mut job).await;
                        process::tell(&job, &result);
                        result
                    });
                }
            }
            Err(error) => {
                let Some(owned) = self.partitions.receive(&record, 1, record.value.len()) else {
                    return;
                };
                let (path, cause) = (Arc::clone(&self.path), error.to_string());
                tracing::warn!(
                    topic = record.topic.suffix(),
                    partition = record.partition,
                    offset = record.offset,
                    cause,
                    "record can not be decoded, dead-lettered raw"
                );
                let open = Open {
                    ticket: ticket(&record, record.value.len()),
                    delivery_id: String::new(),
                    destination: String::new(),
                    waiting: Waiting::default(),
                };
                self.spawn(open, async move {
                    process::undecodable(&path, &record, &cause, &owned).await
                });
            }
        }
    }

    /// The deliveries that a record asks for: one of each route's destinations, or the one that waited in a tier.
    fn deliveries(&self, record: &Received) -> Result<Vec<Delivery>, DecodeError> {
        match record.topic {
            Topic::Delay(_) => Ok(vec![self.path.codec.decode_delivery(&record.value)?]),
            Topic::Webhooks | Topic::DeadLetters => {
                let webhook = self.path.codec.decode_webhook(&record.value)?;
                let to =
                    routes::destinations(&self.path.routes, &webhook.source, &webhook.event_type);
                if to.is_empty() {
                    self.path.metrics.unrouted(&webhook.source);
                    tracing::info!(
                        source = webhook.source,
                        delivery_id = webhook.delivery_id,
                        event_type = webhook.event_type,
                        "no route, nothing to deliver"
                    );
                }
                Ok(to
                    .into_iter()
                    .map(|to| Delivery::first(webhook.clone(), to))
                    .collect())
            }
        }
    }

    fn spawn(
        &mut self,
        open: Open,
        job: impl Future<Output = Result<Finished, Infra>> + std::marker::Send + 'static,
    ) {
        self.in_flight_bytes = self.in_flight_bytes.saturating_add(open.ticket.bytes);
        let id = self.jobs.spawn(job).id();
        self.open.insert(id, open);
    }

    /// Ends a job, and all others that have ended in the meantime.
    fn end_all(&mut self, ended: Ended) -> Result<(), RunError> {
        self.end(ended)?;
        while let Some(ended) = self.jobs.try_join_next_with_id() {
            self.end(ended)?;
        }
        Ok(())
    }

    fn end(&mut self, ended: Ended) -> Result<(), RunError> {
        let (id, result) = match ended {
            Ok((id, result)) => (id, Ok(result)),
            Err(error) => (error.id(), Err(error)),
        };
        let Some(open) = self.open.remove(&id) else {
            return Ok(());
        };
        self.in_flight_bytes = self.in_flight_bytes.saturating_sub(open.ticket.bytes);
        let finished = matches!(result, Ok(Ok(_)));
        // 5: only now is the record's offset finished.
        self.partitions.end(open.ticket, finished);
        match result {
            Ok(Ok(_) | Err(Infra::Abandoned)) => Ok(()),
            Ok(Err(error)) => {
                // Not finished, so nothing is lost: the watermark stays below it until the record is read again.
                tracing::error!(%error, ticket = ?open.ticket, "record can not be worked on");
                Ok(())
            }
            Err(error) => Err(RunError::Panicked(error.to_string())),
        }
    }

    fn commit(&mut self) {
        // 6
        let moved = self.partitions.take_moved();
        if !moved.is_empty() {
            self.consumer.commit(moved);
        }
    }

    fn figures(&mut self, now: Instant) {
        let owned = self.partitions.count();
        self.status.partitions_owned.store(owned, Ordering::Relaxed);
        self.status
            .in_flight
            .store(self.jobs.len(), Ordering::Relaxed);
        let in_flight = Load {
            deliveries: self.jobs.len(),
            bytes: self.in_flight_bytes,
        };
        self.path.metrics.load(in_flight, owned);
        self.path.metrics.asking(self.path.asking.limit());
        let positions = self.consumer.positions();
        self.figures.lags(&self.path, &positions);
        self.figures.clock(&self.path, now);
        let bounds = self.bounds();
        let news = self
            .figures
            .partitions(&self.path, &self.partitions, &bounds, now);
        for news in news {
            figures::tell(news, self.open.values());
        }
    }
}

fn ticket(record: &Received, bytes: usize) -> Ticket {
    Ticket {
        topic: record.topic,
        partition: record.partition,
        offset: record.offset,
        epoch: record.epoch,
        bytes,
    }
}

type Ended = Result<(Id, Result<Finished, Infra>), JoinError>;

// === impl Status ===

impl Status {
    /// Partitions of this process, as of about a second ago.
    pub fn partitions_owned(&self) -> usize {
        self.partitions_owned.load(Ordering::Relaxed)
    }

    /// Deliveries in work, as of about a second ago.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// When the loop went round last, milliseconds since the Unix epoch; 0 before the first time.
    pub fn last_tick_ms(&self) -> i64 {
        self.last_tick_ms.load(Ordering::Relaxed)
    }

    fn tick(&self, now_ms: i64) {
        self.last_tick_ms.store(now_ms, Ordering::Relaxed);
    }
}
