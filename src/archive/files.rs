//! Files of archived sessions, for clients that open a URL: read from the store, a range at a time.

use std::{fmt, ops::Range};

use bytes::Bytes;
use futures::{Stream, StreamExt};
use model::{DataPath, SessionKey};
use protocol::message::Stamp;

use super::{Archive, manifest::Manifest, store::StoreError};

/// A file of an archived session.
#[derive(Clone)]
pub(crate) struct ArchivedFile {
    archive: Archive,
    object: String,
    /// Offset of its bytes in the object.
    start: u64,
    path: DataPath,
    stamp: Stamp,
}

impl fmt::Debug for ArchivedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArchivedFile").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Archive {
    /// A file of a session, if it has one of this name.
    pub(crate) fn file(
        &self,
        key: &SessionKey,
        manifest: &Manifest,
        path: &DataPath,
    ) -> Option<ArchivedFile> {
        let (file, start) = manifest.file(path)?;
        // Made from the hash, so that the stamp changes with the content, as a live file's does.
        let ino = file.sha256.get(..15).and_then(|hash| u64::from_str_radix(hash, 16).ok());
        let stamp = Stamp {
            ino: ino.unwrap_or_default(),
            size: file.size,
            mtime_ns: file.modified_ns,
            ctime_ns: file.modified_ns,
        };
        let object = manifest.object(key, "files");
        Some(ArchivedFile { archive: self.clone(), object, start, path: path.clone(), stamp })
    }
}

impl ArchivedFile {
    /// The file's path.
    pub(crate) fn path(&self) -> &DataPath {
        &self.path
    }

    /// The file's stamp.
    pub(crate) fn stamp(&self) -> Stamp {
        self.stamp
    }

    /// Streams a range of the file, which must be within its size.
    pub(crate) fn range(
        self,
        range: Range<u64>,
    ) -> impl Stream<Item = Result<Bytes, StoreError>> + Send {
        let len = range.end - range.start;
        let first = async move {
            let Self { archive, object, start, .. } = self;
            let range = start + range.start..start + range.end;
            let stream = if range.is_empty() {
                futures::stream::empty().left_stream()
            } else {
                archive.store().stream(&object, range).await?.right_stream()
            };
            Ok::<_, StoreError>(stream)
        };
        let stream = futures::stream::once(first).flat_map(|stream| match stream {
            Ok(stream) => stream.left_stream(),
            Err(error) => futures::stream::iter([Err(error)]).right_stream(),
        });
        // Fewer bytes are an error: a client that does not count them would take them for the whole range.
        let mut left = len;
        stream.chain(futures::stream::iter([Ok(Bytes::new())])).map(move |piece| {
            let piece = piece?;
            if piece.is_empty() && left > 0 {
                return Err(StoreError::Missing);
            }
            left = left.saturating_sub(piece.len() as u64);
            Ok(piece)
        })
    }
}
