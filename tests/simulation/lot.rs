//! What a seed decides: numbers drawn in a fixed order.

use runtime::Dice;

/// Draws for one purpose. Each purpose has a lot of its own, so that a draw more for one does not move all others.
#[derive(Clone, Debug)]
pub(crate) struct Lot(Dice);

// === impl Lot ===

impl Lot {
    /// The lot of a seed for the purpose number `purpose`.
    pub(crate) fn new(seed: u64, purpose: u64) -> Self {
        Self(Dice::seeded(seed.wrapping_mul(1_000).wrapping_add(purpose)))
    }

    /// The dice itself, for the product.
    pub(crate) fn dice(&self) -> Dice {
        self.0.clone()
    }

    /// From 0 to `below` (excluded); 0 when that is 0.
    pub(crate) fn below(&self, below: usize) -> usize {
        let drawn = u64::from_be_bytes(self.0.bytes());
        usize::try_from(drawn % (below.max(1) as u64)).expect("below a usize")
    }

    /// From `low` to `high`, both included.
    pub(crate) fn between(&self, low: i64, high: i64) -> i64 {
        let span = usize::try_from(high - low + 1).expect("low is not above high");
        low + i64::try_from(self.below(span)).expect("below an i64")
    }

    /// True with this probability.
    pub(crate) fn chance(&self, probability: f64) -> bool {
        self.0.fraction() < probability
    }

    /// One of them.
    pub(crate) fn pick<T: Clone>(&self, of: &[T]) -> T {
        of[self.below(of.len())].clone()
    }

    /// Any bytes.
    pub(crate) fn bytes(&self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.0.bytes::<1>()[0]).collect()
    }
}
