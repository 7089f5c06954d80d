//! Logs, metrics and traces of a process.
//!
//! Metrics are scraped from the admin port ([`crate::admin`]); traces are pushed by OTLP when an endpoint is configured.

use crate::Problem;
use opentelemetry::{KeyValue, global, metrics::MeterProvider as _, trace::TracerProvider as _};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig};
use opentelemetry_sdk::{
    Resource,
    metrics::{Aggregation, Instrument, InstrumentKind, SdkMeterProvider, Stream},
    propagation::TraceContextPropagator,
    trace::{Sampler, SdkTracerProvider},
};
use prometheus::{Registry, TextEncoder};
use std::{io::IsTerminal, time::Duration};
use tracing::span::Record;
use tracing_subscriber::{
    EnvFilter, Layer, Registry as Spans,
    field::RecordFields,
    filter::filter_fn,
    fmt::{self, FormatFields, FormattedFields, format::Writer},
    layer::SubscriberExt,
    util::SubscriberInitExt,
};

/// Bounds of duration histograms, seconds: up to the longest timeout of a destination.
const SECONDS_BOUNDS: [f64; 15] = [
    0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 30.0, 60.0,
];

/// Bounds of size histograms, bytes: up to the largest body that a source may send.
const BYTES_BOUNDS: [f64; 10] = [
    256.0,
    1024.0,
    4096.0,
    16_384.0,
    65_536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
    33_554_432.0,
];

/// One export of spans may take this long.
const EXPORT_DEADLINE: Duration = Duration::from_secs(3);

/// What is left of telemetry at the end of a process is given up after this.
const SHUTDOWN_DEADLINE: Duration = Duration::from_secs(4);

/// Crates whose spans are exported. Others (TLS, HTTP/2, the exporter itself) would drown them or feed on themselves.
const OWN_CRATES: [&str; 7] = [
    "fencepost",
    "cli",
    "dedup_store",
    "dispatcher",
    "event_log",
    "ingest",
    "runtime",
];

/// Section `[telemetry]`.
#[derive(Clone, Debug, PartialEq, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TelemetryConfig {
    /// Format of the log on standard error.
    pub log: LogFormat,
    /// Filter of the log: a level, or directives such as `info,dispatcher=debug`.
    pub level: String,
    /// OTLP over HTTP (protobuf), e.g. `http://collector:4318`; none: no traces.
    pub otlp_endpoint: Option<String>,
    /// Share of traces that are kept, 0 to 1. A webhook's deliveries follow its receipt.
    pub sample_ratio: f64,
    /// `service.name` of metrics and traces.
    pub service_name: String,
}

/// Format of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    /// Text on a terminal, JSON otherwise.
    #[default]
    Auto,
    /// One JSON object a line.
    Json,
    /// For people.
    Text,
}

/// A process's telemetry; [`Telemetry::shutdown`] sends what is left.
#[derive(Debug)]
pub struct Telemetry {
    metrics: Metrics,
    meters: SdkMeterProvider,
    tracers: Option<SdkTracerProvider>,
}

/// What `/metrics` shows. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Registry,
}

/// Telemetry that can not be started.
#[derive(Debug, thiserror::Error)]
#[error("can not start telemetry: {0}")]
pub struct TelemetryError(String);

// === impl TelemetryConfig ===

impl Default for TelemetryConfig {
    fn default() -> Self {
        Self {
            log: LogFormat::default(),
            level: "info".to_owned(),
            otlp_endpoint: None,
            sample_ratio: 1.0,
            service_name: "fencepost".to_owned(),
        }
    }
}

impl TelemetryConfig {
    /// Mistakes in this section.
    pub fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        if let Err(error) = EnvFilter::builder().parse(&self.level) {
            problems.push(Problem::new(
                "telemetry.level",
                format!("no filter: {error}"),
            ));
        }
        if !(0.0..=1.0).contains(&self.sample_ratio) {
            problems.push(Problem::new(
                "telemetry.sample_ratio",
                "must be between 0 and 1",
            ));
        }
        if let Some(endpoint) = &self.otlp_endpoint
            && !(endpoint.starts_with("http://") || endpoint.starts_with("https://"))
        {
            let message = "must start with http:// or https://";
            problems.push(Problem::new("telemetry.otlp_endpoint", message));
        }
        if self.service_name.is_empty() {
            problems.push(Problem::new("telemetry.service_name", "must not be empty"));
        }
        problems
    }
}

// === impl Telemetry ===

impl Telemetry {
    /// Starts logging, metrics and tracing of this process; once a process. An `https` endpoint needs a TLS provider
    /// installed before.
    ///
    /// # Errors
    /// When the filter or the endpoint is unusable or logging was started already. A collector that is down is no error.
    pub fn start(config: &TelemetryConfig, version: &'static str) -> Result<Self, TelemetryError> {
        let resource = Resource::builder_empty()
            .with_attributes([
                KeyValue::new("service.name", config.service_name.clone()),
                KeyValue::new("service.version", version),
            ])
            .build();
        let (metrics, meters) = start_metrics(resource.clone(), version)?;
        let tracers = match &config.otlp_endpoint {
            Some(endpoint) => Some(start_traces(endpoint, config.sample_ratio, resource)?),
            None => None,
        };
        start_log(config, tracers.as_ref())?;
        global::set_meter_provider(meters.clone());
        global::set_text_map_propagator(TraceContextPropagator::new());
        Ok(Self {
            metrics,
            meters,
            tracers,
        })
    }

    /// What `/metrics` shows.
    pub fn metrics(&self) -> Metrics {
        self.metrics.clone()
    }

    /// Sends what is left, within 5 seconds. A collector that does not answer is logged and changes nothing.
    pub async fn shutdown(self) {
        // The exporter blocks; on a runtime's own thread it could wait for itself.
        let left = tokio::task::spawn_blocking(move || {
            if let Some(tracers) = self.tracers
                && let Err(error) = tracers.shutdown_with_timeout(SHUTDOWN_DEADLINE)
            {
                tracing::warn!(%error, "traces were not sent");
            }
            if let Err(error) = self.meters.shutdown() {
                tracing::debug!(%error, "metrics did not shut down");
            }
        });
        let deadline = SHUTDOWN_DEADLINE + Duration::from_secs(1);
        if tokio::time::timeout(deadline, left).await.is_err() {
            tracing::warn!("telemetry did not shut down in time");
        }
    }
}

// === impl Metrics ===

impl Metrics {
    /// Every metric in the Prometheus text format.
    ///
    /// # Errors
    /// When two instruments contradict each other.
    pub fn render(&self) -> Result<String, TelemetryError> {
        TextEncoder::new()
            .encode_to_string(&self.registry.gather())
            .map_err(|error| TelemetryError(error.to_string()))
    }

    /// Metrics that nobody feeds, for tests of the admin server.
    pub fn empty() -> Self {
        Self {
            registry: Registry::new(),
        }
    }
}

fn start_metrics(
    resource: Resource,
    version: &'static str,
) -> Result<(Metrics, SdkMeterProvider), TelemetryError> {
    let registry = Registry::new();
    let exporter = opentelemetry_prometheus::exporter()
        .with_registry(registry.clone())
        .scope_info_enabled(false)
        .build()
        .map_err(|error| TelemetryError(error.to_string()))?;
    let meters = SdkMeterProvider::builder()
        .with_reader(exporter)
        .with_resource(resource)
        .with_view(bounds)
        .build();
    meters
        .meter("runtime")
        .u64_observable_gauge("fencepost_build_info")
        .with_description("Always 1; the version is a label")
        .with_callback(move |observer| observer.observe(1, &[KeyValue::new("version", version)]))
        .build();
    Ok((Metrics { registry }, meters))
}

/// The SDK's own bounds are made for milliseconds.
fn bounds(instrument: &Instrument) -> Option<Stream> {
    if instrument.kind() != InstrumentKind::Histogram {
        return None;
    }
    let boundaries = match instrument.unit() {
        "s" => SECONDS_BOUNDS.to_vec(),
        "By" => BYTES_BOUNDS.to_vec(),
        _ => return None,
    };
    let aggregation = Aggregation::ExplicitBucketHistogram {
        boundaries,
        record_min_max: false,
    };
    Stream::builder().with_aggregation(aggregation).build().ok()
}

fn start_traces(
    endpoint: &str,
    sample_ratio: f64,
    resource: Resource,
) -> Result<SdkTracerProvider, TelemetryError> {
    let exporter = SpanExporter::builder()
        .with_http()
        .with_protocol(Protocol::HttpBinary)
        .with_endpoint(format!("{}/v1/traces", endpoint.trim_end_matches('/')))
        .with_timeout(EXPORT_DEADLINE)
        .build()
        .map_err(|error| TelemetryError(error.to_string()))?;
    let sampler = Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(sample_ratio)));
    Ok(SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_sampler(sampler)
        .with_resource(resource)
        .build())
}

fn start_log(
    config: &TelemetryConfig,
    tracers: Option<&SdkTracerProvider>,
) -> Result<(), TelemetryError> {
    // The SDK tells of its own start at info; a directive of the config for it wins.
    let filter = EnvFilter::builder()
        .parse(format!("opentelemetry=warn,{}", config.level))
        .map_err(|error| TelemetryError(error.to_string()))?;
    let terminal = std::io::stderr().is_terminal();
    let json = match config.log {
        LogFormat::Auto => !terminal,
        LogFormat::Json => true,
        LogFormat::Text => false,
    };
    let lines = fmt::layer().with_writer(std::io::stderr);
    let log: Box<dyn Layer<Spans> + Send + Sync> = if json {
        lines
            .json()
            .flatten_event(true)
            .with_current_span(false)
            .with_span_list(false)
            .fmt_fields(NoFields)
            .boxed()
    } else {
        lines.with_ansi(terminal).boxed()
    };
    let spans = tracers.map(|tracers| {
        tracing_opentelemetry::layer()
            .with_tracer(tracers.tracer("fencepost"))
            .with_filter(filter_fn(|metadata| {
                let krate = metadata.target().split("::").next().unwrap_or_default();
                metadata.is_span() && OWN_CRATES.contains(&krate)
            }))
    });
    tracing_subscriber::registry()
        .with(log.with_filter(filter))
        .with(spans)
        .try_init()
        .map_err(|error| TelemetryError(error.to_string()))
}

/// JSON lines carry what their event says and nothing of its spans, so spans are not put into words. What is recorded
/// into a span later would else be parsed and written again each time.
struct NoFields;

impl<'writer> FormatFields<'writer> for NoFields {
    fn format_fields<R: RecordFields>(&self, _: Writer<'writer>, _: R) -> std::fmt::Result {
        Ok(())
    }

    fn add_fields(
        &self,
        _: &'writer mut FormattedFields<Self>,
        _: &Record<'_>,
    ) -> std::fmt::Result {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_carry_seconds_bounds_and_the_build_and_no_scope() {
        let (metrics, meters) = start_metrics(Resource::builder_empty().build(), "1.2.3").unwrap();
        let meter = meters.meter("some-scope");
        meter
            .f64_histogram("work_duration")
            .with_unit("s")
            .build()
            .record(0.004, &[]);
        meter.u64_counter("work").build().add(1, &[]);
        let text = metrics.render().unwrap();
        assert!(
            text.contains("fencepost_build_info{version=\"1.2.3\"} 1"),
            "{text}"
        );
        assert!(
            text.contains("work_duration_seconds_bucket{le=\"0.005\"} 1"),
            "{text}"
        );
        assert!(
            text.contains("work_duration_seconds_bucket{le=\"60\"} 1"),
            "{text}"
        );
        assert!(text.contains("work_total 1"), "{text}");
        assert!(!text.contains("some-scope"), "{text}");
    }

    #[test]
    fn mistakes_are_named() {
        let config = TelemetryConfig {
            level: "info,=nonsense=".to_owned(),
            sample_ratio: 1.5,
            otlp_endpoint: Some("collector:4317".to_owned()),
            service_name: String::new(),
            ..TelemetryConfig::default()
        };
        let keys: Vec<_> = config
            .problems()
            .into_iter()
            .map(|problem| problem.key)
            .collect();
        assert_eq!(
            keys,
            [
                "telemetry.level",
                "telemetry.sample_ratio",
                "telemetry.otlp_endpoint",
                "telemetry.service_name"
            ]
        );
        assert_eq!(TelemetryConfig::default().problems(), []);
    }
}
