//! Sessions that go on from what another server has kept of their sandboxes.

use std::collections::{BTreeSet, HashMap};

use jiff::Timestamp;
use model::{OwnSettings, SessionId, SessionKey};
use protocol::message::RuntimeName;
use serde::{Deserialize, Serialize};

use super::{
    Sessions,
    registry::Registry,
    which::{Opened, Which, Workspace},
};
use crate::{backend::Backend, session::handle::Handle};

/// What is noted beside a sandbox when its session begins.
#[derive(Debug, Serialize, Deserialize)]
struct Note {
    session: String,
    /// The workspace that it is the session of, if that has a name that it will have with the next server.
    workspace: Option<SessionKey>,
    own: OwnSettings,
    /// When somebody asked for it, in seconds since 1970.
    begun_s: Option<i64>,
}

/// The sessions that there were with the servers before this one, whosever they are.
#[derive(Debug, Default)]
pub(super) struct KeptSessions {
    names: BTreeSet<SessionId>,
    of_workspaces: HashMap<SessionKey, SessionId>,
}

/// A session that can go on, and has not been asked for since this server began.
#[derive(Debug, Clone)]
pub struct Sleeper {
    /// Its name.
    pub id: SessionId,
    /// When somebody asked for it first, if that was noted.
    pub since: Option<Timestamp>,
}

impl KeptSessions {
    /// As they were noted.
    pub(super) fn noted(backend: &dyn Backend) -> Self {
        let mut known = Self::default();
        for text in backend.all_noted() {
            let note = serde_json::from_str::<Note>(&text).ok();
            let id = note.as_ref().and_then(|note| note.session.parse::<SessionId>().ok());
            let Some((note, id)) = note.zip(id) else { continue };
            if let Some(workspace) = note.workspace {
                known.of_workspaces.insert(workspace, id.clone());
            }
            known.names.insert(id);
        }
        known
    }
}

impl Sessions {
    /// Under what the session of what is meant is kept when the server ends, if it is.
    pub(super) fn key_of(&self, which: &Which, id: &SessionId) -> Option<SessionKey> {
        self.keeps(which).then(|| SessionKey::of(&self.caller, id))
    }

    /// Whether the sandbox of what is meant is kept when the server ends.
    pub(super) fn keeps(&self, which: &Which) -> bool {
        !matches!(which, Which::Stateless(_)) && self.inner.backend.keeps_sandboxes()
    }

    /// Whether the caller's session of this name can go on from what another server has kept of it.
    pub(super) fn has_kept(&self, id: &SessionId) -> bool {
        let backend = &self.inner.backend;
        backend.keeps_sandboxes() && backend.has_kept(&SessionKey::of(&self.caller, id))
    }

    /// The session of a workspace that can go on so.
    pub(super) fn kept_for(&self, workspace: &Workspace) -> Option<SessionId> {
        self.noted_for(workspace).filter(|id| self.has_kept(id)).cloned()
    }

    /// The session that a workspace had when it was noted.
    fn noted_for(&self, workspace: &Workspace) -> Option<&SessionId> {
        self.inner.kept_sessions.of_workspaces.get(&self.key_of_workspace(workspace)?)
    }

    /// The caller's session of a workspace, also if it was woken by its name and not for the workspace.
    pub(super) fn find_workspace<'a>(
        &self,
        registry: &'a Registry,
        workspace: &Workspace,
    ) -> Option<(Opened, &'a Handle)> {
        registry.find_workspace(&self.caller, workspace).or_else(|| {
            let id = self.noted_for(workspace)?;
            let handle = registry.find(&self.caller, id).filter(|handle| handle.is_kept)?;
            Some((Opened { id: id.clone(), is_new: false, lost: None }, handle))
        })
    }

    /// The caller's sessions that can go on, and that nobody has asked for since this server began.
    pub fn sleepers(&self) -> Vec<Sleeper> {
        let names = self.inner.kept_sessions.names.iter();
        let asleep = names.filter(|id| self.find(id).is_none() && self.has_kept(id));
        let sleeper = |id: &SessionId| {
            let begun =
                self.note_of(id).and_then(|note| Timestamp::from_second(note.begun_s?).ok());
            Sleeper { id: id.clone(), since: begun }
        };
        asleep.map(sleeper).collect()
    }

    fn note_of(&self, id: &SessionId) -> Option<Note> {
        let text = self.inner.backend.noted(&SessionKey::of(&self.caller, id))?;
        serde_json::from_str(&text).ok()
    }

    fn keep_note(&self, key: &SessionKey, note: &Note) {
        self.inner.backend.note(key, &serde_json::to_string(note).unwrap_or_default());
    }

    /// The language of the caller's session of this name, for cells that name none, if it was created with one. The
    /// session may be there, asleep, or in the archive.
    pub async fn language(&self, id: &SessionId) -> Option<RuntimeName> {
        if let Some(handle) = self.find(id) {
            return handle.own.language;
        }
        if let Some(note) = self.note_of(id) {
            return note.own.language;
        }
        self.archived(id).await?.manifest.own.language
    }

    fn key_of_workspace(&self, workspace: &Workspace) -> Option<SessionKey> {
        Some(SessionKey::of_workspace(&self.caller, workspace.name()?))
    }

    /// The settings of a session that begins, which are noted, or of one that goes on, as they were noted.
    pub(super) fn own_of_kept(
        &self,
        key: &SessionKey,
        (id, which): (&SessionId, &Which),
        own: OwnSettings,
    ) -> OwnSettings {
        let backend = &self.inner.backend;
        if backend.has_kept(key) {
            let note = backend.noted(key).and_then(|text| serde_json::from_str(&text).ok());
            return note.map_or(own, |note: Note| note.own);
        }
        let workspace = match which {
            Which::Automatic(workspace) => self.key_of_workspace(workspace),
            _ => None,
        };
        let begun_s = Some(Timestamp::now().as_second());
        let session = id.to_string();
        self.keep_note(key, &Note { session, workspace, own: own.clone(), begun_s });
        own
    }
}
