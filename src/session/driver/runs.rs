//! How a run begins, and what is made of its end.

use std::time::Instant;

use futures::future::FutureExt;

use super::{
    super::{
        RunId, RunReport,
        command::Program,
        events::SessionEvent,
        reply::Reply,
        report::{Limits, report},
        run::{Ran, execute},
        state::Busy,
    },
    Driver,
    work::{Finished, FinishedRun},
};
use crate::error::Error;

impl Driver {
    pub(super) fn begin_run(&mut self, program: Program, reply: Reply<RunReport>) {
        match self.state.begin_run(Instant::now()) {
            Ok(()) => {
                let (run_id, timeout) = (RunId::mint(), program.timeout);
                self.cancelled = program.cancel.clone();
                self.run_deadline = Some(Instant::now() + timeout);
                let began = SessionEvent::RunBegan { run_id: &run_id, program: &program };
                self.setup.observers.notify(&began);
                let (link, stop) = (self.link.clone(), self.stop.clone());
                let run = execute(link, program, self.setup.max_output, stop);
                let finished =
                    run.map(move |done| Box::new(FinishedRun { run_id, timeout, done, reply }));
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

    pub(super) fn finish_run(&mut self, finished: FinishedRun) {
        let FinishedRun { run_id, timeout, done, reply } = finished;
        self.state.run_ended(Instant::now());
        let answer = match done {
            Ok(Ran { call, reply: run }) => {
                let limits = Limits {
                    timeout,
                    memory: self.setup.spec.limits.memory,
                    tracebacks: self.setup.tracebacks,
                };
                let wall = run.elapsed;
                let report = report(run_id, limits, run);
                self.files += 1;
                self.setup.observers.notify(&SessionEvent::RunEnded { report: &report, wall });
                self.truncated.note(&report, call);
                Ok(report)
            }
            Err(error) => Err(self.explained(error, "the program")),
        };
        let _ = reply.send(answer);
        if let Some((program, reply)) = self.next_run.take() {
            self.begin_run(program, reply);
        }
    }
}
