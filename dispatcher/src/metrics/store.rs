//! What the store's client tells of itself.

use dedup_store::Load;
use opentelemetry::global;

/// Shows, from now on, how busy the store's client is.
pub fn observe_store(load: impl Fn() -> Load + Clone + Send + Sync + 'static) {
    let meter = global::meter("fencepost");
    let gauge = |name, description, value: fn(Load) -> u64| {
        let load = load.clone();
        // The meter keeps the callback; the instrument itself says nothing more.
        let _gauge = meter
            .u64_observable_gauge(name)
            .with_description(description)
            .with_callback(move |observer| observer.observe(value(load()), &[]))
            .build();
    };
    gauge(
        "fencepost_store_in_flight",
        "statements that the store has not answered yet",
        |load| load.in_flight as u64,
    );
    gauge(
        "fencepost_store_waiting",
        "statements that wait because `store.in_flight_max` are in flight",
        |load| load.waiting as u64,
    );
    let _counter = meter
        .u64_observable_counter("fencepost_store_reissued")
        .with_description("statements sent again, not begun or of unknown outcome before")
        .with_callback(move |observer| observer.observe(load().reissued, &[]))
        .build();
}
