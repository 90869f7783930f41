//! The entries of a folder of a dataset, as guests read them: in pieces, with the places that the host gives them.

use std::mem::MaybeUninit;

use rustix::fs::{RawDir, SeekFrom, seek};

use super::{DatasetPath, Datasets, Open, filetype};
use crate::files::{Entry, Errno};

/// Bytes of the buffer for entries. The longest entry of the host has 280.
const BUFFER: std::ops::RangeInclusive<usize> = 1024..=64 << 10;

impl Datasets {
    /// The names in a folder, in order, of at most `most` bytes together.
    pub(crate) fn names(&self, at: &DatasetPath, most: u64) -> Result<Vec<String>, Errno> {
        let open = self.open_at(at, true)?;
        let (mut names, mut left) = (vec![], usize::try_from(most).unwrap_or(usize::MAX));
        let read = self.entries_after(&open, 0, *BUFFER.end(), |entry| {
            left = left.saturating_sub(entry.name.len() + 1);
            names.push(entry.name.to_owned());
            left == 0
        });
        self.close(&open);
        read?;
        if left == 0 {
            return Err(Errno::Fbig);
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Passes on the entries of an open folder behind this place, until `is_full` returns that they are enough. The buffer
    /// is for about `room` bytes of them. It leaves out `.`, `..`,
    /// and names that are not UTF-8, which guests could not name.
    pub(crate) fn entries_after(
        &self,
        open: &Open,
        place: u64,
        room: usize,
        mut is_full: impl FnMut(Entry<'_>) -> bool,
    ) -> Result<(), Errno> {
        if !open.is_folder {
            return Err(Errno::Notdir);
        }
        let folder = self.file(open)?;
        seek(&*folder, SeekFrom::Start(place))?;
        let mut buffer = vec![MaybeUninit::uninit(); room.clamp(*BUFFER.start(), *BUFFER.end())];
        let mut entries = RawDir::new(&*folder, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            if matches!(name, "." | "..") {
                continue;
            }
            let kind = entry.file_type();
            // 0 if the host does not say: then the guest looks at the file itself.
            let filetype = filetype(kind);
            let (place, inode) = (entry.next_entry_cookie(), entry.ino());
            if is_full(Entry { place, name, inode, filetype }) {
                break;
            }
        }
        Ok(())
    }
}
