//! Datasets: folders of the host that guests can read at `/data/<name>`, and cannot change.
//!
//! ```text
//! gate    the only ways to open a file, which cannot be changed after the start
//! mod     opens, checks and reads files; nothing but regular files and folders is ever opened
//! entries the entries of a folder, in pieces, for guests
//! served  requests of the server: reading in pieces, and lists
//! ```
//!
//! The kernel resolves each path beneath the folder (`RESOLVE_BENEATH`): links are followed as long as they stay in
//! the folder. Mounts within the folder are a part of it. Contents are read by `pread` and never mapped, so a file
//! that shrinks meanwhile has no worse effect than a short read. Between two calls of a guest no file is open: what a
//! guest or a saved state has open is known by its path and inode, and opened again when it is read.

mod entries;
mod gate;
mod served;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    ffi::CString,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard},
    thread,
};

use nix::unistd::Uid;
use rustix::fs::{FileType, Mode, OFlags};
use serde::{Deserialize, Serialize};

use self::gate::How;
pub(crate) use self::{gate::Gate, served::is_of_dataset};
use super::{
    Area, Errno, Stat,
    tree::{Inode, Kind, Node, folder},
};

/// The folder of all datasets, in the root of the tree.
pub(crate) const DATASETS: &str = "data";

/// The inode of that folder. The folders in it have those that follow; the library's inodes are smaller.
pub(super) const FOLDER: Inode = 1 << 30;

/// Maximum number of files that are open at a time: as many as a guest can have open.
const MAX_OPEN: usize = 256;

/// Maximum number of folders that a list has open, one in the other, and of files beside.
const MAX_LISTED: usize = 80;

/// Maximum number of bytes that one call reads. Meanwhile it cannot be stopped, however slow the disk is.
const MAX_AT_ONCE: usize = 1 << 20;

/// Attempts to open a file that is replaced by another meanwhile.
const ATTEMPTS: usize = 4;

/// A file or folder of a dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DatasetPath {
    /// The number of the dataset.
    dataset: usize,
    /// Relative to its folder. May have `..`.
    path: String,
}

impl DatasetPath {
    /// The inode of the folder that is in place of the dataset in the tree.
    pub(crate) fn mount(&self) -> Inode {
        FOLDER + 1 + self.dataset as Inode
    }

    /// The path, relative to the folder of the dataset.
    pub(crate) fn into_path(self) -> String {
        self.path
    }
}

/// An open file or folder of a dataset. It is a name, not a descriptor, so that it can be saved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Open {
    dataset: String,
    path: String,
    device: u64,
    inode: u64,
    is_folder: bool,
}

impl Open {
    /// WASI's number for its kind.
    pub(crate) fn filetype(&self) -> u8 {
        if self.is_folder { 3 } else { 4 }
    }

    fn is(&self, stat: &Stat) -> bool {
        (self.device, self.inode) == (stat.device, stat.inode)
    }
}

/// A dataset.
#[derive(Debug)]
struct Dataset {
    name: String,
    /// The folder, open as a start for paths only.
    root: OwnedFd,
}

/// A file that is open on the host: its device and inode, and its descriptor.
type HostFile = ((u64, u64), Arc<OwnedFd>);

/// The datasets of a sandbox.
#[derive(Debug, Default)]
pub(crate) struct Datasets {
    /// Sorted by name.
    all: Vec<Dataset>,
    gate: Option<&'static Gate>,
    /// The folders' nodes in the tree, with the root's.
    nodes: BTreeMap<Inode, Node>,
    /// The files that are open, the one that was opened last at the end.
    open: Mutex<Vec<HostFile>>,
}

impl Datasets {
    /// Opens the folders of these datasets.
    ///
    /// # Errors
    /// If one of them is not there, is not a folder, or cannot be read.
    pub(crate) fn open(folders: &[(String, PathBuf)]) -> io::Result<Self> {
        if folders.is_empty() {
            return Ok(Self::default());
        }
        let open = |(name, path): &(String, PathBuf)| {
            let root = open_root(path).map_err(|error| of_dataset(name, &error))?;
            Ok(Dataset { name: name.clone(), root })
        };
        let mut all = folders.iter().map(open).collect::<io::Result<Vec<_>>>()?;
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all.dedup_by(|a, b| a.name == b.name);
        Ok(Self { all, gate: Some(Gate::get()?), ..Self::default() })
    }

    /// Puts the folders into a tree that has this root.
    pub(super) fn mount(&mut self, root: &Node, at: Inode) {
        let mut root = root.clone();
        let Kind::Folder { entries, .. } = &mut root.kind else { return };
        if self.all.is_empty() {
            return;
        }
        entries.insert(DATASETS.to_owned(), FOLDER);
        let mut above = folder(Area::ReadOnly, at);
        if let Kind::Folder { entries, .. } = &mut above.kind {
            let numbered = (FOLDER + 1..).zip(&self.all);
            *entries = numbered.map(|(inode, dataset)| (dataset.name.clone(), inode)).collect();
        }
        let mounts = (FOLDER + 1..).zip(&self.all);
        let mounts = mounts.map(|(inode, _)| (inode, folder(Area::ReadOnly, FOLDER)));
        self.nodes = mounts.chain([(at, root), (FOLDER, above)]).collect();
    }

    /// The node of this number, if it is one of a dataset's folder or above.
    pub(super) fn node(&self, inode: Inode) -> Option<&Node> {
        self.nodes.get(&inode)
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// A path in the dataset whose folder is this node.
    pub(super) fn mounted(&self, inode: Inode, path: &str) -> Option<DatasetPath> {
        let dataset = usize::try_from(inode.checked_sub(FOLDER + 1)?).ok()?;
        (dataset < self.all.len())
            .then(|| DatasetPath { dataset, path: path.trim_start_matches('/').to_owned() })
    }

    /// The path of an open folder, with `path` in it.
    pub(super) fn within(&self, open: &Open, path: &str) -> Result<DatasetPath, Errno> {
        if !open.is_folder {
            return Err(Errno::Notdir);
        }
        let dataset = self.named(&open.dataset).ok_or(Errno::Noent)?;
        Ok(DatasetPath { dataset, path: format!("{}/{path}", open.path) })
    }

    fn named(&self, name: &str) -> Option<usize> {
        self.all.binary_search_by(|dataset| dataset.name.as_str().cmp(name)).ok()
    }

    /// The folders, to which this process can be restricted.
    pub(crate) fn roots(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.all.iter().map(|dataset| dataset.root.as_fd())
    }

    /// The ways to open files; `None` if there is no dataset.
    pub(crate) fn gate(&self) -> Option<&'static Gate> {
        self.gate
    }

    /// Maximum number of descriptors that datasets need.
    pub(crate) fn most_descriptors(&self) -> u64 {
        if self.is_empty() { 0 } else { (self.all.len() + MAX_OPEN + MAX_LISTED) as u64 }
    }

    /// Checks that each folder can be read with the rights that this process has.
    ///
    /// # Errors
    /// If one of them cannot be read.
    pub(crate) fn check(&self) -> io::Result<()> {
        for dataset in &self.all {
            let checked = self.open_in(dataset.root.as_fd(), ".", true);
            checked.map_err(|errno| of_dataset(&dataset.name, &format!("{errno:?}")))?;
        }
        Ok(())
    }

    fn way(&self) -> Result<&'static Gate, Errno> {
        self.gate.ok_or(Errno::Noent)
    }

    fn root(&self, at: &DatasetPath) -> Result<BorrowedFd<'_>, Errno> {
        self.all.get(at.dataset).map(|dataset| dataset.root.as_fd()).ok_or(Errno::Noent)
    }

    /// The metadata of a file. If it is a link, those of the link unless `follow` is set.
    pub(crate) fn stat(&self, at: &DatasetPath, follow: bool) -> Result<Stat, Errno> {
        let how = if follow { How::Find } else { How::Look };
        let found = self.way()?.open(self.root(at)?, &c_path(&at.path)?, how)?;
        stat_of(&found)
    }

    /// The target of a link.
    pub(crate) fn target(&self, at: &DatasetPath) -> Result<Vec<u8>, Errno> {
        let gate = self.way()?;
        let found = gate.open(self.root(at)?, &c_path(&at.path)?, How::Look)?;
        if stat_of(&found)?.filetype != 7 {
            return Err(Errno::Inval);
        }
        Ok(gate.target(found.as_fd())?)
    }

    /// Opens a regular file or a folder beneath a folder, for reading. Anything else is looked at but not opened, as
    /// opening a pipe could block, and opening a device could change it.
    fn open_in(
        &self,
        folder: BorrowedFd<'_>,
        path: &str,
        follow: bool,
    ) -> Result<(OwnedFd, Stat), Errno> {
        let (gate, path) = (self.way()?, c_path(path)?);
        for _ in 0..ATTEMPTS {
            let seen = gate.open(folder, &path, if follow { How::Find } else { How::Look })?;
            let metadata = rustix::fs::fstat(&seen)?;
            let before = stat(&metadata);
            match before.filetype {
                3 | 4 => {}
                7 => return Err(Errno::Loop),
                _ => return Err(Errno::Acces),
            }
            let is_own = metadata.st_uid == Uid::effective().as_raw();
            let quiet = if is_own { How::ReadQuietly } else { How::Read };
            let opened = match gate.open(folder, &path, quiet) {
                Err(nix::errno::Errno::EPERM) if is_own => gate.open(folder, &path, How::Read),
                opened => opened,
            };
            let opened = opened?;
            let after = stat_of(&opened)?;
            let key = |stat: &Stat| (stat.device, stat.inode, stat.filetype);
            if key(&before) == key(&after) {
                return Ok((opened, after));
            }
        }
        Err(Errno::Io)
    }

    /// Opens a file or a folder.
    pub(crate) fn open_at(&self, at: &DatasetPath, follow: bool) -> Result<Open, Errno> {
        let (file, stat) = self.open_in(self.root(at)?, &at.path, follow)?;
        let dataset = self.all.get(at.dataset).ok_or(Errno::Noent)?.name.clone();
        let (device, inode) = (stat.device, stat.inode);
        let is_folder = stat.filetype == 3;
        self.remember((device, inode), Arc::new(file));
        Ok(Open { dataset, path: at.path.clone(), device, inode, is_folder })
    }

    fn cache(&self) -> MutexGuard<'_, Vec<HostFile>> {
        self.open.lock().expect("no thread panics while it holds this")
    }

    fn remember(&self, key: (u64, u64), file: Arc<OwnedFd>) {
        let mut cache = self.cache();
        cache.retain(|(known, _)| *known != key);
        if cache.len() >= MAX_OPEN {
            cache.remove(0);
        }
        cache.push((key, file));
    }

    /// The descriptor of an open file, which is opened again if it was closed between two calls.
    fn file(&self, open: &Open) -> Result<Arc<OwnedFd>, Errno> {
        let key = (open.device, open.inode);
        if let Some((_, file)) = self.cache().iter().rev().find(|(known, _)| *known == key) {
            return Ok(file.clone());
        }
        // The dataset may be another one since the sandbox was saved, and the file may have been replaced.
        let dataset = self.named(&open.dataset).ok_or(Errno::Io)?;
        let at = DatasetPath { dataset, path: open.path.clone() };
        let opened = self.root(&at).and_then(|root| self.open_in(root, &at.path, true));
        let (file, stat) = opened.map_err(|errno| match errno {
            Errno::Mfile => errno,
            _ => Errno::Io,
        })?;
        if !open.is(&stat) {
            return Err(Errno::Io);
        }
        let file = Arc::new(file);
        self.remember(key, file.clone());
        Ok(file)
    }

    /// The present metadata of an open file.
    pub(crate) fn stat_open(&self, open: &Open) -> Result<Stat, Errno> {
        stat_of(&self.file(open)?)
    }

    /// Reads bytes from `offset` on, and returns their number, which may be smaller than that of the bytes that are
    /// left.
    pub(crate) fn read(&self, open: &Open, offset: u64, to: &mut [u8]) -> Result<usize, Errno> {
        if open.is_folder {
            return Err(Errno::Isdir);
        }
        read_at(&*self.file(open)?, offset, to)
    }

    /// The contents of a file of at most `most` bytes.
    pub(crate) fn read_all(&self, at: &DatasetPath, most: u64) -> Result<Vec<u8>, Errno> {
        let (file, stat) = self.open_in(self.root(at)?, &at.path, true)?;
        if stat.filetype == 3 {
            return Err(Errno::Isdir);
        }
        if stat.size > most {
            return Err(Errno::Fbig);
        }
        let mut bytes = vec![0; usize::try_from(stat.size).map_err(|_| Errno::Fbig)?];
        let read = read_all_at(&file, 0, &mut bytes)?;
        bytes.truncate(read);
        Ok(bytes)
    }

    /// Closes a file. If it is also open by another name, it is opened again when it is read.
    pub(crate) fn close(&self, open: &Open) {
        self.cache().retain(|(known, _)| *known != (open.device, open.inode));
    }

    /// Closes all files, so that the host can remove or unmount them while no guest runs.
    pub(crate) fn close_all(&self) {
        self.cache().clear();
    }
}

fn read_at(file: impl AsFd, offset: u64, to: &mut [u8]) -> Result<usize, Errno> {
    let most = to.len().min(MAX_AT_ONCE);
    Ok(rustix::io::retry_on_intr(|| rustix::io::pread(&file, &mut to[..most], offset))?)
}

/// Reads until the buffer is full or the file ends. Returns the number of bytes.
fn read_all_at(file: impl AsFd, offset: u64, to: &mut [u8]) -> Result<usize, Errno> {
    let mut read = 0;
    while read < to.len() {
        match read_at(&file, offset.saturating_add(read as u64), &mut to[read..])? {
            0 => break,
            more => read += more,
        }
    }
    Ok(read)
}

fn open_root(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

/// Checks that the folder of a dataset is there, and that a sandbox could read it: with the rights that its process
/// has, which are fewer than those of this process if that has any capabilities.
///
/// # Errors
/// If there is no such folder, or it cannot be read.
pub fn check_dataset(folder: &Path) -> io::Result<()> {
    let root = open_root(folder)?;
    let look = move || {
        // Capabilities are those of a thread.
        crate::lockdown::drop_capabilities()?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        rustix::fs::openat(root, ".", flags, Mode::empty())?;
        Ok(())
    };
    let looked = thread::Builder::new().name("dataset".into()).spawn(look)?.join();
    looked.unwrap_or_else(|_| Err(io::Error::other("the check has failed")))
}

fn of_dataset(name: &str, error: &dyn std::fmt::Display) -> io::Error {
    io::Error::other(format!("the dataset {name} cannot be read: {error}"))
}

fn c_path(path: &str) -> Result<CString, Errno> {
    CString::new(if path.is_empty() { "." } else { path }).map_err(|_| Errno::Inval)
}

fn stat_of(file: impl AsFd) -> Result<Stat, Errno> {
    Ok(stat(&rustix::fs::fstat(file)?))
}

fn stat(found: &rustix::fs::Stat) -> Stat {
    let time =
        |seconds: i64, nanos: i64| seconds.saturating_mul(1_000_000_000).saturating_add(nanos);
    let nanos = |nanos| i64::try_from(nanos).unwrap_or(0);
    Stat {
        device: found.st_dev,
        inode: found.st_ino,
        filetype: filetype(FileType::from_raw_mode(found.st_mode)),
        links: wide(found.st_nlink),
        size: found.st_size.try_into().unwrap_or(0),
        modified: time(found.st_mtime, nanos(found.st_mtime_nsec)),
        changed: time(found.st_ctime, nanos(found.st_ctime_nsec)),
    }
}

/// A number whose type depends on the processor.
fn wide(number: impl Into<u64>) -> u64 {
    number.into()
}

/// WASI's number for a kind of file. It has none for pipes.
fn filetype(kind: FileType) -> u8 {
    match kind {
        FileType::BlockDevice => 1,
        FileType::CharacterDevice => 2,
        FileType::Directory => 3,
        FileType::RegularFile => 4,
        FileType::Socket => 6,
        FileType::Symlink => 7,
        _ => 0,
    }
}

impl From<nix::errno::Errno> for Errno {
    fn from(errno: nix::errno::Errno) -> Self {
        use nix::errno::Errno as Host;
        match errno {
            Host::ENOENT => Self::Noent,
            Host::ENOTDIR => Self::Notdir,
            Host::EISDIR => Self::Isdir,
            Host::EACCES | Host::EPERM => Self::Acces,
            Host::ELOOP => Self::Loop,
            // A path or a link that leads out of its folder.
            Host::EXDEV => Self::Xdev,
            Host::ENAMETOOLONG => Self::Nametoolong,
            Host::EMFILE | Host::ENFILE => Self::Mfile,
            Host::EINVAL => Self::Inval,
            _ => Self::Io,
        }
    }
}

impl From<rustix::io::Errno> for Errno {
    fn from(errno: rustix::io::Errno) -> Self {
        nix::errno::Errno::from_raw(errno.raw_os_error()).into()
    }
}
