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
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{Notify, oneshot},
    time::{sleep, timeout},
};

use crate::{
    session::{SessionId, command::Command},
    sessions::{Handle, Sessions},
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

/// Sandboxes that wait.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    waiting: Mutex<VecDeque<Pooled>>,
    changed: Notify,
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
    /// The one that has waited longest.
    pub(crate) fn take(&self) -> Option<Pooled> {
        let taken = self.lock().pop_front();
        if taken.is_some() {
            self.changed.notify_one();
        }
        taken
    }

    /// Takes out the one of this number, if it is here: it has ended.
    pub(crate) fn forget(&self, number: u64) {
        self.lock().retain(|pooled| pooled.handle.number != number);
        self.changed.notify_one();
    }

    fn len(&self) -> usize {
        self.lock().len()
    }

    fn mark_started(&self, number: u64) {
        for pooled in self.lock().iter_mut().filter(|pooled| pooled.handle.number == number) {
            pooled.started = true;
        }
    }

    /// Takes out those that are made from another image.
    fn outdated(&self, image: Option<&str>) -> Vec<Pooled> {
        let mut waiting = self.lock();
        let all = std::mem::take(&mut *waiting);
        let (current, outdated) =
            all.into_iter().partition(|pooled| pooled.image.as_deref() == image);
        *waiting = current;
        outdated.into()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Pooled>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
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
        let image = sessions.backend().image_id().await;
        for outdated in pool.outdated(image.as_deref()) {
            tracing::info!(session_id = %outdated.id, "pooled sandbox is of another image");
            outdated.close().await;
        }
        if pool.len() < size
            && let Some((id, handle)) = sessions.start_pooled()
        {
            let number = handle.number;
            let pooled = Pooled { id, handle: handle.clone(), image, started: false };
            pool.lock().push_back(pooled);
            // Also takes until the start is over.
            if check(&handle).await {
                pool.mark_started(number);
                pause = PAUSES.0;
            } else {
                pool.forget(number);
                sleep(pause).await;
                pause = (pause * 2).min(PAUSES.1);
            }
            continue;
        }
        if timeout(REVIEW, pool.changed.notified()).await.is_ok() {
            sleep(RESPITE).await;
        }
    }
}
