//! The audit file: what was done, in lines of which each has the hash of the one before, so that what is changed or
//! taken out later is found. Names and hashes; never code, data or output.
//!
//! ```text
//! mcp, http --(a call)--> Entry --Record--> Audit --> Writer --> FILE        the newest lines
//!                                                       |  '---> FILE.<n>    older ones, up to line n
//!                                                       '------> FILE.head   the last line: its number and hash
//! llm-sandbox audit verify --> verify --> pieces, chain
//! ```
//!
//! - [`chain`]: a line and what ties it to the one before. Pure.
//! - [`record`]: what a line says of a call, and [`Digest`]s of what it does not say; [`entry`]: a call's line while
//!   the call goes on.
//! - [`refusals`]: how many lines a caller gets for calls that were refused.
//! - [`writer`]: the file, across restarts, kills and rotation; [`head`]: the file beside it; [`pieces`]: those that a
//!   chain is in.
//! - [`verify`]: whether a chain is whole, and where it is not.
//!
//! `docs/audit.md` has the format, and what it proves to whom. A line is appended with one `write`, which a killed
//! server leaves whole or torn; it is not waited for the disk, which would cost each call more than all of the rest.

mod chain;
mod entry;
mod head;
mod pieces;
mod record;
mod refusals;
#[cfg(test)]
mod tests;
pub mod verify;
mod writer;

use std::{fmt, num::NonZeroU32, path::Path, sync::Arc};

use parking_lot::Mutex;

pub use self::{
    chain::{Hash, Position},
    writer::{OpenError, Rotation},
};
pub(crate) use self::{
    entry::{Entry, digested},
    record::{ArtifactList, Digest, Hashing, Limits, Record},
};
use self::{record::Event, refusals::Refusals, writer::Writer};
use crate::server_key::ServerKey;

/// What the key of lines is derived for.
const PURPOSE: &str = "llm-sandbox audit 1";

/// Hexadecimal digits of what tells one server from another.
const SERVER_ID: usize = 16;

/// The audit file of one server. Clones share it.
#[derive(Clone)]
pub struct Audit(Arc<Inner>);

struct Inner {
    /// Made for this process.
    server: String,
    state: Mutex<State>,
}

struct State {
    writer: Writer,
    /// Calls whose lines could not be written: those that were under way when that began.
    pending: Vec<Record>,
    /// Calls that were refused since then.
    refused: u64,
    refusals: Refusals,
}

/// Nothing can be written to the audit file, so nothing is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CannotWrite;

impl Audit {
    /// Goes on with a file, or begins it. It is this process's alone until the last clone is dropped.
    ///
    /// # Errors
    /// If it is another server's, has another key, or cannot be written.
    pub fn open(
        path: &Path,
        rotation: Rotation,
        refusals_per_minute: Option<NonZeroU32>,
        key: Option<&ServerKey>,
    ) -> Result<Self, OpenError> {
        let server = uuid::Uuid::new_v4().simple().to_string()[..SERVER_ID].to_owned();
        let refusals = Refusals::new(refusals_per_minute);
        let writer = Writer::open(path, rotation, sealing_key(key), &server)?;
        let state = State { writer, pending: vec![], refused: 0, refusals };
        Ok(Self(Arc::new(Inner { server, state: Mutex::new(state) })))
    }

    /// Makes sure that a call can have its line, before it is made.
    ///
    /// # Errors
    /// If nothing can be written. The call must not be made, and has no line.
    pub fn begin(&self) -> Result<(), CannotWrite> {
        let mut state = self.0.state.lock();
        if state.is_behind() && !state.catch_up(&self.0.server) {
            state.refused += 1;
            return Err(CannotWrite);
        }
        Ok(())
    }

    /// Writes a call's line. One that cannot be written waits until it can be. Of calls that were refused, more than
    /// there may be lines are counted in the next line of their caller.
    pub(crate) fn write(&self, mut record: Record) {
        let mut state = self.0.state.lock();
        match state.refusals.omitted_before(&record) {
            Some(omitted) => record.omitted = omitted,
            None => return,
        }
        if state.is_behind() {
            state.pending.push(record);
        } else if let Err(error) = state.writer.append(&record.of(&self.0.server)) {
            tracing::error!(
                %error,
                "the audit file cannot be written: calls are refused until it can be"
            );
            state.pending.push(record);
        }
    }

    /// The last line that was written.
    pub fn last(&self) -> Position {
        self.0.state.lock().writer.last()
    }

    /// Says in the file that the server ends as it should, and waits until all of it is on the disk.
    pub fn close(&self) {
        let mut state = self.0.state.lock();
        let is_behind = state.is_behind() && !state.catch_up(&self.0.server);
        let closed = if is_behind { Err(CannotWrite.into()) } else { state.close(&self.0.server) };
        let last = state.writer.last();
        match closed {
            Ok(()) => tracing::info!(line = last.seq, hash = %last.hash, "audit file ends"),
            Err(error) => {
                let (missing, line) = (state.pending.len(), last.seq);
                tracing::error!(%error, missing, line, hash = %last.hash, "audit file ends without its last lines");
            }
        }
    }
}

impl State {
    /// Something is not written that should be.
    fn is_behind(&self) -> bool {
        !self.pending.is_empty() || !self.writer.is_settled()
    }

    /// Writes what could not be written. Whether all of it is.
    fn catch_up(&mut self, server: &str) -> bool {
        if self.writer.settle().is_err() {
            return false;
        }
        let written =
            self.pending.iter().take_while(|it| self.writer.append(&it.of(server)).is_ok());
        let written = written.count();
        self.pending.drain(..written);
        if !self.pending.is_empty() {
            return false;
        }
        let refused = self.refused;
        if refused > 0 && self.writer.append(&Event::recovered(server, refused)).is_err() {
            return false;
        }
        self.refused = 0;
        tracing::info!(refused, "the audit file can be written again");
        true
    }

    fn close(&mut self, server: &str) -> std::io::Result<()> {
        for (caller, omitted) in self.refusals.take() {
            self.writer.append(&Event::omitted(server, &caller, omitted))?;
        }
        self.writer.append(&Event::stopped(server))?;
        self.writer.sync()
    }
}

impl From<CannotWrite> for std::io::Error {
    fn from(_: CannotWrite) -> Self {
        Self::other("the lines before could not be written")
    }
}

impl fmt::Debug for Audit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Audit").finish_non_exhaustive()
    }
}

/// The key of lines; there is none without the server's secret.
fn sealing_key(key: Option<&ServerKey>) -> Option<[u8; 32]> {
    key.map(|key| key.derive(PURPOSE))
}
