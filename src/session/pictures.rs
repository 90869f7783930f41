//! Pictures that a run has made, as they were when it ended, for the session's history. They are read after its caller
//! has the answer, and before the next run, which could change them.

use bytes::{Bytes, BytesMut};
use link::Link;
use model::{DataPath, artifact::is_picture};
use protocol::{
    frame::MAX_BODY,
    message::{FileEntry, Stamp},
};

/// Maximum number of pictures of one run that are stored.
const MAX_PICTURES: usize = 10;

/// Bytes of one picture, and of all pictures of a run. The next run waits until they are read.
const MAX_BYTES: u64 = 2 << 20;
const MAX_BYTES_OF_RUN: u64 = 4 << 20;

/// A picture.
#[derive(Debug, Clone)]
pub(crate) struct Picture {
    pub(crate) path: DataPath,
    pub(crate) bytes: Bytes,
}

/// The pictures among the files that a run has made or changed, the newest last, within the limits.
pub(super) fn among(changed: &[FileEntry]) -> Vec<FileEntry> {
    let is_drawn = |file: &&FileEntry| {
        DataPath::relative(&file.path).is_ok_and(|path| is_picture(path.mime()))
    };
    let mut drawn: Vec<_> = changed.iter().filter(is_drawn).cloned().collect();
    drawn.sort_by_key(|file| file.stamp.mtime_ns);
    let mut left = MAX_BYTES_OF_RUN;
    drawn.retain(|file| {
        let fits = file.stamp.size <= MAX_BYTES.min(left);
        left -= if fits { file.stamp.size } else { 0 };
        fits
    });
    drawn.truncate(MAX_PICTURES);
    drawn
}

/// Reads the pictures. A picture that cannot be read, or has changed since, is left out: its file may still exist when
/// a viewer asks for it.
pub(super) async fn read(link: &Link, drawn: Vec<FileEntry>) -> Vec<Picture> {
    let mut pictures = vec![];
    for FileEntry { path, stamp } in drawn {
        if let Ok(path) = DataPath::relative(&path)
            && let Some(bytes) = whole(link, &path, stamp).await
        {
            pictures.push(Picture { path, bytes });
        }
    }
    pictures
}

async fn whole(link: &Link, path: &DataPath, stamp: Stamp) -> Option<Bytes> {
    let mut bytes = BytesMut::new();
    loop {
        let (done, piece) =
            link.get(&path.clone().into(), bytes.len() as u64, MAX_BODY).await.ok()?;
        bytes.extend_from_slice(&piece);
        if done.stamp != stamp {
            return None;
        }
        if piece.is_empty() || bytes.len() as u64 >= stamp.size {
            return (bytes.len() as u64 == stamp.size).then(|| bytes.freeze());
        }
    }
}
