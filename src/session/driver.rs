//! The task that owns a session: it starts the sandbox, asks the rules, makes the calls, and sees
//! to it that the sandbox is gone when the session is.
//!
//! ```text
//! commands --> [start] --> loop: command | work done | link ended | expired | shutdown
//!                                   |
//!                                   '--> work: calls over the link, replies when they finish
//! ```
//!
//! A caller's future is only a receipt: what it asked for is done here, whether it waits or not.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::{
    StreamExt,
    future::{BoxFuture, FutureExt},
    stream::FuturesUnordered,
};
use protocol::message::{FailureCode, FileEntry, GetDone, Output, OutputDone, Stream};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    FileReader, RunId, RunReport, SessionId,
    command::{Command, Listing, OutputPart, Program, Reply, Wanted},
    history::Journal,
    looks::Looks,
    report::{Limits, report},
    run::{Ran, execute},
    sandbox,
    state::{Busy, Patience, State},
    upload::{Failed, Turns, Uploaded, upload},
    usage::Usage,
};
use crate::{
    artifact::{self, DataPath},
    backend::{Backend, Sandbox, Spec},
    error::Error,
    figures::{Figures, Watched},
    link::{Link, LinkError, LinkOwner, Timing},
};

/// Commands that may wait for a session that is still starting.
pub(crate) const QUEUE: usize = 64;

/// File operations of one session that are under way at once; more wait their turn.
const OPERATIONS: usize = 8;

/// Uploads of one session that the agent holds open at once; more wait their turn. Half of what it
/// bears, so that none is ever refused.
const UPLOADS: usize = 16;

/// Runs whose outputs can be read on: as many as the agent keeps.
const CUT_RUNS: usize = 4;

/// Longest that a run which is to be killed may hold up the end of its session.
const LAST_WORDS: Duration = Duration::from_millis(1500);

/// What a session is made with.
pub(crate) struct Setup {
    pub(crate) id: SessionId,
    pub(crate) spec: Spec,
    pub(crate) patience: Patience,
    /// It waits for its first use.
    pub(crate) pooled: bool,
    pub(crate) figures: Figures,
    pub(crate) watched: Watched,
    pub(crate) max_output: usize,
    pub(crate) timing: Timing,
    pub(crate) preload: Option<Vec<String>>,
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) commands: mpsc::Receiver<Command>,
    pub(crate) journal: Journal,
    pub(crate) usage: Usage,
    /// Bounds how many sandboxes start at once.
    pub(crate) starts: Arc<Semaphore>,
    /// The session's place among the most there may be; free again when the sandbox is gone.
    pub(crate) place: Place,
    pub(crate) shutdown: CancellationToken,
    /// Set when a sandbox may be left behind.
    pub(crate) unclean: Arc<AtomicBool>,
    pub(crate) forget: Forget,
}

/// A place among the most sessions there may be, and who is told when it is free again.
pub(crate) struct Place(
    pub(crate) Option<OwnedSemaphorePermit>,
    pub(crate) Box<dyn Fn() + Send + Sync>,
);

impl Drop for Place {
    fn drop(&mut self) {
        self.0 = None;
        (self.1)();
    }
}

/// Takes a session out of the registry, once: at the latest when it is dropped, so that even a task
/// that panics leaves no name behind.
pub(crate) struct Forget(pub(crate) Option<Box<dyn FnOnce() + Send + Sync>>);

impl Forget {
    fn now(&mut self) {
        if let Some(forget) = self.0.take() {
            forget();
        }
    }
}

impl Drop for Forget {
    fn drop(&mut self) {
        self.now();
    }
}

/// Runs a session from its start to the end of its sandbox.
pub(crate) async fn drive(mut setup: Setup) {
    match sandbox::start_or_give_up(&setup).await {
        Ok((sandbox, link, owner)) => Driver::new(setup, sandbox, link, owner).run().await,
        Err(error) => {
            tracing::warn!(session_id = %setup.id, %error, "sandbox not started");
            if !setup.shutdown.is_cancelled() {
                setup.figures.sandbox_not_started();
            }
            drop(setup.watched);
            // The place and the name are free first: whoever is told may try again at once.
            drop(setup.place);
            setup.forget.now();
            setup.commands.close();
            while let Some(command) = setup.commands.recv().await {
                command.refuse(error.clone());
            }
        }
    }
}

/// A run of which the agent keeps an output.
struct Cut {
    run_id: RunId,
    /// What the agent knows it by.
    call: u32,
    /// Bytes of each that were shown from its start, up to where it was cut.
    stdout: u64,
    stderr: u64,
}

impl Cut {
    fn shown(&self, stream: Stream) -> u64 {
        match stream {
            Stream::Stdout => self.stdout,
            Stream::Stderr => self.stderr,
        }
    }
}

struct Driver {
    id: SessionId,
    figures: Figures,
    watched: Watched,
    spec: Spec,
    max_output: usize,
    backend: Arc<dyn Backend>,
    commands: mpsc::Receiver<Command>,
    journal: Journal,
    shutdown: CancellationToken,
    unclean: Arc<AtomicBool>,
    forget: Forget,
    place: Place,
    /// There is something to preload, and to give up.
    preloads: bool,
    sandbox: Sandbox,
    link: Link,
    link_owner: LinkOwner,
    state: State,
    work: FuturesUnordered<BoxFuture<'static, Finished>>,
    operations: Arc<Semaphore>,
    uploads: Arc<Semaphore>,
    /// The last runs of which the agent keeps an output.
    cut: VecDeque<Cut>,
    /// Cancelled when the session closes; ends a run that is in progress.
    stop: CancellationToken,
    /// Cancelled when the caller of the run in progress no longer wants it.
    cancelled: CancellationToken,
    /// A run that came while a cancelled one was being killed, which takes milliseconds: whoever
    /// cancels and tries again at once shall not hear that the session is busy.
    next_run: Option<(Program, Reply<RunReport>)>,
    /// Told to those who may want its place, and by those who read its files.
    usage: Usage,
    looks: Looks,
}

enum Event {
    Command(Option<Command>),
    Finished(Finished),
    LinkEnded,
    Expired,
    /// For long enough to rest.
    Unused,
    Shutdown,
}

/// Why the loop ends.
enum Ending {
    Closed(Option<Reply<()>>),
    Died,
    Expired,
    /// Its place goes to whoever waits for it.
    Evicted(Reply<Option<OwnedSemaphorePermit>>),
    Shutdown,
}

/// Work that is done, with what is needed to answer.
enum Finished {
    Run(std::result::Result<Ran, LinkError>, RunId, u64, Reply<RunReport>),
    Upload(std::result::Result<Uploaded, Failed>, DataPath, Reply<Uploaded>),
    ReadOutput(std::result::Result<(OutputDone, Bytes), LinkError>, Wanted, u64, Reply<OutputPart>),
    List(std::result::Result<(Vec<FileEntry>, bool), LinkError>, Reply<Listing>),
    Look(std::result::Result<(Vec<FileEntry>, bool), LinkError>, u64),
    Open(std::result::Result<GetDone, LinkError>, DataPath, Reply<FileReader>),
    Check(std::result::Result<(), LinkError>, Reply<()>),
    /// What nobody waits for.
    Upkeep,
}

impl Driver {
    fn new(setup: Setup, sandbox: Sandbox, link: Link, link_owner: LinkOwner) -> Self {
        let state = if setup.pooled {
            State::waiting(setup.patience)
        } else {
            State::new(now(), setup.patience)
        };
        Self {
            id: setup.id,
            figures: setup.figures,
            watched: setup.watched,
            spec: setup.spec,
            max_output: setup.max_output,
            backend: setup.backend,
            commands: setup.commands,
            journal: setup.journal,
            shutdown: setup.shutdown,
            unclean: setup.unclean,
            forget: setup.forget,
            place: setup.place,
            preloads: setup.preload.is_some(),
            sandbox,
            link,
            link_owner,
            state,
            work: FuturesUnordered::new(),
            operations: Arc::new(Semaphore::new(OPERATIONS)),
            uploads: Arc::new(Semaphore::new(UPLOADS)),
            cut: VecDeque::new(),
            stop: CancellationToken::new(),
            cancelled: CancellationToken::new(),
            next_run: None,
            usage: setup.usage,
            looks: Looks::default(),
        }
    }

    async fn run(mut self) {
        self.journal.ready();
        if self.preloads {
            let warming = tell_when_warm(self.link.clone(), self.id.clone(), self.figures.clone());
            self.work.push(warming.map(|()| Finished::Upkeep).boxed());
        }
        let ending = loop {
            self.watched.set(self.state.phase());
            self.usage.set(self.state.unused_since());
            let event = self.next_event().await;
            match event {
                Event::Command(Some(command)) => {
                    if let Some(ending) = self.begin(command) {
                        break ending;
                    }
                }
                // Nobody can reach the session any more.
                Event::Command(None) => break Ending::Closed(None),
                Event::Finished(finished) => self.finish(finished),
                Event::LinkEnded => break Ending::Died,
                Event::Expired if self.usage.is_being_read() => self.state.touch(now()),
                Event::Expired => break Ending::Expired,
                Event::Unused => self.rest(),
                Event::Shutdown => break Ending::Shutdown,
            }
        };
        self.end(ending).await;
    }

    async fn next_event(&mut self) -> Event {
        let expired = sleep_until(self.state.expires_at());
        let unused = sleep_until(self.state.rests_at().filter(|_| self.preloads));
        tokio::select! {
            // Results before news: work that has finished is answered as what it is, even if the
            // sandbox died right after it.
            biased;
            Some(finished) = self.work.next() => Event::Finished(finished),
            () = self.shutdown.cancelled() => Event::Shutdown,
            () = self.link_owner.closed() => Event::LinkEnded,
            () = self.sandbox.gone.clone() => Event::LinkEnded,
            command = self.commands.recv() => Event::Command(command),
            () = expired => Event::Expired,
            () = unused => Event::Unused,
        }
    }

    /// Begins what is asked for; says so if that is the end.
    fn begin(&mut self, command: Command) -> Option<Ending> {
        let link = self.link.clone();
        let operations = self.operations.clone();
        let turn = async move { operations.acquire_owned().await };
        let work = match command {
            Command::Close { reply } => return Some(Ending::Closed(Some(reply))),
            Command::Evict { idle, reply } => {
                // What was true when it was asked may no longer be. Whoever no longer waits for the place
                // needs none.
                self.usage.set(self.state.unused_since());
                let unused = self.usage.idle_for(now());
                if unused.is_some_and(|unused| unused >= idle) && !reply.is_closed() {
                    return Some(Ending::Evicted(reply));
                }
                let _ = reply.send(Ok(None));
                return None;
            }
            Command::Touch { reply } => {
                self.state.touch(now());
                let _ = reply.send(Ok(()));
                return None;
            }
            Command::Check { reply } => {
                let check = async move { Finished::Check(link.ping().await, reply) };
                self.work.push(check.boxed());
                return None;
            }
            Command::Run { program, reply } => {
                self.begin_run(program, reply);
                return None;
            }
            Command::Upload { path, content, overwrite, reply } => {
                let (operations, uploads) = (self.operations.clone(), self.uploads.clone());
                async move {
                    let turns = Turns { operations: &operations, uploads: &uploads };
                    let done = upload(&link, turns, &path, overwrite, content).await;
                    Finished::Upload(done, path, reply)
                }
                .boxed()
            }
            Command::ReadOutput { wanted, reply } => {
                let Some(cut) = self.cut.iter().find(|cut| cut.run_id.as_str() == wanted.run_id)
                else {
                    self.state.touch(now());
                    drop(reply.send(Err(not_kept(&wanted))));
                    return None;
                };
                let Wanted { stream, len, .. } = wanted;
                let offset = wanted.offset.unwrap_or(cut.shown(stream));
                let output = Output { run: cut.call, stream, offset, len };
                async move {
                    let _turn = turn.await;
                    let done = link.output(&output).await;
                    Finished::ReadOutput(done, wanted, offset, reply)
                }
                .boxed()
            }
            Command::Look { reply } => {
                if self.looks.ask(self.journal.files(), reply) {
                    self.list_for_looks();
                }
                return None;
            }
            Command::List { reply } => async move {
                let _turn = turn.await;
                Finished::List(link.list().await, reply)
            }
            .boxed(),
            Command::Open { path, reply } => async move {
                let _turn = turn.await;
                let done = link.get(&path, 0, 0).await.map(|(done, _)| done);
                Finished::Open(done, path, reply)
            }
            .boxed(),
        };
        self.state.begin_operation(now());
        self.work.push(work);
        None
    }

    fn list_for_looks(&mut self) {
        let (link, files) = (self.link.clone(), self.journal.files());
        self.work.push(async move { Finished::Look(link.list().await, files) }.boxed());
    }

    fn begin_run(&mut self, program: Program, reply: Reply<RunReport>) {
        match self.state.begin_run(now()) {
            Ok(()) => {
                let timeout_s = program.timeout.as_secs();
                let run_id = RunId::mint();
                self.cancelled = program.cancel.clone();
                self.journal.run_began(&run_id, &program.code);
                let run = execute(self.link.clone(), program, self.max_output, self.stop.clone());
                let answer = move |done| Finished::Run(done, run_id, timeout_s, reply);
                self.work.push(run.map(answer).boxed());
            }
            Err(Busy) if self.cancelled.is_cancelled() && self.next_run.is_none() => {
                self.next_run = Some((program, reply));
            }
            Err(Busy) => drop(reply.send(Err(Error::SessionBusy))),
        }
    }

    fn remember_cut(&mut self, report: &RunReport, call: u32) {
        self.cut.push_back(Cut {
            run_id: report.run_id.clone(),
            call,
            stdout: report.stdout.head,
            stderr: report.stderr.head,
        });
        if self.cut.len() > CUT_RUNS {
            self.cut.pop_front();
        }
    }

    /// Gives up what only makes runs faster. A run that comes meanwhile waits for milliseconds.
    fn rest(&mut self) {
        self.state.rest_began();
        tracing::info!(session_id = %self.id, "session rests");
        let link = self.link.clone();
        let resting = async move {
            // A link that fails here ends, which is noticed as such.
            let _ = link.rest().await;
            Finished::Upkeep
        };
        self.work.push(resting.boxed());
    }

    /// Answers. A caller that no longer waits is no error.
    fn finish(&mut self, finished: Finished) {
        match finished {
            Finished::Upkeep => {}
            Finished::Check(done, reply) => {
                let _ = reply.send(done.map_err(|error| self.explain(error, "the sandbox")));
            }
            Finished::Run(done, run_id, timeout_s, reply) => {
                self.state.run_ended(now());
                let answer = match done {
                    Ok(Ran { call, done, body }) => {
                        let limits = Limits {
                            timeout_s,
                            memory: self.spec.limits.memory,
                            output: self.max_output,
                        };
                        report(run_id, limits, &done, body)
                            .inspect(|report| {
                                self.journal.run_ended(report);
                                self.figures.ran(report.figures(done.elapsed_us));
                                if report.stdout.is_kept() || report.stderr.is_kept() {
                                    self.remember_cut(report, call);
                                }
                            })
                            .map_err(|why| self.broken(why))
                    }
                    Err(error) => Err(self.explain(error, "the program")),
                };
                let _ = reply.send(answer);
                if let Some((program, reply)) = self.next_run.take() {
                    self.begin_run(program, reply);
                }
            }
            Finished::Upload(done, path, reply) => {
                self.state.operation_ended(now());
                if let Ok(uploaded) = &done {
                    self.journal.file_came();
                    self.figures.uploaded(uploaded.size_bytes);
                }
                let _ = reply.send(done.map_err(|failed| match failed {
                    Failed::Sender(error) => error,
                    Failed::Link(error) => self.explain_upload(error, &path),
                }));
            }
            Finished::ReadOutput(done, wanted, offset, reply) => {
                self.state.operation_ended(now());
                let _ = reply.send(match done {
                    Ok((OutputDone { total, kept }, bytes)) => {
                        Ok(OutputPart { offset, bytes, total, kept })
                    }
                    Err(error) if error.code() == Some(FailureCode::NotFound) => {
                        Err(not_kept(&wanted))
                    }
                    Err(error) => Err(self.explain(error, "the output")),
                });
            }
            Finished::List(done, reply) => {
                self.state.operation_ended(now());
                let listing = done.map(|(entries, more)| Listing::new(entries, more));
                let listing = listing.map_err(|error| self.explain(error, "the data area"));
                let _ = reply.send(listing);
            }
            Finished::Look(done, files) => {
                let listing = done.map(|(entries, more)| Listing::new(entries, more));
                let listing = listing.map_err(|error| self.explain(error, "the data area"));
                if self.looks.listed(files, listing) {
                    self.list_for_looks();
                }
            }
            Finished::Open(done, path, reply) => {
                self.state.operation_ended(now());
                let _ = reply.send(match done {
                    Ok(GetDone { stamp }) => {
                        let reading = self.usage.read();
                        let (link, figures) = (self.link.clone(), self.figures.clone());
                        Ok(FileReader::new(link, path, stamp, reading, figures))
                    }
                    Err(error) if error.code() == Some(FailureCode::BadPath) => {
                        Err(Error::InvalidPath(format!(
                            "{path} leads through a file or a link, or may not be read."
                        )))
                    }
                    Err(error) => Err(self.explain(error, path.as_str())),
                });
            }
        }
    }

    fn explain_upload(&mut self, error: LinkError, path: &DataPath) -> Error {
        match error.code() {
            Some(FailureCode::Exists) => Error::FileExists(path.as_str().into()),
            Some(FailureCode::BadPath) => Error::InvalidFilename(format!(
                "{path} cannot be written: part of it is a file or a link, or the name is that of \
                 a folder."
            )),
            Some(FailureCode::NotFound) => Error::InvalidFilename(format!(
                "{path} was not written: a program removed its folder meanwhile. Try again."
            )),
            _ => self.explain(error, path.as_str()),
        }
    }

    /// What a failed call means to a caller, where the kind of call makes no difference.
    fn explain(&mut self, error: LinkError, what: &str) -> Error {
        match error {
            LinkError::Refused(failure) => match failure.code {
                FailureCode::NotFound => Error::NotFound(what.into()),
                FailureCode::Full => Error::QuotaExceeded(self.spec.limits.data),
                // Without the path, which is the user's and not the log's.
                _ => Error::internal(&format!("{:?}: {}", failure.code, failure.detail)),
            },
            LinkError::Closed if self.stop.is_cancelled() => {
                Error::SessionNotFound(self.id.clone())
            }
            LinkError::Closed => self.died(),
            LinkError::Broken(why) => self.broken(&why),
            LinkError::Version(_) => self.broken("a second hello"),
        }
    }

    /// The agent's side did what an agent does not do. Its session ends, and only that.
    fn broken(&mut self, why: &str) -> Error {
        tracing::warn!(session_id = %self.id, why, "the sandbox broke the protocol");
        self.died()
    }

    fn died(&mut self) -> Error {
        self.link.close();
        self.forget.now();
        Error::SandboxDied(self.id.clone())
    }

    async fn end(mut self, ending: Ending) {
        let died = matches!(ending, Ending::Died);
        let (mut closers, mut evictor) = (vec![], None);
        let why = match ending {
            Ending::Closed(reply) => {
                closers.extend(reply);
                "closed"
            }
            Ending::Died => "died",
            Ending::Expired => "expired",
            Ending::Evicted(reply) => {
                evictor = Some(reply);
                "evicted"
            }
            Ending::Shutdown => "shutdown",
        };
        // Before anybody hears that the session is gone, so that its name is free at once.
        self.forget.now();
        self.commands.close();
        let next_run = self.next_run.take().map(|(program, reply)| Command::Run { program, reply });

        // A run in progress is killed and answered with what it has printed. The rest is cut off
        // with the link.
        if !died {
            self.stop.cancel();
            if self.state.is_running() {
                let _ = timeout(LAST_WORDS, async {
                    while self.state.is_running()
                        && let Some(finished) = self.work.next().await
                    {
                        self.finish(finished);
                    }
                })
                .await;
            }
        }
        self.link.close();
        while let Some(finished) = self.work.next().await {
            self.finish(finished);
        }
        let mut late: Vec<Command> = next_run.into_iter().collect();
        while let Some(command) = self.commands.recv().await {
            late.push(command);
        }
        for command in late {
            match command {
                Command::Close { reply } if !died => closers.push(reply),
                other if died => other.refuse(Error::SandboxDied(self.id.clone())),
                other if evictor.is_some() => other.refuse(Error::SessionEvicted(self.id.clone())),
                other => other.refuse(Error::SessionNotFound(self.id.clone())),
            }
        }
        drop(self.link_owner);
        let id = self.sandbox.id.clone();
        let mut gone = sandbox::end(&*self.backend, self.sandbox).await;
        if died {
            // Its notice of death may have been the engine's own.
            gone &= sandbox::remove(&*self.backend, id).await;
        }
        if !gone {
            self.unclean.store(true, Ordering::Relaxed);
        }
        tracing::info!(session_id = %self.id, why, "session ended");
        self.watched.ended(why);
        if let Some(evictor) = evictor {
            let _ = evictor.send(Ok(self.place.0.take()));
        }
        // Whoever closes a session to open another finds its place free.
        drop(self.place);
        for reply in closers {
            let _ = reply.send(Ok(()));
        }
    }
}

/// Says in the log when the sandbox is warm, and what could not be loaded: that is the operator's to
/// mend, and no caller's.
async fn tell_when_warm(link: Link, id: SessionId, figures: Figures) {
    let begun = Instant::now();
    let Ok(done) = link.warm().await else { return };
    if !done.ready && done.problems.is_empty() {
        return; // it rests already
    }
    if done.ready {
        figures.sandbox_warm(begun.elapsed());
    }
    if done.problems.is_empty() {
        let duration_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        tracing::info!(session_id = %id, ready = done.ready, duration_ms, "session is warm");
    } else {
        let problems = done.problems.iter().take(10).map(|text| artifact::printable(text));
        let problems = problems.collect::<Vec<_>>().join("; ");
        tracing::warn!(session_id = %id, ready = done.ready, problems, "not all was preloaded");
    }
}

fn not_kept(wanted: &Wanted) -> Error {
    Error::OutputNotKept(artifact::printable(&wanted.run_id))
}

/// Never, if there is no such time.
async fn sleep_until(at: Option<std::time::Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(Instant::from_std(at)).await,
        None => std::future::pending().await,
    }
}

fn now() -> std::time::Instant {
    std::time::Instant::now()
}
