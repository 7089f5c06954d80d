//! One suite for every implementation of the log: each promise of the [crate] is a function that panics when it is broken.
//!
//! An implementation brings a [`Harness`] and runs the suite as one test a promise:
//!
//! ```text
//! event_log::conformance_suite!(MyHarness::new().await);
//! ```
//!
//! Every wait has a deadline, [`Harness::patience`]; nothing sleeps in the hope that something has happened meanwhile.

mod delay;
mod member;
mod ownership;
mod produce;
mod reading;

pub use delay::{delay_is_never_early_and_fifo, main_and_delay_share_the_room};
pub use member::Harness;
pub use ownership::{
    committed_at_close, committed_at_revocation, delay_follows_ownership, epochs_grow,
    goes_on_at_the_watermark, never_starts_at_the_end, old_epochs_commit_nothing,
    one_consumer_where_only_one_may,
};
pub use produce::{
    acknowledged_is_readable, any_bytes_come_back, busy_is_said_at_once,
    derived_records_have_a_reserve, dropped_produce_harms_nothing, key_decides_the_partition,
    ready_and_flush, too_large_is_refused,
};
pub use reading::{
    a_full_partition_waits_alone, dropping_next_loses_nothing, order_and_no_loss, pages, positions,
    room_is_respected,
};

/// Makes a `#[tokio::test]` of every promise; the argument is evaluated in each and gives a [`Harness`].
#[macro_export]
macro_rules! conformance_suite {
    ($harness:expr) => {
        $crate::conformance_suite!(@each $harness;
            acknowledged_is_readable any_bytes_come_back busy_is_said_at_once
            derived_records_have_a_reserve dropped_produce_harms_nothing key_decides_the_partition ready_and_flush
            too_large_is_refused a_full_partition_waits_alone dropping_next_loses_nothing order_and_no_loss pages positions
            room_is_respected committed_at_close committed_at_revocation delay_follows_ownership
            epochs_grow goes_on_at_the_watermark never_starts_at_the_end
            old_epochs_commit_nothing one_consumer_where_only_one_may
            delay_is_never_early_and_fifo main_and_delay_share_the_room
        );
    };
    (@each $harness:expr; $($promise:ident)*) => {
        $(
            #[tokio::test]
            async fn $promise() {
                $crate::conformance::$promise(&$harness).await;
            }
        )*
    };
}
