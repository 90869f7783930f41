//! Permits for requests that wait for changes, shared fairly. Such requests hold connections that others
//! need, so their number is limited, and one caller has at most half of them.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use model::Principal;

/// All permits of a server.
#[derive(Debug)]
pub(in crate::http) struct Waiters {
    places: usize,
    /// Permits of each caller; callers without one are not in the map.
    taken: Mutex<HashMap<Principal, usize>>,
}

/// A permit of a caller, until it is dropped.
#[derive(Debug)]
pub(in crate::http) struct Permit<'a> {
    all: &'a Waiters,
    caller: Principal,
}

impl Waiters {
    pub(in crate::http) fn new(places: usize) -> Self {
        Self { places, taken: Mutex::default() }
    }

    /// A permit for one more request of this caller, if one is free.
    pub(in crate::http) fn take(&self, caller: &Principal) -> Option<Permit<'_>> {
        let mut taken = self.lock();
        let own = taken.get(caller).copied().unwrap_or_default();
        if own >= self.places.div_ceil(2) || taken.values().sum::<usize>() >= self.places {
            return None;
        }
        taken.insert(caller.clone(), own + 1);
        Some(Permit { all: self, caller: caller.clone() })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Principal, usize>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let mut taken = self.all.lock();
        if let Some(own) = taken.get_mut(&self.caller) {
            *own -= 1;
            if *own == 0 {
                taken.remove(&self.caller);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use config::auth::Tokens;

    use super::*;

    fn caller(name: &str) -> Principal {
        let tokens = Tokens::parse(&format!("{name}:x")).expect("valid");
        tokens.principal("x").expect("known")
    }

    #[test]
    fn a_caller_has_at_most_half_of_the_places_and_all_callers_have_no_more_than_there_are() {
        let waiters = Waiters::new(4);
        let (ann, bob, cid) = (caller("ann"), caller("bob"), caller("cid"));
        let anns = [waiters.take(&ann), waiters.take(&ann)];
        assert!(anns.iter().all(Option::is_some));
        assert!(waiters.take(&ann).is_none(), "she has half of them");
        let bobs = [waiters.take(&bob), waiters.take(&bob)];
        assert!(bobs.iter().all(Option::is_some));
        assert!(waiters.take(&cid).is_none(), "all are taken");
        drop(anns);
        assert!(waiters.take(&cid).is_some(), "two were given back");
    }

    #[test]
    fn callers_that_wait_no_longer_are_forgotten() {
        let waiters = Waiters::new(4);
        drop([waiters.take(&caller("ann")), waiters.take(&caller("ann"))]);
        assert!(waiters.lock().is_empty());
    }
}
