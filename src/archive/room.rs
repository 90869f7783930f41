//! Limits on the archive's size: for each caller, and for the disk of its folder.

use std::collections::HashMap;

use jiff::Timestamp;
use model::{SessionKey, SessionRecord};

use super::{Archive, Lookup, SaveError};

/// The limits of the archive.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Room {
    /// The maximum size of one caller's sessions, in bytes; `None` for no limit.
    pub(super) of_caller: Option<u64>,
    /// Bytes that stay free on the disk of the archive's folder.
    pub(super) free: u64,
}

/// An archived session.
#[derive(Debug, Clone)]
pub(super) struct UsageEntry {
    pub(super) caller: String,
    pub(super) bytes: u64,
    /// In seconds since the epoch.
    pub(super) saved_at: i64,
}

/// All archived sessions that this server knows. A sweep finds those of other servers.
#[derive(Debug, Default)]
pub(super) struct Usage(pub(super) HashMap<SessionKey, UsageEntry>);

impl Usage {
    /// The oldest session of a caller except this one, if the caller's sessions have more than `most` bytes in all.
    fn oldest_beyond(&self, caller: &str, but: &SessionKey, most: u64) -> Option<SessionKey> {
        let own = || self.0.iter().filter(|(_, kept)| kept.caller == caller);
        let all = own().fold(0_u64, |all, (_, kept)| all.saturating_add(kept.bytes));
        let others = own().filter(|(key, _)| *key != but);
        let oldest = others.min_by_key(|(_, kept)| kept.saved_at);
        (all > most).then_some(oldest?.0.clone())
    }
}

impl Archive {
    /// Checks that the disk has room for saving a session.
    ///
    /// # Errors
    /// If the disk is nearly full.
    pub(super) fn check_free(&self) -> Result<(), SaveError> {
        let least = self.0.room.free;
        match self.store().free_bytes() {
            Some(free) if free < least => Err(SaveError::DiskFull { free, least }),
            _ => Ok(()),
        }
    }

    /// Deletes the oldest sessions of a caller, so that there is room for one of this size.
    ///
    /// # Errors
    /// If the session alone exceeds the limit, or the others cannot be deleted.
    pub(super) async fn make_room(&self, of: &SessionRecord, bytes: u64) -> Result<(), SaveError> {
        let Some(most) = self.0.room.of_caller else { return Ok(()) };
        if bytes > most {
            return Err(SaveError::TooLarge { bytes, most });
        }
        let (key, caller) = (of.key(), of.caller.name());
        let saved_at = Timestamp::now().as_second();
        let kept = UsageEntry { caller: caller.to_owned(), bytes, saved_at };
        self.0.usage.lock().0.insert(key.clone(), kept);
        loop {
            let oldest = self.0.usage.lock().oldest_beyond(caller, &key, most);
            let Some(oldest) = oldest else { return Ok(()) };
            self.forget_key(&oldest).await?;
            self.0.usage.lock().0.remove(&oldest);
            tracing::info!(
                caller,
                "deleted an archived session to make room for a newer one of its caller"
            );
        }
    }

    /// Counts a session that was found in the store, with the time at which it was written.
    pub(super) async fn count(&self, key: &SessionKey, written: i64) {
        let is_known = |kept: &UsageEntry| kept.saved_at.abs_diff(written) <= 2;
        if self.0.room.of_caller.is_none() || self.0.usage.lock().0.get(key).is_some_and(is_known) {
            return;
        }
        if let Lookup::Found(found) = self.manifest(key).await {
            let caller = found.caller_name().to_owned();
            let kept = UsageEntry { caller, bytes: found.bytes(), saved_at: written };
            self.0.usage.lock().0.insert(key.clone(), kept);
        }
    }
}
