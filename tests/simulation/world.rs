//! One run: the plan happens, the faults end, everything comes to rest, the oracle judges.

use crate::{
    lot::Lot,
    oracle::{Tally, Violation},
    plan::{ALWAYS, CANARY, Fault, LogWeather, Mood, Plan, Planned, StoreWeather},
    processes::{Ingest, Machine},
    scene::{Scene, Weather},
    senders::post,
};
use bytes::Bytes;
use event_log::{EventLog, Record};
use schemas::{DelayTier, DeliveryKey, Topic};
use std::{sync::Arc, time::Duration};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};

/// After the faults have ended, a fresh webhook is delivered within this time (invariant 8): attempts that hang when the
/// receivers mend may first run into their timeout of up to 20 s, and a failing port is asked again after up to 6 s.
const FRESH_WITHIN_MS: i64 = 30_000;
/// When nothing has come to rest by then, it never does. Longer than any `max_age` and the tiers of deferrals.
const REST_WITHIN: Duration = Duration::from_secs(3 * 3_600);
/// Longer than a lease and a skew: whoever would send again has done so.
const QUIET: Duration = Duration::from_secs(40);

/// What came of a run.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) plan: Plan,
    pub(crate) violation: Option<Violation>,
    /// Lines of the trace about what went wrong.
    pub(crate) lines: Vec<String>,
    pub(crate) hash: u64,
    pub(crate) events: usize,
    pub(crate) virtual_ms: i64,
    pub(crate) tally: Tally,
}

struct World {
    scene: Arc<Scene>,
    ingest: Arc<Ingest>,
    machines: Vec<Machine>,
    posts: JoinSet<()>,
    began: Instant,
    /// What the plan brings about later: restarts and ends of weather.
    later: Vec<(u64, Later)>,
}

#[derive(Clone, Copy, Debug)]
enum Later {
    Start(usize),
    StoreClears,
    LogClears,
    ReceiversMend,
    /// The store again.
    Reaches(usize),
}

/// Runs a seed on a thread of its own, in virtual time.
pub(crate) fn run(seed: u64, lines: usize) -> Report {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let mut world = World::new(Plan::of(seed));
        world.happens().await;
        world.heals().await;
        world.rests().await;
        world.report(lines)
    })
}

// === impl World ===

impl World {
    fn new(plan: Plan) -> Self {
        let dispatchers = plan.dispatchers;
        let scene = Scene::new(plan);
        let ingest = Arc::new(Ingest::start(&scene));
        let machines = (0..dispatchers).map(|number| Machine::new(&scene, number));
        Self {
            machines: machines.collect(),
            scene,
            ingest,
            posts: JoinSet::new(),
            began: Instant::now(),
            later: Vec::new(),
        }
    }

    /// Everything up to the time when the faults end.
    async fn happens(&mut self) {
        for machine in &mut self.machines {
            machine.start();
        }
        let plan = self.scene.plan.clone();
        for webhook in &plan.webhooks {
            let webhook = Arc::new(webhook.clone());
            for at_ms in &webhook.at_ms {
                self.post_at(*at_ms, &webhook);
            }
        }
        for (at_ms, fault) in plan.faults {
            self.until(at_ms).await;
            self.scene.tell("world", &format!("{fault:?}"));
            self.bring(at_ms, fault).await;
        }
        self.until(plan.heal_at_ms).await;
    }

    /// The faults end; dispatchers that are down start; fresh webhooks come.
    async fn heals(&mut self) {
        self.scene.tell("world", "the faults end");
        let mood = (!self.scene.plan.long).then_some(Mood::Good);
        self.scene.set_weather(|weather| {
            *weather = Weather {
                mood,
                ..Weather::default()
            };
        });
        self.later.clear();
        let skews_ms = self.scene.plan.skews_ms.clone();
        for (machine, skew_ms) in self.machines.iter_mut().zip(skews_ms) {
            machine.crash(usize::MAX);
            machine.thaw();
            machine.end_now();
            machine.set_clock(skew_ms);
        }
        sleep(Duration::from_millis(1)).await;
        for machine in &mut self.machines {
            machine.start();
        }
        let healed_ms = self.scene.at_ms();
        let fresh: Vec<_> = (0..4).map(canary).collect();
        for webhook in &fresh {
            self.post_at(0, webhook);
        }
        sleep(Duration::from_millis(FRESH_WITHIN_MS.unsigned_abs())).await;
        for webhook in &fresh {
            let key = DeliveryKey {
                source: CANARY.to_owned(),
                delivery_id: webhook.delivery_id.clone(),
                destination: ALWAYS.to_owned(),
            };
            let mut oracle = self.scene.oracle();
            let ended_ms = oracle.ended_at_ms(&key);
            if ended_ms.is_none_or(|at_ms| at_ms - healed_ms > FRESH_WITHIN_MS) {
                let what = format!("{key}: fresh, and not delivered within {FRESH_WITHIN_MS} ms");
                oracle.violated(8, what, Some(&key));
            }
        }
    }

    /// Waits until nothing is open, and for what may come after that.
    async fn rests(&mut self) {
        let until = Instant::now() + REST_WITHIN;
        while self.scene.oracle().violation().is_none() && Instant::now() < until {
            sleep(Duration::from_secs(1)).await;
            for machine in &mut self.machines {
                machine.start();
            }
            while self.posts.try_join_next().is_some() {}
            self.scene.oracle().check_carried();
            if self.posts.is_empty() && self.scene.oracle().unsettled().is_none() {
                break;
            }
        }
        sleep(QUIET).await;
        for machine in &self.machines {
            machine.stop();
        }
        let mut left = 100;
        while left > 0 && self.machines.iter().any(Machine::is_running) {
            left -= 1;
            sleep(Duration::from_millis(100)).await;
        }
        let rows = self.scene.store.rows();
        let at_ms = self.scene.at_ms();
        let mut oracle = self.scene.oracle();
        if left == 0 {
            oracle.violated(
                8,
                "a dispatcher does not stop although it is idle".to_owned(),
                None,
            );
        }
        oracle.look_at_commits(at_ms, &self.scene.log);
        oracle.judge(rows);
    }

    fn report(&self, lines: usize) -> Report {
        let oracle = self.scene.oracle();
        let violation = oracle.violation().cloned();
        let about = violation
            .as_ref()
            .and_then(|violation| violation.about.as_ref());
        let id = about.map(|key| format!("{}/{}", key.source, key.delivery_id));
        let words: Vec<&str> = match &id {
            Some(id) => vec![
                id,
                " world ",
                " starts",
                " dies",
                " stops",
                " owns ",
                " gives up ",
            ],
            None => vec![""],
        };
        let lines = oracle.trace.about(&words, lines);
        Report {
            plan: self.scene.plan.clone(),
            lines: lines.into_iter().map(ToOwned::to_owned).collect(),
            hash: oracle.trace.hash(),
            events: oracle.trace.count(),
            virtual_ms: self.scene.at_ms(),
            tally: oracle.tally.clone(),
            violation,
        }
    }

    fn post_at(&mut self, at_ms: u64, webhook: &Arc<Planned>) {
        let at = self.began + Duration::from_millis(at_ms);
        let posting = post(
            Arc::clone(&self.scene),
            Arc::clone(&self.ingest),
            Arc::clone(webhook),
        );
        self.posts.spawn(async move {
            sleep_until(at).await;
            posting.await;
        });
    }

    /// Waits until `at_ms`; what was put off happens in between.
    async fn until(&mut self, at_ms: u64) {
        loop {
            self.later.sort_by_key(|(at_ms, _)| *at_ms);
            let next = self.later.first().copied();
            let Some((then_ms, later)) = next.filter(|(then_ms, _)| *then_ms <= at_ms) else {
                break;
            };
            sleep_until(self.began + Duration::from_millis(then_ms)).await;
            self.later.remove(0);
            self.scene.tell("world", &format!("{later:?}"));
            match later {
                Later::Start(machine) if self.machines[machine].is_running() => {
                    // It has not died yet, or is still ending.
                    self.later.push((then_ms + 1_000, Later::Start(machine)));
                }
                Later::Start(machine) => self.machines[machine].start(),
                Later::StoreClears => self
                    .scene
                    .set_weather(|it| it.store = StoreWeather::default()),
                Later::LogClears => self.scene.set_weather(|it| it.log = LogWeather::default()),
                Later::Reaches(machine) => self.scene.set_weather(|it| it.cut[machine] = false),
                Later::ReceiversMend => self.scene.set_weather(|it| it.mood = None),
            }
        }
        sleep_until(self.began + Duration::from_millis(at_ms)).await;
    }

    async fn bring(&mut self, at_ms: u64, fault: Fault) {
        let (scene, log) = (&self.scene, &self.scene.log);
        match fault {
            Fault::Crash {
                dispatcher,
                steps,
                down_ms,
            } => {
                self.machines[dispatcher].crash(steps);
                self.later.push((at_ms + down_ms, Later::Start(dispatcher)));
            }
            Fault::Stop {
                dispatcher,
                down_ms,
            } => {
                self.machines[dispatcher].stop();
                self.later.push((at_ms + down_ms, Later::Start(dispatcher)));
            }
            Fault::CrashIngest => self.ingest.crash(),
            Fault::Freeze {
                dispatcher,
                for_ms,
                lost,
            } => {
                self.machines[dispatcher].freeze(for_ms);
                if lost {
                    (0..scene.plan.partitions).for_each(|partition| log.revoke(partition, true));
                }
            }
            Fault::Cut {
                dispatcher,
                for_ms,
                lost,
            } => {
                scene.set_weather(|it| it.cut[dispatcher] = true);
                if lost {
                    (0..scene.plan.partitions).for_each(|partition| log.revoke(partition, true));
                }
                let until_ms = at_ms + for_ms;
                self.later.push((until_ms, Later::Reaches(dispatcher)));
            }
            Fault::Revoke { partition, lost } => log.revoke(partition, lost),
            Fault::Store { weather, for_ms } => {
                scene.set_weather(|it| it.store = weather);
                self.later.push((at_ms + for_ms, Later::StoreClears));
            }
            Fault::Log { weather, for_ms } => {
                scene.set_weather(|it| it.log = weather);
                self.later.push((at_ms + for_ms, Later::LogClears));
            }
            Fault::Reads { count } => log.fail_reads(count),
            Fault::Gap { partition, count } => {
                for topic in [Topic::Webhooks, Topic::Delay(DelayTier::S5)] {
                    log.skip_offsets(topic, partition, count);
                }
            }
            Fault::Garbage { number } => self.garbage(number).await,
            Fault::Skew {
                dispatcher,
                skew_ms,
            } => self.machines[dispatcher].set_clock(skew_ms),
            Fault::Jump { dispatcher, by_ms } => self.machines[dispatcher].clock.advance(by_ms),
            Fault::Receivers { mood, for_ms } => {
                scene.set_weather(|it| it.mood = Some(mood));
                self.later.push((at_ms + for_ms, Later::ReceiversMend));
            }
        }
    }

    /// What some other program has written into the topic.
    async fn garbage(&self, number: u64) {
        let lot = Lot::new(self.scene.plan.seed, 500 + number);
        let size = lot.below(60);
        let record = Record {
            topic: Topic::Webhooks,
            key: Bytes::from(lot.bytes(8)),
            value: Bytes::from(lot.bytes(size)),
            headers: Vec::new(),
        };
        let appended = self.scene.log.produce(record.clone()).await;
        let appended = appended.expect("the log itself has no faults");
        let mut oracle = self.scene.oracle();
        drop(oracle.appended(&self.scene.codec, appended, &record));
    }
}

fn canary(number: usize) -> Arc<Planned> {
    Arc::new(Planned {
        source: CANARY,
        delivery_id: format!("fresh-{number}"),
        event_type: "push",
        body: format!("{{\"fresh\": {number}}}").into_bytes(),
        at_ms: vec![0],
    })
}
