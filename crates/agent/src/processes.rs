//! Ends and reaps all processes that a run has started.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::FileExt,
    },
    process::{Child, Command},
    sync::{LazyLock, OnceLock},
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

use crate::hold::{door::MAX_VISIT, guest::Guest};

/// The only signal that the agent waits for, as a set.
fn child_signal() -> SigSet {
    SigSet::from(Signal::SIGCHLD)
}

/// Blocks the signal that the agent waits for, and the signals for which Rust's runtime has handlers: programs may send
/// them, to PID 1 too, and two at once are too much for the handlers' small stack. A fault of the agent itself still
/// ends it.
///
/// Must run before the first thread starts, because threads inherit the mask. Children would inherit it as well: see
/// [`with_no_signal_blocked`].
pub(crate) fn block_signals() -> nix::Result<()> {
    let handled = SigSet::from_iter([Signal::SIGSEGV, Signal::SIGBUS]);
    (child_signal() | handled).thread_block()
}

/// Starts a child, which inherits the mask of the thread that starts it. A signal that arrives meanwhile does not reach
/// the signalfd, so the caller must check its children again before it waits.
pub(crate) fn with_no_signal_blocked<T>(start: impl FnOnce() -> T) -> nix::Result<T> {
    let mask = SigSet::thread_get_mask()?;
    SigSet::empty().thread_set_mask()?;
    let started = start();
    mask.thread_set_mask()?;
    Ok(started)
}

/// The time zone of all processes that are started, once the server has named one.
static TIMEZONE: OnceLock<String> = OnceLock::new();

/// Sets the time zone of the processes that are started from now on. Only the first call has an effect.
pub(crate) fn set_timezone(name: String) {
    let _ = TIMEZONE.set(name);
}

/// Starts a child with no signal blocked, in the time zone of the sandbox.
pub(crate) fn spawn(command: &mut Command) -> io::Result<Child> {
    command.envs(TIMEZONE.get().map(|name| ("TZ", name)));
    with_no_signal_blocked(|| command.spawn())?
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    Code(i32),
    Signal(i32),
}

/// The result of a `waitpid`.
enum Waited {
    Ended(Pid, Exit),
    NothingYet,
    NoneLeft,
}

/// Reaps one process, if one has ended.
fn wait_for_any() -> Waited {
    let mut status = 0;
    // Not nix's: it has no names for real-time signals, and so loses the process id of a child that one has killed.
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
fn is_stopped_or_dead(child: Pid) -> Option<bool> {
    let look = libc::WSTOPPED | libc::WEXITED | libc::WNOWAIT | libc::WNOHANG;
    let number = child.as_raw().cast_unsigned();
    // Not nix's: for a stopped child, gVisor reports a death by a signal that does not exist.
    #[expect(unsafe_code, reason = "the call writes to what it is given, which outlives it")]
    let (result, pid) = unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let result = libc::waitid(libc::P_PID, number, &raw mut info, look);
        (result, info.si_pid())
    };
    (result == 0).then_some(pid != 0)
}

/// All processes that the agent has started, and their descendants. Only spared processes outlive a run. The one thread
/// that starts processes owns this.
#[derive(Debug)]
pub(crate) struct Children {
    /// Processes that outlive a run, such as a fork server or a kernel, until they have been reaped: after that,
    /// another process may have the process id.
    spared: BTreeSet<Pid>,
    /// The spared processes whose children are spared as well, such as fork servers.
    servers: BTreeSet<Pid>,
    /// The killed process of the last run, until it has been reaped.
    dying: Option<Pid>,
    /// The newest process at the time when only spared processes and at most one more were found. As long as its
    /// process id is the last that was assigned, there are no other processes: while it exists, no other process can
    /// get this id.
    newest: Option<Newest>,
    last: Last,
    /// The process from outside that has brought the stream.
    guest: Guest,
    /// Other processes from outside, and when each was first seen: they may be about to bring a stream.
    visitors: HashMap<i32, Instant>,
    signals: SignalFd,
}

impl Children {
    pub(crate) fn new(guest: Guest) -> nix::Result<Self> {
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        Ok(Self {
            spared: BTreeSet::new(),
            servers: BTreeSet::new(),
            dying: None,
            newest: None,
            last: Last::open(),
            guest,
            visitors: HashMap::new(),
            signals: SignalFd::with_flags(&child_signal(), flags)?,
        })
    }

    /// Spares a process and the processes that it forks.
    pub(crate) fn spare(&mut self, pid: Pid) {
        self.spared.insert(pid);
        self.servers.insert(pid);
    }

    /// Spares a process, but not the processes that it starts.
    pub(crate) fn keep(&mut self, pid: Pid) {
        self.spared.insert(pid);
    }

    /// No longer spares the processes that a spared process starts.
    pub(crate) fn trust_no_longer(&mut self, pid: Pid) {
        self.servers.remove(&pid);
    }

    /// No longer spares a process: it belongs to a run from now on.
    pub(crate) fn release(&mut self, pid: Pid) {
        self.spared.remove(&pid);
        self.newest = self.newest.map(|newest| Newest { besides: Some(pid), ..newest });
    }

    /// Stops a spared process with all its threads, and waits until it has stopped, or is dead. Returns false if that
    /// takes too long.
    pub(crate) fn hold(&self, pid: Pid) -> bool {
        self.signal_spared(pid, Signal::SIGSTOP);
        self.has_stopped(pid, HOLD_TIMEOUT)
    }

    /// Stops spared processes, as [`hold`](Self::hold) does, even if one continues another meanwhile. Returns false if
    /// that is not certain.
    pub(crate) fn hold_all(&self, pids: &[Pid]) -> bool {
        (0..3).any(|_| {
            let held = pids.iter().filter(|pid| self.is_spared(**pid)).all(|pid| self.hold(*pid));
            held && pids.iter().all(|pid| self.is_still(*pid))
        })
    }

    /// Whether a process has stopped, or is dead.
    fn is_still(&self, child: Pid) -> bool {
        !self.is_spared(child) || self.has_stopped(child, Duration::ZERO)
    }

    /// Whether a process is spared and still exists.
    pub(crate) fn is_spared(&self, pid: Pid) -> bool {
        self.spared.contains(&pid)
    }

    /// Sends a signal to a spared process, if it still exists.
    pub(crate) fn signal_spared(&self, pid: Pid, signal: Signal) {
        if self.is_spared(pid) {
            let _ = kill(pid, signal);
        }
    }

    /// Kills a process that was spared until now, if it still exists.
    pub(crate) fn kill_spared(&mut self, pid: Pid) {
        self.signal_spared(pid, Signal::SIGKILL);
        self.forget(pid);
        self.newest = None;
    }

    fn forget(&mut self, pid: Pid) {
        self.spared.remove(&pid);
        self.servers.remove(&pid);
    }

    /// Reaps the processes that have ended, and returns how `main` ended, if it is among them.
    pub(crate) fn reap(&mut self, main: Option<Pid>) -> Option<Exit> {
        self.forget_signals();
        let mut found = None;
        while let Waited::Ended(pid, exit) = wait_for_any() {
            if Some(pid) == main {
                found = Some(exit);
            }
            self.forget(pid);
            self.dying.take_if(|dying| *dying == pid);
        }
        found
    }

    /// Stops a program that says it is done, with all its threads, and the spared processes `beside` it, which it may
    /// have continued. Returns false if that is not certain, or if there are other processes; then
    /// [`sweep`](Self::sweep) is needed. The program is not killed yet, because freeing its memory may take longer than
    /// it ran.
    pub(crate) fn stop(&mut self, main: Pid, beside: &[Pid]) -> bool {
        let _ = kill(main, Signal::SIGSTOP);
        // In this order: until the program has stopped, it may be in a fork whose child is not visible yet.
        self.has_stopped(main, STOP_TIMEOUT)
            && self.hold_all(beside)
            && (beside.is_empty() || self.has_stopped(main, Duration::ZERO))
            && self.is_only(Some(main))
    }

    /// Ends a run and all processes that it has started, and stops the spared processes `beside` it, which it may have
    /// continued.
    pub(crate) fn end_run(&mut self, beside: &[Pid]) -> Result<(), Unkillable> {
        self.sweep()?;
        // Until the sweep, a process that is dead now may have continued them again.
        if !(beside.is_empty() || self.hold_all(beside) && self.is_only(None)) {
            self.sweep()?;
        }
        Ok(())
    }

    /// The ids of all processes, by which a [new child](Self::is_new_child) is recognized later.
    pub(crate) fn seen() -> Vec<i32> {
        processes().unwrap_or_default()
    }

    /// Whether a process is a child of the agent that is not spared, and not among the processes `seen` before.
    pub(crate) fn is_new_child(&self, pid: Pid, seen: &[i32]) -> bool {
        !self.is_spared(pid)
            && !seen.contains(&pid.as_raw())
            && read_stat(pid.as_raw(), |stat| stat.parent) == Some(std::process::id().cast_signed())
    }

    /// Waits until all threads of a child have stopped, or it is dead. Returns false if that takes too long, for
    /// example if a thread is the parent of a `vfork`.
    fn has_stopped(&self, child: Pid, timeout: Duration) -> bool {
        let until = Instant::now() + timeout;
        loop {
            self.forget_signals();
            match is_stopped_or_dead(child) {
                Some(false) => {}
                Some(true) => return true,
                None => return false,
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let mut fds = [PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)];
            let _ = poll(&mut fds, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX));
        }
    }

    /// Kills a stopped process, and does not wait for its death. A signal such as that of its own timer may have
    /// continued it: the processes that it has forked since are ended as well.
    pub(crate) fn let_die(&mut self, stopped: Pid) -> Result<(), Unkillable> {
        let _ = kill(stopped, Signal::SIGKILL);
        self.dying = Some(stopped);
        // No fork succeeds once SIGKILL is pending.
        let only = self.is_only(Some(stopped));
        // Another process will get its process id.
        self.newest = None;
        if only { Ok(()) } else { self.sweep() }
    }

    /// Discards pending signals. The caller must then check for the changes that they may have reported.
    fn forget_signals(&self) {
        while let Ok(Some(_)) = self.signals.read_signal() {}
    }

    /// Waits for the death of the process that [`let_die`](Self::let_die) has killed, so that the next run does not see
    /// it.
    pub(crate) fn wait_for_the_dying(&mut self) {
        let start = Instant::now();
        while self.dying.is_some() && start.elapsed() < KILL_TIMEOUT {
            self.wait();
            self.reap(None);
        }
    }

    /// Waits until a child ends, for 2 ms at most: not all processes that end are the agent's to reap.
    fn wait(&self) {
        let mut fds = [PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)];
        let _ = poll(&mut fds, PollTimeout::from(2u8));
    }

    /// Whether there is certainly no process except the agent, this one, the spared ones, and those that these have
    /// forked for themselves.
    pub(crate) fn is_only(&mut self, pid: Option<Pid>) -> bool {
        if let Some(Newest { number, besides }) = self.newest
            && (besides.is_none() || besides == pid)
            && (pid == Some(number) || self.is_spared(number))
            && self.last.pid() == Some(number)
        {
            return true;
        }
        // A process that a fork server has forked may end while it is examined: then look again.
        let only = (0..3).find_map(|_| {
            let others = self.others();
            let unknown = others.pids.iter().filter(|other| Some(Pid::from_raw(**other)) != pid);
            let parents = unknown.map(|other| read_stat(*other, |stat| stat.parent));
            if others.complete { are_of(parents, &self.servers) } else { Some(false) }
        });
        let known = |number: &Pid| Some(*number) == pid || self.is_spared(*number);
        self.newest = self
            .last
            .pid()
            .filter(|number| only == Some(true) && known(number))
            .map(|number| Newest { number, besides: pid });
        only == Some(true)
    }

    /// Kills and reaps all processes except the agent and the spared ones, and these as well if there is no other way.
    /// May leave a kernel stopped.
    pub(crate) fn sweep(&mut self) -> Result<(), Unkillable> {
        let start = Instant::now();
        self.newest = None;
        let mut signalled = HashSet::new();
        for pass in 0u32.. {
            self.reap(None);
            let others = self.others();
            if others.pids.is_empty() && others.complete {
                return Ok(());
            }
            let new = others.pids.iter().filter(|pid| signalled.insert(**pid)).count();
            if (new > 0 || !others.complete) && pass > 3 {
                // The processes multiply. If this is PID 1, one call signals all of them, which no fork can outrun.
                if pass < MAX_PASSES {
                    signal_all(Signal::SIGSTOP);
                } else {
                    self.spared.clear();
                    self.servers.clear();
                    signal_all(Signal::SIGKILL);
                }
            }
            for pid in others.pids {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
            // A stopped fork server would not reap its children.
            for server in &self.servers {
                let _ = kill(*server, Signal::SIGCONT);
            }
            if start.elapsed() > KILL_TIMEOUT {
                return Err(Unkillable);
            }
            self.wait();
        }
        unreachable!("the loop has no end of its own")
    }

    /// All processes except the agent, its guest, the spared ones, dead ones that a kernel has not reaped, and those
    /// that have just come from outside.
    fn others(&mut self) -> Listing {
        let mut others = if std::process::id() == 1 { self.everyone() } else { descendants() };
        let is_spared = |pid: i32| self.is_spared(Pid::from_raw(pid));
        let has_kernels = self.spared.len() > self.servers.len();
        let is_of_kernel = |pid: i32| {
            has_kernels
                && read_stat(pid, |stat| stat.is_dead() && is_spared(stat.parent)) == Some(true)
        };
        others.pids.retain(|pid| !is_spared(*pid) && !is_of_kernel(*pid) && !self.guest.is(*pid));
        self.spare_visitors(&mut others.pids);
        others
    }

    /// Removes the processes that may be about to bring a stream, each for [`MAX_VISIT`] at most. Each process of the
    /// user's has a parent in here, and none can look into a process that was started to bring a stream.
    fn spare_visitors(&mut self, pids: &mut Vec<i32>) {
        let is_from_outside = |pid: &i32| parent_of(Pid::from_raw(*pid)) == Some(0);
        let outside: HashSet<i32> = pids.iter().copied().filter(is_from_outside).collect();
        self.visitors.retain(|pid, _| outside.contains(pid));
        pids.retain(|pid| {
            let is_visitor = outside.contains(pid)
                && self.visitors.entry(*pid).or_insert_with(Instant::now).elapsed() < MAX_VISIT;
            !is_visitor
        });
    }

    /// All processes of the container except the agent, including dead ones that are not reaped.
    ///
    /// They are listed by rising process id. A process that forks and ends all the time is found as its successor,
    /// whose id is higher; but not if the ids start again from the lowest.
    fn everyone(&self) -> Listing {
        let last = self.last.pid();
        let Ok(mut pids) = processes() else { return Listing::default() };
        pids.retain(|pid| *pid != 1);
        Listing { pids, complete: self.last.pid() == last }
    }
}

impl AsFd for Children {
    /// Readable when a child has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.signals.as_fd()
    }
}

/// Reaps the processes that have ended; returns true if there is nothing left to reap.
fn reap_ended() -> bool {
    loop {
        match wait_for_any() {
            Waited::Ended(..) => {}
            Waited::NothingYet => return false,
            Waited::NoneLeft => return true,
        }
    }
}

/// Time limit for a program to stop. It needs microseconds, but also a processor for them; a program that takes longer
/// is killed and waited for.
const STOP_TIMEOUT: Duration = Duration::from_millis(10);

/// Time limit for a kernel to stop: it must not be lost because no processor is free.
const HOLD_TIMEOUT: Duration = Duration::from_secs(1);

/// Number of passes in which a sweep stops all processes before it kills those that are left; after that it kills the
/// spared ones, too.
const MAX_PASSES: u32 = 200;

/// Longest time that a process which is stuck in the kernel may survive SIGKILL; after that the sandbox is of no use
/// and is ended.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// A process survived SIGKILL for longer than the agent waits.
#[derive(Debug, thiserror::Error)]
#[error("processes survive being killed")]
pub(crate) struct Unkillable;

/// Kills and reaps all processes except the agent.
pub(crate) fn kill_all() -> Result<(), Unkillable> {
    let start = Instant::now();
    loop {
        let any = signal_all(Signal::SIGKILL);
        let none_left = reap_ended();
        if !any && none_left {
            return Ok(());
        }
        if start.elapsed() > KILL_TIMEOUT {
            return Err(Unkillable);
        }
        // The dying processes need the processor more than this loop does.
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Sends a signal to all processes except the agent; returns false if there are none.
fn signal_all(signal: Signal) -> bool {
    if std::process::id() == 1 {
        // One call that no fork can outrun.
        return kill(Pid::from_raw(-1), signal) != Err(Errno::ESRCH);
    }
    let descendants = descendants();
    for pid in &descendants.pids {
        let _ = kill(Pid::from_raw(*pid), signal);
    }
    !(descendants.pids.is_empty() && descendants.complete)
}

/// The state when only spared processes and at most one more were found.
#[derive(Debug, Clone, Copy)]
struct Newest {
    /// The process id that was assigned last, of a process that was found.
    number: Pid,
    /// The process besides the spared ones.
    besides: Option<Pid>,
}

/// Processes that were found.
#[derive(Debug, Default, PartialEq, Eq)]
struct Listing {
    pids: Vec<i32>,
    /// Whether there are certainly no more.
    complete: bool,
}

/// Whether all processes with these parents are children of the spared ones; `None` if one has ended, so that its
/// parent is unknown. A run cannot have made such a process: a process whose parent ends becomes a child of the agent.
fn are_of(parents: impl IntoIterator<Item = Option<i32>>, spared: &BTreeSet<Pid>) -> Option<bool> {
    let mut own = true;
    for parent in parents {
        own &= spared.contains(&Pid::from_raw(parent?));
    }
    Some(own)
}

/// Reads the id that the container assigned last to a new process or thread.
#[derive(Debug)]
struct Last(Option<File>);

impl Last {
    fn open() -> Self {
        // Outside a container it would be that of the whole machine.
        Self((std::process::id() == 1).then(|| File::open("/proc/loadavg").ok()).flatten())
    }

    /// The id; `None` if the kernel does not tell.
    fn pid(&self) -> Option<Pid> {
        last_pid(&pread_kernel_file(self.0.as_ref()?)?)
    }
}

/// The last id in `/proc/loadavg`. gVisor says 0 at all times.
fn last_pid(loadavg: &str) -> Option<Pid> {
    let last = loadavg.trim_end().rsplit(' ').next()?.parse().ok()?;
    (last > 0).then(|| Pid::from_raw(last))
}

/// The ids of all processes, including dead ones that are not reaped.
fn processes() -> io::Result<Vec<i32>> {
    let mut pids = vec![];
    for entry in fs::read_dir("/proc")? {
        pids.extend(entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok()));
    }
    Ok(pids)
}

/// All living descendants of the agent, which orphans return to (see `start`).
fn descendants() -> Listing {
    let Ok(processes) = processes() else { return Listing::default() };
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for pid in processes {
        let parent = read_stat(pid, |stat| (!stat.is_dead()).then_some(stat.parent));
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
    Listing { pids: found, complete: true }
}

/// Reads a short file that the kernel generates: such files have no size by which a buffer could be chosen, and would
/// be read in many small pieces.
pub(crate) fn read_kernel_file(path: &str) -> Option<String> {
    pread_kernel_file(&File::open(path).ok()?)
}

/// Does what [`read_kernel_file`] does, with an open file.
pub(crate) fn pread_kernel_file(file: &File) -> Option<String> {
    let mut buffer = [0; 4096];
    let n = file.read_at(&mut buffer, 0).ok()?;
    // The name of a process may contain any bytes.
    Some(String::from_utf8_lossy(&buffer[..n]).into_owned())
}

/// Resident memory of a process, in bytes, and how much of it belongs neither to a file nor to shared memory.
pub(crate) fn memory_of(pid: Pid) -> Option<(u64, u64)> {
    let status = read_kernel_file(&format!("/proc/{pid}/status"))?;
    let field = |name: &str| -> Option<u64> {
        let rest = status.lines().find_map(|line| line.strip_prefix(name))?;
        rest.trim().strip_suffix(" kB")?.parse().ok()
    };
    Some((field("VmRSS:")? << 10, field("RssAnon:")? << 10))
}

/// Whether a process is about to die, though it has not closed its files yet: freeing a large one takes a while. If the
/// kernel does not tell (gVisor), false until it is dead.
pub(crate) fn is_doomed(pid: Pid) -> bool {
    is_doomed_by(pid, &[])
}

/// Does what [`is_doomed`] does, for a process that ends by these signals although it catches them.
pub(crate) fn is_doomed_by(pid: Pid, fatal: &[Signal]) -> bool {
    let status = read_kernel_file(&format!("/proc/{pid}/status"));
    let is_killed = status.is_none_or(|status| has_deadly_pending(&status, fatal));
    is_killed || read_stat(pid.as_raw(), |stat| stat.is_exiting()) != Some(false)
}

/// Whether `/proc/<pid>/status` shows a pending signal that will end the process: a stopped one ends when it is
/// continued.
fn has_deadly_pending(status: &str, fatal: &[Signal]) -> bool {
    let mask = |name| {
        let mask = status.lines().find_map(|line| line.strip_prefix(name));
        mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
    };
    let bit = |signal: Signal| 1u64 << (signal as i32 - 1);
    let harmless = [
        Signal::SIGCHLD,
        Signal::SIGCONT,
        Signal::SIGURG,
        Signal::SIGWINCH,
        Signal::SIGSTOP,
        Signal::SIGTSTP,
        Signal::SIGTTIN,
        Signal::SIGTTOU,
    ];
    let harmless = harmless.into_iter().map(bit).fold(0, |all, one| all | one);
    let handled = mask("SigBlk:") | mask("SigIgn:") | mask("SigCgt:") | harmless;
    let pending = mask("SigPnd:") | mask("ShdPnd:");
    let fatal = fatal.iter().copied().map(bit).fold(bit(Signal::SIGKILL), |all, one| all | one);
    pending & (!handled | fatal) != 0
}

/// Sets how soon the system kills a process when memory runs out. The score is at least the agent's own: a lower one is
/// not permitted, and the agent must not be killed first.
pub(crate) fn set_oom_score(pid: Pid, score: u32) {
    if let Ok(file) = oom_score_of(pid) {
        write_oom_score(&file, score);
    }
}

/// Opens the file for the score of a process, which can be written even when the process is no longer dumpable.
pub(crate) fn oom_score_of(pid: Pid) -> io::Result<File> {
    OpenOptions::new().write(true).open(format!("/proc/{pid}/oom_score_adj"))
}

/// Does what [`set_oom_score`] does, with an open file.
pub(crate) fn write_oom_score(mut file: &File, score: u32) {
    static OWN: LazyLock<u32> = LazyLock::new(|| {
        let own = read_kernel_file("/proc/self/oom_score_adj");
        own.and_then(|own| own.trim().parse().ok()).unwrap_or(0)
    });
    let _ = file.write_all(score.max(*OWN).to_string().as_bytes());
}

/// Reads `/proc/<pid>/stat` of a process; `None` if there is no process with this id.
fn read_stat<T>(pid: i32, look: impl FnOnce(Stat<'_>) -> T) -> Option<T> {
    Stat::parse(&read_kernel_file(&format!("/proc/{pid}/stat"))?).map(look)
}

/// The parent of a process; 0 if that is outside the container.
pub(crate) fn parent_of(pid: Pid) -> Option<i32> {
    read_stat(pid.as_raw(), |stat| stat.parent)
}

/// The fields of `/proc/<pid>/stat` that the agent needs.
#[derive(Debug, PartialEq, Eq)]
struct Stat<'a> {
    state: &'a str,
    parent: i32,
    flags: u32,
    threads: u32,
}

impl<'a> Stat<'a> {
    /// Whether the process runs no more and only waits to be reaped. If only the main thread has ended, others still
    /// run.
    fn is_dead(&self) -> bool {
        self.state == "Z" && self.threads <= 1
    }

    /// Whether it runs no more code of its own (`PF_EXITING`), or is dead.
    fn is_exiting(&self) -> bool {
        const PF_EXITING: u32 = 4;
        self.flags & PF_EXITING != 0 || matches!(self.state, "Z" | "X")
    }

    /// Parses the fields after the name, which may contain anything, brackets too.
    fn parse(stat: &'a str) -> Option<Self> {
        let mut fields = stat.rsplit_once(") ")?.1.split(' ');
        let state = fields.next()?;
        let parent = fields.next()?.parse().ok()?;
        // The 9th and the 20th field, counted from 1 and with the process id and the name.
        let flags = fields.nth(4)?.parse().ok()?;
        let threads = fields.nth(10)?.parse().ok()?;
        Some(Self { state, parent, flags, threads })
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::Read,
        process::{Command, Stdio},
        sync::{Mutex, MutexGuard, PoisonError},
    };

    use super::*;

    /// A lock for each test that has children: children are found by their parent, which all tests share.
    fn alone() -> MutexGuard<'static, ()> {
        static ALONE: Mutex<()> = Mutex::new(());
        ALONE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[test]
    fn a_process_may_be_called_anything() {
        let rest = "7 12 12 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 3 0 77 1 2";
        for name in ["a) S 7", "sh", ") R 1 "] {
            let stat = format!("12 ({name}) S {rest}");
            let stat = Stat::parse(&stat).expect("well-formed");
            assert_eq!(stat, Stat { state: "S", parent: 7, flags: 4_194_560, threads: 3 });
            assert!(!stat.is_dead() && !stat.is_exiting());
        }
        assert_eq!(Stat::parse(""), None);
    }

    #[test]
    fn a_process_is_dead_when_its_last_thread_is() {
        let is_dead = |state: &str, threads: u32| {
            let stat = format!(
                "12 (sh) {state} 7 12 12 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 {threads} 0 77 1 2"
            );
            Stat::parse(&stat).expect("well-formed").is_dead()
        };
        assert!(is_dead("Z", 1) && is_dead("Z", 0));
        assert!(!is_dead("Z", 2), "the main thread has ended, and another goes on");
        assert!(!is_dead("T", 1));
    }

    #[test]
    fn a_process_that_was_killed_is_doomed_before_it_is_dead() {
        let _alone = alone();
        let mut command = Command::new("sleep");
        let mut child = command.arg("1000").spawn().expect("sleep runs");
        let pid = Pid::from_raw(child.id().cast_signed());
        assert!(!is_doomed(pid));
        kill(pid, Signal::SIGTERM).expect("sent");
        assert!(is_doomed(pid));
        child.wait().expect("it is a child");
        assert!(is_doomed(pid), "it is gone");
    }

    #[test]
    fn a_stopped_process_is_doomed_by_what_waits_for_it() {
        let status = |pending: u64, blocked: u64, caught: u64| {
            format!(
                "SigPnd:\t0000000000000000\nShdPnd:\t{pending:016x}\nSigBlk:\t{blocked:016x}\n\
                 SigIgn:\t0000000000000000\nSigCgt:\t{caught:016x}\n"
            )
        };
        let (kill, term, child) = (1 << 8, 1 << 14, 1 << 16);
        assert!(has_deadly_pending(&status(term, 0, 0), &[]));
        assert!(has_deadly_pending(&status(kill, 0, 0), &[]));
        assert!(!has_deadly_pending(&status(0, 0, 0), &[]));
        assert!(!has_deadly_pending(&status(child, 0, 0), &[]));
        assert!(!has_deadly_pending(&status(term, term, 0), &[]));
        assert!(!has_deadly_pending(&status(term, 0, term), &[]));
        assert!(has_deadly_pending(&status(term, 0, term), &[Signal::SIGTERM]));
    }

    #[test]
    fn a_program_counts_as_stopped_if_it_is_all_that_is_left() {
        let _alone = alone();
        let mut children = Children::new(Guest::default()).expect("a signalfd");
        let start = |code: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", code]).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = command.spawn().expect("sh runs");
            // The program says when it has begun.
            let mut said = [0];
            child.stdout.as_mut().expect("piped").read_exact(&mut said).expect("said");
            (Pid::from_raw(child.id().cast_signed()), child)
        };
        // A busy machine may need more than one time limit to stop it.
        let stops = |children: &mut Children, pid| (0..500).any(|_| children.stop(pid, &[]));
        let (lonely, _child) = start("echo; read never");
        assert!(stops(&mut children, lonely));
        assert_eq!(read_stat(lonely.as_raw(), |stat| stat.state == "T"), Some(true));
        children.let_die(lonely).expect("it dies");
        children.wait_for_the_dying();
        assert_eq!(children.dying, None);

        let (parent, _child) = start("sleep 1000 & echo; wait");
        assert!(!children.stop(parent, &[]), "it has a child");
        children.sweep().expect("both die");
        assert!(children.is_only(None));

        let (dead, _child) = start("echo");
        assert!(stops(&mut children, dead), "it has ended by itself, or is stopped before that");
        children.sweep().expect("it dies");
    }

    #[test]
    fn the_last_number_is_the_last_of_its_line() {
        assert_eq!(last_pid("0.61 0.61 0.55 3/828 22084\n"), Some(Pid::from_raw(22084)));
        assert_eq!(last_pid("0.00 0.00 0.00 0/0 0\n"), None);
        assert_eq!(last_pid(""), None);
    }

    #[test]
    fn only_what_the_fork_server_forked_is_its_own() {
        let spared = |pids: &[i32]| pids.iter().map(|pid| Pid::from_raw(*pid)).collect();
        let (none, one, two) = (spared(&[]), spared(&[7]), spared(&[7, 8]));
        assert_eq!(are_of([], &none), Some(true));
        assert_eq!(are_of([Some(7), Some(7)], &one), Some(true));
        assert_eq!(are_of([Some(7), Some(8)], &two), Some(true));
        assert_eq!(are_of([Some(7), Some(1)], &one), Some(false));
        assert_eq!(are_of([Some(8)], &one), Some(false));
        assert_eq!(are_of([Some(7)], &none), Some(false));
        assert_eq!(are_of([Some(7), None], &one), None);
    }

    #[test]
    fn those_that_are_spared_outlive_a_sweep_and_end_each_by_itself() {
        let _alone = alone();
        let mut children = Children::new(Guest::default()).expect("a signalfd");
        let start = || {
            let mut command = Command::new("sleep");
            let child = command.arg("1000").spawn().expect("sleep runs");
            (Pid::from_raw(child.id().cast_signed()), child)
        };
        let lives = |pid: Pid| read_stat(pid.as_raw(), |stat| stat.state != "Z") == Some(true);
        let ((one, _one), (other, _other), (third, _third)) = (start(), start(), start());
        children.spare(one);
        children.spare(other);
        children.sweep().expect("the third dies");
        assert!(children.is_only(None));
        assert_eq!([one, other, third].map(lives), [true, true, false]);
        assert!(children.is_spared(one) && children.is_spared(other));
        children.kill_spared(one);
        children.sweep().expect("it dies as well");
        assert_eq!([one, other].map(lives), [false, true]);
        assert!(!children.is_spared(one) && children.is_spared(other));
        children.kill_spared(other);
        children.sweep().expect("all are gone");
        assert!(!lives(other));
    }
}
