use super::*;
use proptest::prelude::*;

const NOW_MS: i64 = 10_000_000_000;
const MINUTE_MS: i64 = 60_000;
const DAY_MS: i64 = 86_400_000;

fn delivery(guid: &str, id: u64, age_ms: i64, status: Option<i64>) -> Delivery {
    Delivery {
        id,
        guid: guid.to_owned(),
        delivered_at: jiff::Timestamp::from_millisecond(NOW_MS - age_ms).unwrap(),
        status_code: status,
        event: "issues".to_owned(),
        action: Some("opened".to_owned()),
    }
}

fn listing(deliveries: &[Delivery]) -> Listing {
    let mut listing = Listing::default();
    for delivery in deliveries {
        listing.add(0, delivery.clone());
    }
    listing
}

fn routes() -> Vec<RouteConfig> {
    vec![RouteConfig {
        source: "github".to_owned(),
        events: Some(vec!["issues.*".to_owned()]),
        to: vec!["billing".to_owned(), "audit".to_owned()],
    }]
}

fn rules(routes: &[RouteConfig]) -> Rules<'_> {
    Rules {
        source: "github",
        events: None,
        routes,
        settle_ms: 5 * MINUTE_MS,
        cool_down_ms: 60 * MINUTE_MS,
        kept_ms: 14 * DAY_MS,
        failed_only: false,
        limit: usize::MAX,
    }
}

/// The plan when nothing has arrived and nothing was asked for.
fn alone(deliveries: &[Delivery], change: impl Fn(&mut Rules<'_>)) -> Plan {
    let routes = routes();
    let mut rules = rules(&routes);
    change(&mut rules);
    plan(
        &listing(deliveries),
        rules,
        &HashSet::new(),
        |_| None,
        NOW_MS,
    )
}

fn asked(plan: &Plan) -> Vec<(&str, u64, Why)> {
    plan.asks
        .iter()
        .map(|ask| (&*ask.guid, ask.attempt.id, ask.why))
        .collect()
}

#[test]
fn a_failure_is_asked_for_once_by_its_newest_attempt() {
    for status in [None, Some(0), Some(199), Some(302), Some(401), Some(503)] {
        let plan = alone(
            &[
                delivery("a", 7, DAY_MS, status),
                delivery("a", 9, 10 * MINUTE_MS, Some(500)),
                delivery("a", 8, 20 * MINUTE_MS, status),
            ],
            |_| {},
        );
        assert_eq!(asked(&plan), [("a", 9, Why::Failed)], "{status:?}");
        assert_eq!((plan.failed, plan.unseen), (1, 0));
    }
}

#[test]
fn the_store_decides_over_githubs_word() {
    let routes = routes();
    let listing = listing(&[
        delivery("failed", 1, DAY_MS, Some(503)),
        delivery("fine", 2, DAY_MS, Some(202)),
    ]);
    let arrived = HashSet::from(["failed".into(), "fine".into()]);
    let plan = plan(&listing, rules(&routes), &arrived, |_| None, NOW_MS);
    assert_eq!(asked(&plan), []);
    assert_eq!(plan.skipped, BTreeMap::from([(Skip::Arrived, 2)]));
    assert_eq!(plan.failed, 1);

    let deliveries = [
        delivery("a", 1, DAY_MS, Some(202)),
        delivery("a", 2, 10 * MINUTE_MS, Some(503)),
    ];
    let unseen = alone(&deliveries, |_| {});
    assert_eq!(
        asked(&unseen),
        [("a", 2, Why::Unseen)],
        "answered once, and lost"
    );
    let failed_only = alone(&deliveries, |rules| rules.failed_only = true);
    assert_eq!(failed_only.skipped, BTreeMap::from([(Skip::Succeeded, 1)]));
}

#[test]
fn without_a_row_only_what_must_still_have_one_is_lost() {
    for (age_ms, expected) in [
        (14 * DAY_MS - 1, None),
        (14 * DAY_MS, Some(Skip::RowsExpired)),
    ] {
        // A later success says nothing of the first one's rows.
        let plan = alone(
            &[
                delivery("a", 1, age_ms, Some(200)),
                delivery("a", 2, DAY_MS, Some(200)),
            ],
            |_| {},
        );
        assert_eq!(plan.skipped.into_keys().next(), expected, "{age_ms}");
    }
    let failed = alone(&[delivery("a", 1, 20 * DAY_MS, Some(500))], |_| {});
    assert_eq!(failed.asks.len(), 1, "it never had a row");
}

#[test]
fn the_young_and_the_ignored_are_left_alone() {
    let young = alone(
        &[
            delivery("a", 1, DAY_MS, Some(500)),
            delivery("a", 2, 5 * MINUTE_MS - 1, Some(500)),
            delivery("b", 3, 5 * MINUTE_MS, Some(500)),
            delivery("c", 4, -MINUTE_MS, Some(500)),
        ],
        |_| {},
    );
    assert_eq!(asked(&young), [("b", 3, Why::Failed)]);
    assert_eq!(young.skipped, BTreeMap::from([(Skip::Unsettled, 2)]));

    let failed = [delivery("a", 1, DAY_MS, Some(500))];
    let pull_requests = ["pull_request".to_owned()];
    let ignored = BTreeMap::from([(Skip::Ignored, 1)]);
    let by_source = alone(&failed, |rules| rules.source = "other");
    assert_eq!(by_source.skipped, ignored);
    let closed = Delivery {
        event: "push".to_owned(),
        ..delivery("a", 1, DAY_MS, Some(500))
    };
    assert_eq!(alone(&[closed], |_| {}).skipped, ignored, "no route");
    let routes = routes();
    let not_taken = Rules {
        events: Some(&pull_requests),
        ..rules(&routes)
    };
    let plan = plan(
        &listing(&failed),
        not_taken,
        &HashSet::new(),
        |_| None,
        NOW_MS,
    );
    assert_eq!(plan.skipped, ignored, "not on the allow-list");
}

#[test]
fn what_was_asked_for_has_time_to_come() {
    let routes = routes();
    let listing = listing(&[delivery("a", 1, DAY_MS, Some(500))]);
    for (ago_ms, expected) in [(60 * MINUTE_MS - 1, 0), (60 * MINUTE_MS, 1)] {
        let asked_at = |guid: &str| (guid == "a").then_some(NOW_MS - ago_ms);
        let plan = plan(&listing, rules(&routes), &HashSet::new(), asked_at, NOW_MS);
        assert_eq!(plan.asks.len(), expected, "{ago_ms}");
    }
}

#[test]
fn the_oldest_come_first_and_the_limit_leaves_the_youngest() {
    let deliveries: Vec<_> = [("a", 3), ("b", 1), ("c", 2)]
        .map(|(guid, hours)| delivery(guid, 1, hours * 60 * MINUTE_MS, None))
        .into();
    let plan = alone(&deliveries, |rules| rules.limit = 2);
    let guids: Vec<_> = plan.asks.iter().map(|ask| &*ask.guid).collect();
    assert_eq!(guids, ["a", "c"]);
    assert_eq!(plan.skipped, BTreeMap::from([(Skip::Limit, 1)]));
}

#[test]
fn hooks_that_sent_the_same_event_share_it() {
    let routes = routes();
    let mut listing = Listing::default();
    listing.add(0, delivery("a", 1, DAY_MS, Some(500)));
    listing.add(1, delivery("a", 2, DAY_MS - 5, Some(500)));
    let plan = plan(&listing, rules(&routes), &HashSet::new(), |_| None, NOW_MS);
    let hooks: Vec<_> = plan.asks.iter().map(|ask| ask.attempt.hook).collect();
    assert_eq!((hooks, listing.len(), listing.attempts), (vec![1], 1, 2));
}

prop_compose! {
    fn some_delivery()(
        guid in 0_u8..6,
        id in 0_u64..1_000,
        age_ms in -MINUTE_MS..4 * DAY_MS,
        status in prop::option::of(prop::sample::select(vec![0_i64, 200, 204, 302, 404, 500])),
        push in any::<bool>(),
    ) -> Delivery {
        let event = if push { "push" } else { "issues" };
        Delivery { event: event.to_owned(), ..delivery(&format!("g{guid}"), id, age_ms, status) }
    }
}

proptest! {
    /// What holds for every plan, said again in other words than the code's.
    #[test]
    fn a_plan_asks_for_what_is_missing_and_for_nothing_else(
        deliveries in prop::collection::vec(some_delivery(), 0..40),
        arrived in prop::collection::hash_set(0_u8..6, 0..6),
        asked_at in prop::collection::btree_map(0_u8..6, 0_i64..3 * 60 * MINUTE_MS, 0..6),
        limit in 0_usize..8,
    ) {
        let routes = routes();
        let rules = Rules { limit, ..rules(&routes) };
        let arrived: HashSet<Arc<str>> = arrived.iter().map(|n| format!("g{n}").into()).collect();
        let asked_at: HashMap<String, i64> =
            asked_at.iter().map(|(n, ago_ms)| (format!("g{n}"), NOW_MS - ago_ms)).collect();
        let listing = listing(&deliveries);
        let asked_at_ms = |guid: &str| asked_at.get(guid).copied();
        let found = plan(&listing, rules, &arrived, asked_at_ms, NOW_MS);

        let guids: HashSet<_> = found.asks.iter().map(|ask| Arc::clone(&ask.guid)).collect();
        prop_assert_eq!(guids.len(), found.asks.len(), "each once");
        prop_assert!(found.asks.len() <= limit);
        let skipped: u64 = found.skipped.values().sum();
        prop_assert_eq!(skipped + found.asks.len() as u64, listing.len() as u64, "each is told");
        for ask in &found.asks {
            let of_guid = || deliveries.iter().filter(|delivery| *delivery.guid == *ask.guid);
            let age_ms = |delivery: &Delivery| NOW_MS - delivery.delivered_at.as_millisecond();
            prop_assert!(of_guid().all(|delivery| age_ms(delivery) >= rules.settle_ms));
            prop_assert!(of_guid().any(|delivery| delivery.event == "issues"));
            prop_assert!(!arrived.contains(&ask.guid));
            prop_assert!(asked_at_ms(&ask.guid).is_none_or(|at| NOW_MS - at >= rules.cool_down_ms));
            let succeeded = of_guid().any(|delivery| matches!(delivery.status_code, Some(200 | 204)));
            prop_assert_eq!(ask.why, if succeeded { Why::Unseen } else { Why::Failed });
            let youngest_ms = of_guid().map(age_ms).min();
            prop_assert_eq!(Some(NOW_MS - ask.attempt.at_ms), youngest_ms);
        }
        let mut shuffled = deliveries.clone();
        shuffled.reverse();
        if deliveries.iter().all(|delivery| delivery.event == "issues") {
            let again = plan(&self::listing(&shuffled), rules, &arrived, asked_at_ms, NOW_MS);
            prop_assert_eq!(again, found, "the order of pages does not matter");
        }
    }
}
