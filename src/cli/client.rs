//! A client of the server with these settings on this machine.

use std::{error::Error, io, net::SocketAddr, time::Duration};

use bytes::Bytes;
use config::Config;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::{
    Method, Request, StatusCode,
    client::conn::http1,
    header::{AUTHORIZATION, HOST},
};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, time::timeout};

use crate::http;

/// Time for the complete answer. The server itself gives its engine less.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// Maximum number of bytes of an answer.
const MAX_ANSWER_BYTES: usize = 16 << 20;

/// The server at the address of the settings.
pub(super) struct Client {
    pub(super) address: SocketAddr,
    token: Option<String>,
}

impl Client {
    pub(super) fn of(config: &Config) -> Self {
        let address = SocketAddr::new(config.http_host, config.http_port);
        Self { address: http::reachable(address), token: None }
    }

    pub(super) fn with(self, token: Option<String>) -> Self {
        Self { token, ..self }
    }

    /// The status and body of the answer to a request without a body.
    ///
    /// # Errors
    /// If there is no answer in time, or none that can be read.
    pub(super) async fn ask(
        &self,
        method: Method,
        path: &str,
    ) -> Result<(StatusCode, String), Box<dyn Error>> {
        timeout(ANSWER_TIMEOUT, self.answer(method, path)).await.map_err(|_| "no answer in time")?
    }

    async fn answer(
        &self,
        method: Method,
        path: &str,
    ) -> Result<(StatusCode, String), Box<dyn Error>> {
        let stream = TcpStream::connect(self.address).await?;
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
