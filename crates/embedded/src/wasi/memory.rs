//! A guest's memory: little-endian numbers at addresses that may be invalid.

use crate::files::Errno;

/// Maximum number of buffers in the list of one call.
const MAX_BUFFERS: u32 = 1024;

/// A guest's memory.
pub(super) struct Memory<'a>(pub(super) &'a mut [u8]);

impl Memory<'_> {
    pub(super) fn get(&self, at: u32, len: u32) -> Result<&[u8], Errno> {
        let (at, len) = (at as usize, len as usize);
        self.0.get(at..at.checked_add(len).ok_or(Errno::Fault)?).ok_or(Errno::Fault)
    }

    pub(super) fn get_mut(&mut self, at: u32, len: u32) -> Result<&mut [u8], Errno> {
        let (at, len) = (at as usize, len as usize);
        self.0.get_mut(at..at.checked_add(len).ok_or(Errno::Fault)?).ok_or(Errno::Fault)
    }

    pub(super) fn write(&mut self, at: u32, bytes: &[u8]) -> Result<(), Errno> {
        let len = u32::try_from(bytes.len()).map_err(|_| Errno::Fault)?;
        self.get_mut(at, len)?.copy_from_slice(bytes);
        Ok(())
    }

    pub(super) fn write_u32(&mut self, at: u32, value: u32) -> Result<(), Errno> {
        self.write(at, &value.to_le_bytes())
    }

    pub(super) fn write_u64(&mut self, at: u32, value: u64) -> Result<(), Errno> {
        self.write(at, &value.to_le_bytes())
    }

    pub(super) fn read_u32(&self, at: u32) -> Result<u32, Errno> {
        let bytes = self.get(at, 4)?;
        Ok(u32::from_le_bytes(bytes.try_into().map_err(|_| Errno::Fault)?))
    }

    pub(super) fn read_u64(&self, at: u32) -> Result<u64, Errno> {
        let bytes = self.get(at, 8)?;
        Ok(u64::from_le_bytes(bytes.try_into().map_err(|_| Errno::Fault)?))
    }

    /// A text such as a path.
    pub(super) fn text(&self, at: u32, len: u32) -> Result<String, Errno> {
        if len > 8192 {
            return Err(Errno::Nametoolong);
        }
        let text = std::str::from_utf8(self.get(at, len)?).map_err(|_| Errno::Ilseq)?;
        if text.contains('\0') { Err(Errno::Inval) } else { Ok(text.to_owned()) }
    }

    /// Addresses and lengths of the buffers in a list.
    pub(super) fn buffers(&self, at: u32, count: u32) -> Result<Vec<(u32, u32)>, Errno> {
        if count > MAX_BUFFERS {
            return Err(Errno::Inval);
        }
        let entry = |n: u32| {
            let at = at.checked_add(n * 8).ok_or(Errno::Fault)?;
            Ok((self.read_u32(at)?, self.read_u32(at.checked_add(4).ok_or(Errno::Fault)?)?))
        };
        (0..count).map(entry).collect()
    }

    /// Writes zero-terminated texts at `at`, and their addresses at `starts`: the form of arguments and variables.
    pub(super) fn write_texts(
        &mut self,
        texts: &[String],
        starts: u32,
        at: u32,
    ) -> Result<(), Errno> {
        let (mut starts, mut at) = (starts, at);
        for text in texts {
            self.write_u32(starts, at)?;
            self.write(at, text.as_bytes())?;
            let end = at.checked_add(u32::try_from(text.len()).map_err(|_| Errno::Fault)?);
            let end = end.ok_or(Errno::Fault)?;
            self.write(end, &[0])?;
            at = end.checked_add(1).ok_or(Errno::Fault)?;
            starts = starts.checked_add(4).ok_or(Errno::Fault)?;
        }
        Ok(())
    }
}
