//! The sweep: deletes sessions that have expired, and objects that an interrupted save left.

use std::{collections::HashMap, time::Duration};

use futures::TryStreamExt;
use jiff::Timestamp;
use model::SessionKey;
use tokio::time::sleep;

use super::{Archive, Lookup, manifest, store::StoreError};

/// Age in seconds from which objects that no manifest names are deleted. Younger ones may belong to a save in progress.
const SAVED_WITHIN_S: i64 = 3600;

/// Sweeps at this interval, for the first time at once.
pub async fn sweep_regularly(archive: Archive, interval: Duration) {
    loop {
        match archive.sweep(Timestamp::now().as_second()).await {
            Ok(0) => {}
            Ok(forgotten) => {
                tracing::info!(forgotten, "deleted sessions older than SANDBOX_ARCHIVE_DAYS");
            }
            Err(error) => tracing::warn!(%error, "failed to sweep the archive"),
        }
        sleep(interval).await;
    }
}

impl Archive {
    /// Deletes sessions that have expired at `now`, and leftovers of interrupted saves. Returns the number of sessions.
    pub(super) async fn sweep(&self, now: i64) -> Result<usize, StoreError> {
        let keep = i64::try_from(self.0.keep.as_secs()).unwrap_or(i64::MAX);
        let mut sessions: HashMap<String, Vec<(String, i64)>> = HashMap::new();
        let all: Vec<_> = self.store().list("sessions").try_collect().await?;
        for found in all {
            let mut parts = found.name.split('/');
            if let (Some("sessions"), Some(key), Some(rest)) =
                (parts.next(), parts.next(), parts.next())
            {
                sessions.entry(key.to_owned()).or_default().push((rest.to_owned(), found.written));
            }
        }
        self.0.usage.lock().0.retain(|key, kept| {
            sessions.contains_key(key.as_str())
                || now.saturating_sub(kept.saved_at) < SAVED_WITHIN_S
        });
        let mut forgotten = 0;
        for (key, objects) in sessions {
            let Some(key) = SessionKey::parse(&key) else { continue };
            let newest = objects.iter().map(|(_, written)| *written).max().unwrap_or(now);
            let saved =
                objects.iter().find(|(name, _)| name == "manifest").map(|(_, written)| *written);
            let is_over = match saved {
                Some(saved) => now.saturating_sub(saved) > keep,
                None => now.saturating_sub(newest) > SAVED_WITHIN_S,
            };
            if is_over {
                self.forget_key(&key).await?;
                // The object is deleted even if its manifest cannot be read, or has another time.
                self.delete_folder(&manifest::folder(&key)).await?;
                forgotten += 1;
                continue;
            }
            if let Some(saved) = saved {
                self.count(&key, saved).await;
            }
            if objects.iter().any(|(name, written)| {
                name != "manifest" && now.saturating_sub(*written) > SAVED_WITHIN_S
            }) {
                self.delete_others(&key, &objects, now).await?;
            }
        }
        for folder in ["urls", "workspaces", "callers", "checks"] {
            let all: Vec<_> = self.store().list(folder).try_collect().await?;
            for found in all.into_iter().filter(|found| now.saturating_sub(found.written) > keep) {
                self.store().delete(&found.name).await?;
            }
        }
        Ok(forgotten)
    }

    /// Deletes generations that the manifest does not name, if they are old enough.
    async fn delete_others(
        &self,
        key: &SessionKey,
        objects: &[(String, i64)],
        now: i64,
    ) -> Result<(), StoreError> {
        let Lookup::Found(found) = self.manifest(key).await else { return Ok(()) };
        let others = objects.iter().filter(|(name, written)| {
            name != "manifest"
                && *name != found.generation
                && now.saturating_sub(*written) > SAVED_WITHIN_S
        });
        for (generation, _) in others {
            for what in manifest::OBJECTS {
                self.store().delete(&manifest::object_name(key, generation, what)).await?;
            }
        }
        Ok(())
    }
}
