//! Requests of the server for files: reading and writing in pieces, and listings. Paths are relative to the data area.

#[cfg(test)]
use std::collections::BTreeMap;
use std::collections::HashMap;

use protocol::{
    frame::MAX_BODY,
    limits::{MAX_PATH, MAX_UPLOADS},
    message::{Abandon, Failure, FailureCode, Get, GetDone, List, ListDone, Put, PutDone, Stamp},
};
use sandbox_files::tree::{self, Snapshot};

use super::{Content, DATA, Errno, FileSystem, Stat, tree::Inode};

/// Maximum number of nested folders that are listed.
pub(super) const MAX_DEPTH: usize = 64;

impl FileSystem {
    /// The user's regular files by path.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let mut found = Snapshot::new();
        self.gather(DATA, "", MAX_DEPTH, &mut found);
        found
    }

    /// Regular files in scratch space and in its folders, not deeper.
    pub(crate) fn elsewhere(&self) -> Snapshot {
        let mut found = Snapshot::new();
        if let Ok(scratch) = self.find(super::ROOT, "/tmp", true) {
            self.gather(scratch, "", 1, &mut found);
        }
        found
    }

    fn gather(&self, folder: Inode, prefix: &str, depth: usize, found: &mut Snapshot) {
        let Ok(entries) = self.entries(folder) else { return };
        for (name, inode) in entries {
            let path = format!("{prefix}{name}");
            if path.len() > MAX_PATH {
                continue;
            }
            match self.stat(*inode) {
                Ok(stat) if stat.filetype == 4 => {
                    found.insert(path, stamp(stat));
                }
                Ok(Stat { filetype: 3, .. }) if depth > 0 => {
                    self.gather(*inode, &format!("{path}/"), depth - 1, found);
                }
                _ => {}
            }
        }
    }

    /// The file of this path, or the regular files of the folder of this path.
    fn snapshot_within(&self, path: &str) -> Result<Snapshot, Errno> {
        let inode = self.beneath(path)?;
        let path = parts(path)?.join("/");
        let mut found = Snapshot::new();
        match self.stat(inode)? {
            stat if stat.filetype == 4 => drop(found.insert(path, stamp(stat))),
            _ if path.is_empty() => self.gather(inode, "", MAX_DEPTH, &mut found),
            _ => self.gather(inode, &format!("{path}/"), MAX_DEPTH, &mut found),
        }
        Ok(found)
    }

    /// Answers [`List`] for the data area with the reply and its body, the entries as JSON.
    ///
    /// # Errors
    /// If there is no such file or folder.
    pub(crate) fn list(&self, list: List) -> Result<(ListDone, Vec<u8>), Failure> {
        let within = list.within.as_deref().map(|within| self.snapshot_within(within));
        let mut all = within.transpose().map_err(failure)?.unwrap_or_else(|| self.snapshot());
        if let Some(after) = list.after {
            all = all.split_off(&after);
            all.remove(&after);
        }
        let entries = tree::changed(&Snapshot::new(), all);
        let (json, omitted) = tree::to_json(&entries, MAX_BODY);
        Ok((ListDone { more: omitted > 0, cut: false }, json))
    }

    /// Answers [`Get`] with the reply and its body, the bytes.
    pub(crate) fn get(&self, get: &Get) -> Result<(GetDone, Vec<u8>), Failure> {
        let file = self.beneath(&get.path).map_err(failure)?;
        let stat = self.stat(file).map_err(failure)?;
        let content = self.content(file);
        let content = content.map_err(|_| Failure::new(FailureCode::NotFound, "not a file"))?;
        let left = usize::try_from(stat.size.saturating_sub(get.offset)).unwrap_or(usize::MAX);
        let mut bytes = vec![0; get.len.min(MAX_BODY).min(left)];
        let read = content.read(get.offset, &mut bytes).map_err(failure)?;
        bytes.truncate(read);
        Ok((GetDone { stamp: stamp(stat) }, bytes))
    }

    /// Makes a file with these bytes.
    ///
    /// # Errors
    /// If the path is not possible, or there is no space left.
    pub(crate) fn place(&mut self, path: &str, bytes: &[u8]) -> Result<(), Errno> {
        let (folder, name) = self.folder_of(path)?;
        let mut content = self.new_content();
        write_all(&mut content, 0, bytes)?;
        self.publish(folder, name, content)
    }

    /// The node of a path. Links in the path are refused.
    fn beneath(&self, path: &str) -> Result<Inode, Errno> {
        let mut at = DATA;
        for part in parts(path)? {
            let entries = self.entries(at)?;
            at = *entries.get(part).ok_or(Errno::Noent)?;
            if self.stat(at)?.filetype == 7 {
                return Err(Errno::Loop);
            }
        }
        Ok(at)
    }

    /// The folder and the name of a file of this path. Missing folders are made, links are refused.
    fn folder_of<'a>(&mut self, path: &'a str) -> Result<(Inode, &'a str), Errno> {
        let parts = parts(path)?;
        let (name, folders) = parts.split_last().ok_or(Errno::Inval)?;
        let mut at = DATA;
        for part in folders {
            at = match self.entries(at)?.get(*part) {
                Some(inode) => *inode,
                None => self.make_folder(at, part)?,
            };
            if self.stat(at)?.filetype == 7 {
                return Err(Errno::Loop);
            }
        }
        self.entries(at)?;
        Ok((at, name))
    }
}

/// The parts of a relative path without `..`.
pub(super) fn parts(path: &str) -> Result<Vec<&str>, Errno> {
    if path.len() > MAX_PATH {
        return Err(Errno::Nametoolong);
    }
    let parts: Vec<_> = path.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    if path.starts_with('/') || parts.contains(&"..") || path.contains('\0') {
        Err(Errno::Xdev)
    } else {
        Ok(parts)
    }
}

/// Uploads in progress. A file becomes visible when it is complete.
#[derive(Debug, Default)]
pub(crate) struct Uploads(HashMap<u32, Upload>);

#[derive(Debug)]
struct Upload {
    folder: Inode,
    name: String,
    content: Content,
}

impl Uploads {
    /// Answers [`Put`]. `before` is the state to which the files are rolled back if the run in progress is stopped: an
    /// upload is added to both states, and must fit into both.
    pub(crate) fn put(
        &mut self,
        put: &Put,
        bytes: &[u8],
        files: &mut FileSystem,
        mut before: Option<&mut FileSystem>,
    ) -> Result<PutDone, Failure> {
        let done = self.write(put, bytes, files, before.as_deref_mut());
        if done.is_err() {
            self.forget(put.upload, files, before);
        }
        done.map_err(failure)
    }

    /// Answers [`Abandon`].
    pub(crate) fn abandon(
        &mut self,
        abandon: &Abandon,
        files: &mut FileSystem,
        before: Option<&mut FileSystem>,
    ) {
        self.forget(abandon.upload, files, before);
    }

    fn forget(&mut self, upload: u32, files: &mut FileSystem, before: Option<&mut FileSystem>) {
        if let Some(Upload { content, .. }) = self.0.remove(&upload) {
            for files in before.into_iter().chain([files]) {
                files.unstage(content.len());
            }
        }
    }

    fn write(
        &mut self,
        put: &Put,
        bytes: &[u8],
        files: &mut FileSystem,
        mut before: Option<&mut FileSystem>,
    ) -> Result<PutDone, Errno> {
        if let Some(before) = &before {
            check_free(before, put)?;
        }
        if put.offset == 0 {
            if self.0.len() >= MAX_UPLOADS {
                return Err(Errno::Mfile);
            }
            let (folder, name) = files.folder_of(&put.path)?;
            if let Some(found) = files.entries(folder)?.get(name) {
                match files.stat(*found)?.filetype {
                    3 => return Err(Errno::Isdir),
                    // Refused with the first piece rather than after the last.
                    _ if !put.overwrite => return Err(Errno::Exist),
                    _ => {}
                }
            }
            let upload = Upload { folder, name: name.to_owned(), content: files.new_content() };
            self.0.insert(put.upload, upload);
        }
        let upload = self.0.get_mut(&put.upload).ok_or(Errno::Inval)?;
        if upload.content.len() != put.offset {
            return Err(Errno::Inval);
        }
        let staged = bytes.len() as u64;
        files.stage(staged)?;
        if let Some(Err(errno)) = before.as_mut().map(|before| before.stage(staged)) {
            files.unstage(staged);
            return Err(errno);
        }
        let written = write_all(&mut upload.content, put.offset, bytes);
        if let Err(errno) = written {
            // Its other bytes are unstaged when it is forgotten.
            let not_written = put.offset + staged - upload.content.len();
            for files in before.into_iter().chain([files]) {
                files.unstage(not_written);
            }
            return Err(errno);
        }
        if !put.last {
            return Ok(PutDone { replaced: false });
        }
        let Some(Upload { folder, name, content }) = self.0.remove(&put.upload) else {
            return Err(Errno::Inval);
        };
        files.unstage(content.len());
        // A copy, which replaces `before` once nothing can fail any more.
        let mut then = before.as_ref().map(|before| FileSystem::clone(before));
        if let Some(then) = &mut then {
            then.unstage(content.len());
            let folder = then.folder_of(&put.path).map(|(folder, _)| folder);
            let done = folder.and_then(|folder| then.publish(folder, &name, content.clone()));
            // If that state has another node at this path, the file is added to the present state only.
            if done == Err(Errno::Nospc) {
                return Err(Errno::Nospc);
            }
        }
        // The folder may have been removed meanwhile.
        let replaced = files.entries(folder).map_err(|_| Errno::Noent)?.contains_key(&name);
        if replaced && !put.overwrite {
            return Err(Errno::Exist);
        }
        files.publish(folder, &name, content)?;
        if let Some((before, then)) = before.zip(then) {
            *before = then;
        }
        Ok(PutDone { replaced })
    }
}

/// Uploads of packages' files in progress.
#[derive(Debug)]
pub(crate) struct PackageUploads {
    most_bytes: u64,
    files: HashMap<u32, Content>,
}

impl PackageUploads {
    /// No uploads yet. All packages together may have `most_bytes` bytes.
    pub(crate) fn new(most_bytes: u64) -> Self {
        Self { most_bytes, files: HashMap::new() }
    }

    /// Takes one piece of an [`Install`](protocol::message::Install) request.
    pub(crate) fn put(
        &mut self,
        put: &Put,
        bytes: &[u8],
        files: &mut FileSystem,
    ) -> Result<(), Failure> {
        let done = self.write(put, bytes, files);
        if put.last || done.is_err() {
            self.files.remove(&put.upload);
        }
        done.map_err(failure)
    }

    fn write(&mut self, put: &Put, bytes: &[u8], files: &mut FileSystem) -> Result<(), Errno> {
        if put.offset == 0 {
            if self.files.len() >= MAX_UPLOADS {
                return Err(Errno::Mfile);
            }
            self.files.insert(put.upload, Content::default());
        }
        let content = self.files.get_mut(&put.upload).ok_or(Errno::Inval)?;
        if content.len() != put.offset {
            return Err(Errno::Inval);
        }
        if put.offset + bytes.len() as u64 > self.most_bytes {
            return Err(Errno::Nospc);
        }
        write_all(content, put.offset, bytes)?;
        if !put.last {
            return Ok(());
        }
        let content = self.files.remove(&put.upload).unwrap_or_default();
        files.install(&parts(&put.path)?, content, self.most_bytes)
    }
}

/// Writes all of these bytes.
///
/// # Errors
/// If the disk is full or fails; a part may be written then.
fn write_all(content: &mut Content, mut offset: u64, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        let written = content.write(offset, bytes)?;
        (offset, bytes) = (offset + written as u64, &bytes[written..]);
    }
    Ok(())
}

/// Refuses an upload that would replace a file without permission if the files were rolled back to this state.
fn check_free(before: &FileSystem, put: &Put) -> Result<(), Errno> {
    let Ok(found) = before.beneath(&put.path) else { return Ok(()) };
    match before.stat(found)?.filetype {
        3 => Err(Errno::Isdir),
        _ if !put.overwrite => Err(Errno::Exist),
        _ => Ok(()),
    }
}

pub(super) fn stamp(stat: Stat) -> Stamp {
    Stamp { ino: stat.inode, size: stat.size, mtime_ns: stat.modified, ctime_ns: stat.changed }
}

/// A failure without the path, which the caller knows and the server's log must not contain.
pub(super) fn failure(errno: Errno) -> Failure {
    let code = match errno {
        // A file of the host that this process may not read, and what is neither a file nor a folder.
        Errno::Noent | Errno::Acces => FailureCode::NotFound,
        Errno::Exist => FailureCode::Exists,
        Errno::Mfile => FailureCode::Busy,
        Errno::Inval => FailureCode::BadRequest,
        Errno::Nospc => FailureCode::Full,
        Errno::Notdir | Errno::Isdir | Errno::Loop | Errno::Xdev | Errno::Nametoolong => {
            FailureCode::BadPath
        }
        _ => FailureCode::System,
    };
    Failure::new(code, format!("{errno:?}"))
}

/// The contents of a tree's files by path, for comparison.
#[cfg(test)]
pub(crate) fn contents(files: &FileSystem) -> BTreeMap<String, Vec<u8>> {
    let of = |path: &str| files.find(DATA, path, false).and_then(|file| files.content(file));
    let paths = files.snapshot().into_keys();
    paths.map(|path| (path.clone(), of(&path).map(Content::to_vec).unwrap_or_default())).collect()
}
