//! Packages: the part of the tree that only the server changes, and that no rollback affects.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    Area, Content, Errno, FileSystem,
    tree::{Inode, Kind, MAX_NAME, Node, folder},
};

/// `/usr/local/lib/packages`.
pub(super) const PACKAGES: Inode = 4;

/// The first inode in it.
const FIRST: Inode = 1 << 31;

/// Maximum number of files and folders of packages.
const MAX_FILES: usize = 32_768;

/// Packages that were installed while the sandbox runs. Guests cannot change them.
#[derive(Debug, Clone)]
pub(super) struct Packages {
    nodes: BTreeMap<Inode, Node>,
    bytes: u64,
    next: Inode,
}

impl Packages {
    /// No packages, in a folder within `parent`.
    pub(super) fn new(parent: Inode) -> Self {
        let nodes = BTreeMap::from([(PACKAGES, folder(Area::ReadOnly, parent))]);
        Self { nodes, bytes: 0, next: FIRST }
    }

    /// The node of this number, if it belongs to packages.
    pub(super) fn node(&self, inode: Inode) -> Option<&Node> {
        self.nodes.get(&inode)
    }

    fn add(&mut self, in_folder: Inode, name: &str, kind: Kind, now: i64) -> Result<Inode, Errno> {
        if name.len() > MAX_NAME {
            return Err(Errno::Nametoolong);
        }
        let inode = self.next;
        let above = self.nodes.get_mut(&in_folder).ok_or(Errno::Noent)?;
        let Kind::Folder { entries, .. } = &mut above.kind else { return Err(Errno::Notdir) };
        let replaced = entries.insert(name.to_owned(), inode);
        (above.modified, above.changed) = (now, now);
        if let Some(replaced) = replaced.and_then(|replaced| self.nodes.remove(&replaced)) {
            self.bytes = self.bytes.saturating_sub(replaced.kind.size());
        }
        self.next += 1;
        self.bytes = self.bytes.saturating_add(kind.size());
        let node = Node { area: Area::ReadOnly, kind, links: 1, modified: now, changed: now };
        self.nodes.insert(inode, node);
        Ok(inode)
    }

    /// The nodes to save.
    pub(super) fn save(&self) -> Vec<(Inode, Node)> {
        self.nodes.iter().map(|(inode, node)| (*inode, node.clone())).collect()
    }

    /// Loads saved nodes; `None` if they are not those of packages.
    pub(super) fn load(nodes: Vec<(Inode, Node)>) -> Option<Self> {
        let nodes: BTreeMap<_, _> = nodes.into_iter().collect();
        let are_whole =
            nodes.contains_key(&PACKAGES) && nodes.values().all(|node| node.area == Area::ReadOnly);
        let bytes = nodes.values().map(|node| node.kind.size()).sum();
        let next = nodes.last_key_value().map_or(0, |(last, _)| last + 1).max(FIRST);
        are_whole.then_some(Self { nodes, bytes, next })
    }
}

impl FileSystem {
    /// Adds a file of a package, replaces a file of the same name, and makes the missing folders of its path. All
    /// packages together may have `most_bytes` bytes.
    pub(crate) fn install(
        &mut self,
        path: &[&str],
        content: Content,
        most_bytes: u64,
    ) -> Result<(), Errno> {
        let (name, folders) = path.split_last().ok_or(Errno::Inval)?;
        let packages = &self.packages;
        if content.len() > most_bytes.saturating_sub(packages.bytes)
            || packages.nodes.len() >= MAX_FILES
        {
            return Err(Errno::Nospc);
        }
        let now = self.tick();
        let packages = Arc::make_mut(&mut self.packages);
        let mut at = PACKAGES;
        for part in folders {
            let there = match packages.nodes.get(&at).map(|node| &node.kind) {
                Some(Kind::Folder { entries, .. }) => entries.get(*part).copied(),
                _ => return Err(Errno::Notdir),
            };
            at = if let Some(there) = there {
                there
            } else {
                let kind = Kind::Folder { entries: BTreeMap::new(), parent: at };
                packages.add(at, part, kind, now)?
            };
        }
        if let Some(Kind::Folder { entries, .. }) = packages.nodes.get(&at).map(|node| &node.kind)
            && let Some(there) = entries.get(*name).and_then(|there| packages.nodes.get(there))
            && matches!(there.kind, Kind::Folder { .. })
        {
            return Err(Errno::Isdir);
        }
        packages.add(at, name, Kind::File(content), now).map(drop)
    }
}
