//! The runner: carries out orders, one after another, on a thread of its own. A run goes from its request, which is
//! checked here, to its reply, which is put together here.

use std::{
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use protocol::{
    limits::{MAX_CAPTURE, MAX_CHANGED},
    message::{
        CellDone, CommandRuntime, Contents, End, Export, ExportDone, Facts, Failure, FileEntry,
        HibernateDone, Import, ImportDone, InspectDone, MissingFile, Reset, ResetDone, Run,
        RunDone, RuntimeName, Start,
    },
};
use sandbox_files::{
    facts,
    kept::OutputStore,
    missing,
    outputs::{Outputs, SharedOutputs},
    tree::{self, Snapshot},
};

use crate::{Replies, summary::Summarizing};

/// Bytes at the end of standard error that are searched for its last line.
const LAST_LINE: usize = 4096;

/// An order to the runner. A number is the call to which the runner replies.
pub enum Order<S> {
    /// Prepare for programs and cells.
    Configure(Settings),
    /// Run this, and reply.
    Run(Box<Job<S>>),
    /// Reply when a spare interpreter is ready, or none will be.
    Warm(u32),
    /// Free the memory that only makes programs start faster, save the sandbox if that is asked for, then reply.
    Hibernate(u32, bool),
    /// Prepare for a run that comes soon.
    Prewarm,
    /// List what a workspace holds, and reply.
    Inspect(u32, RuntimeName),
    /// Undo cells or reset the workspace, and reply.
    Reset(u32, Reset),
    /// Save variables, or return a piece of what was saved, and reply.
    Export(u32, Export),
    /// Take this piece of saved variables, restore them after the last one, and reply.
    Import(u32, Import, Vec<u8>),
    /// Summarize a file, and reply.
    Summarize(Box<Summarizing<S>>),
}

impl<S> Order<S> {
    /// Whether a caller waits for it, so that a summary gives way to it.
    pub(crate) fn is_awaited(&self) -> bool {
        !matches!(self, Self::Configure(_) | Self::Prewarm | Self::Warm(_) | Self::Summarize(_))
    }
}

/// The settings that a runner gets before the first run.
pub struct Settings {
    /// Modules to load ahead, so that programs start faster; `None` if nothing is loaded before a program asks for it.
    pub preload: Option<Vec<String>>,
    /// The number of cells that can be undone; `None` if there will be no cells.
    pub undo: Option<u32>,
    /// The languages that only need a command.
    pub commands: Vec<CommandRuntime>,
}

/// Runs programs and cells, and keeps the interpreters of workspaces.
pub trait Runner {
    /// Ends a run from the main thread.
    type Switch: Switch;

    /// The outlet for replies.
    fn replies(&self) -> &Replies;

    /// Prepares for programs and cells.
    fn configure(&mut self, settings: &Settings);

    /// Runs a program or a cell, and [replies](Self::reply).
    fn run(&mut self, job: Job<Self::Switch>) -> io::Result<()>;

    /// Replies to this call when a spare interpreter is ready, or none will be.
    fn warm(&mut self, call: u32) -> io::Result<()>;

    /// Frees the memory that only makes programs start faster. Also saves the sandbox if `keep` is set.
    fn hibernate(&mut self, keep: bool) -> HibernateDone;

    /// Prepares for a run that comes soon.
    fn prewarm(&mut self);

    /// Answers [`Inspect`](protocol::message::Inspect).
    fn inspect(&mut self, runtime: &RuntimeName) -> Result<(InspectDone, Contents), Failure>;

    /// Answers [`Reset`].
    fn reset(&mut self, reset: &Reset) -> Result<ResetDone, Failure>;

    /// Answers [`Export`].
    fn export(&mut self, export: &Export) -> Result<(ExportDone, Vec<u8>), Failure>;

    /// Answers [`Import`].
    fn import(&mut self, import: &Import, piece: &[u8]) -> Result<(ImportDone, Vec<u8>), Failure>;

    /// Answers [`Summarize`](protocol::message::Summarize), and [sends](Replies::answer) the reply.
    fn summarize(&mut self, summarizing: Summarizing<Self::Switch>) -> io::Result<()>;

    /// Prepares for the next cell, after the reply to a reset or an import was sent.
    fn settle(&mut self);

    /// The files as they are now.
    fn look(&self) -> Seen;

    /// Scratch space, and the name of the file in it that has the text of this runtime's programs.
    fn script(&self, runtime: &RuntimeName) -> (&Path, &str);

    /// The files of the datasets by their absolute paths, as far as there are not too many.
    fn datasets(&self) -> Snapshot;

    /// Adds to a run that did not succeed what the end of its standard error says.
    fn explain(&self, runtime: &RuntimeName, stderr: &[u8], files: &Snapshot, ended: &mut Ended);

    /// Carries out an order. Fails if a reply cannot be sent.
    fn carry_out(&mut self, order: Order<Self::Switch>) -> io::Result<()> {
        match order {
            Order::Configure(settings) => self.configure(&settings),
            Order::Prewarm => self.prewarm(),
            Order::Run(job) => self.run(*job)?,
            Order::Warm(call) => self.warm(call)?,
            Order::Hibernate(call, keep) => {
                let done = self.hibernate(keep);
                self.replies().reply(call, &done, &[])?;
            }
            Order::Inspect(call, runtime) => {
                let done = self.inspect(&runtime).map(|(done, contents)| {
                    (done, serde_json::to_vec(&contents).expect("it has no keys but strings"))
                });
                self.replies().answer(call, done)?;
            }
            Order::Reset(call, reset) => {
                let done = self.reset(&reset).map(|done| (done, vec![]));
                self.replies().answer(call, done)?;
                self.settle();
            }
            Order::Export(call, export) => {
                let done = self.export(&export);
                self.replies().answer(call, done)?;
            }
            Order::Summarize(summarizing) => self.summarize(*summarizing)?,
            Order::Import(call, import, piece) => {
                let done = self.import(&import, &piece);
                self.replies().answer(call, done)?;
                self.settle();
            }
        }
        Ok(())
    }

    /// Replies to a run with its outcome, or with the reason why it could not begin. `before` are the files before it.
    fn reply(
        &self,
        job: Job<Self::Switch>,
        ended: Result<Ended, Failure>,
        before: &Seen,
    ) -> io::Result<()> {
        let Job { run: Run { runtime, .. }, call, over, asked, outputs, .. } = job;
        let outputs = outputs.take().expect("only the reply to the run takes them");
        let done = ended.map(|mut ended| {
            let after = self.look();
            let (scratch, own) = self.script(&runtime);
            ended.facts.elsewhere = facts::elsewhere(&before.scratch, after.scratch, own, scratch);
            if ended.end != (End::Exited { code: 0 }) {
                let last = outputs.stderr().latest(LAST_LINE);
                self.explain(&runtime, &last, &after.data, &mut ended);
                ended.facts.missing_file = missing::named(&last).map(|name| MissingFile {
                    in_datasets: facts::in_datasets(&name, &self.datasets()),
                    ..facts::missing_file(&name, &after.data)
                });
            }
            ended.report(&outputs, &tree::changed(&before.data, after.data), asked)
        });
        // Before the reply is sent: with it, the server may send the next run.
        over.store(true, Ordering::Release);
        self.replies().answer(call, done)
    }
}

/// Ends a run from another thread.
pub trait Switch: Clone {
    /// Creates a switch. Fails if the system has no more resources for one.
    fn new() -> Result<Self, Failure>;

    /// Ends the run.
    fn throw(&self);
}

/// A run that is ready to start.
pub struct Job<S> {
    /// The run's request.
    pub run: Run,
    /// The program's text.
    pub code: Vec<u8>,
    /// The program's standard input; `None` is `/dev/null`.
    pub stdin: Option<Vec<u8>>,
    /// The outputs so far.
    pub outputs: SharedOutputs,
    /// Ends the run, once it is thrown.
    pub switch: S,
    /// The call to which the reply goes.
    pub call: u32,
    pub(crate) over: Arc<AtomicBool>,
    asked: Instant,
}

impl<S: Switch> Job<S> {
    /// Checks the request of this call.
    pub(crate) fn new(
        call: u32,
        run: Run,
        mut body: Vec<u8>,
        store: &Arc<OutputStore>,
    ) -> Result<Self, Failure> {
        if run.code_len > body.len() || (!run.has_stdin && run.code_len != body.len()) {
            return Err(Failure::bad_request("the code's length is not the body's"));
        }
        if run.output_cap > MAX_CAPTURE {
            return Err(Failure::bad_request("the output cap is too large"));
        }
        let stdin = body.split_off(run.code_len);
        Ok(Self {
            code: body,
            stdin: run.has_stdin.then_some(stdin),
            outputs: SharedOutputs::new(store, call, run.output_cap),
            switch: S::new()?,
            call,
            over: Arc::default(),
            asked: Instant::now(),
            run,
        })
    }

    /// The main thread's share of the job.
    pub(crate) fn running(&self) -> Running<S> {
        let (switch, outputs) = (self.switch.clone(), self.outputs.clone());
        Running { call: self.call, switch, outputs, over: self.over.clone() }
    }
}

/// The main thread's share of a run.
pub(crate) struct Running<S> {
    pub(crate) call: u32,
    pub(crate) switch: S,
    pub(crate) outputs: SharedOutputs,
    over: Arc<AtomicBool>,
}

impl<S> Running<S> {
    /// The run's call id, until its reply is about to be sent.
    pub(crate) fn in_progress(&self) -> Option<u32> {
        (!self.over.load(Ordering::Acquire)).then_some(self.call)
    }
}

/// The files of a sandbox at one time.
pub struct Seen {
    /// The data area.
    pub data: Snapshot,
    /// Scratch space.
    pub scratch: Snapshot,
}

/// The outcome of a run.
pub struct Ended {
    /// Why the run ended.
    pub end: End,
    /// How the run got its interpreter.
    pub start: Start,
    /// Wall time from the start of the run to its end.
    pub elapsed: Duration,
    /// Processor time of all processes of the run.
    pub cpu: Duration,
    /// The number of processes that were ended for lack of memory.
    pub oom_kills: u64,
    /// Facts that the run's process has reported.
    pub facts: Facts,
    /// The state of the workspace after a cell.
    pub cell: Option<CellDone>,
    /// Start and end of a cell's result.
    pub result: Vec<u8>,
}

impl Ended {
    /// The reply and its body. `asked` is the time of the request.
    pub fn report(
        self,
        outputs: &Outputs,
        changed: &[FileEntry],
        asked: Instant,
    ) -> (RunDone, Vec<u8>) {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let (changed, changed_omitted) = tree::to_json(changed, MAX_CHANGED);
        let (stdout, stderr) = (outputs.stdout(), outputs.stderr());
        let body =
            [&stdout.pieces()[..], &stderr.pieces(), &[&self.result, &changed]].concat().concat();
        let done = RunDone {
            end: self.end,
            start: self.start,
            elapsed_us: micros(self.elapsed),
            agent_us: micros(asked.elapsed()),
            cpu_us: micros(self.cpu),
            oom_kills: self.oom_kills,
            stdout: stdout.captured(),
            stderr: stderr.captured(),
            changed_len: changed.len(),
            changed_omitted,
            facts: self.facts,
            cell: self.cell,
        };
        (done, body)
    }
}
