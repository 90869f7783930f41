//! Summaries of files, for answers that must not wait for them.

use std::time::Duration;

use model::SessionId;
use protocol::message::Summary;
use tokio::time::timeout;

use super::{Sessions, Summarize};

/// The longest time that an answer waits for a summary.
const SUMMARY_TIMEOUT: Duration = Duration::from_millis(300);

/// Extensions of files that may have a summary. Each may have `.gz` behind it.
const TABLES: [&str; 11] =
    ["csv", "tsv", "tab", "xlsx", "xlsm", "xls", "parquet", "pq", "json", "jsonl", "ndjson"];

impl Sessions {
    /// The summary of a file, by its path relative to the data area, or absolute for a file of a dataset. `None` if
    /// there is none, or it is not ready in [time](SUMMARY_TIMEOUT): an answer has the summary or does without.
    pub async fn summary(&self, id: &SessionId, path: &str) -> Option<Summary> {
        let (stem, last) = path.rsplit_once('.')?;
        let (_, extension) =
            if last.eq_ignore_ascii_case("gz") { stem.rsplit_once('.')? } else { (stem, last) };
        if !TABLES.iter().any(|table| extension.eq_ignore_ascii_case(table)) {
            return None;
        }
        let operation = Summarize { path: path.to_owned() };
        timeout(SUMMARY_TIMEOUT, self.perform(id, operation)).await.ok()?.ok()?
    }
}
