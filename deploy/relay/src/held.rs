//! The containers that a relay has created, while it is responsible for them.
//!
//! ```text
//! created --attach--> attached --its stream ends--> removed
//!   '---- not attached in time ------------------------^
//! ```
//!
//! A container that outlives its stream can be connected to again, through this relay or a later one.
//!
//! Only containers that were created here can be attached, waited for and started. An attached container belongs to its
//! one stream: it cannot be attached again.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::request::{ContainerId, ExecId};

#[derive(Debug)]
pub(super) struct Held {
    containers: Mutex<HashMap<ContainerId, State>>,
    /// Processes that bring another stream, by their ids, until they begin.
    connecting: Mutex<HashMap<ExecId, ContainerId>>,
    /// The maximum number of containers, including those that are being created.
    most: usize,
    places: std::sync::Arc<tokio::sync::Semaphore>,
}

#[derive(Debug)]
struct State {
    attached: bool,
    _place: Place,
}

/// Room for one container.
#[derive(Debug)]
pub(super) struct Place(
    #[expect(dead_code, reason = "held, not used")] tokio::sync::OwnedSemaphorePermit,
);

impl Held {
    pub(super) fn new(most: usize) -> Self {
        Self {
            containers: Mutex::default(),
            connecting: Mutex::default(),
            most,
            places: std::sync::Arc::new(tokio::sync::Semaphore::new(most)),
        }
    }

    /// Takes a place for one more container, if there is one.
    pub(super) fn place(&self) -> Option<Place> {
        self.places.clone().try_acquire_owned().ok().map(Place)
    }

    pub(super) fn most(&self) -> usize {
        self.most
    }

    pub(super) fn made(&self, id: ContainerId, place: Place) {
        self.lock().insert(id, State { attached: false, _place: place });
    }

    /// Marks a container as attached. Returns false if it was not created here, or is already attached.
    pub(super) fn attach(&self, id: &ContainerId) -> bool {
        match self.lock().get_mut(id) {
            Some(state) if !state.attached => {
                state.attached = true;
                true
            }
            _ => false,
        }
    }

    /// Adds a container that was created through another relay, as attached.
    pub(super) fn taken_over(&self, id: ContainerId, place: Place) {
        self.lock().insert(id, State { attached: true, _place: place });
    }

    /// Permits this process to begin, once.
    pub(super) fn may_begin(&self, exec: ExecId, id: ContainerId) {
        let mut connecting = self.connecting.lock().unwrap_or_else(PoisonError::into_inner);
        if connecting.len() >= self.most {
            connecting.clear();
        }
        connecting.insert(exec, id);
    }

    /// Uses the permission of a process to begin, and returns its container; `None` without permission.
    pub(super) fn begin(&self, exec: &ExecId) -> Option<ContainerId> {
        self.connecting.lock().unwrap_or_else(PoisonError::into_inner).remove(exec)
    }

    pub(super) fn has(&self, id: &ContainerId) -> bool {
        self.lock().contains_key(id)
    }

    pub(super) fn is_attached(&self, id: &ContainerId) -> bool {
        self.lock().get(id).is_some_and(|state| state.attached)
    }

    pub(super) fn gone(&self, id: &ContainerId) {
        self.lock().remove(id);
    }

    pub(super) fn all(&self) -> Vec<ContainerId> {
        self.lock().keys().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ContainerId, State>> {
        self.containers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_is_held_by_one_stream_and_its_place_is_free_when_it_is_gone() {
        let held = Held::new(1);
        let id = ContainerId::parse(&"a".repeat(64)).expect("valid");
        assert!(!held.attach(&id) && !held.has(&id));
        held.made(id.clone(), held.place().expect("free"));
        assert!(held.place().is_none());
        assert!(held.has(&id) && !held.is_attached(&id));
        assert!(held.attach(&id) && held.is_attached(&id));
        assert!(!held.attach(&id), "a second one");
        held.gone(&id);
        assert!(!held.attach(&id) && held.place().is_some());
    }
}
