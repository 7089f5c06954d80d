//! How destinations stand. A store may know of other cases' destinations: each case looks at its own.

use super::{Harness, RETENTION, START_MS, racing::at_once};
use crate::{Noted, PauseCause, Standing, Store};
use uuid::Uuid;

const WRITTEN: Result<Noted, crate::StoreError> = Ok(Noted::Written);
const OUTDATED: Result<Noted, crate::StoreError> = Ok(Noted::Outdated);

/// Nothing noted, nothing listed; the first write is the one from the default.
pub async fn a_destination_that_nothing_was_noted_of_is_not_listed(harness: &impl Harness) {
    let store = harness.open(RETENTION).await;
    let name = fresh_name();
    assert_eq!(standing(&store, &name).await, None);
    let first = Standing::default().failing(Some(START_MS));
    assert_eq!(store.set_standing(&name, &first).await, WRITTEN);
    assert_eq!(standing(&store, &name).await, Some(first));
}

/// Through all that happens to a destination, and each cause of a pause.
pub async fn every_column_of_a_standing_is_kept(harness: &impl Harness) {
    let store = harness.open(RETENTION).await;
    for cause in PauseCause::ALL {
        let name = fresh_name();
        let failing = Standing::default().failing(Some(START_MS));
        let paused = failing.pause(START_MS + 5, cause, "it's \"down\" — véry; DROP TABLE");
        let resumed = paused.resume(START_MS + 9);
        let healthy = resumed.failing(Some(START_MS + 10)).failing(None);
        for (at, step) in [failing, paused, resumed].iter().enumerate() {
            assert_eq!(store.set_standing(&name, step).await, WRITTEN, "{at}");
            assert_eq!(standing(&store, &name).await.as_ref(), Some(step));
        }
        // One revision was left out.
        assert_eq!(store.set_standing(&name, &healthy).await, OUTDATED);
        assert_eq!(healthy.resumed_at_ms, Some(START_MS + 9));
    }
}

/// A repeat is recognised, a stale write changes nothing.
pub async fn a_standing_follows_the_revision_that_was_seen(harness: &impl Harness) {
    let store = harness.open(RETENTION).await;
    let name = fresh_name();
    let first = Standing::default().pause(START_MS, PauseCause::Manual, "");
    for _ in 0..2 {
        assert_eq!(store.set_standing(&name, &first).await, WRITTEN);
    }
    let other = Standing::default().pause(START_MS, PauseCause::Gone, "");
    assert_eq!(store.set_standing(&name, &other).await, OUTDATED);
    assert_eq!(standing(&store, &name).await, Some(first.clone()));
    let second = first.resume(START_MS + 1);
    for _ in 0..2 {
        assert_eq!(store.set_standing(&name, &second).await, WRITTEN);
    }
    // A late copy of the first write must not pause it again.
    assert_eq!(store.set_standing(&name, &first).await, OUTDATED);
    assert_eq!(standing(&store, &name).await, Some(second));
}

/// Twenty writers that have seen the same, each with something of its own to say.
pub async fn of_many_writers_of_a_standing_one_gets_its_way(harness: &impl Harness) {
    let store = harness.open(RETENTION).await;
    let name = fresh_name();
    let mut seen = Standing::default();
    for round in 0..3 {
        let answers = at_once(20, |at| {
            let (store, name) = (store.clone(), name.clone());
            let new = seen.pause(START_MS, PauseCause::Manual, &format!("{round} {at}"));
            async move { (store.set_standing(&name, &new).await, new) }
        });
        let answers = answers.await;
        let mut won = answers.iter().filter(|(noted, _)| *noted == WRITTEN);
        let Some((_, winner)) = won.next() else {
            panic!("nobody: {answers:?}")
        };
        assert_eq!(won.next(), None);
        assert!(answers.iter().all(|(noted, _)| noted.is_ok()));
        assert_eq!(standing(&store, &name).await.as_ref(), Some(winner));
        seen = winner.clone();
    }
}

/// A pause outlives whoever made it.
pub async fn standings_survive_a_reopening_of_the_store(harness: &impl Harness) {
    let store = harness.open(RETENTION).await;
    let name = fresh_name();
    let paused = Standing::default().pause(START_MS, PauseCause::Gone, "410");
    assert_eq!(store.set_standing(&name, &paused).await, WRITTEN);
    if let Some(store) = harness.reopen(store, RETENTION).await {
        assert_eq!(standing(&store, &name).await, Some(paused));
    }
}

async fn standing(store: &impl Store, name: &str) -> Option<Standing> {
    match store.standings().await {
        Ok(mut standings) => standings.remove(name),
        Err(error) => panic!("no answer: {error}"),
    }
}

/// A name that no other case and no other run uses.
fn fresh_name() -> String {
    format!("d-{}", Uuid::new_v4().simple())
}
