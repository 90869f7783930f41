//! The record of a session.

use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{DatasetName, OwnSettings, Principal, SessionId, SessionKey};

/// The record by which a later server, or another one, continues a session. The state folder, a resumable sandbox and
/// the archive store it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Stored", try_from = "Stored")]
pub struct SessionRecord {
    /// The caller who owns the session.
    pub caller: Principal,
    /// The session's name.
    pub session: SessionId,
    /// The number that the session's URLs are bound to.
    pub number: u64,
    /// When the session's caller asked for it first.
    pub since: Timestamp,
    /// The workspace that the session belongs to, if it belongs to one.
    pub workspace: Option<WorkspaceId>,
    /// The session's own settings.
    pub own: OwnSettings,
    /// The datasets that its sandbox can read.
    pub datasets: Vec<DatasetName>,
}

/// The identity of a workspace among those of its caller.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum WorkspaceId {
    /// A workspace with a name, which outlives the connections of its client.
    Named(SessionId),
    /// The workspace of an MCP session.
    McpSession(Arc<str>),
    /// A workspace with a name of which only the key was recorded.
    Hashed(SessionKey),
}

impl SessionRecord {
    /// The key under which the session is saved and archived.
    pub fn key(&self) -> SessionKey {
        SessionKey::of(&self.caller, &self.session)
    }

    /// The key of the session's workspace, if the workspace has a name.
    pub fn workspace_key(&self) -> Option<SessionKey> {
        self.workspace.as_ref()?.key(&self.caller)
    }
}

impl WorkspaceId {
    /// The key of this caller's workspace; `None` if the workspace has no name.
    pub fn key(&self, caller: &Principal) -> Option<SessionKey> {
        match self {
            Self::Named(name) => Some(SessionKey::of_workspace(caller, name)),
            Self::McpSession(_) => None,
            Self::Hashed(key) => Some(key.clone()),
        }
    }
}

/// A record as it is stored.
#[derive(Serialize, Deserialize)]
struct Stored {
    caller: String,
    session: String,
    number: u64,
    /// Milliseconds since 1970.
    since: i64,
    workspace: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mcp_session: Option<Arc<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    workspace_key: Option<SessionKey>,
    own: OwnSettings,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    datasets: Vec<String>,
}

impl From<SessionRecord> for Stored {
    fn from(record: SessionRecord) -> Self {
        let SessionRecord { caller, session, number, since, workspace, own, datasets } = record;
        let (workspace, mcp_session, workspace_key) = match workspace {
            Some(WorkspaceId::Named(name)) => (Some(name.to_string()), None, None),
            Some(WorkspaceId::McpSession(id)) => (None, Some(id), None),
            Some(WorkspaceId::Hashed(key)) => (None, None, Some(key)),
            None => (None, None, None),
        };
        let (caller, session) = (caller.name().to_owned(), session.to_string());
        let since = since.as_millisecond();
        let datasets = datasets.iter().map(ToString::to_string).collect();
        Self {
            caller,
            session,
            number,
            since,
            workspace,
            mcp_session,
            workspace_key,
            own,
            datasets,
        }
    }
}

impl TryFrom<Stored> for SessionRecord {
    type Error = &'static str;

    fn try_from(stored: Stored) -> Result<Self, &'static str> {
        let name = stored.workspace.and_then(|name| name.parse().ok()).map(WorkspaceId::Named);
        let mcp_session = stored.mcp_session.map(WorkspaceId::McpSession);
        let key = stored.workspace_key.filter(SessionKey::is_valid).map(WorkspaceId::Hashed);
        Ok(Self {
            caller: Principal::named(&stored.caller).ok_or("its caller's name is not valid")?,
            session: stored.session.parse().map_err(|_| "its name is not valid")?,
            number: stored.number,
            since: Timestamp::from_millisecond(stored.since)
                .map_err(|_| "its time is not valid")?,
            workspace: name.or(mcp_session).or(key),
            own: stored.own,
            datasets: stored.datasets.iter().filter_map(|name| name.parse().ok()).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(workspace: Option<WorkspaceId>) -> SessionRecord {
        SessionRecord {
            caller: Principal::named("alice").expect("a valid name"),
            session: "reports".parse().expect("a valid name"),
            number: 7,
            since: Timestamp::from_millisecond(1_700_000_000_123).expect("a time of this era"),
            workspace,
            own: OwnSettings { memory: Some(1 << 30), ..OwnSettings::default() },
            datasets: vec!["sales".parse().expect("a valid name")],
        }
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let name = "q3".parse().expect("a valid name");
        let key = SessionKey::of_workspace(&Principal::local(), &name);
        let workspaces = [
            None,
            Some(WorkspaceId::Named(name)),
            Some(WorkspaceId::McpSession("abc".into())),
            Some(WorkspaceId::Hashed(key)),
        ];
        for workspace in workspaces {
            let record = record(workspace);
            let text = serde_json::to_string(&record).expect("a map of texts and numbers");
            assert_eq!(serde_json::from_str::<SessionRecord>(&text).ok(), Some(record));
        }
    }

    #[test]
    fn a_record_of_an_earlier_version_is_read() {
        let text = r#"{"caller":"alice","session":"reports","number":7,"since":1700000000123,"workspace":"q3","own":{"memory":1073741824,"ttl":null}}"#;
        let named = WorkspaceId::Named("q3".parse().expect("a valid name"));
        let earlier = SessionRecord { datasets: vec![], ..record(Some(named)) };
        assert_eq!(serde_json::from_str(text).ok(), Some(earlier));
    }

    #[test]
    fn a_record_with_names_that_are_not_valid_is_refused() {
        let good = serde_json::to_value(record(None)).expect("a map of texts and numbers");
        for (field, wrong) in [("caller", ""), ("caller", "a b"), ("session", "../x")] {
            let mut text = good.clone();
            text[field] = wrong.into();
            assert!(serde_json::from_value::<SessionRecord>(text).is_err(), "{field}: {wrong}");
        }
    }
}
