//! Appends lines to the audit file, across restarts, kills and rotation.
//!
//! ```text
//! open:   lock head -> last whole line -> (a torn line stays, and gets a newline) -> line "started"
//! append: full? -> rename to FILE.<n>, begin FILE -> write the line -> head
//! ```

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write},
    ops::Range,
    os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use memchr::memrchr;
use serde::Serialize;

use super::{
    Digest,
    chain::{FoundHead, Hash, Key, Known, Position, Seal, line, read, seal},
    head::{Head, Said},
    pieces,
    record::Event,
};

/// The maximum size of a line, and of the torn bytes after it.
pub(super) const MAX_LINE: usize = 1 << 20;

/// The maximum sizes of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rotation {
    /// The maximum size of a file, in bytes.
    pub max_bytes: u64,
    /// The maximum size of all files together, in bytes: the oldest are removed. `None` for no limit.
    pub max_total: Option<u64>,
}

/// Why an audit file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another server uses the file: two servers would continue the chain differently.
    #[error(
        "SANDBOX_AUDIT_FILE, {0}, is another server's. End that server, or name a file of its own for each."
    )]
    IsAnothers(PathBuf),
    /// The chain in the file cannot be continued.
    #[error(
        "SANDBOX_AUDIT_FILE, {0}: {1}. Move the file away with its older ones and its .head, and note its last hash; \
         a new chain then begins."
    )]
    NotOurs(PathBuf, &'static str),
    /// The file cannot be read or written.
    #[error("SANDBOX_AUDIT_FILE, {0}, cannot be used: {1}.")]
    Io(PathBuf, #[source] io::Error),
}

#[derive(Debug)]
pub(super) struct Writer {
    path: PathBuf,
    server: String,
    rotation: Rotation,
    key: Key,
    file: File,
    /// The number of bytes up to the end of the last whole line.
    len: u64,
    /// Whether a part of a line may follow the last whole line.
    is_torn: bool,
    /// Whether the file was renamed, and the next one could not be created.
    is_moved: bool,
    last: Position,
    head: Head,
    /// Whether the head file names the last line.
    is_said: bool,
}

impl Writer {
    pub(super) fn open(
        path: &Path,
        rotation: Rotation,
        key: Key,
        server: &str,
    ) -> Result<Self, OpenError> {
        let unusable = |error| OpenError::Io(path.to_owned(), error);
        if let Some(folder) = path.parent().filter(|folder| *folder != Path::new("")) {
            DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(unusable)?;
        }
        let head = Head::lock(path).map_err(unusable)?;
        let head = head.ok_or_else(|| OpenError::IsAnothers(path.to_owned()))?;
        let file = begin(path).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => OpenError::IsAnothers(path.to_owned()),
            _ => unusable(error),
        })?;
        let said = head.said(&key).map_err(unusable)?;
        let End { last, torn } = End::of(path, &key)?.completed(&key);
        let len = file.metadata().map_err(unusable)?.len();
        let found = disagreement(said, last);
        let last = match (last, said) {
            // A head file without lines: the files were moved away.
            (Some((last, _)), _) | (None, Said::Last(last)) => last,
            (None, Said::Nothing | Said::Unreadable) => Position::START,
        };
        if said == Said::Nothing && last == Position::START {
            // Written before the first line: a missing head file is then never that of a file that was just begun.
            head.begin(last, &key).map_err(unusable)?;
        }
        let mut writer = Self {
            path: path.to_owned(),
            server: server.to_owned(),
            rotation,
            key,
            file,
            len,
            is_torn: false,
            is_moved: false,
            last,
            head,
            is_said: false,
        };
        let (digest, is_unended) = match &torn {
            Torn::Nothing => (None, false),
            Torn::OfNewline => (None, true),
            Torn::After(torn) => (Some(Digest::of(torn)), true),
        };
        if is_unended {
            // The torn line stays in the file as evidence.
            writer.write(b"\n").map_err(unusable)?;
        }
        let version = env!("CARGO_PKG_VERSION");
        let started = Event::Started { version, torn: digest, head: found };
        writer.append(&started.of(server)).map_err(unusable)?;
        writer.head.begin(writer.last, &writer.key).map_err(unusable)?;
        writer.is_said = true;
        writer.sync().map_err(unusable)?;
        Ok(writer)
    }

    /// The last line.
    pub(super) fn last(&self) -> Position {
        self.last
    }

    /// Appends a line.
    ///
    /// # Errors
    /// If the line was not written. [`settle`](Self::settle) removes what was written of it.
    pub(super) fn append(&mut self, says: &impl Serialize) -> io::Result<()> {
        if self.append_line(says)?
            && let Err(error) = self.remove_oldest()
        {
            tracing::warn!(%error, "failed to remove old audit files");
        }
        Ok(())
    }

    /// Appends a line without removing old files. Returns whether the line is in another file than the one before.
    fn append_line(&mut self, says: &impl Serialize) -> io::Result<bool> {
        let (line, next) = line(self.last, &self.key, says);
        let is_full = self.len > 0 && self.len + line.len() as u64 > self.rotation.max_bytes;
        let is_new = is_full || self.is_moved;
        if is_new {
            self.rotate()?;
        }
        self.write(&line)?;
        self.last = next;
        self.is_said = self.head.say(next, &self.key).is_ok();
        Ok(is_new)
    }

    /// Removes the oldest files beyond the limit, after a line that says which.
    fn remove_oldest(&mut self) -> io::Result<()> {
        let Some(most) = self.rotation.max_total else { return Ok(()) };
        let mut older = pieces::older(&self.path)?;
        let mut left = most.saturating_sub(self.rotation.max_bytes);
        let mut kept = 0;
        for (_, path) in older.iter().rev() {
            let Some(rest) = left.checked_sub(fs::metadata(path)?.len()) else { break };
            (left, kept) = (rest, kept + 1);
        }
        older.truncate(older.len() - kept);
        let Some((_, newest)) = older.last() else { return Ok(()) };
        let tail = tail(&File::open(newest)?)?;
        let (line, known) = last_line(&tail).ok_or(io::ErrorKind::InvalidData)?;
        let removed = Position { seq: known.seq, hash: Hash::of(&tail[line]) };
        self.append_line(&Event::Removed { removed }.of(&self.server.clone()))?;
        older.iter().try_for_each(|(_, path)| fs::remove_file(path))
    }

    /// Whether [`settle`](Self::settle) has nothing to do.
    pub(super) fn is_settled(&self) -> bool {
        !self.is_torn && self.is_said
    }

    /// Removes a torn line, and writes the last line's position to the head file.
    ///
    /// # Errors
    /// If one of these still fails.
    pub(super) fn settle(&mut self) -> io::Result<()> {
        self.mend()?;
        self.head.say(self.last, &self.key)?;
        self.is_said = true;
        Ok(())
    }

    /// Waits until the file and its head file are on the disk.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.sync_all()?;
        self.head.sync()
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.mend()?;
        if let Err(error) = self.file.write_all(bytes) {
            self.is_torn = true;
            // If this fails, too, the server tries again before the next write.
            let _ = self.mend();
            return Err(error);
        }
        self.len += bytes.len() as u64;
        Ok(())
    }

    fn mend(&mut self) -> io::Result<()> {
        if self.is_torn {
            self.file.set_len(self.len)?;
            self.is_torn = false;
        }
        Ok(())
    }

    /// Renames the full file and begins a new one.
    fn rotate(&mut self) -> io::Result<()> {
        if !self.is_moved {
            self.mend()?;
            self.file.sync_all()?;
            let to = pieces::rotated(&self.path, self.last.seq);
            if to.try_exists()? {
                return Err(io::Error::other(format!("{} is there already", to.display())));
            }
            fs::rename(&self.path, to)?;
            self.is_moved = true;
        }
        self.file = begin(&self.path)?;
        self.len = self.file.metadata()?.len();
        self.is_moved = false;
        Ok(())
    }
}

/// Opens or creates a file to append to, for its owner alone. It is locked in addition to its head file, because
/// another server may know it by another name, through a link.
fn begin(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).read(true).append(true).mode(0o600);
    // So that opening a pipe does not wait for a reader.
    let file = options.custom_flags(libc::O_NONBLOCK).open(path)?;
    let file = pieces::regular(file)?;
    file.try_lock()?;
    Ok(file)
}

/// The end of an existing chain.
#[derive(Debug, Default)]
struct End {
    /// The last whole line, and the hash of the line before it.
    last: Option<(Position, Hash)>,
    /// The bytes after that in the newest file.
    torn: Torn,
}

/// The part of a line that a killed server has written.
#[derive(Debug, Default)]
enum Torn {
    #[default]
    Nothing,
    /// The whole line without its newline.
    OfNewline,
    /// These bytes. Later servers that were killed while they reported the part may have added more.
    After(Vec<u8>),
}

impl From<&[u8]> for Torn {
    fn from(bytes: &[u8]) -> Self {
        if bytes.is_empty() { Self::Nothing } else { Self::After(bytes.to_vec()) }
    }
}

impl End {
    fn of(path: &Path, key: &Key) -> Result<Self, OpenError> {
        let not_ours = |why| OpenError::NotOurs(path.to_owned(), why);
        let unusable = |error| OpenError::Io(path.to_owned(), error);
        let mut end = Self::default();
        let mut pieces = pieces::open(path).map_err(unusable)?;
        // The newest file may have no whole line, if the server was killed when it had begun the file.
        while let Some(piece) = pieces.pop() {
            let tail = tail(&piece.file).map_err(unusable)?;
            let Some((line, known)) = last_line(&tail) else {
                if !tail.is_empty() && (piece.path != path || !begins_like_a_line(&tail)) {
                    return Err(not_ours("it is not an audit file, or its end was changed"));
                }
                end.torn = Torn::from(&*tail);
                continue;
            };
            let why = match (seal(&tail[line.clone()], key), key) {
                (Seal::Good, _) | (Seal::None, None) => None,
                (Seal::None, Some(_)) => Some("it was begun without the key in SANDBOX_KEY_FILE"),
                (Seal::Unknown, _) => {
                    Some("it was begun with a key, and SANDBOX_KEY_FILE is not set")
                }
                (Seal::Bad, _) => {
                    Some("its last line was not made with the key in SANDBOX_KEY_FILE")
                }
            };
            if let Some(why) = why {
                return Err(not_ours(why));
            }
            if piece.path == path {
                end.torn = Torn::from(&tail[line.end..]);
            }
            let position = Position { seq: known.seq, hash: Hash::of(&tail[line]) };
            return Ok(Self { last: Some((position, known.prev)), ..end });
        }
        Ok(end)
    }

    /// Counts a line that lacks only its newline as whole: the newline is added. A line that was not made with the key
    /// may be anyone's, and counts as torn.
    fn completed(self, key: &Key) -> Self {
        let Torn::After(torn) = &self.torn else { return self };
        let line = [torn, &b"\n"[..]].concat();
        let before = self.last.map_or(Position::START, |(last, _)| last);
        let is_ours = matches!((seal(&line, key), key), (Seal::Good, Some(_)) | (Seal::None, None));
        let follows =
            |known: &Known| is_ours && known.seq == before.seq + 1 && known.prev == before.hash;
        match read(&line).filter(follows) {
            Some(Known { seq, prev, .. }) => {
                let last = Some((Position { seq, hash: Hash::of(&line) }, prev));
                Self { last, torn: Torn::OfNewline }
            }
            None => self,
        }
    }
}

/// The range of the last whole line, and its fields.
fn last_line(tail: &[u8]) -> Option<(Range<usize>, Known)> {
    let mut end = tail.len();
    while let Some(newline) = memrchr(b'\n', &tail[..end]) {
        let begin = memrchr(b'\n', &tail[..newline]).map_or(0, |before| before + 1);
        if let Some(known) = read(&tail[begin..=newline]) {
            return Some((begin..newline + 1, known));
        }
        end = newline;
    }
    None
}

/// Whether these bytes may be the first ones of a line.
fn begins_like_a_line(bytes: &[u8]) -> bool {
    const BEGIN: &[u8] = br#"{"seq":"#;
    let common = bytes.len().min(BEGIN.len());
    bytes[..common] == BEGIN[..common]
}

/// The contents of the head file, if it does not name the last line. The line before is accepted, too: a server that
/// was killed between writing a line and the head file leaves it.
fn disagreement(said: Said, last: Option<(Position, Hash)>) -> Option<FoundHead> {
    match (said, last) {
        (Said::Unreadable, _) | (Said::Nothing, Some(_)) => Some(FoundHead::None),
        (Said::Nothing | Said::Last(_), None) => None,
        (Said::Last(named), Some((last, prev))) => {
            let is_before = named.seq + 1 == last.seq && named.hash == prev;
            (named != last && !is_before).then_some(FoundHead::Named(named))
        }
    }
}

/// Reads the end of a file, enough for a line and the torn bytes after it.
fn tail(file: &File) -> io::Result<Vec<u8>> {
    let len = file.metadata()?.len();
    let from = len.saturating_sub(2 * MAX_LINE as u64);
    let mut bytes = vec![0; usize::try_from(len - from).expect("at most 2 * MAX_LINE")];
    file.read_exact_at(&mut bytes, from)?;
    Ok(bytes)
}
