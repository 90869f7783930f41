//! The server that a container belongs to, and whether it still runs.

use std::fs;

use sandbox_container::Owner;

use crate::Life;

/// The owner for this process.
pub(super) fn current() -> Owner {
    let pid = std::process::id();
    Owner { pid, started: started(pid).unwrap_or(0), ..here() }
}

/// Whether an owner is alive. This is known only within the same boot and the same PID namespace; for an owner on
/// another machine, of another boot or in another PID namespace it is unknown.
pub(super) fn life(owner: &Owner) -> Life {
    let here = here();
    let same_place = !here.boot.is_empty()
        && !here.pid_namespace.is_empty()
        && (&here.boot, &here.pid_namespace) == (&owner.boot, &owner.pid_namespace);
    match started(owner.pid) {
        _ if !same_place => Life::Unknown,
        Some(started) if started == owner.started => Life::Alive,
        _ => Life::Dead,
    }
}

fn here() -> Owner {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    let digits = |text: &str| text.chars().filter(char::is_ascii_digit).collect();
    Owner {
        boot: boot.trim().to_owned(),
        pid_namespace: digits(&namespace.to_string_lossy()),
        pid: 0,
        started: 0,
    }
}

/// The start time of a process, field 22 of `/proc/<pid>/stat`; `None` if there is no such process or it is a zombie.
fn started(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in brackets and may contain spaces and brackets.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?;
    if matches!(state, "Z" | "X") { None } else { fields.nth(18)?.parse().ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_read_back_from_its_label() {
        let owner = current();
        assert_eq!(owner.to_string().parse(), Ok(owner));
    }

    #[test]
    fn only_a_death_that_can_be_proved_counts() {
        let alive = current();
        assert_eq!(life(&alive), Life::Alive);
        assert_eq!(life(&Owner { started: alive.started + 1, ..alive.clone() }), Life::Dead);
        for elsewhere in [
            Owner { boot: "another".into(), started: 0, ..alive.clone() },
            Owner { pid_namespace: "1".into(), started: 0, ..alive.clone() },
        ] {
            assert_eq!(life(&elsewhere), Life::Unknown, "{elsewhere}");
        }
    }

    #[test]
    fn a_zombie_is_dead() {
        let mut child = std::process::Command::new("true").spawn().expect("spawned");
        let started_at = started(child.id()).unwrap_or(u64::MAX);
        let owner = Owner { pid: child.id(), started: started_at, ..current() };
        while started(child.id()).is_some() {
            std::thread::yield_now();
        }
        assert_eq!(life(&owner), Life::Dead);
        child.wait().expect("reaped");
    }
}
