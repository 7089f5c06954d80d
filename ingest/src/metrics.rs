//! What ingest counts. Labels are configured names and fixed words only, never anything that a sender chooses.

use opentelemetry::{
    KeyValue, global,
    metrics::{Counter, Histogram, UpDownCounter},
};
use std::time::Duration;

/// Instruments of the global meter. Made after the process's telemetry was started, else they count for nobody.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    requests: Counter<u64>,
    ack_seconds: Histogram<f64>,
    body_bytes: Histogram<u64>,
    produce_inflight: UpDownCounter<i64>,
    in_flight_bytes: UpDownCounter<i64>,
    connections: UpDownCounter<i64>,
    connections_refused: Counter<u64>,
    secret_match: Counter<u64>,
}

/// Something that is under way; counted until it is dropped, also when its request is given up.
#[derive(Debug)]
pub(crate) struct InFlight {
    gauge: UpDownCounter<i64>,
    amount: i64,
}

// === impl Metrics ===

impl Metrics {
    pub(crate) fn new() -> Self {
        let meter = global::meter("fencepost");
        Self {
            requests: meter
                .u64_counter("fencepost_ingest_requests")
                .with_description("Requests by source and outcome")
                .build(),
            ack_seconds: meter
                .f64_histogram("fencepost_ingest_ack")
                .with_unit("s")
                .with_description("From the arrival of the head to the answer, accepted webhooks")
                .build(),
            body_bytes: meter
                .u64_histogram("fencepost_ingest_body")
                .with_unit("By")
                .with_description("Size of verified bodies")
                .build(),
            produce_inflight: meter
                .i64_up_down_counter("fencepost_ingest_produce_inflight")
                .with_description("Webhooks that wait for the log's acknowledgement")
                .build(),
            in_flight_bytes: meter
                .i64_up_down_counter("fencepost_ingest_in_flight")
                .with_unit("By")
                .with_description("Bytes of bodies held")
                .build(),
            connections: meter
                .i64_up_down_counter("fencepost_ingest_connections")
                .with_description("Open connections")
                .build(),
            connections_refused: meter
                .u64_counter("fencepost_ingest_connections_refused")
                .with_description("Connections closed before a request was read, by reason")
                .build(),
            secret_match: meter
                .u64_counter("fencepost_ingest_secret_match")
                .with_description("Verified requests by source and slot of the secret that fitted")
                .build(),
        }
    }

    /// One answered request.
    pub(crate) fn answered(&self, source: &str, outcome: &'static str) {
        let labels = [
            KeyValue::new("source", source.to_owned()),
            KeyValue::new("outcome", outcome),
        ];
        self.requests.add(1, &labels);
    }

    /// One webhook that is in the log.
    pub(crate) fn acknowledged(&self, source: &str, took: Duration) {
        let labels = [KeyValue::new("source", source.to_owned())];
        self.ack_seconds.record(took.as_secs_f64(), &labels);
    }

    /// One body that was signed with the secret in `slot`.
    pub(crate) fn verified(&self, source: &str, slot: usize, bytes: usize) {
        let source = KeyValue::new("source", source.to_owned());
        let slot = KeyValue::new("slot", i64::try_from(slot).unwrap_or(i64::MAX));
        self.body_bytes
            .record(bytes as u64, std::slice::from_ref(&source));
        self.secret_match.add(1, &[source, slot]);
    }

    pub(crate) fn producing(&self) -> InFlight {
        InFlight::new(&self.produce_inflight)
    }

    pub(crate) fn connection(&self) -> InFlight {
        InFlight::new(&self.connections)
    }

    /// One connection that is not served, or no longer.
    pub(crate) fn connection_refused(&self, reason: &'static str) {
        self.connections_refused
            .add(1, &[KeyValue::new("reason", reason)]);
    }

    pub(crate) fn holding_bytes(&self) -> InFlight {
        InFlight {
            gauge: self.in_flight_bytes.clone(),
            amount: 0,
        }
    }
}

// === impl InFlight ===

impl InFlight {
    fn new(gauge: &UpDownCounter<i64>) -> Self {
        let mut one = Self {
            gauge: gauge.clone(),
            amount: 0,
        };
        one.add(1);
        one
    }

    pub(crate) fn add(&mut self, amount: i64) {
        self.gauge.add(amount, &[]);
        self.amount += amount;
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.gauge.add(-self.amount, &[]);
    }
}
