//! Calls of the operator's own tools, which a sandbox of the embedded engine serves.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

#[cfg(doc)]
use super::Get;

/// Runs the program of a tool once, in a fresh instance with files of its own. Only agents that serve a tool do this,
/// and any number of calls at once. The files can be read ([`Get::of`]) until they are removed ([`Forget`]).
///
/// Body: a [`CallInput`] as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// Wall time after which it is killed.
    pub timeout_ms: u64,
    /// The maximum number of instructions; `None` for no limit.
    pub fuel: Option<u64>,
    /// The maximum number of bytes returned of each of stdout and stderr: the start and, with two
    /// fifths of them, the end.
    pub output_cap: usize,
}

/// The input of a tool's program.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallInput {
    /// The program's arguments. The first is the program's name.
    pub args: Vec<String>,
    /// The program's environment variables, as `NAME=value`.
    pub env: Vec<String>,
    /// Files by path, relative to the tool's folder.
    pub files: BTreeMap<String, String>,
    /// The program's standard input.
    pub stdin: String,
}

/// Removes the files of a [`Call`]. It is no error if there are none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forget {
    /// Call id of the [`Call`].
    pub call: u32,
}
