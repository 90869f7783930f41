//! Backends: what makes sandboxes.
//!
//! A backend knows three verbs: start a sandbox, list ours, remove one; and two questions. What it yields is a byte
//! stream to the agent and a notice of its death; running, files and limits are protocol over that
//! stream and so the same everywhere.

pub mod docker;
pub mod local;

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use futures::future::{BoxFuture, Shared};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::{config::Config, ids::SessionId, owner::Owner};

/// Makes, lists and removes sandboxes.
pub trait Backend: fmt::Debug + Send + Sync {
    /// Starts a sandbox and connects to its agent, without having spoken to it.
    ///
    /// Dropping the future at any point leaves nothing that the leash or a sweep would not remove.
    fn start(&self, spec: Spec) -> BoxFuture<'_, Result<Sandbox, StartError>>;

    /// All sandboxes of this program, those of other servers too.
    fn list(&self) -> BoxFuture<'_, Result<Vec<Found>, StartError>>;

    /// Removes a sandbox, whatever its state. No error if it is gone.
    fn remove(&self, id: String) -> BoxFuture<'_, Result<(), StartError>>;

    /// What a sandbox would be made from now: another answer than when one was started means that it
    /// is out of date. `None` if that cannot be told.
    fn image_id(&self) -> BoxFuture<'_, Option<String>>;

    /// Whether a sandbox could be started now: engine reachable, image and runtime there.
    fn ready(&self) -> BoxFuture<'_, Result<(), StartError>>;
}

/// What a sandbox shall be.
#[derive(Debug, Clone)]
pub struct Spec {
    /// The session that it is for.
    pub session: SessionId,
    /// The server that it belongs to.
    pub owner: Owner,
    /// Image.
    pub image: String,
    /// Runtime, if not the engine's default.
    pub runtime: Option<String>,
    /// Memory in bytes, files on tmpfs included.
    pub memory: u64,
    /// Processors.
    pub cpus: f64,
    /// Processes and threads.
    pub pids: u32,
    /// Size of the data area in bytes.
    pub data: u64,
}

impl Spec {
    /// The sandbox of a session under these settings.
    pub fn new(config: &Config, owner: &Owner, session: &SessionId) -> Self {
        Self {
            session: session.clone(),
            owner: owner.clone(),
            image: config.image.clone(),
            runtime: config.runtime.clone(),
            memory: config.memory_limit,
            cpus: config.cpu_limit,
            pids: config.pids_limit,
            data: config.data_limit,
        }
    }
}

/// A running sandbox.
pub struct Sandbox {
    /// The backend's name for it.
    pub id: String,
    /// From the agent.
    pub reader: Box<dyn AsyncRead + Send + Unpin>,
    /// To the agent. Dropping it ends the sandbox.
    pub writer: Box<dyn AsyncWrite + Send + Unpin>,
    /// Resolves when the sandbox is gone and nothing of it is left. Wait on a clone: whoever has
    /// waited to the end cannot wait again.
    pub gone: Shared<BoxFuture<'static, ()>>,
}

impl fmt::Debug for Sandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sandbox").field("id", &self.id).finish_non_exhaustive()
    }
}

/// How long a sandbox may have been made and not be alive yet: its server may be busy starting it.
pub const SETTLING: Duration = Duration::from_secs(60);

/// A sandbox that was found.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// The backend's name for it.
    pub id: String,
    /// When it was made.
    pub created: SystemTime,
    /// It runs or is paused; otherwise it never started or has ended.
    pub alive: bool,
    /// Who made it, if it says so in a way that we understand.
    pub owner: Option<Owner>,
}

/// Why the backend could not do it, in a sentence that says what mends it.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct StartError(pub String);
