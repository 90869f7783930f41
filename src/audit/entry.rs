//! A call's line while the call is in progress: it is written when the call ends, however it ends.

use std::{sync::Arc, time::Instant};

use futures::TryStreamExt;
use jiff::Timestamp;
use model::{Principal, text::whole_ms};
use parking_lot::Mutex;

use super::{Audit, CannotWrite, Digest, Hashing, Record};
use crate::content::Content;

/// The outcome of a call that was dropped before its end, or that failed in an unforeseen way.
const ABANDONED: &str = "abandoned";

/// The line of a call that has begun. If it is dropped, it is written as an abandoned call's.
pub(crate) struct Entry {
    audit: Audit,
    began: Instant,
    is_written: bool,
    /// The facts that are known of the call so far.
    pub(crate) record: Record,
}

impl Entry {
    /// Begins the line of a call that is about to be made.
    ///
    /// # Errors
    /// If the audit file cannot be written: the call must not be made.
    pub(crate) fn begin(
        audit: &Audit,
        caller: &Principal,
        tool: &str,
    ) -> Result<Self, CannotWrite> {
        audit.begin()?;
        let (caller, tool) = (caller.name().to_owned(), tool.to_owned());
        let record = Record { caller, tool, ..Record::default() };
        Ok(Self { audit: audit.clone(), began: Instant::now(), is_written: false, record })
    }

    /// Writes the line of the call, which has ended.
    pub(crate) fn end(mut self, outcome: &str) {
        self.write(outcome);
    }

    fn write(&mut self, outcome: &str) {
        self.is_written = true;
        let mut record = std::mem::take(&mut self.record);
        outcome.clone_into(&mut record.outcome);
        record.time = Timestamp::now();
        record.duration_ms = whole_ms(self.began.elapsed());
        self.audit.write(record);
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if !self.is_written {
            self.write(ABANDONED);
        }
    }
}

/// The digest of a content while others read it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Streamed(Arc<Mutex<Hashing>>);

impl Streamed {
    /// The digest of the bytes that were read, if their number is `bytes`.
    pub(crate) fn digest(&self, bytes: u64) -> Option<Digest> {
        let digest = self.0.lock().clone().end();
        (digest.bytes == bytes).then_some(digest)
    }
}

/// Returns the same content, and its digest, which is complete once the content was read.
pub(crate) fn digested(content: Content) -> (Content, Streamed) {
    let streamed = Streamed::default();
    let read = streamed.clone();
    let pieces = content.into_stream().inspect_ok(move |piece| read.0.lock().add(piece));
    (Content::new(pieces), streamed)
}
