//! The only ways in which files of datasets are opened, in a page of memory that nobody can change.
//!
//! `openat2` reads its flags from memory, which a filter of system calls cannot see. All flags that this process uses
//! are therefore in one page, which is read-only and sealed (`mseal`, Linux 6.10), and the filter allows `openat2` only
//! with the addresses in that page. All of them open for reading, beneath the folder that is passed.

#![expect(
    unsafe_code,
    reason = "no library passes flags of openat2 by their address, nor seals memory"
)]

use std::{
    ffi::CStr,
    io,
    num::NonZeroUsize,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    ptr::NonNull,
    sync::OnceLock,
};

use nix::{
    errno::Errno,
    libc,
    sys::mman::{MapFlags, ProtFlags, mmap_anonymous, mprotect},
};

/// Bytes of the page; the kernel rounds up to whole pages.
const SIZE: NonZeroUsize = NonZeroUsize::new(4096).expect("not zero");

/// Longest target of a link, in bytes, as on Linux.
const MAX_TARGET: usize = 4096;

/// Attempts to resolve a path while folders of it are moved, or until no signal interrupts it.
const ATTEMPTS: usize = 16;

/// A way to open a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    /// Only its metadata, also of a link itself.
    Look,
    /// Only its metadata; links are followed.
    Find,
    /// For reading. Links are followed.
    Read,
    /// The same, without a change of its access time. Only its owner may do so.
    ReadQuietly,
}

impl How {
    const ALL: [Self; 4] = [Self::Look, Self::Find, Self::Read, Self::ReadQuietly];

    fn flags(self) -> libc::c_int {
        // Without O_NONBLOCK, a pipe that replaces a file after its type was checked would block.
        const READ: libc::c_int = libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOCTTY;
        libc::O_CLOEXEC
            | match self {
                Self::Look => libc::O_PATH | libc::O_NOFOLLOW,
                Self::Find => libc::O_PATH,
                Self::Read => READ,
                Self::ReadQuietly => READ | libc::O_NOATIME,
            }
    }
}

/// `struct open_how` of the kernel.
#[repr(C)]
struct OpenHow {
    flags: u64,
    mode: u64,
    resolve: u64,
}

#[repr(C)]
struct Page {
    hows: [OpenHow; How::ALL.len()],
    /// An empty path, which stands for the link that is open.
    nothing: [u8; 8],
}

/// The page, which stays for as long as the process.
#[derive(Debug)]
pub(crate) struct Gate(NonNull<Page>);

// Safety: the page is never written after it was made, and never freed.
unsafe impl Send for Gate {}
// Safety: as above.
unsafe impl Sync for Gate {}

impl Gate {
    /// The gate of this process.
    pub(super) fn get() -> io::Result<&'static Self> {
        static GATE: OnceLock<Gate> = OnceLock::new();
        if let Some(gate) = GATE.get() {
            return Ok(gate);
        }
        let gate = Self::new()?;
        Ok(GATE.get_or_init(|| gate))
    }

    fn new() -> io::Result<Self> {
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // Safety: the mapping is new, so nothing else uses its addresses.
        let base = unsafe { mmap_anonymous(None, SIZE, access, MapFlags::MAP_PRIVATE) }?;
        let page = base.cast::<Page>();
        let hows = How::ALL.map(|how| OpenHow {
            flags: u64::from(how.flags().unsigned_abs()),
            mode: 0,
            resolve: libc::RESOLVE_BENEATH | libc::RESOLVE_NO_MAGICLINKS,
        });
        // Safety: the page is writable, aligned, and large enough.
        unsafe { page.write(Page { hows, nothing: [0; 8] }) };
        // Safety: the page was mapped above, and nothing refers to it yet.
        unsafe { mprotect(base, SIZE.get(), ProtFlags::PROT_READ) }?;
        // Kernels before 6.10 cannot seal it. Landlock then is what keeps a faulty engine within the folders.
        // Safety: the page was mapped above, and is never unmapped.
        unsafe { libc::syscall(libc::SYS_mseal, base.as_ptr(), SIZE.get(), 0) };
        Ok(Self(page))
    }

    /// The addresses of all flags that `openat2` may be called with.
    pub(crate) fn ways(&self) -> [u64; How::ALL.len()] {
        // Safety: the page is there for as long as the process, and never changes.
        let page = unsafe { self.0.as_ref() };
        page.hows.each_ref().map(|how| std::ptr::from_ref(how) as u64)
    }

    /// Whether no access to the page can be changed. Only tests ask: where it can, it now can be written.
    #[cfg(test)]
    pub(super) fn is_sealed(&self) -> bool {
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // Safety: more access to the page changes nothing that refers to it.
        let changed = unsafe { mprotect(self.0.cast(), SIZE.get(), access) };
        changed == Err(Errno::EPERM)
    }

    /// The size of the flags of `openat2`, in bytes.
    pub(crate) const SIZE_OF_WAY: u64 = size_of::<OpenHow>() as u64;

    /// The address of the only path that `readlinkat` may be called with.
    pub(crate) fn nothing(&self) -> u64 {
        // Safety: as above.
        let page = unsafe { self.0.as_ref() };
        std::ptr::from_ref(&page.nothing) as u64
    }

    /// Opens a file beneath a folder.
    pub(super) fn open(
        &self,
        folder: BorrowedFd<'_>,
        path: &CStr,
        how: How,
    ) -> Result<OwnedFd, Errno> {
        let way = self.ways()[how as usize];
        let mut done = Err(Errno::EAGAIN);
        for _ in 0..ATTEMPTS {
            let folder = folder.as_raw_fd();
            // Safety: path and flags are valid, and the kernel only reads them.
            let opened = unsafe {
                libc::syscall(libc::SYS_openat2, folder, path.as_ptr(), way, Self::SIZE_OF_WAY)
            };
            done = Errno::result(opened);
            if !matches!(done, Err(Errno::EAGAIN | Errno::EINTR)) {
                break;
            }
        }
        let opened = libc::c_int::try_from(done?).map_err(|_| Errno::EBADF)?;
        // Safety: the descriptor is new, so nothing else owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(opened) })
    }

    /// Reads the target of a link that was opened with [`How::Look`].
    pub(super) fn target(&self, link: BorrowedFd<'_>) -> Result<Vec<u8>, Errno> {
        let mut target = vec![0u8; MAX_TARGET];
        // Safety: the path is valid, and the kernel writes at most as many bytes as the buffer has.
        let read = unsafe {
            libc::syscall(
                libc::SYS_readlinkat,
                link.as_raw_fd(),
                self.nothing(),
                target.as_mut_ptr(),
                target.len(),
            )
        };
        let read = usize::try_from(Errno::result(read)?).map_err(|_| Errno::EIO)?;
        target.truncate(read);
        Ok(target)
    }
}
