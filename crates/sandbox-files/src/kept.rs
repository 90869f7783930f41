//! Long outputs, stored while there is room for them.
//!
//! Each is a file without a name in the data area: it counts in that area's quota, is not visible there, and the kernel
//! frees it with its descriptor. A short output has no file. Bytes that cannot be written are not stored, and the run
//! does not wait for them. Without a data area, the files are in memory.

use std::{
    collections::VecDeque,
    fs::File,
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::FileExt,
    },
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
};

use nix::{
    errno::Errno,
    fcntl::{OFlag, openat},
    sys::{
        memfd::{MFdFlags, memfd_create},
        stat::Mode,
        statvfs::fstatvfs,
    },
    unistd::{UnlinkatFlags, unlinkat},
};
use protocol::{
    frame::MAX_BODY,
    limits::{MAX_KEPT, MAX_KEPT_RUNS},
    message::{Failure, FailureCode, Output, OutputDone, Stream},
};

use crate::files::read_up_to;

/// The part of the data area that all stored outputs may take together is one in this number: the area is for the
/// user's files.
const STORE_SHARE: u64 = 8;

/// All stored outputs. The threads that run programs write them, and answers to requests read them.
#[derive(Debug)]
pub struct OutputStore {
    /// The data area; `None` stores outputs in memory.
    data: Option<OwnedFd>,
    /// The maximum size of all outputs together, in bytes.
    room: u64,
    runs: Mutex<VecDeque<StoredRun>>,
}

/// The stored outputs of a run.
#[derive(Debug)]
struct StoredRun {
    call: u32,
    outputs: Vec<Arc<StoredOutput>>,
}

/// The stored bytes of one output, from the first byte on.
#[derive(Debug)]
struct StoredOutput {
    stream: Stream,
    file: File,
    /// The number of bytes in the file. Only one thread writes, so the file needs no lock.
    len: AtomicU64,
    /// Bytes that the program wrote.
    total: AtomicU64,
}

impl StoredOutput {
    fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }
}

impl OutputStore {
    /// Stores outputs in this data area.
    pub fn new(data: OwnedFd) -> Self {
        let room =
            fstatvfs(&data).map_or(0, |stat| stat.blocks() * stat.fragment_size() / STORE_SHARE);
        Self { data: Some(data), room, runs: Mutex::default() }
    }

    /// Stores outputs in memory, at most `room` bytes.
    pub fn in_memory(room: u64) -> Self {
        Self { data: None, room, runs: Mutex::default() }
    }

    /// Answers [`Output`]: reads a piece of a stored output.
    ///
    /// # Errors
    ///
    /// [`FailureCode::NotFound`] if it is not stored, [`FailureCode::System`] if it cannot be read.
    pub fn read(&self, wanted: &Output) -> Result<(OutputDone, Vec<u8>), Failure> {
        // The lock is released before bytes are copied, so that others do not wait for it.
        let stored = self.find(wanted.run, wanted.stream);
        let stored = stored.ok_or_else(|| Failure::new(FailureCode::NotFound, "not kept"))?;
        let kept = stored.len();
        let done = OutputDone { total: stored.total.load(Ordering::Acquire), kept };
        let left = usize::try_from(kept.saturating_sub(wanted.offset)).unwrap_or(usize::MAX);
        let mut bytes = vec![0; wanted.len.min(MAX_BODY).min(left)];
        let read = read_up_to(&stored.file, &mut bytes, wanted.offset)
            .map_err(|error| Failure::new(FailureCode::System, error.to_string()))?;
        bytes.truncate(read);
        Ok((done, bytes))
    }

    /// Removes all stored outputs. Returns false if there were none.
    pub fn clear(&self) -> bool {
        let mut runs = self.lock();
        let had_some = !runs.is_empty();
        runs.clear();
        had_some
    }

    fn find(&self, call: u32, stream: Stream) -> Option<Arc<StoredOutput>> {
        let runs = self.lock();
        let kept = runs.iter().find(|kept| kept.call == call)?;
        kept.outputs.iter().find(|stored| stored.stream == stream).cloned()
    }

    /// Creates a file for an output of this run, which is the newest run.
    fn begin(&self, call: u32, stream: Stream) -> nix::Result<Arc<StoredOutput>> {
        let file = match &self.data {
            Some(data) => nameless(data, &format!(".output-{call}-{}", stream.as_str()))?,
            None => memfd_create(c"output", MFdFlags::MFD_CLOEXEC)?.into(),
        };
        let (len, total) = (AtomicU64::new(0), AtomicU64::new(0));
        let stored = Arc::new(StoredOutput { stream, file, len, total });
        let mut runs = self.lock();
        match runs.back_mut().filter(|kept| kept.call == call) {
            Some(kept) => kept.outputs.push(stored.clone()),
            None => runs.push_back(StoredRun { call, outputs: vec![stored.clone()] }),
        }
        if runs.len() > MAX_KEPT_RUNS {
            runs.pop_front();
        }
        Ok(stored)
    }

    /// Removes the oldest runs, but never the newest, until `wanted` more bytes may be stored. Returns how many of them
    /// may.
    fn make_room(&self, wanted: u64) -> u64 {
        let mut runs = self.lock();
        loop {
            let used: u64 = runs.iter().flat_map(|kept| &kept.outputs).map(|out| out.len()).sum();
            let left = self.room.saturating_sub(used);
            if left >= wanted || runs.len() <= 1 {
                return left.min(wanted);
            }
            runs.pop_front();
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<StoredRun>> {
        self.runs.lock().expect("no thread panics while it holds this")
    }
}

/// Stores one output of a run, from the first bytes that are appended.
#[derive(Debug)]
pub(crate) struct OutputSpool {
    store: Arc<OutputStore>,
    call: u32,
    stream: Stream,
    stored: Option<Arc<StoredOutput>>,
    /// Whether the store has no room for more bytes.
    full: bool,
}

impl OutputSpool {
    pub(crate) fn new(store: Arc<OutputStore>, call: u32, stream: Stream) -> Self {
        Self { store, call, stream, stored: None, full: false }
    }

    /// Stores the next bytes, or as many of them as can be stored.
    pub(crate) fn append(&mut self, bytes: &[u8]) {
        if self.stored.is_none() && !self.full {
            self.stored = self.store.begin(self.call, self.stream).ok();
        }
        let Some(stored) = &self.stored else {
            self.full = true;
            return;
        };
        stored.total.fetch_add(bytes.len() as u64, Ordering::AcqRel);
        if self.full {
            return;
        }
        let len = stored.len();
        let wanted = (bytes.len() as u64).min(MAX_KEPT - len);
        let allowed = self.store.make_room(wanted);
        let bytes_allowed = &bytes[..usize::try_from(allowed).unwrap_or(bytes.len())];
        let written = write_what_fits(&stored.file, bytes_allowed, len);
        stored.len.store(len + written as u64, Ordering::Release);
        self.full = written < bytes.len();
    }
}

/// Creates a file that no program can open, name or inherit.
fn nameless(folder: impl AsFd, temporary: &str) -> nix::Result<File> {
    match openat(&folder, ".", FLAGS | OFlag::O_TMPFILE, MODE) {
        Err(Errno::EOPNOTSUPP) => soon_nameless(folder, temporary),
        other => Ok(other?.into()),
    }
}

/// Creates such a file if the kernel has no files without names (gVisor): it has a name for a moment.
fn soon_nameless(folder: impl AsFd, temporary: &str) -> nix::Result<File> {
    let file = openat(&folder, temporary, FLAGS | OFlag::O_CREAT | OFlag::O_NOFOLLOW, MODE)?;
    unlinkat(folder, temporary, UnlinkatFlags::NoRemoveDir)?;
    Ok(file.into())
}

const FLAGS: OFlag = OFlag::O_RDWR.union(OFlag::O_EXCL).union(OFlag::O_CLOEXEC);
const MODE: Mode = Mode::S_IRUSR.union(Mode::S_IWUSR);

/// Writes bytes until all are written or no more can be. Returns the number of written bytes.
fn write_what_fits(file: &File, bytes: &[u8], offset: u64) -> usize {
    let mut written = 0;
    while written < bytes.len() {
        match file.write_at(&bytes[written..], offset + written as u64) {
            Ok(n) if n > 0 => written += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            _ => break,
        }
    }
    written
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn store(room: u64) -> (tempfile::TempDir, Arc<OutputStore>) {
        let dir = tempfile::tempdir().expect("a folder");
        let data = crate::beneath::root(dir.path()).expect("opened");
        let mut store = OutputStore::new(data);
        assert!(store.room > 0);
        store.room = room;
        (dir, Arc::new(store))
    }

    fn keep(store: &Arc<OutputStore>, call: u32, stream: Stream, bytes: &[u8]) {
        let mut spool = OutputSpool::new(store.clone(), call, stream);
        bytes.chunks(7).for_each(|piece| spool.append(piece));
    }

    fn read(store: &OutputStore, run: u32, stream: Stream) -> Option<(u64, u64, Vec<u8>)> {
        let all = Output { run, stream, offset: 0, len: usize::MAX };
        let (done, bytes) = store.read(&all).ok()?;
        Some((done.total, done.kept, bytes))
    }

    #[test]
    fn what_is_kept_is_read_in_any_pieces() {
        let (dir, store) = store(1000);
        keep(&store, 1, Stream::Stderr, b"0123456789");
        let piece = |offset, len| {
            let wanted = Output { run: 1, stream: Stream::Stderr, offset, len };
            store.read(&wanted).expect("kept").1
        };
        assert_eq!(piece(0, 4), b"0123");
        assert_eq!(piece(8, 4), b"89");
        assert_eq!((piece(10, 4), piece(u64::MAX, 4), piece(3, 0)), (vec![], vec![], vec![]));
        assert_eq!(read(&store, 1, Stream::Stdout), None, "the other was short");
        assert_eq!(read(&store, 2, Stream::Stderr), None, "another run");
        assert_eq!(fs::read_dir(dir.path()).expect("read").count(), 0, "nothing can be seen");
    }

    #[test]
    fn a_new_run_takes_the_room_of_the_oldest_and_never_its_own() {
        let (_dir, store) = store(100);
        keep(&store, 1, Stream::Stdout, &[1; 40]);
        keep(&store, 2, Stream::Stdout, &[2; 40]);
        keep(&store, 3, Stream::Stdout, &[3; 50]);
        assert_eq!(read(&store, 1, Stream::Stdout), None);
        assert_eq!(read(&store, 2, Stream::Stdout), Some((40, 40, vec![2; 40])));
        keep(&store, 3, Stream::Stderr, &[4; 70]);
        assert_eq!(read(&store, 2, Stream::Stdout), None);
        assert_eq!(read(&store, 3, Stream::Stdout), Some((50, 50, vec![3; 50])));
        assert_eq!(read(&store, 3, Stream::Stderr), Some((70, 50, vec![4; 50])));
    }

    #[test]
    fn a_run_beyond_the_most_ends_the_oldest() {
        let (_dir, store) = store(1000);
        for call in 0..=4 {
            keep(&store, call, Stream::Stdout, &[7; 10]);
            keep(&store, call, Stream::Stderr, &[8; 10]);
        }
        let there = |call| read(&store, call, Stream::Stdout).is_some();
        assert_eq!([0, 1, 2, 3, 4].map(there), [false, true, true, true, true]);
    }

    #[test]
    fn memory_will_do_where_there_is_no_folder() {
        let store = Arc::new(OutputStore::in_memory(50));
        keep(&store, 1, Stream::Stdout, &[7; 60]);
        assert_eq!(read(&store, 1, Stream::Stdout), Some((60, 50, vec![7; 50])));
    }

    #[test]
    fn a_file_that_has_a_name_for_a_moment_has_none_after_it() {
        let (dir, store) = store(1000);
        let data = store.data.as_ref().expect("a folder");
        let file = soon_nameless(data, "temporary").expect("made");
        assert_eq!(fs::read_dir(dir.path()).expect("read").count(), 0);
        assert_eq!(write_what_fits(&file, b"kept", 0), 4);
        let mut bytes = [0; 4];
        assert_eq!((read_up_to(&file, &mut bytes, 0).expect("read"), &bytes), (4, b"kept"));
        // A file that a program has created is not written to.
        fs::write(dir.path().join("taken"), "theirs").expect("written");
        assert_eq!(soon_nameless(data, "taken").map(drop), Err(Errno::EEXIST));
    }

    #[test]
    fn where_no_file_can_be_made_nothing_is_kept() {
        let (dir, store) = store(1000);
        drop(dir);
        keep(&store, 1, Stream::Stdout, &[7; 10]);
        assert_eq!(read(&store, 1, Stream::Stdout), None);
    }
}
