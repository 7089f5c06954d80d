//! The only place where what a dispatcher leaves to chance comes from: jitter and claim tokens.
//!
//! Decisions take the drawn value as an argument; shells hold a [`Dice`]. Simulations throw one that a seed loads, so
//! that the same seed makes the same run.

use rand::{Rng, RngExt, SeedableRng, rngs::StdRng};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Random values. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Dice {
    seeded: Option<Arc<Mutex<StdRng>>>,
}

// === impl Dice ===

impl Dice {
    /// The machine's randomness: nobody can tell what comes next.
    pub fn system() -> Self {
        Self::default()
    }

    /// Always the same sequence; clones draw from it together. For simulations only.
    pub fn seeded(seed: u64) -> Self {
        Self {
            seeded: Some(Arc::new(Mutex::new(StdRng::seed_from_u64(seed)))),
        }
    }

    /// A number from 0 (included) to 1 (excluded).
    pub fn fraction(&self) -> f64 {
        match self.lock() {
            Some(mut rng) => rng.random_range(0.0..1.0),
            None => rand::random_range(0.0..1.0),
        }
    }

    /// Bytes that are hard to guess and never come twice.
    pub fn bytes<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        match self.lock() {
            Some(mut rng) => rng.fill_bytes(&mut bytes),
            None => rand::fill(&mut bytes),
        }
        bytes
    }

    fn lock(&self) -> Option<MutexGuard<'_, StdRng>> {
        let seeded = self.seeded.as_ref();
        seeded.map(|rng| rng.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_makes_the_sequence_and_the_machine_makes_none() {
        let draws = |dice: Dice| -> ([u8; 10], Vec<f64>) {
            let other = dice.clone();
            (dice.bytes(), (0..5).map(|_| other.fraction()).collect())
        };
        let first = draws(Dice::seeded(7));
        assert_eq!(first, draws(Dice::seeded(7)));
        assert_ne!(first, draws(Dice::seeded(8)));
        assert_ne!(draws(Dice::system()), draws(Dice::system()));
        assert!(first.1.iter().all(|drawn| (0.0..1.0).contains(drawn)));
    }
}
