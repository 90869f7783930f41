//! Adoption: takes over the sessions of servers that have ended. Their sandboxes hold (they wait for a new stream), and
//! each has a note that says whose session it is.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use futures::{StreamExt, stream};
use jiff::Timestamp;
use model::{OwnSettings, Principal, SessionId};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::{
    sync::OwnedSemaphorePermit,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    Sessions,
    homes::Reached,
    which::{Which, Workspace},
};
use crate::{
    backend::{Abilities, Backend, Found, Sandbox},
    config::Config,
    link::{Link, LinkError, Stream},
    server_key::ServerKey,
    session::{
        driver::{self, Resumed},
        handle::Handle,
        hold::Hold,
        setup::Birth,
    },
};

/// Sandboxes that are contacted at a time.
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

/// The note that a session's sandbox keeps for the next server.
#[derive(Debug, Serialize, Deserialize)]
struct Note {
    caller: String,
    session: String,
    /// The number that its URLs are bound to.
    number: u64,
    /// Milliseconds since the epoch.
    since: i64,
    /// The workspace that it belongs to, if the workspace has a name that outlives the connections of its client.
    workspace: Option<String>,
    /// The MCP session whose workspace it belongs to, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mcp_session: Option<String>,
    own: OwnSettings,
}

/// Pauses after which a sandbox that has closed the link is contacted again: its stream to the previous server may not
/// have ended yet, or another server may contact it at the same time.
const REATTACH_PAUSES: [Duration; 3] =
    [Duration::from_millis(100), Duration::from_millis(300), Duration::from_millis(900)];

/// Sandboxes that could not be taken over yet, with the time of the first attempt.
#[derive(Debug, Default)]
pub(super) struct NotYet(Mutex<HashMap<String, Instant>>);

impl NotYet {
    /// Keeps only the entries of sandboxes that are still left.
    fn found(&self, left: &[Found]) {
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

    /// Whether a call should still wait for one of them.
    fn is_any_new(&self) -> bool {
        self.0.lock().values().any(|since| since.elapsed() < GRACE)
    }
}

/// Why a sandbox was not taken over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotAdopted {
    /// A later attempt may succeed.
    Yet,
    /// It has no caller, belongs to another server, or cannot be resumed.
    Ever,
}

/// How sandboxes are held with these settings; `None` if holding is disabled or the backend cannot do it.
pub(super) fn hold(config: &Config, backend: &dyn Backend) -> Option<Hold> {
    if config.hold.is_zero() || backend.abilities().resumable.is_none() {
        return None;
    }
    let key = config.server_key.clone().unwrap_or_else(ServerKey::random);
    Some(Hold::new(config.hold, config.sessions_outlive_server(), key))
}

impl Sessions {
    /// Stores a note in the sandbox of a session that now has a caller, which says whose session it is.
    pub(super) fn remember(&self, which: &Which, handle: &Handle) {
        let outlives_server = |hold: &Hold| hold.outlives_server;
        if matches!(which, Which::Stateless(_))
            || !self.inner.hold.as_ref().is_some_and(outlives_server)
        {
            return;
        }
        let workspace = match which {
            Which::Automatic(workspace) => Some(workspace),
            _ => None,
        };
        let mcp_session = workspace.and_then(Workspace::mcp_session).map(str::to_owned);
        let workspace = workspace.and_then(Workspace::name).map(ToString::to_string);
        let note = Note {
            caller: self.caller.name().to_owned(),
            session: handle.id.to_string(),
            number: self.public(handle.number),
            since: handle.since.as_millisecond(),
            workspace,
            mcp_session,
            own: handle.own.clone(),
        };
        let note = serde_json::to_vec(&note).expect("it has no keys but strings");
        handle.remember(note.into(), self.caller_key(&self.caller));
    }

    /// Adopts left sandboxes at intervals, forever: this server does not notice at once that a server elsewhere is
    /// dead.
    pub async fn adopt_regularly(self) {
        loop {
            let is_any_new = self.inner.not_yet.is_any_new();
            sleep(if is_any_new { GRACE_INTERVAL } else { ADOPT_INTERVAL }).await;
            self.adopt().await;
        }
    }

    /// Waits for sandboxes that are about to be taken over, if the call's session is not here and may be in one of
    /// them. Otherwise the call would start a new session, and the old one would be lost.
    pub(super) async fn wait_for_left(&self, which: &Which) {
        let may_be_left = !matches!(which, Which::New | Which::Stateless(_));
        while may_be_left
            && self.inner.not_yet.is_any_new()
            && matches!(self.find_open(&self.registry(), which, true), Ok(None))
        {
            sleep(GLANCE).await;
        }
    }

    /// Takes over all sessions that servers with the same secret have left. Removes their sandboxes that have no
    /// caller. Returns when all have been asked.
    pub async fn adopt(&self) {
        if !self.inner.hold.as_ref().is_some_and(|hold| hold.outlives_server) {
            return;
        }
        let Some(resumable) = self.inner.backend.abilities().resumable else { return };
        let left = match resumable.left(self.has_let_go()).await {
            Ok(left) => left,
            Err(error) => return tracing::debug!(%error, "held sandboxes cannot be listed"),
        };
        self.inner.not_yet.found(&left);
        let reached = Reached::default();
        let adopt = async |found: Found| {
            if self.is_to_adopt(&found, &reached).await {
                let adopted = self.adopt_in_time(&found.id).await;
                self.inner.not_yet.note(found.id, adopted);
            }
        };
        stream::iter(left).for_each_concurrent(AT_ONCE, adopt).await;
    }

    /// Takes over the session in this sandbox, within [`ANSWER_TIMEOUT`].
    pub(super) async fn adopt_in_time(&self, id: &str) -> Result<(), NotAdopted> {
        let hold = self.inner.hold.as_ref().ok_or(NotAdopted::Ever)?;
        match timeout(ANSWER_TIMEOUT, self.adopt_one(hold, id)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err((when, why))) => {
                tracing::info!(sandbox = id, why, "held sandbox not taken over");
                Err(when)
            }
            Err(_) => {
                tracing::info!(sandbox = id, "held sandbox does not answer");
                Err(NotAdopted::Yet)
            }
        }
    }

    async fn adopt_one(&self, hold: &Hold, id: &str) -> Result<(), (NotAdopted, String)> {
        let yet = |why: String| (NotAdopted::Yet, why);
        let backend = &self.inner.backend;
        let Abilities { resumable: Some(resumable), shared, .. } = backend.abilities() else {
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
            match (Link::resume(stream, self.inner.timing, holding).await, pause) {
                (Ok(resumed), _) => break (id, gone, resumed),
                (Err(LinkError::Closed), Some(pause)) => sleep(pause).await,
                (Err(error @ LinkError::Version(_)), _) => {
                    // No server of this version can ever resume it.
                    let _ = backend.remove(id).await;
                    return Err((NotAdopted::Ever, error.to_string()));
                }
                (Err(error), _) => return Err(yet(error.to_string())),
            }
        };
        let note: Option<Note> =
            hold.unseal(&id, &found.note).and_then(|note| serde_json::from_slice(&note).ok());
        let sandbox = Sandbox {
            id,
            reader: Box::new(tokio::io::empty()),
            writer: Box::new(tokio::io::sink()),
            gone,
        };
        let caller = note.as_ref().and_then(|note| Principal::named(&note.caller));
        if let Some(shared) = shared
            && let Some(caller) = caller.and_then(|caller| self.caller_key(&caller))
            && !self.has_caller(&caller).await
        {
            // Returning closes the link; the sandbox then waits for the caller's server.
            shared.give(sandbox.id, caller).await;
            return Err((NotAdopted::Ever, "its caller is at home on another server".into()));
        }
        resumable.claim(sandbox.id.clone()).await;
        let resumed = Resumed { sandbox, link, owner, leftover: found.leftover };
        let Some(note) = note else {
            let _ = self.inner.backend.remove(resumed.sandbox.id).await;
            return Err((NotAdopted::Ever, "it is nobody's".into()));
        };
        let permit = self.permit_for_another().await;
        self.enter(note, resumed, permit).map_err(|why| (NotAdopted::Ever, why))
    }

    /// A permit for a session that is taken over; if none is free, a pooled sandbox makes room. The session resumes
    /// even without a permit, as it would be lost otherwise; new sessions start only once a permit is free.
    async fn permit_for_another(&self) -> Option<OwnedSemaphorePermit> {
        let permit = || self.inner.permits.clone().try_acquire_owned().ok();
        match permit() {
            None if self.pool().make_room().await => permit(),
            permit => permit,
        }
    }

    /// Registers a session that is taken over and starts its task.
    fn enter(
        &self,
        note: Note,
        resumed: Resumed,
        permit: Option<OwnedSemaphorePermit>,
    ) -> Result<(), String> {
        let Note { caller, session, number, since, workspace, mcp_session, own } = note;
        let sessions = self.seen_by(Principal::named(&caller).ok_or("its caller's name is none")?);
        let id: SessionId = session.parse().map_err(|_| "its name is none")?;
        let mut registry = self.registry();
        if registry.find(&sessions.caller, &id).is_some() {
            return Err("there is another session of its name".into());
        }
        let (named, birth) = ((&id, Some(number)), (Birth::OnDemand, None));
        let (mut handle, setup) = sessions.prepare(named, own, permit, birth, None);
        handle.since = Timestamp::from_millisecond(since).unwrap_or(handle.since);
        // The previous server may have archived it when it ended.
        handle.is_kept = true;
        let workspace = match (workspace.and_then(|name| name.parse().ok()), mcp_session) {
            (Some(name), _) => Some(Workspace::named(name)),
            (None, Some(id)) => {
                Some(Workspace::of_mcp_session(id.into(), CancellationToken::new()))
            }
            (None, None) => None,
        };
        let which = workspace.clone().map_or(Which::Named(id), Which::Automatic);
        sessions.identify(&which, &handle);
        registry.insert(&sessions.caller, handle.clone());
        if let Some(workspace) = workspace {
            registry.bind(&sessions.caller, &workspace, &handle);
            // Its caller knows it already.
            registry.told(&sessions.caller, &workspace);
        }
        drop(registry);
        self.inner.tasks.spawn(driver::go_on(setup, resumed));
        self.inner.changes.tell();
        Ok(())
    }
}
