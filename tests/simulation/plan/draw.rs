//! How a seed becomes a plan.

use super::{ALWAYS, CANARY, Fault, LogWeather, Mood, Plan, Planned, SOURCES, StoreWeather};
use crate::lot::Lot;
use dispatcher::{DestinationConfig, DispatcherConfig, RouteConfig, config::SourcePolicy};
use schemas::Reopen;
use serde_json::json;
use std::{collections::BTreeMap, time::Duration};

impl Plan {
    pub(crate) fn of(seed: u64) -> Self {
        let lot = Lot::new(seed, 0);
        let calm = seed % 5 == 4;
        // A few runs are long, for the larger tiers.
        let long = seed % 20 == 10;
        let config = config(&lot, long);
        let dispatchers = lot.pick(&[1, 2, 3, 3, 4]);
        let margin_ms = i64::try_from(config.skew_margin.as_millis()).expect("short");
        // Any two differ by the margin at most.
        let skew_ms = || lot.between(-margin_ms / 2, margin_ms / 2);
        let skews_ms = (0..dispatchers).map(|_| skew_ms()).collect();
        let (destinations, moods) = destinations(&lot, long);
        let mut plan = Self {
            seed,
            calm,
            long,
            partitions: lot.pick(&[1, 2, 4, 6]),
            dispatchers,
            config,
            destinations,
            moods,
            routes: routes(),
            policies: policies(&lot),
            skews_ms,
            webhooks: Vec::new(),
            faults: Vec::new(),
            heal_at_ms: lot.pick(&[60_000, 90_000, 150_000]),
        };
        plan.webhooks = plan.draw_webhooks(&Lot::new(seed, 1));
        plan.faults = plan.draw_faults(&Lot::new(seed, 2), &skew_ms);
        plan.faults.sort_by_key(|(at_ms, _)| *at_ms);
        plan
    }

    fn draw_webhooks(&self, lot: &Lot) -> Vec<Planned> {
        let count = lot.pick(&[15, 25, 40]);
        let span_ms = usize::try_from(self.heal_at_ms * 3 / 4).expect("short");
        // Half of the runs have bursts.
        let bursts = lot.chance(0.5);
        (0..count)
            .map(|number| {
                let source = lot.pick(&SOURCES);
                let event_type = lot.pick(&["push", "push", "release"]);
                let mut first_ms = lot.below(span_ms);
                if bursts {
                    first_ms -= first_ms % 20_000;
                }
                let repeats = lot.pick(&[0, 0, 0, 1, 1, 3]);
                let mut at_ms = vec![first_ms as u64];
                for _ in 0..repeats {
                    let later_ms = lot.pick(&[0, 50, 3_000, 20_000, 60_000]);
                    at_ms.push((first_ms + lot.below(later_ms + 1)) as u64);
                }
                Planned {
                    source,
                    delivery_id: format!("{source}-{number}"),
                    event_type,
                    body: body(lot, event_type, number),
                    at_ms,
                }
            })
            .collect()
    }

    fn draw_faults(&self, lot: &Lot, skew_ms: &dyn Fn() -> i64) -> Vec<(u64, Fault)> {
        let span = usize::try_from(self.heal_at_ms).expect("short");
        let kinds = if self.calm { 5 } else { 15 };
        let count = lot.pick(&[2, 5, 9, 14]);
        let jumps = !self.calm && lot.chance(0.15);
        (0..count)
            .map(|number| {
                let fault = match lot.below(kinds) {
                    3 => Fault::Skew {
                        dispatcher: lot.below(self.dispatchers),
                        skew_ms: skew_ms(),
                    },
                    14 if jumps => Fault::Jump {
                        dispatcher: lot.below(self.dispatchers),
                        by_ms: lot.pick(&[-120_000, -5_000, 5_000, 60_000]),
                    },
                    kind => self.draw_fault(lot, kind, number),
                };
                (lot.below(span) as u64, fault)
            })
            .collect()
    }

    fn draw_fault(&self, lot: &Lot, kind: usize, number: u64) -> Fault {
        let dispatcher = lot.below(self.dispatchers);
        let partition = u32::try_from(lot.below(self.partitions as usize)).expect("few");
        let down_ms = lot.pick(&[100, 3_000, 20_000]);
        let for_ms = lot.pick(&[500, 5_000, 20_000]);
        match kind {
            0 => Fault::Revoke {
                partition,
                lost: lot.chance(0.4),
            },
            1 => Fault::Gap {
                partition,
                count: lot.between(1, 3),
            },
            2 => Fault::Garbage { number },
            4 => Fault::Receivers {
                mood: lot.pick(&[Mood::Dead, Mood::Hanging, Mood::Throttling, Mood::Flaky]),
                for_ms,
            },
            5 | 6 => Fault::Crash {
                dispatcher,
                steps: lot.below(40),
                down_ms,
            },
            7 => Fault::Stop {
                dispatcher,
                down_ms,
            },
            8 => Fault::Store {
                weather: store_weather(lot),
                for_ms,
            },
            9 => Fault::Log {
                weather: log_weather(lot),
                for_ms,
            },
            10 => Fault::Reads {
                count: lot.pick(&[1, 3]),
            },
            11 => Fault::CrashIngest,
            12 => Fault::Freeze {
                dispatcher,
                for_ms: lot.pick(&[1_000, 8_000, 30_000]),
                lost: lot.chance(0.7),
            },
            13 => Fault::Cut {
                dispatcher,
                for_ms: lot.pick(&[2_000, 20_000, 40_000]),
                lost: lot.chance(0.7),
            },
            _ => Fault::Crash {
                dispatcher,
                steps: lot.below(10),
                down_ms,
            },
        }
    }
}

fn config(lot: &Lot, long: bool) -> DispatcherConfig {
    DispatcherConfig {
        lease: Duration::from_secs(lot.pick(&[5, 10, 15])),
        skew_margin: Duration::from_millis(lot.pick(&[300, 500, 1_000])),
        // In a long run the receivers do not mend at last, and must not take all the room.
        in_flight_max: if long {
            1_024
        } else {
            lot.pick(&[2, 8, 1_024])
        },
        in_flight_bytes_max: lot.pick(&[20_000, 32 << 20]),
        partition_in_flight_max: lot.pick(&[None, Some(2)]),
        partition_window_max: lot.pick(&[12, 1_000]),
        held_bytes_max: lot.pick(&[0, 4_000, 16_000]),
        produce_timeout: Duration::from_secs(lot.pick(&[2, 10])),
        shutdown_grace: Duration::from_secs(lot.pick(&[1, 15])),
        retry_after_max: Duration::from_secs(60),
        ..DispatcherConfig::default()
    }
}

fn body(lot: &Lot, event_type: &str, number: usize) -> Vec<u8> {
    let mut body =
        format!("{{\"type\": \"{event_type}\",\r\n \"number\": {number}, \"pad\": \"").into_bytes();
    let pad = lot.pick(&[0, 10, 300, 3_000]);
    // No quotes, backslashes or controls, so that it is JSON; bytes that are not ASCII in pairs of two.
    for byte in lot.bytes(pad) {
        match byte {
            b'"' | b'\\' | 0..=0x1f => body.push(b' '),
            0x20..=0x7f => body.push(byte),
            0x80.. => body.extend([0xc3, 0x80 | (byte & 0x3f)]),
        }
    }
    body.extend(b"\"}  \n");
    body
}

fn destinations(
    lot: &Lot,
    long: bool,
) -> (BTreeMap<String, DestinationConfig>, BTreeMap<String, Mood>) {
    let mut moods = BTreeMap::from([(ALWAYS.to_owned(), Mood::Good)]);
    for name in ["one", "two", "three"] {
        let mood = lot.pick(&[
            Mood::Good,
            Mood::Good,
            Mood::Flaky,
            Mood::Flaky,
            Mood::Throttling,
            Mood::Hanging,
            Mood::Dead,
            Mood::Refusing,
        ]);
        moods.insert(name.to_owned(), mood);
    }
    let configs = moods.keys().map(|name| {
        let config = json!({
            "url": format!("https://{name}.example/hooks"),
            "timeout": lot.pick(&["2s", "10s", "20s"]),
            "concurrency": if name == ALWAYS { 16 } else { lot.pick(&[1, 3, 16]) },
            // What is paused stays so, and nobody here resumes it.
            "pause": { "on_gone": false },
            "retry": {
                "base": "5s",
                "factor": lot.pick(&[1.0, 2.0, 3.0]),
                "cap": if long { "20m" } else { lot.pick(&["8s", "35s"]) },
                "jitter": lot.pick(&[0.0, 0.2, 1.0]),
                "attempts_max": lot.pick(&[1, 3, 6]),
                "max_age": if long { "2h" } else { lot.pick(&["30s", "10m"]) },
            },
        });
        let config = serde_json::from_value(config).expect("a destination");
        (name.clone(), config)
    });
    let configs = configs.collect();
    (configs, moods)
}

fn routes() -> Vec<RouteConfig> {
    let route = |source: &str, events: Option<&str>, to: &[&str]| RouteConfig {
        source: source.to_owned(),
        events: events.map(|event| vec![event.to_owned()]),
        to: to.iter().map(ToString::to_string).collect(),
    };
    vec![
        route(CANARY, None, &[ALWAYS]),
        route("github", None, &["one"]),
        route("github", Some("push"), &["one", "two"]),
        route("standard", Some("push"), &["three", "two"]),
    ]
}

fn policies(lot: &Lot) -> BTreeMap<String, SourcePolicy> {
    let policy = |source: &str| {
        let policy = SourcePolicy {
            reopen: lot.pick(&[Reopen::Exhausted, Reopen::AnyFailed, Reopen::Never]),
            ..SourcePolicy::default()
        };
        (source.to_owned(), policy)
    };
    SOURCES.into_iter().map(policy).collect()
}

fn store_weather(lot: &Lot) -> StoreWeather {
    let all = StoreWeather {
        unavailable: lot.pick(&[0.0, 0.2, 0.9, 1.0]),
        ..StoreWeather::default()
    };
    lot.pick(&[
        all,
        StoreWeather {
            answer_lost: 0.3,
            ..StoreWeather::default()
        },
        StoreWeather {
            answer_late: 0.5,
            ..StoreWeather::default()
        },
        StoreWeather {
            copy_late: 0.3,
            ..StoreWeather::default()
        },
        StoreWeather {
            unavailable: 0.1,
            answer_lost: 0.1,
            answer_late: 0.2,
            copy_late: 0.1,
        },
    ])
}

fn log_weather(lot: &Lot) -> LogWeather {
    let none = LogWeather::default();
    lot.pick(&[
        LogWeather { lost: 1.0, ..none },
        LogWeather { lost: 0.4, ..none },
        LogWeather {
            unacknowledged: 0.5,
            ..none
        },
        LogWeather { busy: 0.5, ..none },
        LogWeather { late: 0.8, ..none },
        LogWeather { hangs: 0.3, ..none },
        LogWeather {
            lost: 0.1,
            unacknowledged: 0.1,
            busy: 0.1,
            late: 0.2,
            hangs: 0.05,
        },
    ])
}
