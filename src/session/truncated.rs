//! The last runs whose outputs were not shown whole, so that a caller can read the rest.

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;
use model::RunId;
use protocol::{limits::MAX_KEPT_RUNS, message::Stream};

use super::RunReport;

/// Those runs, as many as the agent keeps, oldest first. A clone stays what it is when others are added.
#[derive(Debug, Clone, Default)]
pub(super) struct TruncatedRuns(Arc<VecDeque<TruncatedRun>>);

/// A run of which an output is kept.
#[derive(Debug, Clone)]
pub(super) struct TruncatedRun {
    run_id: RunId,
    /// What the agent knows it by.
    pub(super) call: u32,
    /// Bytes of each output that were shown from its start, up to where it was cut.
    stdout: u64,
    stderr: u64,
    /// All of standard error, where only its tracebacks were shortened and the agent has not kept it.
    whole_stderr: Option<Bytes>,
}

impl TruncatedRuns {
    /// Remembers a run if there may be more of its outputs than it shows.
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
            whole_stderr: report.stderr.whole.clone(),
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

    /// All of an output, if it is kept here.
    pub(super) fn whole(&self, stream: Stream) -> Option<&Bytes> {
        self.whole_stderr.as_ref().filter(|_| stream == Stream::Stderr)
    }
}
