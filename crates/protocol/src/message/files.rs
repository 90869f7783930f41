//! Files of a sandbox, and packages.

use serde::{Deserialize, Serialize};

use super::is_false;
#[cfg(doc)]
use super::{Call, FailureCode};

/// Writes a piece of a file. The pieces of one upload come in order; the file appears, whole, with
/// the last. Until then it is not visible (under gVisor, a file called `.upload-<number>` is), and if no last piece
/// comes nothing remains.
///
/// Body: the bytes of this piece.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Put {
    /// The number that the server chose for the upload. It can be used again after the last piece.
    pub upload: u32,
    /// The path relative to `/mnt/data`. Folders are created as needed.
    pub path: String,
    /// Offset of this piece; a piece at 0 opens the upload.
    pub offset: u64,
    /// Whether this is the last piece.
    pub last: bool,
    /// Whether to replace an existing file of this name. If not, an existing file is a failure with
    /// [`FailureCode::Exists`].
    pub overwrite: bool,
}

/// Answers [`Put`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PutDone {
    /// Whether a file of that name existed. Only valid after the last piece.
    pub replaced: bool,
}

/// Discards an upload whose last piece will not come. It is no error if there is none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Abandon {
    /// As in [`Put`].
    pub upload: u32,
}

/// Writes pieces of the files of packages into the folder in which interpreters look for packages last. The pieces of
/// one file come in order, in one request or several; a file appears, whole, with its last piece. Fails with
/// [`FailureCode::NoRuntime`] if there is no folder for packages.
///
/// Body: the bytes of all pieces, one after another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Install {
    /// The pieces, in the order in which they are written. Writing ends at the first failure.
    pub pieces: Vec<PackagePiece>,
}

/// A piece of a file of a package.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackagePiece {
    /// As in [`Put`], with a number that no [`Put`] uses.
    pub upload: u32,
    /// The path relative to the folder of packages. Folders are created as needed, and an existing file is replaced.
    pub path: String,
    /// As in [`Put`].
    pub offset: u64,
    /// The number of the piece's bytes in the body.
    pub len: usize,
    /// As in [`Put`].
    pub last: bool,
}

/// Reads a piece of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Get {
    /// Relative to `/mnt/data`, or absolute for a file of a dataset, beneath `/data`.
    pub path: String,
    /// First byte wanted; at or past the end of the file the body is empty.
    pub offset: u64,
    /// The maximum number of bytes wanted, 0 to ask for the stamp alone.
    pub len: usize,
    /// The id of the [`Call`] whose file is read; `None` reads a file of the data area.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<u32>,
}

/// Answers [`Get`]. Body: the bytes, fewer than asked for only at the end of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GetDone {
    /// The file as it was when the bytes were read.
    pub stamp: Stamp,
}

/// Lists regular files, sub-folders included, by path. Names that are not UTF-8 are left out, as
/// no caller could ask for them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct List {
    /// Start after this path; `None` starts at the beginning.
    pub after: Option<String>,
    /// The file or the folder whose files are listed: relative to `/mnt/data`, or absolute beneath `/data`. `None`
    /// lists the data area.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within: Option<String>,
}

/// Answers [`List`]. Body: a JSON array of [`FileEntry`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListDone {
    /// Whether there are more files after the last one.
    pub more: bool,
    /// Whether there are files that cannot be listed, because there are too many.
    #[serde(default, skip_serializing_if = "is_false")]
    pub cut: bool,
}

/// A regular file beneath `/mnt/data` or `/data`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// The path relative to `/mnt/data`, or absolute beneath `/data`, as the list was requested.
    pub path: String,
    /// The file's present stamp.
    pub stamp: Stamp,
}

/// Distinguishes two states of a file. The change time is included because a program can set the modification time, but
/// not the change time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Stamp {
    /// Inode number.
    pub ino: u64,
    /// Size in bytes.
    pub size: u64,
    /// Modification time, nanoseconds since the epoch.
    pub mtime_ns: i64,
    /// Change time, nanoseconds since the epoch.
    pub ctime_ns: i64,
}
