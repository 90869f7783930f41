//! The settings and parts that a session is started with.

use std::{sync::Arc, time::Duration};

use backend::{Backend, KnownTemplate, SavesSandboxes, Spec};
use config::Tracebacks;
use link::Timing;
use model::{SessionId, SessionKey};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use super::{
    archiving::Archiving,
    beginning::Beginning,
    command::Command,
    events::{Observers, ReadObserver},
    handle::Record,
    hold::HoldSettings,
    lease::Lease,
    origin::Origin,
    state::IdleLimits,
    usage::Usage,
};
use crate::trace::Parent;

/// The settings and parts that a session is started with. Its driver owns them to the end.
pub(crate) struct Setup {
    pub(crate) id: SessionId,
    pub(crate) spec: Spec,
    pub(crate) idle: IdleLimits,
    pub(crate) origin: Origin,
    /// The session's record, as soon as the session has a caller.
    pub(crate) record: Record,
    /// How the sandbox outlives its stream; `None` if it does not.
    pub(crate) hold: Option<HoldSettings>,
    /// Maximum number of bytes of each output of a run that are returned.
    pub(crate) max_output: usize,
    /// How tracebacks are shown.
    pub(crate) tracebacks: Tracebacks,
    /// Longest time that a run may take.
    pub(crate) max_timeout: Duration,
    pub(crate) timing: Timing,
    /// Modules that are loaded before the first run; `None` if preloading is off.
    pub(crate) preload: Option<Vec<String>>,
    /// The time zone of programs; `None` for UTC.
    pub(crate) timezone: Option<String>,
    /// Whether programs may ask for calls of tools.
    pub(crate) asks: bool,
    /// Cells of a workspace that can be undone.
    pub(crate) undo: Option<u32>,
    pub(crate) backend: Arc<dyn Backend>,
    /// The contents of new sandboxes.
    pub(crate) template: Arc<KnownTemplate>,
    /// `None` without an archive.
    pub(crate) archiving: Option<Archiving>,
    /// Commands, each with the span of the call that sent it.
    pub(crate) commands: mpsc::Receiver<(Command, Parent)>,
    pub(crate) observers: Observers,
    pub(crate) reads: ReadObserver,
    /// Read by calls that need the session's permit; updated by readers of its files.
    pub(crate) usage: Usage,
    /// How the session began, for its first caller.
    pub(crate) beginning: Beginning,
    /// Limits how many sandboxes start at once.
    pub(crate) starts: Arc<Semaphore>,
    /// Cancelled when the server ends or another server takes over the session.
    pub(crate) shutdown: CancellationToken,
    /// The session's name and its permit, which is free again after the sandbox was removed.
    pub(crate) lease: Lease,
}

impl Setup {
    /// The backend's saved sandboxes, and the key of this one among them; `None` if it is not saved.
    pub(crate) fn saved(&self) -> Option<(&dyn SavesSandboxes, &SessionKey)> {
        self.backend.abilities().saved.zip(self.spec.saved_as.as_ref())
    }
}
