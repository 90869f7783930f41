//! The numbers of sessions, which URLs are bound to.

use std::sync::atomic::{AtomicU64, Ordering};

use config::{Config, server_key::ServerKey};

/// Bits of a random number. Among a hundred thousand sessions the chance that two have the same number is one in fifty
/// thousand, and a URL is bound to the session's name as well.
const RANDOM_BITS: u32 = 48;

/// Random bits of a number whose other bits show the caller.
const CALLERS_BITS: u32 = 32;

/// Assigns each session its number.
#[derive(Debug)]
pub(super) enum Numbers {
    /// Sequential, because URLs end with this server. The first numbers are the shortest.
    Counted(AtomicU64),
    /// Random with this many bits, because other servers know the URLs of this one and must not confuse its sessions
    /// with their own.
    Random(u32),
}

impl Numbers {
    pub(super) fn new(urls_outlive_servers: bool, callers_are_shared: bool) -> Self {
        match (urls_outlive_servers, callers_are_shared) {
            (false, _) => Self::Counted(AtomicU64::new(0)),
            (true, false) => Self::Random(RANDOM_BITS),
            (true, true) => Self::Random(CALLERS_BITS),
        }
    }

    /// A number that no other session has.
    pub(super) fn next(&self) -> u64 {
        match self {
            Self::Counted(next) => next.fetch_add(1, Ordering::Relaxed),
            Self::Random(bits) => {
                let number = getrandom::u64().expect("the system has random bytes");
                number >> (u64::BITS - bits)
            }
        }
    }
}

/// Identifies the servers among which numbers are valid that a later server reads; `None` if URLs end with this server.
pub(super) fn valid_for(config: &Config) -> Option<String> {
    config.server_key.as_ref().map(ServerKey::fingerprint)
}

/// The number with its caller's bits before it, if it has none yet. A number of a server that shared no callers stays
/// as it is.
pub(super) fn of_caller(number: u64, prefix: u32) -> u64 {
    if number >> CALLERS_BITS == 0 { u64::from(prefix) << CALLERS_BITS | number } else { number }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn numbers_are_short_or_never_come_again() {
        let counted = Numbers::new(false, false);
        assert_eq!([counted.next(), counted.next()], [0, 1]);
        let servers = [Numbers::new(true, false), Numbers::new(true, false)];
        let all: HashSet<_> =
            servers.iter().flat_map(|server| (0..100).map(|_| server.next())).collect();
        assert_eq!(all.len(), 200);
        assert!(all.iter().all(|number| number >> RANDOM_BITS == 0));
    }

    #[test]
    fn a_number_of_a_shared_caller_shows_the_caller_once() {
        let number = Numbers::new(true, true).next();
        assert_eq!(number >> CALLERS_BITS, 0);
        let shown = of_caller(number, 0xABCD_EF01);
        assert_eq!((shown >> CALLERS_BITS, shown & 0xFFFF_FFFF), (0xABCD_EF01, number));
        assert_eq!(of_caller(shown, 0xABCD_EF01), shown);
    }
}
