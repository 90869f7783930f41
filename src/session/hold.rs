//! Sessions that outlive the stream to their sandbox, and their server.
//!
//! The agent waits for another stream, and takes one from whoever has its token. Servers with the same secret have
//! the same token for a sandbox. It also keeps a note for them, which says whose session it is; as whatever comes
//! out of a sandbox it may be anything, so it is taken only with a keyed hash of ours, over it and the sandbox.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures::FutureExt;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::{
    backend::{Backend, Sandbox},
    link::{Holding, Reconnect, Stream},
    server_key::ServerKey,
};

/// Bytes of the hash before a note.
const HASH: usize = 32;

/// How sandboxes are held. Clones share the secret.
#[derive(Debug, Clone)]
pub(crate) struct Hold {
    /// For how long.
    pub(crate) limit: Duration,
    /// The session goes on with the next server: the sandbox is left when this one ends.
    pub(crate) outlives_server: bool,
    key: ServerKey,
}

impl Hold {
    /// With this secret.
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
                let Sandbox { reader, writer, .. } =
                    backend.reattach(sandbox).await.map_err(|error| error.to_string())?;
                Ok(Stream { reader, writer })
            }
            .boxed()
        });
        Holding { limit: self.limit, token: token.into(), reconnect }
    }

    /// A note as the agent of this sandbox keeps it.
    pub(crate) fn seal(&self, sandbox: &str, note: &[u8]) -> Bytes {
        let hash = self.mac(sandbox, note).finalize().into_bytes();
        [&hash[..], note].concat().into()
    }

    /// The note that was sealed so; `None` if this one was not.
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
        let hold = Hold::new(Duration::from_secs(60), true, ServerKey::random());
        let sealed = hold.seal("one", b"alice's");
        assert_eq!(hold.unseal("one", &sealed).as_deref(), Some(&b"alice's"[..]));
        assert_eq!(hold.unseal("another", &sealed), None);
        let other = Hold::new(Duration::from_secs(60), true, ServerKey::random());
        assert_eq!(other.unseal("one", &sealed), None);
        for at in 0..sealed.len() {
            let mut changed = sealed.to_vec();
            changed[at] ^= 1;
            assert_eq!(hold.unseal("one", &changed.into()), None, "byte {at}");
            assert_eq!(hold.unseal("one", &sealed.slice(..at)), None, "{at} bytes");
        }
    }
}
