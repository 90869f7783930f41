//! Requests of the server for files of datasets: absolute paths beneath `/data`.

use std::{
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd},
};

use protocol::{
    frame::MAX_BODY,
    limits::MAX_PATH,
    message::{Failure, FailureCode, FileEntry, Get, GetDone, ListDone},
};
use rustix::fs::{FileType, RawDir};
use sandbox_files::tree;

use super::{DATASETS, DatasetPath, Datasets, How, c_path, filetype, read_all_at, stat_of};
use crate::files::{
    Errno,
    served::{MAX_DEPTH, failure, parts, stamp},
};

/// Maximum number of names that one list reads, in all folders together.
const MAX_NAMES: usize = 100_000;

/// Bytes of the buffer for the names of a folder.
const BUFFER: usize = 32 << 10;

/// Bytes of an entry of a list beside its path: the smallest of them.
const LEAST_ENTRY: usize = 64;

/// Whether a path of a request is beneath `/data`.
pub(crate) fn is_of_dataset(path: &str) -> bool {
    let rest = path.strip_prefix('/').and_then(|path| path.strip_prefix(DATASETS));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl Datasets {
    /// The file that a request names; `None` stands for `/data`.
    fn requested(&self, path: &str) -> Result<Option<DatasetPath>, Errno> {
        let parts = parts(path.strip_prefix('/').unwrap_or(path))?;
        let Some(name) = parts.get(1) else { return Ok(None) };
        let dataset = self.named(name).ok_or(Errno::Noent)?;
        Ok(Some(DatasetPath { dataset, path: parts[2..].join("/") }))
    }

    /// Answers [`Get`] with the reply and its body, the bytes.
    pub(crate) fn get(&self, get: &Get) -> Result<(GetDone, Vec<u8>), Failure> {
        let not_a_file = || Failure::new(FailureCode::NotFound, "not a file");
        let at = self.requested(&get.path).map_err(failure)?.ok_or_else(not_a_file)?;
        let opened = self.root(&at).and_then(|root| self.open_in(root, &at.path, true));
        let (file, stat) = opened.map_err(failure)?;
        if stat.filetype != 4 {
            return Err(not_a_file());
        }
        let left = usize::try_from(stat.size.saturating_sub(get.offset)).unwrap_or(usize::MAX);
        let mut bytes = vec![0; get.len.min(MAX_BODY).min(left)];
        let read = read_all_at(&file, get.offset, &mut bytes).map_err(failure)?;
        bytes.truncate(read);
        Ok((GetDone { stamp: stamp(stat) }, bytes))
    }

    /// Lists the regular files of a folder and of those in it, or one file, by path. Follows no links in folders.
    ///
    /// A list has as many files as fit into a reply, and reads at most [`MAX_NAMES`] names; `more` says that there may
    /// be more. A list without a file never says so, as the next one could not begin behind it, but `cut` if there may
    /// be files.
    ///
    /// # Errors
    /// If there is no such file or folder, or the path leads out of its dataset.
    pub(crate) fn list(
        &self,
        within: &str,
        after: Option<&str>,
    ) -> Result<(ListDone, Vec<u8>), Failure> {
        let after = after.unwrap_or_default().to_owned();
        let mut list = Listing::new(self, after);
        match self.requested(within).map_err(failure)? {
            None if self.is_empty() => return Err(failure(Errno::Noent)),
            None => list.all(),
            Some(at) => {
                let shown = parts(within.strip_prefix('/').unwrap_or(within)).map_err(failure)?;
                list.of(&at, &format!("/{}", shown.join("/"))).map_err(failure)?;
            }
        }
        let (json, omitted) = tree::to_json(&list.found, MAX_BODY);
        let more = !list.found.is_empty() && (list.is_cut || omitted > 0);
        Ok((ListDone { more, cut: list.is_cut && !more }, json))
    }
}

impl Datasets {
    /// The regular files of all datasets, as far as there are not too many.
    pub(crate) fn files(&self) -> tree::Snapshot {
        let mut list = Listing::new(self, String::new());
        list.all();
        list.found.into_iter().map(|file| (file.path, file.stamp)).collect()
    }
}

/// A list in progress.
struct Listing<'a> {
    datasets: &'a Datasets,
    /// Paths up to this one are left out.
    after: String,
    /// Number of names that may still be read.
    names: usize,
    /// Bytes of entries that may still be added.
    bytes: usize,
    found: Vec<FileEntry>,
    is_cut: bool,
}

impl<'a> Listing<'a> {
    /// A list of the files after this path.
    fn new(datasets: &'a Datasets, after: String) -> Self {
        Self { datasets, after, names: MAX_NAMES, bytes: MAX_BODY, found: vec![], is_cut: false }
    }

    /// Adds the files of all datasets.
    fn all(&mut self) {
        let all = (0..).zip(&self.datasets.all);
        let named = all.map(|(dataset, it)| (format!("/{DATASETS}/{}/", it.name), dataset));
        let mut named: Vec<_> = named.collect();
        named.sort_unstable();
        for (shown, dataset) in named {
            let path = String::new();
            // A dataset that cannot be read hides no other.
            let _ = self.of(&DatasetPath { dataset, path }, shown.trim_end_matches('/'));
        }
    }

    /// Adds a file, or the files of a folder.
    fn of(&mut self, at: &DatasetPath, shown: &str) -> Result<(), Errno> {
        let (file, stat) = self.datasets.open_in(self.datasets.root(at)?, &at.path, true)?;
        if stat.filetype == 3 {
            let shown = format!("{shown}/");
            return if self.is_done(&shown) {
                Ok(())
            } else {
                self.folder(file.as_fd(), &shown, MAX_DEPTH)
            };
        }
        self.add(shown.to_owned(), stamp(stat));
        Ok(())
    }

    /// Whether all files of a folder come before those that are wanted.
    fn is_done(&self, folder: &str) -> bool {
        folder <= self.after.as_str() && !self.after.starts_with(folder)
    }

    fn add(&mut self, path: String, stamp: protocol::message::Stamp) {
        if path <= self.after || path.len() > MAX_PATH {
            return;
        }
        self.bytes = self.bytes.saturating_sub(path.len() + LEAST_ENTRY);
        self.found.push(FileEntry { path, stamp });
    }

    /// Adds the files of an open folder whose path, with a slash at its end, is `shown`.
    fn folder(&mut self, folder: BorrowedFd<'_>, shown: &str, depth: usize) -> Result<(), Errno> {
        for (key, kind) in self.names_of(folder)? {
            if self.bytes == 0 {
                self.is_cut = true;
                return Ok(());
            }
            let path = format!("{shown}{key}");
            if kind == 3 {
                if depth == 0 || self.is_done(&path) || path.len() > MAX_PATH {
                    continue;
                }
                let Ok((below, stat)) =
                    self.datasets.open_in(folder, key.trim_end_matches('/'), false)
                else {
                    continue;
                };
                if stat.filetype == 3 {
                    // A folder that cannot be read is taken as empty.
                    let _ = self.folder(below.as_fd(), &path, depth - 1);
                }
                // The next list begins behind the last file, so nothing may be left out before it.
                if self.is_cut {
                    return Ok(());
                }
            } else if path > self.after {
                let Ok(gate) = self.datasets.way() else { continue };
                let Ok(name) = c_path(&key) else { continue };
                let Ok(found) = gate.open(folder, &name, How::Look) else { continue };
                match stat_of(&found) {
                    Ok(stat) if stat.filetype == 4 => self.add(path, stamp(stat)),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Names and kinds of the files and folders in a folder, in the order of the paths of all files: the name of a
    /// folder ends in a slash.
    fn names_of(&mut self, folder: BorrowedFd<'_>) -> Result<Vec<(String, u8)>, Errno> {
        let mut buffer = vec![MaybeUninit::uninit(); BUFFER];
        let mut names = vec![];
        let mut entries = RawDir::new(folder, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            if matches!(name, "." | "..") {
                continue;
            }
            if self.names == 0 {
                self.is_cut = true;
                break;
            }
            self.names -= 1;
            let kind = match entry.file_type() {
                // Some file systems do not say.
                FileType::Unknown => {
                    let name = c_path(name)?;
                    let found = self.datasets.way()?.open(folder, &name, How::Look);
                    found.map_or(0, |found| stat_of(&found).map_or(0, |stat| stat.filetype))
                }
                kind => filetype(kind),
            };
            match kind {
                3 => names.push((format!("{name}/"), 3)),
                4 => names.push((name.to_owned(), 4)),
                _ => {}
            }
        }
        names.sort_unstable();
        Ok(names)
    }
}
