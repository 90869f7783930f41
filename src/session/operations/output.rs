//! Reads the rest of a truncated output.

use bytes::Bytes;
use model::text::printable;
use protocol::message::{FailureCode, Output, Stream};

use super::{Done, Operation, OperationContext, OperationError};
use crate::error::Error;

/// Reads a piece of an output of a run.
#[derive(Debug, Clone)]
pub struct ReadOutput {
    /// The id of the run, as the caller wrote it.
    pub run_id: String,
    /// The output to read.
    pub stream: Stream,
    /// The first byte; if `None`, the position of the cut in the report.
    pub offset: Option<u64>,
    /// The largest number of bytes; never more than 1 MiB.
    pub len: usize,
}

/// A piece of an output that was cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputPart {
    /// The position of the part's first byte.
    pub offset: u64,
    /// The bytes that the program wrote; fewer than requested at the end of the stored bytes.
    pub bytes: Bytes,
    /// Bytes that the program wrote.
    pub total: u64,
    /// Bytes from the start that can be read.
    pub kept: u64,
}

impl Operation for ReadOutput {
    type Output = OutputPart;

    async fn perform(self, context: OperationContext) -> Result<Done<OutputPart>, OperationError> {
        let Self { run_id, stream, offset, len } = self;
        let not_kept = || Error::OutputNotKept(printable(&run_id));
        let run = context.truncated.find(&run_id).ok_or_else(not_kept)?;
        let offset = offset.unwrap_or(run.shown(stream));
        if let Some(whole) = run.whole(stream) {
            let start = usize::try_from(offset).unwrap_or(usize::MAX).min(whole.len());
            let bytes = whole.slice(start..whole.len().min(start.saturating_add(len)));
            let total = whole.len() as u64;
            return Ok(Done::unchanged(OutputPart { offset, bytes, total, kept: total }));
        }
        let wanted = Output { run: run.call, stream, offset, len };
        let _turn = context.turns.call().await;
        match context.link.output(&wanted).await {
            Ok((done, bytes)) => {
                let (total, kept) = (done.total, done.kept);
                Ok(Done::unchanged(OutputPart { offset, bytes, total, kept }))
            }
            Err(error) if error.code() == Some(FailureCode::NotFound) => Err(not_kept().into()),
            Err(error) => Err(OperationError::Link(error, "the output".into())),
        }
    }
}
