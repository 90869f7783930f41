//! The events of a session, sent once by its driver to all observers.
//!
//! ```text
//!                        .--> metrics   counters, and present values
//!   driver --notify(event)--> history   for people who view the session
//!                        '--> log       for the operator
//! ```

use std::{sync::Arc, time::Duration};

use link::Vitals;
use model::{Approval, RunId, SessionId, text::printable};
use protocol::message::{RuntimeName, WarmDone};

use super::{RunReport, command::Program, history::Recorded, phase::Phase, pictures::Picture};
use crate::calls::Called;

/// An event of a session.
#[derive(Debug)]
pub(crate) enum SessionEvent<'a> {
    /// The sandbox runs and its agent has answered.
    Started {
        /// The backend's name for the sandbox.
        sandbox: &'a str,
        took: Duration,
        vitals: Vitals,
        start: SandboxStart,
    },
    /// The sandbox was saved on disk and has ended, until the session is used.
    Slept,
    /// The sandbox could not be started.
    NotStarted,
    /// The next run starts warm, or the agent has reported why it will not.
    Warmed {
        done: WarmDone,
        took: Duration,
    },
    Phase(Phase),
    RunBegan {
        run_id: &'a RunId,
        program: &'a Program,
    },
    /// The run in progress has written something.
    Wrote {
        run_id: &'a RunId,
        /// The newest text of standard output and standard error.
        newest: &'a [String; 2],
    },
    /// These calls of the run in progress wait for a person.
    Waiting {
        run_id: &'a RunId,
        approvals: &'a [Arc<Approval>],
    },
    /// The run has called a tool, or was refused.
    Called {
        run_id: &'a RunId,
        called: &'a Called,
    },
    /// A run that had begun could not be carried out.
    RunFailed {
        run_id: &'a RunId,
    },
    RunEnded {
        report: &'a RunReport,
        language: &'a RuntimeName,
    },
    /// The stored pictures of a run that has ended.
    Drawn {
        run_id: &'a RunId,
        pictures: &'a [Picture],
    },
    /// The last cells of a language were undone.
    Undone {
        language: &'a RuntimeName,
        cells: u32,
    },
    /// A file was uploaded.
    FileAdded {
        bytes: u64,
    },
    /// A piece of a file was read.
    FileRead {
        bytes: usize,
    },
    /// The runs of a session that was restored are known.
    Recalled(&'a Recorded),
    /// The session was saved to the archive or restored from it, or this failed.
    Archived {
        action: &'static str,
        outcome: &'static str,
        bytes: u64,
        took: Duration,
    },
    Ended(EndReason),
}

/// The way in which a sandbox came to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SandboxStart {
    /// A new, empty sandbox.
    New,
    /// A sandbox that resumed from the session's saved state.
    Woken,
    /// The sandbox of another server, which was taken over.
    Resumed,
}

/// Why a session has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndReason {
    Closed,
    Expired,
    Evicted,
    Died,
    Shutdown,
}

impl EndReason {
    /// All reasons.
    pub(crate) const ALL: [Self; 5] =
        [Self::Closed, Self::Expired, Self::Evicted, Self::Died, Self::Shutdown];

    /// The documented word.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Expired => "expired",
            Self::Evicted => "evicted",
            Self::Died => "died",
            Self::Shutdown => "shutdown",
        }
    }
}

/// Is notified of the events of sessions.
pub(crate) trait Observer: Send + Sync {
    /// Handles an event. Must not block.
    fn observe(&self, event: &SessionEvent<'_>);
}

/// The observers of one session.
pub(crate) struct Observers(Vec<Box<dyn Observer>>);

impl Observers {
    /// These observers and the log.
    pub(crate) fn new(id: &SessionId, others: impl IntoIterator<Item = Box<dyn Observer>>) -> Self {
        // The log is last: when a line appears there, the other observers have handled the event.
        let log: Box<dyn Observer> = Box::new(Log(id.clone()));
        Self(others.into_iter().chain([log]).collect())
    }

    /// Notifies all observers.
    pub(super) fn notify(&self, event: &SessionEvent<'_>) {
        for observer in &self.0 {
            observer.observe(event);
        }
    }
}

/// Writes events for the operator to the log, without texts of callers.
struct Log(SessionId);

impl Observer for Log {
    fn observe(&self, event: &SessionEvent<'_>) {
        let Self(id) = self;
        match event {
            SessionEvent::Started { sandbox, took, start, .. } => {
                let duration_ms = millis(*took);
                let what = match start {
                    SandboxStart::New => "session started",
                    SandboxStart::Woken => "session woken",
                    SandboxStart::Resumed => "session resumed",
                };
                tracing::info!(session_id = %id, sandbox, duration_ms, "{what}");
            }
            SessionEvent::Warmed { done, took } if done.problems.is_empty() => {
                let (ready, duration_ms) = (done.ready, millis(*took));
                tracing::info!(session_id = %id, ready, duration_ms, "session is warm");
            }
            // Modules that could not be loaded are the operator's to fix.
            SessionEvent::Warmed { done, .. } => {
                let problems = done.problems.iter().take(10).map(|text| printable(text));
                let problems = problems.collect::<Vec<_>>().join("; ");
                tracing::warn!(session_id = %id, ready = done.ready, problems, "some modules were not preloaded");
            }
            SessionEvent::Phase(Phase::Hibernating) => {
                tracing::info!(session_id = %id, "session hibernated");
            }
            SessionEvent::Ended(reason) => {
                tracing::info!(session_id = %id, why = reason.as_str(), "session ended");
            }
            SessionEvent::NotStarted
            | SessionEvent::Slept
            | SessionEvent::Phase(_)
            | SessionEvent::RunBegan { .. }
            | SessionEvent::Wrote { .. }
            | SessionEvent::Waiting { .. }
            | SessionEvent::Called { .. }
            | SessionEvent::RunFailed { .. }
            | SessionEvent::RunEnded { .. }
            | SessionEvent::Drawn { .. }
            | SessionEvent::Undone { .. }
            | SessionEvent::FileAdded { .. }
            | SessionEvent::FileRead { .. }
            | SessionEvent::Recalled(_)
            | SessionEvent::Archived { .. } => {}
        }
    }
}

/// Is notified of reads of a session's files, for as long as a reader lives.
pub(crate) type ReadObserver = Arc<dyn Observer>;

fn millis(took: Duration) -> u64 {
    u64::try_from(took.as_millis()).unwrap_or(u64::MAX)
}
