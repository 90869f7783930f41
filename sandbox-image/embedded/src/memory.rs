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
    os::{fd::AsFd, unix::fs::FileExt},
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
    entries: Vec<u8>,
}

impl Pages {
    /// Opens the file. Not possible any more once nothing can be opened.
    pub(crate) fn open() -> io::Result<Self> {
        Ok(Self { file: File::open("/proc/self/pagemap")?, entries: vec![] })
    }

    /// The numbers of pages from an address on that are private: written since they were mapped.
    pub(crate) fn private(&mut self, base: *const u8, len: usize) -> io::Result<Vec<u32>> {
        let count = len / PAGE;
        self.entries.resize(count * 8, 0);
        self.file.read_exact_at(&mut self.entries, (base as u64 / PAGE as u64) * 8)?;
        // Present and not of a file or shared, or swapped out.
        let is_private = |top: u8| top & 0xa0 == 0x80 || top & 0x40 != 0;
        let tops = self.entries.iter().skip(7).step_by(8);
        let private = tops.enumerate().filter(|(_, top)| is_private(**top));
        Ok(private.map(|(page, _)| u32::try_from(page).unwrap_or(u32::MAX)).collect())
    }
}
