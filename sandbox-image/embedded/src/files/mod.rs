//! The files of a sandbox: a tree in memory, of which a copy costs next to nothing.
//!
//! ```text
//! /                          read-only   what the interpreters need: their libraries, mapped from the runtime's folder
//! |- mnt/data                data        the user's files, within a quota of bytes and of files
//! |- tmp                     scratch     the same with a quota of its own
//! |- usr/local/lib/packages  read-only   what was installed while the sandbox runs; it stays, whatever is taken back
//! '- usr/..                  read-only
//! ```
//!
//! No path of the host's exists here. Copies share all that neither has changed, which is what makes it cheap to
//! take back what a cell has done.

mod content;
mod errno;
mod packages;
mod served;
#[cfg(test)]
mod tests;
mod tree;

pub(crate) use self::{
    content::{Content, Shared},
    errno::Errno,
    served::{PackageUploads, Uploads},
    tree::{Area, DATA, Entry, FileSystem, Library, ROOT, SavedFiles, Stat, Times},
};
