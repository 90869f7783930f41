//! The contents of files, within the quotas of the areas.

use super::{Area, FileSystem, Inode, Kind};
use crate::files::{Content, Errno};

/// The usage and the limit of an area.
#[derive(Debug, Clone, Copy)]
pub(super) struct Quota {
    pub(super) bytes: u64,
    pub(super) most_bytes: u64,
    /// Number of nodes. A node with several names counts once for each.
    pub(super) nodes: u32,
}

impl FileSystem {
    pub(super) fn quota(&mut self, area: Area) -> Option<&mut Quota> {
        match area {
            Area::Data => Some(&mut self.data),
            Area::Scratch => Some(&mut self.scratch),
            Area::ReadOnly => None,
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
    pub(super) fn left(&mut self, area: Area) -> Result<u64, Errno> {
        let staged = if area == Area::Data { self.staged } else { 0 };
        let quota = self.quota(area).ok_or(Errno::Rofs)?;
        Ok(quota.most_bytes.saturating_sub(quota.bytes + staged))
    }

    /// Writes as many bytes as there is space for, and returns their number.
    ///
    /// # Errors
    /// If there is no space for the first one, or the disk fails before.
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
        let Kind::File(content) = &mut self.node_mut(file)?.kind else { return Err(Errno::Badf) };
        let count = content.write(offset, &bytes[..count])?;
        let grown = content.len() - len;
        if let Some(quota) = self.quota(area) {
            quota.bytes += grown;
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
    pub(crate) fn used_bytes(&self) -> u64 {
        self.data.bytes
    }

    /// Reserves bytes of the data area for an upload.
    pub(in crate::files) fn stage(&mut self, bytes: u64) -> Result<(), Errno> {
        if bytes > self.left(Area::Data)? {
            return Err(Errno::Nospc);
        }
        self.staged += bytes;
        Ok(())
    }

    pub(in crate::files) fn unstage(&mut self, bytes: u64) {
        self.staged = self.staged.saturating_sub(bytes);
    }
}
