//! Reads and writes files in pieces.

use std::{
    collections::HashMap,
    ffi::{OsStr, OsString},
    fs::File,
    io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::FileExt,
    },
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{AT_FDCWD, AtFlags, OFlag, openat, renameat},
    sys::stat::{Mode, SFlag, fstat, fstatat},
    unistd::{UnlinkatFlags, linkat, unlinkat},
};
use protocol::{
    frame::MAX_BODY,
    limits::{DATASETS, MAX_UPLOADS},
    message::{
        Abandon, Failure, FailureCode, Get, GetDone, Install, List, ListDone, PackagePiece, Put,
        PutDone,
    },
};

use crate::{
    beneath::{self, Missing},
    tree,
};

/// Maximum number of files of a folder that are listed. A dataset may have millions.
const MAX_LISTED: usize = 16_384;

/// The data area, the uploads into it, and the datasets.
#[derive(Debug)]
pub struct Files {
    root: OwnedFd,
    /// The folder with a folder, or a link to one, for each dataset.
    datasets: PathBuf,
    uploads: HashMap<u32, Upload>,
}

/// A file without a name: it is not visible before it is whole, and the kernel frees it when it is dropped, whatever
/// happens.
#[derive(Debug)]
struct Upload {
    file: File,
    folder: OwnedFd,
    name: OsString,
    written: u64,
    /// The file's temporary name: while it replaces another file, or all the time if the kernel has no files without
    /// names (gVisor).
    temporary: Option<OsString>,
}

impl Files {
    /// Opens the data area.
    ///
    /// # Errors
    ///
    /// If it is not a folder that can be read.
    pub fn open(data: &Path) -> nix::Result<Self> {
        let (root, uploads) = (beneath::root(data)?, HashMap::new());
        Ok(Self { root, datasets: DATASETS.into(), uploads })
    }

    /// Sets the folder of the datasets, which must be one that no program can change.
    #[must_use]
    pub fn with_datasets(self, datasets: PathBuf) -> Self {
        Self { datasets, ..self }
    }

    /// The folder beneath which a path of a request is, and the path from there; `None` if it is the folder itself.
    fn place<'a>(&self, path: &'a str) -> nix::Result<(OwnedFd, Option<&'a Path>)> {
        let Some(below) = path.strip_prefix(DATASETS) else {
            let root = self.root.try_clone().map_err(|error| errno(&error))?;
            return Ok((root, Some(path.as_ref()).filter(|_| !path.is_empty())));
        };
        let below = below.strip_prefix('/').ok_or(Errno::EXDEV)?;
        let (name, rest) = below.split_once('/').unwrap_or((below, ""));
        if matches!(name, "" | "." | "..") {
            return Err(Errno::EXDEV);
        }
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let root = nix::fcntl::open(&self.datasets.join(name), flags, Mode::empty())?;
        Ok((root, Some(rest.as_ref()).filter(|_| !rest.is_empty())))
    }

    /// The data area itself.
    pub fn root(&self) -> &OwnedFd {
        &self.root
    }

    /// Answers [`Get`] with the reply and its body, the bytes.
    ///
    /// # Errors
    ///
    /// [`FailureCode::NotFound`] or [`FailureCode::BadPath`] if there is no regular file at the path beneath the data
    /// area, [`FailureCode::System`] if it cannot be read.
    pub fn get(&self, get: &Get) -> Result<(GetDone, Vec<u8>), Failure> {
        let file = self.open_file(&get.path)?;
        let stat = fstat(&file).map_err(failure)?;
        let left = tree::stamp(&stat).size.saturating_sub(get.offset);
        let len = get.len.min(MAX_BODY).min(usize::try_from(left).unwrap_or(usize::MAX));
        let mut bytes = vec![0; len];
        let read = read_up_to(&file, &mut bytes, get.offset)
            .map_err(|error| Failure::new(FailureCode::System, error.to_string()))?;
        bytes.truncate(read);
        // Taken after reading: if a program has written to the file meanwhile, the stamp differs from an earlier one.
        let stat = fstat(&file).map_err(failure)?;
        Ok((GetDone { stamp: tree::stamp(&stat) }, bytes))
    }

    /// Opens a file for reading, by its path in a request.
    ///
    /// # Errors
    ///
    /// [`FailureCode::NotFound`] or [`FailureCode::BadPath`] if there is no regular file at the path.
    pub fn open_file(&self, path: &str) -> Result<File, Failure> {
        let (root, path) = self.place(path).map_err(failure)?;
        let path = path.ok_or_else(|| Failure::new(FailureCode::NotFound, "not a file"))?;
        let file = beneath::open(&root, path, OFlag::O_RDONLY).map_err(failure)?;
        let stat = fstat(&file).map_err(failure)?;
        if tree::file_type(&stat) != SFlag::S_IFREG {
            return Err(Failure::new(FailureCode::NotFound, "not a file"));
        }
        Ok(File::from(file))
    }

    /// Answers [`Put`]. If there is no room, calls `make_room`, which returns whether it has made any.
    ///
    /// # Errors
    ///
    /// [`FailureCode::Full`] if there is no room, [`FailureCode::Exists`] if the name is taken,
    /// [`FailureCode::BadPath`] if the path cannot be used, [`FailureCode::Busy`] if too many uploads are open,
    /// [`FailureCode::BadRequest`] for a piece out of order, [`FailureCode::System`] for any other error. The upload is
    /// then discarded.
    pub fn put(
        &mut self,
        put: &Put,
        bytes: &[u8],
        make_room: impl FnOnce() -> bool,
    ) -> Result<PutDone, Failure> {
        let done = match self.write(put, bytes) {
            Err(error) if tree::is_full(error) && make_room() => self.write(put, bytes),
            done => done,
        };
        let done = done.map_err(failure);
        if put.last || done.is_err() {
            self.uploads.remove(&put.upload);
        }
        done
    }

    /// Answers [`Abandon`].
    pub fn abandon(&mut self, abandon: &Abandon) {
        self.uploads.remove(&abandon.upload);
    }

    /// Discards all uploads: the server that was to send their last pieces is lost.
    pub fn abandon_all(&mut self) {
        self.uploads.clear();
    }

    /// Answers [`List`] with the reply and its body, the entries as JSON.
    ///
    /// # Errors
    ///
    /// [`FailureCode::NotFound`] or [`FailureCode::BadPath`] if there is no file or folder to list.
    pub fn list(&self, list: List) -> Result<(ListDone, Vec<u8>), Failure> {
        let (mut all, cut) = match &list.within {
            None => (tree::snapshot(&self.root), false),
            Some(within) => self.found(within).map_err(failure)?,
        };
        if let Some(after) = list.after {
            all = all.split_off(&after);
            all.remove(&after);
        }
        let entries = tree::changed(&tree::Snapshot::new(), all);
        let (json, omitted) = tree::to_json(&entries, MAX_BODY);
        Ok((ListDone { more: omitted > 0, cut }, json))
    }

    /// The files of a folder, or one file; and whether there are too many to be listed.
    fn found(&self, within: &str) -> nix::Result<(tree::Snapshot, bool)> {
        let (root, path) = self.place(within)?;
        let place = match path {
            Some(path) => beneath::open(&root, path, OFlag::O_RDONLY)?,
            None => root,
        };
        let stat = fstat(&place)?;
        match tree::file_type(&stat) {
            SFlag::S_IFREG => Ok(([(within.to_owned(), tree::stamp(&stat))].into(), false)),
            SFlag::S_IFDIR => Ok(tree::some(&place, &format!("{within}/"), MAX_LISTED)),
            _ => Err(Errno::ENOENT),
        }
    }

    fn write(&mut self, put: &Put, bytes: &[u8]) -> nix::Result<PutDone> {
        if put.offset == 0 {
            if self.uploads.len() >= MAX_UPLOADS {
                return Err(Errno::EBUSY);
            }
            let upload = open_upload(&self.root, put)?;
            self.uploads.insert(put.upload, upload);
        }
        let upload = self.uploads.get_mut(&put.upload).ok_or(Errno::EINVAL)?;
        if upload.written != put.offset {
            return Err(Errno::EINVAL);
        }
        upload.file.write_all_at(bytes, put.offset).map_err(|error| errno(&error))?;
        upload.written += bytes.len() as u64;
        let replaced = put.last && upload.publish(put.overwrite)?;
        Ok(PutDone { replaced })
    }
}

/// Writes all pieces of an [`Install`], each as a piece of an upload.
///
/// # Errors
///
/// [`FailureCode::BadRequest`] if the body is too short for the pieces; otherwise the failure of `write`.
pub fn install(
    install: &Install,
    mut body: &[u8],
    mut write: impl FnMut(&Put, &[u8]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    for PackagePiece { upload, path, offset, len, last } in &install.pieces {
        let Some((bytes, rest)) = body.split_at_checked(*len) else {
            return Err(Failure::bad_request("a piece that is not there"));
        };
        body = rest;
        let (path, overwrite) = (path.clone(), true);
        let put = Put { upload: *upload, path, offset: *offset, last: *last, overwrite };
        write(&put, bytes)?;
    }
    Ok(())
}

fn open_upload(root: &OwnedFd, put: &Put) -> nix::Result<Upload> {
    let (folder, name) = beneath::walk(root, put.path.as_ref(), Missing::Make)?;
    match fstatat(&folder, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
        Ok(stat) if tree::file_type(&stat) == SFlag::S_IFDIR => return Err(Errno::EISDIR),
        // Refused now rather than after the last piece, as `publish` would do.
        Ok(_) if !put.overwrite => return Err(Errno::EEXIST),
        Ok(_) | Err(Errno::ENOENT) => {}
        Err(error) => return Err(error),
    }
    let upload = |flags, temporary: Option<OsString>| {
        let path = temporary.as_deref().unwrap_or(OsStr::new("."));
        let flags = flags | OFlag::O_WRONLY | OFlag::O_CLOEXEC;
        let file = openat(&folder, path, flags, Mode::from_bits_truncate(0o644))?.into();
        let folder = folder.try_clone().map_err(|error| errno(&error))?;
        Ok(Upload { file, folder, name: name.to_owned(), written: 0, temporary })
    };
    match upload(OFlag::O_TMPFILE, None) {
        Err(Errno::EOPNOTSUPP) => {
            let temporary = OsString::from(format!(".upload-{}", put.upload));
            upload(OFlag::O_CREAT | OFlag::O_EXCL, Some(temporary))
        }
        other => other,
    }
}

impl Upload {
    /// Gives the finished file its name, in one step that no reader sees half done. Returns whether it replaced another
    /// file.
    fn publish(&mut self, overwrite: bool) -> nix::Result<bool> {
        match self.link(&self.name) {
            Err(Errno::EEXIST) if overwrite => {}
            other => return other.map(|()| false),
        }
        // A link cannot replace a file, a rename can, so the file takes a temporary name first: with its inode number,
        // which is unique while the file is open.
        if self.temporary.is_none() {
            let temporary = OsString::from(format!(".upload-{}", fstat(&self.file)?.st_ino));
            self.link(&temporary)?;
            self.temporary = Some(temporary);
        }
        if let Some(temporary) = &self.temporary {
            renameat(&self.folder, temporary.as_os_str(), &self.folder, self.name.as_os_str())?;
            self.temporary = None;
        }
        Ok(true)
    }

    fn link(&self, to: &OsStr) -> nix::Result<()> {
        if let Some(temporary) = &self.temporary {
            let temporary = temporary.as_os_str();
            return linkat(&self.folder, temporary, &self.folder, to, AtFlags::empty());
        }
        let by_descriptor = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        linkat(AT_FDCWD, by_descriptor.as_str(), &self.folder, to, AtFlags::AT_SYMLINK_FOLLOW)
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            let _ = unlinkat(&self.folder, temporary.as_os_str(), UnlinkatFlags::NoRemoveDir);
        }
    }
}

/// Fills the bytes from the file, or as many of them as it has. Returns their number.
pub(crate) fn read_up_to(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut read = 0;
    while read < bytes.len() {
        match file.read_at(&mut bytes[read..], offset + read as u64) {
            Ok(0) => break,
            Ok(n) => read += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(read)
}

fn errno(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

/// Converts an error to a failure without the path: the caller knows it, and the server's log must not contain it.
fn failure(error: Errno) -> Failure {
    let code = match error {
        Errno::ENOENT | Errno::ENXIO => FailureCode::NotFound,
        Errno::EEXIST => FailureCode::Exists,
        Errno::EBUSY => FailureCode::Busy,
        Errno::EINVAL => FailureCode::BadRequest,
        full if tree::is_full(full) => FailureCode::Full,
        Errno::ENOTDIR
        | Errno::EISDIR
        | Errno::ELOOP
        | Errno::EXDEV
        | Errno::ENAMETOOLONG
        | Errno::EACCES
        | Errno::EPERM
        // A program has a lease on the file, and the agent does not wait for it.
        | Errno::EAGAIN => FailureCode::BadPath,
        _ => FailureCode::System,
    };
    Failure::new(code, error.to_string())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn put(path: &str, offset: u64, last: bool, overwrite: bool) -> Put {
        Put { upload: 1, path: path.into(), offset, last, overwrite }
    }

    #[test]
    fn a_file_appears_whole_with_its_last_piece() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut files = Files::open(dir.path()).expect("opened");
        files.put(&put("sub/a.csv", 0, false, false), b"one,", || false).expect("first piece");
        assert_eq!(tree::snapshot(files.root()).len(), 0);
        files.put(&put("sub/a.csv", 4, true, false), b"two", || false).expect("last piece");
        assert_eq!(fs::read(dir.path().join("sub/a.csv")).expect("there"), b"one,two");
    }

    #[test]
    fn an_upload_replaces_only_when_it_may() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut files = Files::open(dir.path()).expect("opened");
        assert!(!files.put(&put("a", 0, true, true), b"old", || false).expect("new").replaced);
        let refused = files.put(&put("a", 0, true, false), b"new", || false).expect_err("exists");
        assert_eq!(refused.code, FailureCode::Exists);
        assert!(
            files.put(&put("a", 0, true, true), b"newer", || false).expect("replaced").replaced
        );
        assert_eq!(fs::read(dir.path().join("a")).expect("there"), b"newer");
        assert_eq!(fs::read_dir(dir.path()).expect("read").count(), 1, "no temporary name stays");
    }

    #[test]
    fn a_file_made_meanwhile_is_not_replaced() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut files = Files::open(dir.path()).expect("opened");
        files.put(&put("a", 0, false, false), b"up", || false).expect("first piece");
        fs::write(dir.path().join("a"), "theirs").expect("written");
        let refused = files.put(&put("a", 2, true, false), b"load", || false).expect_err("exists");
        assert_eq!(refused.code, FailureCode::Exists);
        assert_eq!(fs::read(dir.path().join("a")).expect("there"), b"theirs");
    }

    #[test]
    fn a_piece_out_of_order_ends_the_upload() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut files = Files::open(dir.path()).expect("opened");
        files.put(&put("a", 0, false, false), b"12", || false).expect("first piece");
        assert_eq!(
            files.put(&put("a", 5, true, false), b"3", || false).expect_err("a gap").code,
            FailureCode::BadRequest
        );
        assert!(files.uploads.is_empty());
        assert_eq!(fs::read_dir(dir.path()).expect("read").count(), 0);
    }

    #[test]
    fn an_upload_that_is_abandoned_leaves_nothing() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut files = Files::open(dir.path()).expect("opened");
        files.put(&put("a", 0, false, false), b"12", || false).expect("first piece");
        files.abandon(&Abandon { upload: 2 });
        assert_eq!(files.uploads.len(), 1, "that was another");
        for _ in 0..2 {
            files.abandon(&Abandon { upload: 1 });
            assert!(files.uploads.is_empty());
        }
        let late = files.put(&put("a", 2, true, false), b"3", || false).expect_err("forgotten");
        assert_eq!(late.code, FailureCode::BadRequest);
        assert_eq!(fs::read_dir(dir.path()).expect("read").count(), 0);
    }

    #[test]
    fn a_name_that_is_a_folder_or_lies_below_a_file_is_a_bad_path() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut files = Files::open(dir.path()).expect("opened");
        fs::create_dir(dir.path().join("folder")).expect("made");
        fs::write(dir.path().join("file"), "").expect("written");
        for path in ["folder", "file/below", "../out"] {
            let refused = files.put(&put(path, 0, true, true), b"x", || false).expect_err(path);
            assert_eq!(refused.code, FailureCode::BadPath, "{path}");
        }
    }

    #[test]
    fn reading_stops_at_the_end_of_the_file() {
        let dir = tempfile::tempdir().expect("a folder");
        fs::write(dir.path().join("a"), "0123456789").expect("written");
        let files = Files::open(dir.path()).expect("opened");
        let get = |offset, len| {
            files.get(&Get { path: "a".into(), offset, len, of: None }).expect("read")
        };
        assert_eq!(get(0, 4).1, b"0123");
        assert_eq!(get(8, 4).1, b"89");
        assert_eq!(get(10, 4).1, b"");
        assert_eq!(get(u64::MAX, usize::MAX).1, b"");
        assert_eq!(get(0, 0).0.stamp.size, 10);
    }
}
