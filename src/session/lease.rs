//! The lease of a session: its name, and one of the `max_sessions` permits, for as long as it lives.

use std::{fmt, sync::Arc};

use model::SessionKey;
use tokio::sync::OwnedSemaphorePermit;

use super::events::EndReason;
use crate::marks::Mark;

/// The issuer of leases, which is notified of their end. Sessions are identified by their number.
pub(crate) trait Lessor: Send + Sync {
    /// The session can no longer be reached: its name is free. `why` is `None` if it has never started. The next session
    /// of the name starts when the returned mark is dropped.
    fn name_released(&self, number: u64, why: Option<EndReason>) -> Option<Mark<SessionKey>>;

    /// The session's permit is free.
    fn permit_freed(&self, number: u64);

    /// A sandbox may not have been removed.
    fn sandbox_may_be_left(&self);
}

/// A session's name and permit. A session that was taken over while its server was full has no permit. Dropping the
/// lease returns both, so that they are free even if the task panics.
pub(crate) struct Lease {
    lessor: Arc<dyn Lessor>,
    number: u64,
    has_name: bool,
    started: bool,
    permit: Option<OwnedSemaphorePermit>,
    /// From the release of the name until the session has left nothing that another one could begin with.
    ending: Option<Mark<SessionKey>>,
}

impl Lease {
    /// The lease of the session of this number.
    pub(crate) fn new(
        lessor: Arc<dyn Lessor>,
        number: u64,
        permit: Option<OwnedSemaphorePermit>,
    ) -> Self {
        Self { lessor, number, has_name: true, started: false, permit, ending: None }
    }

    /// Records that the session has a sandbox.
    pub(super) fn sandbox_started(&mut self) {
        self.started = true;
    }

    /// Makes the session unreachable, so that its name is free. If the session may leave state, calls for the name wait
    /// until the lease is dropped.
    pub(super) fn release_name(&mut self, why: EndReason) {
        if std::mem::take(&mut self.has_name) {
            let why = Some(why).filter(|_| self.started);
            self.ending = self.lessor.name_released(self.number, why);
        }
    }

    /// Records that the session has a permit again.
    pub(super) fn give_permit(&mut self, permit: OwnedSemaphorePermit) {
        self.permit = Some(permit);
    }

    /// Removes the permit, for another session.
    pub(super) fn take_permit(&mut self) -> Option<OwnedSemaphorePermit> {
        self.permit.take()
    }

    /// Records that the sandbox may not have been removed.
    pub(super) fn sandbox_may_be_left(&self) {
        self.lessor.sandbox_may_be_left();
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.permit = None;
        self.lessor.permit_freed(self.number);
        // A task that did not release its name has panicked.
        self.release_name(EndReason::Died);
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("number", &self.number).finish_non_exhaustive()
    }
}
