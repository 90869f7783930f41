//! Pictures that a run has made, as they were when it ended: read before the next one can change them, for the record
//! of the session.

use bytes::{Bytes, BytesMut};
use protocol::message::FileEntry;

use super::Artifact;
use crate::{
    artifact::{DataPath, is_picture},
    link::Link,
};

/// Pictures of one run that are kept.
const MAX_PICTURES: usize = 10;

/// Bytes of one, and of all of a run. They are read before its caller has its answer.
const MAX_BYTES: u64 = 2 << 20;
const MAX_BYTES_OF_RUN: u64 = 4 << 20;

/// A picture.
#[derive(Debug, Clone)]
pub(crate) struct Picture {
    pub(crate) path: DataPath,
    pub(crate) bytes: Bytes,
}

/// Reads those among the files that a run has made or changed, the newest last. What cannot be read, or is too large, is
/// left out: its file may still be there when somebody wants the record.
pub(super) async fn read(link: &Link, changed: &[FileEntry]) -> Vec<Picture> {
    let files = changed.iter().cloned().filter_map(Artifact::from_entry);
    let mut files: Vec<_> = files.filter(|file| is_picture(file.path.mime())).collect();
    files.sort_by_key(|file| file.modified_ns);
    let (mut pictures, mut left) = (vec![], MAX_BYTES_OF_RUN);
    for Artifact { path, size_bytes, .. } in files.into_iter().take(MAX_PICTURES) {
        if size_bytes > MAX_BYTES.min(left) {
            continue;
        }
        if let Some(bytes) = whole(link, &path, size_bytes).await {
            left -= size_bytes;
            pictures.push(Picture { path, bytes });
        }
    }
    pictures
}

async fn whole(link: &Link, path: &DataPath, size: u64) -> Option<Bytes> {
    let mut bytes = BytesMut::new();
    loop {
        let offset = bytes.len() as u64;
        let (done, piece) = link.get(path, offset, usize::MAX).await.ok()?;
        bytes.extend_from_slice(&piece);
        if done.stamp.size != size || bytes.len() as u64 > size {
            return None;
        }
        if bytes.len() as u64 == size {
            return Some(bytes.freeze());
        }
        if piece.is_empty() {
            return None;
        }
    }
}
