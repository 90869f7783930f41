//! Starts a session's sandbox and ends it.

use std::time::Duration;

use backend::{Backend, Greeting, Sandbox};
use link::{Link, LinkError, LinkOwner, Opening};
use protocol::message::WentOn;
use tokio::time::{Instant, timeout};

use super::{
    events::{EndReason, SandboxStart, SessionEvent},
    setup::Setup,
};
use crate::error::{Error, Result};

/// Whether the session's sandbox resumes from a saved one.
pub(super) fn is_kept(setup: &Setup) -> bool {
    setup.saved().is_some_and(|(saved, key)| saved.has(key))
}

/// Starts the sandbox. A start that is in progress when the server ends is completed: cut off between its steps it
/// would leave a container that never ran and so never ends. `how` says whether the session had a sandbox before.
pub(super) async fn start_or_give_up(
    setup: &Setup,
    how: SandboxStart,
) -> Result<(Sandbox, Link, LinkOwner)> {
    const START_TIMEOUT: Duration = Duration::from_secs(5);
    let turn = setup.shutdown.run_until_cancelled(setup.starts.acquire()).await;
    let Some(Ok(_turn)) = turn else { return Err(shutting_down()) };
    let starting = start(setup, how);
    tokio::pin!(starting);
    tokio::select! {
        started = &mut starting => started,
        () = setup.shutdown.cancelled() => {
            timeout(START_TIMEOUT, starting).await.unwrap_or_else(|_| {
                setup.lease.sandbox_may_be_left();
                Err(shutting_down())
            })
        }
    }
}

fn shutting_down() -> Error {
    Error::SandboxUnavailable("The server is shutting down. Try again later.".into())
}

/// Starts the sandbox of a session that ends, to save it.
pub(super) async fn start_to_save(setup: &Setup) -> Result<(Sandbox, Link, LinkOwner)> {
    start(setup, SandboxStart::Woken).await
}

async fn start(setup: &Setup, how: SandboxStart) -> Result<(Sandbox, Link, LinkOwner)> {
    let begun = Instant::now();
    let unavailable = |text: String| Error::SandboxUnavailable(text);
    let mut sandbox = setup
        .backend
        .start(setup.spec.clone())
        .await
        .map_err(|error| unavailable(error.to_string()))?;
    let stream = sandbox.take_stream();
    let opening = Opening {
        preload: setup.preload.clone(),
        undo: setup.undo,
        holding: setup.hold.as_ref().map(|hold| hold.of(&setup.backend, &sandbox.id)),
        timezone: setup.timezone.clone(),
        asks: setup.asks,
        commands: setup.template.get().await.commands(),
    };
    match Link::connect(stream, setup.timing, opening).await {
        Ok((link, owner)) => {
            if setup.spec.saved_as.is_some()
                && let Err(error) = go_on(setup, &link, how == SandboxStart::Woken).await
            {
                drop((link, owner));
                if !end(setup, sandbox).await {
                    setup.lease.sandbox_may_be_left();
                }
                return Err(error);
            }
            let (took, vitals) = (begun.elapsed(), link.vitals());
            let started = SessionEvent::Started { sandbox: &sandbox.id, took, vitals, start: how };
            setup.observers.notify(&started);
            Ok((sandbox, link, owner))
        }
        Err(error) => {
            if !end(setup, sandbox).await {
                setup.lease.sandbox_may_be_left();
            }
            let fault = match error {
                LinkError::Version(_) => Greeting::OtherVersion,
                _ => Greeting::Missing,
            };
            let detail = error.to_string();
            let why = match setup.backend.abilities().diagnosable {
                Some(diagnosable) => diagnosable.no_greeting(fault, &detail),
                None => fault.error(&detail),
            };
            Err(unavailable(why.to_string()))
        }
    }
}

/// Waits until a sandbox has resumed from its saved state, however long that takes, and records the result. If the
/// session was hibernating, it fails without that state.
async fn go_on(setup: &Setup, link: &Link, again: bool) -> Result<()> {
    let warm = link.warm().await;
    let warm = warm.map_err(|_| {
        let why = "The sandbox ended before it was as it had been kept. What was kept is still there: try again.";
        Error::SandboxUnavailable(why.into())
    })?;
    let id = &setup.id;
    match warm.went_on {
        Some(WentOn::Taken) => {
            let why = "What is kept of this session is still being written, or another server has it. Try again \
                       in a minute.";
            return Err(Error::SandboxUnavailable(why.into()));
        }
        Some(WentOn::Last) => {}
        Some(WentOn::Nothing) | None if !again => {}
        Some(WentOn::Older) => {
            tracing::warn!(
                session_id = %id,
                "the session resumed from an older state, because its last state could not be written"
            );
        }
        Some(WentOn::Unusable | WentOn::Nothing) | None => {
            tracing::warn!(session_id = %id, "the saved state of the session is damaged or was never written, and was not used");
        }
    }
    let is_lost = matches!(warm.went_on, Some(WentOn::Unusable | WentOn::Nothing) | None);
    if again && is_lost {
        return Err(Error::SandboxDied(id.clone()));
    }
    if let Some(went_on) = warm.went_on {
        setup.beginning.note(went_on);
    }
    Ok(())
}

/// Removes the sandbox of a session that has ended. Returns false if it may still exist.
pub(super) async fn dispose(setup: &Setup, sandbox: Sandbox, reason: EndReason) -> bool {
    let backend = &*setup.backend;
    let id = sandbox.id.clone();
    let gone = end(setup, sandbox).await;
    // A session that ends with the server may resume later; any other end deletes the saved state.
    if let Some((saved, key)) = setup.saved().filter(|_| reason != EndReason::Shutdown) {
        saved.forget(key);
    }
    match reason {
        // The end may have been reported because the engine failed, while the sandbox still runs.
        EndReason::Died => remove(backend, id).await && gone,
        _ => gone,
    }
}

/// Waits until a sandbox whose stream is closed has ended, and removes it if it does not. Returns false if it may still
/// exist.
async fn end(setup: &Setup, sandbox: Sandbox) -> bool {
    const EXIT_TIMEOUT: Duration = Duration::from_millis(1500);
    let backend = &*setup.backend;
    drop((sandbox.reader, sandbox.writer));
    if setup.hold.is_some() {
        // A held sandbox would wait for another stream.
        return remove(backend, sandbox.id).await;
    }
    if timeout(EXIT_TIMEOUT, sandbox.gone).await.is_ok() {
        return true;
    }
    tracing::warn!(sandbox = sandbox.id, "sandbox did not end by itself; removing it");
    remove(backend, sandbox.id).await
}

/// Removes a sandbox. Returns false if the engine fails, or does not answer in time.
async fn remove(backend: &dyn Backend, id: String) -> bool {
    // An engine on two cores needs six seconds to end fifty containers. Together with `EXIT_TIMEOUT` this is within the
    // default time that a server has to end.
    const REMOVE_TIMEOUT: Duration = Duration::from_secs(8);
    let removed = match backend.abilities().resumable {
        Some(resumable) => resumable.dispose(id.clone()),
        None => backend.remove(id.clone()),
    };
    let removed = timeout(REMOVE_TIMEOUT, removed).await;
    let error = match removed {
        Ok(Ok(())) => return true,
        Ok(Err(error)) => error.to_string(),
        Err(_) => "the engine does not answer".to_owned(),
    };
    tracing::error!(sandbox = id, error, "sandbox not removed");
    false
}
