//! The thread that runs programs and cells, one after another.

use std::{io, sync::mpsc, thread};

use protocol::message::{CellState, Empty, End, Failure, FailureCode, Inspect, Reset, RuntimeName};
use workspace::replies::Replies;

use super::{
    Keeper, Settings, SharedFiles,
    kernel::Kernel,
    run::{Before, Job},
};
use crate::{kept::KeptKernel, memory::Pages, runtime::Runtime};

/// What the runner can be asked, in the order in which it is done.
pub(super) enum Order {
    /// Cells that can be taken back; none if there will be no cells.
    Configure(Option<u32>),
    /// Run this and reply to its call.
    Run(Box<Job>),
    /// Give up what only makes things faster, then reply.
    Hibernate(u32),
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
        (kept, keeper): (Vec<KeptKernel>, Keeper),
    ) -> io::Result<Self> {
        let (sender, orders) = mpsc::channel();
        let kernels = runtime.interpreters.into_iter();
        let kernels = kernels.map(|one| Kernel::new(one, files.clone(), settings.memory));
        let mut kernels: Vec<_> = kernels.collect();
        for kept in kept {
            if let Some(kernel) =
                kernels.iter_mut().find(|it| it.language().name() == kept.language)
            {
                kernel.load(kept);
            }
        }
        keeper.note(kernels.iter().filter_map(Kernel::save).collect());
        let worker = Worker { kernels, pages, files, replies, keeper, fuel: settings.fuel };
        let thread = thread::Builder::new().name("runner".into()).stack_size(super::STACK);
        thread.spawn(move || worker.work(&orders))?;
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
}

impl Worker {
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
            Order::Hibernate(call) => {
                self.kernels.iter_mut().for_each(Kernel::hibernate);
                self.answer(call, Ok((Empty {}, vec![])));
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
