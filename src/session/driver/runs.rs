//! How a run begins, and how its end is processed.

use std::time::Instant;

use futures::future::FutureExt;

use model::RunId;
use protocol::message::{CellState, FailureCode, RuntimeName};

use super::{
    super::{
        RunReport,
        command::Program,
        events::SessionEvent,
        pictures::{self, Picture},
        reply::Reply,
        report::{Before, Limits, not_started, report},
        run::{Ran, execute},
        state::Busy,
    },
    Driver,
    work::{Finished, FinishedRun},
};
use crate::{
    error::Error,
    link::{CellReply, LinkError},
};

impl Driver {
    pub(super) fn begin_run(&mut self, mut program: Program, reply: Reply<RunReport>) {
        // The pictures of the last run are still being read, which takes milliseconds: this run starts after that.
        if self.drawn_by.is_some() && self.next_run.is_none() {
            self.next_run = Some((program, reply));
            return;
        }
        match self.state.begin_run(Instant::now()) {
            Ok(()) => {
                let (run_id, timeout) = (RunId::mint(), program.timeout);
                // A child token: cancelling the run must not cancel the caller's token, which would drop its answer.
                program.cancel = program.cancel.child_token();
                self.cancelled = program.cancel.clone();
                self.run_id = Some(run_id.clone());
                if let Some(progress) = &program.progress {
                    progress.send_modify(|progress| progress.run_id = Some(run_id.clone()));
                }
                self.run_deadline = Some(Instant::now() + timeout);
                let began = SessionEvent::RunBegan { run_id: &run_id, program: &program };
                self.setup.observers.notify(&began);
                let (language, is_cell) = (program.language.clone(), program.cell);
                let (link, stop) = (self.link.clone(), self.stop.clone());
                let run = execute(link, program, self.setup.max_output, stop);
                let finished = run.map(move |done| {
                    Box::new(FinishedRun { run_id, timeout, language, is_cell, done, reply })
                });
                self.work.push(finished.map(Finished::Run).boxed());
            }
            Err(Busy) if self.cancelled.is_cancelled() && self.next_run.is_none() => {
                self.next_run = Some((program, reply));
            }
            Err(Busy) => {
                let at_most =
                    self.run_deadline.map(|end| end.saturating_duration_since(Instant::now()));
                drop(reply.send(Err(Error::SessionBusy { at_most })));
            }
        }
    }

    pub(super) fn cancel_run(&self, run_id: &RunId) {
        if self.run_id.as_ref() == Some(run_id) {
            self.cancelled.cancel();
        }
    }

    pub(super) fn finish_run(&mut self, finished: FinishedRun) {
        let FinishedRun { run_id, timeout, language, is_cell, done, reply } = finished;
        self.state.run_ended(Instant::now());
        self.run_id = None;
        let answer = match done {
            Ok(Ran { call, reply: run }) => {
                let limits = Limits {
                    timeout,
                    max_timeout: self.setup.max_timeout,
                    memory: self.setup.spec.limits.memory,
                    tracebacks: self.setup.tracebacks,
                    world: self.setup.backend.world(),
                };
                let before = is_cell.then(|| self.before(language.clone()));
                if let Some((before, cell)) = before.as_ref().zip(run.cell.as_ref()) {
                    self.remember(&before.language, cell);
                }
                let drawn = pictures::among(&run.changed);
                if !drawn.is_empty() {
                    self.drawn_by = Some(run_id.clone());
                    let link = self.link.clone();
                    let kept = async move { Finished::Drawn(pictures::read(&link, drawn).await) };
                    self.work.push(kept.boxed());
                }
                let report = report(run_id, limits, before, run);
                self.files += 1;
                self.setup
                    .observers
                    .notify(&SessionEvent::RunEnded { report: &report, language: &language });
                self.truncated.note(&report, call);
                Ok(report)
            }
            Err(LinkError::Refused(failure)) if is_cell && failure.code == FailureCode::System => {
                let (id, detail) = (&self.setup.id, failure.detail);
                tracing::warn!(session_id = %id, detail, "the interpreter did not start");
                let report = not_started(run_id, Some(self.before(language.clone())));
                self.setup
                    .observers
                    .notify(&SessionEvent::RunEnded { report: &report, language: &language });
                Ok(report)
            }
            Err(error) => {
                self.setup.observers.notify(&SessionEvent::RunFailed { run_id: &run_id });
                Err(self.explained(error, "the program"))
            }
        };
        let _ = reply.send(answer);
        self.begin_next_run();
    }

    /// Records the pictures of the last run. The next run may change the files now.
    pub(super) fn keep_pictures(&mut self, pictures: &[Picture]) {
        if let Some(run_id) = &self.drawn_by.take() {
            self.setup.observers.notify(&SessionEvent::Drawn { run_id, pictures });
        }
        self.begin_next_run();
    }

    fn begin_next_run(&mut self) {
        if self.drawn_by.is_none()
            && let Some((program, reply)) = self.next_run.take()
        {
            self.begin_run(program, reply);
        }
    }

    /// A caller's assumptions about the interpreter in which a cell of this language will run.
    fn before(&self, language: RuntimeName) -> Before {
        let has_variables = self.remembering.contains(&language);
        let is_at_risk = self.at_risk.contains(&language);
        Before { language, has_variables, is_at_risk }
    }

    /// Records whether there are variables after a cell. Without a cell that lasted there are none, so none can be
    /// lost.
    fn remember(&mut self, language: &RuntimeName, cell: &CellReply) {
        if cell.state == CellState::Lost || cell.count == 0 {
            self.remembering.remove(language);
        } else {
            self.remembering.insert(language.clone());
        }
        if !cell.at_risk {
            self.at_risk.remove(language);
        } else if cell.state == CellState::Kept {
            self.at_risk.insert(language.clone());
        }
    }
}
