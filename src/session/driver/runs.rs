//! A run, from the command to the answer: it begins if the rules allow it, is observed if its caller wants its
//! progress, and is killed when its caller or the session no longer wants it. Then the task reports its end.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures::future::FutureExt;
use jiff::Timestamp;
use link::{CellReply, Leftover, Link, LinkError, RunReply, RunRequest, Running};
use model::RunId;
use protocol::message::{CellState, FailureCode, RuntimeName};
use tokio::{
    sync::{oneshot, watch},
    time::sleep,
};
use tokio_util::sync::CancellationToken;

use super::{
    super::{
        RunReport,
        command::Program,
        events::SessionEvent,
        hold::LastRun,
        pictures::{self, Picture},
        reply::Reply,
        report::{Before, Limits, not_started, report},
        state::Busy,
    },
    Driver, Finished,
};
use crate::{
    calls::RunCalls,
    error::{BusyRun, Error},
    progress::{Progress, RunOutput},
    trace::Parent,
};

/// Interval at which output is read while the run's caller listens to its progress.
const PEEK_INTERVAL: Duration = Duration::from_millis(100);

/// Interval at which output is read otherwise, and passed on to viewers of the session.
const VIEW_INTERVAL: Duration = Duration::from_secs(1);

/// The newest text of standard output and standard error of a run in progress.
pub(super) type Newest = [String; 2];

/// The run in progress, with everything that its answer needs.
pub(super) struct CurrentRun {
    run_id: RunId,
    language: RuntimeName,
    is_cell: bool,
    timeout: Duration,
    max_timeout: Duration,
    /// When the run is killed at the latest.
    deadline: Instant,
    /// Cancelled when the run's caller no longer waits for it.
    cancelled: CancellationToken,
    /// Answers the questions of its program.
    pub(super) calls: Option<Arc<RunCalls>>,
    pub(super) progress: Option<watch::Sender<Progress>>,
    reply: Reply<RunReport>,
}

impl CurrentRun {
    pub(super) fn run_id(&self) -> &RunId {
        &self.run_id
    }
}

impl Driver {
    pub(super) fn begin_run(&mut self, mut program: Program, reply: Reply<RunReport>) {
        // The pictures of the last run are still being read, which takes milliseconds: this run starts after that.
        if self.drawn_by.is_some() && self.next_run.is_none() {
            self.next_run = Some((program, reply, Parent::current()));
            return;
        }
        match self.state.begin_run(Instant::now()) {
            Ok(()) => {
                let timeout = program.timeout;
                let note = self.notes().map(|note| {
                    let run = LastRun::new(&program);
                    move |call| note(Some(LastRun { call, ..run }))
                });
                let watched = self.track(&mut program, timeout, reply);
                let (link, max_output) = (self.link.clone(), self.setup.max_output);
                let run = async move {
                    let Program { language: runtime, cell, code, stdin, timeout, .. } = program;
                    let output_cap = max_output;
                    let request = RunRequest { runtime, code, stdin, timeout, output_cap, cell };
                    let running = link.run_noted(request, note).await?;
                    attend(link, running, watched).await
                };
                self.work.push(run.map(|done| Finished::Run(Box::new(done))).boxed());
            }
            Err(Busy) => match &self.current {
                Some(current) if current.cancelled.is_cancelled() && self.next_run.is_none() => {
                    self.next_run = Some((program, reply, Parent::current()));
                }
                current => {
                    let run = current.as_ref().map(|it| {
                        let left = it.deadline.saturating_duration_since(Instant::now());
                        let (id, approval) = (it.run_id.clone(), self.questions.first_waiting());
                        Box::new(BusyRun { id, left, approval, page_url: None })
                    });
                    drop(reply.send(Err(Error::SessionBusy { run })));
                }
            },
        }
    }

    /// Waits for the end of a run that the previous server has begun.
    pub(super) fn go_on_with(
        &mut self,
        leftover: Leftover,
        run: LastRun,
        calls: Option<Arc<RunCalls>>,
    ) {
        let mut program = Program { calls, ..run.program() };
        let age =
            Duration::try_from(Timestamp::now().duration_since(run.begun)).unwrap_or_default();
        let timeout = program.timeout;
        let running = leftover.into_running(age, timeout, self.setup.max_output, program.cell);
        // No caller waits for the answer.
        let (reply, _) = oneshot::channel();
        let watched = self.track(&mut program, timeout.saturating_sub(age), reply);
        let run = attend(self.link.clone(), running, watched);
        self.work.push(run.map(|done| Finished::Run(Box::new(done))).boxed());
    }

    /// Notes that a run is in progress, for so long at most.
    fn track(&mut self, program: &mut Program, left: Duration, reply: Reply<RunReport>) -> Watched {
        let began = SessionEvent::RunBegan { run_id: &program.run_id, program };
        self.setup.observers.notify(&began);
        // After that, because a caller that knows the run may look for it at once.
        program.unbegun = None;
        if let Some(progress) = &program.progress {
            let session = Some(self.setup.id.clone());
            progress.send_modify(|progress| progress.session = session);
        }
        self.current = Some(CurrentRun {
            run_id: program.run_id.clone(),
            language: program.language.clone(),
            is_cell: program.cell,
            timeout: program.timeout,
            max_timeout: program.max_timeout,
            deadline: Instant::now() + left,
            cancelled: program.cancel.clone(),
            calls: program.calls.clone(),
            progress: program.progress.clone(),
            reply,
        });
        let (newest, of_run) = watch::channel(Newest::default());
        self.newest = of_run;
        let (cancel, stop) = (program.cancel.clone(), self.stop.clone());
        Watched { cancel, stop, progress: program.progress.clone(), newest }
    }

    /// Passes the newest output of the run in progress on to viewers.
    pub(super) fn show_output(&mut self) {
        if let Some(current) = &self.current {
            let newest = self.newest.borrow_and_update();
            let event = SessionEvent::Wrote { run_id: &current.run_id, newest: &newest };
            self.setup.observers.notify(&event);
        }
    }

    pub(super) fn cancel_run(&self, run_id: &RunId) {
        if let Some(current) = self.current.as_ref().filter(|it| it.run_id == *run_id) {
            current.cancelled.cancel();
        }
    }

    pub(super) fn finish_run(&mut self, done: Result<RunReply, LinkError>) {
        let current = self.current.take().expect("a run that ends was in progress");
        let CurrentRun {
            run_id, language, is_cell, timeout, max_timeout, cancelled, reply, ..
        } = current;
        self.questions.end_all();
        self.state.run_ended(Instant::now());
        let answer = match done {
            Ok(run) => {
                let limits = Limits {
                    timeout,
                    max_timeout,
                    is_wanted: !cancelled.is_cancelled(),
                    memory: self.setup.spec.limits.memory,
                    processors: whole_processors(self.setup.spec.limits.cpus),
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
                self.files += 1;
                let call = run.call;
                let report = report(run_id, limits, before, run);
                self.truncated.note(&report, call);
                Ok(report)
            }
            Err(LinkError::Refused(failure)) if is_cell && failure.code == FailureCode::System => {
                let (id, detail) = (&self.setup.id, failure.detail);
                tracing::warn!(session_id = %id, detail, "the interpreter did not start");
                Ok(not_started(run_id, Some(self.before(language.clone()))))
            }
            Err(error) => {
                self.setup.observers.notify(&SessionEvent::RunFailed { run_id: &run_id });
                Err(self.explained(error, "the program"))
            }
        };
        if let Ok(report) = &answer {
            self.setup.observers.notify(&SessionEvent::RunEnded { report, language: &language });
        }
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
            && let Some((program, reply, parent)) = self.next_run.take()
        {
            parent.within(|| self.begin_run(program, reply));
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
        if !language.keeps_variables() {
            return;
        }
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

/// A number of processors, rounded up.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within the bounds")]
fn whole_processors(cpus: f64) -> u32 {
    cpus.ceil().clamp(1.0, 65_536.0) as u32
}

/// The watchers of a run in progress.
struct Watched {
    /// Cancelled when its caller no longer wants it.
    cancel: CancellationToken,
    /// Cancelled when the session no longer wants it.
    stop: CancellationToken,
    progress: Option<watch::Sender<Progress>>,
    newest: watch::Sender<Newest>,
}

/// Waits for the end of a run; kills it when its caller or the session no longer wants it.
async fn attend(link: Link, running: Running, watched: Watched) -> Result<RunReply, LinkError> {
    let Watched { cancel, stop, progress, newest } = watched;
    let call = running.call;
    let finish = running.finish();
    tokio::pin!(finish);
    let unwanted = async {
        tokio::select! { () = cancel.cancelled() => {}, () = stop.cancelled() => {} }
    };
    tokio::select! {
        // A result that has arrived counts, even if the run was cancelled meanwhile.
        biased;
        reply = &mut finish => reply,
        broken = tell(&link, call, progress, newest) => Err(broken),
        () = unwanted => {
            link.kill(call).await?;
            finish.await
        }
    }
}

/// Reads the output of a run while it lasts: for the caller that listens to its progress, and for viewers. Returns only
/// if the link ends.
async fn tell(
    link: &Link,
    run: u32,
    progress: Option<watch::Sender<Progress>>,
    newest: watch::Sender<Newest>,
) -> LinkError {
    let now = tokio::time::Instant::now;
    let progress = progress.unwrap_or_default();
    progress.send_modify(|it| (it.started, it.since) = (true, Some(now())));
    let (mut output, mut viewed, mut is_new) = (RunOutput::default(), now(), false);
    loop {
        sleep(if progress.is_closed() { VIEW_INTERVAL } else { PEEK_INTERVAL }).await;
        let (done, new) = match link.peek(&output.next(run)).await {
            Ok(looked) => looked,
            // The run is over, and its reply is on the way.
            Err(LinkError::Refused(_)) => break,
            Err(error) => return error,
        };
        progress.send_if_modified(|it| {
            let before = it.clone();
            if done.loading {
                it.since = Some(now());
            }
            it.loading = done.loading;
            is_new |= output.add(&done, &new, &mut it.lines);
            (it.bar, it.written) = (output.bar(), output.written());
            *it != before
        });
        if is_new && viewed.elapsed() >= VIEW_INTERVAL {
            newest.send_replace(output.newest());
            (viewed, is_new) = (now(), false);
        }
    }
    std::future::pending().await
}
