//! A call's line while the call goes on: it is written when the call ends, however it ends.

use std::{sync::Arc, time::Instant};

use futures::TryStreamExt;
use jiff::Timestamp;
use model::{Principal, text::whole_ms};
use parking_lot::Mutex;

use super::{Audit, CannotWrite, Digest, Hashing, Record};
use crate::content::Content;

/// Of a call that nobody waited for to its end, or that failed in a way that nobody has thought of.
const ABANDONED: &str = "abandoned";

/// The line of a call that has begun. Dropped, it is written as that of a call that was abandoned.
pub(crate) struct Entry {
    audit: Audit,
    began: Instant,
    is_written: bool,
    /// What is known of the call by now.
    pub(crate) record: Record,
}

impl Entry {
    /// Of a call that is about to be made.
    ///
    /// # Errors
    /// If nothing can be written: the call must not be made.
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

    /// The call has ended.
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

/// The digest of a content that is read elsewhere.
#[derive(Debug, Clone, Default)]
pub(crate) struct Streamed(Arc<Mutex<Hashing>>);

impl Streamed {
    /// That of what was read, if it was all of these many bytes.
    pub(crate) fn digest(&self, bytes: u64) -> Option<Digest> {
        let digest = self.0.lock().clone().end();
        (digest.bytes == bytes).then_some(digest)
    }
}

/// The same content, and where its digest is to be had when it was read.
pub(crate) fn digested(content: Content) -> (Content, Streamed) {
    let streamed = Streamed::default();
    let read = streamed.clone();
    let pieces = content.into_stream().inspect_ok(move |piece| read.0.lock().add(piece));
    (Content::new(pieces), streamed)
}
