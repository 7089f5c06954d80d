//! The whole pipeline: what it sustains, how long a webhook takes at half of that, and what memory it needs.

use super::{
    Bench,
    load::{self, Answered},
    pace::{self, STEADY},
    receiver::Arrival,
    report::{Pipeline, Resident},
    rig::{GRACE, Knobs, Rig},
};
use crate::child::Child;
use anyhow::ensure;
use std::{collections::HashMap, net::SocketAddr};

/// Latency is measured at this part of the sustained rate.
const PART: f64 = 0.5;
/// Webhooks that go before, until everybody has joined and connected.
const WARM_UP: u32 = 200;

/// Measures one after the other on the same processes.
pub(crate) async fn measure(bench: &mut Bench) -> anyhow::Result<Pipeline> {
    let knobs = Knobs::new(Some(bench.receiver.address()), bench.concurrency());
    let mut rig = Rig::new(&bench.ground, "pipeline", knobs).await?;
    let mut children = rig.pipeline().await?;
    let hooks = rig.hooks();
    drive(bench, hooks, WARM_UP, None).await?;

    let count = bench.args.webhooks;
    let (_, arrivals) = drive(bench, hooks, count, None).await?;
    let times = arrivals.iter().map(|arrival| arrival.at).collect();
    let sustained = pace::per_second(times, STEADY);
    ensure!(sustained > 0.0, "the pipeline delivers nothing");

    let per_second = sustained * PART;
    let (answered, arrivals) = drive(bench, hooks, count, Some(per_second)).await?;
    let latencies_ms = latencies_ms(&answered, &arrivals);
    ensure!(
        latencies_ms.len() == answered.len(),
        "{} webhooks were accepted and {} of them delivered in time",
        answered.len(),
        latencies_ms.len()
    );
    let resident = children.iter().filter_map(resident).collect();
    for child in &mut children {
        child.stop().await?;
    }
    Ok(Pipeline {
        sustained,
        per_second,
        latencies_ms,
        resident,
    })
}

/// Sends a slice and waits until what was accepted has arrived.
async fn drive(
    bench: &mut Bench,
    hooks: SocketAddr,
    count: u32,
    per_second: Option<f64>,
) -> anyhow::Result<(Vec<Answered>, Vec<Arrival>)> {
    let slice = bench.slice(count);
    bench.receiver.forget();
    let mut numbers = slice.numbers();
    let deadline = slice.deadline();
    let webhooks = slice.webhooks();
    let connections = slice.concurrency;
    let answered = load::send(
        &webhooks,
        hooks,
        connections,
        numbers.clone(),
        per_second,
        deadline,
    )
    .await?;
    // Numbers are sent in order, so those that the time was too short for are the last ones.
    numbers.end = numbers.start + u32::try_from(answered.len())?;
    let arrivals = bench.receiver.take(&numbers, deadline + GRACE).await?;
    Ok((answered, arrivals))
}

/// From the time at which a webhook was to be sent to the time at which the receiver had read it.
pub(super) fn latencies_ms(answered: &[Answered], arrivals: &[Arrival]) -> Vec<f64> {
    let arrived: HashMap<u32, _> = arrivals
        .iter()
        .rev()
        .map(|arrival| (arrival.number, arrival.at))
        .collect();
    let latency = |answered: &Answered| {
        let at = arrived.get(&answered.number)?;
        let took = at.saturating_duration_since(answered.begun);
        Some(took.as_secs_f64() * 1_000.0)
    };
    answered.iter().filter_map(latency).collect()
}

fn resident(child: &Child) -> Option<Resident> {
    child.memory().map(|memory| Resident {
        role: child.role(),
        memory,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::time::Instant;

    #[test]
    fn the_first_arrival_counts_and_a_lost_one_is_missed() {
        let begun = Instant::now();
        let at = |ms| begun + Duration::from_millis(ms);
        let answered = [1, 2].map(|number| Answered {
            number,
            begun,
            at: begun,
        });
        let arrivals = [(1, 20), (1, 900)].map(|(number, ms)| Arrival { number, at: at(ms) });
        assert_eq!(latencies_ms(&answered, &arrivals), [20.0]);
    }
}
