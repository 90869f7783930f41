//! Installs packages: writes their files, in pieces, to where interpreters look for them.

use bytes::{Bytes, BytesMut};
use link::{Link, LinkError};
use model::{
    package::{Fault, FaultKind},
    text::human_size,
};
use protocol::{
    frame::MAX_BODY,
    message::{FailureCode, PackagePiece},
};

use super::{Done, Operation, OperationContext, OperationError};
use crate::{
    error::Error,
    packages::{CachedPackage, Piece},
};

/// Bytes of names in one message.
const MAX_NAMES: usize = 32 << 10;

/// Bytes that a piece adds to a message besides its name.
const PIECE_BYTES: usize = 100;

/// Writes the files of packages. Files that were written before a failure stay: a Python package is recognized by the
/// files that are written last; a JavaScript package is found anyway, and the caller is told not to use it.
#[derive(Debug)]
pub struct Install {
    /// The packages, written one after another.
    pub(crate) packages: Vec<CachedPackage>,
    /// Bytes that the packages of a session may have.
    pub(crate) most: u64,
}

impl Operation for Install {
    type Output = ();

    async fn perform(self, context: OperationContext) -> Result<Done<()>, OperationError> {
        let Self { packages, most } = self;
        let OperationContext { link, turns, usage, .. } = context;
        let _using = usage.read();
        let _turn = turns.call().await;
        let explain = |error: LinkError| match error.code() {
            Some(FailureCode::Full) => {
                let why = format!(
                    "There is no room for it: the packages of a session may have {}. It is not whole: do not use it. What \
                     was installed before can be used.",
                    human_size(most)
                );
                OperationError::Answer(Fault::new(FaultKind::TooLarge, why).into())
            }
            Some(FailureCode::BadPath) => {
                let why = "A folder or a link in the sandbox is in the way of one of its files. Start another session.";
                OperationError::Answer(Fault::new(FaultKind::Conflict, why.into()).into())
            }
            Some(FailureCode::NoRuntime) => {
                let why = "The sandbox of this session was made when packages were off. Start another session.";
                OperationError::Answer(Fault::new(FaultKind::Disabled, why.into()).into())
            }
            _ => OperationError::Link(error, "a package".into()),
        };
        for package in packages {
            let mut batch = Batch::new(&link);
            let mut pieces = package.pieces(most).await.map_err(|why| Error::internal(&why))?;
            while let Some(piece) = pieces.recv().await {
                let piece = piece.map_err(|why| Error::internal(&why))?;
                batch.add(piece).await.map_err(&explain)?;
            }
            batch.send().await.map_err(&explain)?;
        }
        Ok(Done::unchanged(()))
    }
}

/// Pieces that are sent in one message.
struct Batch<'a> {
    link: &'a Link,
    number: u32,
    pieces: Vec<PackagePiece>,
    names: usize,
    body: BytesMut,
}

impl<'a> Batch<'a> {
    fn new(link: &'a Link) -> Self {
        Self { link, number: 0, pieces: vec![], names: 0, body: BytesMut::new() }
    }

    async fn add(&mut self, piece: Piece) -> Result<(), LinkError> {
        let Piece { path, offset, bytes, last } = piece;
        let names = path.len() + PIECE_BYTES;
        if self.body.len() + bytes.len() > MAX_BODY || self.names + names > MAX_NAMES {
            self.send().await?;
        }
        if offset == 0 {
            self.number = self.link.file_number();
        }
        self.names += names;
        self.body.extend_from_slice(&bytes);
        let (upload, len) = (self.number, bytes.len());
        self.pieces.push(PackagePiece { upload, path, offset, len, last });
        Ok(())
    }

    async fn send(&mut self) -> Result<(), LinkError> {
        if self.pieces.is_empty() {
            return Ok(());
        }
        self.names = 0;
        let body: Bytes = self.body.split().freeze();
        self.link.install(std::mem::take(&mut self.pieces), body).await
    }
}
