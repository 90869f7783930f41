//! Contents on disk: one file in slots of equal size, each of which has a piece of a content.
//!
//! ```text
//! slot 0     the records of a state file; contents never use it
//! slot n     a piece of a content, or with its neighbours a saved state (an extent)
//! ```
//!
//! A slot is written in place only if one content alone has it. Copies of the files, and the state that was saved last,
//! share the slots and therefore stay as they are; a slot that is shared is copied before it is written. So the
//! store never writes to a slot of a saved state until a newer state has replaced that one.
//!
//! Freed slots are cleared before they are used again: the disk gets their space back, and a new piece begins with zeros.
//! That happens after a run, without a lock on the files, as a slow disk must not hold up answers to the server; and in
//! small groups when new slots are needed.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, Seek, SeekFrom},
    os::unix::fs::FileExt,
    sync::{Arc, Mutex, MutexGuard},
};

use nix::fcntl::{FallocateFlags, fallocate};

use super::Errno;

/// Bytes of a slot, and of a piece of a content.
pub(crate) const PIECE_BYTES: u32 = 64 << 10;

/// The same as another type.
pub(crate) const PIECE: usize = PIECE_BYTES as usize;

/// Number of freed slots, 16 MiB, from which on a new slot clears as many of them first. So a run does not take more of
/// the disk by freeing slots and using new ones.
const MAX_FREED: usize = 256;

/// Number of slots that are cleared in one step.
const MAX_CLEARED: usize = 4096;

/// A file with contents. It refuses new slots until it has been [opened](Self::open).
#[derive(Debug)]
pub(crate) struct Store {
    file: Arc<File>,
    most: u32,
    slots: Mutex<Slots>,
}

#[derive(Debug, Default)]
struct Slots {
    /// The first slot behind all that are used; 0 until the store is open.
    end: u32,
    /// Slots before `end` that are unused and clear.
    free: BTreeSet<u32>,
    /// Slots that are unused and not clear yet.
    freed: Vec<u32>,
    /// Whether the file system cannot clear a part of a file. Unused slots keep their bytes then.
    keeps_bytes: bool,
}

impl Store {
    /// The store in this file, with at most `most` slots.
    pub(crate) fn new(file: Arc<File>, most: u32) -> Arc<Self> {
        Arc::new(Self { file, most, slots: Mutex::default() })
    }

    /// The largest size of the file, in bytes.
    pub(crate) fn most_bytes(&self) -> u64 {
        offset_of(self.most)
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().expect("no thread panics while it holds this")
    }

    /// Opens the store: the slots in `used` have contents, and all others are cleared.
    ///
    /// # Errors
    /// If the file ends before one of these slots begins, or cannot be truncated.
    pub(crate) fn open(&self, used: &BTreeSet<u32>) -> io::Result<()> {
        let end = used.last().map_or(1, |last| last + 1);
        let len = len_of(&self.file)?;
        if len < offset_of(end - 1) || used.first() == Some(&0) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        // A file without contents stays as it is: a longer one would look like a state that was lost.
        if len > offset_of(end) {
            self.file.set_len(offset_of(end))?;
        }
        let mut slots = self.slots();
        let freed = (1..end).filter(|slot| !used.contains(slot)).collect();
        *slots = Slots { end, freed, ..Slots::default() };
        drop(slots);
        self.tidy();
        Ok(())
    }

    /// Clears all freed slots, and truncates the file behind the last one that is used. This may take as long as the
    /// disk needs.
    pub(crate) fn tidy(&self) {
        self.cut();
        while !self.slots().freed.is_empty() {
            self.clear(MAX_CLEARED);
        }
    }

    /// Clears at most this many of the freed slots. Nothing is locked while the disk works.
    fn clear(&self, most: usize) {
        let mut freed = {
            let freed = &mut self.slots().freed;
            freed.split_off(freed.len().saturating_sub(most))
        };
        freed.sort_unstable();
        let mut are_clear = true;
        for run in freed.chunk_by(|slot, next| slot + 1 == *next) {
            are_clear &= punch(&self.file, offset_of(run[0]), (run.len() * PIECE) as u64);
        }
        let mut slots = self.slots();
        if slots.end == 0 {
            return;
        }
        slots.keeps_bytes |= !are_clear;
        slots.free.extend(freed);
        drop(slots);
        self.cut();
    }

    /// Truncates the file behind the last slot that is used, which is faster than clearing the slots there.
    fn cut(&self) {
        let mut slots = self.slots();
        slots.freed.sort_unstable();
        let end = slots.end;
        while slots.end > 1 {
            let last = slots.end - 1;
            if slots.freed.last() == Some(&last) {
                slots.freed.pop();
            } else if slots.free.last() == Some(&last) {
                slots.free.pop_last();
            } else {
                break;
            }
            slots.end = last;
        }
        if slots.end < end {
            // If this fails, the file is longer than necessary.
            let _ = self.file.set_len(offset_of(slots.end));
        }
    }

    /// A new slot.
    pub(crate) fn slot(self: &Arc<Self>) -> Result<Slot, Errno> {
        let has_many = self.slots().freed.len() >= MAX_FREED;
        if has_many {
            self.clear(MAX_FREED);
        }
        if let Some(slot) = self.next_slot() {
            return Ok(slot);
        }
        self.tidy();
        self.next_slot().ok_or(Errno::Nospc)
    }

    fn next_slot(self: &Arc<Self>) -> Option<Slot> {
        let mut slots = self.slots();
        let (number, is_new) = match slots.free.pop_first() {
            Some(number) => (number, false),
            None if (1..self.most).contains(&slots.end) => {
                slots.end += 1;
                (slots.end - 1, true)
            }
            None => return None,
        };
        let written = if is_new || !slots.keeps_bytes { 0 } else { PIECE_BYTES };
        Some(Slot { store: Some(self.clone()), number, written })
    }

    /// Slots for this many bytes of a saved state, one after another.
    pub(crate) fn extent(self: &Arc<Self>, bytes: u64) -> Result<Extent, Errno> {
        let count = bytes.max(1).div_ceil(PIECE as u64);
        let count = u32::try_from(count).map_err(|_| Errno::Nospc)?;
        let mut slots = self.slots();
        let mut run = 0..0;
        for slot in &slots.free {
            run = if run.end == *slot { run.start..slot + 1 } else { *slot..slot + 1 };
            if run.end - run.start == count {
                break;
            }
        }
        if run.end - run.start < count {
            let end = slots.end.checked_add(count).filter(|end| *end <= self.most);
            run = slots.end..end.filter(|_| slots.end > 0).ok_or(Errno::Nospc)?;
            slots.end = run.end;
        }
        for slot in run.clone() {
            slots.free.remove(&slot);
        }
        Ok(Extent { store: self.clone(), first: run.start, count })
    }

    /// The slots in which a state lies that was saved before, and that were among the used ones.
    pub(crate) fn found(self: &Arc<Self>, slots: std::ops::Range<u32>) -> Extent {
        let count = slots.end.saturating_sub(slots.start);
        Extent { store: self.clone(), first: slots.start, count }
    }

    /// Number of slots that are used.
    #[cfg(test)]
    pub(super) fn used(&self) -> usize {
        let slots = self.slots();
        slots.end as usize - 1 - slots.free.len() - slots.freed.len()
    }

    /// Bytes that the file takes on its disk.
    #[cfg(test)]
    pub(super) fn blocks(&self) -> u64 {
        use std::os::unix::fs::MetadataExt;
        self.file.metadata().expect("known").blocks() * 512
    }

    /// Closes the store: no slot is freed or taken any more.
    pub(crate) fn close(&self) {
        *self.slots() = Slots::default();
    }

    fn free(&self, number: u32) {
        let mut slots = self.slots();
        if slots.end > 0 {
            slots.freed.push(number);
        }
    }
}

/// A number of bytes of a slot.
pub(super) fn short(bytes: usize) -> u32 {
    u32::try_from(bytes).expect("a slot has fewer bytes")
}

/// The offset of a slot in its file.
pub(crate) fn offset_of(slot: u32) -> u64 {
    u64::from(slot) * PIECE as u64
}

/// The slots with bytes of this part of a file. Slot 0 is not among them.
pub(crate) fn slots_of(at: u64, len: u64) -> std::ops::Range<u32> {
    let slot = |offset: u64| u32::try_from(offset).unwrap_or(u32::MAX);
    let first = slot(at / PIECE as u64).max(1);
    first..slot(at.saturating_add(len).div_ceil(PIECE as u64)).max(first)
}

/// The length of a file. It is found by seeking, as `statx` is not among the allowed system calls.
pub(crate) fn len_of(mut file: &File) -> io::Result<u64> {
    file.seek(SeekFrom::End(0))
}

/// Frees the space of a part of a file, which reads as zeros then. Returns false if that is not possible.
pub(crate) fn punch(file: &File, at: u64, len: u64) -> bool {
    let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    fallocate(file, hole, at.cast_signed(), len.cast_signed()).is_ok()
}

/// Reads all bytes of a part of a file.
///
/// # Errors
/// If it has fewer bytes, or cannot be read.
pub(crate) fn read(file: &File, at: u64, to: &mut [u8]) -> Result<(), Errno> {
    file.read_exact_at(to, at).map_err(|_| Errno::Io)
}

fn write(file: &File, at: u64, bytes: &[u8]) -> Result<(), Errno> {
    file.write_all_at(bytes, at).map_err(|error| match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            Errno::Nospc
        }
        _ => Errno::Io,
    })
}

/// A slot, which is freed when it is dropped.
#[derive(Debug)]
pub(crate) struct Slot {
    /// `None` for a slot that was read from a saved state, until [`of`](Self::of) has given it a store.
    store: Option<Arc<Store>>,
    number: u32,
    /// The bytes from here on are zeros.
    written: u32,
}

impl Slot {
    /// The slot of this number in a saved state.
    pub(super) fn saved(number: u32) -> Self {
        Self { store: None, number, written: PIECE_BYTES }
    }

    /// The same slot in a store that was opened with it.
    pub(super) fn of(&self, store: &Arc<Store>) -> Self {
        Self { store: Some(store.clone()), ..Self::saved(self.number) }
    }

    pub(super) fn number(&self) -> u32 {
        self.number
    }

    fn file(&self) -> Result<&File, Errno> {
        self.store.as_ref().map(|store| &*store.file).ok_or(Errno::Io)
    }

    fn at(&self, within: usize) -> u64 {
        offset_of(self.number) + within as u64
    }

    /// Reads bytes, all of which were written.
    pub(super) fn read(&self, within: usize, to: &mut [u8]) -> Result<(), Errno> {
        self.read_from(self.file()?, within, to)
    }

    /// As [`read`](Self::read), from this file.
    pub(super) fn read_from(&self, file: &File, within: usize, to: &mut [u8]) -> Result<(), Errno> {
        read(file, self.at(within), to)
    }

    /// Writes bytes at `within`. Only the first `len` bytes have contents: a gap behind them becomes zeros.
    pub(super) fn write(&mut self, len: usize, within: usize, bytes: &[u8]) -> Result<(), Errno> {
        let dirty = within.min(self.written as usize);
        if dirty > len {
            write(self.file()?, self.at(len), &vec![0; dirty - len])?;
        }
        // A write that fails may have written a part.
        self.written = self.written.max(short(within + bytes.len()));
        write(self.file()?, self.at(within), bytes)
    }

    /// Frees the space behind the first `len` bytes.
    pub(super) fn cut(&mut self, len: usize) {
        let rest = (self.written as usize).saturating_sub(len);
        if rest > 0
            && let Ok(file) = self.file()
            && punch(file, self.at(len), rest as u64)
        {
            self.written = short(len);
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(store) = &self.store {
            store.free(self.number);
        }
    }
}

/// Slots one after another, which are freed when this is dropped.
#[derive(Debug)]
pub(crate) struct Extent {
    store: Arc<Store>,
    first: u32,
    count: u32,
}

impl Extent {
    /// Its offset in the file.
    pub(crate) fn offset(&self) -> u64 {
        offset_of(self.first)
    }
}

impl Drop for Extent {
    fn drop(&mut self) {
        for slot in self.first..self.first + self.count {
            self.store.free(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(most: u32) -> Arc<Store> {
        let store = Store::new(Arc::new(tempfile::tempfile().expect("a file")), most);
        store.open(&BTreeSet::new()).expect("opened");
        store
    }

    #[test]
    fn freed_slots_are_cleared_and_used_again() {
        let store = store(1000);
        let full = vec![7; PIECE];
        let mut slots: Vec<_> = (0..999).map(|_| store.slot().expect("free")).collect();
        for slot in &mut slots {
            slot.write(0, 0, &full).expect("written");
        }
        assert_eq!(store.slot().map(drop), Err(Errno::Nospc));
        assert!(store.blocks() >= 999 * PIECE as u64);
        // Each second one, so that none can be truncated.
        let mut number = 0;
        slots.retain(|_| {
            number += 1;
            number % 2 == 0
        });
        store.tidy();
        assert!(store.blocks() <= 520 * PIECE as u64, "{}", store.blocks());
        let mut again = store.slot().expect("free again");
        assert_eq!(again.number(), 1);
        again.write(0, 10, b"x").expect("written");
        let mut bytes = [1; 11];
        again.read(0, &mut bytes).expect("read");
        assert_eq!(bytes, *b"\0\0\0\0\0\0\0\0\0\0x", "nothing of the old contents");
        drop((slots, again));
        store.tidy();
        assert_eq!(len_of(&store.file).expect("known"), PIECE as u64);
    }

    #[test]
    fn a_store_has_the_slots_that_it_was_opened_with() {
        let store = store(1000);
        let mut slots: Vec<_> = (0..6).map(|_| store.slot().expect("free")).collect();
        for (slot, byte) in slots.iter_mut().zip(0u8..) {
            slot.write(0, 0, &vec![byte; PIECE]).expect("written");
        }
        let next = Store::new(store.file.clone(), 1000);
        assert_eq!(next.slot().map(drop), Err(Errno::Nospc), "not open yet");
        next.open(&[2, 4].into()).expect("opened");
        assert_eq!(len_of(&next.file).expect("known"), 5 * PIECE as u64);
        let kept = Slot::saved(4).of(&next);
        let mut bytes = [0; 3];
        kept.read(0, &mut bytes).expect("read");
        assert_eq!(bytes, [3; 3]);
        let new: Vec<_> = (0..3).map(|_| next.slot().expect("free").number()).collect();
        assert_eq!(new, [1, 3, 5], "the lowest come first, and freed ones after they are cleared");
        assert!(Store::new(store.file.clone(), 9).open(&[0].into()).is_err());
        assert!(Store::new(store.file.clone(), 9).open(&[8].into()).is_err(), "not in the file");
        store.close();
        drop(slots);
        next.tidy();
        kept.read(0, &mut bytes).expect("not freed by the one that is closed");
        assert_eq!(bytes, [3; 3]);
    }

    #[test]
    fn extents_of_states_do_not_wander_off() {
        let store = store(1000);
        let _slots: Vec<_> = (0..10).map(|_| store.slot().expect("free")).collect();
        let mut last = store.extent(200_000).expect("free");
        for _ in 0..50 {
            store.tidy();
            let next = store.extent(200_000).expect("free");
            assert!(next.offset() <= offset_of(15), "{}", next.offset());
            last = next;
        }
        assert_eq!(store.extent(1 << 40).map(drop), Err(Errno::Nospc));
        drop(last);
        assert_eq!(slots_of(4096, 100), 1..1);
        assert_eq!(slots_of(4096, 1 << 17), 1..3);
        assert_eq!(slots_of(3 << 16, 1), 3..4);
    }
}
