//! Defaults of the settings that say what a container is and how many there may be, as they would be written: a
//! server and the relay in front of its engine must have the same.

/// Memory of a sandbox.
pub const MEMORY_LIMIT: &str = "512MB";

/// Its processors.
pub const CPU_LIMIT: &str = "1.0";

/// Its processes and threads.
pub const PIDS_LIMIT: &str = "128";

/// What it is made from.
pub const IMAGE: &str = "llm-sandbox:latest";

/// How many there may be.
pub const MAX_SESSIONS: &str = "10";

/// Size of the data area in bytes, by that of the memory: files are in memory.
pub fn data_limit(memory: u64) -> u64 {
    256_000_000.min(memory / 2)
}
