//! Ending and reaping all that a run has started.

use std::{
    collections::{HashMap, HashSet},
    fs,
    io::Read,
    os::fd::{AsFd, BorrowedFd},
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    libc,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        signal::{SigSet, Signal, kill},
        signalfd::{SfdFlags, SignalFd},
    },
    unistd::Pid,
};

/// The only signal that the agent waits for, as a set.
fn child_signal() -> SigSet {
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

/// All that the agent has started and what that has started in turn, and the fork server, which
/// alone outlives a run. The one thread that starts processes has it.
#[derive(Debug)]
pub(crate) struct Children {
    /// The fork server, until it has been reaped: then the number may be anybody's.
    spared: Option<Pid>,
    /// What is left of the last run, until it has been reaped.
    dying: Option<Pid>,
    signals: SignalFd,
}

impl Children {
    pub(crate) fn new() -> nix::Result<Self> {
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        Ok(Self {
            spared: None,
            dying: None,
            signals: SignalFd::with_flags(&child_signal(), flags)?,
        })
    }

    /// Names the fork server.
    pub(crate) fn spare(&mut self, pid: Pid) {
        self.spared = Some(pid);
    }

    pub(crate) fn has_spared(&self) -> bool {
        self.spared.is_some()
    }

    pub(crate) fn signal_spared(&self, signal: Signal) {
        if let Some(pid) = self.spared {
            let _ = kill(pid, signal);
        }
    }

    /// Kills the fork server, which is then no longer spared.
    pub(crate) fn kill_spared(&mut self) {
        self.signal_spared(Signal::SIGKILL);
        self.spared = None;
    }

    /// Reaps what has ended and gives how `main` ended, if it is among them.
    pub(crate) fn reap(&mut self, main: Option<Pid>) -> Option<Exit> {
        while let Ok(Some(_)) = self.signals.read_signal() {}
        let mut found = None;
        while let Waited::Ended(pid, exit) = wait_for_any() {
            if Some(pid) == main {
                found = Some(exit);
            }
            for gone in [&mut self.spared, &mut self.dying] {
                gone.take_if(|gone| *gone == pid);
            }
        }
        found
    }

    /// Kills what is left of a run, and does not wait for it.
    pub(crate) fn let_die(&mut self, pid: Pid) {
        let _ = kill(pid, Signal::SIGKILL);
        self.dying = Some(pid);
    }

    /// Waits for what was left to die, so that the next run does not see it.
    pub(crate) fn wait_for_the_dying(&mut self) {
        let start = Instant::now();
        while self.dying.is_some() && start.elapsed() < PATIENCE {
            self.wait();
            self.reap(None);
        }
    }

    /// Waits for the next that ends, or a moment, as not all who do are the agent's to reap.
    fn wait(&self) {
        let mut fds = [PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)];
        let _ = poll(&mut fds, PollTimeout::from(2u8));
    }

    /// Whether a program that says it is done is all that there is besides the fork server, with no
    /// second thread: then nothing can happen any more when it is killed, and nobody need wait for
    /// that.
    pub(crate) fn is_alone(&self, main: Pid) -> bool {
        self.others() == [main.as_raw()]
            && read_stat(main.as_raw(), |stat| stat.threads == 1).unwrap_or(false)
    }

    /// Kills and reaps everything but the agent and the fork server, and the fork server as well if
    /// there is no other way.
    pub(crate) fn sweep(&mut self) -> Result<(), Unkillable> {
        let start = Instant::now();
        let mut signalled = HashSet::new();
        for pass in 0.. {
            self.reap(None);
            let others = self.others();
            if others.is_empty() {
                return Ok(());
            }
            let new = others.iter().filter(|pid| signalled.insert(**pid)).count();
            if new > 0 && pass > 3 {
                // They multiply. One call that no fork can outrun, where there is one.
                self.spared = None;
                signal_all();
            }
            for pid in others {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
            // Stopped, it would not reap its own.
            self.signal_spared(Signal::SIGCONT);
            if start.elapsed() > PATIENCE {
                return Err(Unkillable);
            }
            self.wait();
        }
        unreachable!("the loop has no end of its own")
    }

    /// All processes but the agent and the fork server.
    fn others(&self) -> Vec<i32> {
        let mut others = if std::process::id() == 1 {
            processes().filter(|pid| *pid != 1).collect()
        } else {
            descendants()
        };
        others.retain(|pid| Some(*pid) != self.spared.map(Pid::as_raw));
        others
    }
}

impl AsFd for Children {
    /// Readable when a child has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.signals.as_fd()
    }
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

/// A process that is stuck in the kernel holds out this long at most; after it the sandbox is of no
/// use and is better ended.
const PATIENCE: Duration = Duration::from_secs(10);

/// Something survived SIGKILL for longer than the agent waits.
#[derive(Debug, thiserror::Error)]
#[error("processes survive being killed")]
pub(crate) struct Unkillable;

/// Kills and reaps everything but the agent.
pub(crate) fn kill_all() -> Result<(), Unkillable> {
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

/// The numbers of all processes, dead ones that nobody has reaped too.
fn processes() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// All living processes below the agent, which is where orphans come back to (see `start`).
fn descendants() -> Vec<i32> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for pid in processes() {
        let parent = read_stat(pid, |stat| (stat.state != "Z").then_some(stat.parent));
        if let Some(parent) = parent.flatten() {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = vec![];
    let mut queue = vec![std::process::id().cast_signed()];
    while let Some(pid) = queue.pop() {
        for child in children.remove(&pid).unwrap_or_default() {
            found.push(child);
            queue.push(child);
        }
    }
    found
}

/// Reads a short file that the kernel makes up: such files have no size by which a buffer could be
/// chosen, and would be read in many small pieces.
pub(crate) fn read_kernel_file(path: &str) -> Option<String> {
    let mut buffer = [0; 2048];
    let n = fs::File::open(path).ok()?.read(&mut buffer).ok()?;
    // A process may be called anything.
    Some(String::from_utf8_lossy(&buffer[..n]).into_owned())
}

/// Looks at a process; `None` if there is none of that number.
fn read_stat<T>(pid: i32, look: impl FnOnce(Stat<'_>) -> T) -> Option<T> {
    Stat::parse(&read_kernel_file(&format!("/proc/{pid}/stat"))?).map(look)
}

/// What we need of `/proc/<pid>/stat`.
#[derive(Debug, PartialEq, Eq)]
struct Stat<'a> {
    state: &'a str,
    parent: i32,
    threads: u32,
}

impl<'a> Stat<'a> {
    /// The name before them may hold anything, brackets too.
    fn parse(stat: &'a str) -> Option<Self> {
        let mut fields = stat.rsplit_once(") ")?.1.split(' ');
        let state = fields.next()?;
        let parent = fields.next()?.parse().ok()?;
        let threads = fields.nth(15)?.parse().ok()?;
        Some(Self { state, parent, threads })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_may_be_called_anything() {
        let rest = "7 12 12 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 3 0 77 1 2";
        for name in ["a) S 7", "python3", ") R 1 "] {
            let stat = format!("12 ({name}) S {rest}");
            let stat = Stat::parse(&stat).expect("well-formed");
            assert_eq!(stat, Stat { state: "S", parent: 7, threads: 3 });
        }
        assert_eq!(Stat::parse(""), None);
    }
}
