//! Figures by caller, for operators who ask for them: a registry of its own, so that only readers who may know the
//! callers' names get it.
//!
//! The names of callers with a token are labels. All others, such as callers without one, are `other`: the number of
//! series is limited by the settings, and by [`MAX_CALLERS`] if the settings are reloaded again and again.

use std::{
    collections::HashSet,
    fmt,
    sync::{Arc, atomic::AtomicU64},
};

use parking_lot::Mutex;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use protocol::message::RuntimeName;

use super::{Adding, Full, Metrics, watch::Watch, word};
use crate::session::{
    RunReport,
    events::{Observer, SessionEvent},
    label::{Label, SessionLabel},
};

/// Maximum number of callers with labels of their own.
const MAX_CALLERS: usize = 100;

/// The label of all other callers.
const OTHER: &str = "other";

/// The figures.
pub(super) struct ByCaller {
    pub(super) registry: Registry,
    named: Mutex<HashSet<Label>>,
    other: Label,
    calls: Family<Call, Counter>,
    runs: Family<Run, Counter>,
    run_seconds: Family<Language, Seconds>,
    cpu_seconds: Family<Language, Seconds>,
    uploaded: Family<Caller, Counter>,
    downloaded: Family<Caller, Counter>,
    refused: Family<Refused, Counter>,
}

type Seconds = Counter<f64, AtomicU64>;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Caller {
    caller: Arc<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Call {
    caller: Arc<String>,
    tool: String,
    code: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Run {
    caller: Arc<String>,
    language: &'static str,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Language {
    caller: Arc<String>,
    language: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Refused {
    caller: Arc<String>,
    limit: &'static str,
}

impl ByCaller {
    pub(super) fn new(watch: &Watch) -> Self {
        let mut registry = Registry::default();
        let ours = registry.sub_registry_with_prefix("llm_sandbox");
        ours.register_collector(Box::new(watch.by_caller()));
        let mut add = Adding(ours);
        Self {
            named: Mutex::default(),
            other: Label::new(OTHER),
            calls: add.one("caller_tool_calls", "Tool calls by caller, tool and result"),
            runs: add.one("caller_runs", "Runs that have ended, by caller, language and outcome"),
            run_seconds: add.seconds(
                "caller_run",
                "Wall time of runs by caller",
                Family::default(),
            ),
            cpu_seconds: add.seconds(
                "caller_run_cpu",
                "Processor time of runs by caller",
                Family::default(),
            ),
            uploaded: add.bytes("caller_uploaded", "Size of files written to sandboxes, by caller"),
            downloaded: add
                .bytes("caller_downloaded", "Size of files read from sandboxes, by caller"),
            refused: add.one(
                "caller_sessions_refused",
                "Sessions not started because a limit was reached, by caller",
            ),
            registry,
        }
    }

    /// The label of a caller: its name if it is listed in the settings.
    fn label(&self, name: &str, is_listed: bool) -> Label {
        if !is_listed {
            return self.other.clone();
        }
        let label = Label::new(name);
        let mut named = self.named.lock();
        match named.get(&label) {
            Some(known) => known.clone(),
            None if named.len() >= MAX_CALLERS => self.other.clone(),
            None => {
                named.insert(label.clone());
                label
            }
        }
    }

    fn ran(&self, caller: &Arc<String>, report: &RunReport, language: &RuntimeName) {
        let (language, outcome) = (word(language), report.outcome.as_str());
        let run = Run { caller: caller.clone(), language, outcome };
        self.runs.get_or_create(&run).inc();
        let of = Language { caller: caller.clone(), language };
        self.run_seconds.get_or_create(&of).inc_by(report.elapsed.as_secs_f64());
        self.cpu_seconds.get_or_create(&of).inc_by(report.cpu.as_secs_f64());
    }
}

impl Metrics {
    /// The label of a caller, who is listed in the settings or not; `None` if callers are not counted.
    pub(crate) fn label(&self, name: &str, is_listed: bool) -> Option<Label> {
        Some(self.0.callers.as_ref()?.label(name, is_listed))
    }

    /// Counts a tool call of a caller.
    pub(crate) fn tool_called_by(&self, caller: Option<Label>, tool: &str, code: &'static str) {
        if let Some((callers, caller)) = self.0.callers.as_ref().zip(caller) {
            let caller = caller.name().clone();
            let call = Call { caller, tool: tool.to_owned(), code };
            callers.calls.get_or_create(&call).inc();
        }
    }

    /// Counts a session of a caller that was not started because a limit was reached.
    pub(crate) fn refused_to(&self, caller: Option<Label>, full: Full) {
        if let Some((callers, caller)) = self.0.callers.as_ref().zip(caller) {
            let caller = caller.name().clone();
            callers.refused.get_or_create(&Refused { caller, limit: full.as_str() }).inc();
        }
    }

    /// The observer of a session, for all figures and for those of its caller.
    pub(crate) fn of_session(&self, label: &SessionLabel) -> OfSession {
        OfSession { metrics: self.clone(), label: label.clone() }
    }
}

/// Counts the events of one session.
#[derive(Debug, Clone)]
pub(crate) struct OfSession {
    metrics: Metrics,
    label: SessionLabel,
}

impl Observer for OfSession {
    fn observe(&self, event: &SessionEvent<'_>) {
        self.metrics.observe(event);
        let Some((callers, caller)) = self.metrics.0.callers.as_ref().zip(self.label.get()) else {
            return;
        };
        let of = || Caller { caller: caller.clone() };
        match event {
            SessionEvent::RunEnded { report, language } => callers.ran(caller, report, language),
            SessionEvent::FileAdded { bytes } => {
                callers.uploaded.get_or_create(&of()).inc_by(*bytes);
            }
            SessionEvent::FileRead { bytes } => {
                callers.downloaded.get_or_create(&of()).inc_by(*bytes as u64);
            }
            _ => {}
        }
    }
}

impl fmt::Debug for ByCaller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ByCaller").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_beyond_a_number_share_a_label() {
        let callers = ByCaller::new(&Watch::default());
        let label = |n: usize| callers.label(&format!("caller{n}"), true).name().to_string();
        for n in 0..MAX_CALLERS {
            assert_eq!(label(n), format!("caller{n}"));
        }
        assert_eq!(label(MAX_CALLERS), OTHER);
        assert_eq!(label(0), "caller0", "a label stays");
        assert_eq!(callers.label("caller1", false).name().as_str(), OTHER);
    }
}
