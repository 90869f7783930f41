//! Progress of a run or another long call, for the caller that waits for it.

use model::RunId;
use tokio::time::Instant;

/// The progress of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress {
    /// The id of the run, once it has begun.
    pub run_id: Option<RunId>,
    /// Whether the sandbox has started and has received the program.
    pub started: bool,
    /// Whether the interpreter is still starting, so that none of the program has run.
    pub loading: bool,
    /// When the program itself began, if that is known.
    pub since: Option<Instant>,
    /// The newest line of its output that is not blank, as printable text of at most 200 characters;
    /// empty if there is none.
    pub line: String,
    /// Bytes written to both outputs.
    pub written: u64,
}
