//! Abilities that only some backends have. Each is a trait, and [`Backend::abilities`] offers it or does not: a caller
//! has to say what happens without it, and a new backend cannot inherit a method that does nothing.

use std::path::PathBuf;

use futures::future::BoxFuture;
use model::SessionKey;

use super::{
    Backend, BackendError, BackendErrorKind, Builder, CallerKey, Check, Homes, Limits,
    ListedSandbox, Probe, Sandbox,
};

/// The abilities of a backend.
#[derive(Clone, Copy, Default)]
pub struct Abilities<'a> {
    /// Sandboxes can outlive their stream.
    pub resumable: Option<&'a dyn Resumable>,
    /// Several servers share their callers.
    pub shared: Option<&'a dyn SharesCallers>,
    /// Sandboxes are saved on disk.
    pub saved: Option<&'a dyn SavesSandboxes>,
    /// This program can build the image.
    pub builder: Option<&'a dyn Builder>,
    /// The backend can be checked, and explains its faults.
    pub diagnosable: Option<&'a dyn Diagnosable>,
}

/// A backend whose sandboxes can outlive their stream and accept another one.
pub trait Resumable: Send + Sync {
    /// Connects to a resumable sandbox again, without exchanging a message with its agent. The agent may close the new
    /// stream at once, for example if it still has one.
    fn reattach(&self, id: String) -> BoxFuture<'_, Result<Sandbox, BackendError>>;

    /// Lists running resumable sandboxes whose server is not known to be alive. With `own_too`, also those that this
    /// server has released.
    fn orphans(&self, own_too: bool) -> BoxFuture<'_, Result<Vec<ListedSandbox>, BackendError>>;

    /// Makes this server the owner of a sandbox of another server, after its agent has accepted this server's stream.
    fn claim(&self, id: String) -> BoxFuture<'_, ()>;

    /// Removes a sandbox whose session has ended on this server, unless another server has taken it over since. No
    /// error if it does not exist.
    fn dispose(&self, id: String) -> BoxFuture<'_, Result<(), BackendError>>;
}

/// A backend of several servers that share their callers: each caller has a home, the server that has its sessions.
pub trait SharesCallers: Send + Sync {
    /// The home servers of callers.
    fn homes(&self) -> &dyn Homes;

    /// Lists all sandboxes of this caller's sessions, including those of other servers.
    fn list_of<'a>(
        &'a self,
        caller: &'a CallerKey,
    ) -> BoxFuture<'a, Result<Vec<ListedSandbox>, BackendError>>;

    /// Marks a sandbox as this caller's. A pooled sandbox starts without a caller.
    fn assign(&self, id: String, caller: CallerKey) -> BoxFuture<'_, ()>;
}

/// A backend that saves sandboxes on disk, so that the next server can continue their sessions.
pub trait SavesSandboxes: Send + Sync {
    /// Whether a saved sandbox under this key can be restored. This is a quick check: the restored sandbox reports the
    /// outcome.
    fn has(&self, key: &SessionKey) -> bool;

    /// The file for the saved sandbox of this key, whether or not it exists.
    fn path(&self, key: &SessionKey) -> PathBuf;

    /// Removes the saved sandbox of this key and its record. No error if there is none.
    fn forget(&self, key: &SessionKey);

    /// Saves the record of a session beside the sandbox of this key, until [`forget`](Self::forget) removes both.
    fn store_record(&self, key: &SessionKey, text: &str);

    /// The record that [`store_record`](Self::store_record) saved for this key.
    fn record(&self, key: &SessionKey) -> Option<String>;

    /// All records that [`store_record`](Self::store_record) saved.
    fn records(&self) -> Vec<String>;
}

/// A backend that reports its own faults.
pub trait Diagnosable: Send + Sync {
    /// Checks for the operator: the state, the faults and their fixes.
    fn checks<'a>(&'a self, limits: &'a Limits) -> BoxFuture<'a, Vec<Check>>;

    /// The probe that checks a sandbox from within; `None` if sandboxes make no promises, or if these are unknown now.
    fn probe(&self) -> BoxFuture<'_, Option<Probe>>;

    /// The error for a sandbox that started but whose first message is missing or of another version, with the fix.
    fn no_greeting(&self, fault: Greeting, detail: &str) -> BackendError;
}

/// A fault of a sandbox's first message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Greeting {
    /// The sandbox speaks another version of the protocol.
    OtherVersion,
    /// No valid first message came.
    Missing,
}

impl Greeting {
    /// The error for this greeting, if the backend knows no fix.
    pub fn error(self, detail: &str) -> BackendError {
        match self {
            Self::OtherVersion => BackendError::new(
                BackendErrorKind::TemplateOutdated,
                format!("The sandbox was made for another version of this server ({detail})."),
            ),
            Self::Missing => BackendError::new(
                BackendErrorKind::Timeout,
                format!("The sandbox did not answer ({detail})."),
            ),
        }
    }
}

/// [`Resumable::orphans`] for a backend that cannot ask for these sandboxes alone.
pub(super) async fn orphans_among_all(
    backend: &dyn Backend,
) -> Result<Vec<ListedSandbox>, BackendError> {
    let all = backend.list().await?;
    Ok(all.into_iter().filter(|found| found.is_resumable && found.is_orphan()).collect())
}
