//! Who a sandbox belongs to: one run of one server, in a form that another server on the same
//! machine can check for life.

use std::{fmt, fs, str::FromStr};

use crate::backend::Life;

/// One run of a server. Process ids are used again, so the start time is part of it; they mean
/// something only within one boot of one machine and one PID namespace, so these are too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Owner {
    boot: String,
    pid_namespace: String,
    pid: u32,
    /// Clock ticks since boot.
    started: u64,
}

impl Owner {
    /// This process.
    pub(super) fn current() -> Self {
        let pid = std::process::id();
        Self { pid, started: started(pid).unwrap_or(0), ..Self::here() }
    }

    /// Whether it lives. That can be told only from the same place: an owner on another machine, of
    /// another boot or in another PID namespace may or may not.
    pub(super) fn life(&self) -> Life {
        let here = Self::here();
        let same_place = !here.boot.is_empty()
            && !here.pid_namespace.is_empty()
            && (&here.boot, &here.pid_namespace) == (&self.boot, &self.pid_namespace);
        match started(self.pid) {
            _ if !same_place => Life::Unknown,
            Some(started) if started == self.started => Life::Alive,
            _ => Life::Dead,
        }
    }

    fn here() -> Self {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let namespace = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        let digits = |text: &str| text.chars().filter(char::is_ascii_digit).collect();
        Self {
            boot: boot.trim().to_owned(),
            pid_namespace: digits(&namespace.to_string_lossy()),
            pid: 0,
            started: 0,
        }
    }
}

/// Field 22 of `/proc/<pid>/stat`; `None` if there is no such process or it is only a zombie.
fn started(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in brackets, may hold spaces and brackets itself.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?;
    if matches!(state, "Z" | "X") { None } else { fields.nth(18)?.parse().ok() }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v1/{}/{}/{}/{}", self.boot, self.pid_namespace, self.pid, self.started)
    }
}

/// Not an owner in a form that this program knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an owner")]
pub(super) struct UnknownForm;

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
        let owner = Owner::current();
        assert_eq!(owner.to_string().parse(), Ok(owner));
        assert_eq!("v2/a/b/1/2".parse::<Owner>(), Err(UnknownForm));
        assert_eq!("".parse::<Owner>(), Err(UnknownForm));
    }

    #[test]
    fn only_a_death_that_can_be_proved_counts() {
        let alive = Owner::current();
        assert_eq!(alive.life(), Life::Alive);
        assert_eq!(Owner { started: alive.started + 1, ..alive.clone() }.life(), Life::Dead);
        for elsewhere in [
            Owner { boot: "another".into(), started: 0, ..alive.clone() },
            Owner { pid_namespace: "1".into(), started: 0, ..alive.clone() },
        ] {
            assert_eq!(elsewhere.life(), Life::Unknown, "{elsewhere}");
        }
    }

    #[test]
    fn a_zombie_is_dead() {
        let mut child = std::process::Command::new("true").spawn().expect("spawned");
        let owner = Owner { pid: child.id(), started: 0, ..Owner::current() };
        let mut owner = owner;
        owner.started = started(child.id()).unwrap_or(u64::MAX);
        while started(child.id()).is_some() {
            std::thread::yield_now();
        }
        assert_eq!(owner.life(), Life::Dead);
        child.wait().expect("reaped");
    }
}
