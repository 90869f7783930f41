//! Sessions that resume from a sandbox that an earlier server has saved on disk.

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
use crate::{backend::SavesSandboxes, session::handle::Handle};

/// The note that is stored beside a sandbox when its session begins.
#[derive(Debug, Serialize, Deserialize)]
struct Note {
    session: String,
    /// The workspace that it belongs to, if the workspace has the same name with the next server.
    workspace: Option<SessionKey>,
    own: OwnSettings,
    /// When the session began, in seconds since 1970.
    begun_s: Option<i64>,
}

/// The saved sessions of earlier servers, of all callers.
#[derive(Debug, Default)]
pub(super) struct KeptSessions {
    names: BTreeSet<SessionId>,
    of_workspaces: HashMap<SessionKey, SessionId>,
}

/// A saved session that can resume and has not been used since this server started.
#[derive(Debug, Clone)]
pub struct Sleeper {
    /// Its name.
    pub id: SessionId,
    /// When it began, if that was noted.
    pub since: Option<Timestamp>,
}

impl KeptSessions {
    /// Reads the notes that the backend stores.
    pub(super) fn noted(saved: &dyn SavesSandboxes) -> Self {
        let mut known = Self::default();
        for text in saved.all_noted() {
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
    /// The key under which the sandbox of the call's session is saved when the server ends; `None` if it is not saved.
    pub(super) fn key_of(&self, which: &Which, id: &SessionId) -> Option<SessionKey> {
        self.keeps(which).then(|| SessionKey::of(&self.caller, id))
    }

    /// Whether the sandbox of the call's session is saved when the server ends.
    pub(super) fn keeps(&self, which: &Which) -> bool {
        !matches!(which, Which::Stateless(_)) && self.saved().is_some()
    }

    pub(super) fn saved(&self) -> Option<&dyn SavesSandboxes> {
        self.inner.backend.abilities().saved
    }

    /// Whether the caller's session of this name can resume from a saved sandbox.
    pub(super) fn has_kept(&self, id: &SessionId) -> bool {
        self.saved().is_some_and(|saved| saved.has(&SessionKey::of(&self.caller, id)))
    }

    /// The workspace's session that can resume from a saved sandbox.
    pub(super) fn kept_for(&self, workspace: &Workspace) -> Option<SessionId> {
        self.noted_for(workspace).filter(|id| self.has_kept(id)).cloned()
    }

    /// The session of a workspace, according to the notes.
    fn noted_for(&self, workspace: &Workspace) -> Option<&SessionId> {
        self.inner.kept_sessions.of_workspaces.get(&self.key_of_workspace(workspace)?)
    }

    /// The caller's session of a workspace, even if it was woken by its name and not for the workspace.
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

    /// The caller's saved sessions that can resume and have not been used since this server started.
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
        let text = self.saved()?.noted(&SessionKey::of(&self.caller, id))?;
        serde_json::from_str(&text).ok()
    }

    /// The language of cells that name none, in the caller's session of this name, if it was created with one. The
    /// session may be live, saved or archived.
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

    /// The settings of a session: a new session's are stored in its note, a saved session's are read from there.
    pub(super) fn own_of_kept(
        &self,
        key: &SessionKey,
        (id, which): (&SessionId, &Which),
        own: OwnSettings,
    ) -> OwnSettings {
        let Some(saved) = self.saved() else { return own };
        if saved.has(key) {
            let note = saved.noted(key).and_then(|text| serde_json::from_str(&text).ok());
            return note.map_or(own, |note: Note| note.own);
        }
        let workspace = match which {
            Which::Automatic(workspace) => self.key_of_workspace(workspace),
            _ => None,
        };
        let begun_s = Some(Timestamp::now().as_second());
        let session = id.to_string();
        let note = Note { session, workspace, own: own.clone(), begun_s };
        saved.note(key, &serde_json::to_string(&note).expect("a map of texts and numbers"));
        own
    }
}
