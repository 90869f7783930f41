//! Runs that have an id and have not begun: their sessions are being found or started, or they wait in one. Until a run
//! begins, the history of no session has it.

use std::{collections::HashMap, sync::Arc};

use model::{Principal, SessionId};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::{Program, Which};

/// All runs that have not begun. Clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct AllUnbegun(Arc<Mutex<HashMap<Key, Unbegun>>>);

/// A caller, and the id of its run.
type Key = (Principal, String);

/// A run that has not begun.
#[derive(Debug, Clone)]
pub(super) struct Unbegun {
    /// Its session, if the call names one.
    pub(super) session: Option<SessionId>,
    /// Ends the run as soon as it begins.
    pub(super) cancel: CancellationToken,
    /// Cancelled when the run has begun, or will not.
    pub(super) over: CancellationToken,
}

/// Removes a run when it is dropped.
#[derive(Debug)]
struct Mark {
    all: AllUnbegun,
    key: Key,
}

impl AllUnbegun {
    /// Adds the run of a program, until the program begins or is dropped.
    pub(super) fn add(&self, caller: &Principal, which: &Which, program: &mut Program) {
        let session = match which {
            Which::Named(id) => Some(id.clone()),
            _ => None,
        };
        // A child token: cancelling the run must not cancel the caller's token, which would drop its answer.
        program.cancel = program.cancel.child_token();
        let cancel = program.cancel.clone();
        let unbegun = Unbegun { session, cancel, over: CancellationToken::new() };
        let key = (caller.clone(), program.run_id.to_string());
        self.0.lock().insert(key.clone(), unbegun);
        program.unbegun = Some(Arc::new(Mark { all: self.clone(), key }));
    }

    /// A caller's run of this id.
    pub(super) fn of(&self, caller: &Principal, run_id: &str) -> Option<Unbegun> {
        self.0.lock().get(&(caller.clone(), run_id.to_owned())).cloned()
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        let unbegun = self.all.0.lock().remove(&self.key);
        if let Some(unbegun) = unbegun {
            unbegun.over.cancel();
        }
    }
}
