//! The state folder: sandboxes that an earlier server has saved on disk, from which sessions resume.

use std::collections::{BTreeSet, HashMap};

use jiff::Timestamp;
use model::{OwnSettings, SessionId, SessionKey, SessionRecord, WorkspaceId};
use serde::Deserialize;

use super::{Sessions, which::Workspace};
use crate::backend::SavesSandboxes;

/// The sessions that earlier servers have saved, of all callers.
#[derive(Debug, Default)]
pub(super) struct SavedBefore {
    names: BTreeSet<SessionId>,
    of_workspaces: HashMap<SessionKey, SessionId>,
}

/// A saved session that can resume and has not been used since this server started.
#[derive(Debug, Clone)]
pub struct Sleeper {
    /// Its name.
    pub id: SessionId,
    /// When it began, if that was recorded.
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
                Ok(record) => (record.session.clone(), record.workspace_key()),
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
