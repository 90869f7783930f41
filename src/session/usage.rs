//! Whether a session is in use, and since when it is not: written by its task and by the readers of its files, and read
//! from outside without asking the task.
//!
//! Files are read without the task, so the task does not see when a download ends. Each reader has a [`Reading`]
//! instead; the drop of the last one is recorded here.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::{Mutex, MutexGuard};

/// The use of one session. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Usage(Arc<Mutex<Seen>>);

#[derive(Debug, Default)]
struct Seen {
    /// Written by the task; `None` while it runs a program or an operation, or waits for its first use.
    unused_since: Option<Instant>,
    readers: usize,
    /// When the last reader was dropped.
    read: Option<Instant>,
    /// Memory in bytes of a hibernating session that has given up its place; `None` if it has a place.
    resting: Option<u64>,
}

/// A file is being read. While this lives, the session is in use.
#[derive(Debug)]
pub(crate) struct Reading(Usage);

impl Usage {
    /// Records since when the task has had nothing to do; `None` if it is busy.
    pub(crate) fn set(&self, unused_since: Option<Instant>) {
        self.lock().unused_since = unused_since;
    }

    /// Records that a file is being read, until the result is dropped.
    pub(crate) fn read(&self) -> Reading {
        self.lock().readers += 1;
        Reading(self.clone())
    }

    /// Whether files are being read.
    pub(crate) fn is_being_read(&self) -> bool {
        self.lock().readers > 0
    }

    /// Since when the session has been unused; `None` while it is in use, and before its first use.
    pub(crate) fn idle_since(&self) -> Option<Instant> {
        let seen = self.lock();
        let unused = seen.unused_since.filter(|_| seen.readers == 0)?;
        Some(seen.read.map_or(unused, |read| unused.max(read)))
    }

    /// How long the session has been unused at this time.
    pub(crate) fn idle_for(&self, now: Instant) -> Option<Duration> {
        self.idle_since().map(|since| now.saturating_duration_since(since))
    }

    /// Records that the session hibernates, has given up its place, and uses this many bytes of memory (0 without a
    /// sandbox); `None` if it has a place again.
    pub(crate) fn set_resting(&self, bytes: Option<u64>) {
        self.lock().resting = bytes;
    }

    /// Memory in bytes of the session, if it hibernates and has given up its place: it needs a place before it is used
    /// again.
    pub(crate) fn resting(&self) -> Option<u64> {
        self.lock().resting
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.0.lock()
    }
}

impl Clone for Reading {
    fn clone(&self) -> Self {
        self.0.read()
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        let mut seen = self.0.lock();
        seen.readers -= 1;
        seen.read = Some(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_idle_when_neither_its_task_nor_a_reader_uses_it() {
        let usage = Usage::default();
        assert_eq!(usage.idle_since(), None, "it waits for its first use");
        let long_ago = Instant::now().checked_sub(Duration::from_secs(60)).expect("a boot before");
        usage.set(Some(long_ago));
        assert_eq!(usage.idle_since(), Some(long_ago));
        usage.set(None);
        assert_eq!(usage.idle_since(), None, "its task works");
    }

    #[test]
    fn a_download_is_use_until_its_last_part_is_let_go() {
        let usage = Usage::default();
        let long_ago = Instant::now().checked_sub(Duration::from_secs(60)).expect("a boot before");
        usage.set(Some(long_ago));
        let reading = usage.read();
        let another = reading.clone();
        drop(reading);
        assert!(usage.is_being_read());
        assert_eq!(usage.idle_since(), None);
        let before = Instant::now();
        drop(another);
        assert!(!usage.is_being_read());
        assert!(usage.idle_since().expect("idle again") >= before);
        assert!(usage.idle_for(Instant::now()).expect("idle") < Duration::from_secs(60));
    }
}
