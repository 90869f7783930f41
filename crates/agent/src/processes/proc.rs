//! The state of processes, as `/proc` shows it.

use std::{
    collections::HashMap,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::FileExt,
    sync::LazyLock,
    time::Duration,
};

use nix::{
    sys::signal::Signal,
    unistd::{Pid, SysconfVar, sysconf},
};

/// Processes that were found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Listing {
    pub(super) pids: Vec<i32>,
    /// Whether the list is certainly complete.
    pub(super) complete: bool,
}

/// Reads the id that the container assigned last to a new process or thread.
#[derive(Debug)]
pub(super) struct Last(Option<File>);

impl Last {
    pub(super) fn open() -> Self {
        // Outside a container, this would be the last id of the whole machine.
        Self((std::process::id() == 1).then(|| File::open("/proc/loadavg").ok()).flatten())
    }

    /// The id; `None` if the kernel does not report it.
    pub(super) fn pid(&self) -> Option<Pid> {
        last_pid(&pread_kernel_file(self.0.as_ref()?)?)
    }
}

/// The last id in `/proc/loadavg`. gVisor says 0 at all times.
fn last_pid(loadavg: &str) -> Option<Pid> {
    let last = loadavg.trim_end().rsplit(' ').next()?.parse().ok()?;
    (last > 0).then(|| Pid::from_raw(last))
}

/// The ids of all processes, including dead ones that are not reaped.
pub(super) fn processes() -> io::Result<Vec<i32>> {
    let mut pids = vec![];
    for entry in fs::read_dir("/proc")? {
        pids.extend(entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok()));
    }
    Ok(pids)
}

/// All living descendants of the agent, which orphans return to (see `start`).
pub(super) fn descendants() -> Listing {
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

/// Processor time of the agent and its descendants, those included that have ended.
pub(crate) fn processor_time() -> Option<Duration> {
    let per_second = u64::try_from(sysconf(SysconfVar::CLK_TCK).ok()??).ok()?;
    let all = descendants().pids.into_iter().chain([std::process::id().cast_signed()]);
    let ticks: u64 = all.filter_map(|pid| read_stat(pid, |stat| stat.ticks)).sum();
    Some(Duration::from_millis(ticks * 1000 / per_second))
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
/// kernel does not report that (gVisor), false until the process is dead.
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
pub(super) fn read_stat<T>(pid: i32, look: impl FnOnce(Stat<'_>) -> T) -> Option<T> {
    Stat::parse(&read_kernel_file(&format!("/proc/{pid}/stat"))?).map(look)
}

/// The parent of a process; 0 if that is outside the container.
pub(crate) fn parent_of(pid: Pid) -> Option<i32> {
    read_stat(pid.as_raw(), |stat| stat.parent)
}

/// Processor time of a process and of its children that have ended, in ticks of the clock.
pub(super) fn ticks_of(pid: Pid) -> Option<u64> {
    read_stat(pid.as_raw(), |stat| stat.ticks)
}

/// Whether a thread of a process has neither stopped nor ended.
pub(super) fn has_running_thread(pid: Pid) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads
        .filter_map(|thread| read_kernel_file(thread.path().join("stat").to_str()?))
        .any(|stat| Stat::parse(&stat).is_some_and(|it| !matches!(it.state, "T" | "t" | "Z" | "X")))
}

/// The fields of `/proc/<pid>/stat` that the agent needs.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Stat<'a> {
    pub(super) state: &'a str,
    pub(super) parent: i32,
    flags: u32,
    /// Processor time of the process and of its children that have ended, in ticks of the clock.
    ticks: u64,
    threads: u32,
}

impl<'a> Stat<'a> {
    /// Whether the process runs no more and only waits to be reaped. If only the main thread has ended, others still
    /// run.
    pub(super) fn is_dead(&self) -> bool {
        self.state == "Z" && self.threads <= 1
    }

    /// Whether the process runs no more code of its own (`PF_EXITING`), or is dead.
    fn is_exiting(&self) -> bool {
        const PF_EXITING: u32 = 4;
        self.flags & PF_EXITING != 0 || matches!(self.state, "Z" | "X")
    }

    /// Parses the fields after the name, which may contain anything, brackets too.
    fn parse(stat: &'a str) -> Option<Self> {
        let mut fields = stat.rsplit_once(") ")?.1.split(' ');
        let state = fields.next()?;
        let parent = fields.next()?.parse().ok()?;
        // The 9th, the 14th to 17th and the 20th field, counted from 1 and with the process id and the name.
        let flags = fields.nth(4)?.parse().ok()?;
        let times: Vec<u64> =
            fields.by_ref().skip(4).take(4).map_while(|field| field.parse().ok()).collect();
        let threads = fields.nth(2)?.parse().ok()?;
        Some(Self { state, parent, flags, ticks: times.iter().sum(), threads })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_may_be_called_anything() {
        let rest = "7 12 12 0 -1 4194560 1 0 0 0 5 6 7 8 20 0 3 0 77 1 2";
        for name in ["a) S 7", "sh", ") R 1 "] {
            let stat = format!("12 ({name}) S {rest}");
            let stat = Stat::parse(&stat).expect("well-formed");
            let expected = Stat { state: "S", parent: 7, flags: 4_194_560, ticks: 26, threads: 3 };
            assert_eq!(stat, expected);
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
    fn the_last_number_is_the_last_of_its_line() {
        assert_eq!(last_pid("0.61 0.61 0.55 3/828 22084\n"), Some(Pid::from_raw(22084)));
        assert_eq!(last_pid("0.00 0.00 0.00 0/0 0\n"), None);
        assert_eq!(last_pid(""), None);
    }
}
