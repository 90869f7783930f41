//! Calls for the interpreter of a workspace, which keeps its variables between cells.

use std::time::Duration;

use bytes::Bytes;
#[cfg(doc)]
use protocol::message::FailureCode;
use protocol::{
    frame::MAX_BODY,
    limits::{MAX_CARRIED, MAX_UNDO, MAX_VARIABLE_CHARS, MAX_VARIABLES},
    message::{
        Carried, CarryLimits, Contents, Export, ExportDone, Import, Inspect, InspectDone, Reset,
        ResetDone, RuntimeName,
    },
};

use super::{Link, LinkError, wire::parse};

impl Link {
    /// Inspects the interpreter of the workspace; the contents are empty if there is none. The texts about variables
    /// may be anything within its limits.
    ///
    /// # Errors
    /// The errors of every call, see [`kill`](Self::kill); [`FailureCode::Busy`] during a run.
    pub async fn inspect(
        &self,
        runtime: RuntimeName,
    ) -> Result<(InspectDone, Contents), LinkError> {
        let (mut done, body) = self.call(&Inspect { runtime }, Bytes::new()).await?;
        done.can_undo = done.can_undo.min(MAX_UNDO);
        let contents: Contents =
            if body.is_empty() { Contents::default() } else { parse(&self.closed, &body)? };
        let lengths = contents.variables.iter().flat_map(|it| [it.name.len(), it.summary.len()]);
        let longest = lengths.chain(contents.imports.iter().map(String::len)).max();
        if contents.variables.len().max(contents.imports.len()) > MAX_VARIABLES
            || longest > Some(MAX_VARIABLE_CHARS * char::MAX.len_utf8())
        {
            return Err(self.broken("more of variables than there may be"));
        }
        Ok((done, contents))
    }

    /// Undoes cells, or ends the interpreter of the workspace; deletes all files as well if requested.
    ///
    /// # Errors
    /// The errors of every call, see [`kill`](Self::kill); [`FailureCode::Busy`] during a run,
    /// [`FailureCode::NothingToUndo`] if fewer cells can be undone.
    pub async fn reset(&self, reset: &Reset) -> Result<ResetDone, LinkError> {
        let (done, _) = self.call(reset, Bytes::new()).await?;
        Ok(ResetDone { can_undo: done.can_undo.min(MAX_UNDO), ..done })
    }

    /// Makes the interpreter of the workspace export its variables, within these limits. The texts about them may be
    /// anything within its limits.
    ///
    /// # Errors
    /// The errors of every call, see [`kill`](Self::kill), with a longer timeout; [`FailureCode::Busy`] during a run,
    /// [`FailureCode::NoRuntime`] if the interpreter cannot export.
    pub async fn export(
        &self,
        runtime: RuntimeName,
        limits: CarryLimits,
    ) -> Result<(ExportDone, Carried), LinkError> {
        let request = Export { runtime, begin: Some(limits), offset: 0, len: 0 };
        let (done, body) = self.call_within(self.time_for(limits), &request, Bytes::new()).await?;
        if done.total > limits.total_bytes.min(MAX_CARRIED) {
            return Err(self.broken("more of variables than was asked for"));
        }
        Ok((done, self.carried(&body)?))
    }

    /// Reads a piece of the exported variables.
    ///
    /// # Errors
    /// The errors of every call, see [`kill`](Self::kill); [`FailureCode::NotFound`] if nothing was exported.
    pub async fn exported(&self, runtime: RuntimeName, offset: u64) -> Result<Bytes, LinkError> {
        let request = Export { runtime, begin: None, offset, len: MAX_BODY };
        let (done, bytes) = self.call(&request, Bytes::new()).await?;
        let there = done.total.saturating_sub(offset).min(MAX_BODY as u64);
        if bytes.len() as u64 != there || bytes.is_empty() {
            return Err(self.broken("another number of bytes than it says it has"));
        }
        Ok(bytes)
    }

    /// Starts an interpreter with exported variables.
    ///
    /// # Errors
    /// The errors of [`export`](Self::export); [`FailureCode::BadRequest`] if there is an interpreter already.
    pub async fn import(
        &self,
        runtime: RuntimeName,
        mut bytes: Bytes,
        count: u64,
        limits: CarryLimits,
    ) -> Result<Carried, LinkError> {
        let mut offset = 0;
        loop {
            let piece = bytes.split_to(bytes.len().min(MAX_BODY));
            let last = bytes.is_empty().then_some(limits);
            let request = Import { runtime: runtime.clone(), offset, last, count };
            offset += piece.len() as u64;
            if last.is_none() {
                self.call(&request, piece).await?;
                continue;
            }
            let (_, body) = self.call_within(self.time_for(limits), &request, piece).await?;
            return self.carried(&body);
        }
    }

    /// Longest time for a call with these limits.
    fn time_for(&self, limits: CarryLimits) -> Duration {
        self.silence + Duration::from_millis(limits.total_ms) * 2
    }

    fn carried(&self, body: &[u8]) -> Result<Carried, LinkError> {
        let carried: Carried =
            if body.is_empty() { Carried::default() } else { parse(&self.closed, body)? };
        let lost = carried.lost.iter().flat_map(|it| [it.name.len(), it.why.len()]);
        let names = carried.variables.iter().chain(&carried.imports).map(String::len);
        let most = carried.variables.len().max(carried.imports.len()).max(carried.lost.len());
        if most > MAX_VARIABLES
            || lost.chain(names).max() > Some(MAX_VARIABLE_CHARS * char::MAX.len_utf8())
        {
            return Err(self.broken("more of variables than there may be"));
        }
        Ok(carried)
    }
}
