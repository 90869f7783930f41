//! The operator's metrics: counted where events happen, and read all at once in Prometheus' format.
//!
//! ```text
//! mcp, http, sessions, session events ---> Metrics <--- GET /metrics
//!                                             |
//!                        counters, histograms (here)   current state ([`watch`])   the process
//! ```
//!
//! Labels are words of this program. Nothing that a caller chose (a name, a path, a session) is ever a label,
//! so the number of series is limited whatever callers do. Names of callers are labels only in a registry of their own
//! ([`callers`]): other readers of everybody's metrics must not learn who they are.
//!
//! The metrics observe sessions for their events. Each server has its own metrics; clones share them.

mod callers;
mod process;
mod text;
mod watch;

use std::{
    fmt,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use parking_lot::Mutex;
use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode_registry},
    metrics::{
        counter::Counter,
        family::Family,
        gauge::{ConstGauge, Gauge},
        histogram::Histogram,
    },
    registry::{Metric, Registry, Unit},
};
use protocol::{limits::MAX_FILES, message::RuntimeName};

use self::{
    callers::ByCaller,
    process::Process,
    watch::{SandboxGauge, Watch},
};
use crate::{
    calls::Called,
    session::{
        RunReport,
        events::{Observer, SessionEvent},
        label::{Label, SessionLabel},
        origin::Origin,
    },
};

/// The media type of [`Metrics::text`].
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The label for calls of tools that do not exist.
const UNKNOWN: &str = "unknown";

/// Upper bounds of the histograms in seconds, from the fastest call to a long run.
const DURATIONS: [f64; 17] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    120.0, 300.0,
];

/// Maximum number of artifacts of a run that are counted: a data area has no room for more,
/// whatever an agent reports.
const MAX_ARTIFACTS: usize = MAX_FILES as usize;

/// Names and values of labels.
type Labels<const N: usize> = [(&'static str, &'static str); N];

/// The metrics of one server.
#[derive(Clone)]
pub struct Metrics(Arc<Inner>);

struct Inner {
    registry: Registry,
    /// `None` if callers are not counted.
    callers: Option<ByCaller>,
    watch: Watch,
    ready: Gauge,
    tool_calls: Family<Call, Counter>,
    tool_call_durations: Family<Tool, Histogram>,
    http_requests: Family<Request, Counter>,
    mcp_requests: Family<Labels<1>, Counter>,
    mcp_request_durations: Family<Labels<1>, Histogram>,
    forwarded: Family<Labels<1>, Counter>,
    calls_out: Family<CallOut, Counter>,
    call_out_durations: Family<Upstream, Histogram>,
    runs: Family<Labels<3>, Counter>,
    run_durations: Family<Labels<2>, Histogram>,
    run_cpu: Family<Labels<1>, Counter<f64, AtomicU64>>,
    run_fuel: Family<Labels<1>, Counter>,
    refused: Family<Labels<1>, Counter>,
    starts: Histogram,
    start_failures: Counter,
    warmings: Histogram,
    uploaded: Counter,
    downloaded: Counter,
    output: Counter,
    artifacts: Counter,
    audit_refused: Counter,
    archive: Family<Labels<2>, Counter>,
    archive_bytes: Family<Labels<1>, Counter>,
    archive_durations: Family<Labels<1>, Histogram>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Call {
    tool: String,
    code: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Tool {
    tool: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallOut {
    upstream: String,
    outcome: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Upstream {
    upstream: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Request {
    /// The pattern of the URL.
    route: String,
    method: &'static str,
    status: u16,
}

/// The owner of the limit of sessions that was reached.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Full {
    Server,
    Client,
}

/// The outcome of a request that was passed on to another server.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Forwarded {
    Answered,
    /// The server could not be reached.
    Unreachable,
    /// There was no answer, but the request may have been carried out.
    Broken,
}

impl Metrics {
    /// The metrics of a server with this limit of sessions and this limit of memory for each, in bytes.
    pub fn new(max_sessions: usize, memory_limit: u64) -> Self {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Process));
        let ours = registry.sub_registry_with_prefix("llm_sandbox");
        let build = Family::<[(&str, &str); 1], Gauge>::default();
        build.get_or_create(&[("version", env!("CARGO_PKG_VERSION"))]).set(1);
        ours.register("build_info", "The program", build);
        ours.register(
            "sessions_limit",
            "Maximum concurrent sessions, pooled sandboxes included",
            ConstGauge::new(u64::try_from(max_sessions).unwrap_or(u64::MAX)),
        );
        ours.register_with_unit(
            "sandbox_memory_limit",
            "Memory limit of one sandbox",
            Unit::Bytes,
            ConstGauge::new(memory_limit),
        );
        let inner = Inner::register(ours);
        Self(Arc::new(Inner { registry, ..inner }))
    }

    /// Counts by caller, too, from the beginning.
    #[must_use]
    pub(crate) fn by_caller(self) -> Self {
        let Ok(inner) = Arc::try_unwrap(self.0) else { unreachable!("it has no clones yet") };
        Self(Arc::new(Inner { callers: Some(ByCaller::new(&inner.watch)), ..inner }))
    }

    /// Renders all metrics, as text of the type [`CONTENT_TYPE`]; those that name callers only with `names`.
    pub fn text(&self, ready: bool, names: bool) -> String {
        self.0.ready.set(ready.into());
        let mut text = String::new();
        let callers = self.0.callers.as_ref().filter(|_| names).map(|callers| &callers.registry);
        for registry in [&self.0.registry].into_iter().chain(callers) {
            encode_registry(&mut text, registry).expect("writing to a `String` cannot fail");
        }
        text::classic(&text)
    }

    /// Creates the counters of these tools at zero, so that a first call is a change as well.
    pub(crate) fn count_tools<'a>(&self, tools: impl Iterator<Item = &'a str>) {
        for tool in tools {
            let tool = tool.to_owned();
            let _ = self.0.tool_calls.get_or_create(&Call { tool, code: "ok" });
        }
    }

    /// Counts a tool call that was answered.
    pub fn tool_called(&self, tool: &str, code: &'static str, elapsed: Duration) {
        let call = Call { tool: tool.to_owned(), code };
        self.0.tool_calls.get_or_create(&call).inc();
        let tool = Tool { tool: tool.to_owned() };
        self.0.tool_call_durations.get_or_create(&tool).observe(elapsed.as_secs_f64());
    }

    /// Counts a refused call of a tool that does not exist.
    pub(crate) fn unknown_tool_called(&self, caller: Option<Label>) {
        let (tool, code) = (UNKNOWN, "invalid_argument");
        self.0.tool_calls.get_or_create(&Call { tool: tool.to_owned(), code }).inc();
        self.tool_called_by(caller, tool, code);
    }

    /// Creates the counters of these methods at zero.
    pub(crate) fn count_methods(&self, methods: impl Iterator<Item = &'static str>) {
        for method in methods {
            let _ = self.0.mcp_requests.get_or_create(&[("method", method)]);
        }
    }

    /// Records how long the answer to a request of the protocol took.
    pub(crate) fn mcp_answered(&self, method: &'static str, elapsed: Duration) {
        let durations = self.0.mcp_request_durations.get_or_create(&[("method", method)]);
        durations.observe(elapsed.as_secs_f64());
    }

    /// Counts a request of the protocol. Its method must have been passed to `count_methods`.
    pub(crate) fn mcp_requested(&self, method: &'static str) {
        self.0.mcp_requests.get_or_create(&[("method", method)]).inc();
    }

    /// Counts an answered HTTP request. The route is a pattern, never a URL.
    pub fn requested(&self, route: String, method: &'static str, status: u16) {
        self.0.http_requests.get_or_create(&Request { route, method, status }).inc();
    }

    /// Counts an action that was refused because the audit file cannot be written.
    pub(crate) fn audit_refused(&self) {
        self.0.audit_refused.inc();
    }

    /// Counts a request that was passed on to another server.
    pub(crate) fn forwarded(&self, outcome: Forwarded) {
        self.0.forwarded.get_or_create(&outcome.labels()).inc();
    }

    /// Counts a session that was not started because a limit was reached.
    pub(crate) fn refused(&self, full: Full) {
        self.0.refused.get_or_create(&full.labels()).inc();
    }

    /// Watches a sandbox that is about to start; `memory_limit` is the most memory that it can have, in bytes.
    pub(crate) fn watch(
        &self,
        origin: Origin,
        memory_limit: u64,
        label: &SessionLabel,
    ) -> SandboxGauge {
        self.0.watch.begin(origin, memory_limit, label.clone())
    }
}

impl Observer for Metrics {
    fn observe(&self, event: &SessionEvent<'_>) {
        let counted = &self.0;
        match event {
            SessionEvent::Started { took, .. } => counted.starts.observe(took.as_secs_f64()),
            SessionEvent::NotStarted => {
                counted.start_failures.inc();
            }
            SessionEvent::Warmed { done, took } if done.ready => {
                counted.warmings.observe(took.as_secs_f64());
            }
            SessionEvent::RunEnded { report, language } => counted.ran(report, language),
            SessionEvent::Called { called, .. } => counted.called_out(called),
            SessionEvent::FileAdded { bytes } => {
                counted.uploaded.inc_by(*bytes);
            }
            SessionEvent::FileRead { bytes } => {
                counted.downloaded.inc_by(*bytes as u64);
            }
            SessionEvent::Archived { action, outcome, bytes, took } => {
                let action = ("action", *action);
                counted.archive.get_or_create(&[action, ("outcome", outcome)]).inc();
                counted.archive_bytes.get_or_create(&[action]).inc_by(*bytes);
                counted.archive_durations.get_or_create(&[action]).observe(took.as_secs_f64());
            }
            SessionEvent::Warmed { .. }
            | SessionEvent::Slept
            | SessionEvent::Phase(_)
            | SessionEvent::RunBegan { .. }
            | SessionEvent::Wrote { .. }
            | SessionEvent::Waiting { .. }
            | SessionEvent::RunFailed { .. }
            | SessionEvent::Drawn { .. }
            | SessionEvent::Undone { .. }
            | SessionEvent::Recalled(_)
            | SessionEvent::Ended(_) => {}
        }
    }
}

impl Inner {
    /// Counts a call out of a sandbox. The name of an unknown upstream is no label: programs choose it.
    fn called_out(&self, called: &Called) {
        let upstream = if called.is_known { &*called.upstream } else { UNKNOWN }.to_owned();
        let durations = Upstream { upstream: upstream.clone() };
        self.call_out_durations.get_or_create(&durations).observe(called.took.as_secs_f64());
        let outcome = called.outcome.clone();
        self.calls_out.get_or_create(&CallOut { upstream, outcome }).inc();
    }

    fn ran(&self, report: &RunReport, language: &RuntimeName) {
        let outcome = ("outcome", report.outcome.as_str());
        let (language, start) = (("language", word(language)), ("start", report.start.as_str()));
        self.runs.get_or_create(&[language, outcome, start]).inc();
        let durations = self.run_durations.get_or_create(&[language, outcome]);
        durations.observe(report.elapsed.as_secs_f64());
        self.run_cpu.get_or_create(&[language]).inc_by(report.cpu.as_secs_f64());
        if let Some(fuel) = report.fuel {
            self.run_fuel.get_or_create(&[language]).inc_by(fuel);
        }
        self.output.inc_by(report.output_bytes());
        let artifacts = report.artifacts.len().saturating_add(report.artifacts_omitted);
        self.artifacts.inc_by(artifacts.min(MAX_ARTIFACTS) as u64);
    }

    /// Registers the metrics. Known counters start at zero, so that a first failure is a change as well.
    fn register(ours: &mut Registry) -> Self {
        let watch = Watch::default();
        watch.register(ours);
        let mut add = Adding(ours);
        let histogram = || Histogram::new(DURATIONS);
        let inner = Self {
            registry: Registry::default(),
            callers: None,
            watch,
            tool_calls: add.one("tool_calls", "Tool calls by result: ok, or the error code"),
            tool_call_durations: add.seconds(
                "tool_call_duration",
                "Time from a tool call to its answer",
                Family::new_with_constructor(histogram),
            ),
            audit_refused: add.one(
                "audit_refused",
                "Calls, uploads and downloads refused because the audit file could not be written",
            ),
            http_requests: add.one("http_requests", "HTTP requests that were answered"),
            mcp_requests: add.one("mcp_requests", "MCP requests that were received, by method"),
            mcp_request_durations: add.seconds(
                "mcp_request_duration",
                "Time from an MCP request to its answer, by method",
                Family::new_with_constructor(histogram),
            ),
            calls_out: add.one(
                "calls_out",
                "Calls of tools by code in sandboxes, by upstream and outcome: ok or the kind of the error",
            ),
            call_out_durations: add.seconds(
                "call_out_duration",
                "Time of these calls, a person's decision included",
                Family::new_with_constructor(histogram),
            ),
            forwarded: add.one(
                "forwarded_requests",
                "HTTP requests that were passed on to another server, by what came of that",
            ),
            runs: add.one("runs", "Runs that have ended, by language, outcome and kind of start"),
            run_durations: add.seconds(
                "run_duration",
                "Wall time of runs",
                Family::new_with_constructor(histogram),
            ),
            run_cpu: add.seconds("run_cpu", "Processor time of runs", Family::default()),
            run_fuel: add
                .one("run_fuel", "Instructions that runs have used, on an engine that counts them"),
            uploaded: add
                .bytes("uploaded", "Size of files written to sandboxes, over MCP and HTTP"),
            downloaded: add.bytes(
                "downloaded",
                "Size of files read from sandboxes: downloads, archives, tool results, images",
            ),
            output: add.bytes("output", "Size of program output returned in results"),
            artifacts: add.one("artifacts", "Files that programs made or changed"),
            ready: add.one("ready", "1 if a session could be started now"),
            refused: add
                .one("sessions_refused", "Sessions not started because a limit was reached"),
            starts: add.seconds(
                "sandbox_start_duration",
                "Time to start a sandbox, up to its agent's first message",
                histogram(),
            ),
            warmings: add.seconds(
                "sandbox_warm_duration",
                "Time from an agent's first message until a program would start warm",
                histogram(),
            ),
            start_failures: add
                .one("sandbox_start_failures", "Sandboxes that could not be started"),
            archive: add
                .one("archive", "Sessions saved to the archive or restored from it, by outcome"),
            archive_bytes: add.bytes("archive", "Bytes of sessions that were saved or restored"),
            archive_durations: add.seconds(
                "archive_duration",
                "Time that saving or restoring a session took",
                Family::new_with_constructor(histogram),
            ),
        };
        for full in [Full::Server, Full::Client] {
            let _ = inner.refused.get_or_create(&full.labels());
        }
        for outcome in [Forwarded::Answered, Forwarded::Unreachable, Forwarded::Broken] {
            let _ = inner.forwarded.get_or_create(&outcome.labels());
        }
        inner
    }
}

/// Makes metrics and registers them, in the order in which they are read.
struct Adding<'a>(&'a mut Registry);

impl Adding<'_> {
    fn one<M: Metric + Clone + Default>(&mut self, name: &str, help: &str) -> M {
        let metric = M::default();
        self.0.register(name, help, metric.clone());
        metric
    }

    fn bytes<M: Metric + Clone + Default>(&mut self, name: &str, help: &str) -> M {
        let metric = M::default();
        self.0.register_with_unit(name, help, Unit::Bytes, metric.clone());
        metric
    }

    fn seconds<M: Metric + Clone>(&mut self, name: &str, help: &str, metric: M) -> M {
        self.0.register_with_unit(name, help, Unit::Seconds, metric.clone());
        metric
    }
}

/// The label for a language. Images name their languages; those beyond the limit are "other".
fn word(language: &RuntimeName) -> &'static str {
    const MAX_LANGUAGES: usize = 32;
    static KNOWN: Mutex<Vec<&'static str>> = Mutex::new(vec![]);
    let mut known = KNOWN.lock();
    if let Some(known) = known.iter().find(|known| **known == language.as_str()) {
        return known;
    }
    if known.len() == MAX_LANGUAGES {
        return "other";
    }
    known.push(language.as_str().to_owned().leak());
    known[known.len() - 1]
}

impl Forwarded {
    fn labels(self) -> Labels<1> {
        let outcome = match self {
            Self::Answered => "answered",
            Self::Unreachable => "unreachable",
            Self::Broken => "broken",
        };
        [("outcome", outcome)]
    }
}

impl Full {
    fn as_str(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Client => "client",
        }
    }

    fn labels(self) -> Labels<1> {
        [("limit", self.as_str())]
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}
