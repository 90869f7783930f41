//! The state file: it has room for two states, so that a new one is complete before the old one is removed.
//!
//! ```text
//! 0      mark: the number of a state that is outdated, plus one
//! 512    record } of a state: its number, offset, length and hash, and a hash of the record
//! 1024   record }
//! 4096   states, and from 65536 on the slots of a store, in which also the states are then
//! ```
//!
//! An agent that has given up its rights cannot open or rename files, so both states are in one file. A state is synced
//! to disk before its record is written.
//!
//! With files on disk, the file is also the [`Store`] of their contents, and a state names their slots: saving copies no
//! content. The slots of the last written state are held, and so neither written nor freed, until a newer record is
//! on disk. Whatever dies at whatever time, the record names slots that are as they were; all others are freed when the
//! next agent opens the store. As it is one file, all that removes or moves a saved sandbox needs to know no other.

use std::{
    fs::File,
    io::{self, BufWriter, Read, Seek, SeekFrom, Write},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
    sync::Arc,
};

use nix::libc;
use sha2::{Digest, Sha256};

use super::Kept;
use crate::files::{Extent, SavedFiles, Store, len_of, offset_of, punch, slots_of};

/// The first bytes of a record. They change with the form of states.
const MAGIC: &[u8; 16] = b"llm-sandbox sv 2";

/// Offsets of the records.
const RECORDS: [u64; 2] = [512, 1024];

/// Bytes of a record.
const RECORD: usize = 16 + 3 * 8 + 32 + 32;

/// Offset of the first state, and the alignment of states.
const START: u64 = 4096;

/// Maximum number of bytes of a key, including its length.
const MAX_KEY: u64 = 256;

/// Size of the write buffer, in bytes.
const BUFFER: usize = 1 << 20;

/// A state in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Record {
    number: u64,
    at: u64,
    len: u64,
    hash: [u8; 32],
}

impl Record {
    fn to_bytes(self) -> Vec<u8> {
        let numbers = [self.number, self.at, self.len].map(u64::to_le_bytes).concat();
        let mut bytes = [&MAGIC[..], &numbers, &self.hash].concat();
        bytes.extend(Sha256::digest(&bytes));
        bytes
    }

    fn from_bytes(bytes: &[u8; RECORD]) -> Option<Self> {
        let number = |at: usize| Some(u64::from_le_bytes(bytes[at..at + 8].try_into().ok()?));
        let hash = bytes[40..72].try_into().ok()?;
        let record = Self { number: number(16)?, at: number(24)?, len: number(32)?, hash };
        (record.to_bytes() == bytes).then_some(record)
    }

    fn read(file: &File, place: u64) -> Option<Self> {
        let mut bytes = [0; RECORD];
        file.read_exact_at(&mut bytes, place).ok()?;
        Self::from_bytes(&bytes).filter(|record| record.end().is_some())
    }

    fn end(&self) -> Option<u64> {
        self.at.checked_add(self.len)
    }
}

/// The newest record of a file, with its index in [`RECORDS`].
fn newest(file: &File) -> Option<(usize, Record)> {
    let records = RECORDS.iter().enumerate();
    let records = records.filter_map(|(slot, place)| Some((slot, Record::read(file, *place)?)));
    records.max_by_key(|(_, record)| record.number)
}

/// Opens the state file of a sandbox, or makes it. Refuses links, and special files such as pipes, which could block.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    only_file(options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?)
}

fn only_file(file: File) -> io::Result<File> {
    let is_file = file.metadata()?.is_file();
    is_file.then_some(file).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Whether a file holds a saved sandbox that this program can restore, according to its record and key, or is locked
/// by another process, which may still write one.
pub fn is_kept(path: &Path) -> bool {
    let look = || -> io::Result<bool> {
        let mut options = File::options();
        options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
        let file = only_file(options.open(path)?)?;
        if file.try_lock_shared().is_err() {
            return Ok(true);
        }
        let Some((_, record)) = newest(&file) else { return Ok(false) };
        let mut start = vec![];
        (&file).seek(SeekFrom::Start(record.at))?;
        (&file).take(MAX_KEY).read_to_end(&mut start)?;
        // The key comes first.
        let key = postcard::take_from_bytes::<String>(&start);
        let is_own = key.is_ok_and(|(key, _)| key == crate::key());
        Ok(is_own && record.end() <= Some(file.metadata()?.len()))
    };
    look().unwrap_or(false)
}

/// Truncates a file in which no sandbox was ever saved, because its agent was killed before. Does nothing if another
/// process has locked the file. The mark stays: the next agent says that the sandbox is lost.
pub fn truncate_unkept(path: &Path) {
    let truncate = || -> io::Result<()> {
        let mut options = File::options();
        options.read(true).write(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
        let file = only_file(options.open(path)?)?;
        if file.metadata()?.len() <= START || file.try_lock().is_err() {
            return Ok(());
        }
        for place in RECORDS {
            let mut record = [0; RECORD];
            file.read_exact_at(&mut record, place)?;
            // Another version's record may still be of use to that version.
            if record.iter().any(|byte| *byte != 0) {
                return Ok(());
            }
        }
        file.set_len(START)
    };
    // A file that cannot be truncated is removed when it is old.
    let _ = truncate();
}

/// The state file of a sandbox, locked by this process.
#[derive(Debug)]
pub(crate) struct StateFile {
    file: Arc<File>,
    newest: Option<(usize, Record)>,
    mark: u64,
    /// The store of the contents, if files are on disk.
    store: Option<Arc<Store>>,
    /// The slots of the newest state, and those that it names.
    held: Option<(Extent, SavedFiles)>,
    /// The end of the slots that the newest state names although there is no store: files were on disk when it was
    /// written.
    slots_end: u64,
    #[cfg(test)]
    room: Option<u64>,
}

impl StateFile {
    /// Reads the mark and the newest record of a locked file. Also returns whether the file has any contents.
    pub(super) fn take(file: Arc<File>, store: Option<Arc<Store>>) -> (Self, bool) {
        let mut mark = [0; 8];
        let has_any = file.read_exact_at(&mut mark, 0).is_ok();
        let (newest, mark) = (newest(&file), u64::from_le_bytes(mark));
        let file = Self {
            file,
            newest,
            mark,
            store,
            held: None,
            slots_end: 0,
            #[cfg(test)]
            room: None,
        };
        (file, has_any)
    }

    fn number(&self) -> u64 {
        self.newest.map_or(0, |(_, record)| record.number)
    }

    /// Whether the file's state is outdated: the sandbox has changed since.
    pub(super) fn is_left(&self) -> bool {
        self.mark == self.number() + 1
    }

    /// Whether the file's state is the last one of the sandbox.
    pub(crate) fn is_last(&self) -> bool {
        self.newest.is_some() && !self.is_left()
    }

    /// The bytes of the file's state, if their hash is right and there are at most `most`.
    pub(super) fn read(&self, most: u64) -> Option<Vec<u8>> {
        let (_, record) = self.newest?;
        if record.len > most || record.end()? > len_of(&self.file).ok()? {
            return None;
        }
        let mut body = vec![0; usize::try_from(record.len).ok()?];
        self.file.read_exact_at(&mut body, record.at).ok()?;
        (*Sha256::digest(&body) == record.hash).then_some(body)
    }

    /// Attaches the files of its state to the store, or reads them into memory if there is none. Returns false if that
    /// fails.
    pub(crate) fn attach(&mut self, files: &mut SavedFiles) -> bool {
        let Some((_, record)) = self.newest else { return false };
        let region = slots_of(record.at, record.len);
        let Ok(end) = files.attach(&self.file, self.store.as_ref(), region.clone()) else {
            return false;
        };
        match &self.store {
            Some(store) => self.held = Some((store.found(region), files.clone())),
            None => self.slots_end = offset_of(end),
        }
        true
    }

    /// Discards its state: nothing in the store is used.
    ///
    /// # Errors
    /// If the file cannot be truncated.
    pub(crate) fn discard(&mut self) -> io::Result<()> {
        self.held = None;
        self.store.as_ref().map_or(Ok(()), |store| store.open(&[].into()))
    }

    /// Marks its state as outdated: from now on the sandbox differs from it.
    pub(crate) fn leave(&mut self) {
        let mark = self.number() + 1;
        // If this fails, a new state cannot be written either. There is no caller to report it to.
        if self.file.write_all_at(&mark.to_le_bytes(), 0).is_ok() {
            self.mark = mark;
            if self.newest.is_some() {
                let _ = self.file.sync_data();
            }
        }
    }

    /// Writes a state, which replaces the old one. If that fails, the old one remains.
    pub(crate) fn write(&mut self, kept: Kept) -> io::Result<()> {
        let size = postcard::experimental::serialized_size(&kept).map_err(io::Error::other)?;
        let Some(store) = self.store.clone() else { return self.write_beside(size as u64, &kept) };
        let extent = store.extent(size as u64).map_err(|_| io::ErrorKind::StorageFull)?;
        let record = self.write_at(extent.offset(), &kept)?;
        self.replace(record)?;
        // Frees the slots of the old state.
        self.held = Some((extent, kept.files));
        store.tidy();
        Ok(())
    }

    /// Writes a state of this size before or behind the old one.
    fn write_beside(&mut self, size: u64, kept: &Kept) -> io::Result<()> {
        let old = self.newest.map(|(_, record)| record);
        let old_end = old.and_then(|old| old.end()).unwrap_or(START).max(self.slots_end);
        let is_before = self.slots_end == 0 && old.is_some_and(|old| START + size <= old.at);
        let at = if is_before { START } else { old_end.next_multiple_of(START) };
        let record = match self.write_at(at, kept) {
            Ok(record) => record,
            Err(error) => {
                let _ = self.file.set_len(old_end);
                return Err(error);
            }
        };
        self.replace(record)?;
        self.slots_end = 0;
        // Frees the disk space of the old state. If that fails, a later state can still be written there.
        if is_before {
            let _ = self.file.set_len(record.at + record.len);
        } else {
            punch(&self.file, START, at - START);
        }
        Ok(())
    }

    /// Writes the record of a state that is on disk, in place of the older record.
    fn replace(&mut self, record: Record) -> io::Result<()> {
        let slot = self.newest.map_or(0, |(slot, _)| 1 - slot);
        self.file.write_all_at(&record.to_bytes(), RECORDS[slot])?;
        self.file.sync_data()?;
        self.newest = Some((slot, record));
        Ok(())
    }

    fn write_at(&self, at: u64, kept: &Kept) -> io::Result<Record> {
        #[cfg(test)]
        let left = self.room;
        #[cfg(not(test))]
        let left = None;
        let mut writer = Hashing { file: &self.file, at, hash: Sha256::new(), left };
        let mut buffered = BufWriter::with_capacity(BUFFER, &mut writer);
        postcard::to_io(kept, &mut buffered).map_err(io::Error::other)?;
        buffered.flush()?;
        drop(buffered);
        let (len, hash) = (writer.at - at, writer.hash.finalize().into());
        self.file.sync_data()?;
        Ok(Record { number: self.number() + 1, at, len, hash })
    }

    /// Makes writes fail after this many bytes, as on a full disk.
    #[cfg(test)]
    pub(super) fn fail_after(&mut self, bytes: u64) {
        self.room = Some(bytes);
    }
}

/// The slots of its state stay as they are.
impl Drop for StateFile {
    fn drop(&mut self) {
        if let Some(store) = &self.store {
            store.close();
        }
    }
}

/// Writes to a file from the offset `at` on, and hashes the bytes.
struct Hashing<'a> {
    file: &'a File,
    at: u64,
    hash: Sha256,
    /// Bytes that may still be written, if they are limited.
    left: Option<u64>,
}

impl Write for Hashing<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let fits = self.left.map_or(usize::MAX, |left| usize::try_from(left).unwrap_or(usize::MAX));
        let written = self.file.write_at(&bytes[..bytes.len().min(fits)], self.at)?;
        self.left = self.left.map(|left| left - written as u64);
        self.hash.update(&bytes[..written]);
        self.at += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
