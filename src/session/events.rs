//! What happens in a session, told once by its driver and heard by all who keep account of it.
//!
//! ```text
//!                        .--> metrics   counters, and what there is now
//!   driver --notify(event)--> history   for people who view the session
//!                        '--> log       for the operator
//! ```

use std::{sync::Arc, time::Duration};

use model::{RunId, SessionId, text::printable};
use protocol::message::{RuntimeName, WarmDone};

use super::{RunReport, command::Program, phase::Phase, pictures::Picture};
use crate::link::Memory;

/// Something that has happened in a session.
#[derive(Debug)]
pub(crate) enum SessionEvent<'a> {
    /// Its sandbox runs and its agent has answered.
    Started {
        /// The backend's name for it.
        sandbox: &'a str,
        took: Duration,
        memory: Memory,
        origin: Origin,
    },
    /// Its sandbox is kept and gone until somebody uses the session.
    Slept,
    /// Its sandbox could not be started.
    NotStarted,
    /// The next run starts warm, or the agent has said why it will not.
    Warmed {
        done: WarmDone,
        took: Duration,
    },
    /// It does something else now.
    Phase(Phase),
    RunBegan {
        run_id: &'a RunId,
        program: &'a Program,
    },
    /// A run that began could not be carried out.
    RunFailed {
        run_id: &'a RunId,
    },
    RunEnded {
        report: &'a RunReport,
        language: &'a RuntimeName,
    },
    /// What a run that has ended had drawn, as far as it is kept.
    Drawn {
        run_id: &'a RunId,
        pictures: &'a [Picture],
    },
    /// The last cells of a language were taken back.
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
    /// It was saved to the archive or brought back from it, or could not be.
    Archived {
        action: &'static str,
        outcome: &'static str,
        bytes: u64,
        took: Duration,
    },
    Ended(EndReason),
}

/// What a session begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A sandbox that is empty.
    New,
    /// What was kept of the sandbox that it had before.
    Woken,
    /// The sandbox that another server has left.
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
    /// All there are.
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

/// Hears of what happens in sessions.
pub(crate) trait Observer: Send + Sync {
    /// Takes note of it. Must not wait for anything.
    fn observe(&self, event: &SessionEvent<'_>);
}

/// Who hears of what happens in one session.
pub(crate) struct Observers(Vec<Box<dyn Observer>>);

impl Observers {
    /// These and the log.
    pub(crate) fn new(id: &SessionId, others: impl IntoIterator<Item = Box<dyn Observer>>) -> Self {
        // The log comes last: who reads a line there finds the rest as it says.
        let log: Box<dyn Observer> = Box::new(Log(id.clone()));
        Self(others.into_iter().chain([log]).collect())
    }

    /// Tells all of them.
    pub(super) fn notify(&self, event: &SessionEvent<'_>) {
        for observer in &self.0 {
            observer.observe(event);
        }
    }
}

/// Says what an operator may want to know, and nothing that a caller wrote.
struct Log(SessionId);

impl Observer for Log {
    fn observe(&self, event: &SessionEvent<'_>) {
        let Self(id) = self;
        match event {
            SessionEvent::Started { sandbox, took, origin, .. } => {
                let duration_ms = millis(*took);
                let what = match origin {
                    Origin::New => "session started",
                    Origin::Woken => "session woken",
                    Origin::Resumed => "session resumed",
                };
                tracing::info!(session_id = %id, sandbox, duration_ms, "{what}");
            }
            SessionEvent::Warmed { done, took } if done.problems.is_empty() => {
                let (ready, duration_ms) = (done.ready, millis(*took));
                tracing::info!(session_id = %id, ready, duration_ms, "session is warm");
            }
            // What could not be loaded is the operator's to fix, and no caller's.
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
            | SessionEvent::RunFailed { .. }
            | SessionEvent::RunEnded { .. }
            | SessionEvent::Drawn { .. }
            | SessionEvent::Undone { .. }
            | SessionEvent::FileAdded { .. }
            | SessionEvent::FileRead { .. }
            | SessionEvent::Archived { .. } => {}
        }
    }
}

/// Hears of what is read of a session's files, for as long as somebody reads.
pub(crate) type ReadObserver = Arc<dyn Observer>;

fn millis(took: Duration) -> u64 {
    u64::try_from(took.as_millis()).unwrap_or(u64::MAX)
}
