//! The summary of a table's file, and the image of a page of a PDF document.

use std::time::Duration;

use bytes::Bytes;
use link::LinkError;
use model::text::encoding::{Encoding, SNIFFED};
use protocol::message::{Document, FailureCode, Summarize as Request, Summary};

use super::{Done, Operation, OperationContext, OperationError};
use crate::error::Error;

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
            let request = Request { path: path.clone(), encoding, page: None, limit_ms };
            link.summarize(&request).await
        };
        match summary.await {
            Ok(summary) => Ok(Done::unchanged(Some(summary))),
            Err(LinkError::Refused(_)) => Ok(Done::unchanged(None)),
            Err(error) => Err(OperationError::Link(error, path)),
        }
    }
}

/// Draws a page of a PDF document; `None` if the sandbox cannot.
#[derive(Debug, Clone)]
pub struct Draw {
    /// The path relative to the data area, or absolute for a file of a dataset.
    pub path: String,
    /// The page, counted from 1; 0 only counts the pages.
    pub page: u32,
    /// The longest time that it may take.
    pub limit: Duration,
}

impl Operation for Draw {
    type Output = Option<(Document, Bytes)>;

    async fn perform(
        self,
        context: OperationContext,
    ) -> Result<Done<Self::Output>, OperationError> {
        let (Self { path, page, limit }, OperationContext { link, turns, .. }) = (self, context);
        let _turn = turns.call().await;
        let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        let request = Request { path: path.clone(), encoding: None, page: Some(page), limit_ms };
        match link.draw(&request).await {
            Ok(drawn) => Ok(Done::unchanged(Some(drawn))),
            Err(error) if error.code() == Some(FailureCode::Busy) => {
                Err(Error::SessionBusy { run: None }.into())
            }
            Err(LinkError::Refused(_)) => Ok(Done::unchanged(None)),
            Err(error) => Err(OperationError::Link(error, path)),
        }
    }
}
