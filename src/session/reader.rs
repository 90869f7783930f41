//! Reads a file in pieces, directly over the link: the data does not pass through the session's task.

use std::{fmt, ops::Range, sync::Arc};

use bytes::Bytes;
use futures::Stream;
use link::{Link, LinkError};
use model::FilePath;
use protocol::{frame::MAX_BODY, message::Stamp};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{
    events::{ReadObserver, SessionEvent},
    usage::Reading,
};

/// A file of a session, as it was when it was opened. While this lives, the session counts as used.
#[derive(Clone)]
pub struct FileReader {
    pub(super) link: Link,
    pub(super) path: FilePath,
    pub(super) stamp: Stamp,
    pub(super) _reading: Reading,
    pub(super) observer: ReadObserver,
}

/// Why the rest of a file could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The sandbox ended, or the agent refused.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The file has changed since it was opened.
    #[error("the file has changed while it was read")]
    Changed,
}

/// Chooses the size of the next piece of a stream: 1 MiB while fewer than `large` such pieces of all streams that share
/// this are in memory, otherwise 64 KiB. A piece stays in memory until its reader takes it: this limits the memory of
/// all streams, and no stream waits for a slower one.
#[derive(Debug, Clone)]
pub struct PieceSizes(Arc<Semaphore>);

/// Bytes of a piece if many are in memory. With much smaller pieces, the round trip to the sandbox costs more than the
/// bytes.
const SMALL_PIECE_BYTES: usize = 64 << 10;

/// A large piece, which returns its permit when it is dropped.
struct Large(Bytes, #[expect(dead_code, reason = "held, not used")] OwnedSemaphorePermit);

impl AsRef<[u8]> for Large {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl PieceSizes {
    /// At most `large` pieces of 1 MiB at a time, and besides them 64 KiB for each stream.
    pub fn new(large: usize) -> Self {
        Self(Arc::new(Semaphore::new(large)))
    }

    async fn next(&self, file: &FileReader, left: Range<u64>) -> Result<Bytes, ReadError> {
        let len = usize::try_from(left.end - left.start).unwrap_or(usize::MAX);
        if len > SMALL_PIECE_BYTES
            && let Ok(permit) = self.0.clone().try_acquire_owned()
        {
            let bytes = file.piece(left.start, len).await?;
            return Ok(Bytes::from_owner(Large(bytes, permit)));
        }
        file.piece(left.start, len.min(SMALL_PIECE_BYTES)).await
    }
}

impl FileReader {
    /// The path of the file.
    pub fn path(&self) -> &FilePath {
        &self.path
    }

    /// The stamp of the file when it was opened.
    pub fn stamp(&self) -> Stamp {
        self.stamp
    }

    /// The whole file, a piece at a time.
    pub fn stream(self) -> impl Stream<Item = Result<Bytes, ReadError>> + Send {
        let all = 0..self.stamp.size;
        self.range(all, PieceSizes::new(1))
    }

    /// A range of the file, which must exist, a piece at a time.
    pub fn range(
        self,
        range: Range<u64>,
        pieces: PieceSizes,
    ) -> impl Stream<Item = Result<Bytes, ReadError>> + Send {
        let start = (self, pieces, range);
        futures::stream::try_unfold(start, |(file, pieces, left)| async move {
            if left.is_empty() {
                return Ok(None);
            }
            let piece = pieces.next(&file, left.clone()).await?;
            let left = left.start + piece.len() as u64..left.end;
            Ok(Some((piece, (file, pieces, left))))
        })
    }

    /// The whole file. The caller has checked its size.
    ///
    /// # Errors
    /// If the file has changed since it was opened, or the sandbox has ended.
    pub async fn read(&self) -> Result<Vec<u8>, ReadError> {
        let mut all = Vec::with_capacity(usize::try_from(self.stamp.size).unwrap_or(0));
        while (all.len() as u64) < self.stamp.size {
            let left = self.stamp.size - all.len() as u64;
            let len = usize::try_from(left).unwrap_or(usize::MAX);
            all.extend_from_slice(&self.piece(all.len() as u64, len).await?);
        }
        Ok(all)
    }

    /// At most this many bytes, at most [`MAX_BODY`].
    async fn piece(&self, offset: u64, len: usize) -> Result<Bytes, ReadError> {
        let (done, bytes) = self.link.get(&self.path, offset, len.min(MAX_BODY)).await?;
        // A mix of two versions would be no valid file.
        if done.stamp != self.stamp || bytes.is_empty() {
            return Err(ReadError::Changed);
        }
        self.observer.observe(&SessionEvent::FileRead { bytes: bytes.len() });
        Ok(bytes)
    }
}

impl fmt::Debug for FileReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, stamp, .. } = self;
        f.debug_struct("FileReader")
            .field("path", path)
            .field("stamp", stamp)
            .finish_non_exhaustive()
    }
}
