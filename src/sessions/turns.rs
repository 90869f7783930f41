//! Turns: whoever comes for what somebody else is just busy with waits for that.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

type Turn = tokio::sync::Mutex<()>;

/// What somebody is busy with.
#[derive(Debug)]
pub(super) struct Turns<K>(Mutex<HashMap<K, Weak<Turn>>>);

impl<K> Default for Turns<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash> Turns<K> {
    /// Waits until nobody else is busy with this. It is the caller's turn while the guard lives.
    pub(super) async fn of(&self, key: K) -> OwnedMutexGuard<()> {
        let turn = {
            let mut all = self.0.lock();
            // Those that nobody holds or waits for.
            all.retain(|_, turn| turn.strong_count() > 0);
            let turn = all.entry(key).or_default();
            turn.upgrade().unwrap_or_else(|| {
                let new = Arc::<Turn>::default();
                *turn = Arc::downgrade(&new);
                new
            })
        };
        turn.lock_owned().await
    }
}
