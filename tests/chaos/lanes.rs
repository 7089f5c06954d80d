//! Does what the plan says, one lane beside the other, and records what was really done and when.

use crate::{RETRY_AFTER_S, TROUBLED, fleet::Fleet, tell};
use harness::{
    chaos::{
        plan::{Fault, Harm, Lane, Mood, NODES, Step},
        verdict::{Cause, Injected, Touch},
    },
    cluster::{Cluster, Node},
    cql_proxy::CqlProxy,
    now_ms,
    receiver::{Receiver, Reply, Script},
};
use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};
use tokio::time::{Instant, sleep, sleep_until};

/// Between a mended fault and the next one of its lane, when mending took longer than planned.
const REST: Duration = Duration::from_secs(5);
/// A process that is asked to end.
const STOP: Duration = Duration::from_secs(90);

/// What all lanes share.
#[derive(Debug)]
pub(crate) struct Run<'a> {
    cluster: &'a Cluster,
    steps: Vec<Step>,
    start: Instant,
    pub(crate) end: Instant,
    journal: Mutex<Journal>,
}

#[derive(Debug, Default)]
struct Journal {
    injected: Vec<Injected>,
    touches: Vec<Touch>,
    ended_by_themselves: usize,
}

// === impl Run ===

impl<'a> Run<'a> {
    /// Begins now.
    pub(crate) fn new(cluster: &'a Cluster, steps: Vec<Step>, duration: Duration) -> Self {
        let start = Instant::now();
        Self {
            cluster,
            steps,
            start,
            end: start + duration,
            journal: Mutex::default(),
        }
    }

    /// What was done: touches, faults by time, and how many processes ended by themselves.
    pub(crate) fn recorded(self) -> (Vec<Touch>, Vec<Injected>, usize) {
        let mut journal = self
            .journal
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        journal.injected.sort_by_key(|injected| injected.from_ms);
        (
            journal.touches,
            journal.injected,
            journal.ended_by_themselves,
        )
    }

    fn steps(&self, lane: Lane) -> impl Iterator<Item = Step> {
        let steps = self.steps.iter().copied();
        steps.filter(move |step| step.fault.lane() == lane)
    }

    /// When a step begins: as planned, or later when the one before took longer. None when it would not end in time.
    fn begin(&self, step: &Step, not_before: Instant) -> Option<Instant> {
        let planned = self.start + Duration::from_millis(step.at_ms);
        let begin = planned.max(not_before);
        (begin + Duration::from_millis(step.length_ms) < self.end).then_some(begin)
    }

    fn note(&self, fault: Fault, from_ms: i64, ended_ms: i64) {
        let mended_ms = now_ms();
        tell(&format!(
            "{:>7.1} s  {fault:?}: lasted {:.1} s, mended in {:.1} s",
            self.start.elapsed().as_secs_f64(),
            (ended_ms - from_ms) as f64 / 1_000.0,
            (mended_ms - ended_ms) as f64 / 1_000.0,
        ));
        self.journal().injected.push(Injected {
            fault,
            from_ms,
            ended_ms,
            mended_ms,
        });
    }

    fn touch(&self, cause: Cause, instance: Option<usize>, from_ms: i64, to_ms: i64) {
        self.journal().touches.push(Touch {
            cause,
            instance,
            from_ms,
            to_ms,
        });
    }

    fn journal(&self) -> std::sync::MutexGuard<'_, Journal> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_ended_by_themselves(&self, fleet: &mut Fleet<'_>) {
        for (number, at_ms) in fleet.take_ended_by_themselves() {
            // It ended some time before that was seen.
            self.touch(Cause::Killed, Some(number), at_ms - 1_000, at_ms);
            self.journal().ended_by_themselves += 1;
        }
    }
}

/// Faults of dispatchers.
pub(crate) async fn dispatchers(run: &Run<'_>, fleet: &mut Fleet<'_>) {
    processes(run, fleet, Lane::Dispatchers).await;
}

/// Faults of ingests.
pub(crate) async fn ingests(run: &Run<'_>, fleet: &mut Fleet<'_>) {
    processes(run, fleet, Lane::Ingests).await;
}

async fn processes(run: &Run<'_>, fleet: &mut Fleet<'_>, lane: Lane) {
    let mut not_before = run.start;
    for step in run.steps(lane) {
        let Some(begin) = run.begin(&step, not_before) else {
            break;
        };
        fleet.wait_until(begin).await;
        let from_ms = now_ms();
        let ended_ms =
            if let Fault::Dispatcher(place, harm) | Fault::Ingest(place, harm) = step.fault {
                harm_process(run, fleet, place, harm, step.length_ms).await
            } else if let Fault::RebalanceStorm(rounds) = step.fault {
                rebalance_storm(run, fleet, rounds).await
            } else {
                rolling_restart(fleet).await
            };
        run.note_ended_by_themselves(fleet);
        run.note(step.fault, from_ms, ended_ms);
        not_before = Instant::now() + REST;
    }
    fleet.wait_until(run.end).await;
    for place in 0..fleet.len() {
        fleet.ready(place).await;
    }
    run.note_ended_by_themselves(fleet);
}

/// Gives when mending began.
async fn harm_process(
    run: &Run<'_>,
    fleet: &mut Fleet<'_>,
    place: usize,
    harm: Harm,
    length_ms: u64,
) -> i64 {
    let length = Duration::from_millis(length_ms);
    let process = fleet.process(place);
    let number = Some(process.number());
    match harm {
        Harm::Kill => {
            let at_ms = process.kill_9();
            run.touch(Cause::Killed, number, at_ms, now_ms());
            sleep(length).await;
            fleet.replace(place);
        }
        Harm::Freeze => {
            let from_ms = now_ms();
            process.freeze();
            sleep(length).await;
            process.thaw();
            run.touch(Cause::Frozen, number, from_ms, now_ms());
        }
        Harm::Stop => {
            let status = process.terminate(STOP).await;
            assert!(
                status.success(),
                "{status} after SIGTERM: {}",
                process.log()
            );
            sleep(length).await;
            fleet.replace(place);
        }
    }
    let ended_ms = now_ms();
    fleet.ready(place).await;
    ended_ms
}

async fn rolling_restart(fleet: &mut Fleet<'_>) -> i64 {
    let mut ended_ms = now_ms();
    for place in 0..fleet.len() {
        let status = fleet.process(place).terminate(STOP).await;
        assert!(status.success(), "{status} after SIGTERM");
        fleet.replace(place);
        ended_ms = now_ms();
        fleet.ready(place).await;
    }
    ended_ms
}

/// A further dispatcher comes, and goes with and without a word.
async fn rebalance_storm(run: &Run<'_>, fleet: &mut Fleet<'_>, rounds: u32) -> i64 {
    for round in 0..rounds {
        let place = fleet.add();
        fleet.ready(place).await;
        let process = fleet.process(place);
        if round % 2 == 0 {
            let status = process.terminate(STOP).await;
            assert!(status.success(), "{status} after SIGTERM");
        } else {
            let number = Some(process.number());
            let at_ms = process.kill_9();
            run.touch(Cause::Killed, number, at_ms, now_ms());
        }
        fleet.remove_last();
    }
    now_ms()
}

/// Faults of brokers. They explain no repeat: an answer is noted in the store.
pub(crate) async fn log(run: &Run<'_>) {
    let mut not_before = run.start;
    for step in run.steps(Lane::Log) {
        let Some(begin) = run.begin(&step, not_before) else {
            break;
        };
        sleep_until(begin).await;
        let (from_ms, length) = (now_ms(), Duration::from_millis(step.length_ms));
        let brokers = &run.cluster.kafka;
        let ended_ms = if let Fault::Broker(node, harm) = step.fault {
            harm_node(&brokers[node], harm, length).await
        } else if let Fault::LogOutage(node) = step.fault {
            outage(brokers, node, length).await
        } else if let Fault::DiskFull(node) = step.fault {
            disk_full(&brokers[node], length).await
        } else {
            continue;
        };
        run.note(step.fault, from_ms, ended_ms);
        not_before = Instant::now() + REST;
    }
}

/// Faults of the store's nodes.
pub(crate) async fn store(run: &Run<'_>) {
    let mut not_before = run.start;
    for step in run.steps(Lane::Store) {
        let Some(begin) = run.begin(&step, not_before) else {
            break;
        };
        sleep_until(begin).await;
        let (from_ms, length) = (now_ms(), Duration::from_millis(step.length_ms));
        let nodes = &run.cluster.cassandra;
        let ended_ms = if let Fault::Node(node, harm) = step.fault {
            harm_node(&nodes[node], harm, length).await
        } else if let Fault::StoreOutage(node) = step.fault {
            outage(nodes, node, length).await
        } else {
            continue;
        };
        run.touch(Cause::Store, None, from_ms, now_ms());
        run.note(step.fault, from_ms, ended_ms);
        not_before = Instant::now() + REST;
    }
}

async fn harm_node(node: &Node, harm: Harm, length: Duration) -> i64 {
    match harm {
        Harm::Kill => {
            node.kill9().await;
            sleep(length).await;
            node.start().await;
        }
        Harm::Freeze => {
            node.pause();
            sleep(length).await;
            node.resume();
        }
        Harm::Stop => {
            node.stop().await;
            sleep(length).await;
            node.start().await;
        }
    }
    let ended_ms = now_ms();
    node.wait_ready().await;
    ended_ms
}

/// All nodes but one stand still.
async fn outage(nodes: &[Node], spared: usize, length: Duration) -> i64 {
    let struck = || (1..NODES).map(|more| &nodes[(spared + more) % NODES]);
    struck().for_each(Node::pause);
    sleep(length).await;
    struck().for_each(Node::resume);
    let ended_ms = now_ms();
    for node in struck() {
        node.wait_ready().await;
    }
    ended_ms
}

/// Whatever the broker writes fails; it ends sooner or later, and comes back with room on its disk.
async fn disk_full(node: &Node, length: Duration) -> i64 {
    node.fill_disk();
    sleep(length).await;
    if node.is_running() {
        node.kill9().await;
    }
    node.start().await;
    let ended_ms = now_ms();
    node.wait_ready().await;
    ended_ms
}

/// Answers of the store that get lost.
pub(crate) async fn answers(run: &Run<'_>, proxy: &CqlProxy) {
    let mut not_before = run.start;
    for step in run.steps(Lane::Answers) {
        let Some(begin) = run.begin(&step, not_before) else {
            break;
        };
        sleep_until(begin).await;
        let from_ms = now_ms();
        proxy.drop_answers(true);
        sleep(Duration::from_millis(step.length_ms)).await;
        proxy.drop_answers(false);
        run.touch(Cause::Store, None, from_ms, now_ms());
        run.note(step.fault, from_ms, now_ms());
        not_before = Instant::now() + REST;
    }
}

/// Moods of one receiver.
pub(crate) async fn receivers(run: &Run<'_>, receiver: &mut Receiver) {
    let mut not_before = run.start;
    for step in run.steps(Lane::Receivers) {
        let Some(begin) = run.begin(&step, not_before) else {
            break;
        };
        let Fault::Receiver(mood) = step.fault else {
            continue;
        };
        sleep_until(begin).await;
        let from_ms = now_ms();
        match reply(mood) {
            Some(reply) => receiver.script(TROUBLED, Script::always(reply)),
            None => receiver.down().await,
        }
        sleep(Duration::from_millis(step.length_ms)).await;
        receiver.script(TROUBLED, Script::always(Reply::Status(200)));
        receiver.up().await;
        run.note(step.fault, from_ms, now_ms());
        not_before = Instant::now();
    }
}

/// None when it does not even listen.
fn reply(mood: Mood) -> Option<Reply> {
    Some(match mood {
        Mood::Slow => Reply::Slow(Duration::from_millis(1_500)),
        Mood::Late => Reply::Slow(Duration::from_millis(5_900)),
        Mood::Failing => Reply::Status(503),
        Mood::Hanging => Reply::Hang,
        Mood::Throttling => Reply::RetryAfter(429, RETRY_AFTER_S),
        Mood::Cutting => Reply::Cut,
        Mood::Stammering => Reply::Stammer,
        Mood::Down => return None,
    })
}
