//! Defaults and bounds of the settings that say what a container is and how many there may be: a server and the
//! relay in front of its engine must have the same. Defaults are as they would be written; bounds are the least
//! and the most. To an engine, zero means no limit.

use protocol::limits::MAX_HOLD_MS;

/// Memory of a sandbox.
pub const MEMORY_LIMIT: &str = "512MB";

/// In bytes.
pub const MEMORY_BYTES: (u64, u64) = (64 << 20, 1 << 40);

/// Least memory of one session that asks for less than the others have, in bytes.
pub const MIN_SESSION_MEMORY: u64 = 64_000_000;

/// Its processors.
pub const CPU_LIMIT: &str = "1.0";

/// How many, fractions allowed.
pub const CPUS: (f64, f64) = (0.05, 1024.0);

/// Its processes and threads.
pub const PIDS_LIMIT: &str = "128";

/// How many.
pub const PIDS: (u64, u64) = (16, 1 << 22);

/// What it is made from.
pub const IMAGE: &str = "llm-sandbox:latest";

/// How many there may be.
pub const MAX_SESSIONS: &str = "10";

/// How many.
pub const SESSIONS: (u64, u64) = (1, 10_000);

/// How long a sandbox outlives its stream, in seconds.
pub const HOLD_SECONDS: (u64, u64) = (0, MAX_HOLD_MS / 1000);

/// What may be installed.
pub const PACKAGES: &str = "off";

/// Packages of a sandbox.
pub const PACKAGES_LIMIT: &str = "128MB";

/// In bytes.
pub const PACKAGES_BYTES: (u64, u64) = (1 << 20, 1 << 40);

/// The engine's network by which packages are fetched.
pub const PACKAGES_NETWORK: &str = "bridge";

/// What may be set as that network: none of the engine's own words for another kind.
pub fn is_network(name: &str) -> bool {
    let is_of = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    !name.is_empty() && !["host", "none"].contains(&name) && name.bytes().all(is_of)
}

/// Size of the data area, in bytes. With [`max_data`], which depends on the memory.
pub const DATA_BYTES: (u64, u64) = (1 << 20, 1 << 40);

/// Most bytes of the data area with this much memory: full, it must leave room to read it.
pub fn max_data(memory: u64) -> u64 {
    memory / 4 * 3
}

/// Size of the data area in bytes, by that of the memory: files are in memory.
pub fn data_limit(memory: u64) -> u64 {
    256_000_000.min(memory / 2)
}
