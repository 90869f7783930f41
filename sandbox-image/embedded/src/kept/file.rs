//! The file: two places for states, so that a new one is whole before the old one is given up.
//!
//! ```text
//! 0      mark: the number of the state that is not how the sandbox was last, and one
//! 512    record } of a state: its number, where it lies, how long it is, its hash, and a hash of all this
//! 1024   record }
//! 4096   states
//! ```
//!
//! Nothing can be opened or renamed once an agent has given up its rights, so it is one file. A state is on disk
//! before its record is.

use std::{
    fs::File,
    io::{self, BufWriter, Read, Seek, SeekFrom, Write},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
};

use nix::{fcntl::FallocateFlags, libc};
use sha2::{Digest, Sha256};

use super::Kept;

/// How a record begins.
const MAGIC: &[u8; 16] = b"llm-sandbox kept";

/// Where records are.
const RECORDS: [u64; 2] = [512, 1024];

/// Bytes of a record.
const RECORD: usize = 16 + 3 * 8 + 32 + 32;

/// Where states begin, and of what their places are multiples.
const START: u64 = 4096;

/// Bytes in which a key is found, its length included.
const MAX_KEY: u64 = 256;

/// Bytes that are written at a time.
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

/// The newest record of a file, and in which of their places it is.
fn newest(file: &File) -> Option<(usize, Record)> {
    let records = RECORDS.iter().enumerate();
    let records = records.filter_map(|(slot, place)| Some((slot, Record::read(file, *place)?)));
    records.max_by_key(|(_, record)| record.number)
}

/// Opens the file of a sandbox, made if it is not there: a file, and nothing that leads elsewhere or would wait for
/// somebody.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    only_file(options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?)
}

fn only_file(file: File) -> io::Result<File> {
    let is_file = file.metadata()?.is_file();
    is_file.then_some(file).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Whether a file holds a sandbox that this program can go on with, as far as a look at its first bytes can tell, or
/// another process has it, which may still be about to write one.
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

/// The file of a sandbox that nobody else has.
#[derive(Debug)]
pub(crate) struct StateFile {
    file: File,
    newest: Option<(usize, Record)>,
    mark: u64,
    #[cfg(test)]
    room: Option<u64>,
}

impl StateFile {
    /// One that is locked, and whether there is anything in it.
    pub(super) fn take(file: File) -> (Self, bool) {
        let mut mark = [0; 8];
        let has_any = file.read_exact_at(&mut mark, 0).is_ok();
        let (newest, mark) = (newest(&file), u64::from_le_bytes(mark));
        let file = Self {
            file,
            newest,
            mark,
            #[cfg(test)]
            room: None,
        };
        (file, has_any)
    }

    fn number(&self) -> u64 {
        self.newest.map_or(0, |(_, record)| record.number)
    }

    /// What it holds is not how its sandbox was last.
    pub(super) fn is_left(&self) -> bool {
        self.mark == self.number() + 1
    }

    /// What it holds is how its sandbox was last.
    pub(crate) fn is_last(&self) -> bool {
        self.newest.is_some() && !self.is_left()
    }

    /// The state that it holds, if that is what was written and has at most so many bytes.
    pub(super) fn read(&self, most: u64) -> Option<Vec<u8>> {
        let (_, record) = self.newest?;
        // What would tell more of a file is not among the calls that are left.
        let len = (&self.file).seek(SeekFrom::End(0)).ok()?;
        if record.len > most || record.end()? > len {
            return None;
        }
        let mut body = vec![0; usize::try_from(record.len).ok()?];
        self.file.read_exact_at(&mut body, record.at).ok()?;
        (*Sha256::digest(&body) == record.hash).then_some(body)
    }

    /// Marks what it holds: from now on the sandbox differs from it.
    pub(crate) fn leave(&mut self) {
        let mark = self.number() + 1;
        // Where that cannot be done, neither can a new state be written; there is nobody to be told.
        if self.file.write_all_at(&mark.to_le_bytes(), 0).is_ok() {
            self.mark = mark;
            if self.newest.is_some() {
                let _ = self.file.sync_data();
            }
        }
    }

    /// Writes a state, which takes the place of what it holds. Where that fails, what it holds stays.
    pub(crate) fn write(&mut self, kept: &Kept) -> io::Result<()> {
        let old = self.newest.map(|(_, record)| record);
        let size = postcard::experimental::serialized_size(kept).map_err(io::Error::other)?;
        let old_end = old.and_then(|old| old.end()).unwrap_or(START);
        let is_before = old.is_some_and(|old| START + size as u64 <= old.at);
        let at = if is_before { START } else { old_end.next_multiple_of(START) };
        let written = self.write_at(at, kept);
        let record = match written {
            Ok(record) => record,
            Err(error) => {
                let _ = self.file.set_len(old_end);
                return Err(error);
            }
        };
        let slot = self.newest.map_or(0, |(slot, _)| 1 - slot);
        self.file.write_all_at(&record.to_bytes(), RECORDS[slot])?;
        self.file.sync_data()?;
        self.newest = Some((slot, record));
        // The room of the old one. Where it cannot be given back the next state may lie there.
        let _ = if is_before {
            self.file.set_len(record.at + record.len)
        } else {
            let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
            let len = i64::try_from(at - START).unwrap_or(0);
            let done = nix::fcntl::fallocate(&self.file, hole, START.cast_signed(), len);
            done.map_err(io::Error::from)
        };
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

    /// As on a disk that has so many bytes left.
    #[cfg(test)]
    pub(super) fn fail_after(&mut self, bytes: u64) {
        self.room = Some(bytes);
    }
}

/// Writes to a file from there on, and hashes what it writes.
struct Hashing<'a> {
    file: &'a File,
    at: u64,
    hash: Sha256,
    /// Bytes that fit, if they are bounded.
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
