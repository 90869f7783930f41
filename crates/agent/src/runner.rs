//! The thread that runs programs, one after another, and keeps spares ready in between.

use std::{
    io,
    os::fd::AsFd,
    sync::{
        Arc,
        mpsc::{self, TryRecvError},
    },
    thread,
    time::Instant,
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::eventfd::{EfdFlags, EventFd},
};
use protocol::message::{Empty, Export, Failure, Import, Inspect, Reset, WarmDone};
use sandbox_files::{beneath, replies::Replies, tree};
use serde::Serialize;

use crate::{
    hold::guest::Guest,
    places::Places,
    processes::{Children, Unkillable},
    run::Job,
    runtimes::{Outlook, RunError, Runtimes, Settings},
    transfer::Transfer,
};

/// Requests to the runner, which are carried out one after another.
pub(crate) enum Order {
    /// Prepare for programs and cells.
    Configure(Settings),
    /// Run this and reply to its call.
    Run(Box<Job>),
    /// Reply when a spare is ready, or none will be.
    Warm(u32),
    /// End what only makes programs start faster, then reply.
    Hibernate(u32),
    /// Prepare for a run that comes soon.
    Prewarm,
    /// List what a workspace holds, and reply to this call.
    Inspect(u32, Inspect),
    /// Undo cells or reset the workspace, and reply to this call.
    Reset(u32, Reset),
    /// Save variables, or return a piece of what was saved, and reply to this call.
    Export(u32, Export),
    /// Take this piece of saved variables, restore them after the last one, and reply to this call.
    Import(u32, Import, Vec<u8>),
}

/// Sends orders to the thread.
pub(crate) struct Runner {
    orders: mpsc::Sender<Order>,
    bell: Arc<EventFd>,
}

impl Runner {
    pub(crate) fn start(places: &Places, replies: Replies, guest: Guest) -> io::Result<Self> {
        let (sender, orders) = mpsc::channel();
        let bell = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let bell = Arc::new(bell);
        let worker = Worker {
            orders,
            bell: bell.clone(),
            replies,
            children: Children::new(guest)?,
            runtimes: Runtimes::new(places),
            places: places.clone(),
            waiting: vec![],
            transfer: Transfer::default(),
        };
        thread::Builder::new().name("runner".into()).spawn(move || worker.work())?;
        Ok(Self { orders: sender, bell })
    }

    pub(crate) fn order(&self, order: Order) {
        self.orders.send(order).expect("the runner ends with the process");
        // Fails only if the counter is full, and then the thread has been woken before.
        let _ = self.bell.write(1);
    }
}

struct Worker {
    orders: mpsc::Receiver<Order>,
    bell: Arc<EventFd>,
    replies: Replies,
    children: Children,
    runtimes: Runtimes,
    places: Places,
    /// Calls that wait until the runtimes are warm.
    waiting: Vec<u32>,
    transfer: Transfer,
}

impl Worker {
    fn work(mut self) {
        loop {
            self.children.reap(None);
            self.runtimes.attend(&mut self.children);
            if let Some(Outlook { ready, problems }) = self.runtimes.outlook() {
                for call in self.waiting.drain(..) {
                    let done = WarmDone { ready, problems: problems.clone(), went_on: None };
                    reply(&self.replies, call, &done);
                }
            }
            match self.orders.try_recv() {
                Ok(order) => self.carry_out(order),
                Err(TryRecvError::Empty) => self.wait(),
                Err(TryRecvError::Disconnected) => return,
            }
        }
    }

    fn wait(&self) {
        let mut fds: Vec<_> = self.runtimes.fds().collect();
        fds.extend([self.bell.as_fd(), self.children.as_fd()]);
        let mut fds: Vec<_> =
            fds.into_iter().map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        let until = |alarm: Instant| {
            let left = alarm.saturating_duration_since(Instant::now());
            PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
        };
        let _ = poll(&mut fds, self.runtimes.alarm().map_or(PollTimeout::NONE, until));
        let _ = self.bell.read();
    }

    fn carry_out(&mut self, order: Order) {
        let Self { runtimes, children, transfer, .. } = self;
        match order {
            Order::Configure(settings) => runtimes.configure(&settings, children),
            Order::Prewarm => runtimes.prewarm(children),
            Order::Warm(call) => {
                runtimes.prewarm(children);
                self.waiting.push(call);
            }
            Order::Hibernate(call) => {
                runtimes.hibernate(children);
                children.sweep().unwrap_or_else(|unkillable| give_up(&unkillable));
                reply(&self.replies, call, &Empty {});
            }
            Order::Run(job) => {
                let over = job.run(&self.replies, runtimes, children);
                let over = over.unwrap_or_else(|unkillable| give_up(&unkillable));
                if let Some(main) = over.stopped {
                    self.let_the_reply_go_first();
                    let dying = self.children.let_die(main);
                    dying.unwrap_or_else(|unkillable| give_up(&unkillable));
                }
                self.runtimes.resume(over.start, &mut self.children);
                if over.was_cell {
                    self.let_the_reply_go_first();
                    self.settle();
                }
            }
            Order::Inspect(call, Inspect { runtime }) => {
                let done = runtimes.inspect(&runtime, children);
                let done = done.map(|(done, contents)| {
                    let json = serde_json::to_vec(&contents);
                    (done, json.expect("it has no keys but strings"))
                });
                self.answer(call, done);
            }
            Order::Export(call, export) => {
                let done = transfer.export(&export, runtimes, children);
                self.answer(call, done);
            }
            Order::Import(call, import, piece) => {
                let done = transfer.import(&import, &piece, runtimes, children);
                self.answer(call, done);
                self.settle();
            }
            Order::Reset(call, reset) => {
                let mut done = runtimes.reset(&reset.runtime, reset.undo, children);
                if reset.files && done.is_ok() {
                    let root = beneath::root(&self.places.data);
                    if let Err(error) = root.and_then(|root| tree::empty(&root)) {
                        done = Err(Failure::io("the data area", &error.into()).into());
                    }
                }
                self.answer(call, done.map(|done| (done, vec![])));
                self.settle();
            }
        }
    }

    fn settle(&mut self) {
        let settled = self.runtimes.settle(&mut self.children);
        settled.unwrap_or_else(|unkillable| give_up(&unkillable));
    }

    fn answer<T: Serialize>(&self, call: u32, done: Result<(T, Vec<u8>), RunError>) {
        let done = done.map_err(|error| match error {
            RunError::Failed(failure) => failure,
            RunError::Unkillable(unkillable) => give_up(&unkillable),
        });
        if self.replies.answer(call, done).is_err() {
            crate::end();
        }
    }

    /// Waits for 2 ms, for the next order, or until a stopped process is continued. The reply passes several processes
    /// on its way to the caller; the work that follows here would occupy the processors for 20 ms.
    fn let_the_reply_go_first(&self) {
        let moment = PollTimeout::from(2u8);
        let fds = [self.bell.as_fd(), self.children.as_fd()];
        let _ = poll(&mut fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)), moment);
    }
}

/// Replies without a body. Ends the agent if no server can get the reply.
fn reply(replies: &Replies, call: u32, head: &impl Serialize) {
    if replies.reply(call, head, &[]).is_err() {
        crate::end();
    }
}

/// Ends the sandbox: a process that survives would run beside the next run.
fn give_up(unkillable: &Unkillable) -> ! {
    eprintln!("agent: {unkillable}");
    std::process::exit(70);
}
