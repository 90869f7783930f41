//! The contents of files: bytes in pieces that copies share until one of them is written to. A piece is in memory, or
//! in a slot of a [`Store`] on disk.

use std::{fmt, fs::File, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_bytes::{ByteBuf, Bytes};

use super::{
    Errno,
    store::{PIECE, PIECE_BYTES, Slot, Store, short},
};

/// Bytes that can be shared, such as a mapped file of the host.
pub(crate) type Shared = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// The contents of a file. A copy costs one pointer for each piece.
#[derive(Clone)]
pub(crate) enum Content {
    /// Contents that can be written.
    Own {
        /// Length in bytes.
        len: u64,
        /// Each as long as needed: the bytes behind its end are zeros.
        pieces: Vec<Piece>,
        /// The place of new pieces; `None` for memory.
        store: Option<Arc<Store>>,
    },
    /// A part of shared bytes, which is never written.
    Fixed {
        /// The shared bytes.
        all: Shared,
        /// Offset of the part.
        start: usize,
        /// Length in bytes.
        len: usize,
    },
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Content").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// A piece of a content.
#[derive(Debug, Clone, Default)]
pub(crate) enum Piece {
    /// Zeros.
    #[default]
    Hole,
    /// Bytes in memory.
    Memory(Arc<Vec<u8>>),
    /// The first `len` bytes of a slot.
    Disk {
        /// The slot.
        slot: Arc<Slot>,
        /// Number of bytes.
        len: u32,
    },
}

/// A saved piece, and the form in which one is read.
#[derive(Serialize, Deserialize)]
enum SavedPiece<T> {
    Hole,
    Memory(T),
    Disk { slot: u32, len: u32 },
}

impl Serialize for Piece {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Hole => SavedPiece::Hole,
            Self::Memory(bytes) => SavedPiece::Memory(Bytes::new(bytes)),
            Self::Disk { slot, len } => SavedPiece::Disk { slot: slot.number(), len: *len },
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Piece {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match SavedPiece::<ByteBuf>::deserialize(deserializer)? {
            SavedPiece::Hole => Self::Hole,
            SavedPiece::Memory(bytes) => Self::Memory(Arc::new(bytes.into_vec())),
            SavedPiece::Disk { slot, len } => {
                Self::Disk { slot: Arc::new(Slot::saved(slot)), len: len.min(PIECE_BYTES) }
            }
        })
    }
}

impl Piece {
    /// Copies bytes from `within` on. The bytes behind the piece's end are zeros.
    fn read(&self, within: usize, to: &mut [u8]) -> Result<(), Errno> {
        let there = self.len().saturating_sub(within).min(to.len());
        let (bytes, zeros) = to.split_at_mut(there);
        zeros.fill(0);
        match self {
            Self::Memory(all) if there > 0 => bytes.copy_from_slice(&all[within..within + there]),
            Self::Disk { slot, .. } if there > 0 => slot.read(within, bytes)?,
            _ => {}
        }
        Ok(())
    }

    fn len(&self) -> usize {
        match self {
            Self::Hole => 0,
            Self::Memory(bytes) => bytes.len(),
            Self::Disk { len, .. } => *len as usize,
        }
    }

    /// Writes bytes at `within`. If that fails, the piece reads as before, except for the bytes that were to be
    /// written.
    fn write(
        &mut self,
        store: Option<&Arc<Store>>,
        within: usize,
        bytes: &[u8],
    ) -> Result<(), Errno> {
        let end = within + bytes.len();
        match (&mut *self, store) {
            (Self::Hole, None) => {
                *self = Self::Memory(Arc::default());
                return self.write(store, within, bytes);
            }
            (Self::Memory(piece), _) => {
                let piece = Arc::make_mut(piece);
                if piece.len() < end {
                    piece.resize(end, 0);
                }
                piece[within..end].copy_from_slice(bytes);
            }
            (Self::Hole, Some(store)) => {
                let mut slot = store.slot()?;
                slot.write(0, within, bytes)?;
                *self = Self::Disk { slot: Arc::new(slot), len: short(end) };
            }
            (Self::Disk { slot, len }, store) => {
                let now = *len as usize;
                if let Some(own) = Arc::get_mut(slot) {
                    own.write(now, within, bytes)?;
                } else {
                    let mut new = store.ok_or(Errno::Io)?.slot()?;
                    if within == 0 && end >= now {
                        new.write(0, 0, bytes)?;
                    } else {
                        let mut all = vec![0; now.max(end)];
                        slot.read(0, &mut all[..now])?;
                        all[within..end].copy_from_slice(bytes);
                        new.write(0, 0, &all)?;
                    }
                    *slot = Arc::new(new);
                }
                *len = short(now.max(end));
            }
        }
        Ok(())
    }

    /// Truncates the piece. Bytes that the quota no longer counts must take neither memory nor disk.
    fn cut(&mut self, store: Option<&Arc<Store>>, most: usize) {
        if self.len() <= most {
            return;
        }
        match self {
            Self::Hole => {}
            Self::Memory(bytes) => {
                let bytes = Arc::make_mut(bytes);
                bytes.truncate(most);
                bytes.shrink_to_fit();
            }
            Self::Disk { slot, len } => {
                *len = short(most);
                if let Some(own) = Arc::get_mut(slot) {
                    own.cut(most);
                } else if let Some(new) = store.and_then(|store| copy(slot, most, store).ok()) {
                    // Without a copy, the rest takes disk until the file is written to.
                    *slot = Arc::new(new);
                }
            }
        }
    }
}

/// A new slot with the first `len` bytes of another one.
fn copy(slot: &Slot, len: usize, store: &Arc<Store>) -> Result<Slot, Errno> {
    let (mut new, mut bytes) = (store.slot()?, vec![0; len]);
    slot.read(0, &mut bytes)?;
    new.write(0, 0, &bytes)?;
    Ok(new)
}

/// Saves its own bytes. Fixed contents are never saved.
impl Serialize for Content {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Own { len, pieces, .. } => (len, pieces).serialize(serializer),
            Self::Fixed { .. } => (0u64, Vec::<Piece>::new()).serialize(serializer),
        }
    }
}

/// A loaded content must be [attached](Content::attach) before it is used.
impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (len, pieces) = <(u64, Vec<Piece>)>::deserialize(deserializer)?;
        Ok(Self::Own { len, pieces, store: None })
    }
}

impl Default for Content {
    fn default() -> Self {
        Self::new(None)
    }
}

impl Content {
    /// An empty content, in this store or in memory.
    pub(crate) fn new(store: Option<&Arc<Store>>) -> Self {
        Self::Own { len: 0, pieces: vec![], store: store.cloned() }
    }

    /// Length in bytes.
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Own { len, .. } => *len,
            Self::Fixed { len, .. } => *len as u64,
        }
    }

    /// Copies bytes from `offset` on, and returns their number.
    ///
    /// # Errors
    /// If the disk cannot be read.
    pub(crate) fn read(&self, offset: u64, to: &mut [u8]) -> Result<usize, Errno> {
        let left = usize::try_from(self.len().saturating_sub(offset)).unwrap_or(usize::MAX);
        let count = left.min(to.len());
        let to = &mut to[..count];
        let Ok(mut at) = usize::try_from(offset) else { return Ok(0) };
        match self {
            Self::Fixed { all, start, .. } => {
                let from = (**all).as_ref().get(start + at..start + at + count);
                to.copy_from_slice(from.unwrap_or(&[]));
            }
            Self::Own { pieces, .. } => {
                let mut rest = to;
                while !rest.is_empty() {
                    let within = at % PIECE;
                    let (part, others) = rest.split_at_mut((PIECE - within).min(rest.len()));
                    pieces.get(at / PIECE).unwrap_or(&Piece::Hole).read(within, part)?;
                    (at, rest) = (at + part.len(), others);
                }
            }
        }
        Ok(count)
    }

    /// Writes bytes at `offset`, and returns their number. A gap before them reads as zeros. If the disk fails after a
    /// part, that part is written.
    ///
    /// # Errors
    /// If the disk is full or fails, and nothing was written.
    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<usize, Errno> {
        let Self::Own { len, pieces, store } = self else { return Err(Errno::Rofs) };
        let mut at = usize::try_from(offset).map_err(|_| Errno::Fbig)?;
        let mut rest = bytes;
        while !rest.is_empty() {
            let within = at % PIECE;
            let (part, others) = rest.split_at(rest.len().min(PIECE - within));
            if pieces.len() <= at / PIECE {
                pieces.resize_with(at / PIECE + 1, Piece::default);
            }
            match pieces[at / PIECE].write(store.as_ref(), within, part) {
                Ok(()) => {}
                Err(errno) if rest.len() == bytes.len() => return Err(errno),
                Err(_) => break,
            }
            (rest, at) = (others, at + part.len());
        }
        let written = bytes.len() - rest.len();
        if written > 0 {
            *len = (*len).max(at as u64);
        }
        Ok(written)
    }

    /// Truncates the contents, or adds zeros.
    pub(crate) fn resize(&mut self, new: u64) {
        let Self::Own { len, pieces, store } = self else { return };
        if new < *len {
            let Ok(new) = usize::try_from(new) else { return };
            pieces.truncate(new.div_ceil(PIECE));
            if let Some(last) = pieces.get_mut(new / PIECE) {
                last.cut(store.as_ref(), new % PIECE);
            }
            pieces.shrink_to_fit();
        }
        *len = new;
    }

    /// The slots of its pieces.
    pub(crate) fn slots(&self) -> impl Iterator<Item = u32> {
        let pieces = match self {
            Self::Own { pieces, .. } => &pieces[..],
            Self::Fixed { .. } => &[],
        };
        pieces.iter().filter_map(|piece| match piece {
            Piece::Disk { slot, .. } => Some(slot.number()),
            _ => None,
        })
    }

    /// Attaches a loaded content to `store`, which was opened with its slots, or reads it from `file` into memory.
    ///
    /// # Errors
    /// If the disk cannot be read or is full.
    pub(crate) fn attach(&mut self, file: &File, store: Option<&Arc<Store>>) -> Result<(), Errno> {
        let Self::Own { pieces, store: place, .. } = self else { return Ok(()) };
        *place = store.cloned();
        for piece in pieces {
            match (&*piece, store) {
                (Piece::Disk { slot, len }, Some(store)) => {
                    *piece = Piece::Disk { slot: Arc::new(slot.of(store)), len: *len };
                }
                (Piece::Disk { slot, len }, None) => {
                    let mut bytes = vec![0; *len as usize];
                    slot.read_from(file, 0, &mut bytes)?;
                    *piece = Piece::Memory(Arc::new(bytes));
                }
                (Piece::Memory(bytes), Some(_)) => {
                    let mut new = Piece::Hole;
                    new.write(store, 0, bytes)?;
                    *piece = new;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Bytes of private memory.
    #[cfg(test)]
    pub(crate) fn held(&self) -> usize {
        let Self::Own { pieces, .. } = self else { return 0 };
        let held = pieces.iter().map(|piece| match piece {
            Piece::Memory(bytes) => bytes.capacity(),
            _ => 0,
        });
        held.sum()
    }

    /// All bytes.
    #[cfg(test)]
    pub(crate) fn to_vec(&self) -> Vec<u8> {
        let mut all = vec![0; usize::try_from(self.len()).unwrap_or(0)];
        self.read(0, &mut all).expect("readable");
        all
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A store that is open.
    fn store() -> Arc<Store> {
        let store = Store::new(Arc::new(tempfile::tempfile().expect("a file")), 1000);
        store.open(&[].into()).expect("opened");
        store
    }

    proptest! {
        #[test]
        fn it_holds_what_a_plain_vector_would(
            on_disk: bool,
            steps in proptest::collection::vec(
                (any::<bool>(), any::<bool>(), 0..200_000u64, 0..150_000usize), 1..12
            )
        ) {
            let store = on_disk.then(store);
            let (mut content, mut model) = (Content::new(store.as_ref()), vec![]);
            let mut shared = vec![];
            for (number, (is_write, stays, at, count)) in steps.into_iter().enumerate() {
                shared.push((content.clone(), model.clone()));
                let start = usize::try_from(at).expect("small");
                if is_write {
                    let bytes = vec![u8::try_from(number + 1).expect("few"); count];
                    prop_assert_eq!(content.write(at, &bytes), Ok(count));
                    if count > 0 {
                        model.resize(model.len().max(start + count), 0);
                        model[start..start + count].copy_from_slice(&bytes);
                    }
                } else {
                    content.resize(at);
                    model.resize(start, 0);
                }
                prop_assert_eq!(content.to_vec(), model.clone());
                for (before, was) in &shared {
                    prop_assert_eq!(before.to_vec(), &was[..]);
                }
                let mut part = vec![0; 70_000];
                let read = content.read(at / 2, &mut part).expect("readable");
                let expected = model.get(start / 2..).unwrap_or(&[]);
                prop_assert_eq!(&part[..read], &expected[..expected.len().min(part.len())]);
                // Copies that stay make the next write copy, and others let it write in place.
                if !stays {
                    shared.clear();
                }
            }
            drop((content, shared));
            if let Some(store) = store {
                store.tidy();
                prop_assert_eq!(store.used(), 0, "every slot is free again");
            }
        }
    }

    #[test]
    fn a_content_that_is_cut_frees_its_space_on_disk() {
        let store = store();
        let mut contents: Vec<_> = (0..50).map(|_| Content::new(Some(&store))).collect();
        for content in &mut contents {
            content.write(0, &vec![1; PIECE]).expect("written");
        }
        let before = contents.clone();
        for (number, content) in contents.iter_mut().enumerate() {
            if number == 25 {
                // From here on nobody else has them.
                store.tidy();
            }
            content.resize(1);
        }
        assert!(before.iter().all(|content| content.to_vec() == vec![1; PIECE]));
        drop(before);
        for content in &mut contents[..10] {
            content.resize(0);
            content.resize(10);
            assert_eq!(content.to_vec(), [0; 10]);
        }
        store.tidy();
        assert!(store.blocks() < 50 * 8192, "{}", store.blocks());
        assert!(contents[10..].iter().all(|content| content.to_vec() == [1]));
    }

    #[test]
    fn a_full_store_refuses_and_changes_nothing() {
        let store = Store::new(Arc::new(tempfile::tempfile().expect("a file")), 4);
        store.open(&[].into()).expect("opened");
        let mut content = Content::new(Some(&store));
        assert_eq!(content.write(0, &vec![1; 4 * PIECE]), Ok(3 * PIECE), "what fits");
        assert_eq!(content.write(3 << 16, b"x"), Err(Errno::Nospc));
        let copy = content.clone();
        assert_eq!(content.write(5, b"x"), Err(Errno::Nospc), "it would have to be copied");
        assert_eq!(content.to_vec(), vec![1; 3 * PIECE]);
        drop(copy);
        assert_eq!(content.write(5, b"x"), Ok(1), "in place");
    }

    #[test]
    fn a_disk_that_fails_is_an_error_and_never_zeros() {
        // Each write to it fails as on a full disk.
        let full = std::fs::File::options().write(true).open("/dev/full").expect("Linux");
        let store_of = |file| {
            let store = Store::new(Arc::new(file), 100);
            store.open(&[].into()).expect("opened");
            store
        };
        let full = store_of(full);
        let mut content = Content::new(Some(&full));
        assert_eq!(content.write(70_000, &vec![1; 100_000]), Err(Errno::Nospc));
        assert_eq!((content.len(), full.used()), (0, 0));
        // A file that another process truncates.
        let file = tempfile::NamedTempFile::new().expect("a file");
        let store = store_of(file.reopen().expect("opened"));
        let mut content = Content::new(Some(&store));
        content.write(0, &vec![1; 100_000]).expect("written");
        file.as_file().set_len(100_000).expect("truncated");
        let mut bytes = [7; 100];
        assert_eq!(content.read(0, &mut bytes), Ok(100));
        assert_eq!(content.read(99_900, &mut bytes), Err(Errno::Io));
    }
}
