//! Calls out of a sandbox of which a person must decide.

use jiff::Timestamp;
use serde::Deserialize;

use crate::{RunId, SessionId};

/// A call of which a person must decide.
#[derive(Debug, PartialEq, Eq)]
pub struct Approval {
    /// Its name among all approvals of the server.
    pub id: String,
    /// The session whose code makes the call.
    pub session: SessionId,
    /// The run whose code makes the call.
    pub run_id: RunId,
    /// The name of the upstream.
    pub upstream: String,
    /// The name of its tool.
    pub tool: String,
    /// The first line of the tool's description, as printable text.
    pub description: String,
    /// The arguments as JSON for people, cut if it is long.
    pub arguments: String,
    /// When the call is refused if nobody decides.
    pub until: Timestamp,
}

/// A person's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// The call may be made.
    Once,
    /// The run may call the tool from now on.
    Run,
    /// The session may call the tool from now on.
    Session,
    /// The call must not be made.
    Deny,
}

impl Decision {
    /// The word for it, as in requests.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Once => "once",
            Self::Run => "run",
            Self::Session => "session",
            Self::Deny => "deny",
        }
    }
}

/// Words of the errors of a call that was refused: by a person, by nobody's decision, and by the settings. Notes on a run
/// recognize such errors by them.
pub const DENIED: &str = "a person did not allow the call";
/// See [`DENIED`].
pub const UNANSWERED: &str = "nobody decided on the call";
/// See [`DENIED`].
pub const NOT_ALLOWED: &str = "the operator has not allowed";
