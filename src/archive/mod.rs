//! The archive: saves sessions that end without having been closed, and restores them when their names are used again.
//!
//! ```text
//!  session ends --> save: files, variables, state, runs --> manifest, last     (save)
//!  its name is used again --> find --> restore into a new sandbox         (restore)
//!  a URL of it is opened --> file, straight from the store                (files)
//!
//!  sessions/<key>/manifest              the session's objects, with hashes; put last, replaced at once
//!  sessions/<key>/<generation>/files    the bytes of all files, one after another
//!                              variables, state, runs
//!  sessions/<key>/failed                when a later save failed
//!  workspaces/<key>                     the session that a workspace has
//!  urls/<hash>                          the session that a URL's number belongs to
//!  callers/<hash>/<key>                 the name of a caller's session
//! ```
//!
//! Each save has a generation of its own, so a reader sees one save or another, whole. The archive never blocks a
//! session: every request has a deadline, and a session whose archive cannot be read starts empty and says so.
//!
//! Only [`store`] knows the kinds of stores. Nothing here depends on the backend.

mod files;
mod listed;
mod manifest;
mod restore;
mod room;
mod save;
mod store;
mod sweep;
#[cfg(test)]
mod tests;

use std::{
    fmt, io,
    sync::Arc,
    time::{Duration, Instant},
};

use config::{Config, server_key::ServerKey};
use jiff::Timestamp;
use model::{Principal, SessionId, SessionKey, SessionRecord};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::{sync::Semaphore, time::timeout};

pub use self::sweep::sweep_regularly;
pub(crate) use self::{
    files::ArchivedFile,
    listed::Listed,
    manifest::Manifest,
    restore::{Brought, Restored},
    save::{Save, SaveError, Saving},
    store::StoreError,
};
use self::{
    listed::Lists,
    manifest::MAX_BYTES,
    room::{Room, Usage},
    store::Store,
};
use crate::marks::Marks;

/// The purpose for which keys are derived.
const PURPOSE: &str = "llm-sandbox archive 1";

/// The number of sessions that are saved at a time: each has pieces of files in memory, and a store's speed is limited.
const CONCURRENT_SAVES: usize = 4;

/// Time limit for finding a session in the archive: a caller waits for it.
const FIND_TIMEOUT: Duration = Duration::from_secs(5);

/// Time limit for noting that a session could not be saved.
const MARK_TIMEOUT: Duration = Duration::from_secs(2);

/// Time limit for a caller's wait for a session that is being saved.
const WAIT_TIMEOUT: Duration = Duration::from_secs(30);

/// The maximum size of an object that only points to another, in bytes.
const MAX_POINTER_BYTES: usize = 256;

/// The archive of a server. Clones share it.
#[derive(Clone)]
pub struct Archive(Arc<Inner>);

struct Inner {
    store: Store,
    /// The key that authenticates manifests, if the server's secret is in a file.
    key: Option<[u8; 32]>,
    /// The key that hashes the names of URLs, and identifies the servers for which session numbers are valid.
    own: [u8; 32],
    keep: Duration,
    room: Room,
    usage: Mutex<Usage>,
    saves: Arc<Semaphore>,
    lists: Mutex<Lists>,
    /// Sessions and workspaces that are being saved.
    saving: Marks<SessionKey>,
}

impl fmt::Debug for Archive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Archive").finish_non_exhaustive()
    }
}

/// The result of looking for a session in the archive.
#[derive(Debug)]
pub(crate) enum Lookup {
    /// The archive does not have the session.
    None,
    /// The archive has the session.
    Found(Box<Manifest>),
    /// The archive has data of the session that cannot be used.
    Damaged,
    /// The archive could not be reached.
    Unreachable,
}

impl Archive {
    /// Opens the archive that the settings name; `None` if they name none.
    ///
    /// # Errors
    /// If its folder cannot be made, or the variables for its bucket cannot be used.
    pub fn of(config: &Config) -> io::Result<Option<Self>> {
        let Some(place) = &config.archive else { return Ok(None) };
        let store = Store::open(place).map_err(|error| {
            io::Error::other(format!("SANDBOX_ARCHIVE cannot be used: {error}"))
        })?;
        let room = Room { of_caller: config.archive_client_limit, free: config.min_free };
        Ok(Some(Self::new(store, config.server_key.as_ref(), config.archive_keep, room)))
    }

    fn new(store: Store, key: Option<&ServerKey>, keep: Duration, room: Room) -> Self {
        let own = key.cloned().unwrap_or_else(ServerKey::random).derive(PURPOSE);
        Self(Arc::new(Inner {
            store,
            key: key.map(|_| own),
            own,
            keep,
            room,
            usage: Mutex::default(),
            saves: Arc::new(Semaphore::new(CONCURRENT_SAVES)),
            lists: Mutex::default(),
            saving: Marks::default(),
        }))
    }

    pub(super) fn store(&self) -> &Store {
        &self.0.store
    }

    fn key(&self) -> Option<&[u8]> {
        self.0.key.as_ref().map(|key| &key[..])
    }

    /// Identifies the servers that share this one's session numbers. Does not reveal the secret.
    fn numbers_of(&self) -> String {
        hex::encode(&Sha256::digest(self.0.own)[..8])
    }

    fn url_name(&self, session: &SessionId, number: u64) -> String {
        let mut hash = Sha256::new();
        hash.update(self.0.own);
        hash.update(number.to_le_bytes());
        hash.update(session.as_str());
        format!("urls/{}", hex::encode(&hash.finalize()[..16]))
    }

    /// The number of a session, if this server's URLs are bound to it.
    pub(crate) fn number_of(&self, manifest: &Manifest) -> Option<u64> {
        (manifest.numbers_of == self.numbers_of()).then_some(manifest.number)
    }

    /// Waits for a session, or the session of a workspace, that is being saved.
    pub(crate) async fn saved(&self, key: &SessionKey) {
        let _ = timeout(WAIT_TIMEOUT, self.0.saving.cleared(key)).await;
    }

    /// Finds this caller's session of this name.
    pub(crate) async fn find(&self, caller: &Principal, session: &SessionId) -> Lookup {
        let key = SessionKey::of(caller, session);
        self.saved(&key).await;
        match timeout(FIND_TIMEOUT, self.manifest(&key)).await {
            Ok(Lookup::Found(found)) if !found.is_of(caller, session) => Lookup::Damaged,
            Ok(Lookup::Found(mut found)) => {
                let failed =
                    timeout(FIND_TIMEOUT, self.pointer(&manifest::failed_name(&key))).await;
                let failed = failed.ok().and_then(Result::ok).flatten();
                let failed = failed.and_then(|at| at.parse::<i64>().ok());
                found.is_outdated = failed.is_some_and(|at| at >= found.saved_at);
                Lookup::Found(found)
            }
            Ok(found) => found,
            Err(_) => Lookup::Unreachable,
        }
    }

    /// Finds the session of this caller's workspace of this name.
    pub(crate) async fn find_workspace(&self, caller: &Principal, name: &SessionId) -> Lookup {
        let key = SessionKey::of_workspace(caller, name);
        self.saved(&key).await;
        let pointer = format!("workspaces/{}", key.as_str());
        match timeout(FIND_TIMEOUT, self.pointer(&pointer)).await {
            Ok(Ok(Some(session))) => match session.parse() {
                Ok(session) => self.find(caller, &session).await,
                Err(_) => Lookup::Damaged,
            },
            Ok(Ok(None)) => Lookup::None,
            Ok(Err(error)) => unreachable(&error),
            Err(_) => Lookup::Unreachable,
        }
    }

    /// Finds the session that a URL with this number belongs to, of any caller.
    pub(crate) async fn find_by_number(
        &self,
        session: &SessionId,
        number: u64,
    ) -> Option<Manifest> {
        let name = self.url_name(session, number);
        let key = timeout(FIND_TIMEOUT, self.pointer(&name)).await.ok()?.ok()??;
        let key = SessionKey::parse(&key)?;
        self.saved(&key).await;
        match timeout(FIND_TIMEOUT, self.manifest(&key)).await.ok()? {
            Lookup::Found(found) => {
                let is_it =
                    found.session == session.as_str() && self.number_of(&found) == Some(number);
                is_it.then_some(*found)
            }
            _ => None,
        }
    }

    async fn pointer(&self, name: &str) -> Result<Option<String>, StoreError> {
        match self.store().get(name, MAX_POINTER_BYTES).await {
            Ok(text) => Ok(Some(String::from_utf8_lossy(&text).into_owned())),
            Err(StoreError::Missing) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn manifest(&self, key: &SessionKey) -> Lookup {
        let bytes = match self.store().get(&manifest::name(key), MAX_BYTES).await {
            Ok(bytes) => bytes,
            Err(StoreError::Missing) => return Lookup::None,
            Err(StoreError::TooLarge) => return Lookup::Damaged,
            Err(error) => return unreachable(&error),
        };
        match Manifest::from_bytes(&bytes, self.key()) {
            Ok(manifest) if manifest.is_over(Timestamp::now().as_second()) => Lookup::None,
            Ok(manifest) => Lookup::Found(Box::new(manifest)),
            Err(why) => {
                tracing::warn!(%why, "archived session cannot be restored");
                Lookup::Damaged
            }
        }
    }

    /// Deletes a session from the archive. Returns true if there was data of it.
    ///
    /// # Errors
    /// If the archive cannot be reached, or data may still be there.
    pub(crate) async fn forget(
        &self,
        caller: &Principal,
        session: &SessionId,
    ) -> Result<bool, StoreError> {
        let key = SessionKey::of(caller, session);
        self.saved(&key).await;
        self.forget_key(&key).await
    }

    /// Deletes a session from the archive without waiting for a save: the caller is the one that is saving it.
    ///
    /// # Errors
    /// If the archive cannot be reached, or data may still be there.
    pub(crate) async fn forget_now(&self, record: &SessionRecord) -> Result<bool, StoreError> {
        self.forget_key(&record.key()).await
    }

    /// Notes beside the last save of a session that a later save failed, for a later restore.
    pub(crate) async fn mark_failed(&self, record: &SessionRecord) {
        let key = record.key();
        let mark = async {
            if matches!(self.manifest(&key).await, Lookup::Found(_)) {
                let now = Timestamp::now().as_second().to_string();
                let _ = self.store().put(&manifest::failed_name(&key), now.into()).await;
            }
        };
        let _ = timeout(MARK_TIMEOUT, mark).await;
    }

    /// Whether the archive has, or may have, data of a session.
    pub(crate) async fn may_have(&self, record: &SessionRecord) -> bool {
        let found = timeout(FIND_TIMEOUT, self.manifest(&record.key())).await;
        !matches!(found, Ok(Lookup::None))
    }

    async fn forget_key(&self, key: &SessionKey) -> Result<bool, StoreError> {
        let found = self.manifest(key).await;
        if matches!(found, Lookup::Unreachable) {
            return Err(StoreError::Failed("it cannot be reached".into()));
        }
        // Without its manifest a session does not exist, even if other objects cannot be deleted.
        self.store().delete(&manifest::name(key)).await?;
        if let Lookup::Found(found) = &found {
            self.remove_listed(found.caller_name(), key).await?;
            if let Some(session) = found.session() {
                self.store().delete(&self.url_name(&session, found.number)).await?;
            }
            if let Some(workspace) = &found.workspace {
                self.store().delete(&format!("workspaces/{}", workspace.as_str())).await?;
            }
        }
        self.delete_folder(&manifest::folder(key)).await?;
        Ok(!matches!(found, Lookup::None))
    }

    async fn delete_folder(&self, folder: &str) -> Result<(), StoreError> {
        use futures::TryStreamExt;
        let all: Vec<_> = self.store().list(folder).try_collect().await?;
        for found in all {
            self.store().delete(&found.name).await?;
        }
        Ok(())
    }

    /// Writes, reads and deletes an object.
    ///
    /// # Errors
    /// If one of these requests fails.
    pub async fn check(&self) -> Result<Duration, String> {
        let begun = Instant::now();
        let name = format!("checks/{}", uuid::Uuid::new_v4().simple());
        let failed = |what: &'static str| move |error: StoreError| format!("{what}: {error}");
        self.store()
            .put(&name, b"llm-sandbox".to_vec())
            .await
            .map_err(failed("it cannot be written"))?;
        let read = self.store().get(&name, 64).await.map_err(failed("it cannot be read"))?;
        self.store().delete(&name).await.map_err(failed("nothing can be deleted in it"))?;
        if &read[..] != b"llm-sandbox" {
            return Err("it holds something else than what was written".into());
        }
        Ok(begun.elapsed())
    }
}

fn unreachable(error: &StoreError) -> Lookup {
    tracing::warn!(%error, "failed to reach the archive");
    Lookup::Unreachable
}
