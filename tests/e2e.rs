//! The whole path with real processes on a real Kafka and a real Cassandra, judged by what the receivers saw.
//!
//! Without a stack (`tests/stack/stack up`) the tests that need one say so and end; `make test` requires it.

use base64::{Engine, prelude::BASE64_STANDARD};
use harness::{
    dead_letters::{self, DeadLetter},
    oracle::Oracle,
    payload,
    process::{Process, Role},
    receiver::{Receiver, Reply, Script},
    sender::{Sender, Sent, Webhook},
    site::{GITHUB_SECRET, Limits, Site},
    stack::{OwnKafka, Stack, stack, turn},
    until, within,
};
use std::{collections::BTreeSet, time::Duration};

/// Nothing new for so long is a failure. Longer than any wait in these tests: backoffs, a lease, a group that settles.
const STANDSTILL: Duration = Duration::from_secs(45);
/// After a SIGTERM, attempts may take their time.
const STOP: Duration = Duration::from_secs(30);
/// From the kill of a dispatcher to the next attempt of what it had in flight: its lease (15 s), the search for it, a margin.
const WAIT_AFTER_KILL_MS: i64 = 25_000;

/// (a) 10,000 requests of which 2,000 repeat another one at the same time, two dispatchers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeats_sent_at_the_same_time_are_delivered_once() {
    let Some(stack) = stack() else { return };
    let _turn = turn().await;
    let receiver = Receiver::start().await;
    let mut site = Site::on_stack(&stack, "repeats", 12);
    site.destination("billing", &receiver.url("/billing"), &Limits::default());
    site.prepare().await;
    let ingest = site.start(Role::Ingest).await;
    let first = site.start(Role::Dispatcher).await;
    let second = site.start(Role::Dispatcher).await;

    let mut webhooks = Vec::new();
    for (number, webhook) in payload::generated(1, 8_000).into_iter().enumerate() {
        if number % 4 == 0 {
            webhooks.push(webhook.clone());
        }
        webhooks.push(webhook);
    }
    assert_eq!(webhooks.len(), 10_000);
    let sent = sender(&ingest).post_all(webhooks).await;
    assert_all_acknowledged(&sent);
    arrived(&receiver, "/billing", 8_000).await;
    // What is still under way would be a second attempt: both must have nothing left to do before the judgement.
    for mut dispatcher in [first, second] {
        let attempts = dispatcher.metric("fencepost_delivery_attempts_total").await;
        assert!(attempts >= 1.0, "a dispatcher had nothing to do");
        assert!(dispatcher.terminate(STOP).await.success());
    }

    let report = oracle(sent, &receiver, &["billing"]).judge();
    report.assert_clean();
    assert_eq!(receiver.count(), 8_000, "{report}");
}

/// (b) A receiver that refuses connections and one that answers 503 for 20 s, and one that names a time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_was_down_gets_everything_later_and_nothing_early() {
    const COUNT: usize = 200;
    let Some(stack) = stack() else { return };
    let _turn = turn().await;
    let mut refusing = Receiver::start().await;
    let answering = Receiver::start().await;
    answering.script("/answering", Script::always(Reply::Status(503)));
    answering.script("/naming", Script::first(1, Reply::RetryAfter(503, 9)));
    let mut site = Site::on_stack(&stack, "down", 4);
    let limits = Limits {
        factor: 1.5,
        ..Limits::default()
    };
    site.destination("refusing", &refusing.url("/refusing"), &limits);
    site.destination("answering", &answering.url("/answering"), &limits);
    site.destination("naming", &answering.url("/naming"), &limits);
    // It refuses the first attempt of each delivery and means only that one.
    site.without_breaker();
    site.prepare().await;
    let ingest = site.start(Role::Ingest).await;
    let _dispatcher = site.start(Role::Dispatcher).await;

    refusing.down().await;
    let sent = sender(&ingest).post_all(payload::generated(2, COUNT)).await;
    assert_all_acknowledged(&sent);
    tokio::time::sleep(Duration::from_secs(20)).await;
    refusing.up().await;
    answering.script("/answering", Script::always(Reply::Status(200)));
    arrived(&refusing, "/refusing", COUNT).await;
    arrived(&answering, "/answering", COUNT).await;
    arrived(&answering, "/naming", COUNT).await;

    let mut all = oracle(sent, &answering, &["answering", "naming", "refusing"]);
    all.arrivals.extend(refusing.arrivals());
    all.judge().assert_clean();
    assert_store_agrees(&site, &all).await;
    for ((path, id), attempts) in all.by_delivery() {
        let numbers: Vec<_> = attempts.iter().map(|arrival| arrival.attempt).collect();
        if path == "/refusing" {
            // The refused ones were not seen, but they count; those that the breaker kept back do not.
            assert!(
                matches!(numbers.as_slice(), [1..=5]),
                "{path} {id}: {numbers:?}"
            );
            continue;
        }
        let expected: Vec<_> = (1..=attempts.len() as u32).collect();
        assert_eq!(numbers, expected, "{path} {id}");
        for (number, pair) in attempts.windows(2).enumerate() {
            let [earlier, later] = pair else {
                unreachable!("windows of two")
            };
            let backoff_ms = (5_000.0 * 1.5_f64.powi(number as i32)) as i64;
            let least_ms = if path == "/naming" { 9_000 } else { backoff_ms };
            let waited_ms = later.at_ms - earlier.at_ms;
            assert!(
                waited_ms >= least_ms,
                "{path} {id}: {waited_ms} ms after attempt {}",
                number + 1
            );
        }
    }
}

/// (c) kill -9 of a dispatcher and of ingest in mid-load.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_loses_nothing_and_repeats_only_what_was_in_flight() {
    const IN_FLIGHT_MAX: usize = 64;
    let Some(stack) = stack() else { return };
    let _turn = turn().await;
    let receiver = Receiver::start().await;
    // A kill always finds attempts in flight, some of them older than the last commit of offsets.
    let slow = Script::always(Reply::Slow(Duration::from_millis(100)));
    let slower = Reply::Slow(Duration::from_secs(3));
    receiver.script("/billing", slow.every(20, slower));
    let mut site = Site::on_stack(&stack, "kill", 12);
    site.dispatcher(&format!("in_flight_max = {IN_FLIGHT_MAX}"));
    site.destination("billing", &receiver.url("/billing"), &Limits::default());
    site.prepare().await;
    let mut ingest = site.start(Role::Ingest).await;
    let mut victim = site.start(Role::Dispatcher).await;
    let _survivor = site.start(Role::Dispatcher).await;

    let webhooks = payload::generated(3, 3_000);
    let load = {
        let sender = sender(&ingest).per_second(150);
        tokio::spawn(async move { sender.post_all(webhooks).await })
    };
    arrival_count(&receiver, 600).await;
    let kill_ms = victim.kill_9();
    let _successor = site.start(Role::Dispatcher).await;
    arrival_count(&receiver, 1_200).await;
    ingest.kill_9();
    let mut successor = site.launch_on(Role::Ingest, ingest.ingest_port());
    successor.wait_ready().await;
    let sent = load.await.expect("the load does not panic");
    let acknowledged = sent.iter().filter(|sent| sent.acknowledged()).count();
    assert!(
        acknowledged >= 1_500,
        "the load has not gone on after the kill: {acknowledged}"
    );
    let last = sent
        .iter()
        .max_by_key(|sent| sent.at_ms)
        .expect("something was sent");
    assert!(last.acknowledged(), "ingest has not come back");

    let mut oracle = oracle(sent, &receiver, &["billing"]);
    oracle.kills_ms = vec![kill_ms];
    nothing_is_owed(&mut oracle, &receiver).await;
    let report = oracle.judge();
    println!("{report}");
    report.assert_clean();
    assert!(report.repeated_by_kill.len() <= IN_FLIGHT_MAX, "{report}");
    let wait_ms = oracle
        .longest_wait_ms(kill_ms)
        .expect("the kill came in mid-load");
    assert!(
        wait_ms <= WAIT_AFTER_KILL_MS,
        "{wait_ms} ms from the kill to the next attempt"
    );
}

/// SIGTERM in mid-load is no fault: nothing may be sent twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_restart_doubles_nothing() {
    let Some(stack) = stack() else { return };
    let _turn = turn().await;
    let receiver = Receiver::start().await;
    receiver.script(
        "/billing",
        Script::always(Reply::Slow(Duration::from_millis(50))),
    );
    let mut site = Site::on_stack(&stack, "rolling", 12);
    site.destination("billing", &receiver.url("/billing"), &Limits::default());
    site.prepare().await;
    let ingest = site.start(Role::Ingest).await;
    let mut running = [
        site.start(Role::Dispatcher).await,
        site.start(Role::Dispatcher).await,
    ];

    let webhooks = payload::generated(4, 2_000);
    let load = {
        let sender = sender(&ingest).per_second(200);
        tokio::spawn(async move { sender.post_all(webhooks).await })
    };
    arrival_count(&receiver, 300).await;
    for old in &mut running {
        assert!(old.terminate(STOP).await.success());
        *old = site.start(Role::Dispatcher).await;
    }
    let sent = load.await.expect("the load does not panic");
    assert_all_acknowledged(&sent);
    arrived(&receiver, "/billing", 2_000).await;
    for dispatcher in &mut running {
        assert!(dispatcher.terminate(STOP).await.success());
    }
    let report = oracle(sent, &receiver, &["billing"]).judge();
    report.assert_clean();
    assert_eq!(receiver.count(), 2_000, "{report}");
}

/// (d) Dead letters of three reasons, read by a foreign client with the committed schema.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_client_reads_dead_letters_with_all_fields() {
    let Some(stack) = stack() else { return };
    let _turn = turn().await;
    let receiver = Receiver::start().await;
    let mut site = Site::on_stack(&stack, "letters", 2);
    let limits = Limits {
        attempts_max: 2,
        ..Limits::default()
    };
    let ends = [
        ("gone", 410, 1),
        ("rejected", 404, 1),
        ("exhausted", 500, 2),
    ];
    for (reason, status, _) in ends {
        let path = format!("/{reason}");
        receiver.script(&path, Script::always(Reply::Status(status)));
        site.destination(&format!("to-{reason}"), &receiver.url(&path), &limits);
    }
    site.prepare().await;
    let ingest = site.start(Role::Ingest).await;
    let _dispatcher = site.start(Role::Dispatcher).await;

    let [webhook] = payload::generated(5, 1).try_into().expect("one");
    let sent = sender(&ingest).post(&webhook).await;
    assert!(sent.acknowledged(), "{sent:?}");
    let letters = dead_letters::read(&stack, site.topic_prefix(), Some(3)).await;
    for end in ends {
        let letter = letters
            .iter()
            .find(|letter| letter.reason == end.0)
            .expect(end.0);
        assert_eq!(letter.source, "github");
        assert_eq!(letter.delivery_id, webhook.delivery_id);
        assert_eq!(letter.destination, format!("to-{}", end.0));
        assert_eq!(letter.body, webhook.body);
        assert_ending(letter, end, sent.at_ms);
        assert_eq!(letter.record["framing"], "single-object");
        assert_eq!(
            letter.record["key"],
            BASE64_STANDARD.encode(&webhook.delivery_id)
        );
        let topic = if end.2 == 2 { "delay.5s" } else { "webhooks" };
        let origin = &letter.field("origin")["topic"];
        assert_eq!(origin, &format!("{}.{topic}", site.topic_prefix()));
    }
}

/// Everything that depends on how the delivery ended: reason, status and number of its attempts.
fn assert_ending(
    letter: &DeadLetter,
    (reason, status, attempts): (&str, u16, usize),
    sent_ms: i64,
) {
    assert_eq!(letter.field("event_type"), "push");
    assert_eq!(
        letter.field("dead_letter_id").as_str().map(str::len),
        Some(32)
    );
    assert!(
        letter
            .field("detail")
            .as_str()
            .is_some_and(|detail| !detail.is_empty())
    );
    assert_eq!(letter.field("attempts"), attempts);
    assert_eq!(letter.field("generation"), 0);
    assert_eq!(letter.field("last_status"), status);
    assert_eq!(letter.field("content_type"), "application/json");
    let received_ms = letter.field("received_at").as_i64().expect("a time");
    let failed_ms = letter.field("failed_at").as_i64().expect("a time");
    assert!(
        (0..=60_000).contains(&(sent_ms - received_ms)),
        "{received_ms}"
    );
    assert!(failed_ms >= received_ms + if attempts == 2 { 5_000 } else { 0 });
    let history = letter.field("history").as_array().expect("a list");
    assert_eq!(history.len(), attempts);
    for (number, attempt) in history.iter().enumerate() {
        assert_eq!(attempt["attempt"], number + 1);
        assert_eq!(attempt["status"], status);
        assert_eq!(
            attempt["outcome"],
            if reason == "exhausted" {
                "failed"
            } else {
                reason
            }
        );
        assert_eq!(attempt["token"].as_str().map(str::len), Some(36));
    }
    let event = BASE64_STANDARD.encode("push");
    let headers = letter.field("headers").as_array().expect("a list");
    assert!(
        headers
            .iter()
            .any(|it| it["name"] == "x-github-event" && it["value"] == event)
    );
    assert_eq!(letter.record["headers"]["fencepost-reason"], reason);
}

/// (e) GitHub's own 329 examples, byte for byte.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn real_payloads_arrive_byte_for_byte() {
    let Some(stack) = stack() else { return };
    let _turn = turn().await;
    let receiver = Receiver::start().await;
    let mut site = Site::on_stack(&stack, "examples", 4);
    site.destination("billing", &receiver.url("/billing"), &Limits::default());
    site.prepare().await;
    let ingest = site.start(Role::Ingest).await;
    let _dispatcher = site.start(Role::Dispatcher).await;

    let webhooks = payload::examples();
    assert_eq!(webhooks.len(), 329);
    let sent = sender(&ingest).post_all(webhooks.clone()).await;
    assert_all_acknowledged(&sent);
    arrived(&receiver, "/billing", webhooks.len()).await;
    oracle(sent, &receiver, &["billing"]).judge().assert_clean();
    for arrival in receiver.arrivals() {
        let Webhook { event, .. } = webhooks
            .iter()
            .find(|webhook| webhook.delivery_id == arrival.delivery_id)
            .expect("the oracle has seen to it");
        assert_eq!(arrival.headers["x-github-event"], **event);
        assert_eq!(arrival.headers["content-type"], "application/json");
        assert_eq!(arrival.headers["idempotency-key"], *arrival.webhook_id);
    }
}

/// Bytes that are no record end in the dead letters as they are, and what is behind them is delivered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn undecodable_records_are_dead_lettered_raw_and_the_partition_goes_on() {
    let Some(stack) = stack() else { return };
    let _turn = turn().await;
    let receiver = Receiver::start().await;
    let mut site = Site::on_stack(&stack, "broken", 1);
    site.destination("billing", &receiver.url("/billing"), &Limits::default());
    site.prepare().await;
    // Among them a right frame with a broken datum, and an empty value.
    let raw: [&[u8]; 3] = [
        b"not avro at all \xff\x00",
        b"\x00\x00\x00\x00\x01\x02",
        b"",
    ];
    let prefix = site.topic_prefix();
    for value in raw {
        dead_letters::write_raw(&stack, &format!("{prefix}.webhooks"), 0, "strange", value).await;
    }
    dead_letters::write_raw(
        &stack,
        &format!("{prefix}.delay.5s"),
        0,
        "late",
        b"\xc3\x01",
    )
    .await;
    let ingest = site.start(Role::Ingest).await;
    let _dispatcher = site.start(Role::Dispatcher).await;
    let sent = sender(&ingest).post_all(payload::generated(6, 20)).await;
    assert_all_acknowledged(&sent);
    arrived(&receiver, "/billing", 20).await;

    let letters = dead_letters::read(&stack, prefix, Some(4)).await;
    assert!(
        letters.iter().all(|letter| letter.reason == "undecodable"),
        "{letters:?}"
    );
    let bodies: BTreeSet<_> = letters
        .iter()
        .map(|letter| letter.body.as_slice())
        .collect();
    assert_eq!(
        bodies,
        BTreeSet::from([raw[0], raw[1], raw[2], b"\xc3\x01"])
    );
    oracle(sent, &receiver, &["billing"]).judge().assert_clean();
}

/// The log does not answer: 503 with Retry-After, nothing acknowledged; once it answers again, so does ingest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ingest_answers_503_while_the_log_is_away() {
    let Some(stack) = stack() else { return };
    let _turn = turn().await;
    let kafka = OwnKafka::start().await;
    let stack = Stack {
        kafka: kafka.address(),
        ..stack
    };
    let mut site = Site::on_stack(&stack, "away", 1);
    site.destination("billing", "http://127.0.0.1:9/billing", &Limits::default());
    site.tool(&["topics", "ensure"]).await.assert_success();
    let ingest = site.start(Role::Ingest).await;
    let webhooks = payload::generated(7, 3);
    let [before, during, after] = webhooks.as_slice() else {
        unreachable!("three")
    };
    assert!(sender(&ingest).post(before).await.acknowledged());

    kafka.pause();
    let answer = sender(&ingest)
        .request(during)
        .send()
        .await
        .expect("ingest answers");
    assert_eq!(answer.status(), 503);
    let seconds = answer
        .headers()
        .get("retry-after")
        .and_then(|value| value.to_str().ok());
    assert!(
        seconds.is_some_and(|text| text.parse::<u32>().is_ok()),
        "{seconds:?}"
    );
    assert_eq!(answer.headers()["content-type"], "application/problem+json");

    kafka.resume();
    until(
        Duration::from_secs(60),
        "ingest takes webhooks again",
        async || {
            sender(&ingest)
                .post(after)
                .await
                .acknowledged()
                .then_some(())
        },
    )
    .await;
}

/// Two processes on one directory would both believe that they own it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_standalone_on_the_same_directory_ends_with_a_clear_error() {
    let _turn = turn().await;
    let receiver = Receiver::start().await;
    let mut site = Site::embedded("second");
    site.destination("billing", &receiver.url("/billing"), &Limits::default());
    let first = site.start(Role::Standalone).await;
    let mut second = site.launch(Role::Standalone);
    let status = second.wait(STOP).await;
    assert!(!status.success());
    let log = second.log();
    assert!(
        log.contains(&site.dir().display().to_string()),
        "names no directory: {log}"
    );
    assert!(log.contains("another process"), "says not why: {log}");
    assert!(!log.contains("panicked"), "{log}");

    let sent = sender(&first).post_all(payload::generated(8, 50)).await;
    assert_all_acknowledged(&sent);
    arrived(&receiver, "/billing", 50).await;
    oracle(sent, &receiver, &["billing"]).judge().assert_clean();
}

/// kill -9 of everything at once: what was acknowledged stands in the directory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standalone_that_was_killed_goes_on_where_it_was() {
    let _turn = turn().await;
    let receiver = Receiver::start().await;
    receiver.script(
        "/billing",
        Script::always(Reply::Slow(Duration::from_millis(50))),
    );
    let mut site = Site::embedded("killed");
    site.destination("billing", &receiver.url("/billing"), &Limits::default());
    let mut first = site.start(Role::Standalone).await;
    let load = {
        let sender = sender(&first);
        tokio::spawn(async move { sender.post_all(payload::generated(9, 1_000)).await })
    };
    arrival_count(&receiver, 200).await;
    let kill_ms = first.kill_9();
    let sent = load.await.expect("the load does not panic");
    let _second = site.start(Role::Standalone).await;

    let mut oracle = oracle(sent, &receiver, &["billing"]);
    oracle.kills_ms = vec![kill_ms];
    nothing_is_owed(&mut oracle, &receiver).await;
    let report = oracle.judge();
    println!("{report}");
    report.assert_clean();
}

fn sender(ingest: &Process) -> Sender {
    Sender::new(ingest.hook_url(), GITHUB_SECRET)
}

/// An oracle over one receiver whose paths are named as the destinations.
fn oracle(sent: Vec<Sent>, receiver: &Receiver, destinations: &[&str]) -> Oracle {
    let named = |name: &&str| ((*name).to_owned(), format!("/{name}"));
    let destinations = destinations.iter().map(named).collect();
    Oracle {
        sent,
        arrivals: receiver.arrivals(),
        destinations,
        ..Oracle::default()
    }
}

fn assert_all_acknowledged(sent: &[Sent]) {
    let refused: Vec<_> = sent
        .iter()
        .filter(|sent| !sent.acknowledged())
        .take(5)
        .collect();
    assert!(refused.is_empty(), "not acknowledged: {refused:?}");
}

/// For the first delivery of each destination: the row counts the attempts as the receiver saw them.
async fn assert_store_agrees(site: &Site, oracle: &Oracle) {
    let by_delivery = oracle.by_delivery();
    for (name, path) in &oracle.destinations {
        let found = by_delivery.iter().find(|((at, _), _)| at == path);
        let ((_, id), arrivals) = found.expect("everything has arrived");
        let last = arrivals.last().expect("at least one").attempt;
        let arguments = ["store", "get", "github", id, name, "--json"];
        let row = until(STANDSTILL, "the row says completed", async || {
            let answer = site.tool(&arguments).await;
            let row: serde_json::Value = serde_json::from_str(&answer.stdout).ok()?;
            (row["status"] == "completed").then_some(row)
        })
        .await;
        assert_eq!(row["attempts"], last, "{name} {id}");
    }
}

/// Waits until `count` different deliveries were accepted at `path`.
async fn arrived(receiver: &Receiver, path: &str, count: usize) {
    let seen = goes_on(count, || receiver.accepted(path)).await;
    assert!(
        seen >= count,
        "stands still at {seen} of {count} deliveries at {path}"
    );
}

/// Waits until `count` requests have arrived.
async fn arrival_count(receiver: &Receiver, count: usize) {
    let seen = goes_on(count, || receiver.count()).await;
    assert!(seen >= count, "stands still at {seen} of {count} arrivals");
}

/// Waits until nothing that the oracle knows of is owed any more, or nothing comes any more; then it is to be judged.
async fn nothing_is_owed(oracle: &mut Oracle, receiver: &Receiver) {
    let owed = oracle.judge().obligations;
    goes_on(owed, || {
        oracle.arrivals = receiver.arrivals();
        owed - oracle.judge().lost.len()
    })
    .await;
}

/// Waits until `look` gives `count` or stands still, however long all of it takes; gives what it came to.
async fn goes_on(count: usize, mut look: impl FnMut() -> usize) -> usize {
    let mut seen = look();
    while seen < count {
        let more = within(STANDSTILL, async || Some(look()).filter(|now| *now > seen)).await;
        let Some(now) = more else { break };
        seen = now;
    }
    seen
}
