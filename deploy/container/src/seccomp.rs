//! The system calls that a container may make: a profile, of which a part depends on the host.

use serde_json::{Value, json};

/// Docker's default profile without calls that a data program does not need, and with sockets by a list of families,
/// types and protocols. The file has a reason for each rule.
const PROFILE: &str = include_str!("../../../sandbox-image/seccomp.json");

const AF_INET: u64 = 2;
const AF_INET6: u64 = 10;
const EAFNOSUPPORT: u64 = 97;

/// The profile for containers, as one line of JSON. If the memory of internet sockets is not counted, programs get
/// none, because they could hold uncounted memory: AF_INET and AF_INET6 fail as in a kernel without them. The memory of
/// AF_UNIX sockets is always counted.
pub(crate) fn profile(allows_internet_sockets: bool) -> String {
    let mut profile: Value = serde_json::from_str(PROFILE).expect("the embedded profile is JSON");
    let rules = profile["syscalls"].as_array_mut().expect("the embedded profile has rules");
    if !allows_internet_sockets {
        rules.retain(|rule| !is_of_internet_sockets(rule));
        rules.extend([AF_INET, AF_INET6].map(|family| {
            json!({
                "names": ["socket"],
                "action": "SCMP_ACT_ERRNO",
                "errnoRet": EAFNOSUPPORT,
                "args": [{ "index": 0, "value": family, "op": "SCMP_CMP_EQ" }],
            })
        }));
    }
    // The profile is sent with every create request; comments are only for readers of the file.
    for rule in rules {
        rule.as_object_mut().expect("a rule is an object").remove("comment");
    }
    profile.to_string()
}

fn is_of_internet_sockets(rule: &Value) -> bool {
    let family = &rule["args"][0];
    rule["names"] == json!(["socket"])
        && family["op"] == "SCMP_CMP_EQ"
        && [AF_INET, AF_INET6].iter().any(|known| family["value"] == *known)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The calls that the agent, Python 3.13 with NumPy, pandas and PyArrow, and Node 24 were seen to make on arm64 (under QEMU):
    /// starting, importing the libraries, files of every kind, processes, threads, queues, timers, sockets of their own.
    const MADE: &str = "bind brk capget chdir clock_getres clock_gettime clock_nanosleep clone close close_range copy_file_range \
        dup3 epoll_create1 epoll_ctl epoll_pwait eventfd2 execve exit exit_group faccessat fadvise64 fallocate \
        fchmod fchmodat fchown fcntl fdatasync flock fstat fsync ftruncate futex getcwd getdents64 getegid \
        geteuid getgid getgroups getpeername getpgid getpid getppid getpriority getrandom getrusage getsid \
        getsockname gettid gettimeofday getuid getxattr ioctl kill linkat listxattr lseek madvise mkdirat mknodat \
        mmap mprotect mremap msync munmap newfstatat openat pipe2 ppoll prctl pread64 prlimit64 pselect6 pwrite64 \
        read readlinkat recvfrom renameat rseq rt_sigaction rt_sigprocmask rt_sigreturn sched_getaffinity \
        sched_getparam sched_getscheduler sendfile sendto set_robust_list set_tid_address setitimer setpriority \
        setsockopt setxattr shutdown socket socketpair statfs statx symlinkat sysinfo times truncate umask uname \
        unlinkat utimensat wait4 write";

    /// The calls that the C library makes in their place on x86-64, in addition.
    const ON_X86_64_ALONE: &str = "access alarm arch_prctl chmod chown creat dup2 epoll_create epoll_wait eventfd fork \
        futimesat getdents getpgrp lchown link lstat mkdir open pause pipe poll readlink rename rmdir select signalfd stat \
        symlink time unlink utime utimes vfork";

    /// The calls that the engine allows on a processor, by its name in profiles, if only with some arguments.
    fn allowed(profile: &Value, processor: &str) -> BTreeSet<String> {
        let names = |list: &Value| -> Vec<String> {
            let names = list.as_array().into_iter().flatten();
            names.filter_map(|name| Some(name.as_str()?.to_owned())).collect()
        };
        let rules = profile["syscalls"].as_array().expect("rules").iter();
        let rules = rules.filter(|rule| {
            let (only, but) =
                (names(&rule["includes"]["arches"]), names(&rule["excludes"]["arches"]));
            let has = |list: &[String]| list.iter().any(|name| name == processor);
            rule["action"] == "SCMP_ACT_ALLOW" && (only.is_empty() || has(&only)) && !has(&but)
        });
        rules.flat_map(|rule| names(&rule["names"])).collect()
    }

    #[test]
    fn programs_may_make_on_each_processor_the_calls_that_they_make_there() {
        for counted in [true, false] {
            let profile = parsed(counted);
            let (x86_64, arm64) = (allowed(&profile, "amd64"), allowed(&profile, "arm64"));
            for call in MADE.split_whitespace() {
                assert!(x86_64.contains(call) && arm64.contains(call), "{call}");
            }
            for call in ON_X86_64_ALONE.split_whitespace() {
                assert!(x86_64.contains(call), "{call}");
            }
            assert!(!arm64.contains("arch_prctl"));
        }
    }

    #[test]
    fn a_processor_differs_from_another_in_nothing_but_calls_of_its_own_c_library() {
        let profile = parsed(true);
        let (x86_64, arm64) = (allowed(&profile, "amd64"), allowed(&profile, "arm64"));
        let only = |these: &BTreeSet<String>, others| -> Vec<String> {
            these.difference(others).cloned().collect()
        };
        assert_eq!(only(&x86_64, &arm64), ["arch_prctl"]);
        assert_eq!(
            only(&arm64, &x86_64),
            [
                "arm_fadvise64_64",
                "arm_sync_file_range",
                "breakpoint",
                "cacheflush",
                "set_tls",
                "sync_file_range2"
            ]
        );
    }

    #[test]
    fn each_processor_of_the_profile_has_its_own_calls_alone() {
        // The engine adds the 32-bit calls of a processor if they are named, and those have other numbers.
        for entry in parsed(true)["archMap"].as_array().expect("processors") {
            assert_eq!(entry["subArchitectures"], json!([]), "{entry}");
        }
    }

    fn parsed(counts_internet_sockets: bool) -> Value {
        serde_json::from_str(&profile(counts_internet_sockets)).expect("JSON")
    }

    /// The actions of the rules for sockets whose family is exactly this.
    fn actions(profile: &Value, family: u64) -> Vec<&str> {
        let rules = profile["syscalls"].as_array().expect("rules").iter();
        let of_family = rules.filter(|rule| {
            rule["names"] == json!(["socket"])
                && rule["args"][0]["op"] == "SCMP_CMP_EQ"
                && rule["args"][0]["value"] == family
        });
        of_family.map(|rule| rule["action"].as_str().expect("an action")).collect()
    }

    #[test]
    fn the_profile_refuses_by_default() {
        for counted in [true, false] {
            assert_eq!(parsed(counted)["defaultAction"], "SCMP_ACT_ERRNO");
        }
    }

    #[test]
    fn internet_sockets_are_there_only_where_their_memory_is_counted() {
        let (counted, uncounted) = (parsed(true), parsed(false));
        for family in [AF_INET, AF_INET6] {
            let allowed =
                actions(&counted, family).iter().filter(|a| **a == "SCMP_ACT_ALLOW").count();
            assert_eq!(allowed, 4, "two types with two protocols each");
            assert_eq!(actions(&uncounted, family), ["SCMP_ACT_ERRNO"]);
        }
        assert_eq!(actions(&counted, 1), ["SCMP_ACT_ALLOW"; 3]);
        assert_eq!(actions(&uncounted, 1), ["SCMP_ACT_ALLOW"; 3]);
    }

    #[test]
    fn what_counts_for_the_whole_host_is_not_allowed() {
        let profile = parsed(true);
        let rules = profile["syscalls"].as_array().expect("rules").iter();
        let allowed = rules.filter(|rule| rule["action"] == "SCMP_ACT_ALLOW");
        let names: Vec<_> =
            allowed.flat_map(|rule| rule["names"].as_array().expect("names")).collect();
        for call in ["io_setup", "io_submit", "sync", "syncfs", "inotify_init1", "io_uring_setup"] {
            assert!(!names.iter().any(|name| **name == call), "{call}");
        }
    }
}
