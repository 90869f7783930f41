//! How much memory this sandbox has, and how often the kernel has killed for it.

use std::{path::Path, sync::LazyLock};

use crate::processes::read_kernel_file;

/// Processes killed so far; 0 where the kernel does not tell (gVisor). Only differences mean
/// anything: the count is not ours to reset.
pub(crate) fn oom_kills() -> u64 {
    // cgroup v2, then v1.
    ["/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"]
        .iter()
        .find_map(|path| parse(&read_kernel_file(path)?))
        .unwrap_or(0)
}

fn parse(text: &str) -> Option<u64> {
    field(text, "oom_kill")
}

/// Bytes in use, as `docker stats` counts them: without file pages that nobody has touched lately.
/// None outside a container of its own, where the count is everybody's, or where the kernel does not
/// tell.
pub(crate) fn in_use() -> Option<u64> {
    if std::process::id() != 1 {
        return None;
    }
    // cgroup v2, then v1, where a child group's pages are counted in the total alone.
    [
        ["/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat", "inactive_file"],
        [
            "/sys/fs/cgroup/memory/memory.usage_in_bytes",
            "/sys/fs/cgroup/memory/memory.stat",
            "total_inactive_file",
        ],
    ]
    .iter()
    .find_map(|[usage, stat, idle]| {
        working_set(&read_kernel_file(usage)?, &read_kernel_file(stat)?, idle)
    })
}

/// Whether so many bytes are free; true where that is not known.
pub(crate) fn has_room(bytes: u64) -> bool {
    let (Some(limit), Some(total)) = (limit(), total()) else { return true };
    let is_enough = |used: u64| limit.saturating_sub(used) >= bytes;
    // The first is quicker to read, and more than is in use.
    is_enough(total) || in_use().is_some_and(is_enough)
}

/// Whether more than half of all memory is free; true where that is not known.
pub(crate) fn is_half_free() -> bool {
    limit().is_none_or(|limit| has_room(limit / 2))
}

/// Whether a process soon has most of its memory for itself that was shared when it was forked: gVisor shares
/// memory by units of 2 MiB, and has nothing that tells of pages.
pub(crate) fn is_soon_unshared() -> bool {
    static HAS_PAGES: LazyLock<bool> = LazyLock::new(|| Path::new("/proc/self/pagemap").exists());
    !*HAS_PAGES
}

/// Bytes in use, with what the kernel could take back.
fn total() -> Option<u64> {
    ["/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory/memory.usage_in_bytes"]
        .iter()
        .find_map(|path| read_kernel_file(path)?.trim().parse().ok())
}

/// Bytes that this sandbox may use; None if that is not known, or outside a container of its own.
pub(crate) fn limit() -> Option<u64> {
    if std::process::id() != 1 {
        return None;
    }
    let limit = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"]
        .iter()
        .find_map(|path| read_kernel_file(path)?.trim().parse().ok());
    Some(within(limit?, &read_kernel_file("/proc/meminfo")?))
}

/// The limit as it is where the group says what it is; under gVisor it says that there is none, the limit is all
/// the memory of the machine that programs see, and gVisor itself needs a part of it.
fn within(limit: u64, machine: &str) -> u64 {
    let all = field(machine, "MemTotal:").map_or(u64::MAX, |kilobytes| kilobytes << 10);
    if limit <= all { limit } else { all / 10 * 9 }
}

fn working_set(usage: &str, stat: &str, idle: &str) -> Option<u64> {
    let usage: u64 = usage.trim().parse().ok()?;
    Some(usage.saturating_sub(field(stat, idle).unwrap_or(0)))
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
        let stat = "inactive_file 30\ntotal_cache 70\ntotal_inactive_file 40\n";
        assert_eq!(working_set("100\n", stat, "inactive_file"), Some(70));
        assert_eq!(working_set("100\n", stat, "total_inactive_file"), Some(60));
        assert_eq!(working_set("20\n", stat, "inactive_file"), Some(0));
        assert_eq!(working_set("100\n", "", "inactive_file"), Some(100));
        assert_eq!(working_set("max\n", stat, "inactive_file"), None);
    }
}
