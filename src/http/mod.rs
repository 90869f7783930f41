//! The artifact server: the only place that names axum and hyper.
//!
//! - [`connections`]: who may be connected, and for how long.
//! - [`hosts`]: which names the server goes by.
//! - [`files`]: one download; [`conditions`] decides what of the file it is.

mod conditions;
mod connections;
mod files;
mod hosts;
mod limits;

use std::{io, net::SocketAddr, sync::Arc};

use axum::{
    Router,
    extract::{Request, State},
    http::{HeaderValue, StatusCode, header},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::get,
};
use serde_json::{Value, json};
use tokio::{net::TcpListener, time::timeout};
use tokio_util::sync::CancellationToken;

use self::hosts::{Hosts, Refusal};
pub use self::limits::Limits;
use crate::{config::Config, error::Error, session::Pieces, sessions::Sessions};

/// A bound listener, which can be asked for its address before it serves.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
    limits: Limits,
}

/// What to do about a port that is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// Take another, as several servers run on one host.
    UseAnother,
    /// Fail.
    Fail,
}

impl Listener {
    /// Binds the host and port of the settings.
    pub async fn bind(config: &Config, taken: Taken) -> io::Result<Self> {
        let wanted = SocketAddr::new(config.http_host, config.http_port);
        let socket = match TcpListener::bind(wanted).await {
            Err(error)
                if error.kind() == io::ErrorKind::AddrInUse && taken == Taken::UseAnother =>
            {
                tracing::info!(port = config.http_port, "port is taken, another is used");
                TcpListener::bind(SocketAddr::new(config.http_host, 0)).await?
            }
            other => other?,
        };
        let address = socket.local_addr()?;
        Ok(Self { socket, address, limits: Limits::default() })
    }

    /// Base of the addresses of files, without a slash at the end.
    pub fn base_url(&self, config: &Config) -> String {
        let own = || {
            let mut address = self.address;
            if address.ip().is_unspecified() {
                // Every address means that one, too, and that one can be opened.
                address.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
            }
            format!("http://{address}")
        };
        config.public_url.clone().unwrap_or_else(own)
    }

    /// Other limits than the usual ones, for tests.
    #[must_use]
    pub fn with_limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    /// Serves until `stop` is cancelled. Downloads under way then are cut off with their sandbox.
    pub async fn serve(self, sessions: Sessions, stop: CancellationToken) {
        let shared = Shared {
            hosts: Arc::new(Hosts::new(sessions.config(), self.address.ip())),
            pieces: Pieces::new(self.limits.large_pieces),
            limits: self.limits,
            sessions,
        };
        connections::serve(self.socket, router(shared), self.limits, stop).await;
    }
}

/// What all requests share.
#[derive(Debug, Clone)]
struct Shared {
    sessions: Sessions,
    hosts: Arc<Hosts>,
    pieces: Pieces,
    limits: Limits,
}

fn router(shared: Shared) -> Router {
    Router::new()
        .route("/files/{session}/{*path}", get(files::download))
        .route("/health", get(|| async { reply(StatusCode::OK, &json!({ "status": "ok" })) }))
        .route("/ready", get(ready))
        .fallback(|| async { not_found("There is nothing at this address.") })
        .method_not_allowed_fallback(|| async {
            refuse(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "Use GET or HEAD.")
        })
        .layer(from_fn_with_state(shared.clone(), guard))
        .with_state(shared)
}

/// Turns away what is for another host, and gives every answer the headers that make it harmless.
async fn guard(State(shared): State<Shared>, request: Request, next: Next) -> Response {
    let mut response = match shared.hosts.check(&request) {
        Ok(()) => next.run(request).await,
        Err(Refusal::Unclear) => {
            refuse(StatusCode::BAD_REQUEST, "bad_request", "The request names no host, or two.")
        }
        Err(Refusal::Another) => refuse(
            StatusCode::MISDIRECTED_REQUEST,
            "unknown_host",
            "The server does not go by that name. SANDBOX_ALLOWED_HOSTS can add it.",
        ),
    };
    let headers = response.headers_mut();
    // The type is the one that is given, whatever the bytes look like.
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    // A hostile page or SVG can do nothing in the reader's browser.
    headers.insert(
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static("sandbox; default-src 'none'"),
    );
    // A file may change at any time under the same address: what is kept is asked for again, which
    // costs an `If-None-Match`, and only the reader's own browser keeps it.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
    response
}

/// Whether a session could be started now.
async fn ready(State(Shared { sessions, limits, .. }): State<Shared>) -> Response {
    let answer = timeout(limits.ready, sessions.backend().ready()).await;
    let why = match answer {
        Ok(Ok(())) => {
            let body = json!({ "status": "ready", "sessions": sessions.count() });
            return reply(StatusCode::OK, &body);
        }
        Ok(Err(error)) => error.to_string(),
        Err(_) => "The engine does not answer.".to_owned(),
    };
    reply(StatusCode::SERVICE_UNAVAILABLE, &Error::SandboxUnavailable(why).to_json())
}

fn not_found(message: &str) -> Response {
    refuse(StatusCode::NOT_FOUND, "not_found", message)
}

fn refuse(status: StatusCode, error: &str, message: &str) -> Response {
    reply(status, &json!({ "error": error, "message": message }))
}

fn reply(status: StatusCode, body: &Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}
