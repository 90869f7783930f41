//! What a session holds of the server for as long as it is there: its name, and its permit out of
//! as many as there may be sessions.

use std::{fmt, sync::Arc};

use tokio::sync::OwnedSemaphorePermit;

use super::events::EndReason;

/// Who gave a lease, and hears what becomes of it. Sessions are told by their number.
pub(crate) trait Lessor: Send + Sync {
    /// The session can no longer be reached: its name is free. There is no reason if it has never
    /// started.
    fn name_released(&self, number: u64, why: Option<EndReason>);

    /// Its permit is free.
    fn permit_freed(&self, number: u64);

    /// A sandbox may have been left behind.
    fn sandbox_may_be_left(&self);
}

/// A session's name and permit; one that was there before its server had room for it has none. Both are given back at the latest when it is dropped, so that even a
/// task that panics keeps neither.
pub(crate) struct Lease {
    lessor: Arc<dyn Lessor>,
    number: u64,
    has_name: bool,
    started: bool,
    permit: Option<OwnedSemaphorePermit>,
}

impl Lease {
    /// The lease of the session of this number.
    pub(crate) fn new(
        lessor: Arc<dyn Lessor>,
        number: u64,
        permit: Option<OwnedSemaphorePermit>,
    ) -> Self {
        Self { lessor, number, has_name: true, started: false, permit }
    }

    /// The session has a sandbox.
    pub(super) fn sandbox_started(&mut self) {
        self.started = true;
    }

    /// Makes the session unreachable, so that its name is free.
    pub(super) fn release_name(&mut self, why: EndReason) {
        if std::mem::take(&mut self.has_name) {
            self.lessor.name_released(self.number, Some(why).filter(|_| self.started));
        }
    }

    /// The session has a permit again.
    pub(super) fn give_permit(&mut self, permit: OwnedSemaphorePermit) {
        self.permit = Some(permit);
    }

    /// Takes the permit out, for another session.
    pub(super) fn take_permit(&mut self) -> Option<OwnedSemaphorePermit> {
        self.permit.take()
    }

    /// Remembers that the sandbox could not be removed for certain.
    pub(super) fn sandbox_may_be_left(&self) {
        self.lessor.sandbox_may_be_left();
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.permit = None;
        self.lessor.permit_freed(self.number);
        // A task that says nothing of its end has panicked.
        self.release_name(EndReason::Died);
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("number", &self.number).finish_non_exhaustive()
    }
}
