//! Packages: the part of the tree that changes from outside alone, and that nothing takes back.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    Area, Content, Errno, FileSystem,
    tree::{Inode, Kind, MAX_NAME, Node, folder},
};

/// `/usr/local/lib/packages`.
pub(super) const PACKAGES: Inode = 4;

/// The first in it.
const FIRST: Inode = 1 << 31;

/// Files and folders of packages.
const MAX_FILES: usize = 32_768;

/// Packages that were installed while the sandbox runs: nobody in it can change them.
#[derive(Debug, Clone)]
pub(super) struct Packages {
    nodes: BTreeMap<Inode, Node>,
    bytes: u64,
    next: Inode,
}

impl Packages {
    /// None, in a folder in this one.
    pub(super) fn new(parent: Inode) -> Self {
        let nodes = BTreeMap::from([(PACKAGES, folder(Area::ReadOnly, parent))]);
        Self { nodes, bytes: 0, next: FIRST }
    }

    /// What has this number, if it is one of theirs.
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

    /// What is to be kept of them.
    pub(super) fn save(&self) -> Vec<(Inode, Node)> {
        self.nodes.iter().map(|(inode, node)| (*inode, node.clone())).collect()
    }

    /// Those that were kept; nothing if they are not what is kept of any.
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
    /// Puts a file of a package there, in the place of what has its name; the folders on the way are made. All packages
    /// have so many bytes at most.
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
