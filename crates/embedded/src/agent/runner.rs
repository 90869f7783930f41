//! The thread that runs programs and cells, one after another.

use std::{
    fs::File,
    io,
    path::Path,
    sync::{Arc, mpsc},
    thread,
};

use agent_core::{
    Asks, Ended, Job, Orders, Replies, Runner, Seen, Settings as Wanted, Summarizing, no_summary,
};
use protocol::message::{
    CellState, Contents, Document, End, Export, ExportDone, Failure, FailureCode, HibernateDone,
    Import, ImportDone, InspectDone, PageProblem, Reset, ResetDone, RuntimeName, SummarizeDone,
    WarmDone, WentOn,
};
use sandbox_files::{python_errors, tree::Snapshot};

use super::{Settings, SharedFiles, keeper::Keeper, kernel::Kernel};
use crate::{
    files::Store,
    kept::{self, StateFile},
    machine::Switch,
    memory::Pages,
    runtime::Runtime,
};

/// A state file, and the store in it if files are on disk.
type Saved = (Arc<File>, Option<Arc<Store>>);

/// Name in scratch space that stands for a program's text, and is not reported as a file of the run.
const SCRIPT: &str = "main.py";

/// Path of scratch space in guests.
const SCRATCH: &str = "/tmp";

/// Bytes of stack of the thread. Guests have stacks of their own.
const STACK: usize = 8 << 20;

/// Starts the thread, and returns its end for orders.
pub(super) fn start(
    runtime: Runtime,
    settings: &Settings,
    pages: Pages,
    files: SharedFiles,
    replies: Replies,
    asks: Asks,
    (state, keeper): (Option<Saved>, Keeper),
) -> io::Result<Orders<Switch>> {
    let (sender, orders) = mpsc::channel();
    let kernels = runtime.interpreters.into_iter();
    let kernels = kernels.map(|one| Kernel::new(one, files.clone(), asks.clone(), settings.memory));
    let kernels: Vec<_> = kernels.collect();
    let (most, fuel) = (most_kept(&kernels, settings), settings.fuel);
    if state.is_none() {
        keeper.ready(None);
    }
    let mut worker = Worker { kernels, pages, files, asks, replies, keeper, fuel, went_on: None };
    let thread = thread::Builder::new().name("runner".into()).stack_size(STACK);
    thread.spawn(move || {
        worker.go_on(state, most);
        while let Ok(order) = orders.recv() {
            // If the server has ended, the watch ends the process once the states after a run are noted.
            let _ = worker.carry_out(order);
        }
    })?;
    Ok(Orders::new(sender, || {}))
}

struct Worker {
    kernels: Vec<Kernel>,
    pages: Pages,
    files: SharedFiles,
    asks: Asks,
    replies: Replies,
    keeper: Keeper,
    fuel: Option<u64>,
    /// Whether the saved sandbox was restored, and how; `None` if sandboxes are not saved.
    went_on: Option<WentOn>,
}

/// Size limit of a saved sandbox, in bytes.
fn most_kept(kernels: &[Kernel], settings: &Settings) -> u64 {
    // Metadata of files and pages, whose numbers are limited.
    const BESIDE: u64 = 64 << 20;
    // The present state, and the same again for all older states together.
    let kernels = kernels.iter().map(|kernel| 2 * kernel.most_memory()).sum::<u64>();
    let packages = settings.packages.unwrap_or_default();
    kernels + settings.data + settings.scratch + packages + BESIDE
}

impl Worker {
    /// Restores the saved sandbox, once the agent that had it has written it.
    fn go_on(&mut self, state: Option<Saved>, most: u64) {
        let Some((state, store)) = state else { return };
        let (mut file, mut went_on, kept) = kept::take_over(state, store, most);
        if let Some(file) = &mut file
            && !kept.is_some_and(|kept| self.load(kept, file))
        {
            if matches!(went_on, WentOn::Last | WentOn::Older) {
                went_on = WentOn::Unusable;
            }
            // If this fails, the store refuses contents.
            let _ = file.discard();
        }
        self.note();
        if went_on == WentOn::Unusable {
            self.keeper.differs();
        }
        self.went_on = Some(went_on);
        self.keeper.ready(file);
    }

    /// Loads a saved sandbox. If a part of it cannot be used, loads nothing of it and returns false.
    fn load(&mut self, kept: kept::Kept, file: &mut StateFile) -> bool {
        let mut loaded = true;
        for kept in kept.kernels {
            let kernel = self.kernels.iter_mut().find(|it| it.language().name() == kept.language);
            loaded &= kernel.is_some_and(|kernel| kernel.load(kept));
        }
        let mut files = kept.files;
        let loaded = loaded && file.attach(&mut files) && self.files.now().load(files);
        if !loaded {
            self.kernels.iter_mut().for_each(Kernel::unload);
        }
        loaded
    }

    /// Notes the states to save now.
    fn note(&self) {
        self.keeper.note(self.kernels.iter().filter_map(Kernel::save).collect());
    }

    /// Ends a run for the files: rolls back the changes of a run that was stopped.
    fn settle_files(&mut self, is_kept: bool) {
        let mut now = self.files.now();
        if let Some(before) = self.files.before().take()
            && !is_kept
        {
            now.restore(&before);
        }
        now.pin(|_| false);
        now.datasets().close_all();
        now.collect(|inode| self.kernels.iter().any(|kernel| kernel.has_open(inode)));
    }

    /// Gives the space of removed files back to the disk.
    fn tidy(&self) {
        let store = self.files.now().store();
        if let Some(store) = store {
            store.tidy();
        }
    }

    /// The index of the kernel of this runtime.
    fn find(&self, name: &RuntimeName) -> Result<usize, Failure> {
        let names = || self.kernels.iter().map(|kernel| kernel.language().name());
        names().position(|known| known == name.as_str()).ok_or_else(|| {
            let known: Vec<_> = names().collect();
            let detail = format!("no runtime {:?} here, only {}", name.as_str(), known.join(", "));
            Failure::new(FailureCode::NoRuntime, detail)
        })
    }
}

impl Runner for Worker {
    type Switch = Switch;

    fn replies(&self) -> &Replies {
        &self.replies
    }

    fn configure(&mut self, settings: &Wanted) {
        for kernel in &mut self.kernels {
            kernel.configure(settings.undo.unwrap_or_default());
            kernel.settle(&mut self.pages);
        }
    }

    fn run(&mut self, mut job: Job<Switch>) -> io::Result<()> {
        let before = self.look();
        let at = match self.find(&job.run.runtime) {
            Ok(at) => at,
            Err(failure) => return self.reply(job, Err(failure), &before),
        };
        self.keeper.changes();
        {
            let mut now = self.files.now();
            now.pin(|inode| self.kernels.iter().any(|kernel| kernel.has_open(inode)));
            *self.files.before() = Some(now.clone());
        }
        self.asks.begin(job.call);
        let kernel = &mut self.kernels[at];
        let ended = if job.run.cell {
            kernel.cell(&mut job, self.fuel)
        } else {
            kernel.program(&mut job, self.fuel)
        };
        self.asks.end();
        let is_kept = ended.as_ref().is_ok_and(|ended| match &ended.cell {
            Some(cell) => cell.state == CellState::Kept,
            None => matches!(ended.end, End::Exited { .. }),
        });
        self.settle_files(is_kept);
        // The caller does not wait until the state after the run is noted; saving the sandbox does.
        let keeper = self.keeper.clone();
        let settling = keeper.settling();
        let sent = self.reply(job, ended, &before);
        self.kernels[at].settle(&mut self.pages);
        self.note();
        drop(settling);
        self.tidy();
        sent
    }

    fn warm(&mut self, call: u32) -> io::Result<()> {
        let done = WarmDone { ready: true, problems: vec![], went_on: self.went_on };
        self.replies.reply(call, &done, &[])
    }

    fn hibernate(&mut self, keep: bool) -> HibernateDone {
        self.kernels.iter_mut().for_each(Kernel::hibernate);
        self.tidy();
        HibernateDone { kept: keep && self.keeper.keep() }
    }

    fn prewarm(&mut self) {
        // The guest for the next program was made ready after the last call.
    }

    fn inspect(&mut self, runtime: &RuntimeName) -> Result<(InspectDone, Contents), Failure> {
        let at = self.find(runtime)?;
        self.kernels[at].inspect(&mut self.pages)
    }

    fn reset(&mut self, reset: &Reset) -> Result<ResetDone, Failure> {
        self.keeper.changes();
        let at = self.find(&reset.runtime);
        let done = at.and_then(|at| self.kernels[at].reset(reset.undo, &mut self.pages));
        if reset.files && done.is_ok() {
            let mut now = self.files.now();
            let _ = now.empty();
            now.collect(|inode| self.kernels.iter().any(|kernel| kernel.has_open(inode)));
        }
        self.note();
        self.tidy();
        done
    }

    fn export(&mut self, _: &Export) -> Result<(ExportDone, Vec<u8>), Failure> {
        Err(exports_nothing())
    }

    fn import(&mut self, _: &Import, _: &[u8]) -> Result<(ImportDone, Vec<u8>), Failure> {
        Err(exports_nothing())
    }

    fn summarize(&mut self, summarizing: Summarizing<Switch>) -> io::Result<()> {
        let call = summarizing.call;
        let Ok(at) = self.find(&RuntimeName::PYTHON) else {
            return self.replies.fail(call, no_summary());
        };
        if summarizing.request.page.is_some() {
            // The library that draws pages is no WebAssembly.
            let problem = Some(PageProblem::NoLibrary);
            let document = Some(Document { pages: 0, problem });
            return self.replies.reply(call, &SummarizeDone { document }, &[]);
        }
        let done = self.kernels[at].summarize(&summarizing).and_then(|summary| {
            let body = serde_json::to_vec(&summary).map_err(|_| no_summary())?;
            Ok((SummarizeDone::default(), body))
        });
        let sent = self.replies.answer(call, done);
        self.kernels[at].settle(&mut self.pages);
        sent
    }

    fn settle(&mut self) {
        // A reset leaves nothing to prepare.
    }

    fn look(&self) -> Seen {
        let now = self.files.now();
        Seen { data: now.snapshot(), scratch: now.elsewhere() }
    }

    fn script(&self, _: &RuntimeName) -> (&Path, &str) {
        (SCRATCH.as_ref(), SCRIPT)
    }

    fn datasets(&self) -> Snapshot {
        self.files.now().datasets().files()
    }

    fn explain(&self, _: &RuntimeName, stderr: &[u8], files: &Snapshot, ended: &mut Ended) {
        python_errors::explain(stderr, files, &mut ended.facts);
    }
}

/// The failure of an export or import: saving a sandbox includes all variables, so they are not exported separately.
fn exports_nothing() -> Failure {
    Failure::new(FailureCode::NoRuntime, "variables are kept with all of the state here")
}
