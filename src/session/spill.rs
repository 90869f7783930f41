//! Texts of runs that memory has no room for, in a file without a name: it is removed when its last handle is closed,
//! with its session or with the server, however the server ends.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use serde::{Serialize, de::DeserializeOwned};

/// Maximum number of bytes that one session may store in the file.
const MAX_BYTES: u64 = 256 << 20;

/// An append-only file of texts.
#[derive(Debug)]
pub(super) struct SpillFile {
    file: File,
    end: AtomicU64,
    /// Bytes that must stay free on the file's disk.
    min_free: u64,
}

/// The position of an entry.
#[derive(Debug, Clone)]
pub(super) struct Spilled {
    spill_file: Arc<SpillFile>,
    at: u64,
    len: usize,
}

impl SpillFile {
    /// A new file on the file system of this folder, which is created if it does not exist.
    ///
    /// # Errors
    /// If no file can be created there.
    pub(super) fn new(folder: &Path, min_free: u64) -> io::Result<Arc<Self>> {
        fs::create_dir_all(folder)?;
        let file = tempfile::tempfile_in(folder)?;
        Ok(Arc::new(Self { file, end: AtomicU64::new(0), min_free }))
    }

    /// Appends an entry. Only one task does.
    ///
    /// # Errors
    /// If the disk is full, or the session's share of it is used up.
    pub(super) fn add(self: &Arc<Self>, texts: &impl Serialize) -> io::Result<Spilled> {
        self.add_bytes(&serde_json::to_vec(texts)?)
    }

    /// Appends bytes. Only one task does.
    ///
    /// # Errors
    /// The errors of [`add`](Self::add).
    pub(super) fn add_bytes(self: &Arc<Self>, bytes: &[u8]) -> io::Result<Spilled> {
        let at = self.end.load(Ordering::Relaxed);
        let end = at + bytes.len() as u64;
        if end > MAX_BYTES {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let disk = rustix::fs::fstatvfs(&self.file)?;
        if disk.f_bavail.saturating_mul(disk.f_frsize) < self.min_free + bytes.len() as u64 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.file.write_all_at(bytes, at)?;
        self.end.store(end, Ordering::Relaxed);
        Ok(Spilled { spill_file: self.clone(), at, len: bytes.len() })
    }
}

impl Spilled {
    /// Reads the entry.
    ///
    /// # Errors
    /// If the disk cannot be read.
    pub(super) fn read<T: DeserializeOwned>(&self) -> io::Result<T> {
        Ok(serde_json::from_slice(&self.read_bytes()?)?)
    }

    /// Reads the entry's bytes.
    ///
    /// # Errors
    /// If the disk cannot be read.
    pub(super) fn read_bytes(&self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; self.len];
        self.spill_file.file.read_exact_at(&mut bytes, self.at)?;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_there_is_read_again_and_the_folder_stays_empty() {
        let folder = tempfile::tempdir().expect("a folder");
        let spill_file = SpillFile::new(folder.path(), 0).expect("a file");
        let texts: Vec<_> =
            ["a", "", "\u{20ac}\0\n"].iter().map(|text| text.repeat(1000)).collect();
        let spilled: Vec<_> =
            texts.iter().map(|text| spill_file.add(text).expect("there is room")).collect();
        for (text, spilled) in texts.iter().zip(&spilled) {
            assert_eq!(spilled.read::<String>().expect("it is there"), *text);
        }
        assert_eq!(folder.path().read_dir().expect("a folder").count(), 0);
    }

    #[test]
    fn a_session_has_no_more_than_its_share_of_the_disk() {
        let folder = tempfile::tempdir().expect("a folder");
        let spill_file = SpillFile::new(folder.path(), 0).expect("a file");
        spill_file.end.store(MAX_BYTES - 10, Ordering::Relaxed);
        let refused = spill_file.add(&"x".repeat(10)).expect_err("it is full");
        assert_eq!(refused.kind(), io::ErrorKind::FileTooLarge);
        spill_file.add(&"x").expect("there is room for three bytes");
    }

    #[test]
    fn what_has_to_stay_free_on_the_disk_is_left_free() {
        let folder = tempfile::tempdir().expect("a folder");
        let spill_file = SpillFile::new(folder.path(), 1 << 60).expect("a file");
        let refused = spill_file.add(&"x").expect_err("no disk is that large");
        assert_eq!(refused.kind(), io::ErrorKind::StorageFull);
    }
}
