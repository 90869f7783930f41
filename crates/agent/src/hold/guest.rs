//! The guest: the process that has connected the stream. It belongs to no run.
//!
//! A guest that was started from outside, for example by an exec, must live as long as the stream: the relay of the
//! stream ends the stream with the process. The agent has the stream itself, so the guest only waits.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, Mutex},
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// The guest, if there is one. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Guest(Arc<Mutex<Option<Arrived>>>);

/// A process whose stream was taken.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(super) pid: Pid,
    /// Hangs up when the process dies: until then no other process has its process id.
    pub(super) socket: OwnedFd,
}

impl Guest {
    /// Whether the guest has this process id and is alive.
    pub(crate) fn is(&self, pid: i32) -> bool {
        let guest = self.0.lock().expect("no thread panics with it");
        guest.as_ref().is_some_and(|guest| guest.pid.as_raw() == pid && guest.is_there())
    }

    /// Replaces the guest.
    pub(super) fn replace(&self, with: Option<Arrived>) {
        *self.0.lock().expect("no thread panics with it") = with;
    }
}

impl Arrived {
    fn is_there(&self) -> bool {
        let mut fds = [PollFd::new(self.socket.as_fd(), PollFlags::empty())];
        poll(&mut fds, PollTimeout::ZERO) == Ok(0)
    }
}

impl Drop for Arrived {
    fn drop(&mut self) {
        // The process ends when the socket closes; if it was stopped, once it is continued.
        if self.is_there() {
            let _ = kill(self.pid, Signal::SIGCONT);
        }
    }
}
