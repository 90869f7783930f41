//! The pool: sandboxes that are started, and warm, before a caller asks for them.
//!
//! A pooled sandbox is a session like any other, with its own task and one of the `max_sessions` permits. No caller
//! knows its name yet: it was started with one, and the next session that is requested without a name gets it.
//!
//! ```text
//!   keeper --start--> [ waiting, oldest first ] --take--> registry
//!                         |          |
//!                         |          '-- other image or datasets, or its permit is needed: closed
//!                         '-- died: forgotten
//! ```

use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use model::Dataset;
use parking_lot::{Mutex, MutexGuard};
use tokio::{sync::Notify, time::timeout};

use crate::session::handle::Handle;

/// Timeout for the check of a pooled sandbox. On an idle machine it takes a quarter of a millisecond; starting another
/// takes a hundred milliseconds.
const CHECK_TIMEOUT: Duration = Duration::from_millis(250);

/// Longest time that a new session waits for the permit of a pooled sandbox that is ending.
const PERMIT_TIMEOUT: Duration = Duration::from_secs(8);

/// Sandboxes that wait for a session.
#[derive(Debug, Default)]
pub(super) struct Pool {
    inner: Mutex<Inner>,
    pub(super) changed: Notify,
    /// Notified when a pooled sandbox has returned its permit.
    freed: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    waiting: VecDeque<Pooled>,
    /// Numbers of the sandboxes that have a permit and no session: those that wait, and those that are ending unused.
    permits: HashSet<u64>,
    /// How many were taken.
    taken: u64,
}

#[derive(Debug)]
pub(super) struct Pooled {
    pub(super) handle: Handle,
    /// The image that the sandbox was started from.
    image: Option<String>,
    /// Whether the sandbox has started; until then its commands wait.
    started: bool,
}

impl Pool {
    /// Takes the sandbox that has waited longest, together with its permit.
    pub(super) fn take(&self) -> Option<Pooled> {
        self.take_if(|_| true)
    }

    /// Takes the sandbox with these datasets that has waited longest, together with its permit.
    pub(super) fn take_with(&self, datasets: &[Arc<Dataset>]) -> Option<Pooled> {
        self.take_if(|pooled| pooled.handle.datasets == datasets)
    }

    fn take_if(&self, is_wanted: impl Fn(&Pooled) -> bool) -> Option<Pooled> {
        let mut inner = self.lock();
        let at = inner.waiting.iter().position(is_wanted)?;
        let taken = inner.waiting.remove(at)?;
        inner.taken += 1;
        self.changed.notify_one();
        Some(taken)
    }

    /// Records that a sandbox that was taken has a session now, and its permit is no longer the pool's.
    pub(super) fn hand_over(&self, number: u64) {
        self.lock().permits.remove(&number);
    }

    /// Gets a permit back from the pool: closes a sandbox that waits, or else waits for one that is ending. Returns
    /// false if none has a permit, or none is free in time.
    pub(super) async fn make_room(&self) -> bool {
        let freed = self.freed.notified();
        tokio::pin!(freed);
        freed.as_mut().enable();
        if let Some(pooled) = self.take() {
            pooled.close().await;
            return true;
        }
        let is_ending = !self.lock().permits.is_empty();
        is_ending && timeout(PERMIT_TIMEOUT, freed).await.is_ok()
    }

    /// Removes the sandbox with this number, which has ended, if it is here.
    pub(super) fn forget(&self, number: u64) {
        self.lock().waiting.retain(|pooled| pooled.handle.number != number);
        self.changed.notify_one();
    }

    /// Records that the permit with this number is free.
    pub(super) fn permit_freed(&self, number: u64) {
        if self.lock().permits.remove(&number) {
            self.freed.notify_waiters();
        }
    }

    pub(super) fn len(&self) -> usize {
        self.lock().waiting.len()
    }

    pub(super) fn taken(&self) -> u64 {
        self.lock().taken
    }

    /// Adds a sandbox that is being started. Start and entry are one step, so that a call that finds no free permit
    /// finds the sandbox that has it.
    pub(super) fn add(&self, start: impl FnOnce() -> Option<Pooled>) -> Option<Handle> {
        let mut inner = self.lock();
        let pooled = start()?;
        let handle = pooled.handle.clone();
        inner.permits.insert(handle.number);
        inner.waiting.push_back(pooled);
        Some(handle)
    }

    pub(super) fn mark_started(&self, number: u64) {
        let mut inner = self.lock();
        for pooled in inner.waiting.iter_mut().filter(|pooled| pooled.handle.number == number) {
            pooled.started = true;
        }
    }

    /// Removes and returns the sandboxes that have other datasets, or were made from another image, if the engine names
    /// its image.
    pub(super) fn outdated(&self, image: Option<&str>, datasets: &[Arc<Dataset>]) -> Vec<Pooled> {
        let mut inner = self.lock();
        let all = std::mem::take(&mut inner.waiting);
        let is_current = |pooled: &Pooled| {
            (image.is_none() || pooled.image.as_deref() == image)
                && pooled.handle.datasets == datasets
        };
        let (current, outdated) = all.into_iter().partition(is_current);
        inner.waiting = current;
        outdated.into()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }
}

impl Pooled {
    /// A sandbox that is being started.
    pub(super) fn starting(handle: Handle, image: Option<String>) -> Self {
        Self { handle, image, started: false }
    }

    /// Whether the sandbox answers. A sandbox that is still starting counts as well: no other would be ready sooner.
    pub(super) async fn is_well(&self) -> bool {
        !self.started || matches!(timeout(CHECK_TIMEOUT, self.handle.is_well()).await, Ok(true))
    }

    /// Ends the sandbox. Its permit is free when this returns.
    pub(super) async fn close(self) {
        // Fails if the sandbox has ended by itself.
        let _ = self.handle.close().await;
    }
}
