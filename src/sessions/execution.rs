//! A run by its name, from any connection of its caller: its state, and its result once it has ended.

use std::time::Duration;

use bytes::Bytes;
use model::{RunId, SessionId};
use tokio::time::{Instant, timeout, timeout_at};

use super::{Sessions, unbegun::Unbegun};
use crate::session::{
    History, PastRun,
    handle::Handle,
    results::{Results, Stored},
};

/// The place where the result of a run is stored for its caller: in its session, even if that has ended meanwhile.
#[derive(Debug)]
pub(crate) struct ResultPlace {
    run_id: RunId,
    results: Results,
    max_bytes: usize,
}

impl ResultPlace {
    /// Stores the result. `is_awaited` if nobody has got it yet.
    pub(crate) fn keep(self, is_awaited: bool, result: Bytes) {
        let Self { run_id, results, max_bytes } = self;
        results.add(Stored { run_id, is_awaited, result }, max_bytes);
    }
}

/// Longest time between the end of a run and its result. Exporting its files and shrinking its images take longest.
const RESULT_TIMEOUT: Duration = Duration::from_secs(5);

/// A run, as its caller asks for it.
#[derive(Debug)]
pub enum Execution {
    /// It has not begun; with its session, if the call named one.
    Unbegun(Option<SessionId>),
    /// It is in progress.
    Running(SessionId, Box<PastRun>),
    /// It has ended with this result, as its edge has written it. `None` if only the result is remembered.
    Ended(SessionId, Option<Box<PastRun>>, Bytes),
    /// It has ended, and only its record is stored, not its result.
    Recorded(SessionId, Box<PastRun>),
    /// Its session has ended.
    SessionEnded,
    /// The caller has no such run, or it is no longer remembered.
    NotFound,
}

impl Sessions {
    /// The place for the result of a run of this session; `None` if the session has ended.
    pub(crate) fn place_of_result(&self, id: &SessionId, run_id: RunId) -> Option<ResultPlace> {
        let handle = self.find(id)?;
        let max_bytes = handle.history.borrow().max_bytes();
        Some(ResultPlace { run_id, results: handle.results.clone(), max_bytes })
    }

    /// A run of the caller. If it is in progress, waits so long for its end.
    pub async fn execution(&self, run_id: &str, wait: Duration) -> Execution {
        self.execution_when(run_id, wait, |_| false).await
    }

    /// A run of the caller. If it is in progress, waits so long until `is_enough` or its end.
    pub(crate) async fn execution_when(
        &self,
        run_id: &str,
        wait: Duration,
        mut is_enough: impl FnMut(&PastRun) -> bool + Send,
    ) -> Execution {
        let deadline = Instant::now() + wait;
        if let Some(unbegun) = self.unbegun(run_id)
            && timeout_at(deadline, unbegun.over.cancelled()).await.is_err()
        {
            return Execution::Unbegun(unbegun.session);
        }
        let handle = match self.with_run(run_id) {
            Ok(handle) => handle,
            Err(without) => return without,
        };
        let ended = async {
            let mut history = handle.history.clone();
            let is_over =
                |it: &History| it.run(run_id).is_none_or(|run| run.end.is_some() || is_enough(run));
            let _ = history.wait_for(is_over).await;
        };
        let _ = timeout_at(deadline, ended).await;
        self.seen(&handle, run_id).await
    }

    /// A run of the caller that has not begun.
    pub(super) fn unbegun(&self, run_id: &str) -> Option<Unbegun> {
        // A link to one session shows the runs that it has.
        if self.only.is_some() { None } else { self.host.unbegun.of(&self.caller, run_id) }
    }

    /// The session of a run of the caller; otherwise the state of a run that no session has.
    pub(super) fn with_run(&self, run_id: &str) -> Result<Handle, Execution> {
        let registry = self.host.registry();
        match registry.with_run(&self.caller, run_id).filter(|handle| self.sees(handle)) {
            Some(handle) => Ok(handle.clone()),
            None if registry.had_run(&self.caller, run_id) => Err(Execution::SessionEnded),
            None => Err(Execution::NotFound),
        }
    }

    async fn seen(&self, handle: &Handle, run_id: &str) -> Execution {
        let run = handle.history.borrow().run(run_id).cloned();
        if let Some(run) = &run
            && run.end.is_none()
            && !handle.is_ended()
        {
            return Execution::Running(handle.id.clone(), Box::new(run.clone()));
        }
        let result = timeout(RESULT_TIMEOUT, handle.results.wait_for(run_id)).await;
        match (result, run) {
            (Ok(result), run) => Execution::Ended(handle.id.clone(), run.map(Box::new), result),
            (Err(_), Some(run)) if run.end.is_some() => {
                Execution::Recorded(handle.id.clone(), Box::new(run))
            }
            _ => Execution::SessionEnded,
        }
    }
}
