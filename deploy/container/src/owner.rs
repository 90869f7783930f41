//! The owner of a container: one run of one server, in a form by which another server on the same machine can check
//! whether it is still running.

use std::{fmt, fs, str::FromStr};

/// One run of a server. Process ids are reused, so the start time is included; they are unique only within one boot of
/// one machine and one PID namespace, so these are included, too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// Id of the machine's boot.
    pub boot: String,
    /// Number of the PID namespace.
    pub pid_namespace: String,
    /// Process id.
    pub pid: u32,
    /// Start time of the process, in clock ticks since boot.
    pub started: u64,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v1/{}/{}/{}/{}", self.boot, self.pid_namespace, self.pid, self.started)
    }
}

impl Owner {
    /// The owner for this process.
    pub fn current() -> Self {
        let pid = std::process::id();
        Self { pid, started: started(pid).unwrap_or(0), ..here() }
    }

    /// Whether the owner is alive. This is known only within the same boot and the same PID namespace; for an owner on
    /// another machine, of another boot or in another PID namespace it is `None`.
    pub fn is_alive(&self) -> Option<bool> {
        let here = here();
        let same_place = !here.boot.is_empty()
            && !here.pid_namespace.is_empty()
            && (&here.boot, &here.pid_namespace) == (&self.boot, &self.pid_namespace);
        same_place.then(|| started(self.pid) == Some(self.started))
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

/// The error that a text is not an owner in a form that this program knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an owner")]
pub struct UnknownForm;

impl FromStr for Owner {
    type Err = UnknownForm;

    fn from_str(text: &str) -> Result<Self, UnknownForm> {
        let parts: Vec<&str> = text.split('/').collect();
        let ["v1", boot, pid_namespace, pid, started] = parts[..] else { return Err(UnknownForm) };
        Ok(Self {
            boot: boot.to_owned(),
            pid_namespace: pid_namespace.to_owned(),
            pid: pid.parse().map_err(|_| UnknownForm)?,
            started: started.parse().map_err(|_| UnknownForm)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_read_back_from_its_label() {
        let owner = Owner { boot: "a-b".into(), pid_namespace: "1".into(), pid: 2, started: 3 };
        assert_eq!(owner.to_string().parse(), Ok(owner));
        assert_eq!("v2/a/b/1/2".parse::<Owner>(), Err(UnknownForm));
        assert_eq!("".parse::<Owner>(), Err(UnknownForm));
    }

    #[test]
    fn this_process_is_read_back_from_its_label() {
        let owner = Owner::current();
        assert_eq!(owner.to_string().parse(), Ok(owner));
    }

    #[test]
    fn only_a_death_that_can_be_proved_counts() {
        let alive = Owner::current();
        assert_eq!(alive.is_alive(), Some(true));
        let reused = Owner { started: alive.started + 1, ..alive.clone() };
        assert_eq!(reused.is_alive(), Some(false));
        for elsewhere in [
            Owner { boot: "another".into(), started: 0, ..alive.clone() },
            Owner { pid_namespace: "1".into(), started: 0, ..alive.clone() },
        ] {
            assert_eq!(elsewhere.is_alive(), None, "{elsewhere}");
        }
    }

    #[test]
    fn a_zombie_is_dead() {
        let mut child = std::process::Command::new("true").spawn().expect("spawned");
        let started_at = started(child.id()).unwrap_or(u64::MAX);
        let owner = Owner { pid: child.id(), started: started_at, ..Owner::current() };
        while started(child.id()).is_some() {
            std::thread::yield_now();
        }
        assert_eq!(owner.is_alive(), Some(false));
        child.wait().expect("reaped");
    }
}
