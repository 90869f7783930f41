//! The files of a chain: `FILE`, and a `FILE.<n>` for each rotation, with the lines up to `n`.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

/// A file of a chain.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) path: PathBuf,
    pub(super) file: File,
}

/// The path to which a full file is renamed, with the number of its last line.
pub(super) fn rotated(audit: &Path, last: u64) -> PathBuf {
    let mut name = audit.as_os_str().to_owned();
    name.push(format!(".{last}"));
    name.into()
}

/// The maximum number of attempts to open the files, because a server may rotate or remove one meanwhile.
const ATTEMPTS: usize = 1000;

/// Opens all files, the oldest first, as they are at one moment.
///
/// # Errors
/// If one of them, or the folder, cannot be read.
pub(super) fn open(audit: &Path) -> io::Result<Vec<Piece>> {
    let mut attempts = 1;
    loop {
        match open_once(audit) {
            Ok((pieces, is_as_before)) if is_as_before || attempts == ATTEMPTS => {
                return Ok(pieces);
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound || attempts == ATTEMPTS => {
                return Err(error);
            }
            _ => attempts += 1,
        }
    }
}

/// Opens all files once. Also returns whether the newest file is still the same: then none was rotated meanwhile.
fn open_once(audit: &Path) -> io::Result<(Vec<Piece>, bool)> {
    let newest = match open_file(audit) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        file => Some(file?),
    };
    let open_older = |(_, path): (u64, PathBuf)| Ok(Piece { file: open_file(&path)?, path });
    let mut pieces = older(audit)?.into_iter().map(open_older).collect::<io::Result<Vec<_>>>()?;
    let identity = |it: fs::Metadata| (it.dev(), it.ino());
    let before = newest.as_ref().map(File::metadata).transpose()?.map(identity);
    let is_as_before = fs::metadata(audit).ok().map(identity) == before;
    pieces.extend(newest.map(|file| Piece { path: audit.to_owned(), file }));
    Ok((pieces, is_as_before))
}

/// The rotated files with the numbers of their last lines, the oldest first.
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

/// Opens a regular file for reading. Opening does not block, even on a pipe.
fn open_file(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    regular(file)
}

/// Returns the file if it is a regular file.
pub(super) fn regular(file: File) -> io::Result<File> {
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"))
    }
}
