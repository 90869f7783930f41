//! A client of the server with these settings on this machine.

use std::{error::Error, io, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use config::Config;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::{
    Method, Request, StatusCode,
    client::conn::http1,
    header::{AUTHORIZATION, HOST},
};
use hyper_util::rt::TokioIo;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::TlsConnector;

use crate::http;

/// Time for the complete answer. The server itself gives its engine less.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// Maximum number of bytes of an answer.
const MAX_ANSWER_BYTES: usize = 16 << 20;

type Answered = Result<(StatusCode, String), Box<dyn Error>>;

/// The server at the address of the settings.
pub(super) struct Client<'a> {
    pub(super) address: SocketAddr,
    config: &'a Config,
    token: Option<String>,
}

impl<'a> Client<'a> {
    pub(super) fn of(config: &'a Config) -> Self {
        let address = SocketAddr::new(config.http_host, config.http_port);
        Self { address: http::reachable(address), config, token: None }
    }

    pub(super) fn with(self, token: Option<String>) -> Self {
        Self { token, ..self }
    }

    /// The status and body of the answer to a request without a body.
    ///
    /// # Errors
    /// If there is no answer in time, or none that can be read.
    pub(super) async fn ask(&self, method: Method, path: &str) -> Answered {
        timeout(ANSWER_TIMEOUT, self.answer(method, path)).await.map_err(|_| "no answer in time")?
    }

    async fn answer(&self, method: Method, path: &str) -> Answered {
        let stream = TcpStream::connect(self.address).await?;
        let Some(cert) = &self.config.tls_cert else {
            return self.answer_over(stream, method, path).await;
        };
        // A token is for the server that has the certificate of the settings. Without one there is no secret, and a server
        // that continues with its former certificate is healthy.
        let only = self.token.as_ref().map(|_| CertificateDer::from_pem_file(cert)).transpose()?;
        let connector = TlsConnector::from(Arc::new(accepting(only)?));
        let stream = connector.connect(self.address.ip().into(), stream).await?;
        self.answer_over(stream, method, path).await
    }

    async fn answer_over(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        method: Method,
        path: &str,
    ) -> Answered {
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let mut request = Request::builder().method(method).uri(path).header(HOST, "localhost");
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        let response = sender.send_request(request.body(Empty::<Bytes>::new())?).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_ANSWER_BYTES).collect().await;
        let body = body.map_err(|error| io::Error::other(error.to_string()))?.to_bytes();
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    }
}

/// Accepts this certificate only, or any if none is given. The address of the request is one of this machine, for which
/// certificates are not.
fn accepting(only: Option<CertificateDer<'static>>) -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Accepted { only, provider }));
    Ok(config.with_no_client_auth())
}

/// The certificates that are accepted, if the server has their key.
#[derive(Debug)]
struct Accepted {
    only: Option<CertificateDer<'static>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Accepted {
    fn verify_server_cert(
        &self,
        cert: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if self.only.as_ref().is_none_or(|only| only == cert) {
            return Ok(ServerCertVerified::assertion());
        }
        Err(CertificateError::ApplicationVerificationFailure.into())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, cert, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
