//! Saved variables on their way between a kernel and the server: the agent holds them while they are sent in pieces.

use protocol::{
    frame::MAX_BODY,
    limits::MAX_CARRIED,
    message::{Carried, Export, ExportDone, Failure, FailureCode, Import, ImportDone},
};

use crate::{processes::Children, runtimes::Runtimes};

/// The variables of one export or import.
#[derive(Default)]
pub(crate) struct Transfer {
    bytes: Vec<u8>,
    /// The export that the bytes belong to; `None` during an import.
    of: Option<ExportDone>,
}

impl Transfer {
    /// Saves variables, or returns a piece of what was saved. After the last piece the bytes are dropped.
    pub(crate) fn export(
        &mut self,
        export: &Export,
        runtimes: &mut Runtimes,
        children: &mut Children,
    ) -> Result<(ExportDone, Vec<u8>), Failure> {
        if let Some(limits) = export.begin {
            *self = Self::default();
            let (done, carried, bytes) =
                runtimes.of_mut(&export.runtime)?.export(limits, children)?;
            *self = Self { bytes, of: Some(done.clone()) };
            return Ok((done, json(&carried)));
        }
        let Some(done) = self.of.clone() else {
            return Err(Failure::new(FailureCode::NotFound, "nothing is written down"));
        };
        let start = usize::try_from(export.offset).unwrap_or(usize::MAX).min(self.bytes.len());
        let end = start.saturating_add(export.len.min(MAX_BODY)).min(self.bytes.len());
        let piece = self.bytes[start..end].to_vec();
        if end == self.bytes.len() {
            *self = Self::default();
        }
        Ok((done, piece))
    }

    /// Takes a piece, and after the last one restores the variables.
    pub(crate) fn import(
        &mut self,
        import: &Import,
        piece: &[u8],
        runtimes: &mut Runtimes,
        children: &mut Children,
    ) -> Result<(ImportDone, Vec<u8>), Failure> {
        if import.offset == 0 || self.of.is_some() {
            *self = Self::default();
        }
        let there = self.bytes.len() as u64;
        if import.offset != there || there + piece.len() as u64 > MAX_CARRIED {
            *self = Self::default();
            return Err(Failure::bad_request("a piece that is out of place"));
        }
        self.bytes.extend_from_slice(piece);
        let Some(limits) = import.last else { return Ok((ImportDone { count: 0 }, vec![])) };
        let bytes = std::mem::take(&mut self.bytes);
        let (done, carried) = runtimes.begin(&import.runtime, children)?.import(
            &bytes,
            import.count,
            limits,
            children,
        )?;
        Ok((done, json(&carried)))
    }
}

fn json(carried: &Carried) -> Vec<u8> {
    serde_json::to_vec(carried).expect("it has no keys but strings")
}
