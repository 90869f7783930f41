//! The leash: notices that the stream is lost, and ends the agent, and with it the sandbox, if that lasts.
//!
//! A hang-up is waited for as such, not by reading: the main thread may be busy, and bytes that were sent before
//! the end may still lie unread. Where a death does not close the stream, silence beyond the limit tells of it.

use std::{
    io,
    os::fd::AsFd,
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::eventfd::{EfdFlags, EventFd},
};
use protocol::limits::MAX_HOLD_MS;
use workspace::watch::{TICK, Watch};

use super::{door::Door, inbox};

/// Silence that the agent bears before it has heard the server's own limit.
const MAX_FIRST_SILENCE: Duration = Duration::from_secs(45);

/// Watches over the stream, in a thread of its own.
#[derive(Debug)]
pub(crate) struct Leash {
    silence: Watch,
    state: Mutex<State>,
    /// Readable while the stream is lost, so that nobody goes on waiting for it.
    bell: Arc<EventFd>,
}

#[derive(Debug, Default)]
struct State {
    /// How long the stream may be lost; not at all if there is none.
    hold: Option<Duration>,
    lost_since: Option<Instant>,
    /// Streams that there were before this one.
    before: u64,
    /// Whoever comes while there is a stream is turned away.
    door: Option<Arc<Door>>,
}

impl Leash {
    pub(super) fn new() -> io::Result<Self> {
        let bell = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Self {
            silence: Watch::new(MAX_FIRST_SILENCE),
            state: Mutex::default(),
            bell: Arc::new(bell),
        })
    }

    pub(super) fn bell(&self) -> Arc<EventFd> {
        self.bell.clone()
    }

    /// The server has said something.
    pub(crate) fn heard(&self) {
        self.silence.heard();
    }

    /// How long the server may be silent.
    pub(crate) fn set_silence(&self, ms: u64) {
        self.silence.set_limit(ms.min(MAX_HOLD_MS));
    }

    pub(super) fn set_hold(&self, hold: Option<Duration>) {
        self.state().hold = hold.map(|hold| hold.min(Duration::from_millis(MAX_HOLD_MS)));
    }

    pub(super) fn watch_door(&self, door: Arc<Door>) {
        self.state().door = Some(door);
    }

    /// The stream is of no use any more. If it may not be lost, this is the end.
    pub(super) fn lose(&self) {
        let before = self.state().before;
        self.lose_that_after(before);
    }

    /// The same of the stream that has so many before it, if that is still the one.
    fn lose_that_after(&self, before: u64) {
        let mut state = self.state();
        if state.before != before {
            return;
        }
        if state.hold.is_none() {
            crate::end();
        }
        if state.lost_since.is_none() {
            state.lost_since = Some(Instant::now());
            let _ = self.bell.write(1);
            // Its other end shall hear of it.
            inbox::disconnect();
        }
    }

    /// There is a stream again.
    pub(super) fn found(&self) {
        let mut state = self.state();
        state.lost_since = None;
        state.before += 1;
        let _ = self.bell.read();
        self.heard();
    }

    /// How long somebody may still be waited for; `None` while there is a stream.
    pub(super) fn left(&self) -> Option<Duration> {
        let state = self.state();
        let (since, hold) = state.lost_since.zip(state.hold)?;
        Some(hold.saturating_sub(since.elapsed()))
    }

    /// Watches, for ever.
    pub(crate) fn run(&self) -> ! {
        let tick = PollTimeout::try_from(TICK).expect("a quarter second fits");
        loop {
            if let Some(left) = self.left() {
                if left.is_zero() {
                    crate::end();
                }
                // Whoever waits for a new stream sees it first.
                std::thread::sleep(left.min(TICK));
                continue;
            }
            let (door, before) = {
                let state = self.state();
                (state.door.clone(), state.before)
            };
            let stdin = io::stdin();
            let mut fds = vec![PollFd::new(stdin.as_fd(), PollFlags::empty())];
            fds.extend(door.iter().map(|door| PollFd::new(door.as_fd(), PollFlags::POLLIN)));
            let is_ready = poll(&mut fds, tick).is_ok_and(|ready| ready > 0);
            let mut events = fds.iter().map(|fd| is_ready && fd.any().unwrap_or(true));
            let (hung_up, visited) = (events.next() == Some(true), events.next() == Some(true));
            if hung_up || self.silence.is_overdue() {
                self.lose_that_after(before);
            } else if visited && let Some(door) = door {
                door.turn_away();
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics with it")
    }
}
