//! Starting a session's sandbox and ending it.

use std::{sync::atomic::Ordering, time::Duration};

use tokio::time::{Instant, timeout};

use super::driver::Setup;
use crate::{
    backend::{Backend, Greeting, Sandbox},
    error::{Error, Result},
    link::{Link, LinkError, LinkOwner},
};

/// Starts the sandbox. A start that is under way when the server ends is seen through: cut off
/// between its steps it would leave a container that never ran and so never ends.
pub(super) async fn start_or_give_up(setup: &Setup) -> Result<(Sandbox, Link, LinkOwner)> {
    const PATIENCE: Duration = Duration::from_secs(5);
    let turn = setup.shutdown.run_until_cancelled(setup.starts.acquire()).await;
    let Some(Ok(_turn)) = turn else { return Err(shutting_down()) };
    let starting = start(setup);
    tokio::pin!(starting);
    tokio::select! {
        started = &mut starting => started,
        () = setup.shutdown.cancelled() => {
            timeout(PATIENCE, starting).await.unwrap_or_else(|_| {
                setup.unclean.store(true, Ordering::Relaxed);
                Err(shutting_down())
            })
        }
    }
}

fn shutting_down() -> Error {
    Error::SandboxUnavailable("The server is shutting down.".into())
}

async fn start(setup: &Setup) -> Result<(Sandbox, Link, LinkOwner)> {
    let begun = Instant::now();
    let unavailable = |text: String| Error::SandboxUnavailable(text);
    let mut sandbox = setup
        .backend
        .start(setup.spec.clone())
        .await
        .map_err(|error| unavailable(error.to_string()))?;
    let reader = std::mem::replace(&mut sandbox.reader, Box::new(tokio::io::empty()));
    let writer = std::mem::replace(&mut sandbox.writer, Box::new(tokio::io::sink()));
    match Link::connect(reader, writer, setup.timing, setup.preload.clone()).await {
        Ok((link, owner)) => {
            setup.figures.sandbox_started(begun.elapsed());
            setup.watched.measured_by(link.memory(), setup.spec.limits.memory);
            tracing::info!(
                session_id = %setup.id,
                sandbox = sandbox.id,
                duration_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX),
                "session started"
            );
            Ok((sandbox, link, owner))
        }
        Err(error) => {
            if !end(&*setup.backend, sandbox).await {
                setup.unclean.store(true, Ordering::Relaxed);
            }
            let fault = match error {
                LinkError::Version(_) => Greeting::OtherVersion,
                _ => Greeting::Missing,
            };
            let why = setup.backend.no_greeting(fault, &error.to_string());
            Err(unavailable(why.to_string()))
        }
    }
}

/// Waits until a sandbox whose stream is closed is gone, and removes it if it does not go. False if
/// it may still be there.
pub(super) async fn end(backend: &dyn Backend, sandbox: Sandbox) -> bool {
    const BY_ITSELF: Duration = Duration::from_millis(1500);
    drop((sandbox.reader, sandbox.writer));
    if timeout(BY_ITSELF, sandbox.gone).await.is_ok() {
        return true;
    }
    tracing::warn!(sandbox = sandbox.id, "sandbox did not end by itself and is removed");
    remove(backend, sandbox.id).await
}

/// Removes a sandbox; false if the engine does not, or not in time.
pub(super) async fn remove(backend: &dyn Backend, id: String) -> bool {
    const PATIENCE: Duration = Duration::from_secs(4);
    let removed = timeout(PATIENCE, backend.remove(id.clone())).await;
    let error = match removed {
        Ok(Ok(())) => return true,
        Ok(Err(error)) => error.to_string(),
        Err(_) => "the engine does not answer".to_owned(),
    };
    tracing::error!(sandbox = id, error, "sandbox not removed");
    false
}
