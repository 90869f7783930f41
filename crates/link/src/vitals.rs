//! The state of a sandbox, as its agent reports it with each ping.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// Memory of a sandbox, as its agent last reported it. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Memory(Arc<AtomicU64>);

impl Memory {
    /// Sets the memory in bytes. An agent that does not know it reports none.
    pub(super) fn set(&self, bytes: u64) {
        self.0.store(bytes, Ordering::Relaxed);
    }

    /// The memory in bytes; `None` if it is unknown, as every sandbox uses some.
    pub fn get(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|bytes| *bytes > 0)
    }
}
