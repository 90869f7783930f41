//! `llm-sandbox health`: for health checks, in places where there is no curl.

use std::{
    error::Error,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::Path,
    process::ExitCode,
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::{Request, StatusCode, client::conn::http1, header::HOST};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
    time::timeout,
};

use crate::config::Config;

/// Until the whole answer is there. The server itself gives its engine less.
const PATIENCE: Duration = Duration::from_secs(20);

/// Most bytes of an answer.
const MOST: usize = 64 << 10;

/// Whether the server could start a session.
pub(super) async fn server(config: &Config) -> ExitCode {
    let address = address(config);
    let asked = async { get(TcpStream::connect(address).await?, "/ready").await };
    told(&address.to_string(), timeout(PATIENCE, asked).await)
}

/// Whether a server answers, be it able to start a session or not.
pub(super) async fn is_served(config: &Config) -> bool {
    let asked = async { get(TcpStream::connect(address(config)).await?, "/health").await };
    let Ok(Ok((StatusCode::OK, body))) = timeout(PATIENCE, asked).await else { return false };
    serde_json::from_str::<Value>(&body).is_ok_and(|body| body["status"] == "ok")
}

/// Where a server with these settings can be reached from here.
fn address(config: &Config) -> SocketAddr {
    // Every address means those of this machine, too.
    let ip = match config.http_host {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, config.http_port)
}

/// Whether the engine behind a relay answers.
pub(super) async fn relay(socket: &Path) -> ExitCode {
    let asked = async { get(UnixStream::connect(socket).await?, "/_ping").await };
    told(&socket.display().to_string(), timeout(PATIENCE, asked).await)
}

type Answered = Result<(StatusCode, String), Box<dyn Error>>;

async fn get(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static, path: &str) -> Answered {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let request = Request::get(path).header(HOST, "localhost").body(Empty::<Bytes>::new())?;
    let response = sender.send_request(request).await?;
    let status = response.status();
    let body = Limited::new(response.into_body(), MOST).collect().await;
    let body = body.map_err(|error| io::Error::other(error.to_string()))?.to_bytes();
    Ok((status, String::from_utf8_lossy(&body).into_owned()))
}

fn told(whom: &str, answered: Result<Answered, tokio::time::error::Elapsed>) -> ExitCode {
    match answered {
        Ok(Ok((status, body))) if status.is_success() => {
            print_line!("{body}");
            ExitCode::SUCCESS
        }
        Ok(Ok((status, body))) => unwell(whom, &format!("{status} {body}")),
        Ok(Err(error)) => unwell(whom, &error.to_string()),
        Err(_) => unwell(whom, "no answer in time"),
    }
}

fn unwell(whom: &str, why: &str) -> ExitCode {
    eprintln!("llm-sandbox: {whom}: {why}");
    ExitCode::FAILURE
}
