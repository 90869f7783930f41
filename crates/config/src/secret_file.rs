//! Files with secrets, which are created if they do not exist.

use std::{
    io::{self, Write},
    path::Path,
};

/// Creates a file with this text, for its owner alone. Several processes may do so at the same time: the file of the
/// first is used by all, and appears as a whole. Returns false if there is a file already.
///
/// # Errors
/// If it cannot be written.
pub(crate) fn make(path: &Path, text: &str) -> io::Result<bool> {
    let folder = path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
    // Temporary files can be read by their owner alone.
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(text.as_bytes())?;
    file.as_file().sync_all()?;
    match file.persist_noclobber(path) {
        Ok(_) => Ok(true),
        Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error.error),
    }
}
