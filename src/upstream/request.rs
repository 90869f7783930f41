//! Requests of programs and the errors that they get: JSON, as the module `tools` in a sandbox writes and reads it.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::structure::structure;

/// Longest message of an error, in characters.
const MAX_MESSAGE: usize = 4000;

/// Maximum number of structural characters of a request: a table of 10,000 rows with two columns. Parsed, it takes
/// 30 MB at most.
pub const MAX_TOKENS: usize = 50_000;

/// A request for lists.
#[derive(Debug, Clone, PartialEq)]
pub enum Discover {
    /// The upstreams.
    List {
        /// Whether only names and descriptions are wanted, for which no upstream is asked.
        is_brief: bool,
    },
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
    List {
        #[serde(default)]
        brief: bool,
    },
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
    /// The number of structural characters of a program's JSON, with which the memory grows that it takes when it is
    /// parsed.
    ///
    /// # Errors
    /// If there are more than [`MAX_TOKENS`].
    pub fn weight(json: &[u8]) -> Result<u32, CallError> {
        let tokens = structure(json, MAX_TOKENS).map(|structure| structure.tokens);
        tokens.and_then(|tokens| tokens.try_into().ok()).ok_or_else(|| {
            let why = "the arguments have too many objects, lists and fields; send a smaller part, or text";
            CallError::new(CallErrorKind::InvalidArguments, why)
        })
    }

    /// Parses the JSON of a program.
    ///
    /// # Errors
    /// If it is not a request.
    pub fn parse(json: &[u8]) -> Result<Self, CallError> {
        Self::weight(json)?;
        let written = serde_json::from_slice(json).map_err(|error| {
            let why = format!("the request is invalid: {error}");
            CallError::new(CallErrorKind::InvalidArguments, why)
        })?;
        Ok(match written {
            Written::List { brief } => Self::Discover(Discover::List { is_brief: brief }),
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
    /// The time for a person to decide has passed.
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn refused(json: &str) -> CallError {
        Request::parse(json.as_bytes()).expect_err("it is no request")
    }

    #[test]
    fn a_request_that_takes_far_more_memory_than_bytes_is_refused() {
        for bomb in [r#"{"":0},"#, "0,", "[],", r#"{"a":{}},"#] {
            let list = bomb.repeat(MAX_TOKENS);
            let list = list.trim_end_matches(',');
            let json = format!(
                r#"{{"op":"call","upstream":"a","tool":"b","arguments":{{"x":[{list}]}}}}"#
            );
            let error = refused(&json);
            assert_eq!(error.kind, CallErrorKind::InvalidArguments);
            assert!(error.message.contains("too many"), "{}", error.message);
        }
    }

    #[test]
    fn a_request_that_is_none_is_an_error_of_bounded_length() {
        let long = "\u{202e}x".repeat(200_000);
        for json in [
            format!(r#"{{"op":"{long}"}}"#),
            format!(r#"{{"op":"list","{long}":1}}"#),
            format!(r#"{{"op":"call","upstream":"a","tool":"b","arguments":"{long}"}}"#),
            "[".repeat(40_000),
            r#"{"op":"call","upstream":"a","tool":"b","arguments":{"a":"#.repeat(200),
            r#"{"op":"search","query":"a","limit":4294967296}"#.into(),
            r#"{"op":"search","query":"a","limit":-1}"#.into(),
            r#"{"op":"list","upstream":"a"}"#.into(),
            r#"{"op":"call","op":"list","upstream":"a"}"#.into(),
            r#"{"op":"call","upstream":"a","tool":"b","caller":"bob"}"#.into(),
            r#"{"op":null}"#.into(),
            String::new(),
        ] {
            let error = refused(&json);
            assert_eq!(error.kind, CallErrorKind::InvalidArguments);
            assert!(error.message.chars().count() <= MAX_MESSAGE + 10, "{}", error.message.len());
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_or_refused(json in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = Request::parse(&json);
        }

        #[test]
        fn almost_requests_are_parsed_or_refused(
            json in r#"\{"op":"(list|tools|search|call|x)"(,"(upstream|tool|query|limit|arguments)":("[a-z\\\\]{0,9}"|[0-9]{1,12}|\{\}|\[1\]|null)){0,4}\}?"#,
        ) {
            if let Err(error) = Request::parse(json.as_bytes()) {
                prop_assert_eq!(error.kind, CallErrorKind::InvalidArguments);
            }
        }
    }
}
