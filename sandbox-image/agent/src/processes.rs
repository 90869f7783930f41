//! Ending and reaping all that a run has started.

use std::{
    collections::{HashMap, HashSet},
    fs,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    sys::{
        signal::{SigSet, Signal, kill},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::Pid,
};

/// The only signal that the agent waits for, as a set.
pub(crate) fn child_signal() -> SigSet {
    SigSet::from(Signal::SIGCHLD)
}

/// Blocks what is waited for, and the signals that Rust's runtime has handlers for: programs may
/// send them, to PID 1 too, and two at once are too much for the handlers' small stack. A fault of
/// the agent's own still ends it.
///
/// Must run before the first thread starts; the children get an empty mask again.
pub(crate) fn block_signals() -> nix::Result<()> {
    let handled = SigSet::from_iter([Signal::SIGSEGV, Signal::SIGBUS]);
    (child_signal() | handled).thread_block()
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    Code(i32),
    Signal(i32),
}

/// Reaps what has ended and gives how `main` ended, if it is among them.
pub(crate) fn reap(main: Pid) -> Option<Exit> {
    let mut found = None;
    loop {
        let (pid, exit) = match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(pid, code)) => (pid, Exit::Code(code)),
            Ok(WaitStatus::Signaled(pid, signal, _)) => (pid, Exit::Signal(signal as i32)),
            // Real-time signals have no name in nix and so no status; the process is reaped.
            Err(Errno::EINVAL) => continue,
            Ok(_) | Err(_) => return found,
        };
        if pid == main {
            found = Some(exit);
        }
    }
}

/// Reaps what has ended; true if nothing is left to reap.
fn reap_ended() -> bool {
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) => return false,
            Err(Errno::ECHILD) => return true,
            _ => {}
        }
    }
}

/// Something survived SIGKILL for longer than the agent waits.
#[derive(Debug, thiserror::Error)]
#[error("processes survive being killed")]
pub(crate) struct Unkillable;

/// Kills and reaps everything but the agent.
pub(crate) fn kill_all() -> Result<(), Unkillable> {
    /// A process that is stuck in the kernel holds out this long at most; after it the sandbox is
    /// of no use and is better ended.
    const PATIENCE: Duration = Duration::from_secs(10);

    let start = Instant::now();
    loop {
        let any = signal_all();
        let none_left = reap_ended();
        if !any && none_left {
            return Ok(());
        }
        if start.elapsed() > PATIENCE {
            return Err(Unkillable);
        }
        // The dying need the processor more than this loop does.
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Sends SIGKILL to everything but the agent; false if there is nothing.
fn signal_all() -> bool {
    if std::process::id() == 1 {
        // One call that no fork can outrun.
        return kill(Pid::from_raw(-1), Signal::SIGKILL) != Err(Errno::ESRCH);
    }
    let descendants = descendants();
    for pid in &descendants {
        let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
    }
    !descendants.is_empty()
}

/// All living processes below the agent, which is where orphans come back to (see `start`).
fn descendants() -> HashSet<i32> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        if let Some((state, parent)) = state_and_parent(&stat)
            && state != "Z"
        {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = HashSet::new();
    let mut queue = vec![std::process::id().cast_signed()];
    while let Some(pid) = queue.pop() {
        for child in children.remove(&pid).unwrap_or_default() {
            found.insert(child);
            queue.push(child);
        }
    }
    found
}

/// From `/proc/<pid>/stat`; the name before them may hold anything, brackets too.
fn state_and_parent(stat: &str) -> Option<(&str, i32)> {
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    Some((fields.next()?, fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_may_be_called_anything() {
        assert_eq!(state_and_parent("12 (a) S 7) R 3 4 5"), Some(("R", 3)));
        assert_eq!(state_and_parent("12 (python3) S 1 12 12"), Some(("S", 1)));
        assert_eq!(state_and_parent(""), None);
    }
}
