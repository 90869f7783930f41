//! Marks on keys: a task marks a key while others must not use it, and the others wait until the mark is removed.

use std::{collections::HashMap, fmt, hash::Hash, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::watch;

/// The marked keys. Clones share them.
pub(crate) struct Marks<K>(Arc<Mutex<HashMap<K, watch::Sender<usize>>>>);

/// A mark on a key, until it is dropped. A key may have several.
pub(crate) struct Mark<K: Eq + Hash> {
    marks: Marks<K>,
    key: K,
}

impl<K: Clone + Eq + Hash> Marks<K> {
    /// Marks a key until the returned value is dropped.
    pub(crate) fn mark(&self, key: K) -> Mark<K> {
        let mut all = self.0.lock();
        all.entry(key.clone()).or_default().send_modify(|count| *count += 1);
        Mark { marks: self.clone(), key }
    }

    /// Whether the key is marked.
    pub(crate) fn has(&self, key: &K) -> bool {
        self.0.lock().contains_key(key)
    }

    /// Waits until the key is not marked.
    pub(crate) async fn cleared(&self, key: &K) {
        let count = self.0.lock().get(key).map(watch::Sender::subscribe);
        if let Some(mut count) = count {
            // The sender is dropped with the last mark.
            while count.changed().await.is_ok() {}
        }
    }
}

impl<K: Eq + Hash> Drop for Mark<K> {
    fn drop(&mut self) {
        let mut all = self.marks.0.lock();
        if let Some(count) = all.get(&self.key) {
            count.send_modify(|count| *count -= 1);
            if *count.borrow() == 0 {
                all.remove(&self.key);
            }
        }
    }
}

impl<K> Clone for Marks<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K> Default for Marks<K> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K> fmt::Debug for Marks<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Marks").finish_non_exhaustive()
    }
}

impl<K: Eq + Hash> fmt::Debug for Mark<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mark").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_key_is_waited_for_until_its_last_mark_is_gone() {
        let marks = Marks::default();
        let [first, second] = [marks.mark("a"), marks.mark("a")];
        let waiting = tokio::spawn({
            let marks = marks.clone();
            async move { marks.cleared(&"a").await }
        });
        marks.cleared(&"b").await;
        tokio::task::yield_now().await;
        drop(second);
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished() && marks.has(&"a"));
        drop(first);
        waiting.await.expect("it ends");
        assert!(!marks.has(&"a"));
    }
}
