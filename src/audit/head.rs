//! The file beside an audit file: which line is the last one, so that it is found when lines at the end are gone. It is
//! written after each line, and locked for as long as a server has it: unlike the audit file it is never renamed.
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

/// Most bytes of it that are looked at.
const MAX_BYTES: u64 = 1000;

/// How often, and how long in between, a lock is tried for: whoever verifies a chain looks for an instant whether there
/// is a server.
const TRIES: (u32, Duration) = (20, Duration::from_millis(10));

/// How often a head file is read that a server has in use and that cannot be understood.
const READS: usize = 100;

/// What a head file says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Said {
    /// There is none, or nothing is in it yet.
    Nothing,
    /// It is not one, or not one of this key.
    Unreadable,
    /// This line is the last one.
    Last(Position),
}

/// A head file that is this server's.
#[derive(Debug)]
pub(super) struct Head(File);

/// Where the head of this audit file is.
pub(super) fn path(audit: &Path) -> PathBuf {
    let mut name = audit.as_os_str().to_owned();
    name.push(".head");
    name.into()
}

impl Head {
    /// Locks it; it is made if it is not there. `None` if it is another server's.
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

    /// Says that this is the last line, in place and in one piece: a killed server leaves the one before or this.
    pub(super) fn say(&self, last: Position, key: &Key) -> io::Result<()> {
        self.0.write_all_at(&sealed(&last, key), 0)
    }

    /// The same where something else may be in it.
    pub(super) fn begin(&self, last: Position, key: &Key) -> io::Result<()> {
        let text = sealed(&last, key);
        self.0.write_all_at(&text, 0)?;
        self.0.set_len(text.len() as u64)
    }

    pub(super) fn sync(&self) -> io::Result<()> {
        self.0.sync_all()
    }
}

/// What the head file of this audit file says, whoever has it.
///
/// # Errors
/// If it is there and cannot be read.
pub(super) fn said(audit: &Path, key: &Key) -> io::Result<Said> {
    let mut tries = 1;
    loop {
        let said = match File::open(path(audit)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Said::Nothing,
            file => read_from(&file?, key)?,
        };
        // A server that is just writing it may have written a part.
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
    // From the start, wherever the last one to read it has stopped.
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
        // Without the key nothing can be known of it.
        Seal::Unknown | Seal::Good => true,
        Seal::Bad => false,
    };
    let line = text.strip_suffix(b"\n").filter(|_| is_ours);
    let last = line.and_then(|line| serde_json::from_slice(line).ok());
    Ok(last.map_or(Said::Unreadable, Said::Last))
}
