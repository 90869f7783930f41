//! HTTPS: the server's certificate, which is read again when its files change, and the start of a connection.
//!
//! ```text
//! accepted --> first byte --TLS--> handshake --> requests        all of it within the time for a request's head
//!                  '-- anything else: one answer in plain text, and the end
//! ```
//!
//! A connection keeps the certificate with which it began. If new files cannot be used, the former certificate stays.
//! HTTP/2 is not offered: places and time limits are those of connections, and with HTTP/2 one connection would carry
//! any number of requests.

use std::{
    fs,
    future::poll_fn,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use config::Config;
use jiff::Timestamp;
use parking_lot::Mutex;
use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, UnixTime, pem, pem::PemObject},
};
use sha2::{Digest, Sha256};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf, copy, sink},
    net::TcpStream,
    task::spawn_blocking,
    time::sleep,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use webpki::{EndEntityCert, KeyUsage};

/// How often the files are looked at.
const INTERVAL: Duration = Duration::from_secs(2);

/// Time before a certificate's end from which on it is reported. Programs that renew certificates do so earlier.
const ENDS_SOON: Duration = Duration::from_secs(7 * 24 * 3600);

/// The type of a TLS record with which a handshake begins (RFC 8446, section 5.1).
const HANDSHAKE: u8 = 22;

/// The answer to a client that does not speak TLS.
const PLAIN_TEXT: &[u8] =
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\ncontent-length: 51\r\n\
    connection: close\r\n\r\nThis server speaks HTTPS: use a URL with https://.\n";

/// The bytes of a request in plain text that are read before its connection is closed. If some were left unread, the
/// client might lose the answer.
const PLAIN_READ: u64 = 64 << 10;

/// The server's certificate and key.
#[derive(Debug)]
pub struct Tls {
    files: Files,
    state: Mutex<State>,
}

#[derive(Debug)]
struct Files {
    cert: PathBuf,
    key: PathBuf,
}

#[derive(Debug)]
struct State {
    used: Arc<ServerConfig>,
    about: Certificate,
    /// The contents that were last used or refused.
    tried: Fingerprint,
    /// The contents of the last look. New ones are used if two looks find the same: a program may still be writing.
    seen: Fingerprint,
}

/// A hash of the contents of both files, or of why they cannot be read.
type Fingerprint = [u8; 32];

/// The contents of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    /// The host names that it is for.
    names: Vec<String>,
    begins: Option<Timestamp>,
    ends: Option<Timestamp>,
}

impl Tls {
    /// Reads the certificate of the settings, if they name one.
    ///
    /// # Errors
    /// If a file cannot be read, has no certificate or key, or the two do not belong together.
    pub fn of(config: &Config) -> Result<Option<Arc<Self>>, String> {
        let (Some(cert), Some(key)) = (&config.tls_cert, &config.tls_key) else { return Ok(None) };
        let files = Files { cert: cert.clone(), key: key.clone() };
        let (tried, contents) = files.read();
        let (used, about) = files.parse(&contents?)?;
        about.warn();
        let state = Mutex::new(State { used, about, tried, seen: tried });
        Ok(Some(Arc::new(Self { files, state })))
    }

    /// The certificate in use.
    pub fn certificate(&self) -> Certificate {
        self.state.lock().about.clone()
    }

    /// Uses new files when they have changed. Runs forever.
    pub async fn watch(self: Arc<Self>) {
        loop {
            sleep(INTERVAL).await;
            let this = self.clone();
            // A file may be on a network.
            let _ = spawn_blocking(move || this.look()).await;
        }
    }

    fn look(&self) {
        let (found, contents) = self.files.read();
        let mut state = self.state.lock();
        let is_settled = std::mem::replace(&mut state.seen, found) == found;
        if is_settled && found != state.tried {
            drop(state);
            self.replace(found, contents);
        }
    }

    /// Reads the files again, whether they have changed or not.
    pub fn reload(&self) {
        let (found, contents) = self.files.read();
        self.replace(found, contents);
    }

    fn replace(&self, found: Fingerprint, contents: Result<Contents, String>) {
        let parsed = contents.and_then(|contents| self.files.parse(&contents));
        let mut state = self.state.lock();
        state.tried = found;
        match parsed {
            Ok((used, about)) => {
                tracing::info!("the certificate is reloaded: {}", about.describe());
                about.warn();
                (state.used, state.about) = (used, about);
            }
            Err(why) => {
                tracing::error!("the certificate is not reloaded, and the former one stays: {why}");
            }
        }
    }

    /// Makes of a connection one over TLS; `None` if the client does not speak it.
    pub(super) async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        mut stream: S,
        first: u8,
    ) -> io::Result<Option<TlsStream<S>>> {
        if first != HANDSHAKE {
            stream.write_all(PLAIN_TEXT).await?;
            stream.shutdown().await?;
            copy(&mut stream.take(PLAIN_READ), &mut sink()).await?;
            return Ok(None);
        }
        let used = self.state.lock().used.clone();
        TlsAcceptor::from(used).accept(stream).await.map(Some)
    }
}

/// The first byte of a connection, which stays unread. `waits` is told whether there is none yet.
pub(super) async fn first_byte(stream: &TcpStream, waits: impl Fn(bool)) -> io::Result<u8> {
    let mut byte = [0];
    let peeked = poll_fn(|context| {
        let peeked = stream.poll_peek(context, &mut ReadBuf::new(&mut byte));
        waits(peeked.is_pending());
        peeked
    });
    match peeked.await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(byte[0]),
    }
}

/// The contents of both files.
struct Contents {
    cert: Vec<u8>,
    key: Vec<u8>,
}

impl Files {
    fn read(&self) -> (Fingerprint, Result<Contents, String>) {
        let read = |path: &Path| fs::read(path).map_err(|error| about(path, error));
        let contents =
            read(&self.cert).and_then(|cert| Ok(Contents { cert, key: read(&self.key)? }));
        let mut hash = Sha256::new();
        match &contents {
            Ok(Contents { cert, key }) => {
                hash.update(Sha256::digest(cert));
                hash.update(Sha256::digest(key));
            }
            Err(why) => hash.update(why),
        }
        (hash.finalize().into(), contents)
    }

    fn parse(&self, contents: &Contents) -> Result<(Arc<ServerConfig>, Certificate), String> {
        let of_cert = |why: &dyn ToString| about(&self.cert, why.to_string());
        let chain = CertificateDer::pem_slice_iter(&contents.cert).collect::<Result<Vec<_>, _>>();
        let chain = chain.map_err(|error| of_cert(&error))?;
        let first = chain.first().ok_or_else(|| of_cert(&"it has no certificate in PEM"))?;
        let certificate = Certificate::of(first).map_err(|error| of_cert(&error))?;
        let key = PrivateKeyDer::from_pem_slice(&contents.key).map_err(|error| match error {
            pem::Error::NoItemsFound => {
                about(&self.key, "it has no private key in PEM without a passphrase")
            }
            error => about(&self.key, error),
        })?;
        let mut used = ServerConfig::builder_with_provider(ring::default_provider().into())
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .map_err(|error| match error {
                rustls::Error::InconsistentKeys(_) => about(
                    &self.key,
                    format_args!("it is not the key of the certificate in {}", self.cert.display()),
                ),
                error => about(&self.key, error),
            })?;
        used.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok((used.into(), certificate))
    }
}

fn about(path: &Path, why: impl std::fmt::Display) -> String {
    format!("{}: {why}", path.display())
}

impl Certificate {
    fn of(der: &CertificateDer<'_>) -> Result<Self, webpki::Error> {
        let certificate = EndEntityCert::try_from(der)?;
        // Its times are only told by why it is not valid at another time. They are checked first of all.
        let at = |seconds| {
            let time = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
            let usage = KeyUsage::server_auth();
            certificate.verify_for_usage(&[], &[], &[], time, usage, None, None).err()
        };
        let time = |time: UnixTime| Timestamp::from_second(time.as_secs().try_into().ok()?).ok();
        Ok(Self {
            names: certificate.valid_dns_names().map(str::to_owned).collect(),
            begins: match at(0) {
                Some(webpki::Error::CertNotValidYet { not_before, .. }) => time(not_before),
                _ => None,
            },
            ends: match at(u64::MAX) {
                Some(webpki::Error::CertExpired { not_after, .. }) => time(not_after),
                _ => None,
            },
        })
    }

    /// Its names and its end, in words.
    pub fn describe(&self) -> String {
        let names = if self.names.is_empty() { "no host".into() } else { self.names.join(", ") };
        let ends = self.ends.map_or("without an end".to_owned(), |ends| format!("until {ends}"));
        format!("it names {names}, and is valid {ends}")
    }

    /// Why clients refuse it now, or soon will.
    pub fn fault(&self) -> Option<String> {
        let now = Timestamp::try_from(SystemTime::now()).ok()?;
        let soon = now.checked_add(ENDS_SOON).ok()?;
        match (self.begins, self.ends) {
            (_, Some(ends)) if ends < now => Some(format!("it has expired at {ends}")),
            (Some(begins), _) if begins > now => Some(format!("it is not valid before {begins}")),
            (_, Some(ends)) if ends < soon => Some(format!("it expires at {ends}")),
            _ => None,
        }
    }

    fn warn(&self) {
        if let Some(fault) = self.fault() {
            tracing::warn!("the certificate has to be renewed: {fault}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_in_plain_text_has_the_length_that_it_says() {
        let text = std::str::from_utf8(PLAIN_TEXT).expect("ASCII");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head");
        assert!(head.contains(&format!("content-length: {}\r\n", body.len())));
    }
}
