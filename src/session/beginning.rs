//! How a session began: with what was kept of it, or without.

use std::sync::Arc;

use parking_lot::Mutex;
use protocol::message::WentOn;

/// What became of what was kept of a session, until a caller has heard of it. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Beginning(Arc<Mutex<Option<WentOn>>>);

impl Beginning {
    /// Notes it.
    pub(super) fn note(&self, went_on: WentOn) {
        *self.0.lock() = Some(went_on);
    }

    /// What a caller is to hear, which it has heard then.
    pub(crate) fn tell(&self) -> Option<WentOn> {
        self.0.lock().take()
    }
}
