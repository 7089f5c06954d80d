//! From points in time to figures: rates, medians, percentiles. Plain values in, plain values out.

use tokio::time::Instant;

/// The part of a slice in which its rate is measured: start and end are left out, since not everything runs then.
pub(crate) const STEADY: (usize, usize) = (10, 90);

/// Things a second between the `from`th and the `to`th percent of the things; 0 when there are too few to tell.
pub(crate) fn per_second(mut times: Vec<Instant>, (from, to): (usize, usize)) -> f64 {
    times.sort_unstable();
    let (first, last) = (times.len() * from / 100, times.len() * to / 100);
    let (Some(begin), Some(end)) = (
        times.get(first),
        times.get(last.min(times.len().saturating_sub(1))),
    ) else {
        return 0.0;
    };
    let seconds = (*end - *begin).as_secs_f64();
    if last <= first || seconds <= 0.0 {
        return 0.0;
    }
    float(last - first) / seconds
}

/// The middle value; the mean of the two in the middle when their number is even, 0 without any.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let at = |index: usize| sorted.get(index).copied().unwrap_or(0.0);
    match sorted.len() {
        0 => 0.0,
        count if count % 2 == 1 => at(count / 2),
        count => f64::midpoint(at(count / 2 - 1), at(count / 2)),
    }
}

/// The value below which `percent` of the values lie; 0 without any.
pub(crate) fn percentile(values: &[f64], percent: usize) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let at = (sorted.len() * percent).div_ceil(100).max(1) - 1;
    sorted.get(at).copied().unwrap_or(0.0)
}

/// `part` of `whole`; 0 of nothing.
pub(crate) fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

/// A count as a number to calculate with.
pub(crate) fn float(count: usize) -> f64 {
    u32::try_from(count).map_or(f64::from(u32::MAX), f64::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_rate_leaves_out_a_slow_start_and_a_slow_end() {
        let begin = Instant::now();
        let mut times: Vec<Instant> = (0..100)
            .map(|at| begin + Duration::from_millis(1_000 + 10 * at))
            .collect();
        times[0] = begin;
        times[99] = begin + Duration::from_secs(60);
        times.reverse();
        assert!((per_second(times, STEADY) - 100.0).abs() < 0.01);
    }

    #[test]
    fn too_little_to_tell_is_no_rate() {
        let now = Instant::now();
        for times in [vec![], vec![now], vec![now; 50]] {
            assert!(per_second(times, STEADY).abs() < f64::EPSILON);
        }
    }

    #[test]
    fn middle_and_percentiles() {
        assert_eq!(median(&[9.0, 1.0, 2.0]).to_bits(), 2.0_f64.to_bits());
        assert_eq!(median(&[4.0, 1.0, 2.0, 9.0]).to_bits(), 3.0_f64.to_bits());
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(percentile(&hundred, 99).to_bits(), 99.0_f64.to_bits());
        assert_eq!(percentile(&[], 99).to_bits(), 0.0_f64.to_bits());
    }
}
