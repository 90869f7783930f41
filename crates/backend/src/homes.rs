//! The home servers of callers, among several servers behind one address. All sessions of a caller are on one server,
//! the caller's home.
//!
//! ```text
//!   no home --take--> one server --leave, or taken over when that server is dead--> another server
//! ```
//!
//! This module decides only which server has which caller. Every server can find out at any time, and two servers
//! never both succeed in taking the same caller.

use std::{fmt, net::SocketAddr};

use config::server_key::ServerKey;
use futures::future::BoxFuture;
use model::Principal;

use super::BackendError;

/// A pseudonym of a caller. Without the servers' secret it distinguishes callers but reveals no name.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct CallerKey(String);

/// Bytes of a key.
const BYTES: usize = 16;

impl CallerKey {
    /// The key of this caller, the same for all servers with this secret.
    pub fn of(secret: &ServerKey, caller: &Principal) -> Self {
        let derived = secret.derive(&format!("caller {}", caller.name()));
        Self(hex::encode(&derived[..BYTES]))
    }

    /// Parses the text of a key.
    pub fn parse(text: &str) -> Option<Self> {
        let is_valid = text.len() == 2 * BYTES && text.bytes().all(|b| b.is_ascii_hexdigit());
        is_valid.then(|| Self(text.to_owned()))
    }

    /// The key as 32 hexadecimal digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The first 32 bits of the key, which URLs contain to identify the caller's home.
    pub fn prefix(&self) -> u32 {
        u32::from_str_radix(&self.0[..8], 16).expect("the key is 32 hexadecimal digits")
    }
}

impl fmt::Debug for CallerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A caller's home as it was last seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Home {
    /// This server.
    Here,
    /// Another server.
    At(Claim),
    /// No server any more: the first one that tries takes the caller.
    Left(Claim),
}

/// The record of a caller's home. A server can replace it only if its version has not changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The server's name, which also marks its sandboxes.
    pub server: String,
    /// The address at which other servers reach it.
    pub address: SocketAddr,
    /// Changes with every change of the record.
    pub version: String,
}

/// The homes of all callers. All servers of one deployment share them.
pub trait Homes: fmt::Debug + Send + Sync {
    /// The home of a caller as known without a request; `None` if it is not known.
    fn known(&self, caller: &CallerKey) -> Option<Home>;

    /// The name of this server among the others; `None` before it has started.
    fn name(&self) -> Option<String>;

    /// Waits until the homes of all callers are known.
    fn seen(&self) -> BoxFuture<'_, ()>;

    /// The callers with a known home whose keys begin with these 32 bits.
    fn beginning_with(&self, prefix: u32) -> Vec<CallerKey>;

    /// The other servers that are the home of a caller.
    fn others(&self) -> Vec<Claim>;

    /// The callers whose home is this server.
    fn here(&self) -> Vec<CallerKey>;

    /// Makes this server a caller's home if the caller has none, or if the record is still the one in `instead_of`.
    /// Returns the home after that.
    ///
    /// # Errors
    /// If the home cannot be determined.
    fn take<'a>(
        &'a self,
        caller: &'a CallerKey,
        instead_of: Option<Claim>,
    ) -> BoxFuture<'a, Result<Home, BackendError>>;

    /// Releases a caller. If the caller has sessions, the next home continues them.
    fn leave<'a>(&'a self, caller: &'a CallerKey, has_sessions: bool) -> BoxFuture<'a, ()>;

    /// Waits for the next caller whose home is no longer this server although this server has not released it.
    fn taken(&self) -> BoxFuture<'_, CallerKey>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_one_callers_and_one_secrets_and_can_be_read_back() {
        let (secret, other) = (ServerKey::random(), ServerKey::random());
        let (alice, bob) = (Principal::named("alice").expect("valid"), Principal::local());
        let key = CallerKey::of(&secret, &alice);
        assert_eq!(key, CallerKey::of(&secret, &alice));
        assert_ne!(key, CallerKey::of(&secret, &bob));
        assert_ne!(key, CallerKey::of(&other, &alice));
        assert_eq!(CallerKey::parse(key.as_str()), Some(key.clone()));
        assert_eq!(format!("{:08x}", key.prefix()), key.as_str()[..8]);
        for wrong in ["", "alice", &key.as_str()[1..], &format!("{}g", &key.as_str()[1..])] {
            assert_eq!(CallerKey::parse(wrong), None, "{wrong:?}");
        }
    }
}
