//! Requests of programs and the errors that they get: JSON, as the module `tools` in a sandbox writes and reads it.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Longest message of an error, in characters.
const MAX_MESSAGE: usize = 4000;

/// A request for lists.
#[derive(Debug, Clone, PartialEq)]
pub enum Discover {
    /// The upstreams.
    List,
    /// The tools of one.
    Tools {
        /// Its name.
        upstream: String,
    },
    /// Tools by words.
    Search {
        /// The words.
        query: String,
        /// The largest number of tools.
        limit: Option<u32>,
    },
}

/// A call of a tool.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolCall {
    /// The name of the upstream.
    pub upstream: String,
    /// The upstream's own name of the tool; of a service, a method in lower case.
    pub tool: String,
    /// The arguments by name.
    #[serde(default)]
    pub arguments: Map<String, Value>,
}

/// A program's request.
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    /// For lists.
    Discover(Discover),
    /// For a call.
    Call(ToolCall),
}

/// A request as it is written.
#[derive(Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
enum Written {
    List {},
    Tools {
        upstream: String,
    },
    Search {
        query: String,
        #[serde(default)]
        limit: Option<u32>,
    },
    Call(ToolCall),
}

impl Request {
    /// Parses the JSON of a program.
    ///
    /// # Errors
    /// If it is not a request.
    pub fn parse(json: &[u8]) -> Result<Self, CallError> {
        let written = serde_json::from_slice(json).map_err(|error| {
            let why = format!("the request is invalid: {error}");
            CallError::new(CallErrorKind::InvalidArguments, why)
        })?;
        Ok(match written {
            Written::List {} => Self::Discover(Discover::List),
            Written::Tools { upstream } => Self::Discover(Discover::Tools { upstream }),
            Written::Search { query, limit } => Self::Discover(Discover::Search { query, limit }),
            Written::Call(call) => Self::Call(call),
        })
    }
}

/// Why a call failed. As JSON, `{"kind": "...", "message": "..."}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallError {
    /// The kind, by which code tells errors apart.
    pub kind: CallErrorKind,
    /// A sentence for the model, in the upstream's words if it is the upstream's error.
    pub message: String,
}

/// The kind of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallErrorKind {
    /// The server has no upstreams for this caller.
    NotEnabled,
    /// No upstream has this name, or the caller may not use it.
    UnknownUpstream,
    /// The upstream has no such tool.
    UnknownTool,
    /// The settings do not allow the tool.
    NotAllowed,
    /// The arguments do not fit the tool.
    InvalidArguments,
    /// A person did not allow the call.
    Denied,
    /// Nobody decided in time.
    Unanswered,
    /// A limit is reached: calls, bytes, parallel calls, or calls a minute.
    Limit,
    /// The upstream reported an error.
    Upstream,
    /// The upstream cannot be reached, died, did not answer in time, or answered nonsense.
    Unavailable,
    /// The run ended or was cancelled.
    Cancelled,
    /// The server was replaced during the call, which may have been made.
    UnknownOutcome,
}

impl CallError {
    /// An error with a message, which is cut if it is long.
    pub fn new(kind: CallErrorKind, message: impl Into<String>) -> Self {
        let message = super::catalogue::cut(message.into(), MAX_MESSAGE);
        Self { kind, message }
    }

    /// The error without these secrets.
    pub(super) fn without(mut self, secrets: &[&str]) -> Self {
        super::answer::remove_from(&mut self.message, secrets);
        self
    }
}
