//! From a call to a session: finds the session that the call means, or starts it.

use jiff::Timestamp;
use model::{OwnSettings, SessionId, SessionKey, SessionRecord, WorkspaceId};
use tokio::sync::{oneshot, watch};

use super::{
    Sessions, adopt,
    archived::Restore,
    registry::Registry,
    room::{self, Room},
    start::NewSession,
    which::{Opened, Which, Workspace},
};
use crate::{
    error::{Error, Result},
    metrics::Full,
    progress::Progress,
    session::{
        command::Command,
        handle::Handle,
        origin::Origin,
        reply::{Reply, received},
    },
};

/// The session that a call means, before it is found or started.
pub(super) struct Opening<'a> {
    sessions: &'a Sessions,
    which: Which,
    /// Settings of the session's own, if it is started.
    own: OwnSettings,
    /// Told whether the session is new.
    progress: Option<watch::Sender<Progress>>,
}

/// Why a session was not opened.
enum NotOpened {
    /// A limit of sessions is reached.
    Full(Full),
    /// The last session with this key has not ended yet.
    Ending(SessionKey),
    Other(Error),
}

/// The caller's session of this name. If it is not live, it resumes or is restored first.
pub(super) async fn awake(sessions: &Sessions, id: &SessionId) -> Result<Handle> {
    if sessions.find(id).is_none() {
        sessions.host.ended(&SessionKey::of(&sessions.caller, id)).await?;
    }
    if let Some(handle) = sessions.find(id) {
        handle.is_used_with(sessions.client.as_ref());
        // The session has no sandbox, only saved state: every operation needs a new sandbox, and so a permit.
        if handle.usage.resting() == Some(0) {
            Box::pin(room::wake(sessions, &handle)).await?;
        }
        return Ok(handle);
    }
    let opening = Opening::new(sessions, Which::Named(id.clone()));
    let saved = sessions.saved();
    let is_known = match Box::pin(opening.restorable()).await? {
        _ if saved.is_some_and(|saved| saved.has(id)) => true,
        Some(restore) => restore.is_known(),
        None => false,
    };
    if !is_known {
        return Err(sessions.gone(id));
    }
    // Boxed: rare, and much larger than what every other call waits for.
    let handle = Box::pin(opening.open()).await?.1;
    handle.is_used_with(sessions.client.as_ref());
    Ok(handle)
}

/// Restores the session that the call means, if the archive has it.
///
/// # Errors
/// If starting it fails.
pub(super) async fn restored(sessions: &Sessions, which: Which) -> Result<Option<Opened>> {
    let opening = Opening::new(sessions, which);
    match opening.restorable().await? {
        Some(Restore::From(..)) => Ok(Some(Box::pin(opening.open()).await?.0)),
        _ => Ok(None),
    }
}

/// The caller's live session of a workspace, even if it was woken by its name and not for the workspace.
pub(super) fn find_workspace(
    sessions: &Sessions,
    registry: &Registry,
    workspace: &Workspace,
) -> Option<(Opened, Handle)> {
    let caller = &sessions.caller;
    if let Some((opened, handle)) = registry.find_workspace(caller, workspace) {
        return Some((opened, handle.clone()));
    }
    let id = sessions.saved()?.recorded_for(workspace)?;
    let handle = registry.find(caller, id).filter(|handle| handle.origin.continues())?;
    Some((Opened { id: id.clone(), is_new: false, lost: None }, handle.clone()))
}

impl<'a> Opening<'a> {
    pub(super) fn new(sessions: &'a Sessions, which: Which) -> Self {
        Self { sessions, which, own: OwnSettings::default(), progress: None }
            .with(OwnSettings::default())
    }

    /// Sets the settings that a call asks for, for a session that is started.
    pub(super) fn with(self, asked: OwnSettings) -> Self {
        let Sessions { host, config, .. } = self.sessions;
        Self { own: host.config.own(config, &asked), ..self }
    }

    /// Tells the progress of a run whether its session is new, before the run begins.
    pub(super) fn telling(self, progress: Option<watch::Sender<Progress>>) -> Self {
        Self { progress, ..self }
    }

    /// Opens the session, sends it a command and waits for the answer.
    pub(super) async fn ask<T>(
        self,
        command: impl FnOnce(Reply<T>) -> Command,
    ) -> (Opened, Result<T>) {
        let (reply, answer) = oneshot::channel();
        let mut command = command(reply);
        loop {
            let (opened, handle) = match Box::pin(self.open()).await {
                Ok(opened) => opened,
                Err(error) => {
                    let id = match self.which {
                        Which::Named(id) => id,
                        _ => SessionId::mint(),
                    };
                    return (Opened { id, is_new: false, lost: None }, Err(error));
                }
            };
            handle.is_used_with(self.sessions.client.as_ref());
            if handle.usage.resting().is_some()
                && let Err(error) = Box::pin(room::wake(self.sessions, &handle)).await
            {
                return (opened, Err(error));
            }
            if let Some(progress) = &self.progress {
                progress.send_modify(|progress| progress.is_new = opened.is_new);
            }
            match handle.send(command).await {
                Ok(()) => {
                    let answer = received(answer).await;
                    return (opened.knowing(handle.beginning.tell()), answer);
                }
                // The session ended in between. It has left the registry, so the next turn starts another.
                Err(unsent) => command = unsent,
            }
        }
    }

    /// The session that the call means, or a new one.
    async fn open(&self) -> Result<(Opened, Handle)> {
        let host = &self.sessions.host;
        // Two calls for a workspace without a session must not start two.
        let _turn = match &self.which {
            Which::Automatic(workspace) => {
                let key = (self.sessions.caller.clone(), workspace.id().clone());
                Some(host.turns.of(key).await)
            }
            _ => None,
        };
        self.check_home()?;
        if !matches!(self.which, Which::New | Which::Stateless(_)) {
            adopt::wait_for_orphans(host, || self.is_missing()).await;
        }
        let mut restore = Box::pin(self.restorable()).await?;
        let mut room = Room::new(self.sessions);
        loop {
            if !self.own.are_of_sandbox()
                && restore.is_none()
                && let Some(opened) = self.take_pooled().await
            {
                return Ok(opened);
            }
            match self.find_or_create(&mut room, &mut restore) {
                Ok(opened) => return Ok(opened),
                Err(NotOpened::Other(error)) => return Err(error),
                Err(NotOpened::Full(full)) => room.make(full).await?,
                Err(NotOpened::Ending(key)) => {
                    host.ended(&key).await?;
                    restore = Box::pin(self.restorable()).await?;
                }
            }
        }
    }

    /// The archive's answer for the session, if it is not live and has to be started.
    async fn restorable(&self) -> Result<Option<Restore>> {
        match self.sessions.archived() {
            Some(archived) if self.sessions.only.is_none() && self.is_missing() => {
                archived.restorable(&self.which).await
            }
            _ => Ok(None),
        }
    }

    /// Whether the session is not live here, but may be somewhere else.
    fn is_missing(&self) -> bool {
        matches!(self.find(&self.sessions.host.registry(), true), Ok(None))
    }

    /// The session, if it is live; `None` if it may be started instead.
    fn find(&self, registry: &Registry, can_be_restored: bool) -> Result<Option<(Opened, Handle)>> {
        let sessions = self.sessions;
        let found = match &self.which {
            Which::New | Which::Stateless(_) => return Ok(None),
            Which::Named(id) => {
                let opened = Opened { id: id.clone(), is_new: false, lost: None };
                registry.find(&sessions.caller, id).map(|handle| (opened, handle.clone()))
            }
            Which::Automatic(workspace) => find_workspace(sessions, registry, workspace),
        };
        let is_hidden = match found.filter(|(_, handle)| !handle.is_ended()) {
            Some(there) if sessions.sees(&there.1) => return Ok(Some(there)),
            there => there.is_some(),
        };
        let is_saved = |id| sessions.saved().is_some_and(|saved| saved.has(id)) && !is_hidden;
        match &self.which {
            Which::Named(id) if sessions.only.is_none() && can_be_restored || is_saved(id) => {
                Ok(None)
            }
            Which::Named(id) if sessions.only.is_some() || id.is_minted() => {
                Err(registry.not_found(&sessions.caller, id, sessions.config().session_ttl))
            }
            Which::Automatic(workspace) if workspace.has_ended() => {
                let why = "The MCP session of this call has ended, and its workspace with it.";
                Err(Error::SandboxUnavailable(why.into()))
            }
            _ => Ok(None),
        }
    }

    /// A pooled sandbox for a new session, if one is available and the caller may have another session.
    async fn take_pooled(&self) -> Option<(Opened, Handle)> {
        let (sessions, host) = (self.sessions, &self.sessions.host);
        // A pooled sandbox has its id already, so it cannot serve a session with a given name, nor be saved under one.
        if matches!(self.which, Which::Named(_)) || self.is_saved() {
            return None;
        }
        let is_wanted = |registry: &Registry| {
            self.check_home().is_ok()
                && room::has_quota(sessions, registry)
                && matches!(self.find(registry, false), Ok(None))
        };
        while is_wanted(&host.registry())
            && let Some(pooled) = host.pool.take_with(&sessions.datasets())
        {
            if pooled.is_well().await {
                let mut handle = pooled.handle.clone().asked_for_now();
                handle.own = self.own.clone();
                let mut registry = host.registry();
                if !is_wanted(&registry) {
                    // Other calls came first. `find_or_create` finds their session or reports the limit.
                    drop(registry);
                    host.tasks.spawn(pooled.close());
                    return None;
                }
                let (id, number, own) = (handle.id.clone(), handle.number, handle.own.clone());
                if let Some(record) = self.record(id, number, own, None) {
                    let _ = handle.record.set(record);
                }
                let opened = self.register(&mut registry, &handle);
                drop(registry);
                host.changes.tell();
                host.pool.hand_over(handle.number);
                return Some((opened, handle));
            }
            tracing::warn!(session_id = %pooled.handle.id, "pooled sandbox does not answer");
            host.tasks.spawn(pooled.close());
        }
        None
    }

    /// The session, or a new one with the permit in `room` if there is one.
    fn find_or_create(
        &self,
        room: &mut Room<'_>,
        restore: &mut Option<Restore>,
    ) -> std::result::Result<(Opened, Handle), NotOpened> {
        let (sessions, host) = (self.sessions, &self.sessions.host);
        let (caller, config) = (&sessions.caller, sessions.config());
        let mut registry = host.registry();
        let found = self.find(&registry, restore.is_some());
        if let Some(there) = found.map_err(NotOpened::Other)? {
            return Ok(there);
        }
        if let Which::Automatic(workspace) = &self.which
            && let Some(id) = restore.as_ref().and_then(Restore::session)
            && let Some(there) = registry.find(caller, id).filter(|it| !it.is_ended()).cloned()
        {
            // Another call has restored the session by its name.
            let opened = registry.bind(caller, workspace, &there);
            registry.told(caller, workspace);
            return Ok((Opened { is_new: false, lost: None, ..opened }, there));
        }
        self.check_home().map_err(NotOpened::Other)?;
        if host.shutdown.is_cancelled() {
            let why = "The server is shutting down. Try again later.";
            return Err(NotOpened::Other(Error::SandboxUnavailable(why.into())));
        }
        let id = self.id_of_new(restore.as_ref());
        let key = SessionKey::of(caller, &id);
        if host.endings.has(&key) {
            return Err(NotOpened::Ending(key));
        }
        if !room::has_quota(sessions, &registry) {
            // If the caller's limit is not below the server's, the server's limit is reported.
            let is_own = config.max_sessions_per_client < config.max_sessions;
            return Err(NotOpened::Full(if is_own { Full::Client } else { Full::Server }));
        }
        let permit = room.permit().ok_or(NotOpened::Full(Full::Server))?;
        let new =
            NewSession { permit: Some(permit), ..self.new_session(&registry, id, restore.take()) };
        let handle = new.spawn(host);
        let opened = self.register(&mut registry, &handle);
        drop(registry);
        host.changes.tell();
        Ok((opened, handle))
    }

    /// The name of the session that is started for the call.
    fn id_of_new(&self, restore: Option<&Restore>) -> SessionId {
        let id = match &self.which {
            Which::Named(id) => Some(id.clone()),
            Which::Automatic(workspace) => {
                let saved = self.sessions.saved().and_then(|saved| saved.of_workspace(workspace));
                saved.or_else(|| restore?.session().cloned())
            }
            Which::New | Which::Stateless(_) => None,
        };
        id.unwrap_or_else(SessionId::mint)
    }

    /// The session that is started for the call: woken from the state folder, restored from the archive, or new.
    fn new_session(
        &self,
        registry: &Registry,
        id: SessionId,
        restore: Option<Restore>,
    ) -> NewSession {
        let (sessions, host) = (self.sessions, &self.sessions.host);
        let saved = sessions.saved().filter(|_| self.is_saved());
        let (mut own, mut workspace, mut number) = (self.own.clone(), None, None);
        let (mut restore, mut since) = (restore, None);
        let origin = if let Some(saved) = saved.filter(|saved| saved.has(&id)) {
            restore = None;
            if let Some(record) = saved.record(&id) {
                (own, workspace, since) = (record.own, record.workspace, record.since);
                // Its URLs stay valid.
                number = record.number;
            }
            Origin::Woken
        } else if let Some(Restore::From(_, manifest)) = &restore {
            own = manifest.own.clone();
            workspace = manifest.workspace().map(WorkspaceId::Hashed);
            // Its URLs stay valid.
            number = host.archive.as_ref().and_then(|archive| archive.number_of(manifest));
            Origin::Restored
        } else {
            // The server ended before the session had anything to save.
            if let Some(record) = saved.and_then(|saved| saved.record(&id))
                && own == OwnSettings::default()
            {
                own = record.own;
            }
            Origin::New
        };
        let number = number.filter(|number| !registry.has_number(*number));
        let number = number.unwrap_or_else(|| host.numbers.next());
        let record = self.record(id.clone(), number, own.clone(), workspace);
        NewSession {
            number,
            origin,
            permit: None,
            caller: host.caller_key(&sessions.caller),
            record: record.map(|new| SessionRecord { since: since.unwrap_or(new.since), ..new }),
            saved_as: saved.map(|saved| saved.key(&id)),
            restore,
            own,
            datasets: sessions.datasets(),
            id,
        }
    }

    /// The record of a session that is started for the call; `None` if it ends with the call. `workspace` is the one
    /// that it belonged to before.
    fn record(
        &self,
        session: SessionId,
        number: u64,
        own: OwnSettings,
        workspace: Option<WorkspaceId>,
    ) -> Option<SessionRecord> {
        let workspace = match &self.which {
            Which::Stateless(_) => return None,
            Which::Automatic(workspace) => Some(workspace.id().clone()),
            Which::New | Which::Named(_) => workspace,
        };
        let caller = self.sessions.caller.clone();
        let number = self.sessions.host.number_in_urls(&caller, number);
        let datasets = self.sessions.datasets().iter().map(|it| it.name.clone()).collect();
        let since = Timestamp::now();
        Some(SessionRecord { caller, session, number, since, workspace, own, datasets })
    }

    /// Registers a session that was started for this call, and stores its record for the next server.
    fn register(&self, registry: &mut Registry, handle: &Handle) -> Opened {
        let caller = &self.sessions.caller;
        let handle = match &self.which {
            Which::Stateless(_) => &handle.clone().stateless(),
            _ => handle,
        };
        handle.label.set(self.sessions.host.label(caller));
        registry.insert(caller, handle.clone());
        if let Some(record) = handle.record.get() {
            adopt::store(&self.sessions.host, record, handle);
            // For a woken session, too: its number may be new.
            if let Some(saved) = self.sessions.saved() {
                saved.store(record);
            }
        }
        // A session that resumes or was restored is not new to its caller.
        let is_new = !handle.origin.continues();
        let lost = match &self.which {
            Which::Automatic(workspace) => {
                let opened = registry.bind(caller, workspace, handle);
                if !is_new {
                    registry.told(caller, workspace);
                }
                opened.lost
            }
            Which::Named(id) => registry.take_lost(caller, id),
            Which::New => None,
            Which::Stateless(call) => {
                call.hold(handle.clone());
                None
            }
        };
        Opened { id: handle.id.clone(), is_new, lost: lost.filter(|_| is_new) }
    }

    /// Whether the sandbox of the session is saved when the server ends.
    fn is_saved(&self) -> bool {
        !matches!(self.which, Which::Stateless(_)) && self.sessions.saved().is_some()
    }

    /// Checks that the caller is at home on this server.
    fn check_home(&self) -> Result<()> {
        self.sessions.shared_callers().map_or(Ok(()), |callers| callers.check_home())
    }
}
