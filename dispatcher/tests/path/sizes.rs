//! Records that the log takes no more, since its limit was lowered.

use crate::{
    driver::{begin, put, start},
    fakes::{
        faults::{Faults, Step},
        send::status,
        world::{START_MS, World, webhook},
    },
};
use bytes::Bytes;
use dedup_store::Status;
use dispatcher::process::{Finished, Infra};
use event_log::{DERIVED_BYTES_RESERVE, ProduceError, Received};
use schemas::{AttemptSummary, Delivery, Header, OutcomeKind, Reason, Webhook};
use std::{sync::Arc, time::Duration};
use uuid::Uuid;

const BODY_BYTES: usize = 200_000;

#[tokio::test(start_paused = true)]
async fn a_hop_that_is_too_large_ends_the_job_and_finishes_nothing() {
    let world = World::new(1, Faults::default());
    world.send.script([status(500)]);
    limit(&world, 10 * BODY_BYTES);
    let record = put(&world, &large(0)).await;
    limit(&world, BODY_BYTES);
    let ended = work(&world, &record).await;
    assert!(too_large(&ended));
    assert_eq!(tries(&world, Step::Hop), 1);
    assert_eq!(world.send.sent().len(), 1);
    let row = world.store.inner.rows().remove(0).1;
    assert_eq!(row.status, Status::Processing, "somebody may still mend it");
}

#[tokio::test(start_paused = true)]
async fn a_letter_that_is_too_large_goes_without_headers_and_with_its_last_attempt() {
    let world = World::new(1, Faults::default());
    world.send.script([status(404)]);
    limit(&world, 10 * BODY_BYTES);
    let delivery = large(40_000);
    let record = put(&world, &delivery).await;
    limit(&world, BODY_BYTES + 20_000);
    let finished = work(&world, &record).await;
    assert_eq!(finished, Ok(Finished::DeadLettered(Reason::Rejected)));
    assert_eq!(tries(&world, Step::Letter), 2);
    let letter = world.letters().remove(0);
    assert_eq!(letter.headers, []);
    assert_eq!(letter.body, delivery.webhook.body);
    assert_eq!(letter.attempts, 3);
    assert_eq!(letter.last_status, Some(404));
    let row = world.store.inner.rows().remove(0).1;
    let told: Vec<_> = letter
        .history
        .iter()
        .map(|it| (it.attempt, it.token))
        .collect();
    assert_eq!(told, [(3, row.claim_token)]);
    assert_eq!(row.status, Status::Failed);
}

/// One that fits keeps all it has.
#[tokio::test(start_paused = true)]
async fn a_letter_that_fits_is_whole() {
    let world = World::new(1, Faults::default());
    world.send.script([status(404)]);
    limit(&world, 10 * BODY_BYTES);
    let delivery = large(40_000);
    let record = put(&world, &delivery).await;
    let finished = work(&world, &record).await;
    assert!(finished.is_ok());
    let letter = world.letters().remove(0);
    assert_eq!(letter.headers, delivery.webhook.headers);
    assert_eq!(letter.history.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_letter_that_fits_in_no_form_is_not_insisted_on() {
    let world = World::new(1, Faults::default());
    world.send.script([status(404)]);
    limit(&world, 10 * BODY_BYTES);
    let record = put(&world, &large(0)).await;
    limit(&world, BODY_BYTES);
    let ended = work(&world, &record).await;
    assert!(too_large(&ended));
    assert_eq!(tries(&world, Step::Letter), 2);
    assert_eq!(world.store.inner.rows()[0].1.status, Status::Processing);
}

/// What fits is not shortened for another error's sake.
#[tokio::test(start_paused = true)]
async fn a_letter_that_is_not_acknowledged_stays_whole() {
    let world = World::new(1, Faults::default());
    world.send.script([status(404)]);
    let job = begin(&world).await;
    world.log.inner.fail_produces(3, false);
    assert!(job.await.unwrap().is_ok());
    assert_eq!(tries(&world, Step::Letter), 4);
    assert_eq!(world.letters()[0].headers, webhook("d1", START_MS).headers);
}

/// Works on a record until it ends, which it must.
async fn work(world: &World, record: &Received) -> Result<Finished, Infra> {
    let job = start(world, &Arc::new(world.path()), record);
    let ended = tokio::time::timeout(Duration::from_secs(600), job).await;
    ended.expect("insisted on").unwrap()
}

/// The third attempt of a large webhook.
fn large(header_bytes: usize) -> Delivery {
    let webhook = Webhook {
        headers: vec![Header {
            name: "x-large".to_owned(),
            value: Bytes::from(vec![b'h'; header_bytes]),
        }],
        body: Bytes::from(vec![7; BODY_BYTES]),
        ..webhook("d1", START_MS)
    };
    let summary = |attempt: u32| AttemptSummary {
        attempt,
        token: Uuid::from_u128(attempt.into()),
        started_at_ms: START_MS,
        duration_ms: 1,
        outcome: OutcomeKind::Failed,
        status: Some(500),
        detail: String::new(),
    };
    Delivery {
        attempt: 3,
        fence: Some(Uuid::from_u128(2)),
        history: vec![summary(1), summary(2)],
        ..Delivery::first(webhook, "billing")
    }
}

/// Largest record of the delay tiers and the dead letters from now on.
fn limit(world: &World, bytes: usize) {
    world
        .log
        .inner
        .set_record_bytes_max(bytes - DERIVED_BYTES_RESERVE.min(bytes));
}

fn too_large(result: &Result<Finished, Infra>) -> bool {
    matches!(result, Err(Infra::Log(ProduceError::TooLarge { .. })))
}

fn tries(world: &World, step: Step) -> usize {
    let trace = world.faults.trace();
    trace.iter().filter(|it| **it == step).count()
}
