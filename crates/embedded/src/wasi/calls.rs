//! The functions of WASI. Names and numbers are those of WASI preview 1 (`wasi_snapshot_preview1.witx`).

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::{
    memory::Memory,
    process::{Process, Target},
};
use crate::{
    files::{Base, Entry, Errno, FileSystem, Stat, Times},
    random,
};

/// Flag of a descriptor: each write goes to the end of the file.
pub(super) const FLAG_APPEND: u32 = 1;

/// All rights. Each operation checks itself whether it is permitted.
const ALL_RIGHTS: u64 = (1 << 30) - 1;

/// Maximum number of bytes that one call reads. Meanwhile it holds a lock and cannot be stopped.
const MAX_AT_ONCE: u32 = 4 << 20;

/// Maximum number of bytes that one call writes. This limit is larger because programs seldom check how much was
/// written.
const MAX_WRITTEN: u32 = 64 << 20;

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

pub(super) type Done = Result<(), Errno>;

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

    pub(super) fn time(&self, clock: u32) -> Result<u64, Errno> {
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
        match self.process.descriptors.close(fd)?.target {
            Target::Node(_) => self.collect(),
            Target::Dataset(open) => self.files.datasets().close(&open),
            _ => {}
        }
        Ok(())
    }

    pub(super) fn collect(&mut self) {
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
        let filetype = match &descriptor.target {
            Target::Node(inode) => self.files.stat(*inode)?.filetype,
            Target::Dataset(open) => open.filetype(),
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
        let stat = match self.process.base(fd) {
            Ok(Base::Node(inode)) => self.files.stat(inode)?,
            Ok(Base::Dataset(open)) => self.files.datasets().stat_open(open)?,
            Err(Errno::Notdir) => Stat { links: 1, ..Stat::default() },
            Err(errno) => return Err(errno),
        };
        self.write_stat(at, stat)
    }

    pub(super) fn write_stat(&mut self, at: u32, stat: Stat) -> Done {
        let mut bytes = vec![0; 24];
        bytes[..8].copy_from_slice(&stat.device.to_le_bytes());
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

    pub(super) fn set_times(&mut self, inode: u64, modified: u64, flags: u32) -> Done {
        let modified = match flags & 0b1100 {
            0 => None,
            0b0100 => Some(i64::try_from(modified).map_err(|_| Errno::Inval)?),
            0b1000 => Some(i64::try_from(self.time(0)?).unwrap_or(i64::MAX)),
            _ => return Err(Errno::Inval),
        };
        self.files.set_times(inode, Times { modified })
    }

    /// The file of a descriptor that has an offset.
    fn file(&self, fd: u32) -> Result<Base<'_>, Errno> {
        match self.process.descriptors.get(fd)?.target {
            Target::Node(_) | Target::Dataset(_) => self.process.base(fd),
            Target::Preopened(_) => Err(Errno::Isdir),
            _ => Err(Errno::Spipe),
        }
    }

    fn writable(&self, fd: u32) -> Result<u64, Errno> {
        match self.file(fd)? {
            Base::Node(file) if self.process.descriptors.get(fd)?.can_write => Ok(file),
            _ => Err(Errno::Badf),
        }
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
        self.each_buffer((buffers, count), MAX_AT_ONCE, |it, at, len, before| {
            let to = it.memory.get_mut(at, len)?;
            Ok(Some(match &target {
                Target::Stdin => it.process.read_input(to),
                Target::Node(inode) => {
                    match it.files.content(*inode)?.read(offset.saturating_add(before), to) {
                        // The call reports the bytes that were read. The next call will report the error.
                        Err(_) if before > 0 => return Ok(None),
                        read => read?,
                    }
                }
                Target::Dataset(open) => {
                    match it.files.datasets().read(open, offset.saturating_add(before), to) {
                        // The call reports the bytes that were read. The next call will report the error.
                        Err(_) if before > 0 => return Ok(None),
                        read => read?,
                    }
                }
                Target::Tools => it.process.read_answer(to),
                Target::Preopened(_) => return Err(Errno::Isdir),
                Target::Output(_) | Target::Report => return Err(Errno::Badf),
            }))
        })
    }

    /// Has `act` fill or empty the buffers of a list, given the place and length of each, and the number of bytes
    /// before it. Stops at a buffer that is not used up, or that `act` does not want, and after `most` bytes. Returns
    /// the number of bytes.
    fn each_buffer(
        &mut self,
        (buffers, count): (u32, u32),
        most: u32,
        mut act: impl FnMut(&mut Self, u32, u32, u64) -> Result<Option<usize>, Errno>,
    ) -> Result<u32, Errno> {
        let mut total = 0;
        for (at, len) in self.memory.buffers(buffers, count)? {
            let len = len.min(most - total);
            let Some(used) = act(self, at, len, total.into())? else { break };
            total += u32::try_from(used).map_err(|_| Errno::Fault)?;
            if used < len as usize || total == most {
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
        self.each_buffer((buffers, count), MAX_WRITTEN, |it, at, len, before| {
            let bytes = it.memory.get(at, len)?;
            match target {
                Target::Output(stream) => it.process.write_output(stream, bytes),
                Target::Report => it.process.write_report(bytes),
                Target::Tools => return it.process.write_question(bytes).map(Some),
                Target::Node(inode) => {
                    return match it.files.write(inode, offset + before, bytes) {
                        // The call reports the bytes that were written. The next call will report the error.
                        Err(_) if before > 0 => Ok(None),
                        written => written.map(Some),
                    };
                }
                Target::Stdin => return Err(Errno::Badf),
                Target::Dataset(_) => return Err(Errno::Rofs),
                Target::Preopened(_) => return Err(Errno::Isdir),
            }
            Ok(Some(bytes.len()))
        })
    }

    pub(super) fn fd_seek(&mut self, fd: u32, delta: u64, whence: u32, done: u32) -> Done {
        self.file(fd)?;
        let base = match (self.generation, whence) {
            (Generation::Preview1, 0) | (Generation::Unstable, 2) => 0,
            (Generation::Preview1, 1) | (Generation::Unstable, 0) => {
                self.process.descriptors.get(fd)?.offset
            }
            (Generation::Preview1, 2) | (Generation::Unstable, 1) => match self.file(fd)? {
                Base::Node(file) => self.files.stat(file)?.size,
                Base::Dataset(open) => self.files.datasets().stat_open(open)?.size,
            },
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
        let room = len as usize;
        let mut bytes = vec![];
        // Returns whether there is no room for another one.
        let mut add = |Entry { place, name, inode, filetype }: Entry<'_>| {
            bytes.extend(place.to_le_bytes());
            bytes.extend(inode.to_le_bytes());
            bytes.extend(u32::try_from(name.len()).unwrap_or(0).to_le_bytes());
            bytes.extend([filetype, 0, 0, 0]);
            bytes.extend(name.as_bytes());
            bytes.len() >= room
        };
        match self.process.base(fd)? {
            Base::Node(folder) => {
                // One entry more than could fit.
                let most = room / HEAD_OF_ENTRY + 1;
                let entries = self.files.entries_after(folder, cookie, most)?;
                entries.into_iter().any(add);
            }
            Base::Dataset(open) => {
                self.files.datasets().entries_after(open, cookie, room, &mut add)?;
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
}
