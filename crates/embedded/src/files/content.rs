//! The contents of files: bytes in pieces that copies share until one of them is written to.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_bytes::{ByteBuf, Bytes};

/// Bytes of a piece.
const PIECE: usize = 64 << 10;

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
        pieces: Vec<Arc<Vec<u8>>>,
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

/// Saves its own bytes. Fixed contents are never saved.
impl Serialize for Content {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Own { len, pieces } => {
                let pieces: Vec<_> = pieces.iter().map(|piece| Bytes::new(piece)).collect();
                (len, pieces).serialize(serializer)
            }
            Self::Fixed { .. } => (0u64, Vec::<&Bytes>::new()).serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (len, pieces) = <(u64, Vec<ByteBuf>)>::deserialize(deserializer)?;
        let pieces = pieces.into_iter().map(|piece| Arc::new(piece.into_vec())).collect();
        Ok(Self::Own { len, pieces })
    }
}

impl Default for Content {
    fn default() -> Self {
        Self::Own { len: 0, pieces: vec![] }
    }
}

impl Content {
    /// Length in bytes.
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Own { len, .. } => *len,
            Self::Fixed { len, .. } => *len as u64,
        }
    }

    /// Copies bytes from `offset` on, and returns their number.
    pub(crate) fn read(&self, offset: u64, to: &mut [u8]) -> usize {
        let left = usize::try_from(self.len().saturating_sub(offset)).unwrap_or(usize::MAX);
        let count = left.min(to.len());
        let to = &mut to[..count];
        let Ok(mut at) = usize::try_from(offset) else { return 0 };
        match self {
            Self::Fixed { all, start, .. } => {
                let from = (**all).as_ref().get(start + at..start + at + count);
                to.copy_from_slice(from.unwrap_or(&[]));
            }
            Self::Own { pieces, .. } => {
                let mut done = 0;
                while done < count {
                    let within = at % PIECE;
                    let part = (PIECE - within).min(count - done);
                    let there = pieces.get(at / PIECE).and_then(|piece| piece.get(within..));
                    let there = there.unwrap_or(&[]);
                    let copied = there.len().min(part);
                    to[done..done + copied].copy_from_slice(&there[..copied]);
                    to[done + copied..done + part].fill(0);
                    (done, at) = (done + part, at + part);
                }
            }
        }
        count
    }

    /// Writes bytes at `offset`. A gap before them reads as zeros.
    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) {
        let Self::Own { len, pieces } = self else { return };
        let Ok(mut at) = usize::try_from(offset) else { return };
        let mut rest = bytes;
        while !rest.is_empty() {
            let within = at % PIECE;
            let (part, others) = rest.split_at(rest.len().min(PIECE - within));
            if pieces.len() <= at / PIECE {
                pieces.resize_with(at / PIECE + 1, Arc::default);
            }
            let piece = Arc::make_mut(&mut pieces[at / PIECE]);
            if piece.len() < within + part.len() {
                piece.resize(within + part.len(), 0);
            }
            piece[within..within + part.len()].copy_from_slice(part);
            (rest, at) = (others, at + part.len());
        }
        *len = (*len).max(at as u64);
    }

    /// Truncates the contents, or adds zeros.
    pub(crate) fn resize(&mut self, new: u64) {
        let Self::Own { len, pieces } = self else { return };
        if new < *len {
            let Ok(new) = usize::try_from(new) else { return };
            pieces.truncate(new.div_ceil(PIECE));
            if let Some(last) = pieces.get_mut(new / PIECE).filter(|last| last.len() > new % PIECE)
            {
                let last = Arc::make_mut(last);
                last.truncate(new % PIECE);
                // Bytes that the quota no longer counts must not take memory either.
                last.shrink_to_fit();
            }
            pieces.shrink_to_fit();
        }
        *len = new;
    }

    /// Bytes of private memory.
    #[cfg(test)]
    pub(crate) fn held(&self) -> usize {
        match self {
            Self::Own { pieces, .. } => pieces.iter().map(|piece| piece.capacity()).sum(),
            Self::Fixed { .. } => 0,
        }
    }

    /// All bytes.
    #[cfg(test)]
    pub(crate) fn to_vec(&self) -> Vec<u8> {
        let mut all = vec![0; usize::try_from(self.len()).unwrap_or(0)];
        self.read(0, &mut all);
        all
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_holds_what_a_plain_vector_would(
            steps in proptest::collection::vec((any::<bool>(), 0..200_000u64, 0..150_000usize), 1..8)
        ) {
            let (mut content, mut model) = (Content::default(), vec![]);
            for (number, (is_write, at, count)) in steps.into_iter().enumerate() {
                let before = content.clone();
                let was: Vec<u8> = model.clone();
                let start = usize::try_from(at).expect("small");
                if is_write {
                    let bytes = vec![u8::try_from(number + 1).expect("few"); count];
                    content.write(at, &bytes);
                    if count > 0 {
                        model.resize(model.len().max(start + count), 0);
                        model[start..start + count].copy_from_slice(&bytes);
                    }
                } else {
                    content.resize(at);
                    model.resize(start, 0);
                }
                prop_assert_eq!(content.to_vec(), model.clone());
                prop_assert_eq!(before.to_vec(), was);
                let mut part = vec![0; 70_000];
                let read = content.read(at / 2, &mut part);
                let expected = model.get(start / 2..).unwrap_or(&[]);
                prop_assert_eq!(&part[..read], &expected[..expected.len().min(part.len())]);
            }
        }
    }
}
