//! Giving up rights: afterwards the process can only compute, and use the descriptors that are open.
//!
//! ```text
//! limits     no core dumps, no access of other processes to its memory; memory, files and descriptors are limited
//! privileges no capabilities, and no way to gain any by running a program
//! landlock   no opening of files, no ports to connect to or listen on, no signals to other processes, if the kernel
//!            supports it
//! seccomp    only system calls for memory, own threads, time, random numbers, and descriptors that are open
//! ```
//!
//! If there are datasets, Landlock allows to read files and folders beneath theirs, and seccomp to open files in the
//! ways of the [gate](crate::files::Gate), to read links that are open so, and to read folders.
//!
//! A guest has no system calls at all. This limits the damage if the engine itself has a bug.

use std::io;

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, Ruleset, RulesetAttr,
    RulesetCreatedAttr, Scope,
};
use nix::{
    libc,
    sys::{
        prctl,
        resource::{Resource, setrlimit},
        signal::{SigSet, Signal},
    },
};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, apply_filter,
};

use crate::files::{Datasets, Gate};

/// Maximum number of descriptors that the agent may have open beside those of datasets: its own, and those of long
/// outputs.
const MAX_DESCRIPTORS: u64 = 64;

/// Gives up all rights that the agent does not need. Must be called before there is a second thread, as later threads
/// inherit the restrictions. `most_memory` is in bytes, as is `most_file`, which limits each file that it has open.
/// Files of `datasets` can still be read.
pub(crate) fn lock_down(most_memory: u64, most_file: u64, datasets: &Datasets) -> io::Result<()> {
    // Relative paths of a system call without a folder start here. No process needs another place.
    if let Some(root) = datasets.roots().next() {
        nix::unistd::fchdir(root)?;
    }
    prctl::set_dumpable(false)?;
    prctl::set_no_new_privs()?;
    for (resource, most) in [
        (Resource::RLIMIT_CORE, 0),
        (Resource::RLIMIT_NOFILE, MAX_DESCRIPTORS + datasets.most_descriptors()),
        (Resource::RLIMIT_DATA, most_memory),
        (Resource::RLIMIT_FSIZE, most_file),
    ] {
        setrlimit(resource, most, most)?;
    }
    // A write beyond the limit of a file fails, instead of ending the process by a signal.
    SigSet::from(Signal::SIGXFSZ).thread_block()?;
    drop_capabilities()?;
    restrict(datasets)
}

/// Restricts this thread, and those that it starts, to the system calls and files that are needed.
pub(crate) fn restrict(datasets: &Datasets) -> io::Result<()> {
    restrict_files(datasets).map_err(io::Error::other)?;
    for filter in filters(datasets.gate()).map_err(io::Error::other)? {
        apply_filter(&filter).map_err(io::Error::other)?;
    }
    Ok(())
}

/// Gives up all capabilities of this thread.
pub(crate) fn drop_capabilities() -> io::Result<()> {
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
    Ok(())
}

/// Denies access to files and ports, if the kernel supports that. Files and folders of datasets can be read.
fn restrict_files(datasets: &Datasets) -> Result<(), landlock::RulesetError> {
    let abi = ABI::V6;
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(abi))?
        .handle_access(AccessNet::from_all(abi))?
        .scope(Scope::from_all(abi))?
        .create()?;
    for root in datasets.roots() {
        rules = rules.add_rule(PathBeneath::new(root, AccessFs::ReadFile | AccessFs::ReadDir))?;
    }
    rules.restrict_self()?;
    Ok(())
}

/// The filters of system calls. Calls that are not allowed fail with EPERM, and `clone3` with ENOSYS. Files can be opened
/// through the gate only.
fn filters(gate: Option<&Gate>) -> Result<[BpfProgram; 2], seccompiler::BackendError> {
    let arch = std::env::consts::ARCH.try_into()?;
    let thread = SeccompCondition::new(
        0,
        SeccompCmpArgLen::Qword,
        SeccompCmpOp::MaskedEq(CLONE_THREAD),
        CLONE_THREAD,
    )?;
    let mut rules: std::collections::BTreeMap<_, _> =
        ALLOWED.iter().map(|call| (*call, vec![])).collect();
    rules.insert(libc::SYS_clone, vec![SeccompRule::new(vec![thread])?]);
    let own = SeccompCondition::new(
        0,
        SeccompCmpArgLen::Dword,
        SeccompCmpOp::Eq,
        std::process::id().into(),
    )?;
    rules.insert(libc::SYS_tgkill, vec![SeccompRule::new(vec![own])?]);
    // Only to name threads and memory. Other options could give back rights.
    let options = [libc::PR_SET_NAME, libc::PR_SET_VMA].map(|option| {
        let option = u64::from(option.unsigned_abs());
        let is_it = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, option)?;
        SeccompRule::new(vec![is_it])
    });
    rules.insert(libc::SYS_prctl, options.into_iter().collect::<Result<_, _>>()?);
    // Only to free the disk space of a state that was replaced.
    let hole = u64::from((libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE).unsigned_abs());
    let is_hole = SeccompCondition::new(1, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, hole)?;
    rules.insert(libc::SYS_fallocate, vec![SeccompRule::new(vec![is_hole])?]);
    // Only to find out which pages of its own memory were written.
    let ioctls = [crate::memory::PAGEMAP_SCAN, crate::memory::UFFDIO_REGISTER].map(|number| {
        let is_it = SeccompCondition::new(1, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, number)?;
        SeccompRule::new(vec![is_it])
    });
    rules.insert(libc::SYS_ioctl, ioctls.into_iter().collect::<Result<_, _>>()?);
    if let Some(gate) = gate {
        let is = |arg, value| {
            SeccompCondition::new(arg, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, value)
        };
        let way = |way| SeccompRule::new(vec![is(2, way)?, is(3, Gate::SIZE_OF_WAY)?]);
        let ways = gate.ways().into_iter().map(way);
        rules.insert(libc::SYS_openat2, ways.collect::<Result<_, _>>()?);
        // With an empty path it reads a link that is open, and nothing else.
        rules.insert(libc::SYS_readlinkat, vec![SeccompRule::new(vec![is(1, gate.nothing())?])?]);
        // Only folders that are open.
        rules.insert(libc::SYS_getdents64, vec![]);
    }
    // Its flags are in memory, which a filter cannot read. ENOSYS makes the C library use the older `clone`.
    rules.insert(libc::SYS_clone3, vec![]);
    let (refuse, allow) = (SeccompAction::Errno(libc::EPERM.unsigned_abs()), SeccompAction::Allow);
    let allowed = SeccompFilter::new(rules, refuse, allow.clone(), arch)?;
    let not_there = SeccompAction::Errno(libc::ENOSYS.unsigned_abs());
    let clone3 = [(libc::SYS_clone3, vec![])].into();
    let no_clone3 = SeccompFilter::new(clone3, allow, not_there, arch)?;
    Ok([no_clone3.try_into()?, allowed.try_into()?])
}

const CLONE_THREAD: u64 = libc::CLONE_THREAD as u64;

/// System calls that are allowed without a condition.
const ALLOWED: &[libc::c_long] = &[
    // Memory of this process only.
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_membarrier,
    // Descriptors that are open, and descriptors of memory.
    libc::SYS_read,
    libc::SYS_pread64,
    libc::SYS_readv,
    libc::SYS_write,
    libc::SYS_pwrite64,
    libc::SYS_writev,
    libc::SYS_lseek,
    libc::SYS_close,
    libc::SYS_fstat,
    libc::SYS_ppoll,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    libc::SYS_memfd_create,
    libc::SYS_ftruncate,
    libc::SYS_fdatasync,
    libc::SYS_flock,
    // Threads: start, wait, end.
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_exit,
    libc::SYS_exit_group,
    // Signals, by which the engine receives faults of guests and its own.
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_restart_syscall,
    // Time and random numbers.
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_getrandom,
];

#[cfg(test)]
mod tests {
    use std::thread;

    use nix::{
        errno::Errno,
        unistd::{Pid, getpid, gettid},
    };

    use super::*;

    #[test]
    fn no_signal_reaches_another_process_and_no_right_comes_back() {
        // Filters apply to the thread that installs them.
        let locked = thread::spawn(|| {
            for filter in filters(None).expect("filters") {
                apply_filter(&filter).expect("put on");
            }
            let deliver = |process: Pid, thread: Pid| {
                let (process, thread) = (process.as_raw(), thread.as_raw());
                #[expect(unsafe_code, reason = "no safe function reaches other processes")]
                // SAFETY: only numbers are passed, and signal 0 has no effect.
                let sent = unsafe { libc::syscall(libc::SYS_tgkill, process, thread, 0) };
                Errno::result(sent).map(drop)
            };
            let init = Pid::from_raw(1);
            let sent = (deliver(getpid(), gettid()), deliver(init, init));
            (sent, prctl::set_dumpable(true), prctl::set_name(c"named"))
        });
        let (sent, dumpable, name) = locked.join().expect("it ends");
        assert_eq!(sent, (Ok(()), Err(Errno::EPERM)));
        assert_eq!((dumpable, name), (Err(Errno::EPERM), Ok(())));
    }
}
