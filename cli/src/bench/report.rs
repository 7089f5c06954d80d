//! What people and scripts see of a bench.

use super::pace::{median, percentile, ratio};
use crate::child::Memory;
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;

/// Something that was measured in several slices.
#[derive(Clone, Debug)]
pub(crate) struct Figure {
    pub name: &'static str,
    /// A second.
    pub slices: Vec<f64>,
}

/// A figure of the product and the limits that apply to it.
#[derive(Clone, Debug)]
pub(crate) struct Compared {
    pub product: Figure,
    /// At least one.
    pub limits: Vec<Figure>,
    /// The least part of the lowest limit.
    pub bar: f64,
}

/// What the whole pipeline did.
#[derive(Clone, Debug)]
pub(crate) struct Pipeline {
    /// Delivered a second while webhooks came as fast as they were accepted.
    pub sustained: f64,
    /// The rate at which the latencies were measured.
    pub per_second: f64,
    pub latencies_ms: Vec<f64>,
    pub resident: Vec<Resident>,
}

/// Memory of one process of the pipeline.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resident {
    pub role: &'static str,
    pub memory: Memory,
}

/// Everything.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    pub setup: &'static str,
    pub receiving: Compared,
    pub delivering: Compared,
    pub pipeline: Pipeline,
}

// === impl Figure ===

impl Figure {
    /// Nothing measured yet.
    pub(crate) fn new(name: &'static str) -> Self {
        Self {
            name,
            slices: Vec::new(),
        }
    }

    fn median(&self) -> f64 {
        median(&self.slices)
    }

    fn json(&self) -> Value {
        json!({ "name": self.name, "per_second": self.median(), "slices": self.slices })
    }
}

// === impl Compared ===

impl Compared {
    /// The limit that is lowest.
    fn limit(&self) -> (&'static str, f64) {
        let lowest = self
            .limits
            .iter()
            .map(|limit| (limit.name, limit.median()))
            .min_by(|(_, a), (_, b)| a.total_cmp(b));
        lowest.unwrap_or(("none", 0.0))
    }

    fn ratio(&self) -> f64 {
        ratio(self.product.median(), self.limit().1)
    }

    /// What the limits allow when the same processors do all of their work, as the product has to: no bar hangs on it, but
    /// it says how much of the distance to the lowest limit is our own.
    fn in_a_row(&self) -> f64 {
        let seconds: f64 = self
            .limits
            .iter()
            .map(|limit| ratio(1.0, limit.median()))
            .sum();
        ratio(1.0, seconds)
    }

    fn in_a_row_ratio(&self) -> f64 {
        ratio(self.product.median(), self.in_a_row())
    }

    fn below_the_bar(&self) -> bool {
        self.ratio() < self.bar
    }

    fn rows(&self) -> String {
        let mut text = String::new();
        for limit in &self.limits {
            text += &row(limit, "");
        }
        let (name, limit) = self.limit();
        let ratio = self.ratio();
        let verdict = if self.below_the_bar() {
            format!("  below the bar of {}", self.bar)
        } else {
            String::new()
        };
        let (in_a_row, in_a_row_ratio) = (self.in_a_row(), self.in_a_row_ratio());
        text += &row(
            &self.product,
            &format!("{limit:>9.0} ({name})  {ratio:.2}{verdict}"),
        );
        text + &format!(
            "  {:<26}{:>11}  {:<15}{in_a_row:>9.0} (both in a row)  {in_a_row_ratio:.2}\n",
            "", "", ""
        )
    }

    fn json(&self) -> Value {
        let limits: Vec<Value> = self.limits.iter().map(Figure::json).collect();
        json!({
            "product": self.product.json(),
            "limits": limits,
            "ratio": self.ratio(),
            "in_a_row_per_second": self.in_a_row(),
            "in_a_row_ratio": self.in_a_row_ratio(),
            "bar": self.bar,
            "below_the_bar": self.below_the_bar(),
        })
    }
}

// === impl Pipeline ===

impl Pipeline {
    fn resident_mib(&self) -> u64 {
        let of = |resident: &Resident| resident.memory.bytes_max;
        self.resident.iter().map(of).sum::<u64>() / MIB
    }

    fn rows(&self) -> String {
        let mut text = format!(
            "  {:<26}{:>9.0}/s\n  {:<26}{:>9.1} ms p50, {:.1} ms p99\n",
            "pipeline: sustained",
            self.sustained,
            format!("latency at {:.0}/s", self.per_second),
            percentile(&self.latencies_ms, 50),
            percentile(&self.latencies_ms, 99)
        );
        for Resident { role, memory } in &self.resident {
            text += &format!(
                "  {:<26}{:>9} MiB at most, {} MiB at the end\n",
                format!("resident: {role}"),
                memory.bytes_max / MIB,
                memory.bytes / MIB
            );
        }
        text
    }
}

// === impl Report ===

impl Report {
    /// Whether a figure is below its bar.
    pub(crate) fn below_the_bar(&self) -> bool {
        self.receiving.below_the_bar() || self.delivering.below_the_bar()
    }

    /// The table.
    pub(crate) fn table(&self) -> String {
        format!(
            "\n  {:<26}{:>11}  {:<15}    limit (which)  ratio\n{}{}{}\n",
            "what",
            "measured",
            "slices",
            self.receiving.rows(),
            self.delivering.rows(),
            self.pipeline.rows()
        )
    }

    /// The line that scripts look for.
    pub(crate) fn last_line(&self) -> String {
        let compared = |name: &str, compared: &Compared| {
            format!(
                "{name}_per_s={:.0} {name}_limit_per_s={:.0} {name}_ratio={:.2}",
                compared.product.median(),
                compared.limit().1,
                compared.ratio()
            )
        };
        format!(
            "bench: setup={} {} {} p50_ms={:.1} p99_ms={:.1} resident_mib={}\n",
            self.setup,
            compared("ingest", &self.receiving),
            compared("dispatcher", &self.delivering),
            percentile(&self.pipeline.latencies_ms, 50),
            percentile(&self.pipeline.latencies_ms, 99),
            self.pipeline.resident_mib()
        )
    }

    /// All of it, for machines.
    pub(crate) fn json(&self) -> Value {
        let pipeline = &self.pipeline;
        let resident: Vec<Value> = pipeline
            .resident
            .iter()
            .map(|Resident { role, memory }| {
                json!({ "role": role, "bytes_max": memory.bytes_max, "bytes": memory.bytes })
            })
            .collect();
        json!({
            "setup": self.setup,
            "ingest": self.receiving.json(),
            "dispatcher": self.delivering.json(),
            "pipeline": {
                "sustained_per_second": pipeline.sustained,
                "latency_at_per_second": pipeline.per_second,
                "p50_ms": percentile(&pipeline.latencies_ms, 50),
                "p99_ms": percentile(&pipeline.latencies_ms, 99),
                "resident": resident,
            },
        })
    }
}

fn row(figure: &Figure, rest: &str) -> String {
    let least = figure.slices.iter().copied().fold(f64::INFINITY, f64::min);
    let most = figure.slices.iter().copied().fold(0.0, f64::max);
    format!(
        "  {:<26}{:>9.0}/s  {:<15}{rest}\n",
        figure.name,
        figure.median(),
        format!("{least:.0} to {most:.0}")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(name: &'static str, slices: &[f64]) -> Figure {
        Figure {
            name,
            slices: slices.to_vec(),
        }
    }

    fn report() -> Report {
        Report {
            setup: "embedded",
            receiving: Compared {
                product: figure("ingest", &[400.0, 500.0, 600.0]),
                limits: vec![figure("a", &[2_000.0]), figure("b", &[1_000.0])],
                bar: 0.5,
            },
            delivering: Compared {
                product: figure("dispatcher", &[590.0]),
                limits: vec![figure("c", &[1_000.0]), figure("d", &[1_001.0])],
                bar: 0.6,
            },
            pipeline: Pipeline {
                sustained: 300.0,
                per_second: 150.0,
                latencies_ms: vec![1.0, 2.0, 30.04],
                resident: vec![
                    Resident {
                        role: "ingest",
                        memory: Memory {
                            bytes_max: 3 * MIB,
                            bytes: MIB,
                        },
                    };
                    2
                ],
            },
        }
    }

    #[test]
    fn the_last_line_compares_with_the_lowest_limit() {
        assert_eq!(
            report().last_line(),
            "bench: setup=embedded ingest_per_s=500 ingest_limit_per_s=1000 ingest_ratio=0.50 \
             dispatcher_per_s=590 dispatcher_limit_per_s=1000 dispatcher_ratio=0.59 \
             p50_ms=2.0 p99_ms=30.0 resident_mib=6\n"
        );
    }

    #[test]
    fn limits_in_a_row_are_slower_than_each() {
        let delivering = report().delivering;
        assert!((delivering.in_a_row() - 500.25).abs() < 0.01);
        assert!((delivering.in_a_row_ratio() - 1.179).abs() < 0.001);
    }

    #[test]
    fn what_is_below_the_bar_says_so() {
        let mut report = report();
        assert!(report.below_the_bar());
        assert_eq!(report.table().matches("below the bar").count(), 1);
        report.delivering.product.slices = vec![600.0];
        assert!(!report.below_the_bar());
        assert!(!report.table().contains("below the bar"));
    }
}
