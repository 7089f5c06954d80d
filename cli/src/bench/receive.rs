//! Receiving: webhooks accepted a second, beside a bare server under the same load and a bare loop into the log.

use super::{
    Bench, ROUNDS, limited,
    load::{self, Webhooks},
    pace::{self, STEADY},
    report::{Compared, Figure},
    rig::{GRACE, Knobs, Rig},
};
use crate::child::{command, free_address};
use anyhow::{Context, ensure};
use std::{net::SocketAddr, process::Stdio, time::Duration};
use tokio::{net::TcpStream, process::Child, time::Instant};

/// At least this part of the lowest limit.
const BAR: f64 = 0.5;

/// Measures the three in turn.
pub(crate) async fn measure(bench: &mut Bench) -> anyhow::Result<Compared> {
    let knobs = Knobs::new(None, bench.concurrency());
    let mut rig = Rig::new(&bench.ground, "ingest", knobs).await?;
    let bare_rig = Rig::new(&bench.ground, "produce", knobs).await?;
    let (server, bare) = bare_server().await?;
    let mut product = rig.ingest().await?;
    let mut bare_server = Figure::new("bare HTTP + HMAC server");
    let mut bare_produce = Figure::new("bare produce loop");
    let mut accepted = Figure::new("ingest: accepted/s");
    for _ in 0..ROUNDS {
        bare_server.slices.push(drive(bench, bare).await?);
        accepted.slices.push(drive(bench, rig.hooks()).await?);
        product.alive()?;
        let slice = bench.slice(bench.args.webhooks);
        let rate = limited(&["produce"], &slice, Some(&bare_rig.file())).await?;
        bare_produce.slices.push(rate.parse()?);
    }
    product.stop().await?;
    drop(server);
    Ok(Compared {
        product: accepted,
        limits: vec![bare_server, bare_produce],
        bar: BAR,
    })
}

/// Drives one slice as fast as it is answered; answers a second.
async fn drive(bench: &mut Bench, target: SocketAddr) -> anyhow::Result<f64> {
    let slice = bench.slice(bench.args.webhooks);
    let webhooks: &Webhooks = &slice.webhooks();
    let connections = slice.concurrency;
    let deadline = slice.deadline();
    let sent = load::send(
        webhooks,
        target,
        connections,
        slice.numbers(),
        None,
        deadline,
    );
    let answered = tokio::time::timeout_at(deadline + GRACE, sent)
        .await
        .context("the load does not end")??;
    let times = answered.iter().map(|answered| answered.at).collect();
    Ok(pace::per_second(times, STEADY))
}

async fn bare_server() -> anyhow::Result<(Child, SocketAddr)> {
    let address = free_address()?;
    let child = command()?
        .args(["bench", "limit", "server", "--listen", &address.to_string()])
        .stdout(Stdio::null())
        .spawn()?;
    let deadline = Instant::now() + GRACE;
    while TcpStream::connect(address).await.is_err() {
        ensure!(
            Instant::now() < deadline,
            "the bare server does not come up"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok((child, address))
}
