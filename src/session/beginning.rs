//! How a session began: with its saved state, or without.

use std::sync::Arc;

use parking_lot::Mutex;
use protocol::message::WentOn;

/// How a session resumed from its saved state, until a caller has been told. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Beginning(Arc<Mutex<Option<WentOn>>>);

impl Beginning {
    /// Records how the session resumed.
    pub(super) fn note(&self, went_on: WentOn) {
        *self.0.lock() = Some(went_on);
    }

    /// The note for a caller, which is returned only once.
    pub(crate) fn tell(&self) -> Option<WentOn> {
        self.0.lock().take()
    }
}
