//! Files of a session for a message, in memory.

use bytes::Bytes;
use futures::TryStreamExt;
use link::LinkError;
use model::SessionId;

use crate::{
    error::{Error, Result},
    mcp::services::Services,
    session::{FileReader, PieceSizes, ReadError},
};

/// Checks the size of a file that is to be returned. The limit is that of the settings or, if that is less, what fits
/// into a message.
///
/// # Errors
/// If the file is too large; the error says from where it can be downloaded.
pub(in crate::mcp) fn check_size(
    services: &Services,
    id: &SessionId,
    reader: &FileReader,
    fits: u64,
) -> Result<()> {
    let limit = services.sessions.config().max_artifact_read.min(fits);
    if reader.stamp().size <= limit {
        Ok(())
    } else {
        Err(too_large(services, id, reader, Some(limit)))
    }
}

/// The error for a file over this limit, in bytes; `None` for an image with too many pixels.
pub(in crate::mcp) fn too_large(
    services: &Services,
    id: &SessionId,
    reader: &FileReader,
    limit: Option<u64>,
) -> Error {
    let path = reader.path();
    let links = services.links(id);
    Error::ArtifactTooLarge {
        path: path.to_text(),
        size_bytes: reader.stamp().size,
        limit,
        download_url: links
            .zip(path.own())
            .map(|((urls, session), path)| urls.download(session, path)),
    }
}

/// The whole file. The caller has checked its size.
///
/// # Errors
/// If the file changes while it is read, no longer exists, or its sandbox has died.
pub(in crate::mcp) async fn whole(reader: &FileReader, id: &SessionId) -> Result<Bytes> {
    part(reader, id, 0, u64::MAX).await
}

/// At most `length` bytes from `offset`, fewer at the end of the file.
///
/// # Errors
/// If the file changes while it is read, no longer exists, or its sandbox has died.
pub(in crate::mcp) async fn part(
    reader: &FileReader,
    id: &SessionId,
    offset: u64,
    length: u64,
) -> Result<Bytes> {
    let size = reader.stamp().size;
    let range = offset.min(size)..offset.saturating_add(length).min(size);
    let mut all = Vec::with_capacity(usize::try_from(range.end - range.start).unwrap_or(0));
    let mut pieces = std::pin::pin!(reader.clone().range(range, PieceSizes::new(1)));
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
        ReadError::Link(LinkError::Refused(_)) => Error::NotFound(reader.path().to_text()),
        ReadError::Link(_) => Error::SandboxDied(id.clone()),
    }
}
