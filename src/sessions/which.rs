//! Which session a call means.

use std::{
    fmt,
    hash::{Hash, Hasher},
    sync::Arc,
};

use model::{Lost, LostReason, SessionId};
use protocol::message::WentOn;
use tokio_util::sync::CancellationToken;

use super::stateless::Stateless;

/// Which session a call means.
#[derive(Debug, Clone)]
pub enum Which {
    /// A new one.
    New,
    /// The caller's session of this name, or a new one of it. Names that are minted here start none:
    /// their session has ended.
    Named(SessionId),
    /// The one that belongs to this workspace, or a new one that does from now on.
    Automatic(Workspace),
    /// A new one that ends with its call.
    Stateless(Stateless),
}

impl From<SessionId> for Which {
    fn from(id: SessionId) -> Self {
        Self::Named(id)
    }
}

/// The session that is named, if one is; otherwise a new one.
impl From<Option<SessionId>> for Which {
    fn from(id: Option<SessionId>) -> Self {
        id.map_or(Self::New, Self::Named)
    }
}

/// What a session belongs to that nobody has to name. It is always one caller's: the same workspace of
/// another caller is another one.
#[derive(Clone)]
pub struct Workspace {
    key: WorkspaceKey,
    /// Cancelled when what it belongs to has ended: then no session is started for it any more.
    ended: Option<CancellationToken>,
}

/// Tells the workspaces of one caller apart.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum WorkspaceKey {
    /// One that the client's URL names.
    Named(SessionId),
    /// That of an MCP session.
    McpSession(Arc<str>),
}

impl Workspace {
    /// What the workspace of a caller is called that names none.
    const DEFAULT: &'static str = "default";

    /// The caller's workspace of this name.
    pub fn named(name: SessionId) -> Self {
        Self { key: WorkspaceKey::Named(name), ended: None }
    }

    /// The one that a caller has without naming one.
    pub fn default_of_caller() -> Self {
        Self::named(Self::DEFAULT.parse().expect("a valid name"))
    }

    /// That of an MCP session of the caller. The token is cancelled when that has ended.
    pub fn of_mcp_session(id: Arc<str>, ended: CancellationToken) -> Self {
        Self { key: WorkspaceKey::McpSession(id), ended: Some(ended) }
    }

    /// What it is called, if its name outlives the connections of its clients.
    pub(super) fn name(&self) -> Option<&SessionId> {
        match &self.key {
            WorkspaceKey::Named(name) => Some(name),
            WorkspaceKey::McpSession(_) => None,
        }
    }

    /// The MCP session whose it is, if it is one's.
    pub(super) fn mcp_session(&self) -> Option<&str> {
        match &self.key {
            WorkspaceKey::Named(_) => None,
            WorkspaceKey::McpSession(id) => Some(id),
        }
    }

    pub(super) fn key(&self) -> &WorkspaceKey {
        &self.key
    }

    /// What it belongs to is over.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.as_ref().is_some_and(CancellationToken::is_cancelled)
    }
}

impl PartialEq for Workspace {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for Workspace {}

impl Hash for Workspace {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key.hash(state);
    }
}

impl fmt::Debug for Workspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.key.fmt(f)
    }
}

/// Which session a call was for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opened {
    /// Its name.
    pub id: SessionId,
    /// It was started for this call; of a workspace also: its caller has not yet been told that it was
    /// started.
    pub is_new: bool,
    /// What was there before by this name or for this workspace, if it is new and that is remembered.
    pub lost: Option<Lost>,
}

impl Opened {
    /// The same of a session of which it is known now what became of what was kept of it.
    pub(super) fn knowing(self, went_on: Option<WentOn>) -> Self {
        let lost = |why| Some(Lost { id: self.id.clone(), why });
        match went_on {
            Some(WentOn::Last) => Self { is_new: false, ..self },
            Some(WentOn::Older) => Self { lost: lost(LostReason::Older), is_new: false, ..self },
            Some(WentOn::Unusable) => {
                Self { lost: lost(LostReason::NotKept), is_new: true, ..self }
            }
            Some(WentOn::Nothing | WentOn::Taken) | None => self,
        }
    }
}
