//! The callers of a server.

use std::{fmt, sync::Arc};

/// A caller, who owns the sessions that its calls start.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Principal(Arc<str>);

impl Principal {
    /// Any caller of a server that requires no token; over stdio, the user who started the server.
    pub fn local() -> Self {
        Self("local".into())
    }

    /// The caller of this name, which an earlier server recorded; `None` if the name is not valid.
    pub fn named(name: &str) -> Option<Self> {
        is_name(name).then(|| Self(name.into()))
    }

    /// The caller's name, for the log.
    pub fn name(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_name(name: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    (1..=64).contains(&name.len()) && name.bytes().all(allowed)
}
