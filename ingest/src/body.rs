//! Collects a request's body within its limits, with as little copying as possible.

use crate::{answer::Refused, metrics::InFlight};
use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http_body::Body as _;
use http_body_util::BodyExt;
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::time::{Instant, timeout_at};

/// Bytes of bodies that may be held at once, over all requests.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    used: Arc<AtomicUsize>,
    max: usize,
}

/// One request's share of the budget; given back when dropped.
#[derive(Debug)]
pub(crate) struct Share {
    budget: Budget,
    bytes: usize,
    gauge: InFlight,
}

/// How fast a body has to arrive, on average.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    pub(crate) since: Instant,
    /// Nothing has to have arrived within this time.
    pub(crate) grace: Duration,
    /// Afterwards, so many for each second. Above zero.
    pub(crate) bytes_per_second_min: u64,
}

/// Reads `body` whole. Bytes are counted as they arrive, so that a mere promise of a long body takes nothing from others.
pub(crate) async fn collect(
    mut body: Body,
    bytes_max: usize,
    pace: Pace,
    share: &mut Share,
) -> Result<Bytes, Refused> {
    let promised = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if promised > bytes_max {
        return Err(Refused::TooLarge);
    }
    if !share.would_take(promised) {
        return Err(Refused::Full);
    }
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    loop {
        let next = timeout_at(pace.enough_until(first.len() + rest.len()), body.frame());
        let Some(frame) = next.await.map_err(|_elapsed| Refused::Slow)? else {
            break;
        };
        let Ok(frame) = frame else {
            return Err(Refused::BrokenOff);
        };
        // Trailers say nothing that is signed.
        let Ok(data) = frame.into_data() else {
            continue;
        };
        let so_far = first.len() + rest.len();
        if data.len() > bytes_max - so_far {
            return Err(Refused::TooLarge);
        }
        if !share.take(data.len()) {
            return Err(Refused::Full);
        }
        if so_far == 0 {
            first = data;
        } else {
            if rest.is_empty() {
                rest.reserve(promised.max(so_far + data.len()));
                rest.extend_from_slice(&std::mem::take(&mut first));
            }
            rest.extend_from_slice(&data);
        }
    }
    Ok(if rest.is_empty() {
        first
    } else {
        rest.freeze()
    })
}

// === impl Pace ===

impl Pace {
    /// When more has to have arrived than these `bytes`.
    fn enough_until(&self, bytes: usize) -> Instant {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let millis = bytes.saturating_mul(1_000) / self.bytes_per_second_min.max(1);
        self.since + self.grace + Duration::from_millis(millis)
    }
}

// === impl Budget ===

impl Budget {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            used: Arc::default(),
            max,
        }
    }

    pub(crate) fn share(&self, gauge: InFlight) -> Share {
        Share {
            budget: self.clone(),
            bytes: 0,
            gauge,
        }
    }
}

// === impl Share ===

impl Share {
    fn would_take(&self, bytes: usize) -> bool {
        let used = self.budget.used.load(Ordering::Relaxed);
        used.saturating_add(bytes) <= self.budget.max
    }

    fn take(&mut self, bytes: usize) -> bool {
        let max = self.budget.max;
        let grown = self
            .budget
            .used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(bytes).filter(|used| *used <= max)
            });
        if grown.is_ok() {
            self.bytes += bytes;
            self.gauge.add(i64::try_from(bytes).unwrap_or(i64::MAX));
        }
        grown.is_ok()
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
