//! Turns: tasks that need the same key wait for each other.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

type Turn = tokio::sync::Mutex<()>;

/// The keys in use, each with its lock.
#[derive(Debug)]
pub(super) struct Turns<K>(Mutex<HashMap<K, Weak<Turn>>>);

impl<K> Default for Turns<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash> Turns<K> {
    /// Waits until no other task uses this key. It stays locked while the guard lives.
    pub(super) async fn of(&self, key: K) -> OwnedMutexGuard<()> {
        let turn = {
            let mut all = self.0.lock();
            // Drop the locks that no task holds or waits for.
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
