//! Defaults and bounds of the settings that describe a container and limit the number of containers: a server and the
//! relay in front of its engine must have the same. Defaults are written as in the settings; bounds are the least and
//! the greatest value. To an engine, zero means no limit.

use protocol::limits::MAX_HOLD_MS;

/// Default memory of a sandbox.
pub const MEMORY_LIMIT: &str = "512MB";

/// Bounds of the memory, in bytes.
pub const MEMORY_BYTES: (u64, u64) = (64 << 20, 1 << 40);

/// The least memory of a session that asks for less than the default, in bytes.
pub const MIN_SESSION_MEMORY: u64 = 64_000_000;

/// Default processors of a sandbox.
pub const CPU_LIMIT: &str = "1.0";

/// Bounds of the number of processors, which may be a fraction.
pub const CPUS: (f64, f64) = (0.05, 1024.0);

/// Default limit of the processes and threads of a sandbox.
pub const PIDS_LIMIT: &str = "128";

/// Bounds of the number of processes and threads.
pub const PIDS: (u64, u64) = (16, 1 << 22);

/// Default image of sandboxes.
pub const IMAGE: &str = "llm-sandbox:latest";

/// Default limit of the number of sessions.
pub const MAX_SESSIONS: &str = "10";

/// Bounds of the number of sessions.
pub const SESSIONS: (u64, u64) = (1, 10_000);

/// Bounds of the time for which a sandbox outlives its stream, in seconds.
pub const HOLD_SECONDS: (u64, u64) = (0, MAX_HOLD_MS / 1000);

/// Default of the packages that may be installed.
pub const PACKAGES: &str = "off";

/// Default limit of the size of a sandbox's packages.
pub const PACKAGES_LIMIT: &str = "128MB";

/// Bounds of the size of packages, in bytes.
pub const PACKAGES_BYTES: (u64, u64) = (1 << 20, 1 << 40);

/// Default network of the engine by which packages are fetched.
pub const PACKAGES_NETWORK: &str = "bridge";

/// Whether this may be set as that network: not one of the engine's own words for other kinds.
pub fn is_network(name: &str) -> bool {
    let is_of = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    !name.is_empty() && !["host", "none"].contains(&name) && name.bytes().all(is_of)
}

/// Whether this names devices of a kind for CDI, the Container Device Interface: `vendor/class=device`, such as
/// `nvidia.com/gpu=all`.
pub fn is_device(name: &str) -> bool {
    let is_of = |more: &'static [u8]| {
        move |text: &str| {
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || more.contains(&byte);
            !text.is_empty() && text.bytes().all(is_plain)
        }
    };
    let parts =
        name.split_once('/').and_then(|(vendor, rest)| Some((vendor, rest.split_once('=')?)));
    parts.is_some_and(|(vendor, (class, device))| {
        is_of(b".-")(vendor) && is_of(b"_-")(class) && is_of(b"_-.:")(device)
    })
}

/// Bounds of the size of the data area, in bytes. [`max_data`] is a further bound, which depends on the memory.
pub const DATA_BYTES: (u64, u64) = (1 << 20, 1 << 40);

/// Default of where the data area lies.
pub const STORAGE: &str = "memory";

/// Default size of a data area on disk.
pub const DISK_LIMIT: &str = "10GB";

/// The maximum size of a data area in memory with this much memory, in bytes: if it is full, there must be room to read it.
pub fn max_data(memory: u64) -> u64 {
    memory / 4 * 3
}

/// Default size of a data area in memory, in bytes, which depends on the memory.
pub fn data_limit(memory: u64) -> u64 {
    256_000_000.min(memory / 2)
}
