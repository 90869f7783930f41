//! `llm-sandbox engine-relay`: the process that holds the engine's socket in the server's place.

use std::{path::Path, process::ExitCode};

use super::{EXIT_UNAVAILABLE, log, stop_signal};
use crate::{backend::docker::Relay, config::Config};

pub(super) async fn relay(config: Config, listen: &Path, engine: &Path) -> ExitCode {
    let _log = log::start(&config, log::Usual::WorkingFolder);
    let started = stop_signal().and_then(|stop| Ok((stop, Relay::bind(config, engine, listen)?)));
    match started {
        Ok((stop, relay)) => {
            let (socket, engine) = (listen.display(), engine.display());
            tracing::info!(%socket, %engine, "relaying to the engine");
            relay.serve(stop).await;
            tracing::info!("relay ended");
            ExitCode::SUCCESS
        }
        Err(error) => {
            tracing::error!(socket = %listen.display(), %error, "relay failed");
            EXIT_UNAVAILABLE.into()
        }
    }
}
