//! Authentication between servers that share their callers: each connection between them begins with a proof of both
//! sides that they have the common secret. No request is sent to another program that listens at the address of a
//! server that has ended, and none is accepted from other programs.
//!
//! ```text
//!   who connects:  MAGIC | nonce
//!   who listens:                  nonce | hash over (listener, its name, both nonces)
//!   who connects:                                                                     hash over (connector, ...)
//! ```
//!
//! The handshake authenticates both sides and encrypts nothing: everybody between them can read the connection.

use std::{io, time::Duration};

use backend::Claim;
use config::server_key::ServerKey;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

/// Purpose of the derived key, see [`ServerKey::derive`].
const PURPOSE: &str = "llm-sandbox peers 1";

/// First bytes of a connection between servers.
const MAGIC: [u8; 8] = *b"sandbox1";

/// Time within which a running server accepts a connection and proves who it is.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Length of a nonce, and of a hash, in bytes.
const BYTES: usize = 32;

/// The side that a proof is for.
#[derive(Debug, Clone, Copy)]
enum Side {
    Connects,
    Listens,
}

/// A key from the common secret of a deployment, which its servers prove to each other.
#[derive(Clone)]
pub struct Proof([u8; BYTES]);

impl Proof {
    /// Derives the key from this secret.
    pub fn of(secret: &ServerKey) -> Self {
        Self(secret.derive(PURPOSE))
    }

    /// Connects to the server that has made this claim.
    ///
    /// # Errors
    /// If no server listens at its address, or another one.
    pub async fn connect(&self, to: &Claim) -> io::Result<TcpStream> {
        let connected = async {
            let mut stream = TcpStream::connect(to.address).await?;
            stream.set_nodelay(true)?;
            let ours = nonce();
            stream.write_all(&[&MAGIC[..], &ours].concat()).await?;
            let (mut theirs, mut proof) = ([0; BYTES], [0; BYTES]);
            stream.read_exact(&mut theirs).await?;
            stream.read_exact(&mut proof).await?;
            let hash = |side| self.hash(side, &to.server, &ours, &theirs);
            hash(Side::Listens).verify_slice(&proof).map_err(|_| another())?;
            stream.write_all(&hash(Side::Connects).finalize().into_bytes()).await?;
            Ok(stream)
        };
        timeout(CONNECT_TIMEOUT, connected).await?
    }

    /// Checks that a server has connected, and that it meant the server of this name.
    ///
    /// # Errors
    /// If the other side is no server of this deployment, or meant another one.
    pub async fn accept(&self, stream: &mut TcpStream, name: &str) -> io::Result<()> {
        let accepted = async {
            let (mut magic, mut theirs) = ([0; MAGIC.len()], [0; BYTES]);
            stream.read_exact(&mut magic).await?;
            if magic != MAGIC {
                return Err(another());
            }
            stream.read_exact(&mut theirs).await?;
            let ours = nonce();
            let hash = |side| self.hash(side, name, &theirs, &ours);
            let proof = hash(Side::Listens).finalize().into_bytes();
            stream.write_all(&[&ours[..], &proof].concat()).await?;
            let mut proof = [0; BYTES];
            stream.read_exact(&mut proof).await?;
            hash(Side::Connects).verify_slice(&proof).map_err(|_| another())
        };
        timeout(CONNECT_TIMEOUT, accepted).await?
    }

    /// Hashes what one side has to prove. The nonces have a fixed length and the name comes last, so that no two inputs
    /// make the same text.
    fn hash(&self, side: Side, listener: &str, connects: &[u8], listens: &[u8]) -> Hmac<Sha256> {
        let mut hash = Hmac::new_from_slice(&self.0).expect("a key may have any length");
        let side = match side {
            Side::Connects => b"c",
            Side::Listens => b"l",
        };
        for part in [side, connects, listens, listener.as_bytes()] {
            hash.update(part);
        }
        hash
    }
}

impl std::fmt::Debug for Proof {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Proof").finish_non_exhaustive()
    }
}

fn nonce() -> [u8; BYTES] {
    let mut nonce = [0; BYTES];
    getrandom::fill(&mut nonce).expect("the system has random bytes");
    nonce
}

fn another() -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, "it is not the server that it should be")
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// Whether the side that listens by this name, and the side that means that name, accept each other.
    async fn meet(listens: (&Proof, &str), connects: (&Proof, &str)) -> [bool; 2] {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let claim = Claim { server: connects.1.into(), address, version: String::new() };
        let accepting = async {
            let (mut stream, _) = listener.accept().await.expect("somebody comes");
            listens.0.accept(&mut stream, listens.1).await.is_ok()
        };
        let (accepted, connected) = tokio::join!(accepting, connects.0.connect(&claim));
        [accepted, connected.is_ok()]
    }

    #[tokio::test]
    async fn servers_with_one_secret_meet_and_nobody_else_does() {
        let proof = || Proof::of(&ServerKey::random());
        let (ours, others) = (proof(), proof());
        assert_eq!(meet((&ours, "a"), (&ours, "a")).await, [true, true]);
        assert_eq!(meet((&ours, "a"), (&ours, "b")).await, [false, false], "another is meant");
        assert_eq!(meet((&ours, "a"), (&others, "a")).await, [false, false]);
    }

    #[tokio::test]
    async fn who_says_nothing_or_repeats_what_it_hears_is_no_server() {
        let proof = Proof::of(&ServerKey::random());
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let claim = Claim { server: "a".into(), address, version: String::new() };
        let silent = async { listener.accept().await.expect("somebody comes") };
        let (_kept, connected) = tokio::join!(silent, proof.connect(&claim));
        assert!(connected.is_err());
        let echo = async {
            let (mut stream, _) = listener.accept().await.expect("somebody comes");
            let mut said = [0; MAGIC.len() + BYTES];
            stream.read_exact(&mut said).await.expect("said");
            let nonce = &said[MAGIC.len()..];
            stream.write_all(&[nonce, nonce].concat()).await.expect("heard");
        };
        let ((), connected) = tokio::join!(echo, proof.connect(&claim));
        assert!(connected.is_err());
    }
}
