//! The pool: sandboxes that are started, and warm, before somebody asks for them.
//!
//! A pooled sandbox is a session like any other, with its own task and its place among the most
//! there may be. Only nobody knows its name yet: it was born with one, and whoever asks for a new
//! session without naming it is given that.
//!
//! ```text
//!   keeper --start--> [ waiting, oldest first ] --take--> registry
//!                         |          |
//!                         |          '-- out of date, or in the way of another: closed
//!                         '-- died: forgotten
//! ```

use std::{
    collections::{HashSet, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{Notify, oneshot},
    time::{sleep, timeout},
};

use crate::{
    registry::Handle,
    session::{SessionId, command::Command},
    sessions::Sessions,
};

/// Longest that a pooled sandbox takes to prove that it is well. On an idle machine it takes a
/// quarter of a millisecond; starting another takes a hundred.
const PROOF: Duration = Duration::from_millis(250);

/// How long the place of one that was taken stays free: its first run has the processors first.
const RESPITE: Duration = Duration::from_secs(1);

/// How often the pool is compared with the image.
const REVIEW: Duration = Duration::from_secs(10);

/// Pause after a start that failed, which doubles with each up to the last.
const PAUSES: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(300));

/// Longest that a new session waits for the place of a pooled sandbox that is ending.
const ENDING: Duration = Duration::from_secs(8);

/// Sandboxes that wait.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    inner: Mutex<Inner>,
    changed: Notify,
    /// A pooled sandbox has given its place back.
    freed: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    waiting: VecDeque<Pooled>,
    /// Numbers of the sandboxes that have a place and no session: those that wait, and those that are
    /// ending without having been asked for.
    places: HashSet<u64>,
    /// How often one was taken.
    taken: u64,
}

#[derive(Debug)]
pub(crate) struct Pooled {
    pub(crate) id: SessionId,
    pub(crate) handle: Handle,
    /// What it was made from.
    image: Option<String>,
    /// It has started; until then its commands wait.
    started: bool,
}

impl Pool {
    /// Takes the one that has waited longest for a session; its place goes with it.
    pub(crate) fn take(&self) -> Option<Pooled> {
        let mut inner = self.lock();
        let taken = inner.waiting.pop_front()?;
        inner.taken += 1;
        self.changed.notify_one();
        Some(taken)
    }

    /// The one that was taken is a session now, and its place no longer the pool's.
    pub(crate) fn hand_over(&self, number: u64) {
        self.lock().places.remove(&number);
    }

    /// Gets a place back from the pool: at once from one that waits, soon from one that is ending.
    /// False if none has a place.
    pub(crate) async fn make_room(&self) -> bool {
        let freed = self.freed.notified();
        tokio::pin!(freed);
        freed.as_mut().enable();
        if let Some(pooled) = self.take() {
            pooled.close().await;
            return true;
        }
        let is_ending = !self.lock().places.is_empty();
        is_ending && timeout(ENDING, freed).await.is_ok()
    }

    /// Takes out the one of this number, if it is here: it has ended.
    pub(crate) fn forget(&self, number: u64) {
        self.lock().waiting.retain(|pooled| pooled.handle.number != number);
        self.changed.notify_one();
    }

    /// The place of this number is free.
    pub(crate) fn place_freed(&self, number: u64) {
        if self.lock().places.remove(&number) {
            self.freed.notify_waiters();
        }
    }

    fn len(&self) -> usize {
        self.lock().waiting.len()
    }

    fn taken(&self) -> u64 {
        self.lock().taken
    }

    /// Adds one that is just being started. Both in one step, so that whoever finds no place free
    /// finds the one that has it.
    fn add(&self, start: impl FnOnce() -> Option<Pooled>) -> Option<Handle> {
        let mut inner = self.lock();
        let pooled = start()?;
        let handle = pooled.handle.clone();
        inner.places.insert(handle.number);
        inner.waiting.push_back(pooled);
        Some(handle)
    }

    fn mark_started(&self, number: u64) {
        let mut inner = self.lock();
        for pooled in inner.waiting.iter_mut().filter(|pooled| pooled.handle.number == number) {
            pooled.started = true;
        }
    }

    /// Takes out those that are made from another image.
    fn outdated(&self, image: &str) -> Vec<Pooled> {
        let mut inner = self.lock();
        let all = std::mem::take(&mut inner.waiting);
        let (current, outdated) =
            all.into_iter().partition(|pooled| pooled.image.as_deref() == Some(image));
        inner.waiting = current;
        outdated.into()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pooled {
    /// Whether it answers. One that is still starting is taken at its word: it is further than any
    /// other could be.
    pub(crate) async fn is_well(&self) -> bool {
        !self.started || matches!(timeout(PROOF, check(&self.handle)).await, Ok(true))
    }

    /// Ends it; its place is free when this returns.
    pub(crate) async fn close(self) {
        let (reply, closed) = oneshot::channel();
        if self.handle.commands.send(Command::Close { reply }).await.is_ok() {
            let _ = closed.await;
        }
    }
}

/// Asks a session's task whether its sandbox answers.
async fn check(handle: &Handle) -> bool {
    let (reply, answer) = oneshot::channel();
    handle.commands.send(Command::Check { reply }).await.is_ok()
        && matches!(answer.await, Ok(Ok(())))
}

/// Keeps the pool full until the server ends.
pub async fn keep(sessions: Sessions) {
    let size = sessions.config().pool_size;
    let pool = sessions.pool();
    let mut pause = PAUSES.0;
    if size == 0 {
        return;
    }
    loop {
        let image = sessions.backend().template().await.map(|template| template.id);
        // An engine that does not say is no reason to begin anew.
        for outdated in image.as_deref().map(|image| pool.outdated(image)).unwrap_or_default() {
            tracing::info!(session_id = %outdated.id, "pooled sandbox is of another image");
            outdated.close().await;
        }
        let taken = pool.taken();
        let start = || {
            let (id, handle) = sessions.start_pooled()?;
            Some(Pooled { id, handle, image, started: false })
        };
        if pool.len() < size
            && let Some(handle) = pool.add(start)
        {
            // Also takes until the start is over.
            if check(&handle).await {
                pool.mark_started(handle.number);
                pause = PAUSES.0;
            } else if taken == pool.taken() {
                sleep(pause).await;
                pause = (pause * 2).min(PAUSES.1);
            } else {
                sleep(RESPITE).await;
            }
            continue;
        }
        if timeout(REVIEW, pool.changed.notified()).await.is_ok() {
            sleep(RESPITE).await;
        }
    }
}
