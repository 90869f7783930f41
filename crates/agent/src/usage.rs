//! The resources that this sandbox uses.

use std::{fs, path::Path, time::Duration};

use nix::sys::{
    resource::{UsageWho, getrusage},
    statvfs::statvfs,
    time::TimeValLike,
};
use protocol::message::Pong;

use crate::{memory, places::Places, processes};

/// The resources that are known. Outside a container, where the kernel counts for other processes as well, memory and
/// files are not.
pub(crate) fn usage(places: &Places) -> Pong {
    let space = places.space.as_ref().map(|space| space.bytes());
    Pong {
        memory_bytes: memory::in_use(),
        memory_peak_bytes: memory::peak(),
        cpu_ms: processors().and_then(|time| time.as_millis().try_into().ok()),
        data_bytes: space.or_else(|| bytes_in(&places.data)),
    }
}

/// Processor time of all processes of the container. Outside a container, and if the kernel does not count it (gVisor),
/// that of the agent and its descendants.
fn processors() -> Option<Duration> {
    let group = (std::process::id() == 1).then(group_processors).flatten();
    group.or_else(processes::processor_time)
}

/// Processor time of all processes of the container except the agent, those that have ended included; `None` outside a
/// container, and if the kernel does not count it.
pub(crate) fn of_others() -> Option<Duration> {
    let group = (std::process::id() == 1).then(group_processors).flatten()?;
    let own = getrusage(UsageWho::RUSAGE_SELF).ok()?;
    let own = (own.user_time() + own.system_time()).num_microseconds();
    Some(group.saturating_sub(Duration::from_micros(own.try_into().ok()?)))
}

/// Processor time of the control group: of cgroup v2, or else of v1.
fn group_processors() -> Option<Duration> {
    if let Ok(stat) = fs::read_to_string("/sys/fs/cgroup/cpu.stat") {
        return of_stat(&stat);
    }
    let nanos = fs::read_to_string("/sys/fs/cgroup/cpuacct/cpuacct.usage").ok()?;
    nanos.trim().parse().ok().map(Duration::from_nanos)
}

fn of_stat(stat: &str) -> Option<Duration> {
    let micros = stat.lines().find_map(|line| line.strip_prefix("usage_usec "))?;
    micros.parse().ok().map(Duration::from_micros)
}

/// Bytes of files in an area that is a filesystem of its own; `None` outside a container.
fn bytes_in(area: &Path) -> Option<u64> {
    if std::process::id() != 1 {
        return None;
    }
    let stat = statvfs(area).ok()?;
    Some(stat.blocks().saturating_sub(stat.blocks_free()) * stat.fragment_size())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_read_and_grows() {
        let stat = "usage_usec 1250000\nuser_usec 1000000\nsystem_usec 250000\n";
        assert_eq!(of_stat(stat), Some(Duration::from_millis(1250)));
        assert_eq!(of_stat("nr_periods 0\n"), None);
        let before = processors().expect("known");
        while processors().expect("known") == before {}
    }
}
