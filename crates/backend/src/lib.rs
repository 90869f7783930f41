//! Backends, which make sandboxes.
//!
//! A backend starts, lists and removes sandboxes. A started sandbox is a byte stream to its agent and a notice of its
//! end; runs, files and limits are protocol over that stream, so they are the same for all backends. A backend also
//! answers what only it can know: whether it is ready, what its sandboxes contain, how many to start at a time, whether
//! the server of a listed sandbox still runs. It takes no part in the protocol and does not manage sessions.
//!
//! ```text
//!   start --> Sandbox { reader, writer, gone } --(stream dropped)--> it ends, and the backend removes it
//!                                              '-(resumable)-------> it waits for reattach, or ends by itself
//! ```
//!
//! - [`error`]: failures of a backend. [`check`]: its checks in `llm-sandbox doctor`. [`build`]: building the image of
//!   sandboxes; [`image`]: its files; [`recipes`]: more languages and programs for it. [`template`]: what sandboxes
//!   contain; [`known_template`]: the last one. [`sweep`]: removing the sandboxes of dead servers. [`homes`]: which of several servers has the sessions of which
//!   caller. [`abilities`]: what only some backends can do, such as reconnecting to a sandbox or saving it on disk.
//! - [`docker`]: containers. `kubernetes`: pods. `wasm`: the embedded engine. [`local`]: plain processes, for tests.
//!   [`factory`]: choosing one of them by the settings.
//!
//! # How to add a backend
//!
//! 1. A file or folder here with a type that implements [`Backend`]; [`local`] is the shortest example, but isolates
//!    nothing. The agent is the program at the other end of the stream: a backend without containers starts another
//!    agent that speaks the same protocol, as `wasm` does with `crates/embedded`.
//! 2. The backend isolates: no network (except for [`Purpose::Fetcher`]), a read-only root, an empty data area and
//!    scratch space, and [`Spec::limits`], of which an agent in a container enforces none.
//!    `deploy/container/src/options.rs` has the options of a container, each with its reason;
//!    `crates/agent/src/places.rs` the folders of the agent.
//! 3. [`Backend::abilities`] returns those of the traits in [`abilities`] that the type implements. The other methods
//!    with a default, such as [`Backend::concurrent_starts`] and [`Backend::needs_guard`], are answered only if the
//!    default is wrong. `llm-sandbox doctor` checks only backends that are [`Diagnosable`]. If [`Backend::template`] is
//!    `None`, models are told of the contents of the usual image ([`known_template`]).
//! 4. Each error has a kind ([`BackendErrorKind`]), which says whether a later attempt may succeed, and a text that
//!    says how to fix it.
//! 5. `crates/config/src/choices.rs`: a variant of `Engine`, its name in `as_str`, and the variant in `from_str`;
//!    `crates/config/src/table.rs`: the row `SANDBOX_ENGINE`, its form and its description; [`factory::of`]: its arm.
//! 6. Tests: a variant of `On` and a module in `on_all!` (`tests/support/lib.rs`), and the module's name in the
//!    filters of `.config/nextest.toml`, or the gate runs all of its tests. The promises are written once for all
//!    backends. List each promise that the backend cannot keep, with a reason, as those `not on wasm` are; never skip
//!    one silently. `On::Local` passes `--no-isolation`, which wins over `SANDBOX_ENGINE`.
//!
//! The future of [`Backend::start`] may be dropped at any point: everything that it has created must then be removed
//! later, by the sandbox's leash (an agent ends without a server) or by a sweep.

mod abilities;
mod build;
mod check;
pub mod docker;
mod error;
pub mod factory;
mod homes;
mod image;
mod known_template;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;
pub mod local;
mod recipes;
pub mod sweep;
mod template;
#[cfg(feature = "wasm")]
pub mod wasm;

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use config::Config;
use futures::future::{BoxFuture, FutureExt, Shared};
use link::Stream;
use model::{Dataset, DatasetName, OwnSettings, SessionId, SessionKey, World};
pub use sandbox_container::{Limits, SETTLING};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};

pub use self::{
    abilities::{Abilities, Diagnosable, Greeting, Resumable, SavesSandboxes, SharesCallers},
    build::{BuildRequest, Builder},
    check::{Check, Finding},
    error::{BackendError, BackendErrorKind},
    homes::{CallerKey, Claim, Home, Homes},
    known_template::KnownTemplate,
    recipes::{Recipes, UnknownRecipe},
    template::{Library, Runtime, Template},
};

/// Starts, lists and removes sandboxes. Further [`abilities`](Self::abilities) are traits of their own.
pub trait Backend: fmt::Debug + Send + Sync {
    /// Starts a sandbox and connects to its agent, without exchanging a message with it.
    ///
    /// If the future is dropped, at any point, the end of the stream or a sweep removes what it started.
    fn start(&self, spec: Spec) -> BoxFuture<'_, Result<Sandbox, BackendError>>;

    /// Lists all sandboxes of this program, including those of other servers.
    fn list(&self) -> BoxFuture<'_, Result<Vec<ListedSandbox>, BackendError>>;

    /// Removes the volumes of sandboxes that are no longer there, if it has any. Best effort.
    fn remove_unused_volumes(&self) -> BoxFuture<'_, ()> {
        std::future::ready(()).boxed()
    }

    /// Removes a sandbox in any state. No error if it does not exist.
    fn remove(&self, id: String) -> BoxFuture<'_, Result<(), BackendError>>;

    /// The template of a sandbox that would be started now. A sandbox that was started with another template id is out
    /// of date. `None` if the template cannot be determined.
    fn template(&self) -> BoxFuture<'_, Option<Template>>;

    /// Checks that a sandbox can be started now: the engine answers, and the image and the runtime exist.
    fn ready(&self) -> BoxFuture<'_, Result<(), BackendError>>;

    /// The abilities of the backend beside starting, listing and removing.
    fn abilities(&self) -> Abilities<'_>;

    /// How many sandboxes to start at a time. More starts only compete for the processors: two cores start ten
    /// containers a second, however many are requested at once.
    fn concurrent_starts(&self) -> usize {
        std::thread::available_parallelism().map_or(1, usize::from)
    }

    /// The environment of programs in these sandboxes: a system, or an interpreter alone.
    fn world(&self) -> World {
        World::System
    }

    /// The kind of packages that sandboxes can install and fetchers must fetch; `None` if packages cannot be installed.
    fn packages(&self) -> Option<PackageKind> {
        None
    }

    /// The owner id of this server's sandboxes if they can outlive this process, so that a guard must remove them.
    fn needs_guard(&self) -> Option<OwnerId> {
        None
    }

    /// Locks what only one server may use. A server calls this first; without it, the backend saves no sandboxes.
    ///
    /// # Errors
    /// If another server has locked it, or it cannot be used.
    fn acquire(&self) -> Result<(), BackendError> {
        Ok(())
    }

    /// Releases everything but sandboxes that belongs to this server. No other method is called after this one.
    fn close(&self) -> BoxFuture<'_, ()> {
        async {}.boxed()
    }
}

/// The parameters of a new sandbox. Its image and its mark as this server's are not among them: the backend sets
/// these, the same for all its sandboxes.
#[derive(Debug, Clone)]
pub struct Spec {
    /// The session that the sandbox is for.
    pub session: SessionId,
    /// The resources that the sandbox may use.
    pub limits: Limits,
    /// The key under which the sandbox is saved, and from which it is restored, if the backend can do that.
    pub saved_as: Option<SessionKey>,
    /// How long the sandbox outlives its stream; `None` if it ends with the stream.
    pub hold: Option<Duration>,
    /// The caller of the session, if several servers share their callers and the session already has one.
    pub caller: Option<CallerKey>,
    /// The datasets that the sandbox can read.
    pub datasets: Vec<Arc<Dataset>>,
    /// The task of the sandbox.
    pub purpose: Purpose,
}

/// The error of a dataset on a volume of a pod, where there are no pods.
fn dataset_needs_path(name: &DatasetName) -> BackendError {
    let text =
        format!("The dataset {name} is a volume, and only sandboxes on Kubernetes have volumes.");
    BackendError::new(BackendErrorKind::Refused, text).with_fix("Give it a path.")
}

/// The kind of packages that sandboxes install.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PackageKind {
    /// Packages for the interpreters of the fetcher, which are the same as the session's.
    OfFetcher,
    /// Pure Python packages, for this version of Python.
    Pure {
        /// The version, such as `3.15`.
        python: String,
    },
}

/// The task of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Runs a session's code, without a network.
    Session,
    /// Fetches packages: it has a network, and runs no code of a session.
    Fetcher,
}

impl Spec {
    /// The parameters of a session's sandbox under these settings of the server and of the session.
    pub fn new(config: &Config, session: &SessionId, own: &OwnSettings) -> Self {
        Self {
            session: session.clone(),
            limits: config.limits(own),
            saved_as: None,
            hold: None,
            caller: None,
            datasets: vec![],
            purpose: Purpose::Session,
        }
    }

    /// Sets the key under which the sandbox is saved.
    #[must_use]
    pub fn saved_as(self, saved_as: Option<SessionKey>) -> Self {
        Self { saved_as, ..self }
    }

    /// Sets how long the sandbox outlives its stream.
    #[must_use]
    pub fn holding(self, hold: Option<Duration>) -> Self {
        Self { hold, ..self }
    }

    /// Sets the caller of the sandbox's session.
    #[must_use]
    pub fn of_caller(self, caller: Option<CallerKey>) -> Self {
        Self { caller, ..self }
    }

    /// Sets the datasets that the sandbox can read.
    #[must_use]
    pub fn with_datasets(self, datasets: Vec<Arc<Dataset>>) -> Self {
        Self { datasets, ..self }
    }
}

/// A running sandbox.
pub struct Sandbox {
    /// The backend's name for it.
    pub id: String,
    /// The stream from the agent.
    pub reader: Box<dyn AsyncRead + Send + Unpin>,
    /// The stream to the agent. Dropping it ends the sandbox, unless it is resumable.
    pub writer: Box<dyn AsyncWrite + Send + Unpin>,
    /// Resolves when the sandbox has ended and is removed. Wait on a clone: a future that has resolved cannot be
    /// awaited again.
    pub gone: Shared<BoxFuture<'static, ()>>,
}

impl Sandbox {
    /// Takes the reader and the writer, and replaces them with an empty reader and a sink.
    pub fn take_stream(&mut self) -> Stream {
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

/// A sandbox that the backend listed.
#[derive(Debug, Clone, PartialEq)]
pub struct ListedSandbox {
    /// The backend's name for it.
    pub id: String,
    /// When the sandbox was created.
    pub created: SystemTime,
    /// Whether the sandbox runs.
    pub state: SandboxState,
    /// The server that owns it, if its mark is one that the backend understands.
    pub owner: Option<SandboxOwner>,
    /// Whether the sandbox is resumable: it outlives its stream, and ends by itself if no server reconnects.
    pub is_resumable: bool,
    /// The caller of the sandbox's session, if the sandbox is marked with it.
    pub caller: Option<CallerKey>,
    /// Whether a session of this server uses the sandbox.
    pub is_in_use: bool,
}

impl ListedSandbox {
    /// Whether the sandbox runs and its server is not known to be alive.
    pub fn is_orphan(&self) -> bool {
        let life = self.owner.as_ref().map(|owner| owner.life);
        self.state == SandboxState::Running && life != Some(Life::Alive)
    }
}

/// Whether a listed sandbox runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SandboxState {
    /// The sandbox runs or is paused.
    Running,
    /// The sandbox never started, or it has ended.
    Stopped,
}

/// The server that a sandbox belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxOwner {
    /// The id of that server.
    pub id: OwnerId,
    /// Whether that server is alive, as the backend judges it.
    pub life: Life,
}

/// Whether an owner is alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// The server runs.
    Alive,
    /// The server no longer runs.
    Dead,
    /// The backend cannot determine it.
    Unknown,
}

/// The backend's mark of the sandboxes of one run of one server. Only the backend can interpret it.
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

/// A program that tests the promises of the sandbox in which it runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Probe {
    /// Python code that uses only the standard library. It reads `facts` and the limits from its standard input, and
    /// prints a line of JSON for each check: its name as `check`, `ok`, `FAIL` or `n/a` as `result`, and a `detail`.
    pub script: &'static str,
    /// The promises of the sandbox besides its limits, as a JSON object.
    pub facts: Value,
}
