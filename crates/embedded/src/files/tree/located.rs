//! Finds out whether a path leads into a dataset, before the tree is searched for it.

use super::{
    FileSystem, Inode, Kind, ROOT,
    path::{MAX_GUEST_PATH, MAX_LINKS},
};
use crate::files::{
    Errno,
    datasets::{DatasetPath, FOLDER, Open},
};

/// The folder that a relative path starts from.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Base<'a> {
    /// A folder of the tree.
    Node(Inode),
    /// A folder of a dataset.
    Dataset(&'a Open),
}

/// The place of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Located {
    /// In the tree: a folder, and a path from there. There may be no such file.
    Tree(Inode, String),
    /// In a dataset. There may be no such file.
    Dataset(DatasetPath),
}

impl FileSystem {
    /// Locates a path. If its last part is a link in the tree, that is followed only if `follow` is set. Links of a
    /// dataset are the host's: they stay in the dataset.
    pub(crate) fn locate(
        &self,
        base: Base<'_>,
        path: &str,
        follow: bool,
    ) -> Result<Located, Errno> {
        if path.is_empty() {
            return Err(Errno::Noent);
        }
        if path.len() > MAX_GUEST_PATH {
            return Err(Errno::Nametoolong);
        }
        let (mut at, mut rest) = match base {
            Base::Node(inode) if self.datasets.is_empty() => {
                return Ok(Located::Tree(inode, path.to_owned()));
            }
            Base::Node(inode) => (inode, path.to_owned()),
            Base::Dataset(open) => {
                let at = self.datasets.within(open, path)?;
                (at.mount(), at.into_path())
            }
        };
        if path.starts_with('/') {
            (at, rest) = (ROOT, path.to_owned());
        }
        let (mut links, mut has_left) = (0, false);
        loop {
            if self.datasets.mounted(at, "").is_some() {
                let Some(above) = leaving(&rest) else { break };
                (at, rest, has_left) = (FOLDER, above.to_owned(), true);
            }
            if rest.is_empty() {
                break;
            }
            let (part, behind) = rest.split_once('/').unwrap_or((&rest, ""));
            let is_last = part.len() == rest.len();
            let Ok(Some(found)) = self.child(at, part) else { break };
            match &self.node(found)?.kind {
                Kind::Folder { .. } => (at, rest) = (found, behind.to_owned()),
                Kind::Link(target) if !is_last || follow => {
                    links += 1;
                    if links > MAX_LINKS {
                        return Err(Errno::Loop);
                    }
                    if target.starts_with('/') {
                        at = ROOT;
                    }
                    rest = if is_last { target.clone() } else { format!("{target}/{behind}") };
                }
                Kind::File(_) | Kind::Link(_) => break,
            }
        }
        if let Some(path) = self.datasets.mounted(at, &rest) {
            return Ok(Located::Dataset(path));
        }
        Ok(match base {
            // The tree follows the whole path again, unless the path comes from a dataset.
            Base::Node(inode) if !has_left => Located::Tree(inode, path.to_owned()),
            _ if rest.is_empty() => Located::Tree(at, ".".to_owned()),
            _ => Located::Tree(at, rest),
        })
    }
}

/// The part of a path behind the `..` by which it leaves the folder that it starts from; `None` if it does not.
fn leaving(path: &str) -> Option<&str> {
    let (mut depth, mut rest) = (0usize, path);
    loop {
        let (part, behind) = rest.split_once('/').unwrap_or((rest, ""));
        match part {
            "" | "." => {}
            ".." if depth == 0 => return Some(behind),
            ".." => depth -= 1,
            _ => depth += 1,
        }
        if behind.is_empty() {
            return None;
        }
        rest = behind;
    }
}
