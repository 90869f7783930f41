//! Files of a session for a message, in memory.

use bytes::Bytes;
use futures::TryStreamExt;

use crate::{
    error::{Error, Result},
    link::LinkError,
    session::{FileReader, Pieces, ReadError, SessionId},
};

/// The whole file. The caller has checked its size.
///
/// # Errors
/// If the file changes while it is read, is gone, or its sandbox has died.
pub(in crate::mcp) async fn whole(reader: &FileReader, id: &SessionId) -> Result<Bytes> {
    part(reader, id, 0, u64::MAX).await
}

/// At most `length` bytes from `offset`, fewer at the end of the file.
///
/// # Errors
/// If the file changes while it is read, is gone, or its sandbox has died.
pub(in crate::mcp) async fn part(
    reader: &FileReader,
    id: &SessionId,
    offset: u64,
    length: u64,
) -> Result<Bytes> {
    let size = reader.stamp().size;
    let range = offset.min(size)..offset.saturating_add(length).min(size);
    let mut all = Vec::with_capacity(usize::try_from(range.end - range.start).unwrap_or(0));
    let mut pieces = std::pin::pin!(reader.clone().range(range, Pieces::new(1)));
    while let Some(piece) = pieces.try_next().await.map_err(|error| explain(error, reader, id))? {
        all.extend_from_slice(&piece);
    }
    Ok(all.into())
}

fn explain(error: ReadError, reader: &FileReader, id: &SessionId) -> Error {
    match error {
        ReadError::Changed => Error::InvalidArgument(format!(
            "{} was changed while it was read. Try again when the run that writes it has ended.",
            reader.path()
        )),
        ReadError::Link(LinkError::Refused(_)) => Error::NotFound(reader.path().as_str().into()),
        ReadError::Link(_) => Error::SandboxDied(id.clone()),
    }
}
