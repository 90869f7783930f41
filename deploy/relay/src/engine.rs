//! The relay's connections to the engine: one for each request, as a server makes them.

use std::{
    io,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    Method, Response,
    body::Incoming,
    client::conn::http1,
    header::{CONNECTION, CONTENT_TYPE, HOST, UPGRADE},
    upgrade::Upgraded,
};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;

use sandbox_container::PODMAN_INFO;

use super::request::{ContainerId, Request};

/// The engine behind a relay.
#[derive(Debug)]
pub(super) struct Engine(PathBuf);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoAnswer {
    #[error("the engine's socket cannot be used: {0}")]
    Connect(#[from] io::Error),
    #[error("the connection to the engine broke off: {0}")]
    Broken(#[from] hyper::Error),
    #[error("the engine's answer is not a valid answer to the request")]
    Unexpected,
}

/// The result of an attempt to attach.
pub(super) enum Attached {
    Stream(Upgraded),
    Refused(Response<Incoming>),
}

/// The maximum size of an answer that is read, in bytes.
const MAX_ANSWER_BYTES: usize = 4 << 20;

impl Engine {
    pub(super) fn new(socket: &Path) -> Self {
        Self(socket.to_owned())
    }

    /// Sends a request, with a JSON body if there is one.
    pub(super) async fn ask(
        &self,
        request: &Request,
        json: Option<Bytes>,
    ) -> Result<Response<Incoming>, NoAnswer> {
        self.send(&request.method(), &request.target(), json).await
    }

    /// The engine's description of a container, or its refusal.
    pub(super) async fn inspect(&self, id: &ContainerId) -> Result<Response<Bytes>, NoAnswer> {
        whole(self.send(&Method::GET, &format!("/containers/{id}/json"), None).await?).await
    }

    /// The properties that only Podman tells.
    pub(super) async fn podman_info(&self) -> Result<Response<Bytes>, NoAnswer> {
        whole(self.send(&Method::GET, PODMAN_INFO, None).await?).await
    }

    /// Sends a request for streams.
    pub(super) async fn streams(
        &self,
        request: &Request,
        json: Option<Bytes>,
    ) -> Result<Attached, NoAnswer> {
        let response = self.send(&request.method(), &request.target(), json).await?;
        if response.status() == hyper::StatusCode::SWITCHING_PROTOCOLS {
            Ok(Attached::Stream(hyper::upgrade::on(response).await?))
        } else {
            Ok(Attached::Refused(response))
        }
    }

    async fn send(
        &self,
        method: &Method,
        target: &str,
        json: Option<Bytes>,
    ) -> Result<Response<Incoming>, NoAnswer> {
        let stream = UnixStream::connect(&self.0).await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // The connection ends with the answer, or when nothing waits for the answer any more.
        tokio::spawn(connection.with_upgrades());
        let mut request =
            hyper::Request::builder().method(method).uri(target).header(HOST, "engine");
        if json.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        if target.contains("/attach?") || target.starts_with("/exec/") {
            request = request.header(CONNECTION, "Upgrade").header(UPGRADE, "tcp");
        }
        let body = Full::new(json.unwrap_or_default());
        let request = request.body(body).map_err(|_| NoAnswer::Unexpected)?;
        Ok(sender.send_request(request).await?)
    }
}

/// Reads the whole body of an answer.
pub(super) async fn whole(response: Response<Incoming>) -> Result<Response<Bytes>, NoAnswer> {
    let (head, body) = response.into_parts();
    let body =
        Limited::new(body, MAX_ANSWER_BYTES).collect().await.map_err(|_| NoAnswer::Unexpected)?;
    Ok(Response::from_parts(head, body.to_bytes()))
}
