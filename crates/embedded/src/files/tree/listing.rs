//! Listings of folders, in pieces.

use std::cmp::Ordering;

use super::{FileSystem, Inode};
use crate::files::Errno;

/// An entry of a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    /// The entry's position in its folder. Never 0.
    pub(crate) place: u64,
    pub(crate) name: &'a str,
    /// The node of this name.
    pub(crate) inode: Inode,
    /// WASI's number for the kind of that node.
    pub(crate) filetype: u8,
}

/// The places of `.` and `..`, before those of all other entries.
const SELF: u64 = 1;
const ABOVE: u64 = 2;

/// Bits of a place that distinguish the names of one node.
const NAME_BITS: u32 = 24;

/// The place of an entry: its inode, followed by bits of a hash (FNV-1a) of its name, as a node may have several.
fn place_of(inode: Inode, name: &str) -> u64 {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    inode << NAME_BITS | hash >> (u64::BITS - NAME_BITS)
}

impl FileSystem {
    /// The first entries of a folder behind this place, `.` and `..` included. The place of an entry does not depend
    /// on other entries, so that a listing needs no state between two calls.
    pub(crate) fn entries_after(
        &self,
        folder: Inode,
        place: u64,
        most: usize,
    ) -> Result<Vec<Entry<'_>>, Errno> {
        let own = [(SELF, ".", folder), (ABOVE, "..", self.parent(folder)?)];
        let own = own.into_iter().filter(|(at, ..)| *at > place);
        // Names are hashed only if the inodes are equal: a folder may have many long names.
        let is_after = |(name, inode): &(&String, &Inode)| match (*inode).cmp(&(place >> NAME_BITS))
        {
            Ordering::Equal => place_of(**inode, name) > place,
            order => order.is_gt(),
        };
        let in_order = |a: &(&String, &Inode), b: &(&String, &Inode)| {
            let by_name = || place_of(*a.1, a.0).cmp(&place_of(*b.1, b.0));
            a.1.cmp(b.1).then_with(by_name)
        };
        let mut rest: Vec<_> = self.entries(folder)?.iter().filter(is_after).collect();
        if rest.len() > most {
            rest.select_nth_unstable_by(most, in_order);
            rest.truncate(most);
        }
        rest.sort_unstable_by(in_order);
        let named = rest.into_iter().map(|(name, inode)| (place_of(*inode, name), &**name, *inode));
        let entry = |(place, name, inode)| {
            let filetype = self.stat(inode).map_or(0, |stat| stat.filetype);
            Entry { place, name, inode, filetype }
        };
        Ok(own.chain(named).take(most).map(entry).collect())
    }
}
