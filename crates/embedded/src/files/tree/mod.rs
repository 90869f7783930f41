//! The tree of files: names and nodes.

mod listing;
mod located;
mod node;
mod path;
mod quota;
mod saved;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use protocol::limits::{MAX_FILES, MAX_PATH};

pub(super) use self::node::{Kind, MAX_NAME, Node, folder};
pub(crate) use self::{
    listing::Entry,
    located::{Base, Located},
    node::{Area, DATA, Inode, Library, ROOT, Stat, Times},
    saved::SavedFiles,
};
use self::{
    node::{FIRST_OWN, SCRATCH},
    path::MAX_GUEST_PATH,
    quota::Quota,
};
use super::{Content, Errno, Store, datasets::Datasets, packages::Packages};

/// Maximum number of nested folders, so that a path of all of them is short enough.
const MAX_DEPTH: usize = MAX_PATH / 2;

/// Maximum number of replaced files that still count in the quota, until the next run clears them away.
const MAX_REPLACED: u32 = 256;

/// The files of a sandbox.
#[derive(Debug, Clone)]
pub(crate) struct FileSystem {
    library: Arc<Library>,
    pub(super) packages: Arc<Packages>,
    datasets: Arc<Datasets>,
    nodes: BTreeMap<Inode, Arc<Node>>,
    /// Nodes without a name, which may be open.
    orphans: BTreeSet<Inode>,
    /// Nodes that are open in states of interpreters, while a run is in progress.
    pinned: BTreeSet<Inode>,
    next: Inode,
    clock: i64,
    data: Quota,
    scratch: Quota,
    /// Bytes of uploads in progress, which count in the data area's quota.
    staged: u64,
    /// The place of the data area's contents; `None` for memory.
    store: Option<Arc<Store>>,
}

impl FileSystem {
    /// Files with nothing but the library. Limits are in bytes.
    pub(crate) fn new(library: Arc<Library>, data: u64, scratch: u64) -> Self {
        let parent = |path: &str| library.parent_of(path).unwrap_or(ROOT);
        let nodes = [(DATA, Area::Data, parent("/mnt")), (SCRATCH, Area::Scratch, ROOT)];
        let nodes = nodes.map(|(inode, area, parent)| (inode, Arc::new(folder(area, parent))));
        let quota = |most_bytes| Quota { bytes: 0, most_bytes, nodes: 0 };
        Self {
            nodes: nodes.into(),
            orphans: BTreeSet::new(),
            pinned: BTreeSet::new(),
            next: FIRST_OWN,
            clock: 0,
            data: quota(data),
            scratch: quota(scratch),
            staged: 0,
            store: None,
            packages: Arc::new(Packages::new(parent("/usr/local/lib"))),
            datasets: Arc::default(),
            library,
        }
    }

    /// The same files, with these datasets.
    pub(crate) fn with_datasets(mut self, mut datasets: Datasets) -> Self {
        if let Some(root) = self.library.nodes.get(&ROOT) {
            datasets.mount(root, ROOT);
        }
        self.datasets = Arc::new(datasets);
        self
    }

    /// The same files, with the contents of the data area in this store.
    pub(crate) fn with_store(self, store: Option<Arc<Store>>) -> Self {
        Self { store, ..self }
    }

    /// The store of the data area's contents; `None` if they are in memory.
    pub(crate) fn store(&self) -> Option<Arc<Store>> {
        self.store.clone()
    }

    /// An empty content for a file of the data area.
    pub(in crate::files) fn new_content(&self) -> Content {
        Content::new(self.store.as_ref())
    }

    /// The datasets. They do not change.
    pub(crate) fn datasets(&self) -> &Arc<Datasets> {
        &self.datasets
    }

    fn node(&self, inode: Inode) -> Result<&Node, Errno> {
        let own = self.nodes.get(&inode).map(|node| &**node);
        own.or_else(|| self.fixed(inode)).ok_or(Errno::Badf)
    }

    /// A node that guests cannot change.
    fn fixed(&self, inode: Inode) -> Option<&Node> {
        let of_datasets = self.datasets.node(inode);
        of_datasets.or_else(|| self.library.nodes.get(&inode)).or_else(|| self.packages.node(inode))
    }

    fn node_mut(&mut self, inode: Inode) -> Result<&mut Node, Errno> {
        if self.fixed(inode).is_some() {
            return Err(Errno::Rofs);
        }
        self.nodes.get_mut(&inode).map(Arc::make_mut).ok_or(Errno::Badf)
    }

    /// The present time, always later than the result of any earlier call.
    pub(super) fn tick(&mut self) -> i64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.clock = i64::try_from(now.as_nanos()).unwrap_or(i64::MAX).max(self.clock + 1);
        self.clock
    }

    /// Sets the times of a node that has changed. `contents` says whether that includes its contents.
    fn touch(&mut self, inode: Inode, contents: bool) {
        let now = self.tick();
        if let Ok(node) = self.node_mut(inode) {
            node.changed = now;
            if contents {
                node.modified = now;
            }
        }
    }

    pub(crate) fn entries(&self, folder: Inode) -> Result<&BTreeMap<String, Inode>, Errno> {
        match &self.node(folder)?.kind {
            Kind::Folder { entries, .. } => Ok(entries),
            _ => Err(Errno::Notdir),
        }
    }

    fn entries_mut(&mut self, folder: Inode) -> Result<&mut BTreeMap<String, Inode>, Errno> {
        match &mut self.node_mut(folder)?.kind {
            Kind::Folder { entries, .. } => Ok(entries),
            _ => Err(Errno::Notdir),
        }
    }

    pub(super) fn parent(&self, folder: Inode) -> Result<Inode, Errno> {
        match &self.node(folder)?.kind {
            Kind::Folder { parent, .. } => Ok(*parent),
            _ => Err(Errno::Notdir),
        }
    }

    /// The metadata of a node.
    pub(crate) fn stat(&self, inode: Inode) -> Result<Stat, Errno> {
        let node = self.node(inode)?;
        let filetype = match &node.kind {
            Kind::Folder { .. } => 3,
            Kind::File(_) => 4,
            Kind::Link(_) => 7,
        };
        let size = node.kind.size();
        let Node { modified, changed, links, .. } = *node;
        let (device, links) = (0, links.into());
        Ok(Stat { device, inode, filetype, links, size, modified, changed })
    }

    /// The area of a node.
    pub(crate) fn area(&self, inode: Inode) -> Result<Area, Errno> {
        Ok(self.node(inode)?.area)
    }

    /// Puts a new node into a folder.
    fn add(&mut self, folder: Inode, name: &str, kind: Kind) -> Result<Inode, Errno> {
        if matches!(name, "" | "." | "..") {
            return Err(Errno::Exist);
        }
        let inode = self.make(folder, kind, MAX_FILES)?;
        self.entries_mut(folder)?.insert(name.to_owned(), inode);
        self.touch(folder, true);
        Ok(inode)
    }

    /// Makes a node for a new name in a folder, if its area has space and fewer than `most` nodes.
    fn make(&mut self, folder: Inode, kind: Kind, most: u32) -> Result<Inode, Errno> {
        self.check_there(folder)?;
        let area = self.node(folder)?.area;
        let size = kind.size();
        let left = self.left(area)?;
        let quota = self.quota(area).ok_or(Errno::Rofs)?;
        if quota.nodes >= most || size > left {
            return Err(Errno::Nospc);
        }
        quota.nodes += 1;
        quota.bytes += size;
        let (inode, now) = (self.next, self.tick());
        self.next += 1;
        let node = Node { area, kind, links: 1, modified: now, changed: now };
        self.nodes.insert(inode, Arc::new(node));
        Ok(inode)
    }

    /// Refuses a folder that has been removed but may still be open: nothing in it could be found.
    fn check_there(&self, folder: Inode) -> Result<(), Errno> {
        if self.node(folder)?.links == 0 { Err(Errno::Noent) } else { Ok(()) }
    }

    /// Makes a folder.
    pub(crate) fn make_folder(&mut self, from: Inode, path: &str) -> Result<Inode, Errno> {
        let place = self.walk(from, path)?;
        if self.child(place.folder, place.name)?.is_some() {
            return Err(Errno::Exist);
        }
        if self.depth(place.folder)? >= MAX_DEPTH {
            return Err(Errno::Nametoolong);
        }
        let kind = Kind::Folder { entries: BTreeMap::new(), parent: place.folder };
        self.add(place.folder, place.name, kind)
    }

    fn depth(&self, mut folder: Inode) -> Result<usize, Errno> {
        let mut depth = 0;
        while folder != ROOT {
            folder = self.parent(folder)?;
            depth += 1;
        }
        Ok(depth)
    }

    /// Makes a symbolic link.
    pub(crate) fn make_link(&mut self, target: &str, from: Inode, path: &str) -> Result<(), Errno> {
        if target.is_empty() || target.len() > MAX_GUEST_PATH {
            return Err(Errno::Inval);
        }
        let place = self.walk(from, path)?;
        if self.child(place.folder, place.name)?.is_some() {
            return Err(Errno::Exist);
        }
        self.add(place.folder, place.name, Kind::Link(target.to_owned())).map(drop)
    }

    /// The target of a symbolic link.
    pub(crate) fn target(&self, from: Inode, path: &str) -> Result<&str, Errno> {
        match &self.node(self.find(from, path, false)?)?.kind {
            Kind::Link(target) => Ok(target),
            _ => Err(Errno::Inval),
        }
    }

    /// Gives a file a further name.
    pub(crate) fn make_name(&mut self, file: Inode, from: Inode, path: &str) -> Result<(), Errno> {
        let place = self.walk(from, path)?;
        if self.child(place.folder, place.name)?.is_some() {
            return Err(Errno::Exist);
        }
        if self.node(place.folder)?.area != self.node(file)?.area {
            return Err(Errno::Xdev);
        }
        let name = place.name.to_owned();
        let folder = place.folder;
        self.check_there(folder)?;
        let node = self.node_mut(file)?;
        if matches!(node.kind, Kind::Folder { .. }) {
            return Err(Errno::Perm);
        }
        let (area, links) = (node.area, node.links.checked_add(1).ok_or(Errno::Mlink)?);
        let quota = self.quota(area).ok_or(Errno::Rofs)?;
        if quota.nodes >= MAX_FILES {
            return Err(Errno::Nospc);
        }
        quota.nodes += 1;
        self.node_mut(file)?.links = links;
        self.entries_mut(folder)?.insert(name, file);
        self.touch(file, false);
        self.touch(folder, true);
        Ok(())
    }

    /// Removes a name of a file. A file without a name remains until it is [collected](Self::collect).
    pub(crate) fn remove_file(&mut self, from: Inode, path: &str) -> Result<(), Errno> {
        let place = self.walk(from, path)?;
        let found = self.child(place.folder, place.name)?.ok_or(Errno::Noent)?;
        match self.node(found)?.kind {
            Kind::Folder { .. } => return Err(Errno::Isdir),
            Kind::File(_) if place.wants_folder => return Err(Errno::Notdir),
            _ => {}
        }
        self.entries_mut(place.folder)?.remove(place.name);
        self.touch(place.folder, true);
        self.drop_name(found);
        Ok(())
    }

    /// Removes an empty folder.
    pub(crate) fn remove_folder(&mut self, from: Inode, path: &str) -> Result<(), Errno> {
        let place = self.walk(from, path)?;
        let found = self.child(place.folder, place.name)?.ok_or(Errno::Noent)?;
        if matches!(place.name, "" | "." | "..") {
            return Err(Errno::Inval);
        }
        if !self.entries(found)?.is_empty() {
            return Err(Errno::Notempty);
        }
        self.entries_mut(place.folder)?.remove(place.name);
        self.touch(place.folder, true);
        self.drop_name(found);
        Ok(())
    }

    fn drop_name(&mut self, inode: Inode) {
        let Ok(node) = self.node_mut(inode) else { return };
        node.links = node.links.saturating_sub(1);
        let (area, links) = (node.area, node.links);
        if links == 0 {
            self.orphans.insert(inode);
        } else if let Some(quota) = self.quota(area) {
            quota.nodes = quota.nodes.saturating_sub(1);
        }
        self.touch(inode, false);
    }

    /// Moves a node. Replaces a node of the new name if it may be replaced.
    pub(crate) fn rename(&mut self, from: (Inode, &str), to: (Inode, &str)) -> Result<(), Errno> {
        let old = self.walk(from.0, from.1)?;
        let new = self.walk(to.0, to.1)?;
        if [old.name, new.name].iter().any(|name| matches!(*name, "" | "." | "..")) {
            return Err(Errno::Inval);
        }
        let moved = self.child(old.folder, old.name)?.ok_or(Errno::Noent)?;
        let is_folder = matches!(self.node(moved)?.kind, Kind::Folder { .. });
        if (old.wants_folder || new.wants_folder) && !is_folder {
            return Err(Errno::Notdir);
        }
        let areas = [old.folder, new.folder, moved].map(|inode| self.area(inode));
        let [of_old, of_new, of_moved] = areas;
        if of_old? == Area::ReadOnly || of_new? == Area::ReadOnly {
            return Err(Errno::Rofs);
        }
        if of_moved? != self.area(new.folder)? {
            return Err(Errno::Xdev);
        }
        self.check_there(new.folder)?;
        if is_folder {
            let mut above = new.folder;
            while above != ROOT {
                if above == moved {
                    return Err(Errno::Inval);
                }
                above = self.parent(above)?;
            }
        }
        let replaced = self.child(new.folder, new.name)?;
        if replaced == Some(moved) {
            return Ok(());
        }
        if let Some(replaced) = replaced {
            match (&self.node(replaced)?.kind, is_folder) {
                (Kind::Folder { .. }, false) => return Err(Errno::Isdir),
                (Kind::Folder { entries, .. }, true) if !entries.is_empty() => {
                    return Err(Errno::Notempty);
                }
                (Kind::Folder { .. }, true) | (_, false) => {}
                (_, true) => return Err(Errno::Notdir),
            }
        }
        self.entries_mut(old.folder)?.remove(old.name);
        self.entries_mut(new.folder)?.insert(new.name.to_owned(), moved);
        if let Some(replaced) = replaced {
            self.drop_name(replaced);
        }
        if let Kind::Folder { parent, .. } = &mut self.node_mut(moved)?.kind {
            *parent = new.folder;
        }
        for (inode, contents) in [(old.folder, true), (new.folder, true), (moved, false)] {
            self.touch(inode, contents);
        }
        Ok(())
    }

    /// Pins the nodes that are open elsewhere according to `is_open`: they remain even without a name.
    pub(crate) fn pin(&mut self, is_open: impl Fn(Inode) -> bool) {
        self.pinned = self.orphans.iter().copied().filter(|node| is_open(*node)).collect();
        self.pinned.extend(self.nodes.keys().copied().filter(|node| is_open(*node)));
    }

    /// Removes nodes that have no name and are neither open nor pinned.
    pub(crate) fn collect(&mut self, is_open: impl Fn(Inode) -> bool) {
        let is_gone = |orphan: &Inode| !is_open(*orphan) && !self.pinned.contains(orphan);
        let gone: Vec<_> = self.orphans.iter().copied().filter(is_gone).collect();
        for inode in gone {
            self.orphans.remove(&inode);
            let Some(node) = self.nodes.remove(&inode) else { continue };
            let size = node.kind.size();
            if let Some(quota) = self.quota(node.area) {
                quota.bytes = quota.bytes.saturating_sub(size);
                quota.nodes = quota.nodes.saturating_sub(1);
            }
        }
    }

    /// Sets the times of a node.
    pub(crate) fn set_times(&mut self, inode: Inode, times: Times) -> Result<(), Errno> {
        let node = self.node_mut(inode)?;
        if let Some(modified) = times.modified {
            node.modified = modified;
        }
        self.touch(inode, false);
        Ok(())
    }

    /// Adds a complete file to a folder, and replaces a file of that name. Its bytes were staged before.
    pub(super) fn publish(
        &mut self,
        folder: Inode,
        name: &str,
        content: Content,
    ) -> Result<(), Errno> {
        let Some(old) = self.child(folder, name)? else {
            return self.add(folder, name, Kind::File(content)).map(drop);
        };
        if let Kind::Folder { .. } = self.node(old)?.kind {
            return Err(Errno::Isdir);
        }
        // Made before the old file is removed, so that a failure leaves the old one.
        let new = self.make(folder, Kind::File(content), MAX_FILES + MAX_REPLACED)?;
        self.entries_mut(folder)?.insert(name.to_owned(), new);
        self.drop_name(old);
        self.touch(folder, true);
        Ok(())
    }

    /// Removes everything from the data area.
    pub(crate) fn empty(&mut self) -> Result<(), Errno> {
        let mut folders = vec![DATA];
        while let Some(folder) = folders.pop() {
            for inode in std::mem::take(self.entries_mut(folder)?).into_values() {
                if matches!(self.node(inode)?.kind, Kind::Folder { .. }) {
                    folders.push(inode);
                }
                self.drop_name(inode);
            }
            self.touch(folder, true);
        }
        Ok(())
    }

    /// Rolls the files back to `before`, except for uploads in progress and packages.
    pub(crate) fn restore(&mut self, before: &Self) {
        let (staged, clock, next) = (self.staged, self.clock, self.next);
        let packages = self.packages.clone();
        *self = Self { packages, ..before.clone() };
        // Neither a time nor an inode is used twice.
        (self.staged, self.clock, self.next) = (staged, clock, next);
    }
}
