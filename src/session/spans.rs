//! The spans of a session: starts of its sandbox, and runs.

use std::time::SystemTime;

use model::{RunId, SessionId};
use parking_lot::Mutex;

use super::events::{Observer, SandboxStart, SessionEvent};
use crate::trace::{Kind, Parent, Span};

/// The name of the start of a sandbox.
const START: &str = "start sandbox";

/// Makes spans of a session's events.
pub(crate) struct Spans {
    session: SessionId,
    /// The call that the session is started for, until its sandbox has started; none in the pool.
    first: Mutex<Parent>,
    /// When this was made: the session waits for its turn before its sandbox starts.
    since: SystemTime,
    running: Mutex<Option<Span>>,
}

impl Spans {
    /// The spans of a session that is about to start. The current span is that of its call.
    pub(crate) fn new(session: &SessionId) -> Self {
        let (session, first) = (session.clone(), Mutex::new(Parent::current()));
        Self { session, first, since: SystemTime::now(), running: Mutex::default() }
    }

    fn begun(&self, since: SystemTime, parent: &Parent, name: String) -> Span {
        let span = Span::since(since, parent, Kind::Internal, name);
        span.set("llm_sandbox.session_id", self.session.to_string());
        span
    }

    /// The span of a start that has just ended.
    fn started(&self, since: SystemTime) -> Span {
        let first = std::mem::take(&mut *self.first.lock());
        self.begun(since, &first.or(Parent::current()), START.into())
    }

    fn run_began(&self, run_id: &RunId, language: &str) {
        let span = self.begun(SystemTime::now(), &Parent::current(), format!("run {language}"));
        span.set("llm_sandbox.run_id", run_id.to_string());
        span.set("llm_sandbox.language", language.to_owned());
        *self.running.lock() = Some(span);
    }
}

impl Observer for Spans {
    fn observe(&self, event: &SessionEvent<'_>) {
        match event {
            SessionEvent::Started {
                took, start: SandboxStart::New | SandboxStart::Woken, ..
            } => {
                let since = SystemTime::now().checked_sub(*took).unwrap_or(self.since);
                drop(self.started(since));
            }
            SessionEvent::NotStarted => {
                self.started(self.since).fail("sandbox_unavailable");
            }
            SessionEvent::RunBegan { run_id, program } => {
                self.run_began(run_id, program.language.as_str());
            }
            SessionEvent::RunEnded { report, .. } => {
                let Some(span) = self.running.lock().take() else { return };
                let outcome = report.outcome.as_str();
                span.set("llm_sandbox.outcome", outcome);
                span.set("llm_sandbox.start", report.start.as_str());
                span.set("process.exit.code", i64::from(report.exit_code));
                if outcome != "ok" {
                    span.fail(outcome);
                }
            }
            SessionEvent::RunFailed { .. } => {
                if let Some(span) = self.running.lock().take() {
                    span.fail("sandbox_died");
                }
            }
            _ => {}
        }
    }
}
