//! Backends: what makes sandboxes.
//!
//! A backend knows three verbs: start a sandbox, list ours, remove one; and two questions. What it yields is a byte
//! stream to the agent and a notice of its death; running, files and limits are protocol over that
//! stream and so the same everywhere.

pub mod docker;
mod error;
pub mod local;

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use futures::future::{BoxFuture, Shared};
use tokio::io::{AsyncRead, AsyncWrite};

pub use self::error::{BackendError, BackendErrorKind};
use crate::{config::Config, owner::Owner, session::SessionId};

/// Makes, lists and removes sandboxes.
pub trait Backend: fmt::Debug + Send + Sync {
    /// Starts a sandbox and connects to its agent, without having spoken to it.
    ///
    /// Dropping the future at any point leaves nothing that the leash or a sweep would not remove.
    fn start(&self, spec: Spec) -> BoxFuture<'_, Result<Sandbox, BackendError>>;

    /// All sandboxes of this program, those of other servers too.
    fn list(&self) -> BoxFuture<'_, Result<Vec<Found>, BackendError>>;

    /// Removes a sandbox, whatever its state. No error if it is gone.
    fn remove(&self, id: String) -> BoxFuture<'_, Result<(), BackendError>>;

    /// What a sandbox would be made from now: another answer than when one was started means that it
    /// is out of date. `None` if that cannot be told.
    fn image_id(&self) -> BoxFuture<'_, Option<String>>;

    /// Whether a sandbox could be started now: engine reachable, image and runtime there.
    fn ready(&self) -> BoxFuture<'_, Result<(), BackendError>>;

    /// Why a sandbox is of no use that was started and then did not greet us as it should, and how to
    /// fix that.
    fn no_greeting(&self, fault: Greeting, detail: &str) -> BackendError {
        match fault {
            Greeting::OtherVersion => BackendError::new(
                BackendErrorKind::TemplateOutdated,
                format!("The sandbox was made for another version of this server ({detail})."),
            ),
            Greeting::Missing => BackendError::new(
                BackendErrorKind::Timeout,
                format!("The sandbox did not answer ({detail})."),
            ),
        }
    }
}

/// What is wrong with a sandbox's first message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Greeting {
    /// It speaks another version of the protocol.
    OtherVersion,
    /// There is none that can be understood.
    Missing,
}

/// What a sandbox shall be.
#[derive(Debug, Clone)]
pub struct Spec {
    /// The session that it is for.
    pub session: SessionId,
    /// The server that it belongs to.
    pub owner: Owner,
    /// What it may use.
    pub limits: Limits,
}

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
    /// The limits of these settings.
    pub fn new(config: &Config) -> Self {
        Self {
            memory: config.memory_limit,
            cpus: config.cpu_limit,
            pids: config.pids_limit,
            data: config.data_limit,
        }
    }
}

impl Spec {
    /// The sandbox of a session under these settings.
    pub fn new(config: &Config, owner: &Owner, session: &SessionId) -> Self {
        Self { session: session.clone(), owner: owner.clone(), limits: Limits::new(config) }
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
