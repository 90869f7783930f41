//! The state folder: sandboxes that an earlier server has saved on disk, from which sessions resume.

use std::collections::{BTreeSet, HashMap};

use backend::SavesSandboxes;
use jiff::Timestamp;
use model::{OwnSettings, Principal, SessionId, SessionKey, SessionRecord, WorkspaceId};
use serde::Deserialize;

use super::{Sessions, which::Workspace};

/// The sessions that earlier servers have saved, of all callers.
#[derive(Debug, Default)]
pub(super) struct SavedBefore {
    names: BTreeSet<SessionId>,
    of_workspaces: HashMap<SessionKey, SessionId>,
    /// The caller of each session by its name and the number that its URLs are bound to.
    holders: HashMap<(SessionId, u64), Principal>,
}

/// A saved session that can resume and has not been used since this server started.
#[derive(Debug, Clone)]
pub struct Sleeper {
    /// The session's name.
    pub id: SessionId,
    /// When the session began, if that was recorded.
    pub since: Option<Timestamp>,
}

/// The saved sessions of one caller.
#[derive(Clone, Copy)]
pub(crate) struct SavedSessions<'a> {
    sessions: &'a Sessions,
    folder: &'a dyn SavesSandboxes,
}

/// The record of an earlier version, which did not name the caller.
#[derive(Deserialize)]
struct Nameless {
    session: String,
    workspace: Option<SessionKey>,
    own: OwnSettings,
    begun_s: Option<i64>,
}

impl SavedBefore {
    /// Reads the records that the backend has stored.
    pub(super) fn read(folder: &dyn SavesSandboxes) -> Self {
        let mut known = Self::default();
        for text in folder.records() {
            let (id, workspace) = match serde_json::from_str::<SessionRecord>(&text) {
                Ok(record) => {
                    let (id, workspace) = (record.session.clone(), record.workspace_key());
                    known.holders.insert((record.session, record.number), record.caller);
                    (id, workspace)
                }
                Err(_) => match serde_json::from_str::<Nameless>(&text) {
                    Ok(Nameless { session, workspace, .. }) => {
                        let Ok(id) = session.parse() else { continue };
                        (id, workspace)
                    }
                    Err(_) => continue,
                },
            };
            if let Some(workspace) = workspace {
                known.of_workspaces.insert(workspace, id.clone());
            }
            known.names.insert(id);
        }
        known
    }
}

impl<'a> SavedSessions<'a> {
    pub(super) fn new(sessions: &'a Sessions, folder: &'a dyn SavesSandboxes) -> Self {
        Self { sessions, folder }
    }

    /// The key under which the sandbox of the caller's session of this name is saved.
    pub(super) fn key(&self, id: &SessionId) -> SessionKey {
        SessionKey::of(&self.sessions.caller, id)
    }

    /// Whether the caller's session of this name can resume from a saved sandbox.
    pub(super) fn has(&self, id: &SessionId) -> bool {
        self.folder.has(&self.key(id))
            && self.sessions.only.is_none_or(|only| self.number(id) == Some(only))
    }

    /// The number that the URLs of the caller's session of this name are bound to, if URLs outlive servers: without a
    /// key, this server gives the same numbers to other sessions.
    pub(super) fn number(&self, id: &SessionId) -> Option<u64> {
        self.sessions.config().server_key.as_ref()?;
        Some(self.record(id)?.number)
    }

    /// The saved session of this name and number as its holder sees it, for any caller.
    pub(super) fn held(&self, id: &SessionId, number: u64) -> Option<Sessions> {
        let holder = self.sessions.host.saved_before.holders.get(&(id.clone(), number))?;
        let held = self.sessions.seen_by(holder.clone()).only(number);
        held.saved().is_some_and(|saved| saved.has(id)).then_some(held)
    }

    /// The workspace's session that can resume from a saved sandbox.
    pub(super) fn of_workspace(&self, workspace: &Workspace) -> Option<SessionId> {
        self.recorded_for(workspace).filter(|id| self.has(id)).cloned()
    }

    /// The session of a workspace, according to the records of earlier servers.
    pub(super) fn recorded_for(&self, workspace: &Workspace) -> Option<&'a SessionId> {
        let key = workspace.id().key(&self.sessions.caller)?;
        self.sessions.host.saved_before.of_workspaces.get(&key)
    }

    /// The record of the caller's session of this name.
    pub(super) fn record(&self, id: &SessionId) -> Option<SessionRecord> {
        let text = self.folder.record(&self.key(id))?;
        if let Ok(record) = serde_json::from_str(&text) {
            return Some(record);
        }
        let Nameless { workspace, own, begun_s, .. } = serde_json::from_str(&text).ok()?;
        let since = begun_s.and_then(|seconds| Timestamp::from_second(seconds).ok());
        Some(SessionRecord {
            caller: self.sessions.caller.clone(),
            session: id.clone(),
            number: 0,
            since: since.unwrap_or(Timestamp::UNIX_EPOCH),
            workspace: workspace.map(WorkspaceId::Hashed),
            own,
        })
    }

    /// Stores the record of a session that has begun.
    pub(super) fn store(&self, record: &SessionRecord) {
        let text = serde_json::to_string(record).expect("a record is a map of texts and numbers");
        self.folder.store_record(&record.key(), &text);
    }

    /// Removes the saved sandbox of the caller's session of this name.
    pub(super) fn forget(&self, id: &SessionId) {
        self.folder.forget(&self.key(id));
    }

    /// The caller's saved sessions that can resume and have not been used since this server started.
    pub(crate) fn asleep(&self) -> Vec<Sleeper> {
        let names = self.sessions.host.saved_before.names.iter();
        let asleep = names.filter(|id| self.sessions.find(id).is_none() && self.has(id));
        let began =
            |id| Some(self.record(id)?.since).filter(|since| *since != Timestamp::UNIX_EPOCH);
        asleep.map(|id| Sleeper { id: id.clone(), since: began(id) }).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::{path::PathBuf, sync::Arc};

    use backend::local::Local;
    use config::Config;
    use model::Principal;

    use super::*;
    use crate::sessions::Options;

    /// A folder with one record and its sandbox.
    struct One(String);

    impl SavesSandboxes for One {
        fn has(&self, _: &SessionKey) -> bool {
            true
        }

        fn path(&self, _: &SessionKey) -> PathBuf {
            PathBuf::new()
        }

        fn forget(&self, _: &SessionKey) {}

        fn store_record(&self, _: &SessionKey, _: &str) {}

        fn record(&self, _: &SessionKey) -> Option<String> {
            Some(self.0.clone())
        }

        fn records(&self) -> Vec<String> {
            vec![self.0.clone()]
        }
    }

    #[test]
    fn a_record_of_a_version_that_named_no_caller_is_read() {
        let workspace = "q3".parse().expect("a valid name");
        let key = SessionKey::of_workspace(&Principal::local(), &workspace);
        let text = format!(
            r#"{{"session":"reports","workspace":"{}","own":{{"memory":1073741824,"ttl":null}},"begun_s":1700000000}}"#,
            key.as_str()
        );
        let (folder, id) = (One(text), "reports".parse().expect("a valid name"));
        let before = SavedBefore::read(&folder);
        assert_eq!(before.of_workspaces.get(&key), Some(&id));
        assert!(before.names.contains(&id));
        let backend = Arc::new(Local::new().expect("a backend"));
        let sessions = Sessions::new(Config::default(), backend, Options::default());
        let record = SavedSessions::new(&sessions, &folder).record(&id).expect("it is read");
        assert_eq!(record.workspace, Some(WorkspaceId::Hashed(key)));
        assert_eq!(record.own.memory, Some(1 << 30));
        assert_eq!(record.since.as_second(), 1_700_000_000);
    }
}
