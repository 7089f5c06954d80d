//! Instruments of what is in work, by partition, and of the clock.

use crate::window::Load;
use opentelemetry::{
    KeyValue,
    metrics::{Counter, Gauge, Meter},
};

/// Gauges that the loop sets about once a second.
#[derive(Clone, Debug)]
pub(super) struct Loads {
    in_flight_bytes: Gauge<u64>,
    partition_in_flight: Gauge<u64>,
    partition_in_flight_bytes: Gauge<u64>,
    partition_window: Gauge<u64>,
    partition_head_age: Gauge<f64>,
    partition_blocked: Gauge<u64>,
    clock_skew: Gauge<f64>,
    clock_jumps: Counter<u64>,
}

/// What of one partition is in work.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PartitionFigures {
    pub load: Load,
    /// Records from the first unfinished one on, of the topic that has most.
    pub window: usize,
    /// For how long the oldest first unfinished record has been that, seconds.
    pub head_age_seconds: f64,
    /// Such a record holds up the partition.
    pub blocked: bool,
}

// === impl Loads ===

impl Loads {
    pub(super) fn new(meter: &Meter) -> Self {
        let gauge = |name, description| meter.u64_gauge(name).with_description(description).build();
        let seconds = |name, description| {
            meter
                .f64_gauge(name)
                .with_unit("s")
                .with_description(description)
                .build()
        };
        Self {
            in_flight_bytes: gauge("fencepost_in_flight_bytes", "bytes of bodies in work"),
            partition_in_flight: gauge(
                "fencepost_partition_in_flight",
                "deliveries of a partition in work",
            ),
            partition_in_flight_bytes: gauge(
                "fencepost_partition_in_flight_bytes",
                "bytes of bodies of a partition in work",
            ),
            partition_window: gauge(
                "fencepost_partition_window",
                "records from the first unfinished one on",
            ),
            partition_head_age: seconds(
                "fencepost_partition_head_age",
                "for how long the first unfinished record has been that",
            ),
            partition_blocked: gauge(
                "fencepost_partition_blocked",
                "1: the first unfinished record holds up its partition",
            ),
            clock_skew: seconds(
                "fencepost_clock_skew",
                "our clock's lead over the log's; negative: it is behind",
            ),
            clock_jumps: meter
                .u64_counter("fencepost_clock_jumps")
                .with_description("our clock was set")
                .build(),
        }
    }

    pub(super) fn in_flight_bytes(&self, bytes: usize) {
        self.in_flight_bytes.record(bytes as u64, &[]);
    }

    pub(super) fn partition(&self, partition: u32, figures: PartitionFigures) {
        let partition = [KeyValue::new("partition", i64::from(partition))];
        let load = figures.load;
        self.partition_in_flight
            .record(load.deliveries as u64, &partition);
        self.partition_in_flight_bytes
            .record(load.bytes as u64, &partition);
        self.partition_window
            .record(figures.window as u64, &partition);
        self.partition_head_age
            .record(figures.head_age_seconds, &partition);
        self.partition_blocked
            .record(u64::from(figures.blocked), &partition);
    }

    pub(super) fn clock_skew(&self, seconds: f64) {
        self.clock_skew.record(seconds, &[]);
    }

    pub(super) fn clock_jumped(&self) {
        self.clock_jumps.add(1, &[]);
    }
}
