//! MCP sessions that outlive their server, if sandbox sessions do: a client continues its session on the next server
//! without noticing.
//!
//! Nothing is stored. A session's name proves that a server with the same secret has opened it for its caller, which is
//! all that the next server needs to know.

use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
};

use async_trait::async_trait;
use config::Config;
use hmac::{Hmac, KeyInit, Mac};
use model::Principal;
use parking_lot::Mutex;
use rmcp::{
    model::{ClientCapabilities, Implementation, InitializeRequestParams, ProtocolVersion},
    transport::streamable_http_server::session::{SessionState, SessionStore, SessionStoreError},
};
use serde_json::json;
use sha2::Sha256;

/// Purpose of the derived key.
const PURPOSE: &str = "llm-sandbox mcp sessions 1";

/// Separates the two parts of a name.
const SEPARATOR: char = '.';

/// Length of the hash in a name, in bytes.
const HASH: usize = 16;

/// Maximum number of sessions that are remembered as ended here.
const MAX_ENDED: usize = 4096;

/// The protocol version of clients that do not name one (`MCP-Protocol-Version`, revision 2025-06-18).
const UNSAID: &str = "2025-03-26";

/// Translates between the names of MCP sessions that clients have and those that this server uses.
#[derive(Debug, Clone)]
pub(super) struct SessionNames(Option<[u8; 32]>);

impl SessionNames {
    /// Names contain a proof only if sessions outlive their server.
    pub(super) fn new(config: &Config) -> Self {
        let secret = config.server_key.as_ref().filter(|_| config.sessions_outlive_server());
        Self(secret.map(|secret| secret.derive(PURPOSE)))
    }

    /// The name that this caller gets for a session.
    pub(super) fn of_client(&self, id: &str, who: &Principal) -> String {
        let Some(hash) = self.hash(id, who) else { return id.to_owned() };
        format!("{id}{SEPARATOR}{}", hex::encode(&hash.finalize().into_bytes()[..HASH]))
    }

    /// The name of a session on this server, and whether a server with the same secret made it for this caller.
    pub(super) fn of_server(&self, name: &str, who: &Principal) -> (Arc<str>, bool) {
        let Some((id, proof)) = name.split_once(SEPARATOR) else { return (name.into(), false) };
        let mut given = [0; HASH];
        let is_proven = hex::decode_to_slice(proof, &mut given).is_ok()
            && self.hash(id, who).is_some_and(|hash| hash.verify_truncated_left(&given).is_ok());
        // Without a valid proof the whole name is used, which is that of no session.
        (if is_proven { id } else { name }.into(), is_proven)
    }

    fn hash(&self, id: &str, who: &Principal) -> Option<Hmac<Sha256>> {
        let mut hash = Hmac::<Sha256>::new_from_slice(&self.0?).expect("a key may have any length");
        hash.update(id.as_bytes());
        hash.update(&[0]);
        hash.update(who.name().as_bytes());
        Some(hash)
    }
}

/// Sessions that have ended here, and must not continue.
#[derive(Debug, Default)]
pub(super) struct Ended {
    ids: HashSet<Arc<str>>,
    in_turn: VecDeque<Arc<str>>,
}

impl Ended {
    pub(super) fn add(&mut self, id: Arc<str>) {
        if self.ids.insert(id.clone()) {
            self.in_turn.push_back(id);
        }
        if self.in_turn.len() > MAX_ENDED
            && let Some(oldest) = self.in_turn.pop_front()
        {
            self.ids.remove(&oldest);
        }
    }

    pub(super) fn contains(&self, id: &str) -> bool {
        self.ids.contains(id)
    }
}

/// MCP sessions that rmcp is about to continue here: their names, and the protocol versions of their clients.
#[derive(Debug, Default)]
pub(super) struct Resuming(Mutex<Vec<(Arc<str>, String)>>);

/// Maximum number of sessions that are about to continue; there are never more at the same moment.
const MAX_RESUMING: usize = 256;

impl Resuming {
    /// Adds a session, with the protocol version that its client names, if it names one.
    pub(super) fn begin(&self, id: &Arc<str>, version: Option<&str>) {
        let mut all = self.0.lock();
        if all.len() >= MAX_RESUMING {
            all.remove(0);
        }
        all.push((id.clone(), version.unwrap_or(UNSAID).to_owned()));
    }
}

#[async_trait]
impl SessionStore for Resuming {
    async fn load(&self, id: &str) -> Result<Option<SessionState>, SessionStoreError> {
        let version = {
            let mut all = self.0.lock();
            let at = all.iter().position(|(known, _)| **known == *id);
            at.map(|at| all.remove(at).1)
        };
        let Some(version) = version else { return Ok(None) };
        let version: ProtocolVersion = serde_json::from_value(json!(version))?;
        let client = Implementation::new("unknown", "unknown");
        let params = InitializeRequestParams::new(ClientCapabilities::default(), client);
        Ok(Some(SessionState::new(params.with_protocol_version(version))))
    }

    async fn store(&self, _: &str, _: &SessionState) -> Result<(), SessionStoreError> {
        Ok(())
    }

    async fn delete(&self, _: &str) -> Result<(), SessionStoreError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use config::server_key::ServerKey;

    use super::*;

    #[test]
    fn a_name_proves_whose_session_it_is_to_whoever_has_the_secret() {
        let names = || SessionNames(Some(ServerKey::random().derive(PURPOSE)));
        let (ours, others) = (names(), names());
        let (alice, bob) = (Principal::named("alice").expect("valid"), Principal::local());
        let name = ours.of_client("an-id", &alice);
        assert_eq!(ours.of_server(&name, &alice), ("an-id".into(), true));
        for (names, who) in [(&ours, &bob), (&others, &alice)] {
            assert_eq!(names.of_server(&name, who), (name.as_str().into(), false));
        }
        for wrong in [&name[1..], &name[..name.len() - 2], "an-id", "an-id.", "."] {
            assert!(!ours.of_server(wrong, &alice).1, "{wrong}");
        }
        let plain = SessionNames(None);
        assert_eq!(plain.of_client("an-id", &alice), "an-id");
        assert_eq!(plain.of_server("an-id", &alice), ("an-id".into(), false));
        assert!(!plain.of_server(&name, &alice).1);
    }

    #[test]
    fn the_last_that_have_ended_are_remembered() {
        let mut ended = Ended::default();
        for n in 0..=MAX_ENDED {
            ended.add(n.to_string().into());
            ended.add(n.to_string().into());
        }
        assert!(!ended.contains("0") && ended.contains("1") && ended.contains("4096"));
        assert_eq!(ended.in_turn.len(), MAX_ENDED);
    }
}
