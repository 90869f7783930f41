//! The summary of a table's file.

use std::time::Duration;

use link::LinkError;
use model::text::encoding::{Encoding, SNIFFED};
use protocol::message::{Summarize as Request, Summary};

use super::{Done, Operation, OperationContext, OperationError};

/// Time of the agent for a summary. Callers wait a little longer.
const LIMIT: Duration = Duration::from_millis(250);

/// Summarizes a file; `None` if there is no summary of it, or a program is running.
#[derive(Debug, Clone)]
pub struct Summarize {
    /// The path relative to the data area, or absolute for a file of a dataset.
    pub path: String,
}

impl Operation for Summarize {
    type Output = Option<Summary>;

    async fn perform(
        self,
        context: OperationContext,
    ) -> Result<Done<Option<Summary>>, OperationError> {
        let (Self { path }, OperationContext { link, turns, .. }) = (self, context);
        let _turn = turns.call().await;
        let summary = async {
            // Guessed here, so that all answers about the file name the same encoding.
            let start = link.start_of(&path, SNIFFED).await?;
            let encoding = Encoding::of(&start).name().map(Into::into);
            let limit_ms = u64::try_from(LIMIT.as_millis()).unwrap_or(u64::MAX);
            link.summarize(&Request { path: path.clone(), encoding, limit_ms }).await
        };
        match summary.await {
            Ok(summary) => Ok(Done::unchanged(Some(summary))),
            Err(LinkError::Refused(_)) => Ok(Done::unchanged(None)),
            Err(error) => Err(OperationError::Link(error, path)),
        }
    }
}
