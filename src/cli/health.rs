//! `llm-sandbox health`: for health checks on systems without curl.

use std::process::ExitCode;

use config::Config;
use hyper::{Method, StatusCode};
use serde_json::Value;

use super::client::Client;

/// Reports whether the server could start a session.
pub(super) async fn health(config: &Config) -> ExitCode {
    let client = Client::of(config);
    let why = match client.ask(Method::GET, "/ready").await {
        Ok((status, body)) if status.is_success() => {
            print_line!("{body}");
            return ExitCode::SUCCESS;
        }
        Ok((status, body)) => format!("{status} {body}"),
        Err(error) => error.to_string(),
    };
    eprintln!("llm-sandbox: {}: {why}", client.address);
    ExitCode::FAILURE
}

/// Whether a server of this program answers, even if it cannot start a session.
pub(super) async fn is_served(config: &Config) -> bool {
    let asked = Client::of(config).ask(Method::GET, "/health").await;
    let Ok((StatusCode::OK, body)) = asked else { return false };
    serde_json::from_str::<Value>(&body).is_ok_and(|body| body["server"] == env!("CARGO_PKG_NAME"))
}
