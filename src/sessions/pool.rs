//! The pool: sandboxes that are started, and warm, before somebody asks for them.
//!
//! A pooled sandbox is a session like any other, with its own task and its permit out of as many
//! as there may be sessions. Only nobody knows its name yet: it was born with one, and whoever asks for a new
//! session without naming it is given that.
//!
//! ```text
//!   keeper --start--> [ waiting, oldest first ] --take--> registry
//!                         |          |
//!                         |          '-- out of date, or its permit is needed: closed
//!                         '-- died: forgotten
//! ```

use std::{
    collections::{HashSet, VecDeque},
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use tokio::{sync::Notify, time::timeout};

use crate::session::handle::Handle;

/// Longest that a pooled sandbox takes to prove that it is well. On an idle machine it takes a
/// quarter of a millisecond; starting another takes a hundred.
const CHECK_TIMEOUT: Duration = Duration::from_millis(250);

/// Longest that a new session waits for the permit of a pooled sandbox that is ending.
const PERMIT_TIMEOUT: Duration = Duration::from_secs(8);

/// Sandboxes that wait.
#[derive(Debug, Default)]
pub(super) struct Pool {
    inner: Mutex<Inner>,
    pub(super) changed: Notify,
    /// A pooled sandbox has given its permit back.
    freed: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    waiting: VecDeque<Pooled>,
    /// Numbers of the sandboxes that have a permit and no session: those that wait, and those that are
    /// ending without having been asked for.
    permits: HashSet<u64>,
    /// How often one was taken.
    taken: u64,
}

#[derive(Debug)]
pub(super) struct Pooled {
    pub(super) handle: Handle,
    /// What it was made from.
    image: Option<String>,
    /// It has started; until then its commands wait.
    started: bool,
}

impl Pool {
    /// Takes the one that has waited longest for a session; its permit goes with it.
    pub(super) fn take(&self) -> Option<Pooled> {
        let mut inner = self.lock();
        let taken = inner.waiting.pop_front()?;
        inner.taken += 1;
        self.changed.notify_one();
        Some(taken)
    }

    /// The one that was taken is a session now, and its permit no longer the pool's.
    pub(super) fn hand_over(&self, number: u64) {
        self.lock().permits.remove(&number);
    }

    /// Gets a permit back from the pool: at once from one that waits, soon from one that is ending.
    /// False if none has a permit.
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

    /// Takes out the one of this number, if it is here: it has ended.
    pub(super) fn forget(&self, number: u64) {
        self.lock().waiting.retain(|pooled| pooled.handle.number != number);
        self.changed.notify_one();
    }

    /// The permit of this number is free.
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

    /// Adds one that is just being started. Both in one step, so that whoever finds no permit free
    /// finds the one that has it.
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

    /// Takes out those that are made from another image.
    pub(super) fn outdated(&self, image: &str) -> Vec<Pooled> {
        let mut inner = self.lock();
        let all = std::mem::take(&mut inner.waiting);
        let (current, outdated) =
            all.into_iter().partition(|pooled| pooled.image.as_deref() == Some(image));
        inner.waiting = current;
        outdated.into()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }
}

impl Pooled {
    /// One that is just being started.
    pub(super) fn starting(handle: Handle, image: Option<String>) -> Self {
        Self { handle, image, started: false }
    }

    /// Whether it answers. One that is still starting is taken at its word: it is further than any
    /// other could be.
    pub(super) async fn is_well(&self) -> bool {
        !self.started || matches!(timeout(CHECK_TIMEOUT, self.handle.is_well()).await, Ok(true))
    }

    /// Ends it; its permit is free when this returns.
    pub(super) async fn close(self) {
        // One that has ended by itself is closed as well.
        let _ = self.handle.close().await;
    }
}
