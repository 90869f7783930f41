//! The task that owns a session: it starts the sandbox, applies the rules, makes the calls, and removes the sandbox
//! when the session ends.
//!
//! ```text
//! commands --> [start] --> loop: command | work done | link ended | expired | shutdown
//!                                   |
//!                                   '--> work: calls over the link, replies when they finish
//! ```
//!
//! This file has the loop. [`runs`] begins and ends runs, [`questions`] has those
//! of programs answered, [`sleep`] hibernates and wakes an unused session, [`ending`]
//! ends the session.
//!
//! The task completes a caller's command whether the caller still waits for the answer or not.

mod ending;
mod questions;
mod runs;
mod sleep;

use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, Instant},
};

use backend::Sandbox;
use futures::{
    StreamExt,
    future::{BoxFuture, FutureExt},
    stream::FuturesUnordered,
};
use link::{Asked, Leftover, Link, LinkError, LinkOwner, RunReply};
use model::RunId;
use protocol::message::{RuntimeName, WarmDone};
use tokio::{
    sync::watch,
    time::{sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use self::{
    ending::Ending,
    questions::Questions,
    runs::{CurrentRun, Newest},
    sleep::warmed,
};
use super::{
    RunReport, archiving,
    command::{Command, Program},
    events::{EndReason, SandboxStart, SessionEvent},
    explain::{Effect, Explainer},
    hold::LastRun,
    operations::{self, Check, Operated, OperationContext, Turns},
    origin::Origin,
    phase::Phase,
    pictures::Picture,
    reply::Reply,
    sandbox,
    setup::Setup,
    state::State,
    truncated::TruncatedRuns,
    view::{self, SharedView, View},
};
use crate::{
    calls::{Called, RunCalls},
    error::Error,
    trace::Parent,
};

/// Runs a session from its start to the end of its sandbox.
pub(crate) async fn drive(mut setup: Setup) {
    let has_state = archiving::bring_state(&setup).await || sandbox::is_kept(&setup);
    let started = sandbox::start_or_give_up(&setup, SandboxStart::New).await;
    match started {
        Ok((sandbox, link, owner)) => {
            let begun = archiving::bring(&setup, &link, has_state).await;
            let mut driver = Driver::new(setup, sandbox, link, owner);
            driver.had_state = has_state;
            match begun {
                Ok(begun) => driver.remembering.extend(begun.remembering),
                // Cut off, or the sandbox has ended: the archived version stays as it is.
                Err(_) => driver.setup.archiving = None,
            }
            Box::pin(driver.run()).await;
        }
        Err(error) => {
            tracing::warn!(session_id = %setup.id, %error, "sandbox not started");
            if !setup.shutdown.is_cancelled() {
                setup.observers.notify(&SessionEvent::NotStarted);
            }
            drop(setup.observers);
            // Release the permit and the name first: a caller that gets the error may try again at once.
            drop(setup.lease);
            setup.commands.close();
            while let Some((command, _)) = setup.commands.recv().await {
                command.refuse(error.clone());
            }
        }
    }
}

/// A sandbox that another server has left.
pub(crate) struct Resumed {
    pub(crate) sandbox: Sandbox,
    pub(crate) link: Link,
    pub(crate) owner: LinkOwner,
    /// The run that the server has begun last, and its entry in the server's note.
    pub(crate) leftover: Option<Leftover>,
    pub(crate) last_run: Option<LastRun>,
    /// Answers the questions of that run's program.
    pub(crate) calls: Option<Arc<RunCalls>>,
}

/// Runs a session in a sandbox that was taken over, until that ends.
pub(crate) async fn go_on(setup: Setup, resumed: Resumed) {
    let Resumed { sandbox, link, owner, leftover, last_run, calls } = resumed;
    setup.observers.notify(&SessionEvent::Started {
        sandbox: &sandbox.id,
        took: Duration::ZERO,
        vitals: link.vitals(),
        start: SandboxStart::Resumed,
    });
    let mut driver = Driver::new(setup, sandbox, link, owner);
    driver.is_remembered = true;
    // Its variables are unknown: assume some in each language, so that their loss is reported.
    driver.remembering = [RuntimeName::PYTHON, RuntimeName::JAVASCRIPT].into();
    if let Some(leftover) = leftover
        && driver.state.begin_run(Instant::now()).is_ok()
    {
        // The note may be of a run that never came to the agent.
        if let Some(run) = last_run.filter(|run| run.call == leftover.call) {
            driver.go_on_with(leftover, run, calls);
        } else {
            // A sandbox that never answers must not seem busy for ever.
            let over = timeout(driver.setup.max_timeout, leftover.over());
            driver.work.push(over.map(|_| Finished::Leftover).boxed());
        }
    }
    Box::pin(driver.run()).await;
}

struct Driver {
    setup: Setup,
    sandbox: Sandbox,
    link: Link,
    link_owner: LinkOwner,
    state: State,
    /// Whether the session has no sandbox: the sandbox is saved on disk until the session is used.
    asleep: bool,
    /// Whether the session resumed from a saved state, which may contain any variables.
    had_state: bool,
    /// The phase that observers were last told.
    phase: Phase,
    work: FuturesUnordered<BoxFuture<'static, Finished>>,
    turns: Turns,
    explainer: Explainer,
    truncated: TruncatedRuns,
    view: SharedView,
    /// Languages in which cells have run, so that a caller may expect variables.
    remembering: HashSet<RuntimeName>,
    /// The languages among these for which a result said that a stop of the next cell may lose the variables.
    at_risk: HashSet<RuntimeName>,
    /// The version of the files, which grows with each run and upload.
    files: u64,
    /// Cancelled when the session closes; ends a run that is in progress.
    stop: CancellationToken,
    /// The run in progress; `None` for one of the previous server that its note does not name.
    current: Option<CurrentRun>,
    /// The newest output of the run in progress.
    newest: watch::Receiver<Newest>,
    /// A run that arrived while a cancelled run was being killed, or while the pictures of the last run were being
    /// read. Both take milliseconds, so a caller that retries at once does not get the error that the session is busy.
    next_run: Option<(Program, Reply<RunReport>, Parent)>,
    /// The run whose pictures are being read.
    drawn_by: Option<RunId>,
    questions: Questions,
    /// Whether the sandbox has a note that says whose session it is, so that the next server can take it over.
    is_remembered: bool,
}

enum Event {
    /// A command, and the span of the call that sent it.
    Command(Option<(Command, Parent)>),
    Finished(Finished),
    /// The run in progress has written something.
    Wrote,
    /// A program asks for the call of a tool.
    Asked(Asked),
    /// Other calls of the run in progress wait for a person than before.
    Waiting,
    LinkEnded,
    Expired,
    /// Unused for long enough to hibernate.
    Unused,
    Shutdown,
}

/// A result of the work in progress beside the loop.
enum Finished {
    /// The run in progress.
    Run(Box<Result<RunReply, LinkError>>),
    /// The pictures of a run, as they were when it ended.
    Drawn(Vec<Picture>),
    /// The end of a run that the previous server has begun. No caller waits for its result.
    Leftover,
    Operated(Operated),
    /// The view of the state with this number.
    Seen(Result<View, LinkError>, u64),
    /// Like an operation, but it does not count as activity.
    Checked(Operated),
    /// Runs start warm after this time, or will not.
    Warmed(WarmDone, Duration),
    /// A question of a program, with its number, and the call of a run that it was.
    Answered(u32, Option<(RunId, Called)>),
    /// Work that has no result.
    Upkeep,
}

impl Driver {
    fn new(setup: Setup, sandbox: Sandbox, link: Link, mut link_owner: LinkOwner) -> Self {
        let questions = Questions::new(&mut link_owner);
        let (state, phase) = match setup.origin {
            Origin::Pooled => (State::waiting(setup.idle), Phase::Pooled),
            _ => (State::new(Instant::now(), setup.idle), Phase::Starting),
        };
        let stop = CancellationToken::new();
        let (id, data_limit) = (setup.id.clone(), setup.spec.limits.data);
        Self {
            setup,
            sandbox,
            link,
            link_owner,
            state,
            asleep: false,
            had_state: false,
            phase,
            work: FuturesUnordered::new(),
            turns: Turns::default(),
            explainer: Explainer {
                id,
                data_limit,
                stop: stop.clone(),
                left: CancellationToken::new(),
            },
            truncated: TruncatedRuns::default(),
            view: SharedView::default(),
            remembering: HashSet::new(),
            at_risk: HashSet::new(),
            files: 0,
            stop,
            current: None,
            newest: watch::channel(Newest::default()).1,
            next_run: None,
            drawn_by: None,
            questions,
            is_remembered: false,
        }
    }

    async fn run(mut self) {
        self.setup.lease.sandbox_started();
        if self.preloads() {
            self.work.push(warmed(self.link.clone()).boxed());
        }
        let ending = loop {
            self.tell_phase();
            self.setup.usage.set(self.state.unused_since());
            let event = self.next_event().await;
            match event {
                Event::Command(Some((command, parent))) => {
                    if let Some(ending) = parent.around(self.begin(command)).await {
                        break ending;
                    }
                }
                // No handle is left, so the session can no longer be reached.
                Event::Command(None) => break Ending::Closed(None),
                Event::Finished(finished) => self.finish(finished),
                Event::Wrote => self.show_output(),
                Event::Asked(asked) => self.take_question(asked),
                Event::Waiting => self.show_waiting(),
                Event::LinkEnded => break Ending::Died,
                Event::Expired if self.setup.usage.is_being_read() => {
                    self.state.touch(Instant::now());
                }
                Event::Expired => break Ending::Expired,
                Event::Unused => {
                    if let Some(ending) = self.hibernate().await {
                        break ending;
                    }
                }
                Event::Shutdown => break Ending::Shutdown,
            }
        };
        self.end(ending).await;
    }

    async fn next_event(&mut self) -> Event {
        let expired = reached(self.state.expires_at());
        let can_hibernate = self.preloads() || self.setup.spec.saved_as.is_some();
        let unused = reached(self.state.hibernates_at().filter(|_| can_hibernate));
        tokio::select! {
            // Results first: finished work gets its own result, even if the sandbox died right after it.
            biased;
            Some(finished) = self.work.next() => Event::Finished(finished),
            () = self.setup.shutdown.cancelled() => Event::Shutdown,
            () = self.link_owner.closed(), if !self.asleep => Event::LinkEnded,
            () = self.sandbox.gone.clone(), if !self.asleep => Event::LinkEnded,
            command = self.setup.commands.recv() => Event::Command(command),
            Ok(()) = self.newest.changed() => Event::Wrote,
            Some(asked) = self.questions.asked.recv() => Event::Asked(asked),
            Ok(()) = self.questions.waits.changed() => Event::Waiting,
            () = expired => Event::Expired,
            () = unused => Event::Unused,
        }
    }

    /// Begins a command, after a sandbox was started if the session sleeps and the command needs one. Returns the
    /// ending if this ends the session.
    async fn begin(&mut self, command: Command) -> Option<Ending> {
        if self.asleep
            && self.needs_sandbox(&command)
            && let Err(error) = self.wake().await
        {
            let is_lost = matches!(error, Error::SandboxDied(_));
            command.refuse(error);
            return is_lost.then_some(Ending::Died);
        }
        match command {
            Command::Run { program, reply } => self.begin_run(*program, reply),
            Command::Operate(operation) => {
                self.state.begin_operation(Instant::now());
                let operated = operation.begin(self.context());
                self.work.push(operated.map(Finished::Operated).boxed());
            }
            Command::View { reply } => {
                if self.view.ask(self.files, reply) {
                    self.look_for_viewers();
                }
            }
            Command::Touch { reply } => {
                self.state.touch(Instant::now());
                let _ = reply.send(Ok(()));
            }
            Command::Check { reply } => {
                let checked = operations::erased(Check, reply).begin(self.context());
                self.work.push(checked.map(Finished::Checked).boxed());
            }
            Command::Remember { caller } => self.leave_note(caller).await,
            Command::Rest { reply } => return self.rest(reply).await,
            Command::Cancel { run_id, reply } => {
                self.cancel_run(&run_id);
                let _ = reply.send(Ok(()));
            }
            Command::Close { reply } => return Some(Ending::Closed(Some(reply))),
            Command::Wake { permit } => self.setup.lease.give_permit(permit),
            Command::Evict { idle, reply } => {
                // The session may have been used since the request. A caller that no longer waits for the permit does
                // not need it.
                self.setup.usage.set(self.state.unused_since());
                let unused = self.setup.usage.idle_for(Instant::now());
                if unused.is_some_and(|unused| unused >= idle) && !reply.is_closed() {
                    return Some(Ending::Evicted(reply));
                }
                let _ = reply.send(Ok(None));
            }
        }
        None
    }

    fn look_for_viewers(&mut self) {
        let (link, state) = (self.link.clone(), self.files);
        let mut languages: Vec<_> = self.remembering.iter().cloned().collect();
        languages.sort_by(|a, b| a.as_str().cmp(b.as_str()));
        let seen = async move { Finished::Seen(view::look(&link, languages).await, state) };
        self.work.push(seen.boxed());
    }

    /// Waits for the work in progress, and for its consequences.
    async fn finish_work(&mut self) {
        while let Some(finished) = self.work.next().await {
            self.finish(finished);
        }
    }

    /// Sends the answer. The caller may no longer wait; that is no error.
    fn finish(&mut self, finished: Finished) {
        match finished {
            Finished::Run(done) => self.finish_run(*done),
            Finished::Drawn(pictures) => self.keep_pictures(&pictures),
            Finished::Leftover => {
                self.state.run_ended(Instant::now());
                self.files += 1;
            }
            Finished::Operated(operated) => {
                self.state.operation_ended(Instant::now());
                self.answer(operated);
            }
            Finished::Seen(view, state) => {
                let view = view.map_err(|error| self.explained(error, operations::LISTING));
                if self.view.seen(state, view) {
                    self.look_for_viewers();
                }
            }
            Finished::Checked(checked) => self.answer(checked),
            Finished::Warmed(done, took) => {
                self.setup.observers.notify(&SessionEvent::Warmed { done, took });
            }
            Finished::Answered(number, called) => self.note_call(number, called),
            Finished::Upkeep => {}
        }
    }

    fn answer(&mut self, Operated { effect, answer }: Operated) {
        self.apply(effect);
        answer();
    }

    fn apply(&mut self, effect: Effect) {
        match effect {
            Effect::None => {}
            Effect::FileAdded { bytes } => {
                self.files += 1;
                self.setup.observers.notify(&SessionEvent::FileAdded { bytes });
            }
            Effect::Reset { language, undone, is_empty, files } => {
                if let Some(cells) = undone {
                    let event = SessionEvent::Undone { language: &language, cells };
                    self.setup.observers.notify(&event);
                }
                self.at_risk.remove(&language);
                if is_empty {
                    self.remembering.remove(&language);
                }
                self.files += u64::from(files);
            }
            Effect::SandboxGone => {
                self.link.close();
                self.setup.lease.release_name(EndReason::Died);
            }
        }
    }

    fn explained(&mut self, error: LinkError, subject: &str) -> Error {
        let (error, effect) = self.explainer.explain(error, subject);
        self.apply(effect);
        error
    }

    fn context(&self) -> OperationContext {
        OperationContext {
            link: self.link.clone(),
            turns: self.turns.clone(),
            remembering: self.remembering.clone(),
            usage: self.setup.usage.clone(),
            truncated: self.truncated.clone(),
            reads: self.setup.reads.clone(),
            explainer: self.explainer.clone(),
        }
    }

    /// Whether modules are loaded before a run, which hibernation gives up.
    fn preloads(&self) -> bool {
        self.setup.preload.is_some()
    }

    fn tell_phase(&mut self) {
        let phase = self.state.phase();
        if std::mem::replace(&mut self.phase, phase) != phase {
            self.setup.observers.notify(&SessionEvent::Phase(phase));
        }
    }
}

/// Waits until this time; forever if there is none.
async fn reached(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}
