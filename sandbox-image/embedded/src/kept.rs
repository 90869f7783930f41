//! A sandbox on disk: what it was when its server went, so that the next server can go on with it.
//!
//! ```text
//! magic | SHA-256 and length of the rest | key of the runtime, files, and of each interpreter the states before the
//!                                        | next call, which it can go back to
//! ```
//!
//! The rest is on disk before what stands before it: to see whether all is there needs no look at all of it.
//!
//! The file is open from the start, as nothing can be opened later. What was in it is taken out when the agent
//! starts, so that an agent that is killed leaves nothing that is not true any more.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    os::unix::fs::FileExt,
    path::Path,
};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{files::SavedFiles, state::SavedState};

/// How such a file begins.
const MAGIC: &[u8; 16] = b"llm-sandbox kept";

/// Bytes of the hash.
const HASH: usize = 32;

/// Bytes before the rest.
const HEAD: u64 = 16 + 32 + 8;

/// Bytes in which a key is found, its length included.
const MAX_KEY: u64 = 256;

/// A sandbox as it is kept.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Kept {
    /// Of the runtime that its states belong to.
    pub(crate) key: String,
    /// Its files.
    pub(crate) files: SavedFiles,
    /// Its interpreters.
    pub(crate) kernels: Vec<KeptKernel>,
}

/// An interpreter with variables.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct KeptKernel {
    /// Name of its language.
    pub(crate) language: String,
    /// What it was after so many cells, the oldest that can be gone back to first, and each beside the one before.
    pub(crate) states: Vec<(u64, SavedState)>,
}

/// Takes out what a file holds, and leaves it empty; `None` if that is nothing that can be used.
pub(crate) fn take(file: &mut File) -> io::Result<Option<Kept>> {
    let body = read(file);
    file.set_len(0)?;
    let Some(body) = body? else { return Ok(None) };
    let kept: Option<Kept> = postcard::from_bytes(&body).ok();
    Ok(kept.filter(|kept| kept.key == crate::key()))
}

/// Writes a sandbox to a file that is empty.
pub(crate) fn put(file: &mut File, kept: &Kept) -> io::Result<()> {
    let body = postcard::to_stdvec(kept).map_err(io::Error::other)?;
    file.write_all_at(&body, HEAD)?;
    file.sync_data()?;
    let hash = Sha256::digest(&body);
    let head = [MAGIC, &hash[..], &(body.len() as u64).to_le_bytes()].concat();
    file.write_all_at(&head, 0)?;
    file.sync_data()
}

/// Whether a file holds a sandbox that this program can go on with: whole, as far as its length can tell.
pub fn is_kept(path: &Path) -> bool {
    let look = || -> io::Result<bool> {
        let file = File::open(path)?;
        let (_, length) = read_head(&file)?;
        let mut start = vec![];
        file.take(MAX_KEY).read_to_end(&mut start)?;
        // The key comes first.
        let key = postcard::take_from_bytes::<String>(&start);
        Ok(key.is_ok_and(|(key, _)| key == crate::key()) && path.metadata()?.len() == HEAD + length)
    };
    look().unwrap_or(false)
}

/// Whether what a file holds is what was written to it. Reads all of it.
pub fn is_whole(path: &Path) -> bool {
    File::open(path).and_then(|file| read(&file)).is_ok_and(|body| body.is_some())
}

/// The hash and the length of what follows; the file is then there.
fn read_head(mut file: &File) -> io::Result<([u8; HASH], u64)> {
    let (mut magic, mut hash, mut length) = ([0; MAGIC.len()], [0; HASH], [0; 8]);
    file.seek(SeekFrom::Start(0))?;
    for part in [&mut magic[..], &mut hash, &mut length] {
        file.read_exact(part)?;
    }
    if magic != *MAGIC {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok((hash, u64::from_le_bytes(length)))
}

/// What follows, if it is what was written.
fn read(mut file: &File) -> io::Result<Option<Vec<u8>>> {
    let Ok((hash, length)) = read_head(file) else { return Ok(None) };
    let mut body = vec![];
    file.read_to_end(&mut body)?;
    let is_whole = body.len() as u64 == length && *Sha256::digest(&body) == hash;
    Ok(is_whole.then_some(body))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept() -> Kept {
        Kept { key: crate::key(), files: SavedFiles::default(), kernels: vec![] }
    }

    #[test]
    fn what_is_kept_is_taken_once() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("state");
        let mut file =
            File::options().read(true).write(true).create(true).truncate(false).open(&path);
        let file = file.as_mut().expect("made");
        assert!(take(file).expect("read").is_none() && !is_kept(&path));
        put(file, &kept()).expect("written");
        assert!(is_kept(&path) && is_whole(&path));
        assert!(take(file).expect("read").is_some());
        assert!(take(file).expect("read").is_none() && !is_kept(&path));
    }

    #[test]
    fn what_is_torn_changed_or_of_another_runtime_is_nothing() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("state");
        let mut file =
            File::options().read(true).write(true).create(true).truncate(false).open(&path);
        let file = file.as_mut().expect("made");
        put(file, &kept()).expect("written");
        let whole = std::fs::read(&path).expect("read");
        for len in 0..whole.len() {
            std::fs::write(&path, &whole[..len]).expect("written");
            assert!(!is_kept(&path), "{len} bytes of it");
        }
        for at in (0..whole.len()).step_by(7) {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            std::fs::write(&path, changed).expect("written");
            assert!(!is_whole(&path) && take(file).expect("read").is_none(), "byte {at}");
        }
        std::fs::write(&path, b"").expect("written");
        put(file, &Kept { key: "another".into(), ..kept() }).expect("written");
        assert!(!is_kept(&path) && take(file).expect("read").is_none());
    }
}
