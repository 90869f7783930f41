//! The tree of files: names, nodes, quotas.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use protocol::limits::{MAX_FILES, MAX_PATH};
use serde::{Deserialize, Serialize};

use super::{
    Content, Errno,
    packages::{PACKAGES, Packages},
};

/// The number of a node. It is never used again for another node.
pub(crate) type Inode = u64;

/// The root folder.
pub(crate) const ROOT: Inode = 1;

/// `/mnt/data`.
pub(crate) const DATA: Inode = 2;

/// `/tmp`.
const SCRATCH: Inode = 3;

/// The first inode of nodes that the sandbox makes.
const FIRST_OWN: Inode = 1 << 32;

/// Longest name, in bytes, as on Linux.
pub(super) const MAX_NAME: usize = 255;

/// Longest path that a guest may give, in bytes, as on Linux.
const MAX_GUEST_PATH: usize = 4096;

/// Most links that are followed in a path, as on Linux.
const MAX_LINKS: usize = 40;

/// Most nested folders, so that a path of all of them is short enough.
const MAX_DEPTH: usize = MAX_PATH / 2;

/// Most replaced files that still count in the quota, until the next run clears them away.
const MAX_REPLACED: u32 = 256;

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
pub(super) struct Node {
    pub(super) area: Area,
    pub(super) kind: Kind,
    /// Number of its names.
    pub(super) links: u32,
    pub(super) modified: i64,
    pub(super) changed: i64,
}

/// The kind of a node, with its contents.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Kind {
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
    pub(super) fn size(&self) -> u64 {
        match self {
            Self::Folder { .. } => 0,
            Self::File(content) => content.len(),
            Self::Link(target) => target.len() as u64,
        }
    }
}

/// The metadata of a node. Times are nanoseconds since the epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stat {
    /// Its number.
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

/// An entry of a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    /// Its position among the folder's entries. Never 0.
    pub(crate) place: u64,
    /// Its name.
    pub(crate) name: &'a str,
    /// The node that it names.
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

/// New times of a node; `None` leaves a time as it is.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Times {
    /// Nanoseconds since the epoch.
    pub(crate) modified: Option<i64>,
}

/// The files that never change: those of the interpreters.
#[derive(Debug)]
pub(crate) struct Library {
    nodes: BTreeMap<Inode, Node>,
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
}

pub(super) fn folder(area: Area, parent: Inode) -> Node {
    let kind = Kind::Folder { entries: BTreeMap::new(), parent };
    Node { area, kind, links: 1, modified: 0, changed: 0 }
}

/// The usage and the limit of an area.
#[derive(Debug, Clone, Copy)]
struct Quota {
    bytes: u64,
    most_bytes: u64,
    /// Number of nodes. A node with several names counts once for each.
    nodes: u32,
}

/// The files of a sandbox.
#[derive(Debug, Clone)]
pub(crate) struct FileSystem {
    library: Arc<Library>,
    pub(super) packages: Arc<Packages>,
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
}

/// The end of a path.
struct Place<'a> {
    folder: Inode,
    name: &'a str,
    /// The path ends in a slash, so it must name a folder.
    wants_folder: bool,
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
            packages: Arc::new(Packages::new(parent("/usr/local/lib"))),
            library,
        }
    }

    fn node(&self, inode: Inode) -> Result<&Node, Errno> {
        let own = self.nodes.get(&inode).map(|node| &**node);
        own.or_else(|| self.fixed(inode)).ok_or(Errno::Badf)
    }

    /// A node that guests cannot change.
    fn fixed(&self, inode: Inode) -> Option<&Node> {
        self.library.nodes.get(&inode).or_else(|| self.packages.node(inode))
    }

    fn node_mut(&mut self, inode: Inode) -> Result<&mut Node, Errno> {
        if self.fixed(inode).is_some() {
            return Err(Errno::Rofs);
        }
        self.nodes.get_mut(&inode).map(Arc::make_mut).ok_or(Errno::Badf)
    }

    fn quota(&mut self, area: Area) -> Option<&mut Quota> {
        match area {
            Area::Data => Some(&mut self.data),
            Area::Scratch => Some(&mut self.scratch),
            Area::ReadOnly => None,
        }
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
        Ok(Stat { inode, filetype, links: links.into(), size, modified, changed })
    }

    /// The area of a node.
    pub(crate) fn area(&self, inode: Inode) -> Result<Area, Errno> {
        Ok(self.node(inode)?.area)
    }

    /// Finds the folder in which the last part of a path lies, and that part.
    fn walk<'a>(&self, from: Inode, path: &'a str) -> Result<Place<'a>, Errno> {
        self.walk_within(from, path, &mut 0)
    }

    fn walk_within<'a>(
        &self,
        from: Inode,
        path: &'a str,
        links: &mut usize,
    ) -> Result<Place<'a>, Errno> {
        if path.is_empty() {
            return Err(Errno::Noent);
        }
        if path.len() > MAX_GUEST_PATH {
            return Err(Errno::Nametoolong);
        }
        let mut at = if path.starts_with('/') { ROOT } else { from };
        let trimmed = path.trim_end_matches('/');
        let wants_folder = trimmed.len() < path.len();
        let (folders, name) = trimmed.rsplit_once('/').unwrap_or(("", trimmed));
        for part in folders.split('/') {
            at = self.enter(at, part, links)?;
        }
        if name.len() > MAX_NAME {
            return Err(Errno::Nametoolong);
        }
        // Only a folder can have a name in it.
        self.entries(at)?;
        Ok(Place { folder: at, name, wants_folder })
    }

    /// Enters the folder of this name in a folder, or the one that a link of this name leads to.
    fn enter(&self, folder: Inode, name: &str, links: &mut usize) -> Result<Inode, Errno> {
        let found = self.child(folder, name)?.ok_or(Errno::Noent)?;
        match &self.node(found)?.kind {
            Kind::Folder { .. } => Ok(found),
            Kind::File(_) => Err(Errno::Notdir),
            Kind::Link(target) => self.follow(folder, target, links),
        }
    }

    /// The node that a link in a folder leads to.
    fn follow(&self, folder: Inode, target: &str, links: &mut usize) -> Result<Inode, Errno> {
        *links += 1;
        if *links > MAX_LINKS {
            return Err(Errno::Loop);
        }
        let place = self.walk_within(folder, target, links)?;
        let found = self.child(place.folder, place.name)?.ok_or(Errno::Noent)?;
        match &self.node(found)?.kind {
            Kind::Link(target) => self.follow(place.folder, target, links),
            _ => Ok(found),
        }
    }

    /// The node of this name in a folder. `..` of the root is the root.
    fn child(&self, folder: Inode, name: &str) -> Result<Option<Inode>, Errno> {
        Ok(match name {
            "" | "." => {
                self.entries(folder)?;
                Some(folder)
            }
            ".." => Some(self.parent(folder)?),
            name if name.len() > MAX_NAME => return Err(Errno::Nametoolong),
            name => self.entries(folder)?.get(name).copied(),
        })
    }

    /// Finds the node of a path. If that is a link and `follow` is set, finds the node that it leads to.
    pub(crate) fn find(&self, from: Inode, path: &str, follow: bool) -> Result<Inode, Errno> {
        let place = self.walk(from, path)?;
        let found = self.child(place.folder, place.name)?.ok_or(Errno::Noent)?;
        let found = match &self.node(found)?.kind {
            Kind::Link(target) if follow || place.wants_folder => {
                self.follow(place.folder, target, &mut 1)?
            }
            _ => found,
        };
        if place.wants_folder {
            self.entries(found)?;
        }
        Ok(found)
    }

    /// Finds a file or makes an empty one. Also returns whether it was made.
    pub(crate) fn find_or_create(
        &mut self,
        from: Inode,
        path: &str,
        follow: bool,
    ) -> Result<(Inode, bool), Errno> {
        match self.find(from, path, follow) {
            Err(Errno::Noent) => {}
            found => return found.map(|found| (found, false)),
        }
        let (folder, name) = self.free_place(from, path, follow, 0)?;
        Ok((self.add(folder, &name, Kind::File(Content::default()))?, true))
    }

    /// The folder and name under which a file of this path would be made. If `follow` is set, a link at the path is
    /// followed.
    fn free_place(
        &self,
        from: Inode,
        path: &str,
        follow: bool,
        links: usize,
    ) -> Result<(Inode, String), Errno> {
        let place = self.walk(from, path)?;
        if place.wants_folder {
            return Err(Errno::Isdir);
        }
        match self.child(place.folder, place.name)? {
            None => Ok((place.folder, place.name.to_owned())),
            Some(found) => match &self.node(found)?.kind {
                Kind::Link(target) if follow && links < MAX_LINKS => {
                    self.free_place(place.folder, target, follow, links + 1)
                }
                Kind::Link(_) => Err(Errno::Loop),
                _ => Err(Errno::Exist),
            },
        }
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

    /// The contents of a file.
    pub(crate) fn content(&self, file: Inode) -> Result<&Content, Errno> {
        match &self.node(file)?.kind {
            Kind::File(content) => Ok(content),
            Kind::Folder { .. } => Err(Errno::Isdir),
            Kind::Link(_) => Err(Errno::Loop),
        }
    }

    /// Free bytes of an area.
    fn left(&mut self, area: Area) -> Result<u64, Errno> {
        let staged = if area == Area::Data { self.staged } else { 0 };
        let quota = self.quota(area).ok_or(Errno::Rofs)?;
        Ok(quota.most_bytes.saturating_sub(quota.bytes + staged))
    }

    /// Writes as many bytes as there is space for, and returns their number.
    pub(crate) fn write(&mut self, file: Inode, offset: u64, bytes: &[u8]) -> Result<usize, Errno> {
        let area = self.node(file)?.area;
        let len = self.content(file)?.len();
        if bytes.is_empty() {
            return Ok(0);
        }
        let room = len.saturating_add(self.left(area)?);
        if offset >= room {
            return Err(Errno::Nospc);
        }
        let count = usize::try_from(room - offset).unwrap_or(usize::MAX).min(bytes.len());
        let grown = (offset + count as u64).saturating_sub(len);
        if let Some(quota) = self.quota(area) {
            quota.bytes += grown;
        }
        if let Kind::File(content) = &mut self.node_mut(file)?.kind {
            content.write(offset, &bytes[..count]);
        }
        self.touch(file, true);
        Ok(count)
    }

    /// Truncates a file, or adds zeros.
    pub(crate) fn resize(&mut self, file: Inode, size: u64) -> Result<(), Errno> {
        let area = self.node(file)?.area;
        let len = self.content(file)?.len();
        if size > len.saturating_add(self.left(area)?) {
            return Err(Errno::Nospc);
        }
        if let Some(quota) = self.quota(area) {
            quota.bytes = quota.bytes - len + size;
        }
        if let Kind::File(content) = &mut self.node_mut(file)?.kind {
            content.resize(size);
        }
        self.touch(file, true);
        Ok(())
    }

    /// Bytes of the user's files.
    #[cfg(test)]
    pub(super) fn used_bytes(&self) -> u64 {
        self.data.bytes
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

    /// Reserves bytes of the data area for an upload.
    pub(super) fn stage(&mut self, bytes: u64) -> Result<(), Errno> {
        if bytes > self.left(Area::Data)? {
            return Err(Errno::Nospc);
        }
        self.staged += bytes;
        Ok(())
    }

    pub(super) fn unstage(&mut self, bytes: u64) {
        self.staged = self.staged.saturating_sub(bytes);
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

/// The saved files of a sandbox: all except the library.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct SavedFiles {
    nodes: Vec<(Inode, Node)>,
    orphans: Vec<Inode>,
    /// Nodes of packages.
    packages: Vec<(Inode, Node)>,
    next: Inode,
    clock: i64,
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

impl Library {
    fn parent_of(&self, path: &str) -> Option<Inode> {
        let mut at = ROOT;
        for part in path.split('/').filter(|part| !part.is_empty()) {
            let Kind::Folder { entries, .. } = &self.nodes.get(&at)?.kind else { return None };
            at = *entries.get(part)?;
        }
        Some(at)
    }
}
