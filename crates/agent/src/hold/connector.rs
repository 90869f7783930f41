//! The connector: the process that has connected the stream. It belongs to no run.
//!
//! A connector that was started from outside, for example by an exec, must live as long as the stream: the relay of the
//! stream ends the stream with the process. The agent has the stream itself, so the connector only waits.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, Mutex},
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// The connector, if there is one. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Connector(Arc<Mutex<Option<Arrived>>>);

/// A process whose stream was taken.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(super) pid: Pid,
    /// Hangs up when the process dies: until then no other process has its process id.
    pub(super) socket: OwnedFd,
}

impl Connector {
    /// Whether the connector has this process id and is alive.
    pub(crate) fn is(&self, pid: i32) -> bool {
        let connector = self.0.lock().expect("no thread panics with it");
        connector
            .as_ref()
            .is_some_and(|connector| connector.pid.as_raw() == pid && connector.is_there())
    }

    /// Replaces the connector.
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
