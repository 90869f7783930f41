//! Returns freed memory to the system. The C library keeps freed memory for later use, and never returns what many
//! threads have freed in pieces: a server that was busy once would stay large.

use std::{fs, time::Duration};

use tokio::time::interval;

/// How often the process looks at its own size.
const INTERVAL: Duration = Duration::from_secs(5);

/// Growth over the smallest size so far that makes a trim worthwhile, in bytes.
const GROWTH: u64 = 8 << 20;

/// Returns memory to the system soon after it was freed, until the task is dropped.
pub(crate) async fn keep_small() {
    map_large_blocks();
    let mut tick = interval(INTERVAL);
    let mut smallest = u64::MAX;
    loop {
        tick.tick().await;
        let Some(size) = resident() else { return };
        if size > smallest.saturating_add(GROWTH) {
            // A trim takes milliseconds, in which other threads wait if they need memory.
            let _ = tokio::task::spawn_blocking(trim).await;
        }
        smallest = smallest.min(resident().unwrap_or(size));
    }
}

/// Resident memory of this process, in bytes; `None` if the system does not say.
fn resident() -> Option<u64> {
    let statm = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split(' ').nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

/// Has large blocks mapped separately, so that they return to the system when they are freed. By default the C library
/// stops doing so for sizes that were freed before.
fn map_large_blocks() {
    #[cfg(target_env = "gnu")]
    {
        const LARGE: libc::c_int = 256 << 10;
        #[expect(unsafe_code, reason = "sets an option of the allocator; no memory is touched")]
        unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
        }
    }
}

/// Returns free memory to the system.
fn trim() {
    #[cfg(target_env = "gnu")]
    {
        #[expect(unsafe_code, reason = "only what is free is given back")]
        unsafe {
            libc::malloc_trim(0);
        }
    }
}
