//! Summaries of files, which give way to everything that a caller waits for.

use std::{
    fs::File,
    time::{Duration, Instant},
};

use protocol::{
    limits::{MAX_PAGE_MS, MAX_SUMMARY_MS},
    message::{Failure, FailureCode, Summarize},
};

/// A summary that is to be made.
pub struct Summarizing<S> {
    /// Its call.
    pub call: u32,
    /// Its request.
    pub request: Summarize,
    /// The open file; `None` if the agent finds files by their path.
    pub file: Option<File>,
    /// The time at which it is given up.
    pub until: Instant,
    /// Thrown when it must give way.
    pub switch: S,
}

impl<S> Summarizing<S> {
    pub(crate) fn new(call: u32, request: Summarize, file: Option<File>, switch: S) -> Self {
        let most = if request.page.is_some() { MAX_PAGE_MS } else { MAX_SUMMARY_MS };
        let limit = Duration::from_millis(request.limit_ms.min(most));
        Self { call, request, file, until: Instant::now() + limit, switch }
    }
}

/// The failure if there is no summary of a file.
pub fn no_summary() -> Failure {
    Failure::new(FailureCode::NotFound, "no summary")
}
