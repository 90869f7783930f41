//! The files of a sandbox: a tree in memory that is cheap to copy. The contents of the data area may be on disk.
//!
//! ```text
//! /                          read-only   the interpreters' libraries, mapped from the runtime's folder
//! |- mnt/data                data        the user's files, within a quota of bytes and of files
//! |- tmp                     scratch     temporary files, with a quota of their own
//! |- usr/local/lib/packages  read-only   packages installed while the sandbox runs; a rollback does not remove them
//! |- usr/..                  read-only
//! '- data/NAME               read-only   datasets: folders of the host, which are not a part of the tree
//! ```
//!
//! No other path of the host exists here. Copies share everything that neither of them has changed, which makes it
//! cheap to roll back the changes of a cell.

mod content;
mod datasets;
mod errno;
mod packages;
mod served;
mod store;
#[cfg(test)]
mod tests;
mod tree;

pub use self::datasets::check_dataset;
#[cfg(test)]
pub(crate) use self::served::contents;
pub(crate) use self::{
    content::{Content, Shared},
    datasets::{DatasetPath, Datasets, Gate, Open, is_of_dataset},
    errno::Errno,
    served::{PackageUploads, Uploads},
    store::{Extent, PIECE_BYTES, Store, len_of, offset_of, punch, slots_of},
    tree::{Area, Base, DATA, Entry, FileSystem, Library, Located, ROOT, SavedFiles, Stat, Times},
};
