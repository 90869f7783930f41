//! Archives of packages, in any format: the faults that one may have, and reading its files in pieces.

use std::{collections::HashSet, fs::File, io::Read, os::fd::AsRawFd};

use bytes::Bytes;
use tokio::{sync::mpsc, task::spawn_blocking};

/// The maximum number of files in an archive.
pub(super) const MAX_ENTRIES: usize = 20_000;

/// Bytes of a file that are read at a time.
pub(super) const PIECE_BYTES: usize = 256 << 10;

/// Maximum number of pieces that are read ahead of the receiver.
const QUEUED_PIECES: usize = 2;

/// The folder of JavaScript packages, below the folder of all packages.
pub(super) const NODE_MODULES: &str = "node_modules";

/// The project, the version and the file name of an archive, as the fetcher gives them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Named {
    /// The project's name.
    pub(super) name: String,
    pub(super) version: String,
    /// The archive's file name. The file name of a wheel says for which systems it was made.
    pub(super) file: String,
}

/// A fault of an archive. The message is a predicate, to follow "The archive".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    #[error("is not a wheel of this project")]
    OtherFile,
    #[error("cannot be read: {0}")]
    Unreadable(String),
    #[error("has a file outside its folder")]
    Outside,
    #[error("has a file that is no file")]
    Special,
    #[error("has two files of one name")]
    Twice,
    #[error("has a file that differs from its own list of files, or is not in it")]
    Differs,
    #[error("would take the place of Python's own module {0}")]
    Shadows(String),
    #[error("has more than {MAX_ENTRIES} files")]
    TooMany,
    #[error("has more bytes than it may have here")]
    TooLarge,
}

pub(super) fn unreadable(error: impl std::fmt::Display) -> Fault {
    Fault::Unreadable(model::text::printable(&error.to_string()))
}

/// A piece of a file of an archive, with the file's path where it is installed.
#[derive(Debug)]
pub(crate) struct Piece {
    /// The path below the folder of packages.
    pub(crate) path: String,
    pub(crate) offset: u64,
    pub(crate) bytes: Bytes,
    pub(crate) last: bool,
}

/// Opens the same file again, with its own read position: others may be reading the file, and it has no name.
pub(super) fn reopened(file: &File) -> Result<File, Fault> {
    File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).map_err(unreadable)
}

/// Runs `read` on a thread of its own and returns the pieces that it sends. Reading ends when the receiver is dropped.
/// If `read` returns a fault, that is sent last.
pub(super) fn handed_over(
    read: impl FnOnce(&mut dyn FnMut(Piece) -> bool) -> Result<(), Fault> + Send + 'static,
) -> mpsc::Receiver<Result<Piece, Fault>> {
    let (pieces, taken) = mpsc::channel(QUEUED_PIECES);
    spawn_blocking(move || {
        if let Err(fault) = read(&mut |piece| pieces.blocking_send(Ok(piece)).is_ok()) {
            // Fails if the receiver was dropped: the fault is not needed then.
            let _ = pieces.blocking_send(Err(fault));
        }
    });
    taken
}

/// Reads the next bytes of a file: [`PIECE_BYTES`] bytes, or fewer at its end. `left` is the number of bytes that all
/// files may still have.
pub(super) fn next_piece(file: &mut impl Read, left: &mut u64) -> Result<Bytes, Fault> {
    let mut bytes = Vec::with_capacity(PIECE_BYTES);
    file.take(PIECE_BYTES as u64).read_to_end(&mut bytes).map_err(unreadable)?;
    *left = left.checked_sub(bytes.len() as u64).ok_or(Fault::TooLarge)?;
    Ok(bytes.into())
}

/// Whether files with these paths can exist together: no two paths are equal, and none is the folder of another.
pub(super) fn are_apart<'a>(paths: impl Iterator<Item = &'a str> + Clone) -> bool {
    let files: HashSet<_> = paths.clone().collect();
    let folders = |path| std::iter::successors(parent(path), |folder| parent(folder));
    files.len() == paths.clone().count() && !paths.flat_map(folders).any(|it| files.contains(it))
}

fn parent(path: &str) -> Option<&str> {
    path.rsplit_once('/').map(|(folder, _)| folder)
}
