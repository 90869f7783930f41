//! Adoption: takes over the sessions of servers that have ended. Their sandboxes are resumable (they wait for another
//! stream), and each keeps the record of its session.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use backend::{Abilities, Backend, ListedSandbox, Sandbox};
use config::{Config, server_key::ServerKey};
use futures::{StreamExt, stream};
use link::{Link, LinkError, Stream};
use model::SessionRecord;
use parking_lot::Mutex;
use tokio::{
    sync::OwnedSemaphorePermit,
    time::{sleep, timeout},
};

use super::{Sessions, homes::Reached, host::Host, start::NewSession, which::Workspace};
use crate::session::{
    driver::{self, Resumed},
    handle::Handle,
    hold::{HoldNote, HoldSettings},
    origin::Origin,
};

/// Maximum number of sandboxes that are contacted at a time.
pub(super) const AT_ONCE: usize = 8;

/// Interval at which sandboxes without a server are listed.
const ADOPT_INTERVAL: Duration = Duration::from_secs(5);

/// How long calls wait for a sandbox that could not be taken over yet, if it may have their session; how often the
/// sandbox is tried again meanwhile; and how often the calls check.
const GRACE: Duration = Duration::from_secs(3);
const GRACE_INTERVAL: Duration = Duration::from_millis(200);
const GLANCE: Duration = Duration::from_millis(50);

/// Timeout for taking over one sandbox.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Pauses after which a sandbox that has closed the link is contacted again: its stream to the previous server may not
/// have ended yet, or another server may contact it at the same time.
const REATTACH_PAUSES: [Duration; 3] =
    [Duration::from_millis(100), Duration::from_millis(300), Duration::from_millis(900)];

/// Sandboxes that could not be taken over yet, with the time of the first attempt.
#[derive(Debug, Default)]
pub(super) struct NotYet(Mutex<HashMap<String, Instant>>);

impl NotYet {
    /// Keeps only the entries of sandboxes that are still left.
    fn found(&self, left: &[ListedSandbox]) {
        self.0.lock().retain(|id, _| left.iter().any(|found| found.id == *id));
    }

    fn note(&self, id: String, adopted: Result<(), NotAdopted>) {
        let mut all = self.0.lock();
        if adopted == Err(NotAdopted::Yet) {
            all.entry(id).or_insert_with(Instant::now);
        } else {
            all.remove(&id);
        }
    }

    /// Whether a call should still wait for one of these sandboxes.
    fn is_any_new(&self) -> bool {
        self.0.lock().values().any(|since| since.elapsed() < GRACE)
    }
}

/// Why a sandbox was not taken over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotAdopted {
    /// A later attempt may succeed.
    Yet,
    /// The sandbox has no caller, belongs to another server, or cannot be resumed.
    Ever,
}

/// How sandboxes are held with these settings; `None` if holding is disabled or the backend cannot do it.
pub(super) fn hold(config: &Config, backend: &dyn Backend) -> Option<HoldSettings> {
    if config.hold.is_zero() || backend.abilities().resumable.is_none() {
        return None;
    }
    let key = config.server_key.clone().unwrap_or_else(ServerKey::random);
    Some(HoldSettings::new(config.hold, config.sessions_outlive_server(), key))
}

/// Stores the record of a session in its sandbox, for the next server.
pub(super) fn store(host: &Host, record: &SessionRecord, handle: &Handle) {
    if host.hold.as_ref().is_some_and(|hold| hold.outlives_server) {
        handle.remember(host.caller_key(&record.caller));
    }
}

/// Adopts left sandboxes at intervals, forever: this server does not notice at once that a server elsewhere is dead.
pub(super) async fn regularly(sessions: &Sessions) {
    loop {
        let is_any_new = sessions.host.not_yet.is_any_new();
        sleep(if is_any_new { GRACE_INTERVAL } else { ADOPT_INTERVAL }).await;
        once(sessions).await;
    }
}

/// Waits for sandboxes that are about to be taken over, while the session of a call is missing and may be in one of
/// them. Otherwise the call would start a new session, and the old one would be lost.
pub(super) async fn wait_for_orphans(host: &Host, is_missing: impl Fn() -> bool) {
    while host.not_yet.is_any_new() && is_missing() {
        sleep(GLANCE).await;
    }
}

/// Takes over all sessions that servers with the same secret have left. Removes their sandboxes that have no caller.
/// Returns when all have been asked.
pub(super) async fn once(sessions: &Sessions) {
    let host = &sessions.host;
    if !host.hold.as_ref().is_some_and(|hold| hold.outlives_server) {
        return;
    }
    let Some(resumable) = host.backend.abilities().resumable else { return };
    let own_too =
        host.callers.as_ref().is_some_and(|it| it.has_handed_over_within(host.config.hold));
    let orphans = match resumable.orphans(own_too).await {
        Ok(orphans) => orphans,
        Err(error) => return tracing::debug!(%error, "failed to list the resumable sandboxes"),
    };
    host.not_yet.found(&orphans);
    let (reached, shared) = (Reached::default(), sessions.shared_callers());
    let adopt = async |found: ListedSandbox| {
        let is_ours = match &shared {
            Some(shared) => shared.is_to_adopt(&found, &reached).await,
            None => true,
        };
        if is_ours {
            let adopted = in_time(sessions, &found.id).await;
            host.not_yet.note(found.id, adopted);
        }
    };
    stream::iter(orphans).for_each_concurrent(AT_ONCE, adopt).await;
}

/// Takes over the session in this sandbox, within [`ANSWER_TIMEOUT`].
pub(super) async fn in_time(sessions: &Sessions, id: &str) -> Result<(), NotAdopted> {
    let hold = sessions.host.hold.as_ref().ok_or(NotAdopted::Ever)?;
    match timeout(ANSWER_TIMEOUT, adopt(sessions, hold, id)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err((when, why))) => {
            tracing::info!(sandbox = id, why, "resumable sandbox not taken over");
            Err(when)
        }
        Err(_) => {
            tracing::info!(sandbox = id, "resumable sandbox does not answer");
            Err(NotAdopted::Yet)
        }
    }
}

async fn adopt(
    sessions: &Sessions,
    hold: &HoldSettings,
    id: &str,
) -> Result<(), (NotAdopted, String)> {
    let yet = |why: String| (NotAdopted::Yet, why);
    let backend = &sessions.host.backend;
    let Abilities { resumable: Some(resumable), .. } = backend.abilities() else {
        return Err((NotAdopted::Ever, "this engine cannot do that".into()));
    };
    let mut pauses = REATTACH_PAUSES.into_iter();
    let (id, gone, (link, owner, found)) = loop {
        let pause = pauses.next();
        let attached = match (resumable.reattach(id.to_owned()).await, pause) {
            (Err(error), Some(pause)) if error.kind.is_transient() => {
                sleep(pause).await;
                continue;
            }
            (attached, _) => attached.map_err(|error| yet(error.to_string()))?,
        };
        let Sandbox { id, reader, writer, gone } = attached;
        let holding = hold.of(backend, &id);
        let stream = Stream { reader, writer };
        match (Link::resume(stream, sessions.host.timing, holding).await, pause) {
            (Ok(resumed), _) => break (id, gone, resumed),
            (Err(LinkError::Closed), Some(pause)) => sleep(pause).await,
            (Err(error @ LinkError::Version(_)), _) => {
                // No server of this version can ever resume the sandbox.
                let _ = backend.remove(id).await;
                return Err((NotAdopted::Ever, error.to_string()));
            }
            (Err(error), _) => return Err(yet(error.to_string())),
        }
    };
    let note = hold.unseal(&id, &found.note);
    let HoldNote { session: record, last_run } =
        note.and_then(|note| serde_json::from_slice(&note).ok()).unwrap_or_default();
    let sandbox = Sandbox {
        id,
        reader: Box::new(tokio::io::empty()),
        writer: Box::new(tokio::io::sink()),
        gone,
    };
    if let Some(callers) = sessions.shared_callers()
        && let Some(record) = &record
        && let Some(caller) = sessions.host.caller_key(&record.caller)
        && !callers.has(&caller).await
    {
        // Returning closes the link; the sandbox then waits for the caller's server.
        callers.shared.assign(sandbox.id, caller).await;
        return Err((NotAdopted::Ever, "its caller is at home on another server".into()));
    }
    resumable.claim(sandbox.id.clone()).await;
    let leftover = found.leftover;
    let resumed = Resumed { sandbox, link, owner, leftover, last_run, calls: None };
    let Some(record) = record else {
        let _ = backend.remove(resumed.sandbox.id).await;
        return Err((NotAdopted::Ever, "no caller is recorded for it".into()));
    };
    enter(&sessions.seen_by(record.caller.clone()), record, resumed)
        .await
        .map_err(|why| (NotAdopted::Ever, why.into()))
}

/// A permit for a session that is taken over; if none is free, a pooled sandbox makes room. The session resumes even
/// without a permit, as it would be lost otherwise; new sessions start only once a permit is free.
async fn permit_for_another(host: &Host) -> Option<OwnedSemaphorePermit> {
    let permit = || host.permits.clone().try_acquire_owned().ok();
    match permit() {
        None if host.pool.make_room().await => permit(),
        permit => permit,
    }
}

/// Registers a session that is taken over and starts its task.
async fn enter(
    sessions: &Sessions,
    record: SessionRecord,
    resumed: Resumed,
) -> Result<(), &'static str> {
    let host = &sessions.host;
    let permit = permit_for_another(host).await;
    let mut registry = host.registry();
    if registry.find(&sessions.caller, &record.session).is_some() {
        return Err("there is another session of its name");
    }
    let resumed = Resumed { calls: sessions.calls_of_run(), ..resumed };
    let workspace = record.workspace.as_ref().and_then(Workspace::recorded);
    let new = NewSession {
        id: record.session.clone(),
        number: record.number,
        origin: Origin::Resumed,
        own: record.own.clone(),
        datasets: sessions.datasets_named(&record.datasets),
        permit,
        caller: host.caller_key(&sessions.caller),
        record: Some(record),
        saved_as: None,
        restore: None,
    };
    let (handle, setup) = new.prepare(host);
    handle.label.set(host.label(&sessions.caller));
    registry.insert(&sessions.caller, handle.clone());
    if let Some(workspace) = workspace {
        registry.bind(&sessions.caller, &workspace, &handle);
        // The session's caller knows it already.
        registry.told(&sessions.caller, &workspace);
    }
    drop(registry);
    host.tasks.spawn(driver::go_on(setup, resumed));
    host.changes.tell();
    Ok(())
}
