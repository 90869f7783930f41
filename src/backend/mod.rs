//! Backends: what makes sandboxes.
//!
//! A backend knows three verbs: start a sandbox, list ours, remove one. What it yields is a byte stream to the
//! agent and a notice of its death; running, files and limits are protocol over that stream and so the same
//! everywhere. The rest is what only it can answer: whether it is ready, what its sandboxes hold, how many it
//! starts at a time, whether what it lists still has an owner.
//!
//! - [`error`]: why it could not. [`check`]: what `llm-sandbox doctor` hears of it. [`build`]: making what
//!   sandboxes are made from; [`template`]: what they hold. [`sweep`]: removing what dead servers left.
//!   [`homes`]: which of several servers has which caller.
//! - [`docker`]: containers. `kubernetes`: pods. `wasm`: the embedded engine. [`local`]: plain processes, for tests.
//!   [`factory`]: which of them it is.

mod build;
mod check;
pub mod docker;
mod error;
pub mod factory;
pub mod homes;
pub mod image;
mod known_template;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;
pub mod local;
pub mod sweep;
pub(crate) mod template;
#[cfg(feature = "wasm")]
pub mod wasm;

use std::{
    fmt,
    path::PathBuf,
    time::{Duration, SystemTime},
};

use futures::future::{BoxFuture, FutureExt, Shared};
use model::{SessionId, SessionKey, World};
pub use sandbox_container::{Limits, SETTLING};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};

pub(crate) use self::known_template::KnownTemplate;
pub use self::{
    build::{BuildRequest, Builder},
    check::{Check, Finding},
    error::{BackendError, BackendErrorKind},
    homes::{CallerKey, Claim, Home, Homes},
    template::{Library, Runtime, Template},
};
use crate::{config::Config, link::Stream};

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

    /// Removes a sandbox whose session has ended here, unless another server has taken it over since. No error if it is
    /// gone.
    fn dispose(&self, id: String) -> BoxFuture<'_, Result<(), BackendError>> {
        self.remove(id)
    }

    /// What a sandbox would be made from now, and what it would hold: another id than when one was started
    /// means that it is out of date. `None` if that cannot be told.
    fn template(&self) -> BoxFuture<'_, Option<Template>>;

    /// Whether a sandbox could be started now: engine reachable, image and runtime there.
    fn ready(&self) -> BoxFuture<'_, Result<(), BackendError>>;

    /// How many sandboxes to start at a time. More only take the processors from each other: two cores
    /// start ten containers a second, however many are asked for.
    fn concurrent_starts(&self) -> usize {
        std::thread::available_parallelism().map_or(1, usize::from)
    }

    /// As whose its sandboxes are known, if they can outlive this process: a guard then has to remove them.
    fn needs_guard(&self) -> Option<OwnerId> {
        None
    }

    /// What an operator should know: what is there, what is wrong and how to fix it.
    fn checks<'a>(&'a self, _limits: &'a Limits) -> BoxFuture<'a, Vec<Check>> {
        async { vec![] }.boxed()
    }

    /// Whether its sandboxes can outlive their stream, and get another.
    fn can_hold(&self) -> bool {
        false
    }

    /// Connects once more to a sandbox that holds, without having spoken to its agent. The agent may close the stream
    /// at once, as if it has one.
    fn reattach(&self, _id: String) -> BoxFuture<'_, Result<Sandbox, BackendError>> {
        let text = "Sandboxes of this kind end with their stream.";
        async move { Err(BackendError::new(BackendErrorKind::Refused, text)) }.boxed()
    }

    /// Sandboxes that hold, of which no server is known to live that has them; those that this server has left, too, if
    /// there may be any.
    fn left(&self, _own_too: bool) -> BoxFuture<'_, Result<Vec<Found>, BackendError>> {
        async {
            let all = self.list().await?;
            Ok(all.into_iter().filter(|found| found.holds && found.is_left()).collect())
        }
        .boxed()
    }

    /// A sandbox that another server had is this one's from now on: its agent has taken us in.
    fn claim(&self, _id: String) -> BoxFuture<'_, ()> {
        async {}.boxed()
    }

    /// Which of several servers has which caller, if it runs for several.
    fn homes(&self) -> Option<&dyn Homes> {
        None
    }

    /// All sandboxes of this caller's sessions, those of other servers too.
    fn list_of<'a>(
        &'a self,
        caller: &'a CallerKey,
    ) -> BoxFuture<'a, Result<Vec<Found>, BackendError>> {
        async move {
            let all = self.list().await?;
            Ok(all.into_iter().filter(|found| found.caller.as_ref() == Some(caller)).collect())
        }
        .boxed()
    }

    /// A sandbox that waited for somebody is this caller's from now on.
    fn give(&self, _id: String, _caller: CallerKey) -> BoxFuture<'_, ()> {
        async {}.boxed()
    }

    /// What packages can be installed in its sandboxes, if any, and so fetched by those that it starts for that.
    fn packages(&self) -> Option<PackageKind> {
        None
    }

    /// What programs find in its sandboxes.
    fn world(&self) -> World {
        World::System
    }

    /// What looks at one of its sandboxes from within; `None` if they promise nothing, or if it cannot be told now.
    fn probe(&self) -> BoxFuture<'_, Option<Probe>> {
        async { None }.boxed()
    }

    /// Takes what one server has to itself. A server does so before anything else; who does not keeps nothing.
    ///
    /// # Errors
    /// If another server has it, or it cannot be used.
    fn acquire(&self) -> Result<(), BackendError> {
        Ok(())
    }

    /// Whether sandboxes outlive it on disk, so that sessions can go on with the next server.
    fn keeps_sandboxes(&self) -> bool {
        false
    }

    /// Whether a sandbox is kept under this key, which a new one can go on from, as far as can be told at a glance: the
    /// sandbox itself says what became of it.
    fn has_kept(&self, _key: &SessionKey) -> bool {
        false
    }

    /// The file in which a sandbox is kept under this key, or would be.
    fn kept_path(&self, _key: &SessionKey) -> Option<PathBuf> {
        None
    }

    /// Forgets what is kept under this key. No error if that is nothing.
    fn forget(&self, _key: &SessionKey) {}

    /// Keeps a short text beside the sandbox of this key, until that is forgotten.
    fn note(&self, _key: &SessionKey, _text: &str) {}

    /// The text that was kept so.
    fn noted(&self, _key: &SessionKey) -> Option<String> {
        None
    }

    /// All texts that were kept so.
    fn all_noted(&self) -> Vec<String> {
        vec![]
    }

    /// Gives up what it holds for this server beside sandboxes. Nothing else is asked of it after that.
    fn close(&self) -> BoxFuture<'_, ()> {
        async {}.boxed()
    }

    /// What makes the image of its sandboxes, if this program can make it.
    fn builder(&self) -> Option<&dyn Builder> {
        None
    }

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

/// What a sandbox shall be. What it is made from, and how it is marked as this server's, is its backend's
/// own business and the same for all of them.
#[derive(Debug, Clone)]
pub struct Spec {
    /// The session that it is for.
    pub session: SessionId,
    /// What it may use.
    pub limits: Limits,
    /// Under which it is kept when its server is gone, and from which it goes on, if its backend can do that.
    pub kept_as: Option<SessionKey>,
    /// How long it outlives its stream, if it does.
    pub hold: Option<Duration>,
    /// Whose session it is for, if several servers share their callers and it is somebody's already.
    pub caller: Option<CallerKey>,
    /// What it is to do.
    pub purpose: Purpose,
}

/// Which packages sandboxes take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PackageKind {
    /// What runs on the interpreter that a fetcher has as well.
    OfFetcher,
    /// Pure ones, for this version of Python.
    Pure {
        /// Such as `3.15`.
        python: String,
    },
}

/// What a sandbox is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// To run a session's code, without a network.
    Session,
    /// To fetch packages: it has a network, and runs nothing of anybody's.
    Fetcher,
}

impl Spec {
    /// The sandbox of a session under these settings.
    pub fn new(config: &Config, session: &SessionId) -> Self {
        Self {
            session: session.clone(),
            limits: config.into(),
            kept_as: None,
            hold: None,
            caller: None,
            purpose: Purpose::Session,
        }
    }

    /// The same, kept under this key.
    #[must_use]
    pub fn kept_as(self, kept_as: Option<SessionKey>) -> Self {
        Self { kept_as, ..self }
    }

    /// The same, which outlives its stream for so long.
    #[must_use]
    pub fn holding(self, hold: Option<Duration>) -> Self {
        Self { hold, ..self }
    }

    /// The same for a session of this caller.
    #[must_use]
    pub fn of_caller(self, caller: Option<CallerKey>) -> Self {
        Self { caller, ..self }
    }

    /// The same with no more memory than that, if it is to have less.
    #[must_use]
    pub fn with_memory(self, memory: Option<u64>) -> Self {
        let limits = memory.map_or(self.limits, |memory| self.limits.with_memory(memory));
        Self { limits, ..self }
    }
}

impl From<&Config> for Limits {
    fn from(config: &Config) -> Self {
        Self {
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

impl Sandbox {
    /// Takes what is read and written. Nothing comes from it, and goes to it, after that.
    pub(crate) fn take_stream(&mut self) -> Stream {
        Stream {
            reader: std::mem::replace(&mut self.reader, Box::new(tokio::io::empty())),
            writer: std::mem::replace(&mut self.writer, Box::new(tokio::io::sink())),
        }
    }
}

impl fmt::Debug for Sandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sandbox").field("id", &self.id).finish_non_exhaustive()
    }
}

/// A sandbox that was found.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// The backend's name for it.
    pub id: String,
    /// When it was made.
    pub created: SystemTime,
    /// Whether it runs.
    pub state: FoundState,
    /// Who made it, if it says so in a way that the backend understands.
    pub owner: Option<FoundOwner>,
    /// It outlives its stream, and ends by itself if nobody goes on with it.
    pub holds: bool,
    /// Whose session it is for, if that stands there.
    pub caller: Option<CallerKey>,
    /// A session of this server has it.
    pub is_in_use: bool,
}

impl Found {
    /// It runs, and no server that is known to live has it.
    pub fn is_left(&self) -> bool {
        let life = self.owner.as_ref().map(|owner| owner.life);
        self.state == FoundState::Running && life != Some(Life::Alive)
    }
}

/// Whether a sandbox that was found runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FoundState {
    /// It runs or is paused.
    Running,
    /// It never started, or has ended.
    Stopped,
}

/// The server that a sandbox belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundOwner {
    /// Its name.
    pub id: OwnerId,
    /// Whether it lives, as the backend judges it.
    pub life: Life,
}

/// What is known of an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// It runs.
    Alive,
    /// It does not run any more.
    Dead,
    /// It cannot be told from here.
    Unknown,
}

/// By what a backend knows the sandboxes of one run of one server. Only the backend can read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerId(String);

impl From<String> for OwnerId {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Display for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A program that tries the promises of the sandbox that it runs in.
#[derive(Debug, Clone, PartialEq)]
pub struct Probe {
    /// In Python, with its standard library alone. Reads `facts` and the limits from its standard input, and prints
    /// a line of JSON for each check: its name as `check`, `ok`, `FAIL` or `n/a` as `result`, and a `detail`.
    pub script: &'static str,
    /// What the sandbox promises besides its limits: an object.
    pub facts: Value,
}
