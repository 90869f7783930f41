//! Summaries of files, for answers that must not wait for them, and pages of documents.

use std::time::Duration;

use bytes::Bytes;
use model::SessionId;
use protocol::message::{Document, Summary};
use tokio::time::{sleep, timeout};

use super::{Draw, Sessions, Summarize};
use crate::error::Result;

/// The longest time that an answer waits for a summary.
const SUMMARY_TIMEOUT: Duration = Duration::from_millis(300);

/// The longest time that an answer waits for the first summary in a session that has just started.
const WARM_TIMEOUT: Duration = Duration::from_secs(2);

/// Time between two attempts in a sandbox that has just started.
const AGAIN: Duration = Duration::from_millis(100);

/// Extensions of files that may have a summary. Each may have `.gz` behind it.
const TABLES: [&str; 11] =
    ["csv", "tsv", "tab", "xlsx", "xlsm", "xls", "parquet", "pq", "json", "jsonl", "ndjson"];

impl Sessions {
    /// The summary of a file, by its path relative to the data area, or absolute for a file of a dataset. `None` if
    /// there is none, or it is not ready in [time](SUMMARY_TIMEOUT): an answer has the summary or does without.
    pub async fn summary(&self, id: &SessionId, path: &str) -> Option<Summary> {
        if !is_table(path) {
            return None;
        }
        let operation = Summarize { path: path.to_owned() };
        timeout(SUMMARY_TIMEOUT, self.perform(id, operation)).await.ok()?.ok()?
    }

    /// Waits until a session that has just started summarizes this file, for [some time](WARM_TIMEOUT) at most.
    pub async fn summary_soon(&self, id: &SessionId, path: &str) {
        let made = async {
            while self.summary(id, path).await.is_none() {
                sleep(AGAIN).await;
            }
        };
        // The answer does without it.
        let _ = timeout(WARM_TIMEOUT, made).await;
    }
}

/// The longest time for a page, of an Office document with its conversion, and for the number of pages in an answer
/// about a file.
const PAGE_TIMEOUT: Duration = Duration::from_secs(25);
const COUNT_TIMEOUT: Duration = Duration::from_millis(800);

impl Sessions {
    /// Draws a page of a PDF or Office document, counted from 1. The image may be anything. `None` if the sandbox cannot.
    ///
    /// # Errors
    /// If there is no such file, a run is in progress, or the sandbox fails.
    pub async fn page(
        &self,
        id: &SessionId,
        path: &str,
        page: u32,
    ) -> Result<Option<(Document, Bytes)>> {
        let limit = if page == 0 { COUNT_TIMEOUT } else { PAGE_TIMEOUT };
        let draw = async {
            loop {
                let operation = Draw { path: path.to_owned(), page, limit };
                if let Some(drawn) = self.perform(id, operation).await? {
                    return Ok(Some(drawn));
                }
                sleep(AGAIN).await;
            }
        };
        timeout(limit + AGAIN, draw).await.unwrap_or(Ok(None))
    }
}

/// Whether the file of this name may have a summary.
pub(crate) fn is_table(path: &str) -> bool {
    let Some((stem, last)) = path.rsplit_once('.') else { return false };
    let is_packed = last.eq_ignore_ascii_case("gz");
    let extension =
        if is_packed { stem.rsplit_once('.').map(|(_, extension)| extension) } else { Some(last) };
    extension.is_some_and(|it| TABLES.iter().any(|table| it.eq_ignore_ascii_case(table)))
}
