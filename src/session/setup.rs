//! What a session is made with.

use std::sync::{Arc, atomic::AtomicBool};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use super::{SessionId, command::Command, history::Journal, state::Patience, usage::Usage};
use crate::{
    backend::{Backend, Spec},
    figures::{Figures, Watched},
    link::Timing,
};

/// What a session is made with.
pub(crate) struct Setup {
    pub(crate) id: SessionId,
    pub(crate) spec: Spec,
    pub(crate) patience: Patience,
    pub(crate) birth: Birth,
    pub(crate) figures: Figures,
    pub(crate) watched: Watched,
    pub(crate) max_output: usize,
    pub(crate) timing: Timing,
    pub(crate) preload: Option<Vec<String>>,
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) commands: mpsc::Receiver<Command>,
    pub(crate) journal: Journal,
    pub(crate) usage: Usage,
    /// Bounds how many sandboxes start at once.
    pub(crate) starts: Arc<Semaphore>,
    /// The session's place among the most there may be; free again when the sandbox is gone.
    pub(crate) place: Place,
    pub(crate) shutdown: CancellationToken,
    /// Set when a sandbox may be left behind.
    pub(crate) unclean: Arc<AtomicBool>,
    pub(crate) forget: Forget,
}

/// Why a sandbox is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Birth {
    /// Somebody asked for a session.
    OnDemand,
    /// It waits in the pool for its first use.
    InPool,
}

/// A place among the most sessions there may be, and who is told when it is free again.
pub(crate) struct Place(
    pub(crate) Option<OwnedSemaphorePermit>,
    pub(crate) Box<dyn Fn() + Send + Sync>,
);

impl Drop for Place {
    fn drop(&mut self) {
        self.0 = None;
        (self.1)();
    }
}

/// Takes a session out of the registry, once: at the latest when it is dropped, so that even a task
/// that panics leaves no name behind.
pub(crate) struct Forget(pub(crate) Option<Box<dyn FnOnce() + Send + Sync>>);

impl Forget {
    pub(super) fn now(&mut self) {
        if let Some(forget) = self.0.take() {
            forget();
        }
    }
}

impl Drop for Forget {
    fn drop(&mut self) {
        self.now();
    }
}
