//! Where callers are at home, among several servers behind one address: each caller's sessions are all on one server.
//!
//! ```text
//!   nobody's --take--> one server's --leave, or taken over when that is gone--> another's
//! ```
//!
//! Nothing is decided here but who has whom. Every server can tell at any time, and two never both believe to have
//! won the same caller.

use std::{fmt, net::SocketAddr};

use futures::future::BoxFuture;
use model::Principal;

use super::BackendError;
use crate::server_key::ServerKey;

/// Tells callers apart and names none, to whoever has not the servers' secret.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct CallerKey(String);

/// Bytes of one.
const BYTES: usize = 16;

impl CallerKey {
    /// The key of this caller, the same for all servers with this secret.
    pub fn of(secret: &ServerKey, caller: &Principal) -> Self {
        let derived = secret.derive(&format!("caller {}", caller.name()));
        Self(hex::encode(&derived[..BYTES]))
    }

    /// Reads one back.
    pub fn parse(text: &str) -> Option<Self> {
        let is_valid = text.len() == 2 * BYTES && text.bytes().all(|b| b.is_ascii_hexdigit());
        is_valid.then(|| Self(text.to_owned()))
    }

    /// 32 hexadecimal digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Its first 32 bits, by which a URL shows where it belongs.
    pub fn prefix(&self) -> u32 {
        u32::from_str_radix(&self.0[..8], 16).expect("hexadecimal digits")
    }
}

impl fmt::Debug for CallerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A caller's home as it was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Home {
    /// This server.
    Here,
    /// Another one.
    At(Claim),
    /// None any more: whoever comes first takes it.
    Left(Claim),
}

/// What stands of a caller's home, and is replaced only as it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The server, as the owner of its sandboxes.
    pub server: String,
    /// Where other servers reach it.
    pub address: SocketAddr,
    /// Changes whenever anything of it does.
    pub version: String,
}

/// Who has which caller. Shared by all servers of one deployment.
pub trait Homes: fmt::Debug + Send + Sync {
    /// Where a caller is at home, as far as is known without asking; `None` if nothing is.
    fn known(&self, caller: &CallerKey) -> Option<Home>;

    /// What this server is called among them, once it has begun.
    fn name(&self) -> Option<String>;

    /// Waits until it is known of all callers.
    fn seen(&self) -> BoxFuture<'_, ()>;

    /// The callers that something is known of whose keys begin so.
    fn beginning_with(&self, prefix: u32) -> Vec<CallerKey>;

    /// The callers that are at home here.
    fn here(&self) -> Vec<CallerKey>;

    /// Makes this server a caller's home if it is nobody's, or still is as it was seen, and says whose it is now.
    ///
    /// # Errors
    /// If that cannot be found out.
    fn take<'a>(
        &'a self,
        caller: &'a CallerKey,
        instead_of: Option<Claim>,
    ) -> BoxFuture<'a, Result<Home, BackendError>>;

    /// This server is the caller's home no more. The next one goes on with the caller's sessions if there are any.
    fn leave<'a>(&'a self, caller: &'a CallerKey, has_sessions: bool) -> BoxFuture<'a, ()>;

    /// The next caller that is not at home here any more, through no doing of this server.
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
