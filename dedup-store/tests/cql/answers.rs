//! Answers that get lost, come late, or are errors: every call still ends with the truth.

use crate::node::{LEASE_MS, Node, PATIENCE, ask, claimed, held, is_unavailable, now_ms, rival};
use dedup_store::{
    Claim, Renewal, Status, Store, StoreError, Transition, config::CqlConfig, cql::CqlStore,
};
use schemas::Reason;
use scylla_proxy::{
    Condition, Proxy, Reaction, RequestOpcode, RequestReaction, RequestRule, ResponseFrame,
    ResponseReaction, ResponseRule, RunningProxy, ShardAwareness, example_db_errors,
};
use std::{net::SocketAddr, path::Path, time::Duration};
use tokio::{sync::mpsc, time::timeout};

type Swallowed = mpsc::UnboundedReceiver<(ResponseFrame, Option<u16>)>;

/// A store that talks to the node through a proxy.
struct Proxied {
    proxy: RunningProxy,
    store: CqlStore,
}

// === impl Proxied ===

impl Proxied {
    async fn new(node: &Node, config: CqlConfig) -> Self {
        let addr = free_addr();
        let between = scylla_proxy::Node::builder()
            .real_address(node.addr)
            .proxy_address(addr)
            .shard_awareness(ShardAwareness::Unaware)
            .build();
        let proxy = Proxy::builder()
            .with_node(between)
            .build()
            .run()
            .await
            .expect("proxy");
        let config = CqlConfig {
            contact_points: vec![addr.to_string()],
            ..config
        };
        let store = CqlStore::connect(&config, Path::new("."))
            .await
            .expect("connect");
        Self { proxy, store }
    }

    /// The next answers to conditional statements get `reaction`; what it hit comes out of the channel.
    fn answers(&mut self, times: usize, reaction: ResponseReaction) -> Swallowed {
        let (hit, hits) = mpsc::unbounded_channel();
        let conditional = Condition::BodyContainsCaseSensitive(Box::from(*b"[applied]"));
        let rule = ResponseRule(
            conditional.and(Condition::TrueForLimitedTimes(times)),
            reaction.with_feedback_when_performed(hit),
        );
        self.proxy.running_nodes[0].change_response_rules(Some(vec![rule]));
        hits
    }

    /// The answer to the next conditional statement is lost, after the node has applied it.
    fn lose_answer(&mut self) -> Swallowed {
        self.answers(1, ResponseReaction::drop_frame())
    }
}

/// Gives up waiting soon, asks again for long.
fn impatient(node: &Node) -> CqlConfig {
    CqlConfig {
        request_timeout: Duration::from_millis(400),
        ..node.config()
    }
}

fn free_addr() -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("its address")
}

fn was_lost(swallowed: &mut Swallowed) {
    assert!(
        swallowed.try_recv().is_ok(),
        "no answer was lost: the test proves nothing"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_to_each_write_is_found_out() {
    let Some(node) = Node::get().await else {
        return;
    };
    let mut via = Proxied::new(&node, impatient(&node)).await;
    let now = now_ms();

    let first = ask();
    let mut lost = via.lose_answer();
    let claim = claimed(&via.store, &first, now).await;
    was_lost(&mut lost);
    assert_eq!(claim.row.claim_token, first.token);
    assert_eq!(claim.row.attempts, 1);

    let mut lost = via.lose_answer();
    let until = now + 2 * LEASE_MS;
    let renewed = via.store.renew(&claim, until, now).await;
    was_lost(&mut lost);
    assert_eq!(
        renewed,
        Ok(Renewal::Renewed {
            lease_until_ms: until
        })
    );

    let mut lost = via.lose_answer();
    let scheduled = via.store.schedule(&claim, now + 1, now).await;
    was_lost(&mut lost);
    assert_eq!(scheduled, Ok(Transition::Applied));

    // The second attempt, taken from waiting.
    let mut lost = via.lose_answer();
    let mut second = rival(&first);
    second.fence = Some(first.token);
    let claim = claimed(&via.store, &second, now + 2).await;
    was_lost(&mut lost);
    assert_eq!(claim.row.attempts, 2);

    let mut lost = via.lose_answer();
    assert_eq!(
        via.store.complete(&claim, now + 3).await,
        Ok(Transition::Applied)
    );
    was_lost(&mut lost);

    let other = claimed(&via.store, &ask(), now).await;
    let mut lost = via.lose_answer();
    assert_eq!(
        via.store.fail(&other, Reason::Gone, now + 3).await,
        Ok(Transition::Applied)
    );
    was_lost(&mut lost);

    let row = via.store.get(&claim.key, now + 4).await.unwrap().unwrap();
    assert_eq!((row.status, row.attempts), (Status::Completed, 2));
    let row = via.store.get(&other.key, now + 4).await.unwrap().unwrap();
    assert_eq!(
        (row.status, row.reason),
        (Status::Failed, Some(Reason::Gone))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_takeover_whose_answer_was_lost_still_names_the_interrupted_claim() {
    let Some(node) = Node::get().await else {
        return;
    };
    let mut via = Proxied::new(&node, impatient(&node)).await;
    let now = now_ms();
    let first = ask();
    claimed(&via.store, &first, now).await;

    // The answer to the first look ("not applied, a row is there") passes; that to the takeover is lost.
    let later = now + LEASE_MS + 2_000;
    let not_applied = Condition::BodyContainsCaseSensitive(Box::from(*b"created_at"));
    let conditional = Condition::BodyContainsCaseSensitive(Box::from(*b"[applied]"));
    let (hit, mut lost) = mpsc::unbounded_channel();
    let rule = ResponseRule(
        conditional
            .and(Condition::not(not_applied))
            .and(Condition::TrueForLimitedTimes(1)),
        ResponseReaction::drop_frame().with_feedback_when_performed(hit),
    );
    via.proxy.running_nodes[0].change_response_rules(Some(vec![rule]));
    let second = rival(&first);
    let claim = claimed(&via.store, &second, later).await;
    was_lost(&mut lost);
    assert_eq!(claim.interrupted, Some(first.token));
    assert_eq!(
        (claim.row.claim_token, claim.row.attempts),
        (second.token, 2)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_answer_and_a_dropped_connection_are_found_out() {
    let Some(node) = Node::get().await else {
        return;
    };
    let mut via = Proxied::new(&node, impatient(&node)).await;
    let now = now_ms();
    for reaction in [
        ResponseReaction::delay(Duration::from_millis(900)),
        ResponseReaction::drop_connection(),
    ] {
        let mut hits = via.answers(1, reaction.clone());
        let claim = claimed(&via.store, &ask(), now).await;
        was_lost(&mut hits);
        let mut hits = via.answers(1, reaction);
        assert_eq!(
            via.store.complete(&claim, now + 1).await,
            Ok(Transition::Applied)
        );
        was_lost(&mut hits);
        let row = via.store.get(&claim.key, now + 2).await.unwrap().unwrap();
        assert_eq!((row.status, row.attempts), (Status::Completed, 1));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_that_may_pass_are_asked_again_and_refusals_are_not() {
    let Some(node) = Node::get().await else {
        return;
    };
    let mut via = Proxied::new(&node, node.config()).await;
    let now = now_ms();
    let forge = |error| {
        RequestRule(
            Condition::RequestOpcode(RequestOpcode::Execute).and(Condition::TrueForLimitedTimes(2)),
            RequestReaction::forge_with_error(error),
        )
    };
    for error in [
        example_db_errors::overloaded(),
        example_db_errors::server_error(),
        example_db_errors::write_timeout(),
        example_db_errors::write_failure(),
        example_db_errors::unavailable(),
        example_db_errors::is_bootstrapping(),
        example_db_errors::other(0x1700),
    ] {
        via.proxy.running_nodes[0].change_request_rules(Some(vec![forge(error.clone())]));
        let claim = claimed(&via.store, &ask(), now).await;
        assert_eq!(claim.row.attempts, 1, "{error:?}");
    }
    via.proxy.running_nodes[0]
        .change_request_rules(Some(vec![forge(example_db_errors::unauthorized())]));
    let refused = via.store.claim(&ask(), now).await;
    assert!(
        matches!(refused, Err(StoreError::Refused(_))),
        "{refused:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_answer_at_all_is_unavailable_and_asking_again_finds_out() {
    let Some(node) = Node::get().await else {
        return;
    };
    let short = CqlConfig {
        deadline: Duration::from_secs(2),
        ..impatient(&node)
    };
    let mut via = Proxied::new(&node, short).await;
    let now = now_ms();
    let ask = ask();
    let mut lost = via.answers(usize::MAX, ResponseReaction::drop_frame());
    let answer = timeout(PATIENCE, via.store.claim(&ask, now))
        .await
        .expect("ends by itself");
    was_lost(&mut lost);
    assert!(is_unavailable(&answer), "{answer:?}");
    assert!(
        answer
            .unwrap_err()
            .to_string()
            .contains("may have happened")
    );

    // Applied all the same: the same ask finds its own claim, another one finds it busy.
    via.proxy.turn_off_rules();
    let patient = node.store().await;
    let other = patient.claim(&rival(&ask), now).await.unwrap();
    assert!(matches!(other, Claim::Busy { .. }), "{other:?}");
    assert_eq!(
        held(patient.claim(&ask, now).await.unwrap()).row.attempts,
        1
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_more_statements_than_allowed_are_in_flight() {
    const IN_FLIGHT_MAX: usize = 4;
    let Some(node) = Node::get().await else {
        return;
    };
    let capped = CqlConfig {
        in_flight_max: IN_FLIGHT_MAX,
        // No statement is given up before its call is.
        request_timeout: Duration::from_secs(3),
        deadline: Duration::from_secs(3),
        ..node.config()
    };
    let mut via = Proxied::new(&node, capped).await;
    let now = now_ms();
    let (hit, mut hits) = mpsc::unbounded_channel();
    let swallow = RequestRule(
        Condition::RequestOpcode(RequestOpcode::Execute),
        RequestReaction::drop_frame().with_feedback_when_performed(hit),
    );
    via.proxy.running_nodes[0].change_request_rules(Some(vec![swallow]));
    let asks: Vec<_> = (0..40).map(|_| ask()).collect();
    let calls = asks.iter().map(|ask| {
        let (store, ask) = (via.store.clone(), ask.clone());
        tokio::spawn(async move { store.claim(&ask, now).await })
    });
    let calls: Vec<_> = calls.collect();
    let busy = timeout(PATIENCE, async {
        while via.store.load().waiting < asks.len() - IN_FLIGHT_MAX {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        via.store.load()
    });
    let busy = busy.await.expect("all wait");
    assert_eq!(busy.in_flight, IN_FLIGHT_MAX);
    let mut unsent = 0;
    for call in calls {
        let answer = call.await.expect("no panic");
        assert!(is_unavailable(&answer), "{answer:?}");
        unsent += usize::from(answer.unwrap_err().to_string().contains("nothing was sent"));
    }
    assert_eq!(unsent, asks.len() - IN_FLIGHT_MAX);
    let mut sent = 0;
    while hits.try_recv().is_ok() {
        sent += 1;
    }
    assert_eq!(sent, IN_FLIGHT_MAX);
    let idle = via.store.load();
    assert_eq!((idle.in_flight, idle.waiting), (0, 0));

    // Nobody was forgotten.
    via.proxy.turn_off_rules();
    for ask in asks {
        assert_eq!(claimed(&via.store, &ask, now).await.row.attempts, 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_has_no_quorum_is_not_stormed() {
    let Some(node) = Node::get().await else {
        return;
    };
    let short = CqlConfig {
        request_timeout: Duration::from_secs(2),
        deadline: Duration::from_secs(4),
        ..node.config()
    };
    let mut via = Proxied::new(&node, short).await;
    let (hit, mut hits) = mpsc::unbounded_channel();
    let refuse = RequestRule(
        Condition::RequestOpcode(RequestOpcode::Execute),
        RequestReaction::forge_with_error(example_db_errors::unavailable())
            .with_feedback_when_performed(hit),
    );
    via.proxy.running_nodes[0].change_request_rules(Some(vec![refuse]));
    let answer = via.store.claim(&ask(), now_ms()).await;
    assert!(is_unavailable(&answer), "{answer:?}");
    let mut sent = 0_u64;
    while hits.try_recv().is_ok() {
        sent += 1;
    }
    // The shortest pauses: 20, 40, 80, 160, then 320 ms each. Without growth there would be more than forty.
    assert!(
        (2..=18).contains(&sent),
        "{sent} statements in four seconds"
    );
    assert_eq!(via.store.load().reissued, sent - 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_gone_is_unavailable() {
    let Some(node) = Node::get().await else {
        return;
    };
    let short = CqlConfig {
        deadline: Duration::from_secs(1),
        connect_timeout: Duration::from_secs(30),
        ..impatient(&node)
    };
    let via = Proxied::new(&node, short.clone()).await;
    let now = now_ms();
    assert_eq!(via.store.ready().await, Ok(()));
    let claim = claimed(&via.store, &ask(), now).await;
    let Proxied { proxy, store } = via;
    // It may complain of the connections that it cuts.
    drop(proxy.finish().await);

    let answer = timeout(PATIENCE, store.complete(&claim, now))
        .await
        .expect("ends by itself");
    assert!(is_unavailable(&answer), "{answer:?}");
    let answer = timeout(PATIENCE, store.get(&claim.key, now))
        .await
        .expect("ends by itself");
    assert!(is_unavailable(&answer), "{answer:?}");
    // By now the good answer of before is too old.
    let answer = timeout(PATIENCE, store.ready())
        .await
        .expect("ends by itself");
    assert!(is_unavailable(&answer), "{answer:?}");

    let nowhere = CqlConfig {
        contact_points: vec![free_addr().to_string()],
        connect_timeout: Duration::from_secs(1),
        ..short
    };
    let connected = timeout(PATIENCE, CqlStore::connect(&nowhere, Path::new("."))).await;
    let connected = connected.expect("ends by itself");
    assert!(is_unavailable(&connected), "{connected:?}");
}
