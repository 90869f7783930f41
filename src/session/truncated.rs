//! The last runs whose outputs were too long to be shown whole, so that a caller can read the rest.

use std::{collections::VecDeque, sync::Arc};

use protocol::{limits::MAX_KEPT_RUNS, message::Stream};

use super::RunReport;
use crate::ids::RunId;

/// Those runs, as many as the agent keeps, oldest first. A clone stays what it is when others are added.
#[derive(Debug, Clone, Default)]
pub(super) struct TruncatedRuns(Arc<VecDeque<TruncatedRun>>);

/// A run of which the agent keeps an output.
#[derive(Debug, Clone)]
pub(super) struct TruncatedRun {
    run_id: RunId,
    /// What the agent knows it by.
    pub(super) call: u32,
    /// Bytes of each output that were shown from its start, up to where it was cut.
    stdout: u64,
    stderr: u64,
}

impl TruncatedRuns {
    /// Remembers a run if the agent keeps something of it.
    pub(super) fn note(&mut self, report: &RunReport, call: u32) {
        if !report.stdout.is_kept && !report.stderr.is_kept {
            return;
        }
        let runs = Arc::make_mut(&mut self.0);
        runs.push_back(TruncatedRun {
            run_id: report.run_id.clone(),
            call,
            stdout: report.stdout.head,
            stderr: report.stderr.head,
        });
        if runs.len() > MAX_KEPT_RUNS {
            runs.pop_front();
        }
    }

    /// The run of this id, if it is remembered.
    pub(super) fn find(&self, run_id: &str) -> Option<&TruncatedRun> {
        self.0.iter().find(|run| run.run_id.as_str() == run_id)
    }
}

impl TruncatedRun {
    /// Bytes that were shown from the start of this output.
    pub(super) fn shown(&self, stream: Stream) -> u64 {
        match stream {
            Stream::Stdout => self.stdout,
            Stream::Stderr => self.stderr,
        }
    }
}
