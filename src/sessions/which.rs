//! Which session a call means.

use std::{
    fmt,
    hash::{Hash, Hasher},
    sync::Arc,
};

use model::{Lost, LostReason, SessionId, WorkspaceId};
use protocol::message::WentOn;
use tokio_util::sync::CancellationToken;

use super::stateless::Stateless;

/// Which session a call means.
#[derive(Debug, Clone)]
pub enum Which {
    /// A new session.
    New,
    /// The caller's session of this name, or a new one with it. A generated name starts no session: its session has
    /// ended.
    Named(SessionId),
    /// The session of this workspace, or a new one that belongs to it from now on.
    Automatic(Workspace),
    /// A new session that ends with its call.
    Stateless(Stateless),
}

impl From<SessionId> for Which {
    fn from(id: SessionId) -> Self {
        Self::Named(id)
    }
}

/// The session with this name, if one is given; otherwise a new one.
impl From<Option<SessionId>> for Which {
    fn from(id: Option<SessionId>) -> Self {
        id.map_or(Self::New, Self::Named)
    }
}

/// A workspace: finds a session without a session id. It belongs to one caller; another caller's workspace of the same
/// name is a different one.
#[derive(Clone)]
pub struct Workspace {
    id: WorkspaceId,
    /// Cancelled when the MCP session of the workspace has ended: no session is started for the workspace then.
    ended: Option<CancellationToken>,
}

impl Workspace {
    /// The name of the workspace of a caller that names none.
    const DEFAULT: &'static str = "default";

    /// The caller's workspace of this name.
    pub fn named(name: SessionId) -> Self {
        Self { id: WorkspaceId::Named(name), ended: None }
    }

    /// The workspace of a caller that names none.
    pub fn default_of_caller() -> Self {
        Self::named(Self::DEFAULT.parse().expect("a valid name"))
    }

    /// The workspace of an MCP session of the caller. The token is cancelled when the MCP session has ended.
    pub fn of_mcp_session(id: Arc<str>, ended: CancellationToken) -> Self {
        Self { id: WorkspaceId::McpSession(id), ended: Some(ended) }
    }

    /// The workspace with this id, which a session's record names; `None` if the id does not contain the name.
    pub(super) fn recorded(id: &WorkspaceId) -> Option<Self> {
        match id {
            WorkspaceId::Named(name) => Some(Self::named(name.clone())),
            WorkspaceId::McpSession(id) => {
                Some(Self::of_mcp_session(id.clone(), CancellationToken::new()))
            }
            WorkspaceId::Hashed(_) => None,
        }
    }

    /// The workspace's name, if that outlives the connections of its clients.
    pub(super) fn name(&self) -> Option<&SessionId> {
        match &self.id {
            WorkspaceId::Named(name) => Some(name),
            WorkspaceId::McpSession(_) | WorkspaceId::Hashed(_) => None,
        }
    }

    pub(super) fn id(&self) -> &WorkspaceId {
        &self.id
    }

    /// Whether the MCP session of the workspace has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.as_ref().is_some_and(CancellationToken::is_cancelled)
    }
}

impl PartialEq for Workspace {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for Workspace {}

impl Hash for Workspace {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id.hash(state);
    }
}

impl fmt::Debug for Workspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.id.fmt(f)
    }
}

/// The session that a call was for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opened {
    /// The session's name.
    pub id: SessionId,
    /// Whether the session was started for this call or, for a workspace, its caller has not yet been told that it was
    /// started.
    pub is_new: bool,
    /// The earlier session of this name or workspace, if this one is new and the earlier one is remembered.
    pub lost: Option<Lost>,
}

impl Opened {
    /// Completes the facts once it is known whether the session resumed from its saved state.
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
