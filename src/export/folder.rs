//! Folders that are entered part by part and never through a link, and files that appear in them complete.
//!
//! A project of another person may have a link at the place of an exported file, and the server must not write to the
//! link's target. A path is resolved anew at each use, so only open folders are used.

use std::{
    fs::File,
    io,
    os::fd::OwnedFd,
    path::{Component, Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, CWD, FileType, Mode, OFlags},
    io::Errno,
};
use uuid::Uuid;

use super::Failure;

/// Flags for opening a folder, which programs that are started do not inherit.
const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// An open folder, which stays the same even if its path leads elsewhere.
#[derive(Debug)]
pub(super) struct Folder(OwnedFd);

impl Folder {
    /// The folder that a setting names, created if it is missing: as the operator wrote it if the path is absolute,
    /// otherwise below the working folder and through no link.
    pub(super) fn of_setting(path: &Path) -> Result<Self, Failure> {
        if path.is_absolute() {
            std::fs::create_dir_all(path)?;
            return Ok(Self(rustix::fs::open(path, FOLDER, Mode::empty())?));
        }
        Self(rustix::fs::openat(CWD, ".", FOLDER, Mode::empty())?).enter(path)
    }

    /// The folder below this one, created if it is missing. [`Failure::Link`] if a part is a link.
    pub(super) fn enter(self, below: &Path) -> Result<Self, Failure> {
        below.components().filter(|part| *part != Component::CurDir).try_fold(self, Self::part)
    }

    fn part(self, part: Component) -> Result<Self, Failure> {
        let part = part.as_os_str();
        match rustix::fs::mkdirat(&self.0, part, Mode::RWXU | Mode::RWXG | Mode::RWXO) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        rustix::fs::openat(&self.0, part, FOLDER | OFlags::NOFOLLOW, Mode::empty())
            .map(Self)
            .map_err(
                // Systems differ in how they refuse a link.
                |error| match rustix::fs::statat(&self.0, part, AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(found) if FileType::from_raw_mode(found.st_mode) == FileType::Symlink => {
                        Failure::Link
                    }
                    _ => error.into(),
                },
            )
    }

    /// A new file, empty and not executable, with a temporary name.
    pub(super) fn file(self) -> Result<(File, Passing), Failure> {
        let name = PathBuf::from(format!(".export-{}", Uuid::new_v4().simple()));
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH;
        let file = rustix::fs::openat(&self.0, &name, flags, mode)?;
        Ok((file.into(), Passing { folder: self, name, kept: false }))
    }
}

/// A file with its temporary name, which is removed unless it is kept.
#[derive(Debug)]
pub(super) struct Passing {
    folder: Folder,
    name: PathBuf,
    kept: bool,
}

impl Passing {
    /// Gives the file its final name. Replaces a file or a link, but no folder.
    pub(super) fn keep(mut self, name: &Path) -> io::Result<()> {
        let Self { folder: Folder(folder), name: passing, .. } = &self;
        rustix::fs::renameat(folder, passing, folder, name)?;
        self.kept = true;
        Ok(())
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        if !self.kept {
            // If it cannot be removed, nothing else can be done.
            let _ = rustix::fs::unlinkat(&self.folder.0, &self.name, AtFlags::empty());
        }
    }
}
