//! The process that has brought the stream, which is none of a run's.
//!
//! Where it was started from outside, as by an exec, it has to live as long as the stream: whoever relays that ends
//! it with the process. The agent has the stream itself, so all that it does is to be there.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, Mutex},
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// The process, if there is one. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Guest(Arc<Mutex<Option<Arrived>>>);

/// One that has come in.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(super) pid: Pid,
    /// It hangs up when it dies: until then its number is nobody else's.
    pub(super) socket: OwnedFd,
}

impl Guest {
    /// Whether this is its number.
    pub(crate) fn is(&self, pid: i32) -> bool {
        let guest = self.0.lock().expect("no thread panics with it");
        guest.as_ref().is_some_and(|guest| guest.pid.as_raw() == pid && guest.is_there())
    }

    /// Another takes its place, or none.
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
        // It ends when the socket closes; if somebody has stopped it, once it goes on.
        if self.is_there() {
            let _ = kill(self.pid, Signal::SIGCONT);
        }
    }
}
