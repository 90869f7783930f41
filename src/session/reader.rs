//! Reading a file in pieces, straight over the link: bulk does not go through the session's task.

use std::sync::Arc;

use bytes::Bytes;
use futures::Stream;
use protocol::{frame::MAX_BODY, message::Stamp};

use crate::{
    artifact::DataPath,
    link::{Link, LinkError},
};

/// A file of a session, as it was when it was opened. While this lives, the session counts as used.
#[derive(Debug, Clone)]
pub struct FileReader {
    link: Link,
    path: DataPath,
    stamp: Stamp,
    _in_use: Arc<()>,
}

/// Why the rest of a file could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The sandbox ended, or the agent refused.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The file is no longer what it was when it was opened.
    #[error("the file has changed while it was read")]
    Changed,
}

impl FileReader {
    pub(crate) fn new(link: Link, path: DataPath, stamp: Stamp, in_use: Arc<()>) -> Self {
        Self { link, path, stamp, _in_use: in_use }
    }

    /// Where the file is.
    pub fn path(&self) -> &DataPath {
        &self.path
    }

    /// What it was when it was opened.
    pub fn stamp(&self) -> Stamp {
        self.stamp
    }

    /// The file's bytes from the start to the end, a piece at a time.
    pub fn stream(self) -> impl Stream<Item = Result<Bytes, ReadError>> + Send {
        futures::stream::try_unfold((self, 0), |(reader, offset)| async move {
            if offset >= reader.stamp.size {
                return Ok(None);
            }
            let piece = reader.piece(offset).await?;
            let next = offset + piece.len() as u64;
            Ok(Some((piece, (reader, next))))
        })
    }

    /// The whole file. The caller has looked at its size.
    pub async fn read(&self) -> Result<Vec<u8>, ReadError> {
        let mut all = Vec::with_capacity(usize::try_from(self.stamp.size).unwrap_or(0));
        while (all.len() as u64) < self.stamp.size {
            all.extend_from_slice(&self.piece(all.len() as u64).await?);
        }
        Ok(all)
    }

    async fn piece(&self, offset: u64) -> Result<Bytes, ReadError> {
        let left = usize::try_from(self.stamp.size - offset).unwrap_or(usize::MAX);
        let (done, bytes) = self.link.get(&self.path, offset, left.min(MAX_BODY)).await?;
        // Half of one version and half of another is no file at all.
        if done.stamp != self.stamp || bytes.is_empty() {
            return Err(ReadError::Changed);
        }
        Ok(bytes)
    }
}
