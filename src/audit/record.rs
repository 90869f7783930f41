//! The contents of a call's line, and digests of what the line does not contain.

use std::io;

use jiff::Timestamp;
use model::Artifact;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::chain::{FoundHead, Hash, Position};

/// The hash and the size of bytes that the file does not contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Digest {
    /// The hash of all bytes.
    pub(crate) sha256: Hash,
    /// The number of bytes.
    pub(crate) bytes: u64,
}

impl Digest {
    /// Returns the digest of some bytes.
    pub(crate) fn of(bytes: impl AsRef<[u8]>) -> Self {
        let bytes = bytes.as_ref();
        Self { sha256: Hash::of(bytes), bytes: bytes.len() as u64 }
    }

    /// Returns the digest of a value as JSON: without blanks, the keys of objects in order.
    pub(crate) fn of_json(value: &impl Serialize) -> Self {
        let mut hashing = Hashing::default();
        serde_json::to_writer(&mut hashing, value)
            .expect("JSON serializes, and `Hashing` takes all bytes");
        hashing.end()
    }
}

/// A digest that is computed piece by piece.
#[derive(Debug, Clone, Default)]
pub(crate) struct Hashing {
    hasher: Sha256,
    bytes: u64,
}

impl Hashing {
    pub(crate) fn add(&mut self, piece: &[u8]) {
        self.hasher.update(piece);
        self.bytes += piece.len() as u64;
    }

    /// The number of bytes so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn end(self) -> Digest {
        Digest { sha256: Hash::finished(self.hasher), bytes: self.bytes }
    }
}

impl io::Write for Hashing {
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        self.add(piece);
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The line of a call.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Record {
    pub(crate) caller: String,
    /// The name of a tool, or of the action of a request over HTTP.
    pub(crate) tool: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) session_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) run_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) language: Option<String>,
    /// The program as it was run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) code: Option<Digest>,
    pub(crate) inputs: Inputs,
    pub(crate) outputs: Outputs,
    /// The image from which the sandbox was made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) image: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) limits: Option<Limits>,
    /// A person's decision on a call out of a sandbox, and the way by which it came.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) decision: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) decided_by: Option<&'static str>,
    /// The outcome, as in the log.
    pub(crate) outcome: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) exit_code: Option<i32>,
    pub(crate) duration_ms: u64,
    /// The number of the caller's calls that were refused since its last line, and have no line.
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) omitted: u64,
    /// Time at which the call ended.
    #[serde(skip)]
    pub(crate) time: Timestamp,
}

/// Outcomes of refused calls, which have no effect.
const REFUSALS: &[&str] = &[
    "artifact_too_large",
    "code_too_large",
    "file_exists",
    "invalid_argument",
    "invalid_base64",
    "invalid_filename",
    "invalid_path",
    "invalid_session_id",
    "max_sessions",
    "not_found",
    "not_read",
    "nothing_to_undo",
    "sandbox_unavailable",
    "session_busy",
    "session_not_found",
    "unsupported_language",
    "upload_too_large",
];

/// Digests of a call's inputs.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Inputs {
    /// All arguments of a tool, as JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) arguments: Option<Digest>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) stdin: Option<Digest>,
    /// The digest of an uploaded file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) content: Option<Digest>,
}

/// Digests of a call's outputs.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Outputs {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) stdout: Option<Digest>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) stderr: Option<Digest>,
    /// The value of a cell's last expression.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) result: Option<Digest>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) artifacts: Option<ArtifactList>,
    /// The text of the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) answer: Option<Digest>,
    /// Pictures and files in the answer, as they were encoded.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) attached: Vec<Digest>,
    /// The part of a downloaded file that was sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) content: Option<Digest>,
}

/// The files that a run has created or changed. Their contents are not hashed, because that would mean reading them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct ArtifactList {
    count: usize,
    bytes: u64,
    /// The hash of a list with a line for each file: its size, a blank, and its path.
    list_sha256: Hash,
}

impl ArtifactList {
    pub(crate) fn of(artifacts: &[Artifact]) -> Self {
        let mut list = Hashing::default();
        for artifact in artifacts {
            let line = format!("{} {}\n", artifact.size_bytes, artifact.path.as_str());
            list.add(line.as_bytes());
        }
        let bytes = artifacts.iter().fold(0_u64, |sum, it| sum.saturating_add(it.size_bytes));
        Self { count: artifacts.len(), bytes, list_sha256: list.end().sha256 }
    }
}

/// The limits of a call; sizes are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Limits {
    pub(crate) memory: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cpus: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pids: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) data: Option<u64>,
    /// Time limit of the run, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) timeout_s: Option<f64>,
}

/// The fields of every line, and the contents of a call or an event.
#[derive(Serialize)]
pub(super) struct Said<'a, T> {
    time: String,
    server: &'a str,
    #[serde(flatten)]
    what: T,
}

impl<'a, T> Said<'a, T> {
    fn at(time: Timestamp, server: &'a str, what: T) -> Self {
        Self { time: format!("{time:.6}"), server, what }
    }
}

impl Record {
    /// Whether the call was refused, and so had no effect.
    pub(super) fn is_refusal(&self) -> bool {
        self.run_id.is_none() && REFUSALS.contains(&&*self.outcome)
    }

    /// Returns the contents of the line that a server writes.
    pub(super) fn of<'a>(&'a self, server: &'a str) -> Said<'a, &'a Self> {
        Said::at(self.time, server, self)
    }
}

/// An event of the server, which has a line of its own.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(super) enum Event {
    /// The server has started, and continues the chain.
    Started {
        version: &'static str,
        /// The bytes after the last whole line.
        #[serde(skip_serializing_if = "Option::is_none")]
        torn: Option<Digest>,
        /// The contents of the head file, if it did not name the last line.
        #[serde(skip_serializing_if = "Option::is_none")]
        head: Option<FoundHead>,
    },
    /// The file could not be written for a while, and this many calls were refused.
    Recovered { refused: u64 },
    /// The number of calls of a caller that were refused since its last line, and have no line.
    Omitted { caller: String, omitted: u64 },
    /// The server removes the oldest files, up to this line.
    Removed { removed: Position },
    /// The server ends, and all its lines are written.
    Stopped,
}

impl Event {
    /// Returns the contents of the line that a server writes now.
    pub(super) fn of(self, server: &str) -> Said<'_, Self> {
        Said::at(Timestamp::now(), server, self)
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives it so")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}
