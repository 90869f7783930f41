//! `llm-sandbox`: MCP over standard input and output, files over HTTP.

use std::process::ExitCode;

use tokio_util::task::TaskTracker;

use super::{EXIT_UNAVAILABLE, backend, guard::Guard, log, stop_signal};
use crate::{
    config::Config,
    http::{Listener, Taken},
    mcp::{Server, stdio},
    pool,
    sessions::Sessions,
    sweep::sweep_regularly,
};

pub(super) async fn stdio(config: Config, no_isolation: bool) -> ExitCode {
    let _log = log::start(&config);
    match serve(config, no_isolation).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "server failed");
            EXIT_UNAVAILABLE.into()
        }
    }
}

async fn serve(config: Config, no_isolation: bool) -> std::io::Result<()> {
    let stop = stop_signal()?;
    let backend = backend(&config, no_isolation)?;
    let listener = Listener::bind(&config, Taken::UseAnother).await?;
    let files = listener.base_url(&config);
    let sessions = Sessions::new(config.clone(), backend.clone());
    let guard = if no_isolation { None } else { Some(Guard::start(sessions.owner())?) };
    tracing::info!(version = env!("CARGO_PKG_VERSION"), files, "serving MCP on stdio");

    let tasks = TaskTracker::new();
    tasks.spawn(listener.serve(sessions.clone(), stop.clone()));
    let sweep = sweep_regularly(backend, config.cleanup_interval);
    tasks.spawn(stop.clone().run_until_cancelled_owned(sweep));

    tasks.spawn(stop.clone().run_until_cancelled_owned(pool::keep(sessions.clone())));

    let served = stdio::serve(Server::new(sessions.clone(), Some(files)), stop.clone()).await;
    stop.cancel();
    let clean = sessions.shutdown().await;
    tasks.close();
    tasks.wait().await;
    if let Some(guard) = guard {
        // Otherwise it learns of our end as of any other, and does what we could not.
        if clean {
            guard.dismiss().await;
        }
    }
    tracing::info!("server ended");
    served
}
