//! The owner of a container: one run of one server, in a form by which another server on the same machine can check
//! whether it is still running.

use std::{fmt, str::FromStr};

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
}
