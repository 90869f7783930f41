//! The thread that runs programs and cells, one after another.

use std::{fs::File, io, sync::mpsc, thread};

use protocol::message::{
    CellState, End, Failure, FailureCode, HibernateDone, Inspect, Reset, RuntimeName, WarmDone,
    WentOn,
};
use workspace::replies::Replies;

use super::{
    Keeper, Settings, SharedFiles,
    kernel::Kernel,
    run::{Before, Job},
};
use crate::{kept, memory::Pages, runtime::Runtime};

/// What the runner can be asked, in the order in which it is done.
pub(super) enum Order {
    /// Cells that can be taken back; none if there will be no cells.
    Configure(Option<u32>),
    /// Run this and reply to its call.
    Run(Box<Job>),
    /// Reply when what was kept is there.
    Warm(u32),
    /// Give up what only makes things faster, keep the rest if that is wanted, then reply.
    Hibernate(u32, bool),
    /// Look at a workspace and reply to this call.
    Inspect(u32, Inspect),
    /// Take cells back or begin anew, and reply to this call.
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
    /// What became of the sandbox that this one was to go on from, if they are kept.
    went_on: Option<WentOn>,
}

/// Bytes of which a state may be that is kept.
fn most_kept(kernels: &[Kernel], settings: &Settings) -> u64 {
    // What stands beside files and pages, of which there are so many.
    const BESIDE: u64 = 64 << 20;
    // The present state, and as much again for all older ones.
    let kernels = kernels.iter().map(|kernel| 2 * kernel.most_memory()).sum::<u64>();
    let packages = settings.packages.unwrap_or_default();
    kernels + settings.data + settings.scratch + packages + BESIDE
}

impl Worker {
    /// Goes on from what was kept, once whoever had it has written it.
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

    /// Takes what was kept; nothing of it, and false, if not all of it can be used.
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

    /// Says what would have to be kept now.
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
        // The caller need not wait until the state is kept; whoever keeps the sandbox does.
        let keeper = self.keeper.clone();
        let _settling = keeper.settling();
        match ended {
            Ok(ended) => job.reply(ended, &before, &self.files, &self.replies),
            Err(failure) => job.fail(failure, &self.replies),
        }
        self.kernels[at].settle(&mut self.pages);
        self.note();
    }

    /// Ends a run for the files: what a run did that was stopped is undone.
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

/// Which of the kernels is that of this runtime.
fn find(kernels: &mut [Kernel], name: &RuntimeName) -> Result<usize, Failure> {
    let at = kernels.iter().position(|kernel| kernel.language().name() == name.as_str());
    at.ok_or_else(|| {
        let known: Vec<_> = kernels.iter().map(|kernel| kernel.language().name()).collect();
        let detail = format!("no runtime {:?} here, only {}", name.as_str(), known.join(", "));
        Failure::new(FailureCode::NoRuntime, detail)
    })
}
