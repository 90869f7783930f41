//! Sessions that go on from what another server has kept of their sandboxes.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::{
    Sessions,
    create::OwnLimits,
    which::{Which, Workspace},
};
use crate::{
    backend::{Backend, KeptKey},
    session::SessionId,
};

/// What is noted beside a sandbox when its session begins.
#[derive(Debug, Serialize, Deserialize)]
struct Note {
    session: String,
    /// The workspace that it is the session of, if that has a name that it will have with the next server.
    workspace: Option<KeptKey>,
    limits: OwnLimits,
}

/// The sessions that workspaces had with the servers before this one.
#[derive(Debug, Default)]
pub(super) struct KeptWorkspaces(HashMap<KeptKey, SessionId>);

impl KeptWorkspaces {
    /// As they were noted.
    pub(super) fn noted(backend: &dyn Backend) -> Self {
        let notes = backend.all_noted().into_iter();
        let workspace = |text: String| {
            let note: Note = serde_json::from_str(&text).ok()?;
            Some((note.workspace?, note.session.parse().ok()?))
        };
        Self(notes.filter_map(workspace).collect())
    }
}

impl Sessions {
    /// Under what the session of what is meant is kept when the server ends, if it is.
    pub(super) fn key_of(&self, which: &Which, id: &SessionId) -> Option<KeptKey> {
        self.keeps(which).then(|| KeptKey::of(&self.caller, id))
    }

    /// Whether the sandbox of what is meant is kept when the server ends.
    pub(super) fn keeps(&self, which: &Which) -> bool {
        !matches!(which, Which::Stateless(_)) && self.inner.backend.keeps_sandboxes()
    }

    /// Whether the caller's session of this name can go on from what another server has kept of it.
    pub(super) fn has_kept(&self, id: &SessionId) -> bool {
        let backend = &self.inner.backend;
        backend.keeps_sandboxes() && backend.has_kept(&KeptKey::of(&self.caller, id))
    }

    /// The session of a workspace that can go on so.
    pub(super) fn kept_for(&self, workspace: &Workspace) -> Option<SessionId> {
        let KeptWorkspaces(known) = &self.inner.kept_workspaces;
        let id = known.get(&self.key_of_workspace(workspace)?)?;
        self.has_kept(id).then(|| id.clone())
    }

    fn key_of_workspace(&self, workspace: &Workspace) -> Option<KeptKey> {
        Some(KeptKey::of_workspace(&self.caller, workspace.name()?))
    }

    /// The limits of a session that begins, which are noted, or of one that goes on, as they were noted.
    pub(super) fn limits_of_kept(
        &self,
        key: &KeptKey,
        (id, which): (&SessionId, &Which),
        own: OwnLimits,
    ) -> OwnLimits {
        let backend = &self.inner.backend;
        if backend.has_kept(key) {
            let note = backend.noted(key).and_then(|text| serde_json::from_str(&text).ok());
            return note.map_or(own, |note: Note| note.limits);
        }
        let workspace = match which {
            Which::Automatic(workspace) => self.key_of_workspace(workspace),
            _ => None,
        };
        if own.are_special() || workspace.is_some() {
            let note = Note { session: id.to_string(), workspace, limits: own };
            backend.note(key, &serde_json::to_string(&note).unwrap_or_default());
        }
        own
    }
}
