//! How a run or another long call goes, for the caller that waits for it.

use model::RunId;
use tokio::time::Instant;

/// How a run goes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress {
    /// Names the run, once it has begun.
    pub run_id: Option<RunId>,
    /// The sandbox is there and has the program. Until then it is being started.
    pub started: bool,
    /// Its interpreter is still being started: none of the program has run.
    pub loading: bool,
    /// When the program itself began, as far as that was seen.
    pub since: Option<Instant>,
    /// The newest line of its output that is not blank, as printable text of at most 200 characters;
    /// empty if there is none.
    pub line: String,
    /// Bytes written to both outputs.
    pub written: u64,
}
