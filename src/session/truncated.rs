//! The last runs whose outputs were not shown completely, so that a caller can read the rest.

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;
use model::RunId;
use protocol::{limits::MAX_KEPT_RUNS, message::Stream};

use super::RunReport;

/// The last truncated runs, as many as the agent keeps, oldest first. A clone does not change when others are added.
#[derive(Debug, Clone, Default)]
pub(super) struct TruncatedRuns(Arc<VecDeque<TruncatedRun>>);

/// A run with an output that is stored.
#[derive(Debug, Clone)]
pub(super) struct TruncatedRun {
    run_id: RunId,
    /// The agent's id of the run.
    pub(super) call: u32,
    /// Bytes at the start of each output that were shown, up to the cut.
    stdout: u64,
    stderr: u64,
    /// The complete standard error, if only its tracebacks were shortened and the agent has not stored it.
    whole_stderr: Option<Bytes>,
}

impl TruncatedRuns {
    /// Records a run if its outputs may be longer than shown.
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

    /// The run with this id, if it is still stored.
    pub(super) fn find(&self, run_id: &str) -> Option<&TruncatedRun> {
        self.0.iter().find(|run| run.run_id.as_str() == run_id)
    }
}

impl TruncatedRun {
    /// Bytes at the start of this output that were shown.
    pub(super) fn shown(&self, stream: Stream) -> u64 {
        match stream {
            Stream::Stdout => self.stdout,
            Stream::Stderr => self.stderr,
        }
    }

    /// The complete output, if it is stored here.
    pub(super) fn whole(&self, stream: Stream) -> Option<&Bytes> {
        self.whole_stderr.as_ref().filter(|_| stream == Stream::Stderr)
    }
}
