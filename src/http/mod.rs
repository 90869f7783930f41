//! The artifact server: the only place that names axum.

mod files;

use std::{io, net::SocketAddr};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::{config::Config, error::Error, sessions::Sessions};

/// A bound listener, which can be asked for its address before it serves.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
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
        Ok(Self { socket, address })
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

    /// Serves until `stop` is cancelled. Downloads under way then are cut off with their sandbox.
    pub async fn serve(self, sessions: Sessions, stop: CancellationToken) -> io::Result<()> {
        let served = axum::serve(self.socket, router(sessions));
        tokio::select! {
            result = async { served.await } => result,
            () = stop.cancelled() => Ok(()),
        }
    }
}

fn router(sessions: Sessions) -> Router {
    Router::new()
        .route("/files/{session}/{*path}", get(files::download))
        .route("/health", get(|| async { reply(StatusCode::OK, &json!({ "status": "ok" })) }))
        .route("/ready", get(ready))
        .fallback(|| async { not_found("There is nothing at this address.") })
        .method_not_allowed_fallback(|| async {
            reply(
                StatusCode::METHOD_NOT_ALLOWED,
                &json!({ "error": "method_not_allowed", "message": "Use GET or HEAD." }),
            )
        })
        .with_state(sessions)
}

/// Whether a session could be started now.
async fn ready(State(sessions): State<Sessions>) -> Response {
    match sessions.backend().ready().await {
        Ok(()) => {
            reply(StatusCode::OK, &json!({ "status": "ready", "sessions": sessions.count() }))
        }
        Err(error) => reply(
            StatusCode::SERVICE_UNAVAILABLE,
            &Error::SandboxUnavailable(error.to_string()).to_json(),
        ),
    }
}

fn not_found(message: &str) -> Response {
    reply(StatusCode::NOT_FOUND, &json!({ "error": "not_found", "message": message }))
}

fn reply(status: StatusCode, body: &Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}
