//! Files that are saved with their sandbox, and loaded again.

use std::{collections::BTreeSet, fs::File, io, ops::Range, sync::Arc};

use serde::{Deserialize, Serialize};

use super::{Area, DATA, FIRST_OWN, FileSystem, Inode, Kind, Node, SCRATCH};
use crate::files::{Content, Store, packages::Packages};

/// The saved files of a sandbox: all except the library.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct SavedFiles {
    nodes: Vec<(Inode, Node)>,
    orphans: Vec<Inode>,
    /// Nodes of packages.
    packages: Vec<(Inode, Node)>,
    next: Inode,
    clock: i64,
}

impl SavedFiles {
    /// Attaches the contents of loaded files: those of the data area to `store` if there is one, all others are read
    /// from `file` into memory. Opens the store with their slots and with the slots in `region`. Returns the first slot
    /// behind theirs; 0 if they have none.
    ///
    /// # Errors
    /// If the file does not have a slot, two contents have the same one, or the disk fails.
    pub(crate) fn attach(
        &mut self,
        file: &File,
        store: Option<&Arc<Store>>,
        region: Range<u32>,
    ) -> io::Result<u32> {
        let mut used: BTreeSet<u32> = region.collect();
        let all = self.nodes.iter_mut().chain(&mut self.packages);
        let contents = all.filter_map(|(_, node)| match &mut node.kind {
            Kind::File(content) => Some((content, node.area)),
            _ => None,
        });
        let contents: Vec<(&mut Content, Area)> = contents.collect();
        let mut end = 0;
        for slot in contents.iter().flat_map(|(content, _)| content.slots()) {
            end = end.max(slot.saturating_add(1));
            if !used.insert(slot) {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
        if let Some(store) = store {
            store.open(&used)?;
        }
        for (content, area) in contents {
            let attached = content.attach(file, store.filter(|_| area == Area::Data));
            attached.map_err(|errno| io::Error::other(format!("{errno:?}")))?;
        }
        Ok(end)
    }
}

impl FileSystem {
    /// The files to save.
    pub(crate) fn save(&self) -> SavedFiles {
        let nodes = self.nodes.iter().map(|(inode, node)| (*inode, Node::clone(node)));
        SavedFiles {
            nodes: nodes.collect(),
            orphans: self.orphans.iter().copied().collect(),
            packages: self.packages.save(),
            next: self.next,
            clock: self.clock,
        }
    }

    /// Replaces the files by saved ones, even if these exceed the quota: nothing can be added to them then. If they are
    /// not a complete tree, changes nothing and returns false.
    pub(crate) fn load(&mut self, saved: SavedFiles) -> bool {
        let (mut data, mut scratch) = (self.data, self.scratch);
        (data.bytes, data.nodes, scratch.bytes, scratch.nodes) = (0, 0, 0, 0);
        for (inode, node) in &saved.nodes {
            let quota = match node.area {
                Area::Data => &mut data,
                Area::Scratch => &mut scratch,
                Area::ReadOnly => return false,
            };
            quota.bytes = quota.bytes.saturating_add(node.kind.size());
            if *inode >= FIRST_OWN {
                quota.nodes = quota.nodes.saturating_add(node.links.max(1));
            }
        }
        let has_places =
            [DATA, SCRATCH].iter().all(|place| saved.nodes.iter().any(|(inode, _)| inode == place));
        if !has_places {
            return false;
        }
        let SavedFiles { nodes, orphans, packages, next, clock } = saved;
        let Some(packages) = Packages::load(packages) else { return false };
        self.packages = Arc::new(packages);
        self.nodes = nodes.into_iter().map(|(inode, node)| (inode, Arc::new(node))).collect();
        self.orphans = orphans.into_iter().collect();
        (self.data, self.scratch) = (data, scratch);
        (self.next, self.clock) = (next.max(FIRST_OWN), clock);
        true
    }
}
