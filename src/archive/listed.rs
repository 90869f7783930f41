//! The list of a caller's sessions in the archive, for people who look for one: an object for each session, with its
//! name. The names of objects contain neither callers nor sessions.

use std::{
    cmp::Reverse,
    collections::HashMap,
    time::{Duration, Instant},
};

use futures::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use model::{Principal, SessionId, SessionKey, SessionRecord};
use sha2::{Digest, Sha256};
use tokio::time::timeout;

use super::{
    Archive, FIND_TIMEOUT, Lookup,
    store::{StoreError, StoredObject},
};

/// The maximum number of sessions in a caller's list: those that were saved last.
const MAX_LISTED: usize = 100;

/// The maximum number of a caller's objects that are looked through.
const MAX_FOUND: usize = 10_000;

/// Maximum number of objects that are read at a time.
const READ_AT_ONCE: usize = 8;

/// Time after which a list is read again: another server may have saved a session meanwhile.
const FRESH: Duration = Duration::from_secs(30);

/// A session that is in the archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listed {
    /// The session's name.
    pub(crate) id: SessionId,
    /// Time of the save.
    pub(crate) saved: Timestamp,
}

/// A session of any caller that is in the archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ListedOfAll {
    pub(crate) caller: Principal,
    pub(crate) session: Listed,
    /// The size of what is saved.
    pub(crate) bytes: u64,
}

/// The last list of each caller's sessions. The number of callers is limited by the number of tokens.
#[derive(Debug, Default)]
pub(super) struct Lists {
    of: HashMap<String, (Instant, Vec<Listed>)>,
    all: Option<(Instant, Vec<ListedOfAll>)>,
    /// The number of changes that this server has made to the lists.
    changes: u64,
}

impl Lists {
    fn forget(&mut self, caller: &str) {
        self.of.remove(caller);
        self.all = None;
        self.changes += 1;
    }
}

/// The folder with the folders of all callers.
const CALLERS: &str = "callers";

/// The folder with a caller's sessions.
fn folder(caller: &str) -> String {
    format!("{CALLERS}/{}", hex::encode(&Sha256::digest(caller)[..16]))
}

/// The object of a caller's session.
fn object(caller: &str, key: &SessionKey) -> String {
    format!("{}/{}", folder(caller), key.as_str())
}

impl Archive {
    /// The caller's sessions that are in the archive, the last saved first. An empty list if the archive cannot be
    /// reached.
    pub(crate) async fn list(&self, caller: &Principal) -> Vec<Listed> {
        let (changes, known) = {
            let lists = self.0.lists.lock();
            (lists.changes, lists.of.get(caller.name()).cloned())
        };
        if let Some((_, listed)) = known.filter(|(since, _)| since.elapsed() < FRESH) {
            return listed;
        }
        let since = Instant::now();
        let named = |it: StoredObject| async move {
            let id = self.pointer(&it.name).await?.and_then(|name| name.parse().ok());
            let saved = Timestamp::from_second(it.written).ok();
            Ok(id.zip(saved).map(|(id, saved)| Listed { id, saved }))
        };
        let listed = in_time(self.found(&folder(caller.name()), named)).await;
        let mut lists = self.0.lists.lock();
        if lists.changes == changes {
            lists.of.insert(caller.name().to_owned(), (since, listed.clone()));
        }
        listed
    }

    /// The sessions of all callers that are in the archive, the last saved first. An empty list if the archive cannot
    /// be reached.
    pub(crate) async fn list_all(&self) -> Vec<ListedOfAll> {
        let (changes, known) = {
            let lists = self.0.lists.lock();
            (lists.changes, lists.all.clone())
        };
        if let Some((_, listed)) = known.filter(|(since, _)| since.elapsed() < FRESH) {
            return listed;
        }
        let since = Instant::now();
        let read = |it: StoredObject| async move {
            let key = it.name.rsplit('/').next().and_then(SessionKey::parse);
            let Some(key) = key else { return Ok(None) };
            let Lookup::Found(manifest) = self.manifest(&key).await else { return Ok(None) };
            let caller = Principal::named(manifest.caller_name());
            let saved = Timestamp::from_second(manifest.saved_at).ok();
            let session = manifest.session().zip(saved).map(|(id, saved)| Listed { id, saved });
            let bytes = manifest.bytes();
            let both = caller.zip(session);
            Ok(both.map(|(caller, session)| ListedOfAll { caller, session, bytes }))
        };
        let listed = in_time(self.found(CALLERS, read)).await;
        let mut lists = self.0.lists.lock();
        if lists.changes == changes {
            lists.all = Some((since, listed.clone()));
        }
        listed
    }

    /// Reads the newest objects in a folder of sessions. Objects that were deleted meanwhile are left out.
    async fn found<T, F: Future<Output = Result<Option<T>, StoreError>>>(
        &self,
        folder: &str,
        read: impl Fn(StoredObject) -> F,
    ) -> Result<Vec<T>, StoreError> {
        let oldest = Timestamp::now().as_second().saturating_sub_unsigned(self.0.keep.as_secs());
        let found = self.store().list(folder).take(MAX_FOUND);
        let mut found: Vec<_> = found.try_collect().await?;
        found.retain(|it| it.written > oldest);
        found.sort_by_key(|it| Reverse(it.written));
        found.truncate(MAX_LISTED);
        let listed = stream::iter(found).map(read).buffered(READ_AT_ONCE);
        listed.try_filter_map(|it| async { Ok(it) }).try_collect().await
    }

    /// Adds a session that was saved to the list. A session that cannot be added is still found by its name.
    pub(super) async fn add_listed(&self, record: &SessionRecord) {
        let (caller, name) = (record.caller.name(), record.session.to_string());
        if let Err(error) = self.store().put(&object(caller, &record.key()), name.into()).await {
            tracing::warn!(%error, "failed to add an archived session to the list");
        }
        self.0.lists.lock().forget(caller);
    }

    /// Removes a session from the list.
    pub(super) async fn remove_listed(
        &self,
        caller: &str,
        key: &SessionKey,
    ) -> Result<(), StoreError> {
        self.store().delete(&object(caller, key)).await?;
        self.0.lists.lock().forget(caller);
        Ok(())
    }
}

/// The list, or an empty one if the archive cannot be reached in time.
async fn in_time<T>(listed: impl Future<Output = Result<Vec<T>, StoreError>>) -> Vec<T> {
    match timeout(FIND_TIMEOUT, listed).await {
        Ok(Ok(listed)) => listed,
        Ok(Err(error)) => {
            tracing::warn!(%error, "failed to list archived sessions");
            vec![]
        }
        Err(_) => vec![],
    }
}
