//! The memory of guests: reserved by us, so that an image can be mapped over it, and so that it can be told which
//! of its pages a guest has written.
//!
//! ```text
//! 0 ............... size ................................ 4 GiB ... guard
//! | image, private  | pages of zeros | reserved, no access           |
//! ```

#![expect(
    unsafe_code,
    reason = "files are mapped over the memory of guests, which only the kernel can do"
)]

use std::{
    ffi::c_void,
    fs::File,
    io,
    num::NonZeroUsize,
    os::{
        fd::{AsFd, AsRawFd},
        unix::fs::FileExt,
    },
    path::Path,
    ptr::NonNull,
    sync::atomic::{AtomicUsize, Ordering},
};

use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous, mprotect, munmap};
use wasmtime::{LinearMemory, MemoryCreator, MemoryType};

use crate::machine::Machine;

/// Bytes of a page of this machine, as `pagemap` counts them.
pub(crate) const PAGE: usize = 4096;

/// Bytes that are reserved for a memory of 32-bit addresses.
const RESERVED: usize = 4 << 30;

/// Makes memories.
#[derive(Debug)]
pub(crate) struct Creator;

/// A stretch of addresses of which the start may be used.
struct Reserved {
    base: NonNull<c_void>,
    /// Bytes that are mapped, guard included.
    mapped: usize,
    /// Bytes that the guest has.
    size: AtomicUsize,
}

// Safety: the addresses belong to this value alone, and the pointer is no more than a number.
unsafe impl Send for Reserved {}
// Safety: as above; whoever shares it can only ask for numbers.
unsafe impl Sync for Reserved {}

// Safety: `new_memory` gives what it is asked for, and no less than wasmtime relies upon: the guard included, none
// of which can be accessed, at an address that never changes.
unsafe impl MemoryCreator for Creator {
    fn new_memory(
        &self,
        _: MemoryType,
        minimum: usize,
        _: Option<usize>,
        reserved: Option<usize>,
        guard: usize,
    ) -> Result<Box<dyn LinearMemory>, String> {
        let capacity = reserved.unwrap_or(RESERVED).max(minimum);
        let mapped = NonZeroUsize::new(capacity + guard).ok_or("no memory was asked for")?;
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
        // Safety: it is new and belongs to nobody.
        let base = unsafe { mmap_anonymous(None, mapped, ProtFlags::PROT_NONE, flags) }
            .map_err(|error| format!("no room for a guest's memory: {error}"))?;
        let mut memory = Reserved { base, mapped: mapped.get(), size: AtomicUsize::new(0) };
        LinearMemory::grow_to(&mut memory, minimum).map_err(|error| error.to_string())?;
        Ok(Box::new(memory))
    }
}

// Safety: what is said of its size is so, and the address never changes.
unsafe impl LinearMemory for Reserved {
    fn byte_size(&self) -> usize {
        self.size.load(Ordering::Relaxed)
    }

    fn byte_capacity(&self) -> usize {
        self.mapped
    }

    fn grow_to(&mut self, size: usize) -> wasmtime::Result<()> {
        let old = self.byte_size();
        if size > old {
            // Safety: wasmtime asks for no more than what is reserved.
            let start = unsafe { self.base.add(old) };
            // Safety: as above; nobody has any of it yet.
            unsafe { mprotect(start, size - old, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE) }
                .map_err(|error| wasmtime::format_err!("no memory: {error}"))?;
        }
        self.size.store(size, Ordering::Relaxed);
        Ok(())
    }

    fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr().cast()
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        // Safety: it was mapped so, and nobody has it any more.
        let _ = unsafe { munmap(self.base, self.mapped) };
    }
}

/// Puts the contents of a file, of so many bytes, over the start of a guest's memory, to be written to without the
/// file noticing.
pub(crate) fn map_over(machine: &mut Machine, file: &File, len: usize) -> wasmtime::Result<()> {
    let (base, size) = machine.extent();
    if len > size {
        return Err(wasmtime::format_err!("an image that is larger than the memory"));
    }
    let Some(len) = NonZeroUsize::new(len) else { return Ok(()) };
    let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_FIXED | MapFlags::MAP_NORESERVE;
    let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // Safety: the addresses are those of a memory that `Creator` has made, which nobody refers to while `machine`
    // is borrowed, and guests bear whatever it holds.
    unsafe { mmap(NonZeroUsize::new(base as usize), len, access, flags, file.as_fd(), 0) }
        .map_err(|error| wasmtime::format_err!("an image that cannot be mapped: {error}"))?;
    Ok(())
}

/// A view of a file that nobody changes: those of a runtime's folder, which is its owner's alone.
pub(crate) fn map(file: &File) -> io::Result<memmap2::Mmap> {
    // Safety: what could change it could as well replace this program, and would harm nobody but its own user.
    unsafe { memmap2::Mmap::map(file) }
}

/// Loads a module that `wasmtime` has compiled.
pub(crate) fn load(engine: &wasmtime::Engine, path: &Path) -> wasmtime::Result<wasmtime::Module> {
    // Safety: it is native code, as this program is, from a folder that only its user can write to; that is looked
    // at before.
    unsafe { wasmtime::Module::deserialize_file(engine, path) }
}

/// Tells which pages of this process are its own (Linux, Documentation/admin-guide/mm/pagemap).
#[derive(Debug)]
pub(crate) struct Pages {
    file: File,
    found: Vec<Found>,
    /// The kernel can look for them itself (Linux 6.7).
    can_scan: bool,
    entries: Vec<u8>,
}

/// `struct page_region`: pages in a row, by their addresses.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
struct Found {
    start: u64,
    end: u64,
    categories: u64,
}

/// `struct pm_scan_arg`.
#[derive(Debug, Default)]
#[repr(C)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    /// Where it left off, as there was no room for more.
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

const FILE: u64 = 1 << 2;
const PRESENT: u64 = 1 << 3;
const SWAPPED: u64 = 1 << 4;
const ZERO: u64 = 1 << 5;

/// Rows of pages that are found at a time.
const MAX_FOUND: usize = 1024;

nix::ioctl_readwrite!(pagemap_scan, b'f', 16, Scan);

/// The number of that call, by which a filter knows it.
pub(crate) const PAGEMAP_SCAN: u64 = nix::request_code_readwrite!(b'f', 16, size_of::<Scan>());

impl Pages {
    /// Opens the file. Not possible any more once nothing can be opened.
    pub(crate) fn open() -> io::Result<Self> {
        let file = File::open("/proc/self/pagemap")?;
        Ok(Self { file, found: vec![Found::default(); MAX_FOUND], can_scan: true, entries: vec![] })
    }

    /// The numbers of pages from an address on that are private: written since they were mapped.
    pub(crate) fn private(&mut self, base: *const u8, len: usize) -> io::Result<Vec<u32>> {
        if self.can_scan {
            match self.scan(base as u64, len) {
                Ok(found) => return Ok(found),
                // An older kernel, or what stands for one.
                Err(_) => self.can_scan = false,
            }
        }
        self.read(base as u64, len)
    }

    fn scan(&mut self, base: u64, len: usize) -> io::Result<Vec<u32>> {
        let (mut private, end) = (vec![], base + len as u64);
        let mut scan = Scan {
            size: size_of::<Scan>() as u64,
            start: base,
            end,
            vec: self.found.as_mut_ptr() as u64,
            vec_len: MAX_FOUND as u64,
            // Of no file, not the page of zeros that all share, and there or swapped out.
            category_inverted: FILE | ZERO,
            category_mask: FILE | ZERO,
            category_anyof_mask: PRESENT | SWAPPED,
            return_mask: PRESENT,
            ..Scan::default()
        };
        while scan.start < end {
            // Safety: it writes to `found`, which has room for what it is told, and to `scan` itself.
            let rows = unsafe { pagemap_scan(self.file.as_raw_fd(), &raw mut scan) }?;
            let rows = self.found.get(..usize::try_from(rows).unwrap_or(0)).unwrap_or(&[]);
            let number = |address: u64| u32::try_from((address - base) / PAGE as u64);
            for row in rows {
                let first = number(row.start).unwrap_or(u32::MAX);
                private.extend(first..number(row.end).unwrap_or(u32::MAX));
            }
            if rows.len() < MAX_FOUND {
                break;
            }
            if scan.walk_end <= scan.start {
                return Err(io::ErrorKind::InvalidData.into());
            }
            scan.start = scan.walk_end;
        }
        Ok(private)
    }

    fn read(&mut self, base: u64, len: usize) -> io::Result<Vec<u32>> {
        self.entries.resize(len / PAGE * 8, 0);
        self.file.read_exact_at(&mut self.entries, (base / PAGE as u64) * 8)?;
        // Present and not of a file or shared, or swapped out.
        let is_private = |top: u8| top & 0xa0 == 0x80 || top & 0x40 != 0;
        let tops = self.entries.iter().skip(7).step_by(8);
        let private = tops.enumerate().filter(|(_, top)| is_private(**top));
        Ok(private.map(|(page, _)| u32::try_from(page).unwrap_or(u32::MAX)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_were_written_are_found_in_both_ways() {
        const COUNT: usize = 5000;
        let mut memory = memmap2::MmapMut::map_anon(COUNT * PAGE).expect("memory");
        let written: Vec<u32> = (0..5000).filter(|page| page % 3 == 1 || *page > 4990).collect();
        for page in &written {
            memory[*page as usize * PAGE] = 1;
        }
        let mut pages = Pages::open().expect("Linux");
        let base = memory.as_ptr() as u64;
        assert!(pages.read(base, COUNT * PAGE).expect("read") == written);
        // Where the kernel cannot, the other way is taken.
        if let Ok(found) = pages.scan(base, COUNT * PAGE) {
            assert!(found == written, "{} and not {}", found.len(), written.len());
        }
        assert!(pages.private(memory.as_ptr(), COUNT * PAGE).expect("one of them") == written);
    }
}
