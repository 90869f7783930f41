//! Opens files beneath a folder, and never outside it.
//!
//! The kernel resolves each path in one step under `RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS`, so no
//! `..`, no link and no race with a program that swaps folders leads out.

use std::{
    ffi::OsStr,
    os::fd::{AsFd, OwnedFd},
    path::{Component, Path},
};

use nix::{
    errno::Errno,
    fcntl::{OFlag, OpenHow, ResolveFlag, openat, openat2},
    sys::stat::{Mode, mkdirat},
};

/// Flags that open a folder itself, and do not follow a link in its place.
pub(crate) const FOLDER: OFlag =
    OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

/// Opens the folder that all other calls start from.
///
/// # Errors
///
/// If there is no folder, or a link in its place.
pub fn root(path: &Path) -> nix::Result<OwnedFd> {
    nix::fcntl::open(path, FOLDER, Mode::empty())
}

/// Opens the file or folder at `path` beneath `root`.
///
/// Never blocks: a fifo without a writer opens at once.
pub(crate) fn open(root: impl AsFd, path: &Path, flags: OFlag) -> nix::Result<OwnedFd> {
    let flags = flags | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let how = OpenHow::new().flags(flags).resolve(
        ResolveFlag::RESOLVE_BENEATH
            | ResolveFlag::RESOLVE_NO_SYMLINKS
            | ResolveFlag::RESOLVE_NO_MAGICLINKS,
    );
    match openat2(root.as_fd(), path, how) {
        // gVisor has no openat2. A walk that follows no link reaches the same files.
        Err(Errno::ENOSYS) => {
            let (folder, name) = walk(root, path, Missing::Fail)?;
            openat(folder, name, flags | OFlag::O_NOFOLLOW, Mode::empty())
        }
        other => other,
    }
}

/// The treatment of missing folders in [`walk`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missing {
    Fail,
    Make,
}

/// Opens the folder that contains `path`, and returns the last name of the path.
pub(crate) fn walk(
    root: impl AsFd,
    path: &Path,
    missing: Missing,
) -> nix::Result<(OwnedFd, &OsStr)> {
    let mut names = path.components().map(|component| match component {
        Component::Normal(name) => Ok(name),
        _ => Err(Errno::EXDEV),
    });
    let mut name = names.next().ok_or(Errno::ENOENT)??;
    let mut folder = root.as_fd().try_clone_to_owned().map_err(|_| Errno::EMFILE)?;
    for next in names {
        if missing == Missing::Make {
            match mkdirat(&folder, name, Mode::from_bits_truncate(0o755)) {
                Ok(()) | Err(Errno::EEXIST) => {}
                Err(error) => return Err(error),
            }
        }
        folder = openat(&folder, name, FOLDER, Mode::empty())?;
        name = next?;
    }
    Ok((folder, name))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn nothing_outside_the_folder_can_be_opened() {
        let dir = tempfile::tempdir().expect("a folder");
        let data = dir.path().join("data");
        fs::create_dir_all(data.join("sub")).expect("made");
        fs::write(dir.path().join("secret"), "s").expect("written");
        fs::write(data.join("sub/own"), "o").expect("written");
        symlink("../secret", data.join("out")).expect("linked");
        symlink("/", data.join("slash")).expect("linked");
        symlink("sub/own", data.join("in")).expect("linked");
        let root = root(&data).expect("opened");

        assert!(open(&root, "sub/own".as_ref(), OFlag::O_RDONLY).is_ok());
        for path in
            ["../secret", "out", "slash/etc/passwd", "in", "sub/../../secret", "/etc/passwd"]
        {
            assert!(open(&root, path.as_ref(), OFlag::O_RDONLY).is_err(), "{path}");
            assert!(
                walk(&root, path.as_ref(), Missing::Fail)
                    .and_then(|(folder, name)| openat(
                        folder,
                        name,
                        OFlag::O_RDONLY | OFlag::O_NOFOLLOW,
                        Mode::empty()
                    ))
                    .is_err(),
                "{path} by walking"
            );
        }
    }

    #[test]
    fn a_fifo_without_a_writer_opens_at_once() {
        let dir = tempfile::tempdir().expect("a folder");
        nix::unistd::mkfifo(&dir.path().join("fifo"), Mode::S_IRWXU).expect("made");
        let root = root(dir.path()).expect("opened");
        assert!(open(&root, "fifo".as_ref(), OFlag::O_RDONLY).is_ok());
    }
}
