//! Ends the agent, and with it the sandbox, when the server is lost.
//!
//! The end of the stream is detected by waiting for the hang-up itself, not by reading: the main thread may be busy,
//! and bytes that were sent before the end may still be unread. If the server ends without closing the stream, it is
//! detected by its silence beyond the limit.

use std::{
    convert::Infallible,
    io,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// The time of the server's last frame, and the limit of its silence.
#[derive(Debug)]
pub struct Watch {
    start: Instant,
    heard_ms: AtomicU64,
    limit_ms: AtomicU64,
}

/// The interval at which the deadline is checked; a hang-up is detected at once.
pub const TICK: Duration = Duration::from_millis(250);

impl Watch {
    /// Creates a watch. `limit` applies until the server sends its own.
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

    /// Records that the server has sent a frame.
    pub fn heard(&self) {
        self.heard_ms.store(self.now_ms(), Ordering::Relaxed);
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Whether the server has been silent beyond the limit.
    pub fn is_overdue(&self) -> bool {
        let silent = self.now_ms().saturating_sub(self.heard_ms.load(Ordering::Relaxed));
        silent > self.limit_ms.load(Ordering::Relaxed)
    }

    /// Waits until the server is lost, and then ends the process with `end`.
    pub fn run(&self, end: impl Fn() -> Infallible) -> ! {
        let stdin = io::stdin();
        loop {
            let mut fds = [PollFd::new(std::os::fd::AsFd::as_fd(&stdin), PollFlags::empty())];
            let tick = PollTimeout::try_from(TICK).expect("`TICK` is a quarter of a second");
            let hung_up = poll(&mut fds, tick).is_ok_and(|ready| ready > 0);
            if hung_up || self.is_overdue() {
                match end() {}
            }
        }
    }
}
