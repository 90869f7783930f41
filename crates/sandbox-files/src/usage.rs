//! The room that the files beneath a folder take, for areas whose file system has no limit of its own.

use std::{
    collections::HashSet,
    ffi::CString,
    os::fd::{AsFd, OwnedFd},
};

use nix::{
    dir::Dir,
    errno::Errno,
    fcntl::{AtFlags, OFlag, openat},
    sys::stat::{FileStat, Mode, SFlag, fstat, fstatat},
};

use crate::{beneath::FOLDER, tree};

/// Bytes of a block, in which `st_blocks` counts.
const BLOCK: u64 = 512;

/// Bytes of a folder with few names, which are not counted for an area's own folder.
const EMPTY_FOLDER: u64 = 4096;

/// The room that files take.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes: of each file its length or its blocks, whichever is more, so that a sparse file counts as if it were
    /// written.
    pub bytes: u64,
    /// Names of files, folders, links and everything else, and open files without a name.
    pub files: u64,
}

/// Adds up the room that files take. Counts the bytes of each once, whatever number of names or descriptors it has.
#[derive(Debug)]
pub struct Tally {
    device: u64,
    /// The inodes that may be found again.
    seen: HashSet<u64>,
    usage: Usage,
}

impl Tally {
    /// Adds up everything beneath a folder. Of the folder itself only counts what many names have made it larger.
    ///
    /// A folder that its owner may not read is first made readable: a program must not be able to hide files.
    ///
    /// # Errors
    /// If a program moves or removes folders meanwhile, so that some were not counted.
    pub fn of(root: &OwnedFd) -> nix::Result<Self> {
        let stat = fstat(root)?;
        let usage = Usage { bytes: bytes_of(&stat).saturating_sub(EMPTY_FOLDER), files: 0 };
        let mut tally = Self { device: stat.st_dev, seen: HashSet::new(), usage };
        tally.walk(root)?;
        Ok(tally)
    }

    /// The sum.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// Adds a file that is open but has no name. Others were found by their names.
    pub fn add_open(&mut self, stat: &FileStat) {
        if stat.st_nlink == 0 && stat.st_dev == self.device && self.seen.insert(stat.st_ino) {
            self.count(stat);
        }
    }

    fn add(&mut self, stat: &FileStat) {
        let has_other_names = stat.st_nlink > 1 && tree::file_type(stat) != SFlag::S_IFDIR;
        if !has_other_names || self.seen.insert(stat.st_ino) {
            self.count(stat);
        } else {
            self.usage.files += 1;
        }
    }

    fn count(&mut self, stat: &FileStat) {
        self.usage.bytes = self.usage.bytes.saturating_add(bytes_of(stat));
        self.usage.files += 1;
    }

    /// Visits all folders with two descriptors, however deep they are.
    fn walk(&mut self, root: &OwnedFd) -> nix::Result<()> {
        let mut folder = openat(root, ".", FOLDER, Mode::empty())?;
        // For each open level its inode and the folders in it that were not visited.
        let mut levels = vec![(fstat(&folder)?.st_ino, self.list(&folder)?)];
        while let Some((_, folders)) = levels.last_mut() {
            if let Some(name) = folders.pop() {
                match tree::enter_readable(&folder, &name) {
                    Ok(inner) => {
                        levels.push((fstat(&inner)?.st_ino, self.list(&inner)?));
                        folder = inner;
                    }
                    // It was removed, or another file has its name.
                    Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => {}
                    Err(error) => return Err(error),
                }
            } else {
                levels.pop();
                let Some((inode, _)) = levels.last() else { break };
                folder = openat(&folder, "..", FOLDER, Mode::empty())?;
                if fstat(&folder)?.st_ino != *inode {
                    return Err(Errno::ESTALE);
                }
            }
        }
        Ok(())
    }

    /// Counts what is in a folder. Returns the names of the folders in it.
    fn list(&mut self, folder: &OwnedFd) -> nix::Result<Vec<CString>> {
        let mut folders = vec![];
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
        for entry in Dir::openat(folder, ".", flags, Mode::empty())?.iter() {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let stat = match fstatat(folder.as_fd(), name, AtFlags::AT_SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                Err(Errno::ENOENT) => continue,
                Err(error) => return Err(error),
            };
            self.add(&stat);
            if tree::file_type(&stat) == SFlag::S_IFDIR {
                folders.push(name.to_owned());
            }
        }
        Ok(folders)
    }
}

/// The length of a file or its blocks, whichever is more.
fn bytes_of(stat: &FileStat) -> u64 {
    let [len, blocks] = [stat.st_size, stat.st_blocks].map(|it| u64::try_from(it).unwrap_or(0));
    len.max(blocks.saturating_mul(BLOCK))
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, File},
        os::unix::fs::{PermissionsExt as _, symlink},
    };

    use super::*;
    use crate::beneath;

    fn usage(dir: &tempfile::TempDir) -> Usage {
        let root = beneath::root(dir.path()).expect("opened");
        Tally::of(&root).expect("counted").usage()
    }

    #[test]
    fn each_file_counts_once_with_its_length_or_its_blocks() {
        let dir = tempfile::tempdir().expect("a folder");
        let at = |name: &str| dir.path().join(name);
        assert_eq!(usage(&dir), Usage::default());
        fs::write(at("a"), vec![1; 100_000]).expect("written");
        let one = usage(&dir);
        assert!((100_000..200_000).contains(&one.bytes) && one.files == 1, "{one:?}");
        fs::hard_link(at("a"), at("b")).expect("linked");
        assert_eq!(usage(&dir), Usage { files: 2, ..one }, "two names, one content");
        File::create(at("sparse")).and_then(|file| file.set_len(1 << 40)).expect("made");
        let sparse = usage(&dir);
        assert_eq!((sparse.bytes, sparse.files), (one.bytes + (1 << 40), 3));
        symlink("/", at("link")).expect("linked");
        assert_eq!(usage(&dir).files, 4);
    }

    #[test]
    fn a_file_without_a_name_counts_while_it_is_open() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = tempfile::tempfile_in(dir.path()).expect("made");
        file.set_len(5000).expect("set");
        let root = beneath::root(dir.path()).expect("opened");
        let mut tally = Tally::of(&root).expect("counted");
        for _ in 0..2 {
            tally.add_open(&fstat(&file).expect("known"));
        }
        assert_eq!(tally.usage(), Usage { bytes: 5000, files: 1 });
    }

    #[test]
    fn neither_depth_nor_modes_hide_a_file() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut below = beneath::root(dir.path()).expect("opened");
        for _ in 0..3000 {
            nix::sys::stat::mkdirat(&below, "d", Mode::S_IRWXU).expect("made");
            below = openat(&below, "d", FOLDER, Mode::empty()).expect("opened");
        }
        drop(below);
        fs::write(dir.path().join("d/d/file"), vec![1; 50_000]).expect("written");
        fs::set_permissions(dir.path().join("d"), fs::Permissions::from_mode(0o0)).expect("closed");
        let all = usage(&dir);
        assert!(all.files == 3001 && all.bytes >= 50_000, "{all:?}");
        let root = beneath::root(dir.path()).expect("opened");
        tree::empty(&root).expect("emptied");
    }
}
