//! Going on with the sessions that another server has left: its sandboxes hold, and each has a note that says whose
//! session it is.

use std::time::Duration;

use futures::{StreamExt, stream};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::time::{sleep, timeout};

use super::{
    Sessions,
    create::OwnSettings,
    which::{Which, Workspace},
};
use crate::{
    auth::Principal,
    backend::{Backend, Found, FoundState, Life, Sandbox},
    config::Config,
    link::{Link, LinkError, Stream},
    server_key::ServerKey,
    session::{
        SessionId,
        driver::{self, Resumed},
        handle::Handle,
        hold::Hold,
        setup::Birth,
    },
};

/// Sandboxes that are asked at a time.
const AT_ONCE: usize = 8;

/// How often they are looked for.
const ADOPT_INTERVAL: Duration = Duration::from_secs(5);

/// Longest that one takes to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// What the sandbox of a session keeps for the next server.
#[derive(Debug, Serialize, Deserialize)]
struct Note {
    caller: String,
    session: String,
    /// What its URLs are bound to.
    number: u64,
    /// Milliseconds since the epoch.
    since: i64,
    /// The workspace that it is the session of, if that has a name that outlives the connections of its client.
    workspace: Option<String>,
    own: OwnSettings,
}

/// How sandboxes are held with these settings, if they are.
pub(super) fn hold(config: &Config, backend: &dyn Backend) -> Option<Hold> {
    if config.hold.is_zero() || !backend.can_hold() {
        return None;
    }
    let key = config.server_key.clone().unwrap_or_else(ServerKey::random);
    Some(Hold::new(config.hold, config.sessions_outlive_server(), key))
}

impl Sessions {
    /// Has the sandbox of a session that has a caller now keep whose it is.
    pub(super) fn remember(&self, which: &Which, handle: &Handle) {
        let outlives_server = |hold: &Hold| hold.outlives_server;
        if matches!(which, Which::Stateless(_))
            || !self.inner.hold.as_ref().is_some_and(outlives_server)
        {
            return;
        }
        let workspace = match which {
            Which::Automatic(workspace) => workspace.name().map(ToString::to_string),
            _ => None,
        };
        let note = Note {
            caller: self.caller.name().to_owned(),
            session: handle.id.to_string(),
            number: handle.number,
            since: handle.since.as_millisecond(),
            workspace,
            own: handle.own.clone(),
        };
        handle.remember(serde_json::to_vec(&note).expect("it has no keys but strings").into());
    }

    /// Looks for what others have left from time to time, for ever: of a server elsewhere it is not known at once that
    /// it is dead.
    pub async fn adopt_regularly(self) {
        loop {
            sleep(ADOPT_INTERVAL).await;
            self.adopt().await;
        }
    }

    /// Goes on with all sessions that servers with the same secret have left. What is left of them and is nobody's
    /// ends. Returns when all have been asked.
    pub async fn adopt(&self) {
        let Some(hold) = self.inner.hold.clone().filter(|hold| hold.outlives_server) else {
            return;
        };
        let all = match self.inner.backend.list().await {
            Ok(all) => all,
            Err(error) => return tracing::debug!(%error, "held sandboxes cannot be listed"),
        };
        let left = all.into_iter().filter(|found| found.holds && is_left(found));
        stream::iter(left)
            .for_each_concurrent(AT_ONCE, |found| {
                let hold = hold.clone();
                async move {
                    let asked = timeout(ANSWER_TIMEOUT, self.adopt_one(&hold, &found.id)).await;
                    match asked {
                        Ok(Ok(())) => {}
                        Ok(Err(why)) => {
                            tracing::info!(sandbox = found.id, why, "held sandbox not taken over");
                        }
                        Err(_) => {
                            tracing::info!(sandbox = found.id, "held sandbox does not answer");
                        }
                    }
                }
            })
            .await;
    }

    async fn adopt_one(&self, hold: &Hold, id: &str) -> Result<(), String> {
        let backend = &self.inner.backend;
        let attached = backend.reattach(id.to_owned()).await.map_err(|error| error.to_string())?;
        let Sandbox { id, reader, writer, gone } = attached;
        let holding = hold.of(backend, &id);
        let stream = Stream { reader, writer };
        let (link, owner, found) = match Link::resume(stream, self.inner.timing, holding).await {
            Ok(resumed) => resumed,
            Err(error) => {
                if let LinkError::Version(_) = error {
                    // No server of this version can ever go on with it.
                    let _ = backend.remove(id).await;
                }
                return Err(error.to_string());
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
        backend.claim(sandbox.id.clone()).await;
        let resumed = Resumed { sandbox, link, owner, leftover: found.leftover };
        let Some(note) = note else {
            let _ = self.inner.backend.remove(resumed.sandbox.id).await;
            return Err("it is nobody's".into());
        };
        self.enter(note, resumed)
    }

    /// Enters a session that goes on.
    fn enter(&self, note: Note, resumed: Resumed) -> Result<(), String> {
        let Note { caller, session, number, since, workspace, own } = note;
        let sessions = self.seen_by(Principal::named(&caller).ok_or("its caller's name is none")?);
        let id: SessionId = session.parse().map_err(|_| "its name is none")?;
        let permit = self.inner.permits.clone().try_acquire_owned();
        let permit = permit.map_err(|_| "there are as many sessions as there may be")?;
        let mut registry = self.registry();
        if registry.find(&sessions.caller, &id).is_some() {
            return Err("there is another session of its name".into());
        }
        let (named, birth) = ((&id, Some(number)), (Birth::OnDemand, None));
        let (mut handle, setup) = sessions.prepare(named, own, permit, birth, None);
        handle.since = Timestamp::from_millisecond(since).unwrap_or(handle.since);
        // The server before may have archived it when it ended.
        handle.is_kept = true;
        let workspace = workspace.and_then(|name| name.parse().ok()).map(Workspace::named);
        let which = workspace.clone().map_or(Which::Named(id), Which::Automatic);
        sessions.identify(&which, &handle);
        registry.insert(&sessions.caller, handle.clone());
        if let Some(workspace) = workspace {
            registry.bind(&sessions.caller, &workspace, &handle);
            // Its caller has known it all along.
            registry.told(&sessions.caller, &workspace);
        }
        drop(registry);
        self.inner.tasks.spawn(driver::go_on(setup, resumed));
        self.inner.changes.tell();
        Ok(())
    }
}

/// Whether no server that is known to live has it.
fn is_left(found: &Found) -> bool {
    let life = found.owner.as_ref().map(|owner| owner.life);
    found.state == FoundState::Running && life != Some(Life::Alive)
}
