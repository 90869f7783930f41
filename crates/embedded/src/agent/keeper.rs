//! Saves a sandbox, so that another agent can continue it.

use std::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicBool, Ordering},
};

use super::{SharedFiles, kernel::KeptStates};
use crate::kept::{self, StateFile};

/// Saves the sandbox, so that it can be restored after its server has ended.
#[derive(Clone)]
pub(super) struct Keeper(Arc<KeeperParts>);

struct KeeperParts {
    files: SharedFiles,
    /// The state file; `None` if the sandbox is not saved, and until the saved state has been read.
    file: Mutex<Option<StateFile>>,
    /// Whether the sandbox may differ from the saved state.
    is_changed: AtomicBool,
    /// Whether the saved state, if there is one, has been loaded or found unusable.
    is_ready: AtomicBool,
    /// The states of the interpreters after the last call.
    kernels: Mutex<Vec<KeptStates>>,
    /// Locked from before the reply to a call until the states after the call are noted.
    settling: Mutex<()>,
}

impl Keeper {
    pub(super) fn new(files: SharedFiles) -> Self {
        let (file, kernels, settling) = Default::default();
        let (is_changed, is_ready) = Default::default();
        Self(Arc::new(KeeperParts { files, file, is_changed, is_ready, kernels, settling }))
    }

    fn file(&self) -> MutexGuard<'_, Option<StateFile>> {
        self.0.file.lock().expect("no thread panics while it holds this")
    }

    /// Notes that loading is over. From now on the sandbox is saved in this file.
    pub(super) fn ready(&self, file: Option<StateFile>) {
        *self.file() = file;
        self.0.is_ready.store(true, Ordering::Release);
    }

    pub(super) fn is_ready(&self) -> bool {
        self.0.is_ready.load(Ordering::Acquire)
    }

    /// Notes that the sandbox differs from the saved state, which could not be restored.
    pub(super) fn differs(&self) {
        self.0.is_changed.store(true, Ordering::Release);
    }

    /// Marks the saved state as outdated: the sandbox is about to differ from it.
    pub(super) fn changes(&self) {
        if !self.0.is_changed.swap(true, Ordering::AcqRel)
            && let Some(file) = &mut *self.file()
        {
            file.leave();
        }
    }

    /// Saves the sandbox between two calls. Returns false if that fails.
    pub(super) fn keep(&self) -> bool {
        let mut file = self.file();
        let Some(file) = file.as_mut() else { return false };
        let is_kept = file.is_last() && !self.0.is_changed.load(Ordering::Acquire);
        is_kept || self.write(file)
    }

    fn write(&self, file: &mut StateFile) -> bool {
        let (now, before) = (self.0.files.now(), self.0.files.before());
        let files = before.as_ref().unwrap_or(&now).save();
        drop((now, before));
        let kernels = self.0.kernels.lock().expect("no thread panics while it holds this");
        let kernels = kernels.iter().map(KeptStates::save).collect();
        let written = file.write(kept::Kept { key: crate::key(), files, kernels });
        self.0.is_changed.store(written.is_err(), Ordering::Release);
        written.is_ok()
    }

    /// A lock: [`end`](Self::end) saves nothing until it is dropped.
    pub(super) fn settling(&self) -> MutexGuard<'_, ()> {
        self.0.settling.lock().expect("no thread panics while it holds this")
    }

    /// Notes the new states of the interpreters.
    pub(super) fn note(&self, kernels: Vec<KeptStates>) {
        *self.0.kernels.lock().expect("no thread panics while it holds this") = kernels;
    }

    /// Saves the sandbox and ends the process. A run in progress is rolled back.
    pub(super) fn end(&self) -> ! {
        // Locked until the process ends: another thread that calls this must not end the process before.
        let mut file = self.file();
        if let Some(mut file) = file.take()
            && self.0.is_changed.load(Ordering::Acquire)
        {
            let _settled = self.settling();
            // If this fails, the next agent finds the older state, marked as outdated.
            self.write(&mut file);
        }
        std::process::exit(0)
    }
}
