//! The folder for files on disk. The files in it have no names, so that the kernel removes each with its sandbox, even
//! if the server is killed. Sandboxes that are saved have their files in the folder of saved sandboxes instead.

use std::{
    env,
    path::{Path, PathBuf},
};

use crate::{BackendError, BackendErrorKind, Finding, check};

/// The usual folder for large temporary files. Unlike /tmp it is hardly ever in memory.
const LARGE: &str = "/var/tmp";

/// Types of file systems that are in memory: tmpfs and ramfs.
const IN_MEMORY: [i128; 2] = [0x0102_1994, 0x8584_58f6];

/// A folder for files on disk.
#[derive(Debug)]
pub(super) struct DiskFolder(PathBuf);

impl DiskFolder {
    /// `TMPDIR`, or else `/var/tmp`, or else `/tmp` if no file can be made there.
    pub(super) fn usual() -> Self {
        let is_named = env::var_os("TMPDIR").is_some_and(|name| !name.is_empty());
        let large = Some(Self(LARGE.into())).filter(|it| !is_named && it.check().is_ok());
        large.unwrap_or_else(|| Self(env::temp_dir()))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Checks that a file can be made there.
    ///
    /// # Errors
    /// If it cannot.
    pub(super) fn check(&self) -> Result<(), BackendError> {
        let made = tempfile::tempfile_in(&self.0).map(drop);
        made.map_err(|error| {
            let text = format!("Files cannot be on disk in {}: {error}.", self.0.display());
            BackendError::new(BackendErrorKind::Denied, text)
                .with_fix("Set TMPDIR to a folder on a disk to which this user can write.")
                .caused_by(error)
        })
    }
}

/// The warning about a folder that is in memory, if it is.
pub(super) fn in_memory(folder: &Path) -> Option<(String, &'static str)> {
    let found = rustix::fs::statfs(folder).ok()?;
    // The type is a signed or unsigned number, which depends on the processor.
    let kind = i128::from(found.f_type) & i128::from(u32::MAX);
    let text = format!("files on disk are in {}, which is in memory", folder.display());
    IN_MEMORY.contains(&kind).then_some((
        text,
        "Set TMPDIR, or SANDBOX_STATE_DIR if that is set, to a folder on a disk.",
    ))
}

/// The finding about the folder in which sandboxes have their files, of which each may have this many bytes.
pub(super) fn finding(folder: &Path, each: u64) -> Finding {
    match in_memory(folder) {
        Some((text, fix)) => Finding::warning(text, fix),
        None => check::disk(&format!("/mnt/data is in {}", folder.display()), folder, each),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_in_memory_is_noticed() {
        assert!(in_memory(Path::new("/dev/shm")).is_some());
        assert!(in_memory(Path::new("/proc")).is_none());
        let missing = DiskFolder("/nowhere".into()).check().expect_err("it is not there");
        assert!(missing.to_string().contains("TMPDIR"), "{missing}");
    }
}
