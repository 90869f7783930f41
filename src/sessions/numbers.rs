//! The numbers of sessions, which URLs are bound to.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bits of a number that is drawn at random: of a hundred thousand sessions two have the same once in fifty
/// thousand times, and a URL is bound to the session's name as well.
const RANDOM_BITS: u32 = 48;

/// Gives each session its number.
#[derive(Debug)]
pub(super) enum Numbers {
    /// In turn, as URLs end with this server: the first ones are the shortest.
    Counted(AtomicU64),
    /// URLs of this server are known to others, with whose sessions its own must not be mistaken.
    Random,
}

impl Numbers {
    pub(super) fn new(urls_outlive_servers: bool) -> Self {
        if urls_outlive_servers { Self::Random } else { Self::Counted(AtomicU64::new(0)) }
    }

    /// One that no other session has.
    pub(super) fn next(&self) -> u64 {
        match self {
            Self::Counted(next) => next.fetch_add(1, Ordering::Relaxed),
            Self::Random => {
                let number = getrandom::u64().expect("the system has random bytes");
                number >> (u64::BITS - RANDOM_BITS)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn numbers_are_short_or_never_come_again() {
        let counted = Numbers::new(false);
        assert_eq!([counted.next(), counted.next()], [0, 1]);
        let servers = [Numbers::new(true), Numbers::new(true)];
        let all: HashSet<_> =
            servers.iter().flat_map(|server| (0..100).map(|_| server.next())).collect();
        assert_eq!(all.len(), 200);
        assert!(all.iter().all(|number| number >> RANDOM_BITS == 0));
    }
}
