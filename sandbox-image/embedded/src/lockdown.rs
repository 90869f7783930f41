//! Giving up rights: after this the process can compute, and speak on what it has open, and no more.
//!
//! ```text
//! no core dumps, nobody may look into its memory, a bound on that
//! no capabilities, and no program that could give it any
//! landlock   no file can be opened, no port connected to or listened on, no signal sent to others, where the
//!            kernel has it
//! seccomp    system calls for memory, threads of its own, time, chance, and descriptors that are open
//! ```
//!
//! A guest has no system calls at all. This is for the day on which the engine itself has a fault.

use std::io;

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, Ruleset, RulesetAttr, Scope,
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

/// Descriptors that the agent may have open: its own, and those of long outputs.
const MAX_DESCRIPTORS: u64 = 64;

/// Gives up all rights that the agent does not need. To be called before there is a second thread: what comes
/// later inherits it. `most_memory` is in bytes, as is `most_file`, which bounds each file that it has open.
pub(crate) fn lock_down(most_memory: u64, most_file: u64) -> io::Result<()> {
    prctl::set_dumpable(false)?;
    prctl::set_no_new_privs()?;
    for (resource, most) in [
        (Resource::RLIMIT_CORE, 0),
        (Resource::RLIMIT_NOFILE, MAX_DESCRIPTORS),
        (Resource::RLIMIT_DATA, most_memory),
        (Resource::RLIMIT_FSIZE, most_file),
    ] {
        setrlimit(resource, most, most)?;
    }
    // A file that would become larger is an error, and not the end.
    SigSet::from(Signal::SIGXFSZ).thread_block()?;
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
    restrict_files().map_err(io::Error::other)?;
    for filter in filters().map_err(io::Error::other)? {
        apply_filter(&filter).map_err(io::Error::other)?;
    }
    Ok(())
}

/// No file and no port, as far as the kernel can do that.
fn restrict_files() -> Result<(), landlock::RulesetError> {
    let abi = ABI::V6;
    Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(abi))?
        .handle_access(AccessNet::from_all(abi))?
        .scope(Scope::from_all(abi))?
        .create()?
        .restrict_self()?;
    Ok(())
}

/// The system calls that are left. What is not among them is not permitted (EPERM).
fn filters() -> Result<[BpfProgram; 2], seccompiler::BackendError> {
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
    // Names for its threads and its memory, and nothing that would give it back what it has given up.
    let options = [libc::PR_SET_NAME, libc::PR_SET_VMA].map(|option| {
        let option = u64::from(option.unsigned_abs());
        let is_it = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, option)?;
        SeccompRule::new(vec![is_it])
    });
    rules.insert(libc::SYS_prctl, options.into_iter().collect::<Result<_, _>>()?);
    // To give back the room of a state that was replaced.
    let hole = u64::from((libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE).unsigned_abs());
    let is_hole = SeccompCondition::new(1, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, hole)?;
    rules.insert(libc::SYS_fallocate, vec![SeccompRule::new(vec![is_hole])?]);
    // To be told which pages of its own memory were written.
    let ioctls = [crate::memory::PAGEMAP_SCAN, crate::memory::UFFDIO_REGISTER].map(|number| {
        let is_it = SeccompCondition::new(1, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, number)?;
        SeccompRule::new(vec![is_it])
    });
    rules.insert(libc::SYS_ioctl, ioctls.into_iter().collect::<Result<_, _>>()?);
    // Its flags lie in memory, where a filter cannot see them: whoever tries it is to use the older call.
    rules.insert(libc::SYS_clone3, vec![]);
    let (refuse, allow) = (SeccompAction::Errno(libc::EPERM.unsigned_abs()), SeccompAction::Allow);
    let allowed = SeccompFilter::new(rules, refuse, allow.clone(), arch)?;
    let not_there = SeccompAction::Errno(libc::ENOSYS.unsigned_abs());
    let clone3 = [(libc::SYS_clone3, vec![])].into();
    let no_clone3 = SeccompFilter::new(clone3, allow, not_there, arch)?;
    Ok([no_clone3.try_into()?, allowed.try_into()?])
}

const CLONE_THREAD: u64 = libc::CLONE_THREAD as u64;

/// Those that need no condition.
const ALLOWED: &[libc::c_long] = &[
    // Memory, of this process alone.
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_membarrier,
    // Descriptors that are open, and memory that is one.
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
    // Threads: to begin, to wait, to end.
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_exit,
    libc::SYS_exit_group,
    // Faults of guests, which are signals to the engine, and of its own.
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_restart_syscall,
    // Time and chance.
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
        // Filters hold for the thread that has put them on.
        let locked = thread::spawn(|| {
            for filter in filters().expect("filters") {
                apply_filter(&filter).expect("put on");
            }
            let deliver = |process: Pid, thread: Pid| {
                let (process, thread) = (process.as_raw(), thread.as_raw());
                #[expect(unsafe_code, reason = "no safe function reaches other processes")]
                // SAFETY: nothing is passed but numbers, and the signal 0 does nothing.
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
