//! The files that a chain is in: `FILE`, and `FILE.<n>` for each time that it was rotated, up to line `n`.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

/// One of them.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) path: PathBuf,
    pub(super) file: File,
}

/// Where a file goes when it is full: named by its last line.
pub(super) fn rotated(audit: &Path, last: u64) -> PathBuf {
    let mut name = audit.as_os_str().to_owned();
    name.push(format!(".{last}"));
    name.into()
}

/// All that there are, the oldest first, as of one moment: of a file that is rotated meanwhile there is one.
///
/// # Errors
/// If one of them, or the folder, cannot be read.
pub(super) fn open(audit: &Path) -> io::Result<Vec<Piece>> {
    let newest = match open_file(audit) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        file => Some(file?),
    };
    let identity = |file: &File| file.metadata().map(|it| (it.dev(), it.ino()));
    let known = newest.as_ref().map(identity).transpose()?;
    let mut pieces = vec![];
    for (_, path) in older(audit)? {
        let file = open_file(&path)?;
        if known.is_none_or(|known| identity(&file).ok() != Some(known)) {
            pieces.push(Piece { path, file });
        }
    }
    pieces.extend(newest.map(|file| Piece { path: audit.to_owned(), file }));
    Ok(pieces)
}

/// The rotated ones, the oldest first, by their last line.
pub(super) fn older(audit: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let folder = audit.parent().filter(|folder| *folder != Path::new(""));
    let folder = folder.unwrap_or(Path::new("."));
    let Some(name) = audit.file_name().and_then(|name| name.to_str()) else { return Ok(vec![]) };
    let mut older = vec![];
    for entry in fs::read_dir(folder)? {
        let other = entry?.file_name();
        let number = other.to_str().and_then(|other| other.strip_prefix(name)?.strip_prefix('.'));
        let is_plain = |text: &&str| text.bytes().all(|byte| byte.is_ascii_digit());
        if let Some(last) = number.filter(is_plain).and_then(|number| number.parse().ok()) {
            older.push((last, audit.with_file_name(&other)));
        }
    }
    older.sort_unstable();
    Ok(older)
}

/// Opens a file to be read, and nothing that could be waited for.
fn open_file(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    regular(file)
}

/// The same, if it is a regular file.
pub(super) fn regular(file: File) -> io::Result<File> {
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"))
    }
}
