//! Ending and reaping all that a run has started.

use std::{
    collections::{HashMap, HashSet},
    fs,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    libc,
    sys::signal::{SigSet, Signal, kill},
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
/// Must run before the first thread starts, as threads inherit it. Children would as well: see
/// [`with_no_signal_blocked`].
pub(crate) fn block_signals() -> nix::Result<()> {
    let handled = SigSet::from_iter([Signal::SIGSEGV, Signal::SIGBUS]);
    (child_signal() | handled).thread_block()
}

/// Starts a child, which inherits the mask of the thread that starts it. What is meant for the
/// signalfd in the meantime is lost, so whoever waits has to look once more.
pub(crate) fn with_no_signal_blocked<T>(start: impl FnOnce() -> T) -> nix::Result<T> {
    let mask = SigSet::thread_get_mask()?;
    SigSet::empty().thread_set_mask()?;
    let started = start();
    mask.thread_set_mask()?;
    Ok(started)
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    Code(i32),
    Signal(i32),
}

/// What `waitpid` has to say.
enum Waited {
    Ended(Pid, Exit),
    NothingYet,
    NoneLeft,
}

/// Reaps one process, if one has ended.
fn wait_for_any() -> Waited {
    let mut status = 0;
    // Not nix's: it knows no names for real-time signals, and so loses who died of one.
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

/// Reaps what has ended and gives how `main` ended, if it is among them.
pub(crate) fn reap(main: Pid) -> Option<Exit> {
    let mut found = None;
    while let Waited::Ended(pid, exit) = wait_for_any() {
        if pid == main {
            found = Some(exit);
        }
    }
    found
}

/// Reaps what has ended; true if nothing is left to reap.
fn reap_ended() -> bool {
    loop {
        match wait_for_any() {
            Waited::Ended(..) => {}
            Waited::NothingYet => return false,
            Waited::NoneLeft => return true,
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
