//! Bytes that are almost frames: frames that were cut, joined and changed.

use proptest::{
    collection::vec,
    prelude::*,
    sample::{Index, select},
};
use protocol::frame::PREFIX_LEN;

/// A change to bytes.
#[derive(Debug, Clone)]
pub enum Change {
    /// Replaces a byte.
    Set(Index, u8),
    /// Replaces a number of the prefix: the length, the call or the head's length.
    SetWord(usize, u32),
    /// Cuts everything after this.
    Cut(Index),
    /// Removes the bytes between two places.
    Remove(Index, Index),
    /// Inserts bytes.
    Insert(Index, Vec<u8>),
    /// Continues from the first place on with another file, from the second place on.
    Splice(Index, Vec<u8>, Index),
    /// Appends another file.
    Append(Vec<u8>),
}

impl Change {
    /// Makes the change. A change that does not fit has no effect.
    pub fn apply(self, bytes: &mut Vec<u8>) {
        let len = bytes.len() + 1;
        match self {
            Self::Set(at, byte) if len > 1 => bytes[at.index(len - 1)] = byte,
            Self::SetWord(at, word) if len > PREFIX_LEN => {
                bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
            }
            Self::Set(..) | Self::SetWord(..) => {}
            Self::Cut(at) => bytes.truncate(at.index(len)),
            Self::Remove(from, to) => {
                let (from, to) = (from.index(len), to.index(len));
                bytes.drain(from.min(to)..from.max(to));
            }
            Self::Insert(at, more) => {
                let at = at.index(len);
                bytes.splice(at..at, more);
            }
            Self::Splice(at, other, from) => {
                bytes.truncate(at.index(len));
                bytes.extend_from_slice(&other[from.index(other.len() + 1)..]);
            }
            Self::Append(other) => bytes.extend(other),
        }
    }
}

/// Any change, some with bytes from these files.
pub fn any_change(files: Vec<Vec<u8>>) -> impl Strategy<Value = Change> {
    // Numbers at the edges of what is allowed, and any others.
    let word = prop_oneof![
        select(vec![0, 1, 2, 9, 13, 1 << 16, (1 << 16) + 1, 1 << 20, (1 << 20) + 10, u32::MAX]),
        0u32..400,
        any::<u32>(),
    ];
    let (file, other) = (select(files.clone()), select(files));
    prop_oneof![
        any::<(Index, u8)>().prop_map(|(at, byte)| Change::Set(at, byte)),
        (select(vec![0, 4, 9]), word).prop_map(|(at, word)| Change::SetWord(at, word)),
        any::<Index>().prop_map(Change::Cut),
        any::<(Index, Index)>().prop_map(|(from, to)| Change::Remove(from, to)),
        (any::<Index>(), vec(any::<u8>(), 0..20)).prop_map(|(at, more)| Change::Insert(at, more)),
        (any::<Index>(), file, any::<Index>())
            .prop_map(|(at, file, from)| Change::Splice(at, file, from)),
        other.prop_map(Change::Append),
    ]
}

/// One of the files with some changes.
pub fn changed(files: Vec<Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    (select(files.clone()), vec(any_change(files), 0..6)).prop_map(|(mut bytes, changes)| {
        for change in changes {
            change.apply(&mut bytes);
        }
        bytes
    })
}
