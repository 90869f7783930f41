//! The thread that runs programs, one after another, and keeps a spare ready in between.

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
use protocol::message::{Empty, WarmDone};
use serde::Serialize;

use crate::{
    places::Places,
    processes::{Children, Unkillable},
    reply::Replies,
    run::Job,
    runtimes::{Outlook, Runtimes},
    watch,
};

/// What the runner can be asked, in the order in which it is done.
pub(crate) enum Order {
    /// Load these modules, if any are to be loaded, so that programs start faster.
    Configure(Option<Vec<String>>),
    /// Run this and reply to its call.
    Run(Box<Job>),
    /// Reply when a spare waits, or none will.
    Warm(u32),
    /// Give up what makes programs start faster, then reply.
    Hibernate(u32),
    /// There will be a run soon.
    Prewarm,
}

/// Gives orders to the thread.
pub(crate) struct Runner {
    orders: mpsc::Sender<Order>,
    bell: Arc<EventFd>,
}

impl Runner {
    pub(crate) fn start(places: &Places, replies: Replies) -> io::Result<Self> {
        let (sender, orders) = mpsc::channel();
        let bell = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let bell = Arc::new(bell);
        let worker = Worker {
            orders,
            bell: bell.clone(),
            replies,
            children: Children::new()?,
            runtimes: Runtimes::new(places),
            waiting: vec![],
        };
        thread::Builder::new().name("runner".into()).spawn(move || worker.work())?;
        Ok(Self { orders: sender, bell })
    }

    pub(crate) fn order(&self, order: Order) {
        self.orders.send(order).expect("the runner ends with the process");
        // Fails only when the counter is full, and then it has rung often enough.
        let _ = self.bell.write(1);
    }
}

struct Worker {
    orders: mpsc::Receiver<Order>,
    bell: Arc<EventFd>,
    replies: Replies,
    children: Children,
    runtimes: Runtimes,
    /// Calls that wait to hear that it is warm.
    waiting: Vec<u32>,
}

impl Worker {
    fn work(mut self) {
        loop {
            self.children.reap(None);
            self.runtimes.attend(&mut self.children);
            if let Some(Outlook { ready, problems }) = self.runtimes.outlook() {
                for call in self.waiting.drain(..) {
                    let done = WarmDone { ready, problems: problems.clone() };
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
        let Self { runtimes, children, .. } = self;
        match order {
            Order::Configure(preload) => runtimes.configure(preload.as_deref(), children),
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
            }
        }
    }

    /// Waits a moment, or for the next order, or until what was stopped goes on. The reply goes through
    /// several processes to whoever waits for it; what follows here would have the processors for 20 ms.
    fn let_the_reply_go_first(&self) {
        let moment = PollTimeout::from(2u8);
        let fds = [self.bell.as_fd(), self.children.as_fd()];
        let _ = poll(&mut fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)), moment);
    }
}

/// Replies without a body. Where nobody listens there is nothing left to do.
fn reply(replies: &Replies, call: u32, head: &impl Serialize) {
    if replies.reply(call, head, &[]).is_err() {
        watch::end();
    }
}

/// Whatever survives would meet the next run; the sandbox must end instead.
fn give_up(unkillable: &Unkillable) -> ! {
    eprintln!("agent: {unkillable}");
    std::process::exit(70);
}
