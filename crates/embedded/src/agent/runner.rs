//! The thread that runs programs and cells, one after another.

use std::{fs::File, io, sync::mpsc, thread};

use protocol::message::{
    CellState, End, Failure, FailureCode, HibernateDone, Inspect, Reset, RuntimeName, WarmDone,
    WentOn,
};
use sandbox_files::replies::Replies;

use super::{
    Keeper, Settings, SharedFiles,
    kernel::Kernel,
    run::{Before, Job},
};
use crate::{kept, memory::Pages, runtime::Runtime};

/// An order to the runner, which carries orders out one after another.
pub(super) enum Order {
    /// Number of cells that can be undone; `None` if there will be no cells.
    Configure(Option<u32>),
    /// Run this and reply to its call.
    Run(Box<Job>),
    /// Reply once the saved state is loaded.
    Warm(u32),
    /// Free the memory of guests, save the sandbox if that is asked for, then reply.
    Hibernate(u32, bool),
    /// Inspect a workspace and reply to this call.
    Inspect(u32, Inspect),
    /// Undo cells or reset the interpreter, and reply to this call.
    Reset(u32, Reset),
}

/// Gives orders to the thread.
pub(super) struct Runner(mpsc::Sender<Order>);

impl Runner {
    pub(super) fn start(
        runtime: Runtime,
        settings: &Settings,
        pages: Pages,
        files: SharedFiles,
        replies: Replies,
        (state, keeper): (Option<File>, Keeper),
    ) -> io::Result<Self> {
        let (sender, orders) = mpsc::channel();
        let kernels = runtime.interpreters.into_iter();
        let kernels = kernels.map(|one| Kernel::new(one, files.clone(), settings.memory));
        let kernels: Vec<_> = kernels.collect();
        let (most, fuel) = (most_kept(&kernels, settings), settings.fuel);
        if state.is_none() {
            keeper.ready(None);
        }
        let mut worker = Worker { kernels, pages, files, replies, keeper, fuel, went_on: None };
        let thread = thread::Builder::new().name("runner".into()).stack_size(super::STACK);
        thread.spawn(move || {
            worker.go_on(state, most);
            worker.work(&orders);
        })?;
        Ok(Self(sender))
    }

    pub(super) fn order(&self, order: Order) {
        self.0.send(order).expect("the runner ends with the process");
    }
}

struct Worker {
    kernels: Vec<Kernel>,
    pages: Pages,
    files: SharedFiles,
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
    fn go_on(&mut self, state: Option<File>, most: u64) {
        let Some(state) = state else { return };
        let (file, mut went_on, kept) = kept::take_over(state, most);
        if let Some(kept) = kept
            && !self.load(kept)
        {
            went_on = WentOn::Unusable;
        }
        self.note();
        if went_on == WentOn::Unusable {
            self.keeper.differs();
        }
        self.went_on = Some(went_on);
        self.keeper.ready(file);
    }

    /// Loads a saved sandbox. If a part of it cannot be used, loads nothing of it and returns false.
    fn load(&mut self, kept: kept::Kept) -> bool {
        let mut loaded = true;
        for kept in kept.kernels {
            let kernel = self.kernels.iter_mut().find(|it| it.language().name() == kept.language);
            loaded &= kernel.is_some_and(|kernel| kernel.load(kept));
        }
        let loaded = loaded && self.files.now().load(kept.files);
        if !loaded {
            self.kernels.iter_mut().for_each(Kernel::unload);
        }
        loaded
    }

    fn work(mut self, orders: &mpsc::Receiver<Order>) {
        while let Ok(order) = orders.recv() {
            self.carry_out(order);
        }
    }

    fn carry_out(&mut self, order: Order) {
        match order {
            Order::Configure(undo) => {
                for kernel in &mut self.kernels {
                    kernel.configure(undo.unwrap_or_default());
                    kernel.settle(&mut self.pages);
                }
            }
            Order::Run(job) => self.run(*job),
            Order::Warm(call) => {
                let done = WarmDone { ready: true, problems: vec![], went_on: self.went_on };
                self.answer(call, Ok((done, vec![])));
            }
            Order::Hibernate(call, keep) => {
                self.kernels.iter_mut().for_each(Kernel::hibernate);
                let done = HibernateDone { kept: keep && self.keeper.keep() };
                self.answer(call, Ok((done, vec![])));
            }
            Order::Inspect(call, Inspect { runtime }) => {
                let done = find(&mut self.kernels, &runtime)
                    .and_then(|at| self.kernels[at].inspect(&mut self.pages));
                let done = done.map(|(done, contents)| {
                    (done, serde_json::to_vec(&contents).expect("it has no keys but strings"))
                });
                self.answer(call, done);
            }
            Order::Reset(call, reset) => {
                self.keeper.changes();
                let done = find(&mut self.kernels, &reset.runtime)
                    .and_then(|at| self.kernels[at].reset(reset.undo, &mut self.pages));
                if reset.files && done.is_ok() {
                    let mut now = self.files.now();
                    let _ = now.empty();
                    now.collect(|inode| self.kernels.iter().any(|kernel| kernel.has_open(inode)));
                }
                self.note();
                self.answer(call, done.map(|done| (done, vec![])));
            }
        }
    }

    /// Notes the states to save now.
    fn note(&self) {
        self.keeper.note(self.kernels.iter().filter_map(Kernel::save).collect());
    }

    fn run(&mut self, mut job: Job) {
        let at = match find(&mut self.kernels, &job.run.runtime) {
            Ok(at) => at,
            Err(failure) => return job.fail(failure, &self.replies),
        };
        self.keeper.changes();
        let before = Before::look(&self.files);
        {
            let mut now = self.files.now();
            now.pin(|inode| self.kernels.iter().any(|kernel| kernel.has_open(inode)));
            *self.files.before() = Some(now.clone());
        }
        let is_cell = job.run.cell;
        let kernel = &mut self.kernels[at];
        let ended = if is_cell {
            kernel.cell(&mut job, self.fuel)
        } else {
            kernel.program(&mut job, self.fuel)
        };
        let is_kept = ended.as_ref().is_ok_and(|ended| match &ended.cell {
            Some(cell) => cell.state == CellState::Kept,
            None => matches!(ended.end, End::Exited { .. }),
        });
        self.settle_files(is_kept);
        // The caller does not wait until the state after the run is noted; saving the sandbox does.
        let keeper = self.keeper.clone();
        let _settling = keeper.settling();
        match ended {
            Ok(ended) => job.reply(ended, &before, &self.files, &self.replies),
            Err(failure) => job.fail(failure, &self.replies),
        }
        self.kernels[at].settle(&mut self.pages);
        self.note();
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
        now.collect(|inode| self.kernels.iter().any(|kernel| kernel.has_open(inode)));
    }

    fn answer<T: serde::Serialize>(&self, call: u32, done: Result<(T, Vec<u8>), Failure>) {
        let _ = self.replies.answer(call, done);
    }
}

/// The index of the kernel of this runtime.
fn find(kernels: &mut [Kernel], name: &RuntimeName) -> Result<usize, Failure> {
    let at = kernels.iter().position(|kernel| kernel.language().name() == name.as_str());
    at.ok_or_else(|| {
        let known: Vec<_> = kernels.iter().map(|kernel| kernel.language().name()).collect();
        let detail = format!("no runtime {:?} here, only {}", name.as_str(), known.join(", "));
        Failure::new(FailureCode::NoRuntime, detail)
    })
}
