//! `llm-sandbox health`: for health checks on systems without curl.

use std::{error::Error, io, net::SocketAddr, process::ExitCode, time::Duration};

use bytes::Bytes;
use config::Config;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::{Request, StatusCode, client::conn::http1, header::HOST};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::{net::TcpStream, time::timeout};

use crate::http;

/// Time for the complete answer. The server itself gives its engine less.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// Maximum number of bytes of an answer.
const MAX_ANSWER_BYTES: usize = 64 << 10;

/// Reports whether the server could start a session.
pub(super) async fn health(config: &Config) -> ExitCode {
    let address = address(config);
    report(address, timeout(ANSWER_TIMEOUT, get(address, "/ready")).await)
}

/// Whether a server of this program answers, even if it cannot start a session.
pub(super) async fn is_served(config: &Config) -> bool {
    let asked = timeout(ANSWER_TIMEOUT, get(address(config), "/health")).await;
    let Ok(Ok((StatusCode::OK, body))) = asked else { return false };
    serde_json::from_str::<Value>(&body).is_ok_and(|body| body["server"] == env!("CARGO_PKG_NAME"))
}

/// The address at which a server with these settings can be reached from this machine.
fn address(config: &Config) -> SocketAddr {
    http::reachable(SocketAddr::new(config.http_host, config.http_port))
}

type Answered = Result<(StatusCode, String), Box<dyn Error>>;

async fn get(address: SocketAddr, path: &str) -> Answered {
    let stream = TcpStream::connect(address).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let request = Request::get(path).header(HOST, "localhost").body(Empty::<Bytes>::new())?;
    let response = sender.send_request(request).await?;
    let status = response.status();
    let body = Limited::new(response.into_body(), MAX_ANSWER_BYTES).collect().await;
    let body = body.map_err(|error| io::Error::other(error.to_string()))?.to_bytes();
    Ok((status, String::from_utf8_lossy(&body).into_owned()))
}

fn report(server: SocketAddr, answered: Result<Answered, tokio::time::error::Elapsed>) -> ExitCode {
    match answered {
        Ok(Ok((status, body))) if status.is_success() => {
            print_line!("{body}");
            ExitCode::SUCCESS
        }
        Ok(Ok((status, body))) => unhealthy(server, &format!("{status} {body}")),
        Ok(Err(error)) => unhealthy(server, &error.to_string()),
        Err(_) => unhealthy(server, "no answer in time"),
    }
}

fn unhealthy(server: SocketAddr, why: &str) -> ExitCode {
    eprintln!("llm-sandbox: {server}: {why}");
    ExitCode::FAILURE
}
