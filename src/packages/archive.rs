//! Archives that an index sent, whatever their form: what may be wrong with one, and what is read of it.

use std::{collections::HashSet, fs::File, io::Read, os::fd::AsRawFd};

use bytes::Bytes;
use tokio::{sync::mpsc, task::spawn_blocking};

/// Most files of an archive.
pub(super) const MAX_ENTRIES: usize = 20_000;

/// Bytes of a file that are read at a time.
pub(super) const PIECE: usize = 256 << 10;

/// Pieces that wait to be taken.
const QUEUED_PIECES: usize = 2;

/// The folder of packages for JavaScript, below that of all packages.
pub(super) const NODE_MODULES: &str = "node_modules";

/// What an archive is said to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Named {
    /// The project.
    pub(super) name: String,
    pub(super) version: String,
    /// Name of its file, which says of a wheel for what it was made.
    pub(super) file: String,
}

/// What is wrong with an archive, to follow its name.
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

/// A piece of one of its files, where that goes.
#[derive(Debug)]
pub(crate) struct Piece {
    /// Below the folder of packages.
    pub(crate) path: String,
    pub(crate) offset: u64,
    pub(crate) bytes: Bytes,
    pub(crate) last: bool,
}

/// The same file with a place of its own to read from: others may be reading it, too, and it has no name.
pub(super) fn reopened(file: &File) -> Result<File, Fault> {
    File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).map_err(unreadable)
}

/// Pieces that a function reads on a thread of its own, until the receiver is dropped. The fault that it returns, if any,
/// comes last.
pub(super) fn handed_over(
    read: impl FnOnce(&mut dyn FnMut(Piece) -> bool) -> Result<(), Fault> + Send + 'static,
) -> mpsc::Receiver<Result<Piece, Fault>> {
    let (pieces, taken) = mpsc::channel(QUEUED_PIECES);
    spawn_blocking(move || {
        if let Err(fault) = read(&mut |piece| pieces.blocking_send(Ok(piece)).is_ok()) {
            // The receiver may be gone.
            let _ = pieces.blocking_send(Err(fault));
        }
    });
    taken
}

/// As many bytes of a file as there are, at most [`PIECE`]; fewer only at the end. `left` is what all may have.
pub(super) fn next_piece(file: &mut impl Read, left: &mut u64) -> Result<Bytes, Fault> {
    let mut bytes = Vec::with_capacity(PIECE);
    file.take(PIECE as u64).read_to_end(&mut bytes).map_err(unreadable)?;
    *left = left.checked_sub(bytes.len() as u64).ok_or(Fault::TooLarge)?;
    Ok(bytes.into())
}

/// Whether files can all be there: neither two of one name, nor one where another has a folder.
pub(super) fn are_apart<'a>(paths: impl Iterator<Item = &'a str> + Clone) -> bool {
    let files: HashSet<_> = paths.clone().collect();
    let folders = |path| std::iter::successors(parent(path), |folder| parent(folder));
    files.len() == paths.clone().count() && !paths.flat_map(folders).any(|it| files.contains(it))
}

fn parent(path: &str) -> Option<&str> {
    path.rsplit_once('/').map(|(folder, _)| folder)
}
