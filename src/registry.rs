//! What there is by name: the sessions of each caller. Bookkeeping only: it starts and ends nothing.
//!
//! A name belongs to its caller: two callers may both have a session of one name, and neither can tell.

use std::collections::HashMap;

use jiff::Timestamp;
use tokio::sync::{mpsc, watch};

use crate::{
    auth::Principal,
    session::{History, SessionId, command::Command},
};

/// Reaches a session's task.
#[derive(Debug, Clone)]
pub(crate) struct Handle {
    /// Tells it from every other session of this server, whatever its name.
    pub(crate) number: u64,
    pub(crate) commands: mpsc::Sender<Command>,
    /// What it has done.
    pub(crate) history: watch::Receiver<History>,
    /// When somebody asked for it.
    pub(crate) since: Timestamp,
}

/// Whose session, and what they call it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    caller: Principal,
    id: SessionId,
}

/// The sessions that there are.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    live: HashMap<Key, Handle>,
}

impl Registry {
    pub(crate) fn len(&self) -> usize {
        self.live.len()
    }

    pub(crate) fn insert(&mut self, caller: &Principal, id: &SessionId, handle: Handle) {
        self.live.insert(Key::new(caller, id), handle);
    }

    /// Takes out the session of this number, whose and whatever it is.
    pub(crate) fn remove(&mut self, number: u64) {
        self.live.retain(|_, handle| handle.number != number);
    }

    /// The caller's session of this name.
    pub(crate) fn find(&self, caller: &Principal, id: &SessionId) -> Option<&Handle> {
        self.live.get(&Key::new(caller, id))
    }

    /// Whose session this is, if it is there and goes by this name.
    pub(crate) fn holder(&self, id: &SessionId, number: u64) -> Option<&Principal> {
        let mut all = self.live.iter();
        let found = all.find(|(key, handle)| handle.number == number && key.id == *id);
        found.map(|(key, _)| &key.caller)
    }

    /// The caller's sessions.
    pub(crate) fn of(&self, caller: &Principal) -> impl Iterator<Item = (&SessionId, &Handle)> {
        let own = self.live.iter().filter(move |(key, _)| key.caller == *caller);
        own.map(|(key, handle)| (&key.id, handle))
    }
}

impl Key {
    fn new(caller: &Principal, id: &SessionId) -> Self {
        Self { caller: caller.clone(), id: id.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::Tokens;

    fn callers() -> [Principal; 2] {
        let tokens = Tokens::parse("alice:a,bob:b").expect("valid");
        ["a", "b"].map(|token| tokens.principal(token).expect("known"))
    }

    fn handle(number: u64) -> Handle {
        let (commands, history) = (mpsc::channel(1).0, watch::channel(History::default()).1);
        Handle { number, commands, history, since: Timestamp::now() }
    }

    #[test]
    fn a_name_belongs_to_its_caller() {
        let ([alice, bob], id) = (callers(), SessionId::mint());
        let mut registry = Registry::default();
        registry.insert(&alice, &id, handle(1));
        registry.insert(&bob, &id, handle(2));
        let number = |registry: &Registry, who: &Principal| {
            registry.find(who, &id).map(|handle| handle.number)
        };
        assert_eq!((number(&registry, &alice), number(&registry, &bob)), (Some(1), Some(2)));
        assert_eq!(registry.holder(&id, 2), Some(&bob));
        assert_eq!(registry.holder(&id, 3), None);
        assert_eq!(registry.holder(&SessionId::mint(), 2), None, "a number goes with its name");
        registry.remove(1);
        assert_eq!((number(&registry, &alice), number(&registry, &bob)), (None, Some(2)));
        assert_eq!(registry.of(&bob).count(), 1);
    }
}
