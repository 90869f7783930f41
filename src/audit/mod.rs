//! The audit file: a line for each call. Each line contains the hash of the line before, so that lines that are changed
//! or removed later are found. Lines contain names and hashes; never code, data or output.
//!
//! ```text
//! mcp, http --(a call)--> Entry --Record--> Audit --> Writer --> FILE        the newest lines
//!                                                       |  '---> FILE.<n>    older ones, up to line n
//!                                                       '------> FILE.head   the last line: its number and hash
//! llm-sandbox audit verify --> verify --> pieces, chain
//! ```
//!
//! - [`chain`]: a line and its link to the line before. Pure.
//! - [`record`]: the contents of a call's line, and [`Digest`]s of what it does not contain; [`entry`]: a call's line
//!   while the call is in progress.
//! - [`refusals`]: the limit on lines for a caller's refused calls.
//! - [`writer`]: the file, across restarts, kills and rotation; [`head`]: the file beside it; [`pieces`]: the files
//!   that contain a chain.
//! - [`verify`]: whether a chain is whole, and where it is not.
//!
//! `docs/audit.md` has the format, and what it proves to whom. A line is appended with one `write`, which a killed
//! server leaves whole or torn. A call does not wait until its line is on the disk: that would take longer than all the
//! rest of the call.

mod chain;
mod entry;
mod head;
mod pieces;
mod record;
mod refusals;
#[cfg(test)]
mod tests;
pub(crate) mod verify;
mod writer;

use std::{fmt, fs::File, io, num::NonZeroU32, path::Path, sync::Arc};

use config::server_key::ServerKey;
use parking_lot::Mutex;

pub(crate) use self::{
    chain::{Hash, Position},
    writer::{OpenError, Rotation},
};
pub(crate) use self::{
    entry::{Entry, digested},
    record::{ArtifactList, Digest, Hashing, Limits, Record},
};
use self::{record::Event, refusals::Refusals, writer::Writer};

/// The purpose for which the key of lines is derived.
const PURPOSE: &str = "llm-sandbox audit 1";

/// The number of hexadecimal digits of a server's identifier.
const SERVER_ID: usize = 16;

/// The audit file of one server. Clones share it.
#[derive(Clone)]
pub struct Audit(Arc<Inner>);

struct Inner {
    /// The identifier of this process.
    server: String,
    state: Mutex<State>,
}

struct State {
    writer: Writer,
    /// Lines that could not be written, of calls that were in progress when writing began to fail.
    pending: Vec<Record>,
    /// The number of calls that were refused since then.
    refused: u64,
    refusals: Refusals,
}

/// The files with all lines, the oldest first, as they are at one moment.
///
/// # Errors
/// If one of them, or the folder, cannot be read.
pub(crate) fn files(audit: &Path) -> io::Result<Vec<File>> {
    Ok(pieces::open(audit)?.into_iter().map(|piece| piece.file).collect())
}

/// The error that the audit file cannot be written, so that no call is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CannotWrite;

impl Audit {
    /// Continues a file, or begins it. Only this process can use it until the last clone is dropped.
    ///
    /// # Errors
    /// If the file is in use by another server, has another key, or cannot be written.
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

    /// Checks, before a call is made, that its line can be written.
    ///
    /// # Errors
    /// If the file cannot be written. The call must not be made, and has no line.
    pub fn begin(&self) -> Result<(), CannotWrite> {
        let mut state = self.0.state.lock();
        if state.is_behind() && !state.catch_up(&self.0.server) {
            state.refused += 1;
            return Err(CannotWrite);
        }
        Ok(())
    }

    /// Writes a call's line. A line that cannot be written is kept and written later. If a caller has more refused
    /// calls than the limit allows lines, the caller's next line has the number of the others.
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

    /// Writes the line that the server ends as intended, and waits until the file is on the disk.
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
    /// Whether a line, or the head file, could not be written yet.
    fn is_behind(&self) -> bool {
        !self.pending.is_empty() || !self.writer.is_settled()
    }

    /// Writes the lines that could not be written. Returns true if all are written now.
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
        if refused > 0 && self.writer.append(&Event::Recovered { refused }.of(server)).is_err() {
            return false;
        }
        self.refused = 0;
        tracing::info!(refused, "the audit file can be written again");
        true
    }

    fn close(&mut self, server: &str) -> std::io::Result<()> {
        for (caller, omitted) in self.refusals.take() {
            self.writer.append(&Event::Omitted { caller, omitted }.of(server))?;
        }
        self.writer.append(&Event::Stopped.of(server))?;
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

/// The key of lines; `None` without the server's secret.
fn sealing_key(key: Option<&ServerKey>) -> Option<[u8; 32]> {
    key.map(|key| key.derive(PURPOSE))
}
