//! What the container of a sandbox is, exactly. A server asks an engine for such containers and a relay lets no
//! other through, so both take it from here.
//!
//! - [`options`]: the whole description, with a reason for each line. [`seccomp`]: its system calls.
//! - [`host`]: what in it depends on the engine's host. [`uid`]: the user id that each has to itself.
//! - [`owner`]: the server that it belongs to, as its label says. [`defaults`]: of the settings about it.

pub mod defaults;
mod host;
mod options;
mod owner;
mod seccomp;
mod uid;

use std::time::Duration;

pub use self::{
    host::Host,
    options::{Container, PACKAGES, Purpose, create_body},
    owner::{Owner, UnknownForm},
    uid::{GID, UIDS, Uid},
};

/// Label: which program's container it is, which is always [`APP`].
pub const LABEL_APP: &str = "app";

/// This program.
pub const APP: &str = "llm-sandbox";

/// Label: the session that it is for.
pub const LABEL_SESSION: &str = "session_id";

/// Label: the [`Owner`].
pub const LABEL_OWNER: &str = "llm-sandbox.owner";

/// Label: how many seconds its agent waits for another stream when it has lost one. Not there if it ends with it.
pub const LABEL_HOLD: &str = "llm-sandbox.hold";

/// Label: it fetches packages, and has a network for that.
pub const LABEL_FETCHER: &str = "llm-sandbox.fetcher";

/// Label: the caller that it is for, by a key that names none. Only where several servers share their callers.
pub const LABEL_CALLER: &str = "llm-sandbox.caller";

/// Label: the fingerprint of the key of the servers that share their callers. What has another is none of their business.
pub const LABEL_KEY: &str = "llm-sandbox.key";

/// Where the image has the agent.
pub const AGENT: &str = "/opt/sandbox/agent";

/// Command that brings the agent of a container another stream: the same program, which nobody may read. Its process is
/// out of reach of the user's code from its first instruction on, and so is the stream that it brings.
pub const CONNECT: [&str; 2] = ["/opt/sandbox/connect", "--connect"];

/// The same where a program that nobody may read cannot be started, as under gVisor.
pub const CONNECT_READABLE: [&str; 2] = [AGENT, "--connect"];

/// How long a container may have been made and not be running yet: its server may be busy starting it.
pub const SETTLING: Duration = Duration::from_secs(60);

/// What a sandbox may use.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Memory in bytes, files on tmpfs included.
    pub memory: u64,
    /// Processors.
    pub cpus: f64,
    /// Processes and threads.
    pub pids: u32,
    /// Size of the data area in bytes.
    pub data: u64,
}

impl Limits {
    /// The same with no more memory than that, and so no more files than fit into it.
    #[must_use]
    pub fn with_memory(self, memory: u64) -> Self {
        let memory = memory.min(self.memory);
        Self { memory, data: self.data.min(defaults::data_limit(memory)), ..self }
    }
}

/// Memory of a fetcher besides what it downloads, which is kept in memory: what pip takes, with room.
const FETCHER_MEMORY: u64 = 384 << 20;

/// Fetchers of one server at a time.
pub const MAX_FETCHERS: usize = 2;

/// What a fetcher of so many bytes of packages may use.
pub fn fetcher_limits(bytes: u64) -> Limits {
    // What is downloaded, and what pip keeps meanwhile.
    let data = bytes + FETCHER_MEMORY / 4;
    Limits { memory: FETCHER_MEMORY + data, cpus: 1.0, pids: 64, data }
}

/// Size of `/tmp` and of `/dev/shm` each, in bytes, where there is so much memory: room for caches, temporary
/// files and shared arrays. Both full, and the data area as well, they leave room for what is preloaded by
/// default.
pub fn scratch_bytes(memory: u64) -> u64 {
    (memory / 16).min(32 << 20)
}

/// Whether this can be the name of a session: `[A-Za-z0-9_-]{1,64}`.
pub fn is_session_id(text: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-');
    (1..=64).contains(&text.len()) && text.bytes().all(allowed)
}
