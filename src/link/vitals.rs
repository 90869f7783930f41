//! What the agent says of its sandbox with each sign of life.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// Memory of a sandbox by its agent's last word. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Memory(Arc<AtomicU64>);

impl Memory {
    /// In bytes. An agent that does not know says nothing.
    pub(super) fn set(&self, bytes: u64) {
        self.0.store(bytes, Ordering::Relaxed);
    }

    /// In bytes; `None` if it is not known, as no sandbox has none at all.
    pub(crate) fn get(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|bytes| *bytes > 0)
    }
}
