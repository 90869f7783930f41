//! How often the kernel has killed for memory in this sandbox.

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
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
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
}
