//! The memory of this sandbox, and how often the kernel has killed a process because it ran out.

use std::{
    fs::File,
    path::Path,
    sync::{LazyLock, OnceLock},
};

use crate::processes::{pread_kernel_file, read_kernel_file};

/// A file of the control group. It stays open: a cell reads several of them, some more than once, and opening one takes
/// longer than reading it.
type GroupFile = LazyLock<Option<File>>;

static EVENTS: GroupFile = LazyLock::new(|| open("memory.events", "memory.oom_control"));
static USAGE: GroupFile = LazyLock::new(|| open("memory.current", "memory.usage_in_bytes"));
static PEAK: GroupFile = LazyLock::new(|| open("memory.peak", "memory.max_usage_in_bytes"));
static STAT: GroupFile = LazyLock::new(|| open("memory.stat", "memory.stat"));
static LIMIT: GroupFile = LazyLock::new(|| open("memory.max", "memory.limit_in_bytes"));

/// Opens the file of cgroup v2, or else the one of v1.
fn open(v2: &str, v1: &str) -> Option<File> {
    let group = Path::new("/sys/fs/cgroup");
    [group.join(v2), group.join("memory").join(v1)].iter().find_map(|path| File::open(path).ok())
}

/// Reads what the file contains now.
fn read(file: &GroupFile) -> Option<String> {
    pread_kernel_file(file.as_ref()?)
}

/// Number of processes killed so far because memory ran out; 0 if the kernel does not report it (gVisor). Compare two
/// values: the agent cannot reset the count.
pub(crate) fn oom_kills() -> u64 {
    read(&EVENTS).and_then(|text| parse(&text)).unwrap_or(0)
}

fn parse(text: &str) -> Option<u64> {
    field(text, "oom_kill")
}

/// Bytes in use, as `docker stats` counts them: without file pages that were not used lately. `None` outside a
/// container, where the count covers other processes as well, or if the kernel does not report it.
pub(crate) fn in_use() -> Option<u64> {
    if std::process::id() != 1 {
        return None;
    }
    working_set(&read(&USAGE)?, &read(&STAT)?)
}

/// The most bytes in use so far, those included that the kernel could reclaim; `None` as of [`in_use`].
pub(crate) fn peak() -> Option<u64> {
    if std::process::id() != 1 {
        return None;
    }
    read(&PEAK)?.trim().parse().ok()
}

/// Whether this number of bytes is free; true if that is not known.
pub(crate) fn has_room(bytes: u64) -> bool {
    let (Some(limit), Some(total)) = (limit(), total()) else { return true };
    let is_enough = |used: u64| limit.saturating_sub(used) >= bytes;
    // The total is quicker to read, and never less than what is in use.
    is_enough(total) || in_use().is_some_and(is_enough)
}

/// Whether more than half of all memory is free; true if that is not known.
pub(crate) fn is_half_free() -> bool {
    limit().is_none_or(|limit| has_room(limit / 2))
}

/// Whether a forked process soon has a copy of most of the memory that it shares: gVisor shares memory in units of 2
/// MiB. The sign of gVisor is that it has no `/proc/self/pagemap`.
pub(crate) fn is_soon_unshared() -> bool {
    static HAS_PAGES: LazyLock<bool> = LazyLock::new(|| Path::new("/proc/self/pagemap").exists());
    !*HAS_PAGES
}

/// Bytes in use, including those that the kernel could reclaim.
fn total() -> Option<u64> {
    read(&USAGE)?.trim().parse().ok()
}

/// Bytes that this sandbox may use; `None` if that is not known, or outside a container.
pub(crate) fn limit() -> Option<u64> {
    static MACHINE: OnceLock<String> = OnceLock::new();
    if std::process::id() != 1 {
        return None;
    }
    let machine = MACHINE.get_or_init(|| read_kernel_file("/proc/meminfo").unwrap_or_default());
    Some(within(read(&LIMIT)?.trim().parse().ok()?, machine))
}

/// The limit of the group, if it has one. Under gVisor it has none: the limit is then the memory of the machine that
/// programs see, less a tenth for gVisor itself.
fn within(limit: u64, machine: &str) -> u64 {
    let all = field(machine, "MemTotal:").map_or(u64::MAX, |kilobytes| kilobytes << 10);
    if limit <= all { limit } else { all / 10 * 9 }
}

/// Usage without inactive file pages. In cgroup v1 the pages of child groups are counted only in the total.
fn working_set(usage: &str, stat: &str) -> Option<u64> {
    let usage: u64 = usage.trim().parse().ok()?;
    let idle = field(stat, "total_inactive_file").or_else(|| field(stat, "inactive_file"));
    Some(usage.saturating_sub(idle.unwrap_or(0)))
}

fn field(text: &str, name: &str) -> Option<u64> {
    let value = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok();
    text.lines().map(|line| line.trim_end_matches(" kB")).find_map(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_cgroup_versions_are_read() {
        assert_eq!(parse("low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n"), Some(2));
        assert_eq!(parse("oom_kill_disable 0\nunder_oom 0\noom_kill 7\n"), Some(7));
        assert_eq!(parse("max 12\n"), None);
    }

    #[test]
    fn a_limit_is_no_more_than_the_machine_has() {
        let machine = "MemTotal:         524288 kB\nMemFree:          521200 kB\n";
        assert_eq!(within(100 << 20, machine), 100 << 20);
        assert_eq!(within(512 << 20, machine), 512 << 20);
        assert_eq!(within(i64::MAX as u64, machine), (512 << 20) / 10 * 9);
    }

    #[test]
    fn what_the_kernel_could_take_back_is_not_in_use() {
        let old = "inactive_file 30\ntotal_cache 70\ntotal_inactive_file 40\n";
        assert_eq!(working_set("100\n", "inactive_file 30\n"), Some(70));
        assert_eq!(working_set("100\n", old), Some(60));
        assert_eq!(working_set("20\n", old), Some(0));
        assert_eq!(working_set("100\n", ""), Some(100));
        assert_eq!(working_set("max\n", old), None);
    }
}
