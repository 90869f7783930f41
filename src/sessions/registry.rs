//! What there is by name: the sessions of each caller, and those that were evicted. Bookkeeping
//! only: it starts and ends nothing.
//!
//! A name belongs to its caller: two callers may both have a session of one name, and neither can tell.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    time::Instant,
};

use crate::{
    auth::Principal,
    session::{SessionId, handle::Handle},
};

/// Evicted sessions that are remembered, so that their callers can be told why they are gone.
const EVICTED: usize = 256;

/// Whose session, and what they call it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    caller: Principal,
    id: SessionId,
}

/// The sessions that there are.
#[derive(Debug, Default)]
pub(super) struct Registry {
    live: HashMap<Key, Handle>,
    /// Newest last.
    evicted: VecDeque<Key>,
}

impl Registry {
    pub(super) fn len(&self) -> usize {
        self.live.len()
    }

    pub(super) fn insert(&mut self, caller: &Principal, handle: Handle) {
        self.live.insert(Key::new(caller, &handle.id), handle);
    }

    /// Takes out the session of this number, whose and whatever it is.
    pub(super) fn remove(&mut self, number: u64) {
        self.live.retain(|_, handle| handle.number != number);
    }

    /// The caller's session of this name.
    pub(super) fn find(&self, caller: &Principal, id: &SessionId) -> Option<&Handle> {
        self.live.get(&Key::new(caller, id))
    }

    /// Whose session this is, if it is there and goes by this name.
    pub(super) fn holder(&self, id: &SessionId, number: u64) -> Option<&Principal> {
        let mut all = self.live.iter();
        let found = all.find(|(key, handle)| handle.number == number && key.id == *id);
        found.map(|(key, _)| &key.caller)
    }

    /// The caller's sessions.
    pub(super) fn of(&self, caller: &Principal) -> impl Iterator<Item = &Handle> {
        let own = self.live.iter().filter(move |(key, _)| key.caller == *caller);
        own.map(|(_, handle)| handle)
    }

    /// Of the caller's sessions that were never named and have not been used since that time, the one
    /// that was unused for longest; none of those that are passed over.
    pub(super) fn longest_idle(
        &self,
        caller: &Principal,
        since: Instant,
        passed_over: &HashSet<u64>,
    ) -> Option<Handle> {
        let unnamed = self.of(caller).filter(|handle| handle.id.is_minted());
        let idle = unnamed.filter_map(|handle| {
            let idle = handle.usage.idle_since().filter(|idle| *idle <= since)?;
            (!passed_over.contains(&handle.number)).then_some((idle, handle))
        });
        let longest = idle.min_by_key(|(idle, ..)| *idle);
        longest.map(|(_, handle)| handle.clone())
    }

    /// Remembers that a session has had to give way.
    pub(super) fn note_evicted(&mut self, caller: &Principal, id: &SessionId) {
        self.evicted.push_back(Key::new(caller, id));
        if self.evicted.len() > EVICTED {
            self.evicted.pop_front();
        }
    }

    /// Whether the caller's session of this name has had to give way, as far as is remembered.
    pub(super) fn was_evicted(&self, caller: &Principal, id: &SessionId) -> bool {
        self.evicted.contains(&Key::new(caller, id))
    }
}

impl Key {
    fn new(caller: &Principal, id: &SessionId) -> Self {
        Self { caller: caller.clone(), id: id.clone() }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{auth::Tokens, session::usage::Usage};

    fn callers() -> [Principal; 2] {
        let tokens = Tokens::parse("alice:a,bob:b").expect("valid");
        ["a", "b"].map(|token| tokens.principal(token).expect("known"))
    }

    /// A session that was used last at this time, or is in use.
    fn handle(id: &SessionId, number: u64, idle_since: Option<Instant>) -> Handle {
        let usage = Usage::default();
        usage.set(idle_since);
        Handle::detached(id.clone(), number, usage)
    }

    #[test]
    fn a_name_belongs_to_its_caller() {
        let ([alice, bob], id) = (callers(), SessionId::mint());
        let mut registry = Registry::default();
        registry.insert(&alice, handle(&id, 1, None));
        registry.insert(&bob, handle(&id, 2, None));
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

    #[test]
    fn the_callers_unnamed_session_that_was_unused_for_longest_gives_way() {
        let [alice, bob] = callers();
        let now = Instant::now();
        let ago = |seconds| now.checked_sub(Duration::from_secs(seconds));
        let (first, second, recent, busy) =
            (SessionId::mint(), SessionId::mint(), SessionId::mint(), SessionId::mint());
        let mut registry = Registry::default();
        registry.insert(&alice, handle(&"reports".parse().expect("valid"), 1, ago(900)));
        registry.insert(&bob, handle(&SessionId::mint(), 2, ago(900)));
        registry.insert(&alice, handle(&second, 3, ago(70)));
        registry.insert(&alice, handle(&first, 4, ago(80)));
        registry.insert(&alice, handle(&recent, 5, ago(50)));
        registry.insert(&alice, handle(&busy, 6, None));
        let longest = |passed_over: &[u64]| {
            let passed_over = passed_over.iter().copied().collect();
            let since = ago(60).expect("a boot before");
            registry.longest_idle(&alice, since, &passed_over).map(|handle| handle.id)
        };
        assert_eq!(longest(&[]), Some(first));
        assert_eq!(longest(&[4]), Some(second));
        assert_eq!(longest(&[4, 3]), None);
    }

    #[test]
    fn so_many_evictions_are_remembered_for_their_callers_and_no_more() {
        let ([alice, bob], first) = (callers(), SessionId::mint());
        let mut registry = Registry::default();
        registry.note_evicted(&alice, &first);
        assert!(registry.was_evicted(&alice, &first) && !registry.was_evicted(&bob, &first));
        for _ in 0..EVICTED {
            registry.note_evicted(&bob, &SessionId::mint());
        }
        assert!(!registry.was_evicted(&alice, &first));
        assert_eq!(registry.evicted.len(), EVICTED);
    }
}
