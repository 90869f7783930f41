//! Ends and reaps all processes that a run has started.

pub(crate) mod open_files;
mod proc;
mod wait;

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    io,
    os::fd::{AsFd, BorrowedFd},
    process::{Child, Command},
    sync::OnceLock,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        signal::{SigSet, Signal, kill},
        signalfd::{SfdFlags, SignalFd},
    },
    unistd::Pid,
};

pub(crate) use self::proc::{
    is_doomed, is_doomed_by, memory_of, oom_score_of, parent_of, pread_kernel_file, processor_time,
    read_kernel_file, set_oom_score, write_oom_score,
};
pub(crate) use self::wait::Exit;
use self::{
    proc::{Last, Listing, descendants, has_running_thread, processes, read_stat, ticks_of},
    wait::{Waited, is_stopped_or_dead, reap_ended, wait_for_any},
};
use crate::{
    gate,
    hold::{connector::Connector, door::MAX_VISIT},
};

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

/// The name of the socket over which programs call tools, if they may.
static TOOLS: OnceLock<String> = OnceLock::new();

/// Sets the name of that socket for the processes that are started from now on.
pub(crate) fn set_tools(name: String) {
    let _ = TOOLS.set(name);
}

/// Sets the time zone of the processes that are started from now on. Only the first call has an effect.
pub(crate) fn set_timezone(name: String) {
    let _ = TIMEZONE.set(name);
}

/// Starts a child with no signal blocked, in the time zone of the sandbox.
pub(crate) fn spawn(command: &mut Command) -> io::Result<Child> {
    command.envs(TIMEZONE.get().map(|name| ("TZ", name)));
    command.envs(TOOLS.get().map(|name| (gate::VARIABLE, name)));
    with_no_signal_blocked(|| command.spawn())?
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
    /// The newest process when the last full search found nothing unexpected. While it exists and the kernel has
    /// assigned no other process id since, no search is needed.
    newest: Option<Newest>,
    last: Last,
    /// The process from outside that has connected the stream.
    connector: Connector,
    /// Other processes from outside, and when each was first seen: they may be about to connect a stream.
    visitors: HashMap<i32, Instant>,
    signals: SignalFd,
}

impl Children {
    pub(crate) fn new(connector: Connector) -> nix::Result<Self> {
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        Ok(Self {
            spared: BTreeSet::new(),
            servers: BTreeSet::new(),
            dying: None,
            newest: None,
            last: Last::open(),
            connector,
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

    /// Stops spared processes, as [`hold`](Self::hold) does, even if one of them continues another meanwhile. Returns
    /// false if not all have certainly stopped.
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

    /// Stops a run's main process and all other processes of the run, and adds them to `paused`. Returns false if one
    /// of those that were stopped before has run since, or new ones appear all the time. The caller must check its
    /// children after that.
    pub(crate) fn pause(&mut self, main: Pid, paused: &mut Stopped) -> bool {
        let (before, mut is_still) = (paused.pids.clone(), true);
        for _ in 0..MAX_PAUSES {
            let others = self.others();
            let all: BTreeSet<_> =
                others.pids.into_iter().map(Pid::from_raw).chain([main]).collect();
            let running: Vec<_> =
                all.iter().copied().filter(|pid| self.is_running(*pid, main)).collect();
            if running.is_empty() && others.complete {
                // A process can be continued by a timer of its own, and stop itself before anybody looks.
                let ticks = all.iter().filter_map(|pid| ticks_of(*pid)).sum();
                let before = paused.ticks.replace(ticks);
                return is_still && before.is_none_or(|before| before == ticks);
            }
            for pid in running {
                is_still &= !before.contains(&pid);
                paused.pids.insert(pid);
                let _ = kill(pid, Signal::SIGSTOP);
            }
            self.wait();
            self.forget_signals();
        }
        false
    }

    /// Whether a process of the run of this main process has neither stopped nor ended.
    fn is_running(&self, pid: Pid, main: Pid) -> bool {
        read_stat(pid.as_raw(), |stat| {
            let is_of_server = self.servers.contains(&Pid::from_raw(stat.parent));
            // The first thread may have ended before the others.
            let runs = match stat.state {
                "T" | "t" | "X" => false,
                "Z" => !stat.is_dead() && has_running_thread(pid),
                _ => true,
            };
            runs && (pid == main || !is_of_server)
        })
        .unwrap_or(false)
    }

    /// Continues the processes that [`pause`](Self::pause) has stopped.
    pub(crate) fn go_on(paused: Stopped) {
        for pid in paused.pids {
            let _ = kill(pid, Signal::SIGCONT);
        }
    }

    /// Ends a run and all processes that it has started, and stops the spared processes `beside` it, which it may have
    /// continued.
    pub(crate) fn end_run(&mut self, beside: &[Pid]) {
        self.sweep();
        // Until the sweep, a process that is dead now may have continued them again.
        if !(beside.is_empty() || self.hold_all(beside) && self.is_only(None)) {
            self.sweep();
        }
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
    pub(crate) fn let_die(&mut self, stopped: Pid) {
        let _ = kill(stopped, Signal::SIGKILL);
        self.dying = Some(stopped);
        // No fork succeeds once SIGKILL is pending.
        let only = self.is_only(Some(stopped));
        // Another process will get its process id.
        self.newest = None;
        if !only {
            self.sweep();
        }
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
    /// May leave a kernel stopped. Ends the sandbox if a process survives.
    pub(crate) fn sweep(&mut self) {
        let start = Instant::now();
        self.newest = None;
        let mut signalled = HashSet::new();
        for pass in 0u32.. {
            self.reap(None);
            let others = self.others();
            if others.pids.is_empty() && others.complete {
                return;
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
                // A process that survives would run beside the next run.
                eprintln!("agent: processes survive being killed");
                std::process::exit(70);
            }
            self.wait();
        }
    }

    /// All processes except the agent, its connector, the spared ones, dead ones that a kernel has not reaped, and those
    /// that have just come from outside.
    fn others(&mut self) -> Listing {
        let mut others = if std::process::id() == 1 { self.everyone() } else { descendants() };
        let is_spared = |pid: i32| self.is_spared(Pid::from_raw(pid));
        let has_kernels = self.spared.len() > self.servers.len();
        let is_of_kernel = |pid: i32| {
            has_kernels
                && read_stat(pid, |stat| stat.is_dead() && is_spared(stat.parent)) == Some(true)
        };
        others
            .pids
            .retain(|pid| !is_spared(*pid) && !is_of_kernel(*pid) && !self.connector.is(*pid));
        self.spare_visitors(&mut others.pids);
        others
    }

    /// Removes the processes that may be about to connect a stream, each for [`MAX_VISIT`] at most. User code cannot
    /// hide among them: each process of the user's has a parent in the sandbox, and no process can look into one that
    /// was started to connect a stream.
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

/// Time limit for a program to stop. It needs microseconds, but also a processor for them; a program that takes longer
/// is killed and waited for.
const STOP_TIMEOUT: Duration = Duration::from_millis(10);

/// The processes of a run that a pause has stopped.
#[derive(Debug, Default)]
pub(crate) struct Stopped {
    pids: BTreeSet<Pid>,
    /// Processor time of all of the run's processes when they had stopped.
    ticks: Option<u64>,
}

/// Number of looks for processes that a pause must stop: a signal takes a moment to do so.
const MAX_PAUSES: u32 = 200;

/// Time limit for a kernel to stop: it must not be lost because no processor is free.
const HOLD_TIMEOUT: Duration = Duration::from_secs(1);

/// Number of passes in which a sweep stops all processes before it kills those that are left; after that it kills the
/// spared ones, too.
const MAX_PASSES: u32 = 200;

/// Longest time that a process which is stuck in the kernel may survive SIGKILL; after that the sandbox is of no use
/// and is ended.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// Kills and reaps all processes except the agent.
pub(crate) fn kill_all() {
    let start = Instant::now();
    loop {
        let any = signal_all(Signal::SIGKILL);
        let none_left = reap_ended();
        if !any && none_left || start.elapsed() > KILL_TIMEOUT {
            return;
        }
        // The dying processes need the processor more than this loop does.
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Sends a signal to all processes except the agent; returns false if there are none.
fn signal_all(signal: Signal) -> bool {
    if std::process::id() == 1 {
        // One call signals all processes, and no fork can outrun it.
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

/// Whether all processes with these parents are children of the spared ones; `None` if one has ended, so that its
/// parent is unknown. A run cannot have made such a process: a process whose parent ends becomes a child of the agent.
fn are_of(parents: impl IntoIterator<Item = Option<i32>>, spared: &BTreeSet<Pid>) -> Option<bool> {
    let mut own = true;
    for parent in parents {
        own &= spared.contains(&Pid::from_raw(parent?));
    }
    Some(own)
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
    fn a_program_counts_as_stopped_if_it_is_all_that_is_left() {
        let _alone = alone();
        let mut children = Children::new(Connector::default()).expect("a signalfd");
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
        children.let_die(lonely);
        children.wait_for_the_dying();
        assert_eq!(children.dying, None);

        let (parent, _child) = start("sleep 1000 & echo; wait");
        assert!(!children.stop(parent, &[]), "it has a child");
        children.sweep();
        assert!(children.is_only(None));

        let (dead, _child) = start("echo");
        assert!(stops(&mut children, dead), "it has ended by itself, or is stopped before that");
        children.sweep();
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
        let mut children = Children::new(Connector::default()).expect("a signalfd");
        let start = || {
            let mut command = Command::new("sleep");
            let child = command.arg("1000").spawn().expect("sleep runs");
            (Pid::from_raw(child.id().cast_signed()), child)
        };
        let lives = |pid: Pid| read_stat(pid.as_raw(), |stat| stat.state != "Z") == Some(true);
        let ((one, _one), (other, _other), (third, _third)) = (start(), start(), start());
        children.spare(one);
        children.spare(other);
        children.sweep();
        assert!(children.is_only(None));
        assert_eq!([one, other, third].map(lives), [true, true, false]);
        assert!(children.is_spared(one) && children.is_spared(other));
        children.kill_spared(one);
        children.sweep();
        assert_eq!([one, other].map(lives), [false, true]);
        assert!(!children.is_spared(one) && children.is_spared(other));
        children.kill_spared(other);
        children.sweep();
        assert!(!lives(other));
    }
}
