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
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::fs::FileExt,
    },
    path::Path,
    ptr::NonNull,
    sync::atomic::{AtomicUsize, Ordering},
};

use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous, mprotect, munmap};
use rustix::mm::{UserfaultfdFlags, userfaultfd};
use wasmtime::{LinearMemory, MemoryCreator, MemoryType};

use crate::machine::Machine;

/// Bytes of a page of this machine, as `pagemap` counts them.
pub(crate) const PAGE: usize = 4096;

/// Bytes that are reserved for a memory of 32-bit addresses.
pub(crate) const RESERVED: usize = 4 << 30;

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
pub(crate) fn map_over(
    machine: &mut Machine,
    file: &File,
    len: usize,
    watch: &Watch,
) -> wasmtime::Result<()> {
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
    watch.over(base as u64, RESERVED as u64);
    Ok(())
}

/// Has the kernel remember which pages of a memory are written after they were protected: asynchronous write
/// protection of userfaultfd (Linux 6.7), for which nobody has to listen.
#[derive(Debug)]
pub(crate) struct Watch(Option<OwnedFd>);

impl Watch {
    /// Not possible any more once the system call for it is not allowed. Where the kernel cannot do it, all pages
    /// that ever were written count as written.
    pub(crate) fn open() -> Self {
        let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::from_bits_retain(USER_MODE_ONLY);
        // Safety: nothing is registered with it but memories of guests.
        let Ok(watch) = (unsafe { userfaultfd(flags) }) else { return Self(None) };
        let mut api = Agreement { api: UFFD_API, features: WP_ASYNC, ioctls: 0 };
        // Safety: it reads and writes what it is given.
        let agreed = unsafe { uffdio_api(watch.as_raw_fd(), &raw mut api) };
        Self(agreed.is_ok().then_some(watch))
    }

    /// Watches over so many bytes of memory from there on.
    fn over(&self, start: u64, len: u64) {
        let Some(watch) = &self.0 else { return };
        let mut register = Register { start, len, mode: MODE_WP, ioctls: 0 };
        // Safety: it reads and writes what it is given, and changes nothing of what the memory holds.
        let _ = unsafe { uffdio_register(watch.as_raw_fd(), &raw mut register) };
    }
}

/// `struct uffdio_api`.
#[repr(C)]
struct Agreement {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_register`.
#[repr(C)]
struct Register {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

const UFFD_API: u64 = 0xaa;
/// Only what user code does is watched, which any user may ask for.
const USER_MODE_ONLY: u32 = 1;
const WP_ASYNC: u64 = 1 << 15;
const MODE_WP: u64 = 1 << 1;

nix::ioctl_readwrite!(uffdio_api, 0xaa, 0x3f, Agreement);
nix::ioctl_readwrite!(uffdio_register, 0xaa, 0x00, Register);

/// The number of the call that watches over more, by which a filter knows it.
pub(crate) const UFFDIO_REGISTER: u64 =
    nix::request_code_readwrite!(0xaa, 0x00, size_of::<Register>());

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

const WRITTEN: u64 = 1 << 1;
const FILE: u64 = 1 << 2;
const PRESENT: u64 = 1 << 3;
const SWAPPED: u64 = 1 << 4;
const ZERO: u64 = 1 << 5;

/// Pages of these categories.
#[derive(Debug, Clone, Copy)]
struct Which {
    not: u64,
    all: u64,
    any: u64,
}

/// Of no file, not the page of zeros that all share, and there or swapped out.
const PRIVATE: Which = Which { not: FILE | ZERO, all: 0, any: PRESENT | SWAPPED };
/// The kernel need not look what they are of, which is faster. Those that were only read are among them at first.
const WATCHED: Which = Which { not: 0, all: WRITTEN, any: PRESENT | SWAPPED };
/// Of a file: as it is there.
const READ: Which = Which { not: 0, all: WRITTEN | FILE, any: PRESENT };

/// Pages of which that many may be new.
const MANY: usize = 2048;

/// `PM_SCAN_WP_MATCHING` and `PM_SCAN_CHECK_WPASYNC`: protects what is found, where that can be.
const PROTECT: u64 = 1 << 0 | 1 << 1;

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
        self.find(base, len, PRIVATE)
    }

    /// All that may have been written since they were [protected](Self::protect), if they were.
    pub(crate) fn written(&mut self, base: *const u8, len: usize) -> io::Result<Vec<u32>> {
        let mut found = self.find(base, len, WATCHED)?;
        if found.len() > MANY {
            // Most of them were only read since they were mapped.
            let _ = self.scan(base as u64, len, READ, PROTECT);
            found = self.find(base, len, WATCHED)?;
        }
        Ok(found)
    }

    /// Has the kernel tell of these pages, in ascending order, only when they have been written again. Where it cannot,
    /// it tells of them whenever it is asked.
    pub(crate) fn protect(&self, base: *const u8, pages: &[u32]) {
        let address = |page: u32| base as u64 + u64::from(page) * PAGE as u64;
        for row in pages.chunk_by(|page, next| page + 1 == *next) {
            let (Some(first), Some(last)) = (row.first(), row.last()) else { continue };
            // With nothing to write to it takes all that lies there, whatever it is.
            let mut scan = Scan {
                size: size_of::<Scan>() as u64,
                flags: PROTECT,
                start: address(*first),
                end: address(last + 1),
                category_mask: WRITTEN,
                ..Scan::default()
            };
            // Safety: it writes to nothing but `scan`.
            let _ = unsafe { pagemap_scan(self.file.as_raw_fd(), &raw mut scan) };
        }
    }

    fn find(&mut self, base: *const u8, len: usize, which: Which) -> io::Result<Vec<u32>> {
        if self.can_scan {
            match self.scan(base as u64, len, which, 0) {
                Ok(found) => return Ok(found),
                // An older kernel, or what stands for one.
                Err(_) => self.can_scan = false,
            }
        }
        self.read(base as u64, len)
    }

    fn scan(&mut self, base: u64, len: usize, which: Which, flags: u64) -> io::Result<Vec<u32>> {
        let (mut pages, end) = (vec![], base + len as u64);
        let mut scan = Scan {
            size: size_of::<Scan>() as u64,
            flags,
            start: base,
            end,
            vec: self.found.as_mut_ptr() as u64,
            vec_len: MAX_FOUND as u64,
            category_inverted: which.not,
            category_mask: which.not | which.all,
            category_anyof_mask: which.any,
            return_mask: WRITTEN,
            ..Scan::default()
        };
        while scan.start < end {
            // Safety: it writes to `found`, which has room for what it is told, and to `scan` itself.
            let rows = unsafe { pagemap_scan(self.file.as_raw_fd(), &raw mut scan) }?;
            let rows = self.found.get(..usize::try_from(rows).unwrap_or(0)).unwrap_or(&[]);
            let number = |address: u64| u32::try_from((address - base) / PAGE as u64);
            for row in rows {
                let first = number(row.start).unwrap_or(u32::MAX);
                pages.extend(first..number(row.end).unwrap_or(u32::MAX));
            }
            if rows.len() < MAX_FOUND {
                break;
            }
            if scan.walk_end <= scan.start {
                return Err(io::ErrorKind::InvalidData.into());
            }
            scan.start = scan.walk_end;
        }
        Ok(pages)
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
    fn pages_that_are_written_after_they_were_protected_are_found() {
        const COUNT: usize = 3 * MANY;
        let file = tempfile::tempfile().expect("a file");
        file.write_all_at(&vec![7; COUNT * PAGE], 0).expect("written");
        // Safety: nobody else has the file.
        let mut memory = unsafe { memmap2::MmapOptions::new().map_copy(&file) }.expect("memory");
        let base = memory.as_ptr();
        let watch = Watch::open();
        watch.over(base as u64, (COUNT * PAGE) as u64);
        let mut pages = Pages::open().expect("Linux");
        assert!(memory.iter().step_by(PAGE).all(|byte| *byte == 7));
        let mut change = |numbers: &[usize]| {
            for number in numbers {
                memory[number * PAGE] = memory[number * PAGE].wrapping_add(1);
            }
        };
        change(&[3, 4, 100, COUNT - 1]);
        let last = u32::try_from(COUNT - 1).expect("a few");
        assert_eq!(pages.written(base, COUNT * PAGE).expect("found"), [3, 4, 100, last]);
        pages.protect(base, &[3, 4]);
        change(&[4, 5]);
        let found = pages.written(base, COUNT * PAGE).expect("found");
        let private = pages.private(base, COUNT * PAGE).expect("found");
        assert_eq!(private, [3, 4, 5, 100, last]);
        // An older kernel tells of all that are private.
        assert!(found == [4, 5, 100, last] || found == private, "{found:?}");
    }

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
        if let Ok(found) = pages.scan(base, COUNT * PAGE, PRIVATE, 0) {
            assert!(found == written, "{} and not {}", found.len(), written.len());
        }
        assert!(pages.private(memory.as_ptr(), COUNT * PAGE).expect("one of them") == written);
    }
}
