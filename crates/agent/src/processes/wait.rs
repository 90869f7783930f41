//! The ends and the stops of children.

use nix::{libc, unistd::Pid};

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    Code(i32),
    Signal(i32),
}

/// The result of a `waitpid`.
pub(super) enum Waited {
    Ended(Pid, Exit),
    NothingYet,
    NoneLeft,
}

/// Reaps one process, if one has ended.
pub(super) fn wait_for_any() -> Waited {
    let mut status = 0;
    // `nix::sys::wait` has no names for real-time signals, and so loses the process id of a child that one of them has
    // killed.
    #[expect(unsafe_code, reason = "the call writes to the status, which outlives it")]
    let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
    match pid {
        0 => Waited::NothingYet,
        ..0 => Waited::NoneLeft,
        _ if libc::WIFSIGNALED(status) => {
            Waited::Ended(Pid::from_raw(pid), Exit::Signal(libc::WTERMSIG(status)))
        }
        _ => Waited::Ended(Pid::from_raw(pid), Exit::Code(libc::WEXITSTATUS(status))),
    }
}

/// Whether all threads of a child have stopped, or it is dead; `None` if it is not a child.
pub(super) fn is_stopped_or_dead(child: Pid) -> Option<bool> {
    let look = libc::WSTOPPED | libc::WEXITED | libc::WNOWAIT | libc::WNOHANG;
    let number = child.as_raw().cast_unsigned();
    // `nix` would fail here: for a stopped child, gVisor reports a death by a signal that does not exist.
    #[expect(unsafe_code, reason = "the call writes to what it is given, which outlives it")]
    let (result, pid) = unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let result = libc::waitid(libc::P_PID, number, &raw mut info, look);
        (result, info.si_pid())
    };
    (result == 0).then_some(pid != 0)
}

/// Reaps the processes that have ended; returns true if there is nothing left to reap.
pub(super) fn reap_ended() -> bool {
    loop {
        match wait_for_any() {
            Waited::Ended(..) => {}
            Waited::NothingYet => return false,
            Waited::NoneLeft => return true,
        }
    }
}
