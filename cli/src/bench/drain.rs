//! Delivering: a backlog that lies in the log is delivered, beside the store's own rate and a bare POST loop.

use super::{
    Bench, ROUNDS, limit, limited,
    pace::{self, STEADY},
    receiver::Arrival,
    report::{Compared, Figure},
    rig::{GRACE, Knobs, Rig},
};
use tokio::time::Instant;

/// At least this part of the lowest limit.
const BAR: f64 = 0.6;

/// Measures the three in turn. Deliveries are counted by the receiver, also those of the bare loop.
pub(crate) async fn measure(bench: &mut Bench) -> anyhow::Result<Compared> {
    let knobs = Knobs::new(Some(bench.receiver.address()), bench.concurrency());
    let mut rig = Rig::new(&bench.ground, "drain", knobs).await?;
    let claims_rig = Rig::new(&bench.ground, "claims", knobs).await?;
    let to = bench.receiver.address().to_string();
    let mut claims = Figure::new("store: claim + complete");
    let mut posts = Figure::new("bare POST loop");
    let mut delivered = Figure::new("dispatcher: delivered/s");
    for _ in 0..ROUNDS {
        let slice = bench.slice(bench.args.webhooks);
        let rate = limited(&["claims"], &slice, Some(&claims_rig.file())).await?;
        claims.slices.push(rate.parse()?);

        delivered.slices.push(backlog(bench, &mut rig).await?);

        let slice = bench.slice(bench.args.webhooks);
        bench.receiver.forget();
        limited(&["posts", "--to", &to], &slice, None).await?;
        let numbers = slice.numbers();
        let arrivals = bench.receiver.take(&numbers, Instant::now()).await?;
        posts.slices.push(rate_of(&arrivals));
    }
    Ok(Compared {
        product: delivered,
        limits: vec![claims, posts],
        bar: BAR,
    })
}

/// Fills the log while nobody reads it, then lets a dispatcher drain it; deliveries a second.
async fn backlog(bench: &mut Bench, rig: &mut Rig) -> anyhow::Result<f64> {
    let slice = bench.slice(bench.args.webhooks);
    limit::append(rig.loaded(), &slice).await?;
    bench.receiver.forget();
    let mut dispatcher = rig.dispatcher().await?;
    let deadline = slice.deadline() + GRACE;
    let arrivals = bench.receiver.take(&slice.numbers(), deadline).await?;
    dispatcher.stop().await?;
    Ok(rate_of(&arrivals))
}

fn rate_of(arrivals: &[Arrival]) -> f64 {
    let times = arrivals.iter().map(|arrival| arrival.at).collect();
    pace::per_second(times, STEADY)
}
