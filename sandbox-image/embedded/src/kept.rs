//! A sandbox on disk: what it was when its server went, so that the next server can go on with it.
//!
//! ```text
//! magic | SHA-256 of the rest | key of the runtime, files, and of each interpreter the state before the next call
//! ```
//!
//! The file is open from the start, as nothing can be opened later. What was in it is taken out when the agent
//! starts, so that an agent that is killed leaves nothing that is not true any more.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom, Write},
    path::Path,
};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{files::SavedFiles, state::SavedState};

/// How such a file begins.
const MAGIC: &[u8; 16] = b"llm-sandbox kept";

/// Bytes of the hash.
const HASH: usize = 32;

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
    /// Cells that it has run.
    pub(crate) count: u64,
    /// What it was after the last.
    pub(crate) state: SavedState,
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
    file.seek(SeekFrom::Start(0))?;
    file.write_all(MAGIC)?;
    file.write_all(&Sha256::digest(&body))?;
    file.write_all(&body)?;
    file.sync_data()
}

/// Whether a file holds a sandbox, whole, that this program can go on with.
pub fn is_kept(path: &Path) -> bool {
    let body = File::open(path).and_then(|mut file| read(&mut file)).ok().flatten();
    // The key comes first.
    body.is_some_and(|body| {
        postcard::take_from_bytes::<String>(&body).is_ok_and(|(key, _)| key == crate::key())
    })
}

/// What follows the hash, if that is right.
fn read(file: &mut File) -> io::Result<Option<Vec<u8>>> {
    let mut all = vec![];
    file.seek(SeekFrom::Start(0))?;
    file.read_to_end(&mut all)?;
    let Some(rest) = all.strip_prefix(MAGIC) else { return Ok(None) };
    let Some((hash, body)) = rest.split_at_checked(HASH) else { return Ok(None) };
    Ok((*Sha256::digest(body) == *hash).then(|| body.to_vec()))
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
        assert!(is_kept(&path));
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
            assert!(!is_kept(&path), "byte {at}");
        }
        std::fs::write(&path, b"").expect("written");
        put(file, &Kept { key: "another".into(), ..kept() }).expect("written");
        assert!(!is_kept(&path) && take(file).expect("read").is_none());
    }
}
