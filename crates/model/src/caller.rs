//! Who calls.

use std::{fmt, sync::Arc};

/// Who calls, and so owns the sessions that the call starts.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Principal(Arc<str>);

impl Principal {
    /// Any caller of a server that asks for no token: over stdio, the one who started it.
    pub fn local() -> Self {
        Self("local".into())
    }

    /// One of this name, as an earlier server has known it; `None` if nobody can be called so.
    pub fn named(name: &str) -> Option<Self> {
        is_name(name).then(|| Self(name.into()))
    }

    /// Its name, for the log.
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
