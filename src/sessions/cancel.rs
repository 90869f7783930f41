//! Cancels a run by its name, from any connection of its caller.

use std::time::Duration;

use model::Outcome;
use tokio::time::timeout;

use super::{Execution, Sessions};
use crate::session::{History, command::Command, handle::Handle};

/// Longest time that a caller waits for the end of a cancelled run. A kill takes milliseconds.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(10);

/// The result of a request to cancel a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CancelOutcome {
    /// The run was in progress and has been killed.
    Cancelled,
    /// The run had ended by itself.
    Finished,
    /// The caller has no such run, or it is no longer remembered.
    NotFound,
}

impl CancelOutcome {
    /// All outcomes.
    pub const ALL: [Self; 3] = [Self::Cancelled, Self::Finished, Self::NotFound];

    /// The documented word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cancelled => "cancelled",
            Self::Finished => "finished",
            Self::NotFound => "not_found",
        }
    }
}

impl Sessions {
    /// Kills a run of the caller that is in progress or about to begin, and waits until it has ended.
    pub async fn cancel(&self, run_id: &str) -> CancelOutcome {
        let cancelled = async {
            if let Some(unbegun) = self.unbegun(run_id) {
                unbegun.cancel.cancel();
                unbegun.over.cancelled().await;
                return match self.with_run(run_id) {
                    Ok(handle) => end(&handle, run_id).await,
                    Err(_) => CancelOutcome::Cancelled,
                };
            }
            match self.with_run(run_id) {
                Ok(handle) => kill(&handle, run_id).await,
                Err(Execution::SessionEnded) => CancelOutcome::Finished,
                Err(_) => CancelOutcome::NotFound,
            }
        };
        // The kill is in progress, even if the end of the run is not seen in time.
        timeout(CANCEL_TIMEOUT, cancelled).await.unwrap_or(CancelOutcome::Cancelled)
    }
}

/// Kills a run of this session and returns how it ended.
async fn kill(handle: &Handle, run_id: &str) -> CancelOutcome {
    let running = handle.history.borrow().running().map(|run| run.run_id.clone());
    let Some(running) = running.filter(|running| running.as_str() == run_id) else {
        return CancelOutcome::Finished;
    };
    // A session that has ended meanwhile has ended its run.
    let _ = handle.ask(|reply| Command::Cancel { run_id: running, reply }).await;
    end(handle, run_id).await
}

/// Waits until a run of this session that is being killed has ended, and returns how it did.
async fn end(handle: &Handle, run_id: &str) -> CancelOutcome {
    let mut history = handle.history.clone();
    let is_over = |history: &History| history.run(run_id).is_none_or(|run| run.end.is_some());
    let Ok(history) = history.wait_for(is_over).await else { return CancelOutcome::Cancelled };
    let end = history.run(run_id).and_then(|run| run.end.as_ref());
    match end {
        Some(end) if end.outcome != Outcome::Cancelled => CancelOutcome::Finished,
        _ => CancelOutcome::Cancelled,
    }
}
