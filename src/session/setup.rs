//! What a session is made with.

use std::{sync::Arc, time::Duration};

use model::SessionId;
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use super::{
    archiving::Archiving,
    beginning::Beginning,
    command::Command,
    events::{Observers, ReadObserver},
    hold::Hold,
    lease::Lease,
    state::IdleLimits,
    usage::Usage,
};
use crate::{
    backend::{Backend, Spec},
    config::Tracebacks,
    link::Timing,
};

/// What a session is made with. Its driver holds it to the end.
pub(crate) struct Setup {
    pub(crate) id: SessionId,
    pub(crate) spec: Spec,
    pub(crate) idle: IdleLimits,
    pub(crate) birth: Birth,
    /// How its sandbox outlives its stream, if it does.
    pub(crate) hold: Option<Hold>,
    /// Bytes kept of each output of a run.
    pub(crate) max_output: usize,
    /// How tracebacks are shown.
    pub(crate) tracebacks: Tracebacks,
    /// Longest that a run may take.
    pub(crate) max_timeout: Duration,
    pub(crate) timing: Timing,
    /// Modules that are loaded before the first run, if any are.
    pub(crate) preload: Option<Vec<String>>,
    /// The time zone of programs, if it is not UTC.
    pub(crate) timezone: Option<String>,
    /// Cells of a workspace that can be taken back.
    pub(crate) undo: Option<u32>,
    pub(crate) backend: Arc<dyn Backend>,
    /// If there is an archive.
    pub(crate) archiving: Option<Archiving>,
    pub(crate) commands: mpsc::Receiver<Command>,
    pub(crate) observers: Observers,
    pub(crate) reads: ReadObserver,
    /// Told to those who may want its permit, and by those who read its files.
    pub(crate) usage: Usage,
    /// Told to whoever comes for it first.
    pub(crate) beginning: Beginning,
    /// Bounds how many sandboxes start at once.
    pub(crate) starts: Arc<Semaphore>,
    /// Cancelled when the server ends, or another one goes on with the session.
    pub(crate) shutdown: CancellationToken,
    /// Its name and its permit, which is free again when the sandbox is gone.
    pub(crate) lease: Lease,
}

/// Why a sandbox is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Birth {
    /// Somebody asked for a session.
    OnDemand,
    /// It waits in the pool for its first use.
    InPool,
}
