//! Chooses the MCP session that is ended for a new one, so that their number is bounded and shared fairly. Pure.
//!
//! ```text
//! the newcomer has its share --> one of its own
//! all places are taken --------> one of the principal that has most; if the newcomer has as many, its own
//! ```
//!
//! The chosen session is the longest unused one of that principal or, if all are in use, the one with the oldest last
//! request. So no principal loses a session to one that has more.

use std::{collections::HashMap, sync::Arc};

use model::Principal;
use tokio::time::Instant;

/// The properties of an MCP session that decide whether it is evicted.
#[derive(Debug, Clone)]
pub(super) struct Open<'a> {
    pub(super) id: &'a Arc<str>,
    pub(super) principal: &'a Principal,
    /// Whether a stream of the MCP session is open, or a request of it is in progress.
    pub(super) in_use: bool,
    pub(super) last_used: Instant,
}

/// Maximum number of sessions of one principal: four fifths of all places.
fn share(places: usize) -> usize {
    (places * 4 / 5).max(1)
}

/// The session to end before this principal gets one more; `None` while there is room. So at most `places` sessions are
/// ever open.
pub(super) fn evicted(places: usize, newcomer: &Principal, open: &[Open<'_>]) -> Option<Arc<str>> {
    let mut counts = HashMap::<_, usize>::new();
    for session in open {
        *counts.entry(session.principal).or_default() += 1;
    }
    let own = counts.remove(newcomer).unwrap_or_default();
    let has_its_share = own >= share(places);
    if open.len() < places && !has_its_share {
        return None;
    }
    let most = counts.values().copied().max().unwrap_or_default();
    // A newcomer without a session takes the place of another even if each has only one: a new session that is ended at
    // once would be useless.
    let is_own = has_its_share || (own > 0 && own + 1 >= most);
    let may_go = |session: &&Open<'_>| match counts.get(session.principal) {
        Some(count) => !is_own && *count == most,
        None => is_own,
    };
    let evicted = open.iter().filter(may_go).min_by_key(|open| (open.in_use, open.last_used))?;
    Some(evicted.id.clone())
}

#[cfg(test)]
mod tests {
    use std::{sync::LazyLock, time::Duration};

    use config::auth::Tokens;
    use proptest::{collection::vec, prelude::*, sample::select};

    use super::*;

    const PLACES: usize = 10;

    struct Session {
        id: Arc<str>,
        principal: Principal,
        in_use: bool,
        last_used: Instant,
    }

    /// Sessions called 0, 1, ... in the order in which they were opened.
    #[derive(Default)]
    struct Table {
        sessions: Vec<Session>,
        opened: u64,
    }

    impl Table {
        /// Sessions of principals with these letters; those with capital letters are in use.
        fn of(letters: &str) -> Self {
            let mut table = Self::default();
            for letter in letters.chars() {
                table.put(letter);
            }
            table
        }

        fn put(&mut self, letter: char) {
            let id = self.opened.to_string().into();
            let last_used = *START + Duration::from_secs(self.opened);
            self.opened += 1;
            let (principal, in_use) = (principal(letter), letter.is_uppercase());
            self.sessions.push(Session { id, principal, in_use, last_used });
        }

        fn evicted_for(&self, newcomer: char) -> Option<Arc<str>> {
            let open = self.sessions.iter().map(|session| Open {
                id: &session.id,
                principal: &session.principal,
                in_use: session.in_use,
                last_used: session.last_used,
            });
            evicted(PLACES, &principal(newcomer), &open.collect::<Vec<_>>())
        }

        fn held(&self, name: &Principal) -> usize {
            self.sessions.iter().filter(|session| session.principal == *name).count()
        }
    }

    static START: LazyLock<Instant> = LazyLock::new(Instant::now);

    fn principal(letter: char) -> Principal {
        let tokens = Tokens::parse(&format!("{}:x", letter.to_lowercase())).expect("valid");
        tokens.principal("x").expect("known")
    }

    fn evicted_of(letters: &str, newcomer: char) -> Option<String> {
        Table::of(letters).evicted_for(newcomer).map(|id| id.to_string())
    }

    #[test]
    fn nothing_is_ended_while_there_is_room() {
        assert_eq!(evicted_of("aaaaaaaB", 'a'), None);
    }

    #[test]
    fn who_has_four_fifths_of_all_places_gives_one_of_its_own_although_others_are_free() {
        assert_eq!(evicted_of("aaaaaaaa", 'a').as_deref(), Some("0"));
        assert_eq!(evicted_of("aaaaaaaa", 'b'), None);
    }

    #[test]
    fn the_longest_unused_session_of_the_principal_that_has_most_is_ended() {
        for newcomer in ['b', 'd'] {
            assert_eq!(evicted_of("bbAAcaaaca", newcomer).as_deref(), Some("5"), "for {newcomer}");
        }
    }

    #[test]
    fn where_all_of_its_sessions_are_in_use_its_oldest_is_ended_and_no_unused_one_of_others() {
        for newcomer in ['a', 'b', 'c'] {
            assert_eq!(evicted_of("bbAAAAAAAA", newcomer).as_deref(), Some("2"), "for {newcomer}");
        }
    }

    #[test]
    fn a_newcomer_that_has_most_with_its_new_session_gives_one_of_its_own() {
        assert_eq!(evicted_of("aaaaaBBBBB", 'b').as_deref(), Some("5"), "more than another");
        assert_eq!(evicted_of("aaaaacBBBB", 'b').as_deref(), Some("6"), "as many as another");
    }

    #[test]
    fn a_principal_without_a_session_gets_one_where_each_has_one() {
        assert_eq!(evicted_of("Abcdefghij", 'k').as_deref(), Some("1"));
    }

    proptest! {
        #[test]
        fn places_are_never_exceeded_and_nobody_loses_one_through_another_who_has_more(
            newcomers in vec(select("aaaAAAbbBcD".chars().collect::<Vec<_>>()), 1..200)
        ) {
            let mut table = Table::default();
            for newcomer in newcomers {
                if let Some(id) = table.evicted_for(newcomer) {
                    let ended = table.sessions.iter().position(|session| session.id == id);
                    let loser = &table.sessions.remove(ended.expect("one that is open")).principal;
                    let (had, has) = (table.held(loser) + 1, table.held(&principal(newcomer)) + 1);
                    prop_assert!(*loser == principal(newcomer) || has <= had);
                }
                table.put(newcomer);
                prop_assert!(table.sessions.len() <= PLACES);
                prop_assert!(table.held(&principal(newcomer)) <= share(PLACES));
            }
        }
    }
}
