//! Nodes: folders, files and links; and those that never change.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::files::{Content, packages::PACKAGES};

/// The number of a node. It is never used again for another node.
pub(crate) type Inode = u64;

/// The root folder.
pub(crate) const ROOT: Inode = 1;

/// `/mnt/data`.
pub(crate) const DATA: Inode = 2;

/// `/tmp`.
pub(super) const SCRATCH: Inode = 3;

/// The first inode of nodes that the sandbox makes.
pub(super) const FIRST_OWN: Inode = 1 << 32;

/// Longest name, in bytes, as on Linux.
pub(in crate::files) const MAX_NAME: usize = 255;

/// The part of the tree that a node belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Area {
    /// The user's files.
    Data,
    /// Temporary files of programs.
    Scratch,
    /// Files that guests cannot change.
    ReadOnly,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(in crate::files) struct Node {
    pub(in crate::files) area: Area,
    pub(in crate::files) kind: Kind,
    /// Number of its names.
    pub(in crate::files) links: u32,
    pub(in crate::files) modified: i64,
    pub(in crate::files) changed: i64,
}

/// The kind of a node, with its contents.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(in crate::files) enum Kind {
    /// A folder: its entries, and the folder that it is in.
    Folder {
        /// By name.
        entries: BTreeMap<String, Inode>,
        /// The folder itself if it is the root.
        parent: Inode,
    },
    /// A regular file.
    File(Content),
    /// A symbolic link.
    Link(String),
}

impl Kind {
    /// Bytes that count in the quota.
    pub(in crate::files) fn size(&self) -> u64 {
        match self {
            Self::Folder { .. } => 0,
            Self::File(content) => content.len(),
            Self::Link(target) => target.len() as u64,
        }
    }
}

/// The metadata of a node. Times are nanoseconds since the epoch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Stat {
    /// The number of the file system that it is on; 0 for the tree itself.
    pub(crate) device: u64,
    /// The node's number.
    pub(crate) inode: Inode,
    /// WASI's number for its kind: 3 is a folder, 4 a file, 7 a link.
    pub(crate) filetype: u8,
    /// Number of its names.
    pub(crate) links: u64,
    /// Size in bytes.
    pub(crate) size: u64,
    /// Time of the last change of its contents.
    pub(crate) modified: i64,
    /// Time of the last change of any kind. Guests cannot set it.
    pub(crate) changed: i64,
}

/// New times of a node; `None` leaves a time as it is.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Times {
    /// Nanoseconds since the epoch.
    pub(crate) modified: Option<i64>,
}

pub(in crate::files) fn folder(area: Area, parent: Inode) -> Node {
    let kind = Kind::Folder { entries: BTreeMap::new(), parent };
    Node { area, kind, links: 1, modified: 0, changed: 0 }
}

/// The files that never change: those of the interpreters.
#[derive(Debug)]
pub(crate) struct Library {
    pub(super) nodes: BTreeMap<Inode, Node>,
}

impl Library {
    /// A tree with these files, by absolute path, and with the names of the data area, scratch space and packages.
    pub(crate) fn new(files: impl IntoIterator<Item = (String, Content)>) -> Self {
        let mut nodes = BTreeMap::from([(ROOT, folder(Area::ReadOnly, ROOT))]);
        let mut library = Self { nodes: BTreeMap::new() };
        std::mem::swap(&mut library.nodes, &mut nodes);
        for (path, inode) in
            [("/mnt/data", DATA), ("/tmp", SCRATCH), ("/usr/local/lib/packages", PACKAGES)]
        {
            library.place(path, inode);
        }
        let mut next = PACKAGES;
        for (path, content) in files {
            next = next.max(library.nodes.last_key_value().map_or(0, |(last, _)| *last)) + 1;
            library.place(&path, next);
            let kind = Kind::File(content);
            library.nodes.insert(
                next,
                Node { area: Area::ReadOnly, kind, links: 1, modified: 0, changed: 0 },
            );
        }
        library
    }

    /// Adds a node at this path, and makes the missing folders of the path.
    fn place(&mut self, path: &str, inode: Inode) {
        let mut at = ROOT;
        let mut parts = path.split('/').filter(|part| !part.is_empty()).peekable();
        while let Some(part) = parts.next() {
            let fresh =
                self.nodes.last_key_value().map_or(0, |(last, _)| *last).max(PACKAGES).max(inode)
                    + 1;
            let child = if parts.peek().is_none() { inode } else { fresh };
            let Some(Node { kind: Kind::Folder { entries, .. }, .. }) = self.nodes.get_mut(&at)
            else {
                return;
            };
            let found = *entries.entry(part.to_owned()).or_insert(child);
            if found == fresh && parts.peek().is_some() {
                self.nodes.insert(fresh, folder(Area::ReadOnly, at));
            }
            at = found;
        }
    }
    /// The folder of this path.
    pub(super) fn parent_of(&self, path: &str) -> Option<Inode> {
        let mut at = ROOT;
        for part in path.split('/').filter(|part| !part.is_empty()) {
            let Kind::Folder { entries, .. } = &self.nodes.get(&at)?.kind else { return None };
            at = *entries.get(part)?;
        }
        Some(at)
    }
}
