//! How much memory this sandbox has, and how often the kernel has killed for it.

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
    let Some(limit) = limit() else { return true };
    let is_enough = |used: Option<u64>| used.is_none_or(|used| limit.saturating_sub(used) >= bytes);
    // The first is quicker to read, and more than is in use.
    is_enough(total()) || is_enough(in_use())
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
    ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"]
        .iter()
        .find_map(|path| read_kernel_file(path)?.trim().parse().ok())
}

fn working_set(usage: &str, stat: &str, idle: &str) -> Option<u64> {
    let usage: u64 = usage.trim().parse().ok()?;
    Some(usage.saturating_sub(field(stat, idle).unwrap_or(0)))
}

fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
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
    fn what_the_kernel_could_take_back_is_not_in_use() {
        let stat = "inactive_file 30\ntotal_cache 70\ntotal_inactive_file 40\n";
        assert_eq!(working_set("100\n", stat, "inactive_file"), Some(70));
        assert_eq!(working_set("100\n", stat, "total_inactive_file"), Some(60));
        assert_eq!(working_set("20\n", stat, "inactive_file"), Some(0));
        assert_eq!(working_set("100\n", "", "inactive_file"), Some(100));
        assert_eq!(working_set("max\n", stat, "inactive_file"), None);
    }
}
