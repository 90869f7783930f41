//! The exact description of a sandbox's container. A server asks an engine for such containers and a relay refuses all
//! others, so both use this crate.
//!
//! - [`options`]: the whole description, with a reason for each line. [`seccomp`]: the allowed system calls.
//! - [`dataset`]: folders of the host that it can read. [`host`]: the engine and its host, on which the description depends. [`uid`]: the user id of each container.
//! - [`profiles`]: files of system calls, for an engine that reads them. [`owner`]: the server of a container, as its label says. [`defaults`]: defaults of the settings for containers.

mod dataset;
pub mod defaults;
mod host;
mod options;
mod owner;
mod profiles;
mod seccomp;
mod uid;

use std::{str::FromStr, time::Duration};

pub use protocol::limits::DATASETS;

pub use self::{
    dataset::{
        Dataset, EMPTY_VOLUME, View, dataset_danger, dataset_folder, empty_volume, is_dataset_name,
        named_folder,
    },
    host::{HOST_FIELDS, Host, PODMAN_INFO, Product, Settable, add_podman_info, has_podman_info},
    options::{
        Container, PACKAGES, Purpose, agent_arguments, create_body, rlimits, rlimits_argument,
    },
    owner::{Owner, UnknownForm},
    profiles::{Profiles, folder_for_engine},
    uid::{GID, UIDS, Uid, uids_below},
};

/// Label: the program of the container, which is always [`APP`].
pub const LABEL_APP: &str = "app";

/// The name of this program.
pub const APP: &str = "llm-sandbox";

/// Label: the session of the container.
pub const LABEL_SESSION: &str = "session_id";

/// Label: the [`Owner`].
pub const LABEL_OWNER: &str = "llm-sandbox.owner";

/// Label: the number of seconds for which the agent waits for another stream after it has lost one. Absent if the
/// container ends with its stream.
pub const LABEL_HOLD: &str = "llm-sandbox.hold";

/// Label: the container fetches packages, and has a network for that.
pub const LABEL_FETCHER: &str = "llm-sandbox.fetcher";

/// Label: the caller of the container, by a key that does not reveal the name. Only if several servers share their
/// callers.
pub const LABEL_CALLER: &str = "llm-sandbox.caller";

/// Label: the fingerprint of the key of the servers that share their callers. They ignore containers with another one.
pub const LABEL_KEY: &str = "llm-sandbox.key";

/// The path of the agent in the image.
pub const AGENT: &str = "/opt/sandbox/agent";

/// The command that brings the agent of a container another stream: the same program, in a file that cannot be read.
/// The user's code cannot reach its process, nor the stream that it brings, from its first instruction on.
pub const CONNECT: [&str; 2] = ["/opt/sandbox/connect", "--connect"];

/// The same command with a readable file, for runtimes that cannot start an unreadable program, such as gVisor.
pub const CONNECT_READABLE: [&str; 2] = [AGENT, "--connect"];

/// Time for which a new container may not be running yet: its server may be busy starting it.
pub const SETTLING: Duration = Duration::from_secs(60);

/// The resource limits of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Memory in bytes, files in memory included.
    pub memory: u64,
    /// Processors.
    pub cpus: f64,
    /// Processes and threads.
    pub pids: u32,
    /// Size of the data area in bytes.
    pub data: u64,
    /// The place of the data area.
    pub storage: Storage,
}

/// The place of the files of a data area.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Storage {
    /// In the memory of the sandbox.
    #[default]
    Memory,
    /// On the disk of the engine.
    Disk,
}

impl Storage {
    /// The value of the setting.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Disk => "disk",
        }
    }
}

impl FromStr for Storage {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let all = [Self::Memory, Self::Disk];
        all.into_iter().find(|it| text.eq_ignore_ascii_case(it.as_str())).ok_or(())
    }
}

impl Limits {
    /// Lowers the memory to at most this, and a data area in memory to a size that fits into it.
    #[must_use]
    pub fn with_memory(self, memory: u64) -> Self {
        let memory = memory.min(self.memory);
        let data = match self.storage {
            Storage::Memory => self.data.min(defaults::data_limit(memory)),
            Storage::Disk => self.data,
        };
        Self { memory, data, ..self }
    }

    /// Memory that a full data area takes, in bytes.
    pub fn data_in_memory(&self) -> u64 {
        match self.storage {
            Storage::Memory => self.data,
            Storage::Disk => 0,
        }
    }
}

/// Memory of a fetcher besides its downloads, which are also in memory: as much as pip takes, and some more. In bytes.
const FETCHER_MEMORY: u64 = 384 << 20;

/// The maximum number of fetchers of one server at a time.
pub const MAX_FETCHERS: usize = 2;

/// The resource limits of a fetcher for this many bytes of packages.
pub fn fetcher_limits(bytes: u64) -> Limits {
    // The downloads, and pip's own files meanwhile.
    let data = bytes + FETCHER_MEMORY / 4;
    Limits { memory: FETCHER_MEMORY + data, cpus: 1.0, pids: 64, data, storage: Storage::Memory }
}

/// Size of `/tmp` and of `/dev/shm` each, in bytes, with this much memory: room for caches, temporary files and shared
/// arrays. Even if both and the data area are full, they leave room for the modules that are preloaded by default.
pub fn scratch_bytes(memory: u64) -> u64 {
    (memory / 16).min(32 << 20)
}

/// Whether this can be the name of a session: `[A-Za-z0-9_-]{1,64}`.
pub fn is_session_id(text: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-');
    (1..=64).contains(&text.len()) && text.bytes().all(allowed)
}
