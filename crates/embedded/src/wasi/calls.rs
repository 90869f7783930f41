//! The functions of WASI. Names and numbers are those of WASI preview 1 (`wasi_snapshot_preview1.witx`).

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::{
    memory::Memory,
    process::{Descriptor, Process, Target},
};
use crate::{
    files::{Area, Entry, Errno, FileSystem, Stat, Times},
    random,
};

/// Flags and rights with which a path is opened.
const O_CREAT: u32 = 1;
const O_DIRECTORY: u32 = 2;
const O_EXCL: u32 = 4;
const O_TRUNC: u32 = 8;
const RIGHT_READ: u64 = 1 << 1;
const RIGHT_WRITE: u64 = 1 << 6;
const FLAG_APPEND: u32 = 1;
const SYMLINK_FOLLOW: u32 = 1;

/// All rights. Each operation checks itself whether it is permitted.
const ALL_RIGHTS: u64 = (1 << 30) - 1;

/// Most bytes that one call reads. Meanwhile it holds a lock and cannot be stopped.
const MAX_AT_ONCE: u32 = 4 << 20;

/// Most bytes that one call writes. This limit is larger because programs seldom check how much was written.
const MAX_WRITTEN: u32 = 64 << 20;

/// Most events that one call waits for.
const MAX_EVENTS: u32 = 256;

/// Bytes of an entry of a folder before its name.
const HEAD_OF_ENTRY: usize = 24;

/// The generation of the called function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Generation {
    /// `wasi_snapshot_preview1`.
    Preview1,
    /// `wasi_unstable`, which is older.
    Unstable,
}

type Done = Result<(), Errno>;

/// The data that one call uses.
pub(super) struct Call<'a> {
    pub(super) memory: Memory<'a>,
    pub(super) process: &'a mut Process,
    pub(super) files: &'a mut FileSystem,
    pub(super) generation: Generation,
    pub(super) start: Instant,
}

impl Call<'_> {
    pub(super) fn args_sizes_get(&mut self, count: u32, bytes: u32) -> Done {
        let args = self.process.args.clone();
        self.sizes(&args, count, bytes)
    }

    pub(super) fn args_get(&mut self, starts: u32, at: u32) -> Done {
        self.memory.write_texts(&self.process.args, starts, at)
    }

    pub(super) fn environ_sizes_get(&mut self, count: u32, bytes: u32) -> Done {
        let env = self.process.env.clone();
        self.sizes(&env, count, bytes)
    }

    pub(super) fn environ_get(&mut self, starts: u32, at: u32) -> Done {
        self.memory.write_texts(&self.process.env, starts, at)
    }

    fn sizes(&mut self, texts: &[String], count: u32, bytes: u32) -> Done {
        let total: usize = texts.iter().map(|text| text.len() + 1).sum();
        self.memory.write_u32(count, u32::try_from(texts.len()).map_err(|_| Errno::Fault)?)?;
        self.memory.write_u32(bytes, u32::try_from(total).map_err(|_| Errno::Fault)?)
    }

    pub(super) fn clock_res_get(&mut self, clock: u32, at: u32) -> Done {
        if clock > 3 {
            return Err(Errno::Inval);
        }
        self.memory.write_u64(at, 1000)
    }

    pub(super) fn clock_time_get(&mut self, clock: u32, _precision: u64, at: u32) -> Done {
        let time = self.time(clock)?;
        self.memory.write_u64(at, time)
    }

    fn time(&self, clock: u32) -> Result<u64, Errno> {
        let time = match clock {
            0 => SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
            1..=3 => self.start.elapsed(),
            _ => return Err(Errno::Inval),
        };
        Ok(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
    }

    pub(super) fn random_get(&mut self, at: u32, len: u32) -> Done {
        let bytes = self.memory.get_mut(at, len)?;
        random::fill(bytes).map_err(|_| Errno::Nosys)
    }

    pub(super) fn fd_advise(&mut self, fd: u32, _offset: u64, _len: u64, _advice: u32) -> Done {
        self.process.descriptors.get(fd).map(drop)
    }

    pub(super) fn fd_allocate(&mut self, fd: u32, offset: u64, len: u64) -> Done {
        let file = self.writable(fd)?;
        let end = offset.checked_add(len).ok_or(Errno::Fbig)?;
        if end > self.files.stat(file)?.size {
            self.files.resize(file, end)?;
        }
        Ok(())
    }

    pub(super) fn fd_close(&mut self, fd: u32) -> Done {
        let closed = self.process.descriptors.close(fd)?;
        if matches!(closed.target, Target::Node(_)) {
            self.collect();
        }
        Ok(())
    }

    fn collect(&mut self) {
        let open = &self.process.descriptors;
        self.files.collect(|inode| open.has(inode));
    }

    pub(super) fn fd_datasync(&mut self, fd: u32) -> Done {
        self.process.descriptors.get(fd).map(drop)
    }

    pub(super) fn fd_sync(&mut self, fd: u32) -> Done {
        self.process.descriptors.get(fd).map(drop)
    }

    pub(super) fn fd_fdstat_get(&mut self, fd: u32, at: u32) -> Done {
        let descriptor = self.process.descriptors.get(fd)?;
        let filetype = match descriptor.target {
            Target::Node(inode) => self.files.stat(inode)?.filetype,
            Target::Preopened(_) => 3,
            // Neither a terminal nor a file: the guest decides whether it writes at once or in blocks.
            _ => 0,
        };
        let flags = u8::from(descriptor.append);
        let mut stat = [0; 24];
        (stat[0], stat[2]) = (filetype, flags);
        let is_pipe = filetype == 0;
        let rights = if is_pipe { ALL_RIGHTS & !(1 << 2) & !(1 << 5) } else { ALL_RIGHTS };
        stat[8..16].copy_from_slice(&rights.to_le_bytes());
        stat[16..24].copy_from_slice(&ALL_RIGHTS.to_le_bytes());
        self.memory.write(at, &stat)
    }

    pub(super) fn fd_fdstat_set_flags(&mut self, fd: u32, flags: u32) -> Done {
        self.process.descriptors.get_mut(fd)?.append = flags & FLAG_APPEND != 0;
        Ok(())
    }

    pub(super) fn fd_fdstat_set_rights(&mut self, fd: u32, _base: u64, _inheriting: u64) -> Done {
        self.process.descriptors.get(fd).map(drop)
    }

    pub(super) fn fd_filestat_get(&mut self, fd: u32, at: u32) -> Done {
        let stat = match self.process.descriptors.get(fd)?.target {
            Target::Node(_) | Target::Preopened(_) => self.files.stat(self.process.node(fd)?)?,
            _ => Stat { inode: 0, filetype: 0, links: 1, size: 0, modified: 0, changed: 0 },
        };
        self.write_stat(at, stat)
    }

    fn write_stat(&mut self, at: u32, stat: Stat) -> Done {
        let mut bytes = vec![0; 24];
        bytes[8..16].copy_from_slice(&stat.inode.to_le_bytes());
        bytes[16] = stat.filetype;
        match self.generation {
            Generation::Preview1 => bytes.extend(stat.links.to_le_bytes()),
            Generation::Unstable => {
                let links = u32::try_from(stat.links).unwrap_or(u32::MAX);
                bytes[20..24].copy_from_slice(&links.to_le_bytes());
            }
        }
        bytes.extend(stat.size.to_le_bytes());
        for time in [stat.modified, stat.modified, stat.changed] {
            bytes.extend(time.to_le_bytes());
        }
        self.memory.write(at, &bytes)
    }

    pub(super) fn fd_filestat_set_size(&mut self, fd: u32, size: u64) -> Done {
        let file = self.writable(fd)?;
        self.files.resize(file, size)
    }

    pub(super) fn fd_filestat_set_times(
        &mut self,
        fd: u32,
        _: u64,
        modified: u64,
        flags: u32,
    ) -> Done {
        let inode = self.process.node(fd)?;
        self.set_times(inode, modified, flags)
    }

    fn set_times(&mut self, inode: u64, modified: u64, flags: u32) -> Done {
        let modified = match flags & 0b1100 {
            0 => None,
            0b0100 => Some(i64::try_from(modified).map_err(|_| Errno::Inval)?),
            0b1000 => Some(i64::try_from(self.time(0)?).unwrap_or(i64::MAX)),
            _ => return Err(Errno::Inval),
        };
        self.files.set_times(inode, Times { modified })
    }

    fn file(&self, fd: u32) -> Result<u64, Errno> {
        match self.process.descriptors.get(fd)?.target {
            Target::Node(inode) => Ok(inode),
            Target::Preopened(_) => Err(Errno::Isdir),
            _ => Err(Errno::Spipe),
        }
    }

    fn writable(&self, fd: u32) -> Result<u64, Errno> {
        let file = self.file(fd)?;
        if self.process.descriptors.get(fd)?.can_write { Ok(file) } else { Err(Errno::Badf) }
    }

    pub(super) fn fd_read(&mut self, fd: u32, buffers: u32, count: u32, done: u32) -> Done {
        let offset = self.process.descriptors.get(fd)?.offset;
        let read = self.read(fd, buffers, count, offset)?;
        self.process.descriptors.get_mut(fd)?.offset += u64::from(read);
        self.memory.write_u32(done, read)
    }

    pub(super) fn fd_pread(
        &mut self,
        fd: u32,
        buffers: u32,
        count: u32,
        offset: u64,
        done: u32,
    ) -> Done {
        self.file(fd)?;
        let read = self.read(fd, buffers, count, offset)?;
        self.memory.write_u32(done, read)
    }

    fn read(&mut self, fd: u32, buffers: u32, count: u32, offset: u64) -> Result<u32, Errno> {
        let descriptor = self.process.descriptors.get(fd)?;
        if !descriptor.can_read {
            return Err(Errno::Badf);
        }
        let target = descriptor.target.clone();
        let mut total = 0;
        for (at, len) in self.memory.buffers(buffers, count)? {
            let len = len.min(MAX_AT_ONCE - total);
            let to = self.memory.get_mut(at, len)?;
            let read = match target {
                Target::Stdin => self.process.read_input(to),
                Target::Node(inode) => {
                    self.files.content(inode)?.read(offset + u64::from(total), to)
                }
                Target::Preopened(_) => return Err(Errno::Isdir),
                Target::Output(_) | Target::Report => return Err(Errno::Badf),
            };
            total += u32::try_from(read).map_err(|_| Errno::Fault)?;
            if read < len as usize || total == MAX_AT_ONCE {
                break;
            }
        }
        Ok(total)
    }

    pub(super) fn fd_write(&mut self, fd: u32, buffers: u32, count: u32, done: u32) -> Done {
        let descriptor = self.process.descriptors.get(fd)?;
        let offset = match descriptor.target {
            Target::Node(inode) if descriptor.append => self.files.stat(inode)?.size,
            _ => descriptor.offset,
        };
        let written = self.write(fd, buffers, count, offset)?;
        self.process.descriptors.get_mut(fd)?.offset = offset + u64::from(written);
        self.memory.write_u32(done, written)
    }

    pub(super) fn fd_pwrite(
        &mut self,
        fd: u32,
        buffers: u32,
        count: u32,
        offset: u64,
        done: u32,
    ) -> Done {
        self.file(fd)?;
        let written = self.write(fd, buffers, count, offset)?;
        self.memory.write_u32(done, written)
    }

    fn write(&mut self, fd: u32, buffers: u32, count: u32, offset: u64) -> Result<u32, Errno> {
        let descriptor = self.process.descriptors.get(fd)?;
        if !descriptor.can_write {
            return Err(Errno::Badf);
        }
        let target = descriptor.target.clone();
        let mut total = 0u32;
        for (at, len) in self.memory.buffers(buffers, count)? {
            let bytes = self.memory.get(at, len.min(MAX_WRITTEN - total))?;
            let written = match target {
                Target::Output(stream) => {
                    self.process.write_output(stream, bytes);
                    bytes.len()
                }
                Target::Report => {
                    self.process.write_report(bytes);
                    bytes.len()
                }
                Target::Node(inode) => {
                    match self.files.write(inode, offset + u64::from(total), bytes) {
                        // The call reports the bytes that were written. The next call will report the error.
                        Err(_) if total > 0 => break,
                        written => written?,
                    }
                }
                Target::Stdin => return Err(Errno::Badf),
                Target::Preopened(_) => return Err(Errno::Isdir),
            };
            let sum = u32::try_from(written).ok().and_then(|written| total.checked_add(written));
            total = sum.ok_or(Errno::Inval)?;
            if written < len as usize || total == MAX_WRITTEN {
                break;
            }
        }
        Ok(total)
    }

    pub(super) fn fd_seek(&mut self, fd: u32, delta: u64, whence: u32, done: u32) -> Done {
        let file = self.file(fd)?;
        let base = match (self.generation, whence) {
            (Generation::Preview1, 0) | (Generation::Unstable, 2) => 0,
            (Generation::Preview1, 1) | (Generation::Unstable, 0) => {
                self.process.descriptors.get(fd)?.offset
            }
            (Generation::Preview1, 2) | (Generation::Unstable, 1) => self.files.stat(file)?.size,
            _ => return Err(Errno::Inval),
        };
        let at = base.checked_add_signed(delta.cast_signed()).ok_or(Errno::Inval)?;
        if i64::try_from(at).is_err() {
            return Err(Errno::Inval);
        }
        self.process.descriptors.get_mut(fd)?.offset = at;
        self.memory.write_u64(done, at)
    }

    pub(super) fn fd_tell(&mut self, fd: u32, done: u32) -> Done {
        self.file(fd)?;
        let offset = self.process.descriptors.get(fd)?.offset;
        self.memory.write_u64(done, offset)
    }

    pub(super) fn fd_prestat_get(&mut self, fd: u32, at: u32) -> Done {
        let len = u32::try_from(self.folder_name(fd)?.len()).map_err(|_| Errno::Fault)?;
        // The first word, 0, stands for a folder.
        self.memory.write_u64(at, u64::from(len) << 32)
    }

    pub(super) fn fd_prestat_dir_name(&mut self, fd: u32, at: u32, len: u32) -> Done {
        let name = self.folder_name(fd)?.to_owned();
        if name.len() > len as usize {
            return Err(Errno::Nametoolong);
        }
        self.memory.write(at, name.as_bytes())
    }

    fn folder_name(&self, fd: u32) -> Result<&str, Errno> {
        match self.process.descriptors.get(fd)?.target {
            Target::Preopened(number) => {
                Ok(&self.process.folders.get(number).ok_or(Errno::Badf)?.0)
            }
            _ => Err(Errno::Badf),
        }
    }

    pub(super) fn fd_readdir(
        &mut self,
        fd: u32,
        at: u32,
        len: u32,
        cookie: u64,
        done: u32,
    ) -> Done {
        let folder = self.process.node(fd)?;
        // One entry more than could fit.
        let most = len as usize / HEAD_OF_ENTRY + 1;
        let mut bytes = vec![];
        for Entry { place, name, inode, filetype } in
            self.files.entries_after(folder, cookie, most)?
        {
            bytes.extend(place.to_le_bytes());
            bytes.extend(inode.to_le_bytes());
            bytes.extend(u32::try_from(name.len()).unwrap_or(0).to_le_bytes());
            bytes.extend([filetype, 0, 0, 0]);
            bytes.extend(name.as_bytes());
            if bytes.len() >= len as usize {
                break;
            }
        }
        // A truncated entry tells the guest that there are more.
        bytes.truncate(len as usize);
        self.memory.write(at, &bytes)?;
        self.memory.write_u32(done, u32::try_from(bytes.len()).map_err(|_| Errno::Fault)?)
    }

    pub(super) fn fd_renumber(&mut self, from: u32, to: u32) -> Done {
        self.process.descriptors.renumber(from, to)?;
        self.collect();
        Ok(())
    }

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

    /// Returns the time to wait. The events that will have happened by then are already written.
    pub(super) fn poll_oneoff(
        &mut self,
        subscriptions: u32,
        events: u32,
        count: u32,
        done: u32,
    ) -> Result<Duration, Errno> {
        if count == 0 || count > MAX_EVENTS {
            return Err(Errno::Inval);
        }
        // The older generation has one more field, before the clock's number.
        let shift = if self.generation == Generation::Unstable { 8 } else { 0 };
        let size = 48 + shift;
        let mut ready = vec![];
        let mut soonest: Option<(Duration, u64)> = None;
        for number in 0..count {
            let at = subscriptions.checked_add(number * size).ok_or(Errno::Fault)?;
            let user = self.memory.read_u64(at)?;
            let kind = self.memory.get(at.checked_add(8).ok_or(Errno::Fault)?, 1)?[0];
            let field = |offset: u32| at.checked_add(offset).ok_or(Errno::Fault);
            match kind {
                0 => {
                    let clock = self.memory.read_u32(field(16 + shift)?)?;
                    let timeout = self.memory.read_u64(field(24 + shift)?)?;
                    let is_absolute = self.memory.get(field(40 + shift)?, 1)?[0] & 1 == 1;
                    let now = self.time(clock)?;
                    let left = if is_absolute { timeout.saturating_sub(now) } else { timeout };
                    let left = Duration::from_nanos(left);
                    if soonest.is_none_or(|(soonest, _)| left < soonest) {
                        soonest = Some((left, user));
                    }
                }
                1 | 2 => {
                    let fd = self.memory.read_u32(field(16)?)?;
                    let errno = self.process.descriptors.get(fd).err();
                    ready.push((user, errno.map_or(0, |errno| errno as u16), kind));
                }
                _ => return Err(Errno::Inval),
            }
        }
        let wait = match soonest {
            Some((wait, user)) if ready.is_empty() => {
                ready.push((user, 0, 0));
                wait
            }
            _ => Duration::ZERO,
        };
        for (number, (user, errno, kind)) in (0u32..).zip(&ready) {
            let mut event = [0; 32];
            event[..8].copy_from_slice(&user.to_le_bytes());
            event[8..10].copy_from_slice(&errno.to_le_bytes());
            event[10] = *kind;
            if *kind != 0 {
                event[16..24].copy_from_slice(&1u64.to_le_bytes());
            }
            self.memory.write(events.checked_add(number * 32).ok_or(Errno::Fault)?, &event)?;
        }
        self.memory.write_u32(done, u32::try_from(ready.len()).map_err(|_| Errno::Fault)?)?;
        Ok(wait)
    }
}
