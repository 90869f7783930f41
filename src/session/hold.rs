//! Sessions that outlive the stream to their sandbox, and their server.
//!
//! The agent waits for another stream, and accepts one that presents its token. Servers with the same secret derive the
//! same token for a sandbox. The agent also keeps a note for them, which says whose session it is. A sandbox may return
//! anything as the note, so a server accepts it only with a keyed hash (HMAC-SHA256) over the note and the sandbox's
//! name.

use std::{sync::Arc, time::Duration};

use backend::{Backend, Sandbox};
use bytes::Bytes;
use config::server_key::ServerKey;
use futures::FutureExt;
use hmac::{Hmac, KeyInit, Mac};
use jiff::Timestamp;
use link::{Holding, Reconnect, Stream};
use model::{RunId, SessionRecord, text::utf8};
use protocol::message::RuntimeName;
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use super::command::Program;

/// Bytes of the hash before a note.
const HASH: usize = 32;

/// Maximum number of bytes of a run's code in a note: less than a fifth of what the agent stores, because JSON can take
/// six bytes for one.
const MAX_CODE: usize = 10_000;

/// The note for the next server.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct HoldNote {
    /// Whose session it is.
    pub(crate) session: Option<SessionRecord>,
    /// The session's last run, of which the agent has the reply or will have it.
    pub(crate) last_run: Option<LastRun>,
}

/// A run, as its server has begun it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct LastRun {
    /// The number of the run in calls to the agent.
    pub(crate) call: u32,
    pub(crate) run_id: RunId,
    pub(crate) begun: Timestamp,
    pub(super) language: RuntimeName,
    pub(super) is_cell: bool,
    /// The beginning of its code.
    pub(super) code: String,
    pub(super) timeout: Duration,
}

impl LastRun {
    /// A run that begins, except for its number.
    pub(super) fn new(program: &Program) -> Self {
        let code = String::from_utf8_lossy(&program.code);
        Self {
            call: 0,
            run_id: program.run_id.clone(),
            begun: Timestamp::now(),
            language: program.language.clone(),
            is_cell: program.cell,
            code: utf8::start(&code, MAX_CODE).to_owned(),
            timeout: program.timeout,
        }
    }

    /// The program that was run, as far as it is known.
    pub(super) fn program(&self) -> Program {
        let program = Program::new(self.language.clone(), self.code.clone(), self.timeout);
        Program { run_id: self.run_id.clone(), cell: self.is_cell, ..program }
    }
}

/// How sandboxes are held (`SANDBOX_HOLD_S`). Clones share the secret.
#[derive(Debug, Clone)]
pub(crate) struct HoldSettings {
    /// How long a sandbox waits for another stream.
    pub(crate) limit: Duration,
    /// Whether the next server takes over the session: the sandbox is left when this server ends.
    pub(crate) outlives_server: bool,
    key: ServerKey,
}

impl HoldSettings {
    /// Settings with this secret.
    pub(crate) fn new(limit: Duration, outlives_server: bool, key: ServerKey) -> Self {
        Self { limit, outlives_server, key }
    }

    /// How the sandbox of this name is held.
    pub(crate) fn of(&self, backend: &Arc<dyn Backend>, sandbox: &str) -> Holding {
        let token = hex::encode(self.key.derive(&format!("hold {sandbox}")));
        let (backend, sandbox) = (backend.clone(), sandbox.to_owned());
        let reconnect: Reconnect = Arc::new(move || {
            let (backend, sandbox) = (backend.clone(), sandbox.clone());
            async move {
                let resumable = backend.abilities().resumable.ok_or("the engine cannot do that")?;
                let Sandbox { reader, writer, .. } =
                    resumable.reattach(sandbox).await.map_err(|error| error.to_string())?;
                Ok(Stream { reader, writer })
            }
            .boxed()
        });
        Holding { limit: self.limit, token: token.into(), reconnect }
    }

    /// A note as the agent of this sandbox stores it: the hash, then the note.
    pub(crate) fn seal(&self, sandbox: &str, note: &[u8]) -> Bytes {
        let hash = self.mac(sandbox, note).finalize().into_bytes();
        [&hash[..], note].concat().into()
    }

    /// The note that was sealed with [`seal`](Self::seal) for this sandbox; `None` if the hash does not match.
    pub(crate) fn unseal(&self, sandbox: &str, sealed: &Bytes) -> Option<Bytes> {
        let hash = sealed.get(..HASH)?;
        let note = sealed.slice(HASH..);
        self.mac(sandbox, &note).verify_slice(hash).ok()?;
        Some(note)
    }

    fn mac(&self, sandbox: &str, note: &[u8]) -> Hmac<Sha256> {
        let key = self.key.derive(&format!("note {sandbox}"));
        let mut mac = Hmac::new_from_slice(&key).expect("a key may have any length");
        mac.update(note);
        mac
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_taken_only_as_it_was_sealed_for_the_sandbox_that_has_it() {
        let hold = HoldSettings::new(Duration::from_secs(60), true, ServerKey::random());
        let sealed = hold.seal("one", b"alice's");
        assert_eq!(hold.unseal("one", &sealed).as_deref(), Some(&b"alice's"[..]));
        assert_eq!(hold.unseal("another", &sealed), None);
        let other = HoldSettings::new(Duration::from_secs(60), true, ServerKey::random());
        assert_eq!(other.unseal("one", &sealed), None);
        for at in 0..sealed.len() {
            let mut changed = sealed.to_vec();
            changed[at] ^= 1;
            assert_eq!(hold.unseal("one", &changed.into()), None, "byte {at}");
            assert_eq!(hold.unseal("one", &sealed.slice(..at)), None, "{at} bytes");
        }
    }
}
