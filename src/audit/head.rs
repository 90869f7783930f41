//! The head file beside an audit file: it names the last line, so that lines missing at the end are found. It is
//! written after each line, and locked while a server uses it: unlike the audit file it is never renamed.
//!
//! ```text
//! {"seq":120,"hash":"<SHA-256 of line 120>","mac":"<HMAC, if there is a key>"}\n
//! ```

use std::{
    fs::{File, OpenOptions, TryLockError},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    thread::sleep,
    time::Duration,
};

use super::chain::{Key, Position, Seal, seal, sealed};

/// The maximum number of bytes that are read from a head file.
const MAX_BYTES: u64 = 1000;

/// The number of attempts to lock, and the time between them: a program that verifies a chain locks the file for an
/// instant, to find out whether a server is running.
const TRIES: (u32, Duration) = (20, Duration::from_millis(10));

/// The maximum number of times that an unreadable head file is read while a server uses it.
const READS: usize = 100;

/// The contents of a head file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Said {
    /// The file does not exist, or is still empty.
    Nothing,
    /// The file is not a head file, or was written with another key.
    Unreadable,
    /// The file names this line as the last one.
    Last(Position),
}

/// A head file that this server has locked.
#[derive(Debug)]
pub(super) struct Head(File);

/// The path of an audit file's head file.
pub(super) fn path(audit: &Path) -> PathBuf {
    let mut name = audit.as_os_str().to_owned();
    name.push(".head");
    name.into()
}

impl Head {
    /// Locks the head file, and creates it if it does not exist. `None` if another server has locked it.
    pub(super) fn lock(audit: &Path) -> io::Result<Option<Self>> {
        let mut open = OpenOptions::new();
        let file = open
            .create(true)
            .read(true)
            .write(true)
            .truncate(false)
            .mode(0o600)
            .open(path(audit))?;
        for _ in 0..TRIES.0 {
            match file.try_lock() {
                Ok(()) => return Ok(Some(Self(file))),
                Err(TryLockError::WouldBlock) => sleep(TRIES.1),
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
        Ok(None)
    }

    pub(super) fn said(&self, key: &Key) -> io::Result<Said> {
        read_from(&self.0, key)
    }

    /// Writes the last line's position over the previous one, with one write: a killed server leaves one or the other.
    pub(super) fn say(&self, last: Position, key: &Key) -> io::Result<()> {
        self.0.write_all_at(&sealed(&last, key), 0)
    }

    /// Writes the last line's position, whatever the file contains.
    pub(super) fn begin(&self, last: Position, key: &Key) -> io::Result<()> {
        let text = sealed(&last, key);
        self.0.write_all_at(&text, 0)?;
        self.0.set_len(text.len() as u64)
    }

    pub(super) fn sync(&self) -> io::Result<()> {
        self.0.sync_all()
    }
}

/// Reads the head file of an audit file, even if a server uses it.
///
/// # Errors
/// If the file exists and cannot be read.
pub(super) fn said(audit: &Path, key: &Key) -> io::Result<Said> {
    let mut tries = 1;
    loop {
        let said = match File::open(path(audit)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Said::Nothing,
            file => read_from(&file?, key)?,
        };
        // A server may be writing the head file, and have written a part.
        if said != Said::Unreadable || tries == READS || !is_in_use(audit) {
            return Ok(said);
        }
        tries += 1;
    }
}

/// Whether a server is writing to this audit file.
pub(super) fn is_in_use(audit: &Path) -> bool {
    let file = File::open(path(audit));
    file.is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

fn read_from(file: &File, key: &Key) -> io::Result<Said> {
    let mut text = vec![];
    // From the start, wherever the last reader stopped.
    let mut at = 0;
    let mut piece = [0; 256];
    while at < MAX_BYTES {
        let read = file.read_at(&mut piece, at)?;
        if read == 0 {
            break;
        }
        text.extend_from_slice(&piece[..read]);
        at += read as u64;
    }
    if text.is_empty() {
        return Ok(Said::Nothing);
    }
    let is_ours = match seal(&text, key) {
        Seal::None => key.is_none(),
        // Without the key the MAC cannot be checked.
        Seal::Unknown | Seal::Good => true,
        Seal::Bad => false,
    };
    let line = text.strip_suffix(b"\n").filter(|_| is_ours);
    let last = line.and_then(|line| serde_json::from_slice(line).ok());
    Ok(last.map_or(Said::Unreadable, Said::Last))
}
