//! The leash: the agent ends, and with it the sandbox, when the server is gone.
//!
//! An end of the stream is seen by waiting for the hang-up itself, not by reading: the main thread
//! may be busy, and bytes that were sent before the end may still lie unread. Where a death does
//! not close the stream, silence beyond the limit tells of it.

use std::{
    convert::Infallible,
    io,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// When the server was last heard, and how long it may be silent.
#[derive(Debug)]
pub struct Watch {
    start: Instant,
    heard_ms: AtomicU64,
    limit_ms: AtomicU64,
}

/// How often the deadline is looked at; a hang-up is seen at once.
pub const TICK: Duration = Duration::from_millis(250);

impl Watch {
    /// `limit` holds until the server sends its own.
    pub fn new(limit: Duration) -> Self {
        let watch = Self {
            start: Instant::now(),
            heard_ms: AtomicU64::new(0),
            limit_ms: AtomicU64::new(0),
        };
        watch.set_limit(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX));
        watch
    }

    /// Sets another limit.
    pub fn set_limit(&self, ms: u64) {
        self.limit_ms.store(ms, Ordering::Relaxed);
    }

    /// The server has said something.
    pub fn heard(&self) {
        self.heard_ms.store(self.now_ms(), Ordering::Relaxed);
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Whether it has been silent for longer than it may be.
    pub fn is_overdue(&self) -> bool {
        let silent = self.now_ms().saturating_sub(self.heard_ms.load(Ordering::Relaxed));
        silent > self.limit_ms.load(Ordering::Relaxed)
    }

    /// Waits for the end and then ends the process, in the way that is given.
    pub fn run(&self, end: impl Fn() -> Infallible) -> ! {
        let stdin = io::stdin();
        loop {
            let mut fds = [PollFd::new(std::os::fd::AsFd::as_fd(&stdin), PollFlags::empty())];
            let tick = PollTimeout::try_from(TICK).expect("a quarter second fits");
            let hung_up = poll(&mut fds, tick).is_ok_and(|ready| ready > 0);
            if hung_up || self.is_overdue() {
                match end() {}
            }
        }
    }
}
