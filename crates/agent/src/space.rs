//! The limits of a data area whose file system has none: how many bytes and files it may have.
//!
//! ```text
//! uploads   admitted one piece at a time: nothing else is written between runs
//! runs      a thread looks at the free space of the file system every 1 to 100 ms, which costs nothing, and adds up all
//!           files when that has changed enough to matter; it ends the run a little before the limit
//! the end   of a run: if it was faster than the thread, files that it wrote are removed until the rest is within the
//!           limit
//! ```
//!
//! All files count that take room: with and without a name, sparse ones by their length. Files that cannot be found,
//! because a process hides them, count by what the file system has lost since all were found. Room cannot be reserved
//! ahead of writing ([`Confine::apply`](crate::confine::Confine::apply)), so that it is filled no faster than memory is.

use std::{
    collections::{HashMap, VecDeque},
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use nix::sys::statvfs::fstatvfs;
use protocol::message::Put;
use sandbox_files::{
    beneath,
    tree::{self, Snapshot},
    usage::{Tally, Usage},
};

use crate::{
    confine::{Breach, INTERVAL},
    processes::open_files,
};

/// Bytes a second that no program exceeds: copying memory is hardly faster.
const BYTES_PER_SECOND: f64 = 4e9;

/// The shortest time between two looks.
const SHORTEST: Duration = Duration::from_millis(1);

/// A run is ended when less than this part of the limit is left, or this many bytes.
const MARGIN: (u64, u64) = (16, 64 << 20);

/// Rounds in which files beyond the limit are removed.
const ROUNDS: u32 = 16;

/// Bytes that may be hidden: as much as others may write to the same disk meanwhile.
const HIDEABLE: u64 = 64 << 20;

/// Bytes that a file takes at most beyond its content.
const BLOCK: u64 = 4096;

/// A data area with its limits.
#[derive(Debug)]
pub(crate) struct Space {
    root: OwnedFd,
    path: PathBuf,
    max: Usage,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// At least as much as is used, except while a run goes on.
    used: Usage,
    /// Bytes of uploads whose files have no name yet.
    uploads: HashMap<u32, u64>,
    /// Files that were found last.
    found: Usage,
    /// Bytes of all files and free bytes of the file system together, when nothing new was hidden.
    seen: u64,
    /// The time since which processes may hide something.
    unseen: Option<Instant>,
    /// Bytes that the file system has lost since then during runs, beyond the files that were found.
    lost: u64,
    /// Whether a run goes on. Between runs only others write to the file system.
    is_run: bool,
}

impl Space {
    /// Opens a data area that may have this many bytes and files.
    pub(crate) fn open(path: &Path, max: Usage) -> io::Result<Self> {
        let space = Self {
            root: beneath::root(path)?,
            path: path.to_owned(),
            max,
            state: Mutex::default(),
        };
        space.measure();
        Ok(space)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of all files.
    pub(crate) fn bytes(&self) -> u64 {
        self.state().used.bytes
    }

    /// Admits a piece of an upload, if there is room for it.
    pub(crate) fn admits(&self, put: &Put, len: usize) -> bool {
        let is_first = put.offset == 0;
        let more = Usage {
            bytes: len as u64 + if is_first { BLOCK } else { 0 },
            files: if is_first { 1 + put.path.matches('/').count() as u64 } else { 0 },
        };
        let reserves = || {
            let State { used, uploads, .. } = &mut *self.state();
            let next = Usage { bytes: used.bytes + more.bytes, files: used.files + more.files };
            let fits = is_within(next, self.max);
            if fits {
                *used = next;
                *uploads.entry(put.upload).or_default() += len as u64;
            }
            fits
        };
        // Less may be used than was admitted: uploads may have been abandoned, and files replaced.
        reserves() || {
            self.measure();
            reserves()
        }
    }

    /// Notes that an upload has ended: its file has a name or is removed.
    pub(crate) fn ended(&self, upload: u32) {
        self.state().uploads.remove(&upload);
    }

    /// Notes that all uploads have ended.
    pub(crate) fn all_ended(&self) {
        self.state().uploads.clear();
    }

    /// Adds up all files, and what is hidden.
    fn measure(&self) -> Usage {
        let State { used, uploads, found, seen, unseen, lost, is_run } = &mut *self.state();
        // Before the files, so that what is written meanwhile does not look as if it were hidden.
        let free = self.free().bytes;
        // If a program moves folders all the time, nothing new is known.
        let is_all = Tally::of(&self.root).is_ok_and(|mut tally| {
            let is_all = open_files::add_to(&mut tally, &self.path);
            *found = tally.usage();
            is_all
        });
        let bytes = found.bytes + uploads.values().sum::<u64>();
        if is_all {
            (*seen, *unseen, *lost) = (free + bytes, None, 0);
        } else if *is_run {
            // Files that were found have not grown by as much as the file system has lost.
            *lost = seen.saturating_sub(free + bytes);
        } else {
            *seen = free + bytes + *lost;
        }
        let is_long = unseen.is_some_and(|since| since.elapsed() >= INTERVAL);
        if !is_all {
            unseen.get_or_insert_with(Instant::now);
        }
        let hidden = if is_long && *lost > HIDEABLE { *lost } else { 0 };
        *used = Usage { bytes: bytes + hidden, ..*found };
        *used
    }

    /// Free bytes and inodes of the file system.
    fn free(&self) -> Usage {
        fstatvfs(&self.root).map_or_else(
            |_| Usage::default(),
            |stat| Usage {
                bytes: stat.blocks_free() * stat.fragment_size(),
                files: stat.files_free(),
            },
        )
    }

    /// Ends what [`Watched::start`] began. Removes files that the run has written if there are more than the limit allows;
    /// `before` are those that were there before. Returns whether it has removed any.
    pub(crate) fn settle(&self, before: &Snapshot) -> bool {
        let has_removed = self.remove_excess(before);
        self.state().is_run = false;
        has_removed
    }

    fn remove_excess(&self, before: &Snapshot) -> bool {
        let mut used = self.measure();
        if is_within(used, self.max) {
            return false;
        }
        let mut written = tree::changed(before, tree::snapshot(&self.root));
        written.sort_by_key(|entry| entry.stamp.size);
        let mut written = VecDeque::from(written);
        // Some files have other names or are open, so that removing them frees nothing: twice as many in each round.
        for round in 0..ROUNDS {
            let [mut bytes, mut files] =
                [(used.bytes, self.max.bytes), (used.files, self.max.files)]
                    .map(|(used, max)| used.saturating_sub(max).saturating_mul(1 << round));
            while bytes > 0 || files > 0 {
                // The largest files give the most bytes back; the smallest are the least loss for a name.
                let next = if bytes > 0 { written.pop_back() } else { written.pop_front() };
                let Some(entry) = next else { break };
                let _ = tree::remove_file(&self.root, &entry.path);
                bytes = bytes.saturating_sub(entry.stamp.size);
                files = files.saturating_sub(1);
            }
            used = self.measure();
            if is_within(used, self.max) {
                return true;
            }
            if written.is_empty() {
                break;
            }
        }
        // The rest are folders, links and files with names that are not listed.
        let _ = tree::keep_only(&self.root, before);
        if !is_within(self.measure(), self.max) {
            let _ = tree::empty(&self.root);
            self.measure();
        }
        true
    }

    /// The message for a run that used too much.
    pub(crate) fn message(&self, used: Usage) -> String {
        let (path, Usage { bytes, files }) = (self.path.display(), self.max);
        if used.files > files {
            return too_many_files(&self.path, files);
        }
        let mb = bytes / 1_000_000;
        format!(
            "\nsandbox: ended, as there is no space left: files in {path} may take {mb} MB; remove some\n"
        )
    }
}

/// The message for a run that made too many files.
pub(crate) fn too_many_files(area: &Path, max: u64) -> String {
    let area = area.display();
    format!("\nsandbox: ended, as {area} has more than {max} files and folders; remove some\n")
}

fn is_within(used: Usage, max: Usage) -> bool {
    used.bytes <= max.bytes && used.files <= max.files
}

/// Used room, and room that the file system has left.
#[derive(Debug, Clone, Copy)]
struct Measured {
    used: Usage,
    free: Usage,
}

/// Watches a data area during a run.
#[derive(Debug)]
pub(crate) struct Watched<S> {
    space: S,
    /// Bytes that were used before the run.
    before: u64,
    /// The run ends if it uses more. An area that was almost full before may keep its files: a run must be able to
    /// remove some.
    most: Usage,
    /// Used and free room when all files were added up last.
    last: Measured,
    at: Instant,
    /// How long that took.
    took: Duration,
}

impl<S: std::ops::Deref<Target = Space>> Watched<S> {
    /// Begins with what the area has now.
    pub(crate) fn start(space: S) -> Self {
        let at = Instant::now();
        let free = space.free();
        let used = space.measure();
        space.state().is_run = true;
        let max = space.max;
        let margin = (max.bytes / MARGIN.0).min(MARGIN.1);
        let most =
            Usage { bytes: (max.bytes - margin).max(used.bytes), files: max.files.max(used.files) };
        let last = Measured { used, free };
        Self { before: used.bytes, most, last, at: Instant::now(), took: at.elapsed(), space }
    }

    /// Looks at the area. Returns a breach of its limits, and when to look again.
    pub(crate) fn look(&mut self) -> (Option<Breach>, Duration) {
        let (now, last) = (self.space.free(), self.last);
        let gone = Usage {
            bytes: last.free.bytes.saturating_sub(now.bytes),
            files: last.free.files.saturating_sub(now.files),
        };
        let left = Usage {
            bytes: self.most.bytes.saturating_sub(last.used.bytes),
            files: self.most.files.saturating_sub(last.used.files),
        };
        let has_lost = |part: u64| gone.bytes > left.bytes / part || gone.files > left.files / part;
        // Adding up is limited to half of the time of a processor when it matters, and to a tenth when it does not.
        let pause = match () {
            () if has_lost(1) => self.took,
            () if has_lost(2) => self.took * 2,
            () => INTERVAL.max(self.took * 10),
        };
        let mut breach = None;
        if self.at.elapsed() >= pause {
            let begun = Instant::now();
            let used = self.space.measure();
            self.last = Measured { used, free: now };
            (self.at, self.took) = (Instant::now(), begun.elapsed());
            if !is_within(used, self.most) {
                // Beyond the margin there is no time to end in good order.
                let limit = Usage { bytes: self.space.max.bytes.max(self.before), ..used };
                breach = Some(Breach {
                    message: self.space.message(used),
                    is_final: !is_within(used, limit),
                });
            }
        }
        let left = self.most.bytes.saturating_sub(self.last.used.bytes).saturating_sub(gone.bytes);
        #[expect(clippy::cast_precision_loss, reason = "a time need not be exact")]
        let next = Duration::from_secs_f64(left as f64 / BYTES_PER_SECOND);
        (breach, next.clamp(SHORTEST, INTERVAL))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const MAX: Usage = Usage { bytes: 1_000_000, files: 10 };

    fn area() -> (tempfile::TempDir, Space) {
        let dir = tempfile::tempdir().expect("a folder");
        let space = Space::open(dir.path(), MAX).expect("opened");
        (dir, space)
    }

    fn put(offset: u64) -> Put {
        Put { upload: 1, path: "a".into(), offset, last: false, overwrite: false }
    }

    /// The breach that a look finds now, whenever the last one was.
    fn breach<S: std::ops::Deref<Target = Space>>(watched: &mut Watched<S>) -> Option<Breach> {
        loop {
            let at = watched.at;
            let (breach, next) = watched.look();
            assert!((SHORTEST..=INTERVAL).contains(&next));
            if watched.at != at {
                return breach;
            }
        }
    }

    #[test]
    fn an_upload_is_admitted_up_to_the_limit_and_no_further() {
        let (dir, space) = area();
        assert!(space.admits(&put(0), 900_000));
        fs::write(dir.path().join("a"), vec![1; 900_000]).expect("written");
        space.ended(1);
        assert!(!space.admits(&put(900_000), 100_001));
        assert!(space.admits(&put(900_000), 50_000));
        space.ended(1);
        fs::remove_file(dir.path().join("a")).expect("removed");
        assert!(space.admits(&put(0), 900_000), "what was removed is free again");
    }

    #[test]
    fn a_run_is_ended_before_the_limit_and_at_once_beyond_it() {
        let (dir, space) = area();
        let mut watched = Watched::start(&space);
        fs::write(dir.path().join("a"), vec![1; 900_000]).expect("written");
        assert_eq!(breach(&mut watched), None);
        fs::write(dir.path().join("a"), vec![1; 985_000]).expect("written");
        let told = breach(&mut watched).expect("too much");
        assert!(!told.is_final && told.message.contains("no space left"), "{told:?}");
        fs::write(dir.path().join("a"), vec![1; 1_100_000]).expect("written");
        assert!(breach(&mut watched).expect("too much").is_final);
    }

    #[test]
    fn a_full_area_may_shrink_and_not_grow() {
        let (dir, space) = area();
        fs::write(dir.path().join("a"), vec![1; 990_000]).expect("written");
        let mut watched = Watched::start(&space);
        assert_eq!(breach(&mut watched), None);
        fs::write(dir.path().join("b"), "more").expect("written");
        assert!(breach(&mut watched).is_some());
        fs::remove_file(dir.path().join("a")).expect("removed");
        assert_eq!(breach(&mut watched), None);
    }

    #[test]
    fn what_a_run_wrote_beyond_the_limit_is_removed_and_nothing_that_was_there_before() {
        let (dir, space) = area();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("before"), vec![1; 300_000]).expect("written");
        let before = tree::snapshot(&space.root);
        assert!(!space.settle(&before));
        fs::write(at("small"), "x").expect("written");
        fs::write(at("large"), vec![1; 900_000]).expect("written");
        assert!(space.settle(&before));
        assert!(at("before").exists() && at("small").exists() && !at("large").exists());
    }

    #[test]
    fn too_many_files_are_a_breach() {
        let (dir, space) = area();
        let mut watched = Watched::start(&space);
        for n in 0..11 {
            fs::write(dir.path().join(n.to_string()), "").expect("written");
        }
        let told = breach(&mut watched).expect("too many");
        assert!(told.message.contains("more than 10 files and folders"), "{told:?}");
    }
}
