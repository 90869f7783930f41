//! Files with secrets, which are made if they are not there.

use std::{
    io::{self, Write},
    path::Path,
};

/// Makes a file with this text, for its owner alone. Others may do so at the same time: what is there first is
/// everybody's, and it is there as a whole. False if there is one already.
///
/// # Errors
/// If it cannot be written.
pub(crate) fn make(path: &Path, text: &str) -> io::Result<bool> {
    let folder = path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
    // Nobody else can read one that is made so.
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(text.as_bytes())?;
    file.as_file().sync_all()?;
    match file.persist_noclobber(path) {
        Ok(_) => Ok(true),
        Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error.error),
    }
}
