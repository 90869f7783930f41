//! Lists the files beneath a folder, and finds those that a run has changed.

use std::{
    collections::BTreeMap,
    ffi::{CStr, CString},
    fs, io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use nix::{
    dir::Dir,
    errno::Errno,
    fcntl::{AtFlags, OFlag, openat, renameat},
    sys::stat::{FchmodatFlags, FileStat, Mode, SFlag, fchmodat, fstat, fstatat},
    unistd::{UnlinkatFlags, unlinkat},
};
use protocol::{
    limits::{DATASETS, MAX_PATH},
    message::{FileEntry, Stamp},
};

use crate::beneath::{self, FOLDER};

/// Regular files by path, relative to the folder.
pub type Snapshot = BTreeMap<String, Stamp>;

/// The maximum depth of folders that are listed; each level needs an open descriptor.
const MAX_DEPTH: usize = 64;

/// Lists the whole folder. Follows no links, skips files that are not regular, and names that are not UTF-8 or too
/// long, and takes folders that vanish or cannot be read as empty.
pub fn snapshot(root: &OwnedFd) -> Snapshot {
    snapshot_to(root, MAX_DEPTH)
}

/// Lists the folder itself and `depth` levels of folders in it.
fn snapshot_to(root: &OwnedFd, depth: usize) -> Snapshot {
    let mut found = Found { files: Snapshot::new(), most: usize::MAX, cut: false };
    if let Ok(root) = Dir::openat(root, ".", OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty()) {
        walk(root, "", depth, &mut found);
    }
    found.files
}

/// Lists the regular files of a folder, each with this prefix before its path, as [`snapshot`] does: at most this many.
/// The second value says whether there are more.
pub(crate) fn some(folder: &OwnedFd, prefix: &str, most: usize) -> (Snapshot, bool) {
    let mut found = Found { files: Snapshot::new(), most, cut: false };
    if let Ok(folder) = Dir::openat(folder, ".", OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())
    {
        walk(folder, prefix, MAX_DEPTH, &mut found);
    }
    (found.files, found.cut)
}

/// Maximum number of files of all datasets that are looked at for a name.
const MAX_OF_DATASETS: usize = 16_384;

/// The files of the datasets by their absolute paths in a sandbox, as far as there are not too many. `folder` has a
/// folder, or a link to one, for each dataset.
pub fn datasets(folder: &Path) -> Snapshot {
    let mut names: Vec<_> = fs::read_dir(folder).into_iter().flatten().flatten().collect();
    names.sort_by_key(fs::DirEntry::file_name);
    let mut found = Found { files: Snapshot::new(), most: MAX_OF_DATASETS, cut: false };
    for entry in names {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let name = entry.file_name();
        if let (Some(name), Ok(dir)) =
            (name.to_str(), Dir::open(&entry.path(), flags, Mode::empty()))
        {
            walk(dir, &format!("{DATASETS}/{name}/"), MAX_DEPTH, &mut found);
        }
    }
    found.files
}

/// Files that a walk has found.
struct Found {
    files: Snapshot,
    /// The number of files and folders that may still be looked at.
    most: usize,
    cut: bool,
}

/// The levels of folders in scratch space that are listed: the home, but no folders in it.
const SCRATCH_DEPTH: usize = 1;

/// Lists scratch space; empty if it cannot be read.
pub fn scratch(folder: &Path) -> Snapshot {
    beneath::root(folder).map_or_else(|_| Snapshot::new(), |root| snapshot_to(&root, SCRATCH_DEPTH))
}

fn walk(mut dir: Dir, prefix: &str, depth: usize, found: &mut Found) {
    let mut names: Vec<_> = dir
        .iter()
        .flatten()
        .map(|entry| entry.file_name().to_owned())
        .filter(|name| !matches!(name.to_bytes(), b"." | b".."))
        // One more than may be looked at says that there are more.
        .take(found.most.saturating_add(1))
        .collect();
    // If not all can be listed, the same ones are each time.
    names.sort_unstable();
    for name in names {
        let Some(most) = found.most.checked_sub(1) else {
            found.cut = true;
            return;
        };
        found.most = most;
        let Ok(utf8) = name.to_str() else { continue };
        let Ok(stat) = fstatat(dir.as_fd(), name.as_c_str(), AtFlags::AT_SYMLINK_NOFOLLOW) else {
            continue;
        };
        let path = format!("{prefix}{utf8}");
        if path.len() > MAX_PATH {
            continue;
        }
        match file_type(&stat) {
            SFlag::S_IFREG => {
                found.files.insert(path, stamp(&stat));
            }
            SFlag::S_IFDIR if depth > 0 => {
                if let Ok(below) = Dir::openat(dir.as_fd(), name.as_c_str(), FOLDER, Mode::empty())
                {
                    walk(below, &format!("{path}/"), depth - 1, found);
                }
            }
            _ => {}
        }
    }
}

/// The type bits of a file's mode.
pub(crate) fn file_type(stat: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits())
}

/// The stamp of a file.
pub(crate) fn stamp(stat: &FileStat) -> Stamp {
    Stamp {
        ino: stat.st_ino,
        size: stat.st_size.try_into().unwrap_or(0),
        mtime_ns: stat.st_mtime.saturating_mul(1_000_000_000).saturating_add(stat.st_mtime_nsec),
        ctime_ns: stat.st_ctime.saturating_mul(1_000_000_000).saturating_add(stat.st_ctime_nsec),
    }
}

/// Files of `after` that are not in `before`, or have another stamp there.
pub fn changed(before: &Snapshot, after: Snapshot) -> Vec<FileEntry> {
    after
        .into_iter()
        .filter(|(path, stamp)| before.get(path) != Some(stamp))
        .map(|(path, stamp)| FileEntry { path, stamp })
        .collect()
}

/// Entries as JSON of at most `cap` bytes, and how many did not fit.
pub fn to_json(entries: &[FileEntry], cap: usize) -> (Vec<u8>, usize) {
    let mut json = vec![b'['];
    for (at, entry) in entries.iter().enumerate() {
        let mut next = serde_json::to_vec(entry).expect("strings and numbers always serialize");
        if at > 0 {
            next.insert(0, b',');
        }
        if json.len() + next.len() + 1 > cap {
            json.push(b']');
            return (json, entries.len() - at);
        }
        json.append(&mut next);
    }
    json.push(b']');
    (json, 0)
}

/// Copies a folder of plain files and folders; nothing to do if `from` does not exist.
///
/// # Errors
///
/// If a file or folder cannot be read or written. Files that were copied before stay.
pub fn copy(from: &Path, to: &Path) -> io::Result<()> {
    if !from.exists() {
        return Ok(());
    }
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), &target)?;
        }
    }
    Ok(())
}

/// Removes everything in a folder, whatever modes and depth a program gave to it, provided that no program is left to
/// add more.
///
/// Nested folders are moved to the top before they are removed: depth costs neither descriptors nor stack, and the
/// number of folders costs no memory, which may be exhausted.
///
/// # Errors
///
/// If a folder cannot be read. It is no error if something cannot be removed.
pub fn empty(root: &OwnedFd) -> nix::Result<()> {
    let mut moves = 0;
    let mut progress = true;
    while progress {
        progress = false;
        for name in names(root)? {
            if remove(root, &name) {
                progress = true;
                continue;
            }
            let Ok(folder) = enter(root, &name) else { continue };
            for inner in names(&folder)? {
                moves += 1;
                progress |= remove(&folder, &inner) || {
                    // Moving a folder needs the permission to write to it.
                    let _ = enter(&folder, &inner);
                    renameat(&folder, inner.as_c_str(), root, moves.to_string().as_str()).is_ok()
                };
            }
            progress |= remove(root, &name);
        }
    }
    Ok(())
}

/// Removes everything but these files, and the folders that they are in.
///
/// # Errors
///
/// If a folder cannot be read. It is no error if something cannot be removed.
pub fn keep_only(root: &OwnedFd, keep: &Snapshot) -> nix::Result<()> {
    keep_only_beneath(root, "", keep)
}

fn keep_only_beneath(folder: &OwnedFd, parents: &str, keep: &Snapshot) -> nix::Result<()> {
    for name in names(folder)? {
        let path = format!("{parents}{}", name.to_string_lossy());
        if keep.contains_key(&path) || unlinkat(folder, &*name, UnlinkatFlags::NoRemoveDir).is_ok()
        {
            continue;
        }
        let Ok(inner) = enter(folder, &name) else { continue };
        let beneath = format!("{path}/");
        let has_some = keep
            .range(beneath.clone()..)
            .next()
            .is_some_and(|(path, _)| path.starts_with(&beneath));
        if has_some {
            keep_only_beneath(&inner, &beneath, keep)?;
        } else {
            empty(&inner)?;
            let _ = unlinkat(folder, &*name, UnlinkatFlags::RemoveDir);
        }
    }
    Ok(())
}

/// Reads the names in a folder, one at a time.
fn names(folder: &OwnedFd) -> nix::Result<impl Iterator<Item = CString>> {
    let entries = Dir::openat(folder, ".", FOLDER, Mode::empty())?.into_iter();
    let names = entries.map_while(Result::ok).map(|entry| entry.file_name().to_owned());
    Ok(names.filter(|name| !matches!(name.to_bytes(), b"." | b"..")))
}

/// Opens a folder after giving it a mode that permits this.
fn enter(parent: &OwnedFd, name: &CStr) -> nix::Result<OwnedFd> {
    fchmodat(parent, name, Mode::S_IRWXU, FchmodatFlags::FollowSymlink)?;
    openat(parent, name, FOLDER, Mode::empty())
}

/// Opens a folder, after making it accessible to its owner if it is not.
pub(crate) fn enter_readable(parent: &OwnedFd, name: &CStr) -> nix::Result<OwnedFd> {
    let folder = openat(parent, name, FOLDER, Mode::empty());
    // Without the right to search a folder, neither its entries nor its parent can be looked at.
    let may_search =
        |folder: &OwnedFd| fstat(folder).is_ok_and(|stat| stat.st_mode & Mode::S_IXUSR.bits() != 0);
    match folder {
        Ok(folder) if may_search(&folder) => Ok(folder),
        Ok(_) | Err(Errno::EACCES) => enter(parent, name),
        Err(error) => Err(error),
    }
}

/// Removes a regular file.
///
/// # Errors
/// If there is none at that path, or it cannot be removed.
pub fn remove_file(root: &OwnedFd, path: &str) -> nix::Result<()> {
    let (folder, name) = beneath::walk(root, path.as_ref(), beneath::Missing::Fail)?;
    unlinkat(&folder, name, UnlinkatFlags::NoRemoveDir)
}

/// Removes a file or an empty folder. Returns false if that fails.
fn remove(parent: &OwnedFd, name: &CStr) -> bool {
    [UnlinkatFlags::NoRemoveDir, UnlinkatFlags::RemoveDir]
        .into_iter()
        .any(|kind| unlinkat(parent, name, kind).is_ok())
}

/// Whether an error means that there is no room left.
pub(crate) fn is_full(error: Errno) -> bool {
    matches!(error, Errno::ENOSPC | Errno::EDQUOT | Errno::EFBIG)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_stamp() -> impl Strategy<Value = Stamp> {
        (0u64..3, 0u64..3, 0i64..3, 0i64..3).prop_map(|(ino, size, mtime_ns, ctime_ns)| Stamp {
            ino,
            size,
            mtime_ns,
            ctime_ns,
        })
    }

    fn any_snapshot() -> impl Strategy<Value = Snapshot> {
        prop::collection::btree_map("[a-c]", any_stamp(), 0..4)
    }

    proptest! {
        #[test]
        fn exactly_the_new_and_the_changed_files_are_told(
            before in any_snapshot(),
            after in any_snapshot(),
        ) {
            let told = changed(&before, after.clone());
            for (path, stamp) in &after {
                let listed = told.iter().any(|entry| entry.path == *path && entry.stamp == *stamp);
                prop_assert_eq!(listed, before.get(path) != Some(stamp));
            }
            prop_assert!(told.iter().all(|entry| after.contains_key(&entry.path)));
            prop_assert!(told.is_sorted_by(|a, b| a.path < b.path));
        }

        #[test]
        fn json_keeps_to_its_cap_and_counts_what_it_leaves_out(
            after in any_snapshot(),
            cap in 2usize..400,
        ) {
            let entries = changed(&Snapshot::new(), after);
            let (json, omitted) = to_json(&entries, cap);
            prop_assert!(json.len() <= cap);
            let back: Vec<FileEntry> = serde_json::from_slice(&json)?;
            prop_assert_eq!(&back[..], &entries[..entries.len() - omitted]);
        }
    }

    #[test]
    fn a_folder_is_emptied_whatever_a_program_made_of_it() {
        let dir = tempfile::tempdir().expect("a folder");
        let at = |name: &str| dir.path().join(name);
        fs::write(at("kept"), "").expect("written");
        fs::create_dir_all(at("scratch/closed/inner/file-less")).expect("made");
        fs::write(at("scratch/closed/file"), "").expect("written");
        // The name that the first folder to be moved would get.
        fs::create_dir_all(at("scratch/1/2/3")).expect("made");
        symlink("../kept", at("scratch/closed/link")).expect("linked");
        symlink("..", at("scratch/up")).expect("linked");
        let deep = at("scratch/deep");
        fs::create_dir(&deep).expect("made");
        let mut below = crate::beneath::root(&deep).expect("opened");
        for _ in 0..2000 {
            nix::sys::stat::mkdirat(&below, "d", Mode::S_IRWXU).expect("made");
            below = openat(&below, "d", FOLDER, Mode::empty()).expect("opened");
        }
        drop(below);
        for closed in ["scratch/closed/inner", "scratch/closed"] {
            fs::set_permissions(at(closed), fs::Permissions::from_mode(0o000)).expect("closed");
        }

        empty(&crate::beneath::root(&at("scratch")).expect("opened")).expect("emptied");
        assert_eq!(fs::read_dir(at("scratch")).expect("read").count(), 0);
        let mode = fs::metadata(at("kept")).expect("still there").permissions().mode();
        assert_ne!(mode & 0o777, 0o700, "not even its mode has changed");
    }

    #[test]
    fn only_regular_files_with_a_name_are_listed() {
        let dir = tempfile::tempdir().expect("a folder");
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("plots")).expect("made");
        fs::write(at("plots/a.png"), "12345").expect("written");
        fs::write(at("z.csv"), "").expect("written");
        nix::unistd::mkfifo(&at("fifo"), Mode::S_IRWXU).expect("made");
        symlink("/etc/passwd", at("link")).expect("linked");
        symlink("plots", at("folder-link")).expect("linked");
        fs::write(dir.path().join(std::ffi::OsStr::from_bytes(b"\xff.csv")), "").expect("written");

        let found = snapshot(&crate::beneath::root(dir.path()).expect("opened"));
        let sizes: Vec<_> = found.iter().map(|(path, s)| (path.as_str(), s.size)).collect();
        assert_eq!(sizes, [("plots/a.png", 5), ("z.csv", 0)]);
    }

    use std::os::unix::{
        ffi::OsStrExt as _,
        fs::{PermissionsExt as _, symlink},
    };
}
