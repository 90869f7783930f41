//! The leash: notices that the stream is lost, and ends the agent, and with it the sandbox, if that lasts too long.
//!
//! The leash waits for the hang-up itself, not by reading: the main thread may be busy, and bytes that were sent before
//! the end may still lie unread. If a server's death does not close the stream, its silence beyond the limit shows it.

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
use sandbox_files::watch::{TICK, Watch};

use super::{door::Door, stream};

/// Limit of the server's silence until the server has sent its own limit.
const MAX_FIRST_SILENCE: Duration = Duration::from_secs(45);

/// Watches over the stream, in a thread of its own.
#[derive(Debug)]
pub(crate) struct Leash {
    silence: Watch,
    state: Mutex<State>,
    /// Readable while the stream is lost, so that reads and writes stop waiting for it.
    bell: Arc<EventFd>,
}

#[derive(Debug, Default)]
struct State {
    /// How long the stream may be lost; `None` if the agent ends with the stream.
    hold: Option<Duration>,
    lost_since: Option<Instant>,
    /// Generation of the stream: the number of streams before it.
    generation: u64,
    /// The door, whose visitors are rejected while there is a stream.
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

    /// Notes that the server is alive: its silence counts from now.
    pub(crate) fn heard(&self) {
        self.silence.heard();
    }

    /// Sets how long the server may be silent.
    pub(crate) fn set_silence(&self, ms: u64) {
        self.silence.set_limit(ms.min(MAX_HOLD_MS));
    }

    pub(super) fn set_hold(&self, hold: Option<Duration>) {
        self.state().hold = hold.map(|hold| hold.min(Duration::from_millis(MAX_HOLD_MS)));
    }

    pub(super) fn watch_door(&self, door: Arc<Door>) {
        self.state().door = Some(door);
    }

    /// Marks the stream as lost. Ends the agent if no hold is set.
    pub(super) fn lose(&self) {
        let generation = self.state().generation;
        self.lose_stream(generation);
    }

    /// Marks the stream as lost, unless a newer stream has replaced it.
    fn lose_stream(&self, generation: u64) {
        let mut state = self.state();
        if state.generation != generation {
            return;
        }
        if state.hold.is_none() {
            crate::end();
        }
        if state.lost_since.is_none() {
            state.lost_since = Some(Instant::now());
            let _ = self.bell.write(1);
            // Closed, so that the other end notices the loss.
            stream::disconnect();
        }
    }

    /// Marks the stream as connected.
    pub(super) fn found(&self) {
        let mut state = self.state();
        state.lost_since = None;
        state.generation += 1;
        let _ = self.bell.read();
        self.heard();
    }

    /// Time that is left to wait for a new stream; `None` while there is one.
    pub(super) fn left(&self) -> Option<Duration> {
        let state = self.state();
        let (since, hold) = state.lost_since.zip(state.hold)?;
        Some(hold.saturating_sub(since.elapsed()))
    }

    /// Watches the stream. Never returns.
    pub(crate) fn run(&self) -> ! {
        let tick = PollTimeout::try_from(TICK).expect("a quarter second fits");
        loop {
            if let Some(left) = self.left() {
                if left.is_zero() {
                    crate::end();
                }
                // The thread that waits for a new stream notices it first.
                std::thread::sleep(left.min(TICK));
                continue;
            }
            let (door, generation) = {
                let state = self.state();
                (state.door.clone(), state.generation)
            };
            let stdin = io::stdin();
            let mut fds = vec![PollFd::new(stdin.as_fd(), PollFlags::empty())];
            fds.extend(door.iter().map(|door| PollFd::new(door.as_fd(), PollFlags::POLLIN)));
            let is_ready = poll(&mut fds, tick).is_ok_and(|ready| ready > 0);
            let mut events = fds.iter().map(|fd| is_ready && fd.any().unwrap_or(true));
            let (hung_up, visited) = (events.next() == Some(true), events.next() == Some(true));
            if hung_up || self.silence.is_overdue() {
                self.lose_stream(generation);
            } else if visited && let Some(door) = door {
                door.turn_away();
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics with it")
    }
}
