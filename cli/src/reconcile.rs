//! `fencepost reconcile github`: GitHub gives a webhook one try. This finds what did not arrive and asks for it again.

mod answer;
mod api;
mod ask;
mod plan;
mod progress;
mod report;
mod state;

pub(crate) mod config;

use crate::{
    args::GithubArgs,
    config::{Config, Loaded},
    dlq::since,
    failure::Failure,
    output::print,
    ports::peek::{self, Rows},
};
use api::{Api, ApiError};
use config::ReconcileConfig;
use futures::{StreamExt, TryStreamExt, stream};
use ingest::SourceConfig;
use plan::{Listing, Rules};
use progress::Progress;
use report::Figures;
use runtime::Clock;
use schemas::DeliveryKey;
use state::State;
use std::{collections::HashSet, process::ExitCode, sync::Arc, time::Duration};
use tokio::time::MissedTickBehavior;

/// Pages of a source's hooks that a run reads: half a million attempts, which is what a token may ask for in an hour.
const PAGES_MAX: u32 = 5_000;
/// Rows that are looked up at once.
const LOOKUPS_MAX: usize = 32;

/// A source whose hooks are looked at.
#[derive(Debug)]
struct Target<'a> {
    name: &'a str,
    hooks: &'a [String],
    source: &'a SourceConfig,
    api: Api,
}

/// One run over all targets.
#[derive(Debug)]
struct Run<'a> {
    args: &'a GithubArgs,
    config: &'a Config,
    since_ms: i64,
    clock: Clock,
    rows: Rows,
    state: State,
    /// When the next request for a redelivery may go out.
    pace: tokio::time::Interval,
    /// What `--limit` leaves.
    left: usize,
    progress: Progress,
}

/// Finds and asks. 0: all that is missing was asked for; 1: not all.
///
/// # Errors
/// [`Failure::Config`] for what is wrong in the config or an argument, [`Failure::Unavailable`] when GitHub or the store can
/// not be asked, [`Failure::Fatal`] when the state file can not be written any more.
pub(crate) async fn github(
    args: &GithubArgs,
    loaded: &Loaded,
    clock: Clock,
) -> Result<ExitCode, Failure> {
    let now_ms = clock.now_ms();
    let since_ms = since(&args.since, now_ms)?;
    let progress = Progress::start();
    let targets = targets(args.source.as_deref(), loaded, &clock, &progress)?;
    let from_ms = now_ms.saturating_sub(to_ms(args.cool_down));
    let mut pace = tokio::time::interval(Duration::from_secs(60) / args.per_minute);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut run = Run {
        args,
        config: &loaded.config,
        since_ms,
        clock,
        state: State::open(args.state.as_deref(), from_ms, args.dry_run)?,
        rows: peek::open_rows(&loaded.config.store, &loaded.base).await?,
        pace,
        left: usize::try_from(args.limit).unwrap_or(usize::MAX),
        progress: progress.clone(),
    };
    let mut complete = true;
    let mut unavailable = Vec::new();
    for target in &targets {
        let mut figures = Figures::default();
        match run.listing(target, &mut figures).await {
            Ok(listing) => run.reconcile(target, &listing, &mut figures).await?,
            // The other sources may have another token, or another GitHub.
            Err(message) => {
                unavailable.push(message);
                continue;
            }
        }
        complete &= figures.complete();
        let told = if args.json {
            figures.json(target.name, since_ms)
        } else {
            figures.text(target.name, since_ms)
        };
        run.say(&told)?;
    }
    progress.finish();
    if !unavailable.is_empty() {
        return Err(Failure::Unavailable(unavailable.join("\n")));
    }
    Ok(ExitCode::from(u8::from(!complete)))
}

/// The sources to look at, each with its API.
fn targets<'a>(
    wanted: Option<&str>,
    loaded: &'a Loaded,
    clock: &Clock,
    progress: &Progress,
) -> Result<Vec<Target<'a>>, Failure> {
    let Config {
        reconcile, sources, ..
    } = &loaded.config;
    let mut problems = config::check(reconcile, sources);
    let mut targets = Vec::new();
    let is_wanted = |name: &str| wanted.is_none_or(|wanted| wanted == name);
    for (name, table) in reconcile.iter().filter(|(name, _)| is_wanted(name)) {
        let ReconcileConfig { hooks, .. } = table;
        let key = format!("reconcile.{name}");
        let (clock, progress) = (clock.clone(), progress.clone());
        match Api::open(table, &key, &loaded.base, clock, progress) {
            Ok(api) => targets.extend(sources.get(name).map(|source| Target {
                name,
                hooks,
                source,
                api,
            })),
            Err(found) => problems.extend(found),
        }
    }
    if !problems.is_empty() {
        return Err(problems.into());
    }
    if targets.is_empty() {
        let name = wanted.unwrap_or("<source>");
        let message =
            format!("no [reconcile.{name}] is configured: which hooks should be looked at?");
        return Err(Failure::config("reconcile", message));
    }
    Ok(targets)
}

// === impl Run ===

impl Run<'_> {
    /// Everything that GitHub has on a source's hooks, back to `--since`.
    async fn listing(&self, target: &Target<'_>, figures: &mut Figures) -> Result<Listing, String> {
        let mut listing = Listing::default();
        let mut pages = 0;
        for (at, hook) in target.hooks.iter().enumerate() {
            let mut cursor: Option<String> = None;
            loop {
                if pages == PAGES_MAX {
                    figures.cut_short = true;
                    break;
                }
                pages += 1;
                let failed =
                    |error: ApiError| format!("{}: {hook}: {error}{}", target.name, error.advice());
                let page = target
                    .api
                    .list(hook, cursor.as_deref())
                    .await
                    .map_err(failed)?;
                // The newest first: behind one that is too old there are only older ones.
                let at_ms = |delivery: &answer::Delivery| delivery.delivered_at.as_millisecond();
                let more = page
                    .deliveries
                    .last()
                    .is_some_and(|last| at_ms(last) >= self.since_ms);
                for delivery in page.deliveries {
                    if at_ms(&delivery) >= self.since_ms {
                        listing.add(at, delivery);
                    }
                }
                self.progress
                    .tell(format!("{}: {} listed", target.name, listing.attempts));
                if page.next.is_none() || !more {
                    break;
                }
                if page.next == cursor {
                    let error = "a page that leads to itself".to_owned();
                    return Err(failed(ApiError::Malformed(error)));
                }
                cursor = page.next;
            }
        }
        figures.attempts = listing.attempts;
        figures.webhooks = listing.len() as u64;
        Ok(listing)
    }

    async fn reconcile(
        &mut self,
        target: &Target<'_>,
        listing: &Listing,
        figures: &mut Figures,
    ) -> Result<(), Failure> {
        let now_ms = self.clock.now_ms();
        let rules = self.rules(target);
        let arrived = self.arrived(listing, rules, now_ms).await?;
        let asked_at_ms = |guid: &str| self.state.asked_at_ms(target.name, guid);
        let plan = plan::plan(listing, rules, &arrived, asked_at_ms, now_ms);
        figures.planned(&plan);
        self.left = self.left.saturating_sub(plan.asks.len());
        self.ask_all(target, &plan.asks, figures).await
    }

    fn rules<'b>(&'b self, target: &Target<'b>) -> Rules<'b> {
        let kept = self.config.store.retention();
        Rules {
            source: target.name,
            events: target.source.events.as_deref(),
            routes: &self.config.routes,
            settle_ms: to_ms(self.args.settle),
            cool_down_ms: to_ms(self.args.cool_down),
            // Rows of open deliveries are kept for less; but one that expires has not been delivered, and may be asked for.
            kept_ms: kept.failed_ms.min(kept.completed_ms),
            failed_only: self.args.failed_only,
            limit: self.left,
        }
    }

    /// The GUIDs that the store knows at any destination: the claims of all of them come from one record.
    async fn arrived(
        &self,
        listing: &Listing,
        rules: Rules<'_>,
        now_ms: i64,
    ) -> Result<HashSet<Arc<str>>, Failure> {
        let asked_at_ms = |guid: &str| self.state.asked_at_ms(rules.source, guid);
        let open = listing.iter().filter_map(|(guid, listed)| {
            let destinations = plan::open(listed, rules, asked_at_ms(guid), now_ms).ok()?;
            Some((guid, destinations))
        });
        let look = |(guid, destinations): (&Arc<str>, Vec<&str>)| {
            let guid = Arc::clone(guid);
            let keys: Vec<_> = destinations
                .into_iter()
                .map(|destination| DeliveryKey {
                    source: rules.source.to_owned(),
                    delivery_id: guid.to_string(),
                    destination: destination.to_owned(),
                })
                .collect();
            async move {
                for key in &keys {
                    if self.rows.get(key, now_ms).await?.is_some() {
                        return Ok(Some(guid));
                    }
                }
                Ok::<_, Failure>(None)
            }
        };
        stream::iter(open)
            .map(look)
            .buffer_unordered(LOOKUPS_MAX)
            .try_filter_map(|found| async move { Ok(found) })
            .try_collect()
            .await
    }

    fn say(&self, text: &str) -> Result<(), Failure> {
        let printed = self.progress.aside(|| print(text));
        printed.map_err(|error| Failure::Fatal(format!("can not print: {error}")))
    }
}

fn to_ms(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
