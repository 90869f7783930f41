//! Paths: finds the node that a path leads to.

use super::{Area, FileSystem, Inode, Kind, MAX_NAME, ROOT};
use crate::files::{Content, Errno};

/// Longest path that a guest may give, in bytes, as on Linux.
pub(super) const MAX_GUEST_PATH: usize = 4096;

/// Maximum number of links that are followed in a path, as on Linux.
pub(super) const MAX_LINKS: usize = 40;

/// The end of a path.
pub(super) struct Place<'a> {
    pub(super) folder: Inode,
    pub(super) name: &'a str,
    /// Whether the path ends in a slash, so it must name a folder.
    pub(super) wants_folder: bool,
}

impl FileSystem {
    /// Finds the folder in which the last part of a path lies, and that part.
    pub(super) fn walk<'a>(&self, from: Inode, path: &'a str) -> Result<Place<'a>, Errno> {
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
    pub(super) fn child(&self, folder: Inode, name: &str) -> Result<Option<Inode>, Errno> {
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
        let content = match self.area(folder)? {
            Area::Data => self.new_content(),
            Area::Scratch | Area::ReadOnly => Content::default(),
        };
        Ok((self.add(folder, &name, Kind::File(content))?, true))
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
}
