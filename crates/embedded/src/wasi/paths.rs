//! The functions of WASI that take paths.

use super::{
    calls::{Call, Done, FLAG_APPEND},
    process::{Descriptor, Target},
};
use crate::files::{Area, Base, DatasetPath, Errno, Located, ROOT, Stat};

/// The path of the file over which programs ask the server to call tools, from the root.
const TOOLS: &str = "dev/tools";

/// Flags and rights with which a path is opened.
const O_CREAT: u32 = 1;
const O_DIRECTORY: u32 = 2;
const O_EXCL: u32 = 4;
const O_TRUNC: u32 = 8;
const RIGHT_READ: u64 = 1 << 1;
const RIGHT_WRITE: u64 = 1 << 6;
const SYMLINK_FOLLOW: u32 = 1;

impl Call<'_> {
    pub(super) fn path_create_directory(&mut self, fd: u32, path: u32, len: u32) -> Done {
        let (folder, path) = self.own(fd, path, len, false)?;
        self.files.make_folder(folder, &path).map(drop)
    }

    /// The place of a path. A link at its end is followed only if `follow` is set.
    fn at(&self, fd: u32, path: u32, len: u32, follow: bool) -> Result<Located, Errno> {
        let path = self.memory.text(path, len)?;
        self.files.locate(self.process.base(fd)?, &path, follow)
    }

    /// Whether a path is that of the file for questions to the server. It is no file of the tree, and is not listed.
    fn is_tools(&self, fd: u32, path: u32, len: u32) -> Result<bool, Errno> {
        let is_root = matches!(self.process.base(fd), Ok(Base::Node(ROOT)));
        Ok(is_root && self.memory.text(path, len)?.trim_start_matches('/') == TOOLS)
    }

    /// The place of a path that is to be changed, which is not in a dataset.
    fn own(&self, fd: u32, path: u32, len: u32, follow: bool) -> Result<(u64, String), Errno> {
        match self.at(fd, path, len, follow)? {
            Located::Tree(folder, path) => Ok((folder, path)),
            Located::Dataset(_) => Err(Errno::Rofs),
        }
    }

    pub(super) fn path_filestat_get(
        &mut self,
        fd: u32,
        flags: u32,
        path: u32,
        len: u32,
        at: u32,
    ) -> Done {
        let follow = flags & SYMLINK_FOLLOW != 0;
        if self.is_tools(fd, path, len)? && self.process.asks().is_some() {
            return self.write_stat(at, Stat { links: 1, ..Stat::default() });
        }
        let stat = match self.at(fd, path, len, follow)? {
            Located::Tree(folder, path) => {
                self.files.stat(self.files.find(folder, &path, follow)?)?
            }
            Located::Dataset(path) => self.files.datasets().stat(&path, follow)?,
        };
        self.write_stat(at, stat)
    }

    #[expect(clippy::too_many_arguments, reason = "they are WASI's")]
    pub(super) fn path_filestat_set_times(
        &mut self,
        fd: u32,
        flags: u32,
        path: u32,
        len: u32,
        _accessed: u64,
        modified: u64,
        which: u32,
    ) -> Done {
        let follow = flags & SYMLINK_FOLLOW != 0;
        let (folder, path) = self.own(fd, path, len, follow)?;
        let found = self.files.find(folder, &path, follow)?;
        self.set_times(found, modified, which)
    }

    #[expect(clippy::too_many_arguments, reason = "they are WASI's")]
    pub(super) fn path_link(
        &mut self,
        old_fd: u32,
        flags: u32,
        old: u32,
        old_len: u32,
        new_fd: u32,
        new: u32,
        new_len: u32,
    ) -> Done {
        let follow = flags & SYMLINK_FOLLOW != 0;
        let (folder, new) = self.own(new_fd, new, new_len, false)?;
        let Located::Tree(from, old) = self.at(old_fd, old, old_len, follow)? else {
            return Err(Errno::Xdev);
        };
        let file = self.files.find(from, &old, follow)?;
        self.files.make_name(file, folder, &new)
    }

    #[expect(clippy::too_many_arguments, reason = "they are WASI's")]
    pub(super) fn path_open(
        &mut self,
        fd: u32,
        lookup: u32,
        path: u32,
        len: u32,
        how: u32,
        rights: u64,
        _inheriting: u64,
        flags: u32,
        done: u32,
    ) -> Done {
        let follow = lookup & SYMLINK_FOLLOW != 0;
        let wants = |flag| how & flag != 0;
        let wants_write = rights & RIGHT_WRITE != 0;
        if wants(O_CREAT) && wants(O_DIRECTORY) {
            return Err(Errno::Inval);
        }
        let descriptor = Descriptor {
            append: flags & FLAG_APPEND != 0,
            can_read: rights & RIGHT_READ != 0,
            can_write: wants_write,
            ..Descriptor::new(Target::Stdin)
        };
        if self.is_tools(fd, path, len)? {
            let target = self.process.open_tools()?;
            let opened = self.process.descriptors.open(Descriptor { target, ..descriptor })?;
            return self.memory.write_u32(done, opened);
        }
        let (folder, path) = match self.at(fd, path, len, follow && !wants(O_EXCL))? {
            Located::Tree(folder, path) => (folder, path),
            Located::Dataset(path) => {
                let target = self.open_in_dataset(&path, follow, how, wants_write)?;
                let can_read = descriptor.can_read
                    || matches!(&target, Target::Dataset(open) if open.filetype() == 3);
                let opened =
                    self.process.descriptors.open(Descriptor { target, can_read, ..descriptor })?;
                return self.memory.write_u32(done, opened);
            }
        };
        let (inode, is_new) = if wants(O_CREAT) {
            let follow = follow && !wants(O_EXCL);
            match self.files.find_or_create(folder, &path, follow) {
                Ok((_, false)) if wants(O_EXCL) => return Err(Errno::Exist),
                found => found?,
            }
        } else {
            (self.files.find(folder, &path, follow)?, false)
        };
        let stat = self.files.stat(inode)?;
        match stat.filetype {
            3 if wants_write || wants(O_TRUNC) || wants(O_CREAT) => return Err(Errno::Isdir),
            4 if wants(O_DIRECTORY) => return Err(Errno::Notdir),
            7 => return Err(Errno::Loop),
            _ => {}
        }
        if self.files.area(inode)? == Area::ReadOnly && (wants_write || wants(O_TRUNC)) {
            return Err(Errno::Rofs);
        }
        if wants(O_TRUNC) && !is_new {
            self.files.resize(inode, 0)?;
        }
        let descriptor = Descriptor {
            target: Target::Node(inode),
            can_read: descriptor.can_read || stat.filetype == 3,
            ..descriptor
        };
        let opened = self.process.descriptors.open(descriptor)?;
        self.memory.write_u32(done, opened)
    }

    /// Opens a file or a folder of a dataset, for reading only.
    fn open_in_dataset(
        &self,
        path: &DatasetPath,
        follow: bool,
        how: u32,
        wants_write: bool,
    ) -> Result<Target, Errno> {
        let wants = |flag| how & flag != 0;
        let datasets = self.files.datasets();
        if wants_write || wants(O_CREAT | O_TRUNC) {
            match datasets.stat(path, follow) {
                Ok(_) if wants(O_CREAT) && wants(O_EXCL) => return Err(Errno::Exist),
                Ok(stat) if stat.filetype == 3 => return Err(Errno::Isdir),
                Ok(_) if wants_write || wants(O_TRUNC) => return Err(Errno::Rofs),
                Err(Errno::Noent) if wants(O_CREAT) => return Err(Errno::Rofs),
                found => drop(found?),
            }
        }
        let open = datasets.open_at(path, follow)?;
        if wants(O_DIRECTORY) && open.filetype() != 3 {
            datasets.close(&open);
            return Err(Errno::Notdir);
        }
        Ok(Target::Dataset(open))
    }

    pub(super) fn path_readlink(
        &mut self,
        fd: u32,
        path: u32,
        len: u32,
        at: u32,
        room: u32,
        done: u32,
    ) -> Done {
        let target = match self.at(fd, path, len, false)? {
            Located::Tree(folder, path) => self.files.target(folder, &path)?.as_bytes().to_vec(),
            Located::Dataset(path) => self.files.datasets().target(&path)?,
        };
        let target = &target[..target.len().min(room as usize)];
        self.memory.write(at, target)?;
        self.memory.write_u32(done, u32::try_from(target.len()).map_err(|_| Errno::Fault)?)
    }

    pub(super) fn path_remove_directory(&mut self, fd: u32, path: u32, len: u32) -> Done {
        let (folder, path) = self.own(fd, path, len, false)?;
        self.files.remove_folder(folder, &path)?;
        self.collect();
        Ok(())
    }

    pub(super) fn path_rename(
        &mut self,
        old_fd: u32,
        old: u32,
        old_len: u32,
        new_fd: u32,
        new: u32,
        new_len: u32,
    ) -> Done {
        let old = self.at(old_fd, old, old_len, false)?;
        let new = self.at(new_fd, new, new_len, false)?;
        let ((old_folder, old), (new_folder, new)) = match (old, new) {
            (Located::Tree(from, old), Located::Tree(to, new)) => ((from, old), (to, new)),
            (Located::Dataset(_), Located::Dataset(_)) => return Err(Errno::Rofs),
            _ => return Err(Errno::Xdev),
        };
        self.files.rename((old_folder, &old), (new_folder, &new))?;
        self.collect();
        Ok(())
    }

    pub(super) fn path_symlink(
        &mut self,
        target: u32,
        target_len: u32,
        fd: u32,
        path: u32,
        len: u32,
    ) -> Done {
        let target = self.memory.text(target, target_len)?;
        let (folder, path) = self.own(fd, path, len, false)?;
        self.files.make_link(&target, folder, &path)
    }

    pub(super) fn path_unlink_file(&mut self, fd: u32, path: u32, len: u32) -> Done {
        let (folder, path) = self.own(fd, path, len, false)?;
        self.files.remove_file(folder, &path)?;
        self.collect();
        Ok(())
    }
}
