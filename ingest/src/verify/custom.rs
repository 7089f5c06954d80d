//! What the verifiers share that the table of rules has no words for.

use super::Refusal;
use runtime::Secret;

/// The first secret for which `fits` holds and whose `not_after` has not passed at `now_ms`. Looks at all, whatever fits.
///
/// # Errors
/// `Mismatch` when there is none.
pub(super) fn slot_of(
    secrets: &[Secret],
    now_ms: i64,
    fits: impl Fn(&[u8]) -> bool,
) -> Result<usize, Refusal> {
    let mut slot = None;
    for (at, secret) in secrets.iter().enumerate() {
        let fits = secret.with(|text| fits(text)) && secret.usable_at(now_ms);
        slot = slot.or_else(|| fits.then_some(at));
    }
    slot.ok_or(Refusal::Mismatch)
}

#[cfg(test)]
pub(super) mod testing;
