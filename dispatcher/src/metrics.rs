//! Every instrument of the dispatcher and its attributes, in one place. Delivery ids are never attributes.

mod loads;
mod store;

pub use loads::PartitionFigures;
pub use store::observe_store;

use crate::window::Load;
use loads::Loads;
use opentelemetry::{
    KeyValue, global,
    metrics::{Counter, Gauge, Histogram},
};
use schemas::{OutcomeKind, Reason, Topic};

/// The dispatcher's instruments.
#[derive(Clone, Debug)]
pub struct Metrics {
    claims: Counter<u64>,
    attempts: Counter<u64>,
    attempt_seconds: Histogram<f64>,
    delivered_seconds: Histogram<f64>,
    retries: Counter<u64>,
    deferred: Counter<u64>,
    gate_state: Gauge<u64>,
    gate_limit: Gauge<u64>,
    dead_letters: Counter<u64>,
    lease_lost: Counter<u64>,
    unrouted: Counter<u64>,
    infrastructure_errors: Counter<u64>,
    in_flight: Gauge<u64>,
    claims_at_once: Gauge<u64>,
    destination_paused: Gauge<u64>,
    partitions_owned: Gauge<u64>,
    lag: Gauge<i64>,
    loads: Loads,
}

// === impl Metrics ===

impl Metrics {
    /// Instruments of the process's meter provider.
    pub fn new() -> Self {
        let meter = global::meter("fencepost");
        let counter = |name, description| {
            meter
                .u64_counter(name)
                .with_description(description)
                .build()
        };
        let gauge = |name, description| meter.u64_gauge(name).with_description(description).build();
        let seconds = |name, description| {
            meter
                .f64_histogram(name)
                .with_unit("s")
                .with_description(description)
                .build()
        };
        Self {
            claims: counter("fencepost_claims", "answers of the store to claims"),
            attempts: counter("fencepost_delivery_attempts", "attempts by outcome"),
            attempt_seconds: seconds("fencepost_attempt_duration", "duration of attempts"),
            delivered_seconds: seconds("fencepost_delivery_e2e", "from receipt to 2xx"),
            retries: counter("fencepost_retries_scheduled", "next hops by delay tier"),
            deferred: counter(
                "fencepost_deliveries_deferred",
                "put off without an attempt",
            ),
            gate_state: gauge(
                "fencepost_gate_state",
                "0 lets deliveries through, 1 half-open, 2 open breaker, 3 the receiver asked for a pause",
            ),
            gate_limit: gauge(
                "fencepost_gate_limit",
                "attempts at once that a destination gets now",
            ),
            dead_letters: counter("fencepost_dead_letters", "deliveries given up, by reason"),
            lease_lost: counter(
                "fencepost_lease_lost",
                "claims lost while we worked on them",
            ),
            unrouted: counter(
                "fencepost_webhooks_unrouted",
                "webhooks without a destination",
            ),
            infrastructure_errors: counter(
                "fencepost_infrastructure_errors",
                "failed calls of the log or the store, tried again",
            ),
            in_flight: gauge("fencepost_in_flight", "deliveries in work"),
            claims_at_once: gauge(
                "fencepost_claims_at_once",
                "claims that may be asked of the store at once",
            ),
            destination_paused: gauge(
                "fencepost_destination_paused",
                "1 while a destination is paused, by cause",
            ),
            partitions_owned: gauge("fencepost_partitions_owned", "partitions of this process"),
            lag: meter
                .i64_gauge("fencepost_partition_lag")
                .with_description("records behind the end of the log")
                .build(),
            loads: Loads::new(&meter),
        }
    }

    /// A claim was answered: `claimed`, `took_over`, `busy`, `superseded` or `ended`.
    pub fn claim(&self, result: &'static str) {
        self.claims.add(1, &[KeyValue::new("result", result)]);
    }

    /// An attempt has ended.
    pub fn attempt(&self, destination: &str, outcome: OutcomeKind, seconds: f64) {
        let destination = KeyValue::new("destination", destination.to_owned());
        self.attempt_seconds
            .record(seconds, std::slice::from_ref(&destination));
        self.attempts.add(
            1,
            &[destination, KeyValue::new("outcome", outcome.as_str())],
        );
    }

    /// A delivery is completed.
    pub fn delivered(&self, destination: &str, seconds: f64) {
        self.delivered_seconds.record(
            seconds,
            &[KeyValue::new("destination", destination.to_owned())],
        );
    }

    /// A retry stands in a tier.
    pub fn retry(&self, destination: &str, tier: Topic) {
        let tier = KeyValue::new("tier", tier.suffix());
        self.retries.add(
            1,
            &[KeyValue::new("destination", destination.to_owned()), tier],
        );
    }

    /// A destination's gate has changed.
    pub fn gate(&self, destination: &str, state: u64, limit: usize) {
        let destination = [KeyValue::new("destination", destination.to_owned())];
        self.gate_state.record(state, &destination);
        self.gate_limit.record(limit as u64, &destination);
    }

    /// A delivery was put off: a cause of the gate, `paused` or `busy`.
    pub fn deferred(&self, destination: &str, cause: &'static str) {
        let cause = KeyValue::new("cause", cause);
        self.deferred.add(
            1,
            &[KeyValue::new("destination", destination.to_owned()), cause],
        );
    }

    /// A delivery was given up.
    pub fn dead_letter(&self, destination: &str, reason: Reason) {
        let reason = KeyValue::new("reason", reason.as_str());
        self.dead_letters.add(
            1,
            &[KeyValue::new("destination", destination.to_owned()), reason],
        );
    }

    /// A claim was lost while we worked on it.
    pub fn lease_lost(&self) {
        self.lease_lost.add(1, &[]);
    }

    /// A webhook has no destination.
    pub fn unrouted(&self, source: &str) {
        self.unrouted
            .add(1, &[KeyValue::new("source", source.to_owned())]);
    }

    /// A call of `log` or `store` failed and is tried again.
    pub fn infrastructure_error(&self, port: &'static str) {
        self.infrastructure_errors
            .add(1, &[KeyValue::new("port", port)]);
    }

    /// A destination is paused for this cause, or is no more: `failing`, `gone` or `manual`.
    pub fn paused(&self, destination: &str, cause: &'static str, paused: bool) {
        let destination = KeyValue::new("destination", destination.to_owned());
        self.destination_paused.record(
            u64::from(paused),
            &[destination, KeyValue::new("cause", cause)],
        );
    }

    /// Deliveries in work, bytes of their bodies, and partitions owned, now.
    pub fn load(&self, in_flight: Load, partitions_owned: usize) {
        self.in_flight.record(in_flight.deliveries as u64, &[]);
        self.loads.in_flight_bytes(in_flight.bytes);
        self.partitions_owned.record(partitions_owned as u64, &[]);
    }

    /// Claims that may be asked of the store at once, now.
    pub fn asking(&self, limit: usize) {
        self.claims_at_once.record(limit as u64, &[]);
    }

    /// What of a partition is in work, now.
    pub fn partition(&self, partition: u32, figures: PartitionFigures) {
        self.loads.partition(partition, figures);
    }

    /// Our clock's lead over the log's.
    pub fn clock_skew(&self, seconds: f64) {
        self.loads.clock_skew(seconds);
    }

    /// Our clock was set.
    pub fn clock_jumped(&self) {
        self.loads.clock_jumped();
    }

    /// How far reading is behind in a topic's partition.
    pub fn lag(&self, topic: Topic, partition: u32, records: i64) {
        let partition = KeyValue::new("partition", i64::from(partition));
        self.lag.record(
            records,
            &[KeyValue::new("topic", topic.suffix()), partition],
        );
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

/// What is not dialled. A part of its own: it is counted where requests are made, which knows nothing of claims and partitions.
#[derive(Clone, Debug)]
pub struct Egress {
    blocked: Counter<u64>,
}

// === impl Egress ===

impl Egress {
    /// The instrument of the process's meter provider.
    pub fn new() -> Self {
        Self {
            blocked: global::meter("fencepost")
                .u64_counter("fencepost_egress_blocked")
                .with_description("attempts at an address that may not be dialled, by its kind")
                .build(),
        }
    }

    /// An attempt was not made because of the kind of an address.
    pub fn blocked(&self, destination: &str, class: &'static str) {
        let reason = KeyValue::new("reason", class.replace([' ', '-'], "_"));
        let destination = KeyValue::new("destination", destination.to_owned());
        self.blocked.add(1, &[destination, reason]);
    }
}

impl Default for Egress {
    fn default() -> Self {
        Self::new()
    }
}
