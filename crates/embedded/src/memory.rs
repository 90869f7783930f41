//! The memory of guests. We reserve it ourselves, so that an image can be mapped over it, and so that the pages that a
//! guest has written can be found.
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
    ops::Range,
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

/// Bytes of a page of a state, the unit in which memories are compared and saved. A page of the machine, the unit of
/// `pagemap`, has one or several: on arm64 there are kernels with pages of 4, 16 and 64 KiB.
pub(crate) const PAGE: usize = 4096;

/// Bytes of address space that are reserved for a memory with 32-bit addresses.
pub(crate) const RESERVED: usize = 4 << 30;

/// Creates the memories of guests.
#[derive(Debug)]
pub(crate) struct Creator;

/// A reserved range of addresses, whose start is accessible.
struct Reserved {
    base: NonNull<c_void>,
    /// Bytes that are mapped, including the guard.
    mapped: usize,
    /// Bytes that are accessible to the guest.
    size: AtomicUsize,
}

// Safety: this value alone owns the addresses, and never dereferences the pointer.
unsafe impl Send for Reserved {}
// Safety: as above; a shared reference gives access to numbers only.
unsafe impl Sync for Reserved {}

// Safety: `new_memory` returns a memory of at least the requested sizes, with an inaccessible guard, at an address that
// never changes, as wasmtime requires.
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
        // Safety: the mapping is new, so nothing else uses its addresses.
        let base = unsafe { mmap_anonymous(None, mapped, ProtFlags::PROT_NONE, flags) }
            .map_err(|error| format!("no room for a guest's memory: {error}"))?;
        let mut memory = Reserved { base, mapped: mapped.get(), size: AtomicUsize::new(0) };
        LinearMemory::grow_to(&mut memory, minimum).map_err(|error| error.to_string())?;
        Ok(Box::new(memory))
    }
}

// Safety: the reported size is correct, and the address never changes.
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
            // Safety: wasmtime requests no more than the reserved size.
            let start = unsafe { self.base.add(old) };
            // Safety: as above; the new part is not in use yet.
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
        // Safety: this range was mapped as such, and is no longer in use.
        let _ = unsafe { munmap(self.base, self.mapped) };
    }
}

/// Maps `len` bytes of a file over the start of a guest's memory. Writes to the memory do not change the file.
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
    // Safety: the addresses are those of a memory of `Creator`, to which no reference exists while `machine` is
    // borrowed, and any contents are valid for a guest.
    unsafe { mmap(NonZeroUsize::new(base as usize), len, access, flags, file.as_fd(), 0) }
        .map_err(|error| wasmtime::format_err!("an image that cannot be mapped: {error}"))?;
    watch.over(base as u64, RESERVED as u64);
    Ok(())
}

/// Makes the kernel record which pages of a memory are written after they were protected: asynchronous write
/// protection of userfaultfd (Linux 6.7), which needs no handler of its events.
#[derive(Debug)]
pub(crate) struct Watch(Option<OwnedFd>);

impl Watch {
    /// Must be called while the system call for it is still allowed. If the kernel does not support it, all pages that
    /// were ever written count as written.
    pub(crate) fn open() -> Self {
        let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::from_bits_retain(USER_MODE_ONLY);
        // Safety: only memories of guests are registered with this descriptor.
        let Ok(watch) = (unsafe { userfaultfd(flags) }) else { return Self(None) };
        let mut api = Agreement { api: UFFD_API, features: WP_ASYNC, ioctls: 0 };
        // Safety: the call reads and writes `api` only.
        let agreed = unsafe { uffdio_api(watch.as_raw_fd(), &raw mut api) };
        Self(agreed.is_ok().then_some(watch))
    }

    /// Watches `len` bytes of memory from `start` on.
    fn over(&self, start: u64, len: u64) {
        let Some(watch) = &self.0 else { return };
        let mut register = Register { start, len, mode: MODE_WP, ioctls: 0 };
        // Safety: the call reads and writes `register` only, and does not change the contents of the memory.
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
/// Watches accesses of user code only, which needs no privilege.
const USER_MODE_ONLY: u32 = 1;
const WP_ASYNC: u64 = 1 << 15;
const MODE_WP: u64 = 1 << 1;

nix::ioctl_readwrite!(uffdio_api, 0xaa, 0x3f, Agreement);
nix::ioctl_readwrite!(uffdio_register, 0xaa, 0x00, Register);

/// The number of the `ioctl` that registers memory, for the filter of system calls.
pub(crate) const UFFDIO_REGISTER: u64 =
    nix::request_code_readwrite!(0xaa, 0x00, size_of::<Register>());

/// Maps a file that does not change, such as those of a runtime's folder, which only its owner can write to.
pub(crate) fn map(file: &File) -> io::Result<memmap2::Mmap> {
    // Safety: only this program's own user can change the file, and could as well replace the program.
    unsafe { memmap2::Mmap::map(file) }
}

/// Loads a module that `wasmtime` has compiled.
pub(crate) fn load(engine: &wasmtime::Engine, path: &Path) -> wasmtime::Result<wasmtime::Module> {
    // Safety: the file is native code from a folder that only this program's user can write to, which is checked
    // before.
    unsafe { wasmtime::Module::deserialize_file(engine, path) }
}

/// Finds the private and the written pages of this process (Linux, Documentation/admin-guide/mm/pagemap).
#[derive(Debug)]
pub(crate) struct Pages {
    file: File,
    /// Number of pages in a page of the machine.
    per: u32,
    found: Vec<Found>,
    /// Whether the kernel can search for pages itself (Linux 6.7).
    can_scan: bool,
    entries: Vec<u8>,
}

/// `struct page_region`: consecutive pages, by their addresses.
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
    /// Address at which the scan stopped because `vec` was full.
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

/// A selection of pages: in none of the categories `not`, in each of `all`, and in at least one of `any`.
#[derive(Debug, Clone, Copy)]
struct Which {
    not: u64,
    all: u64,
    any: u64,
}

/// Private pages: not of a file, not the shared page of zeros, and present or swapped out.
const PRIVATE: Which = Which { not: FILE | ZERO, all: 0, any: PRESENT | SWAPPED };
/// Pages written since they were protected. The kernel does not look up what they belong to, which is faster. Before
/// the first protection, this includes pages that were only read.
const WATCHED: Which = Which { not: 0, all: WRITTEN, any: PRESENT | SWAPPED };
/// Pages that are still those of a file, because they were only read.
const READ: Which = Which { not: 0, all: WRITTEN | FILE, any: PRESENT };

/// Maximum number of pages that are returned as written without protecting those that were only read.
const MANY: usize = 2048;

/// `PM_SCAN_WP_MATCHING` and `PM_SCAN_CHECK_WPASYNC`: protects the pages that are found, if they can be protected.
const PROTECT: u64 = 1 << 0 | 1 << 1;

/// Maximum number of rows of pages that one scan returns.
const MAX_FOUND: usize = 1024;

nix::ioctl_readwrite!(pagemap_scan, b'f', 16, Scan);

/// The number of the `ioctl` that scans pages, for the filter of system calls.
pub(crate) const PAGEMAP_SCAN: u64 = nix::request_code_readwrite!(b'f', 16, size_of::<Scan>());

impl Pages {
    /// Opens `pagemap`. Must be called while files can still be opened.
    pub(crate) fn open() -> io::Result<Self> {
        let file = File::open("/proc/self/pagemap")?;
        let per = u32::try_from(rustix::param::page_size() / PAGE).map_err(io::Error::other)?;
        let found = vec![Found::default(); MAX_FOUND];
        Ok(Self { file, per, found, can_scan: true, entries: vec![] })
    }

    /// The numbers of the private pages from an address on: those written since they were mapped.
    pub(crate) fn private(&mut self, base: *const u8, len: usize) -> io::Result<Vec<u32>> {
        self.find(base, len, PRIVATE)
    }

    /// The numbers of the pages that may have been written since they were [protected](Self::protect), or mapped.
    pub(crate) fn written(&mut self, base: *const u8, len: usize) -> io::Result<Vec<u32>> {
        let mut found = self.find(base, len, WATCHED)?;
        if found.len() > MANY {
            // Most of these pages were only read since they were mapped.
            let _ = self.scan(base as u64, len, READ, PROTECT);
            found = self.find(base, len, WATCHED)?;
        }
        Ok(found)
    }

    /// Protects these pages, given in ascending order: [`written`](Self::written) returns them only if they are written
    /// again. If the kernel does not support that, they are always returned.
    pub(crate) fn protect(&self, base: *const u8, pages: &[u32]) {
        let address = |page: u32| base as u64 + u64::from(page) * PAGE as u64;
        for row in pages.chunk_by(|page, next| page + 1 == *next) {
            let (Some(first), Some(last)) = (row.first(), row.last()) else { continue };
            let row = whole(*first..last + 1, self.per);
            if row.is_empty() {
                continue;
            }
            // Without an output buffer, the kernel protects all pages of the range.
            let mut scan = Scan {
                size: size_of::<Scan>() as u64,
                flags: PROTECT,
                start: address(row.start),
                end: address(row.end),
                category_mask: WRITTEN,
                ..Scan::default()
            };
            // Safety: the call writes to `scan` only.
            let _ = unsafe { pagemap_scan(self.file.as_raw_fd(), &raw mut scan) };
        }
    }

    fn find(&mut self, base: *const u8, len: usize, which: Which) -> io::Result<Vec<u32>> {
        if self.can_scan {
            match self.scan(base as u64, len, which, 0) {
                Ok(found) => return Ok(found),
                // The kernel is older, or emulated.
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
            // Safety: the call writes to `found`, which has `vec_len` elements, and to `scan` only.
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
        let page = self.per as usize * PAGE;
        self.entries.resize(len / page * 8, 0);
        self.file.read_exact_at(&mut self.entries, (base / page as u64) * 8)?;
        Ok(private(&self.entries, self.per))
    }
}

/// The pages of a row that fill pages of the machine, of which each has `per`. The kernel protects no others.
fn whole(row: Range<u32>, per: u32) -> Range<u32> {
    row.start.next_multiple_of(per)..row.end / per * per
}

/// The numbers of the private pages in these entries of `pagemap`, 8 bytes for `per` pages each.
fn private(entries: &[u8], per: u32) -> Vec<u32> {
    // Present and neither of a file nor shared, or swapped out.
    let is_private = |top: u8| top & 0xa0 == 0x80 || top & 0x40 != 0;
    let firsts = (0..).step_by(per as usize);
    let entries = firsts.zip(entries.iter().skip(7).step_by(8));
    let found = entries.filter(|(_, top)| is_private(**top));
    found.flat_map(|(first, _)| first..first + per).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_are_written_after_they_were_protected_are_found() {
        const COUNT: usize = 3 * MANY;
        // Pages of this machine.
        let page = rustix::param::page_size();
        let all = |numbers: &[usize]| -> Vec<u32> {
            let per = page / PAGE;
            let pages = numbers.iter().flat_map(|number| number * per..(number + 1) * per);
            pages.map(|page| u32::try_from(page).expect("a few")).collect()
        };
        let file = tempfile::tempfile().expect("a file");
        file.write_all_at(&vec![7; COUNT * page], 0).expect("written");
        // Safety: nothing else uses the file.
        let mut memory = unsafe { memmap2::MmapOptions::new().map_copy(&file) }.expect("memory");
        let base = memory.as_ptr();
        let watch = Watch::open();
        watch.over(base as u64, (COUNT * page) as u64);
        let mut pages = Pages::open().expect("Linux");
        assert!(memory.iter().step_by(page).all(|byte| *byte == 7));
        let mut change = |numbers: &[usize]| {
            for number in numbers {
                memory[number * page] = memory[number * page].wrapping_add(1);
            }
        };
        change(&[3, 4, 100, COUNT - 1]);
        let last = COUNT - 1;
        assert_eq!(pages.written(base, COUNT * page).expect("found"), all(&[3, 4, 100, last]));
        pages.protect(base, &all(&[3, 4]));
        change(&[4, 5]);
        let found = pages.written(base, COUNT * page).expect("found");
        let private = pages.private(base, COUNT * page).expect("found");
        assert_eq!(private, all(&[3, 4, 5, 100, last]));
        // An older kernel reports all private pages.
        assert!(found == all(&[4, 5, 100, last]) || found == private, "{found:?}");
    }

    #[test]
    fn a_page_of_the_machine_may_have_several_pages() {
        // Not there, private, of a file, swapped out.
        let entries: Vec<u8> =
            [0, 0x80, 0xa0, 0x40].into_iter().flat_map(|top| [1, 2, 3, 4, 5, 6, 7, top]).collect();
        assert_eq!(private(&entries, 1), [1, 3]);
        assert_eq!(private(&entries, 4), [4, 5, 6, 7, 12, 13, 14, 15]);
        let all: Vec<_> = (16..32).chain(48..64).collect();
        assert_eq!(private(&entries, 16), all);
        assert_eq!([whole(3..9, 1), whole(3..9, 4), whole(4..8, 4)], [3..9, 4..8, 4..8]);
        assert!(whole(5..8, 4).is_empty() && whole(1..3, 16).is_empty());
    }

    #[test]
    fn pages_that_were_written_are_found_in_both_ways() {
        // Whole pages of the machine.
        const COUNT: usize = 5008;
        let mut memory = memmap2::MmapMut::map_anon(COUNT * PAGE).expect("memory");
        let mut pages = Pages::open().expect("Linux");
        let of_machine = 0..u32::try_from(COUNT).expect("a few") / pages.per;
        let written = of_machine.filter(|page| page % 3 == 1 || *page > 4990);
        let written: Vec<u32> =
            written.flat_map(|page| page * pages.per..(page + 1) * pages.per).collect();
        for page in &written {
            memory[*page as usize * PAGE] = 1;
        }
        let base = memory.as_ptr() as u64;
        assert!(pages.read(base, COUNT * PAGE).expect("read") == written);
        // If the kernel cannot scan, `private` reads the entries.
        if let Ok(found) = pages.scan(base, COUNT * PAGE, PRIVATE, 0) {
            assert!(found == written, "{} and not {}", found.len(), written.len());
        }
        assert!(pages.private(memory.as_ptr(), COUNT * PAGE).expect("one of them") == written);
    }
}
