//! What the spool counts.

use super::{Shared, level::Level};
use opentelemetry::{global, metrics::Counter};
use std::sync::Weak;

#[derive(Clone, Debug)]
pub(super) struct Metrics {
    pub(super) spooled: Counter<u64>,
    pub(super) drained: Counter<u64>,
    pub(super) full: Counter<u64>,
    pub(super) set_aside: Counter<u64>,
}

// === impl Metrics ===

impl Metrics {
    pub(super) fn new() -> Self {
        let meter = global::meter("fencepost");
        let counter = |name, description| {
            meter
                .u64_counter(name)
                .with_description(description)
                .build()
        };
        Self {
            spooled: counter(
                "fencepost_ingest_spooled",
                "Webhooks written to the spool because the log did not take them",
            ),
            drained: counter(
                "fencepost_ingest_spool_drained",
                "Webhooks that went from the spool to the log",
            ),
            full: counter(
                "fencepost_ingest_spool_refused",
                "Webhooks refused because the spool was full",
            ),
            set_aside: counter(
                "fencepost_ingest_spool_set_aside",
                "Times that the log refused a spooled webhook as too large",
            ),
        }
    }
}

/// Shows, for as long as the spool is open, what it holds.
pub(super) fn observe(shared: &Weak<Shared>) {
    let meter = global::meter("fencepost");
    let gauge = |name, unit, description, value: fn(&Level, i64) -> u64| {
        let shared = Weak::clone(shared);
        // The meter keeps the callback; the instrument itself says nothing more.
        let _gauge = meter
            .u64_observable_gauge(name)
            .with_unit(unit)
            .with_description(description)
            .with_callback(move |observer| {
                if let Some(shared) = shared.upgrade() {
                    observer.observe(value(&shared.level(), shared.clock.now_ms()), &[]);
                }
            })
            .build();
    };
    gauge(
        "fencepost_ingest_spool_records",
        "",
        "Webhooks in the spool that wait for the log",
        |level, _| level.waiting.records,
    );
    gauge(
        "fencepost_ingest_spool",
        "By",
        "Bytes that the spool holds, of bytes_max",
        |level, _| level.waiting.bytes.saturating_add(level.aside.bytes),
    );
    gauge(
        "fencepost_ingest_spool_oldest",
        "s",
        "Age of the webhook that has been waiting in the spool for longest",
        |level, now_ms| {
            let since = |oldest_ms| now_ms.saturating_sub(oldest_ms).max(0).unsigned_abs() / 1_000;
            level.oldest_ms.map_or(0, since)
        },
    );
    gauge(
        "fencepost_ingest_spool_aside_records",
        "",
        "Webhooks that the log refused as too large, kept in the spool",
        |level, _| level.aside.records,
    );
}
