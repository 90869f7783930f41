//! Certificates, and connections over TLS that trust them and no others.

use std::{
    fs,
    path::Path,
    sync::{Arc, Mutex},
};

use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use tokio::{
    io::{AsyncWriteExt, Result},
    net::TcpStream,
};
use tokio_rustls::{
    TlsConnector,
    rustls::{
        ClientConfig, RootCertStore, SupportedProtocolVersion,
        crypto::ring,
        pki_types::{CertificateDer, ServerName},
        version::{TLS12, TLS13},
    },
};
pub use tokio_rustls::{client::TlsStream, rustls};

/// The certificates that this process has made.
static TRUSTED: Mutex<Vec<CertificateDer<'static>>> = Mutex::new(vec![]);

/// A certificate for this machine, and its key.
pub struct Certificate {
    pub cert: String,
    pub key: String,
    pub der: CertificateDer<'static>,
}

impl Certificate {
    /// Makes one that is valid now.
    pub fn new() -> Self {
        Self::until(4000)
    }

    /// Makes one that was valid until the begin of this year.
    pub fn until(year: i32) -> Self {
        let names = ["localhost", "127.0.0.1"].map(str::to_owned);
        let mut params = CertificateParams::new(names).expect("names");
        params.not_before = date_time_ymd(2000, 1, 1);
        params.not_after = date_time_ymd(year, 1, 1);
        let key = KeyPair::generate().expect("a key");
        let made = params.self_signed(&key).expect("a certificate");
        TRUSTED.lock().unwrap().push(made.der().clone());
        Self { cert: made.pem(), key: key.serialize_pem(), der: made.der().clone() }
    }

    /// Writes `cert.pem` and `key.pem` into a folder.
    pub fn write(&self, folder: &Path) {
        fs::create_dir_all(folder).expect("a folder");
        fs::write(folder.join("cert.pem"), &self.cert).expect("written");
        fs::write(folder.join("key.pem"), &self.key).expect("written");
    }
}

impl Default for Certificate {
    fn default() -> Self {
        Self::new()
    }
}

/// The settings of a server with the files of this folder.
pub fn settings(folder: &Path) -> [(&'static str, String); 2] {
    let path = |name| folder.join(name).display().to_string();
    [("SANDBOX_TLS_CERT", path("cert.pem")), ("SANDBOX_TLS_KEY", path("key.pem"))]
}

/// Connects to a host and port.
///
/// # Errors
/// If the server has no certificate of this process, or the handshake fails.
pub async fn connect(host: &str) -> Result<TlsStream<TcpStream>> {
    connect_by(host, &[&TLS12, &TLS13], &[]).await
}

/// Connects by one of these versions of TLS, and offers these protocols.
///
/// # Errors
/// The same.
pub async fn connect_by(
    host: &str,
    versions: &[&'static SupportedProtocolVersion],
    protocols: &[&str],
) -> Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(TRUSTED.lock().unwrap().iter().cloned());
    let mut config = ClientConfig::builder_with_provider(ring::default_provider().into())
        .with_protocol_versions(versions)
        .expect("known versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    let (name, _) = host.rsplit_once(':').expect("a port");
    let name = ServerName::try_from(name.to_owned()).expect("a name");
    let stream = TcpStream::connect(host).await?;
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

/// Sends a request and leaves the answer unread.
pub(crate) async fn begin(
    method: &str,
    url: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> TlsStream<TcpStream> {
    let (host, head) = super::head(method, url, headers, body);
    let mut stream = connect(&host).await.expect("connected");
    stream.write_all(head.as_bytes()).await.expect("sent");
    let _ = stream.write_all(body).await;
    let _ = stream.flush().await;
    stream
}
