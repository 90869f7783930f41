//! The functions of WASI that take paths.

use super::{
    calls::{Call, Done, FLAG_APPEND},
    process::{Descriptor, Target},
};
use crate::files::{Area, Errno};

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
        let (folder, path) = self.at(fd, path, len)?;
        self.files.make_folder(folder, &path).map(drop)
    }

    fn at(&self, fd: u32, path: u32, len: u32) -> Result<(u64, String), Errno> {
        Ok((self.process.node(fd)?, self.memory.text(path, len)?))
    }

    pub(super) fn path_filestat_get(
        &mut self,
        fd: u32,
        flags: u32,
        path: u32,
        len: u32,
        at: u32,
    ) -> Done {
        let (folder, path) = self.at(fd, path, len)?;
        let found = self.files.find(folder, &path, flags & SYMLINK_FOLLOW != 0)?;
        let stat = self.files.stat(found)?;
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
        let (folder, path) = self.at(fd, path, len)?;
        let found = self.files.find(folder, &path, flags & SYMLINK_FOLLOW != 0)?;
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
        let (folder, old) = self.at(old_fd, old, old_len)?;
        let file = self.files.find(folder, &old, flags & SYMLINK_FOLLOW != 0)?;
        let (folder, new) = self.at(new_fd, new, new_len)?;
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
        let (folder, path) = self.at(fd, path, len)?;
        let follow = lookup & SYMLINK_FOLLOW != 0;
        let wants = |flag| how & flag != 0;
        let wants_write = rights & RIGHT_WRITE != 0;
        if wants(O_CREAT) && wants(O_DIRECTORY) {
            return Err(Errno::Inval);
        }
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
            append: flags & FLAG_APPEND != 0,
            can_read: rights & RIGHT_READ != 0 || stat.filetype == 3,
            can_write: wants_write,
            ..Descriptor::new(Target::Node(inode))
        };
        let opened = self.process.descriptors.open(descriptor)?;
        self.memory.write_u32(done, opened)
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
        let (folder, path) = self.at(fd, path, len)?;
        let target = self.files.target(folder, &path)?.as_bytes();
        let target = &target[..target.len().min(room as usize)];
        self.memory.write(at, target)?;
        self.memory.write_u32(done, u32::try_from(target.len()).map_err(|_| Errno::Fault)?)
    }

    pub(super) fn path_remove_directory(&mut self, fd: u32, path: u32, len: u32) -> Done {
        let (folder, path) = self.at(fd, path, len)?;
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
        let (old_folder, old) = self.at(old_fd, old, old_len)?;
        let (new_folder, new) = self.at(new_fd, new, new_len)?;
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
        let (folder, path) = self.at(fd, path, len)?;
        self.files.make_link(&target, folder, &path)
    }

    pub(super) fn path_unlink_file(&mut self, fd: u32, path: u32, len: u32) -> Done {
        let (folder, path) = self.at(fd, path, len)?;
        self.files.remove_file(folder, &path)?;
        self.collect();
        Ok(())
    }
}
