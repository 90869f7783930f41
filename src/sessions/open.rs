//! Finds or starts the session that a call means.

mod room;
mod start;

use model::{LostReason, OwnSettings, SessionId};
use tokio::sync::oneshot;

use self::room::Room;
use super::{
    Sessions,
    archived::Restore,
    pool::Pool,
    registry::Registry,
    which::{Opened, Which},
};
use crate::{
    error::{Error, Result},
    metrics::Full,
    session::{
        command::Command,
        handle::Handle,
        reply::{Reply, received},
        setup::Birth,
    },
};

/// Why a session was not opened.
enum NotOpened {
    /// A limit of sessions is reached.
    Full(Full),
    Other(Error),
}

impl Sessions {
    pub(super) async fn ask_or_create<T>(
        &self,
        which: Which,
        own: OwnSettings,
        command: impl FnOnce(Reply<T>) -> Command,
    ) -> (Opened, Result<T>) {
        let (reply, answer) = oneshot::channel();
        let mut command = command(reply);
        loop {
            let (opened, handle) = match Box::pin(self.open_session(&which, own.clone())).await {
                Ok(opened) => opened,
                Err(error) => {
                    let id = match which {
                        Which::Named(id) => id,
                        _ => SessionId::mint(),
                    };
                    return (Opened { id, is_new: false, lost: None }, Err(error));
                }
            };
            if handle.usage.resting().is_some()
                && let Err(error) = Box::pin(self.wake(&handle)).await
            {
                return (opened, Err(error));
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
    pub(super) async fn open_session(
        &self,
        which: &Which,
        own: OwnSettings,
    ) -> Result<(Opened, Handle)> {
        // Two calls for a workspace without a session must not start two.
        let _turn = match which {
            Which::Automatic(workspace) => {
                let key = (self.caller.clone(), workspace.key().clone());
                Some(self.inner.turns.of(key).await)
            }
            _ => None,
        };
        self.check_home()?;
        self.wait_for_left(which).await;
        let has_archive = self.inner.archive.is_some();
        if has_archive {
            // Boxed: rare, and much larger than what every other call waits for.
            Box::pin(self.wait_until_saved(which)).await;
        }
        let mut restore = if has_archive { Box::pin(self.restorable(which)).await? } else { None };
        let mut room = Room::default();
        loop {
            if !own.are_of_sandbox()
                && restore.is_none()
                && let Some(opened) = self.take_pooled(which, &own).await
            {
                return Ok(opened);
            }
            let full = match self.find_or_create(which, own.clone(), &mut room, &mut restore) {
                Ok(opened) => return Ok(opened),
                Err(NotOpened::Other(error)) => return Err(error),
                Err(NotOpened::Full(full)) => full,
            };
            self.make_room(full, &mut room).await?;
        }
    }

    /// A pooled sandbox for a new session, if one is available and the caller may have another session.
    async fn take_pooled(&self, which: &Which, own: &OwnSettings) -> Option<(Opened, Handle)> {
        // A pooled sandbox has its id already, so it cannot serve a session with a given name.
        if matches!(which, Which::Named(_)) || self.keeps(which) {
            return None;
        }
        let is_wanted = |registry: &Registry| {
            self.check_home().is_ok()
                && self.has_quota(registry)
                && matches!(self.find_open(registry, which, false), Ok(None))
        };
        while is_wanted(&self.registry())
            && let Some(pooled) = self.inner.pool.take()
        {
            if pooled.is_well().await {
                let mut handle = pooled.handle.clone().asked_for_now();
                handle.own = own.clone();
                let mut registry = self.registry();
                if !is_wanted(&registry) {
                    // Other calls came first. `find_or_create` finds their session or reports the limit.
                    drop(registry);
                    self.inner.tasks.spawn(pooled.close());
                    return None;
                }
                let opened = self.started(&mut registry, which, &handle);
                drop(registry);
                self.inner.changes.tell();
                self.inner.pool.hand_over(handle.number);
                return Some((opened, handle));
            }
            tracing::warn!(session_id = %pooled.handle.id, "pooled sandbox does not answer");
            self.inner.tasks.spawn(pooled.close());
        }
        None
    }

    /// The session that the call means, if it is live; `None` if one may be started instead.
    pub(super) fn find_open(
        &self,
        registry: &Registry,
        which: &Which,
        can_be_restored: bool,
    ) -> Result<Option<(Opened, Handle)>> {
        let found = match which {
            Which::New | Which::Stateless(_) => return Ok(None),
            Which::Named(id) => {
                let opened = Opened { id: id.clone(), is_new: false, lost: None };
                registry.find(&self.caller, id).map(|handle| (opened, handle))
            }
            Which::Automatic(workspace) => self.find_workspace(registry, workspace),
        };
        if let Some((opened, handle)) = found.filter(|(_, handle)| !handle.is_ended())
            && self.sees(handle)
        {
            return Ok(Some((opened, handle.clone())));
        }
        match which {
            Which::Named(id) if self.only.is_none() && (can_be_restored || self.has_kept(id)) => {
                Ok(None)
            }
            Which::Named(id) if self.only.is_some() || id.is_minted() => {
                Err(self.not_found(registry, id))
            }
            Which::Automatic(workspace) if workspace.has_ended() => {
                let why = "The MCP session of this call has ended, and its workspace with it.";
                Err(Error::SandboxUnavailable(why.into()))
            }
            _ => Ok(None),
        }
    }

    /// Registers a session that was started for this call.
    fn started(&self, registry: &mut Registry, which: &Which, handle: &Handle) -> Opened {
        let handle = match which {
            Which::Stateless(_) => &handle.clone().stateless(),
            _ => handle,
        };
        self.identify(which, handle);
        registry.insert(&self.caller, handle.clone());
        self.remember(which, handle);
        let lost = match which {
            Which::Automatic(workspace) => {
                let opened = registry.bind(&self.caller, workspace, handle);
                if handle.is_kept {
                    registry.told(&self.caller, workspace);
                }
                let lost = opened.lost.filter(|_| !handle.is_kept);
                return Opened { id: opened.id, is_new: !handle.is_kept, lost };
            }
            Which::Named(id) => registry.take_lost(&self.caller, id).filter(|_| !handle.is_kept),
            Which::New => None,
            Which::Stateless(call) => {
                call.hold(handle.clone());
                None
            }
        };
        // A session that resumes or was restored is not new to its caller.
        Opened { id: handle.id.clone(), is_new: !handle.is_kept, lost }
    }

    /// The caller's session of this name. If it is not live, it resumes or is restored first.
    pub(super) async fn woken(&self, id: &SessionId) -> Result<Handle> {
        match self.find(id) {
            Some(handle) => {
                // It has no sandbox, only saved state: every operation needs a new sandbox, and so a permit.
                if handle.usage.resting() == Some(0) {
                    Box::pin(self.wake(&handle)).await?;
                }
                Ok(handle)
            }
            None if self.only.is_none() && self.has_kept(id) => {
                let which = Which::Named(id.clone());
                // Boxed: rare, and much larger than what every other call waits for.
                Ok(Box::pin(self.open_session(&which, OwnSettings::default())).await?.1)
            }
            None => {
                let which = Which::Named(id.clone());
                let restore = Box::pin(self.restorable(&which)).await?;
                match restore {
                    Some(it) if it.is_known() => {
                        Ok(Box::pin(self.open_session(&which, OwnSettings::default())).await?.1)
                    }
                    _ => Err(self.gone(id)),
                }
            }
        }
    }

    /// The session that the call means, or a new one, with the permit in `room` if there is one.
    fn find_or_create(
        &self,
        which: &Which,
        own: OwnSettings,
        room: &mut Room,
        restore: &mut Option<Restore>,
    ) -> std::result::Result<(Opened, Handle), NotOpened> {
        let mut registry = self.registry();
        let found = self.find_open(&registry, which, restore.is_some());
        if let Some(there) = found.map_err(NotOpened::Other)? {
            return Ok(there);
        }
        let back = restore.as_ref().and_then(Restore::session).cloned();
        if let (Which::Automatic(workspace), Some(id)) = (which, &back)
            && let Some(there) =
                registry.find(&self.caller, id).filter(|it| !it.is_ended()).cloned()
        {
            // It was restored by its name.
            let opened = registry.bind(&self.caller, workspace, &there);
            registry.told(&self.caller, workspace);
            return Ok((Opened { is_new: false, lost: None, ..opened }, there));
        }
        self.check_home().map_err(NotOpened::Other)?;
        if self.inner.shutdown.is_cancelled() {
            let why = "The server is shutting down. Try again later.";
            return Err(NotOpened::Other(Error::SandboxUnavailable(why.into())));
        }
        let config = &self.inner.config;
        if !self.has_quota(&registry) {
            // If the caller's limit is not below the server's, the server's limit is reported.
            let is_own = config.max_sessions_per_client < config.max_sessions;
            return Err(NotOpened::Full(if is_own { Full::Client } else { Full::Server }));
        }
        let permit = self.permit(room).ok_or(NotOpened::Full(Full::Server))?;
        let id = match which {
            Which::Named(id) => id.clone(),
            Which::Automatic(workspace) => {
                let kept = self.kept_for(workspace).or(back);
                kept.unwrap_or_else(SessionId::mint)
            }
            _ => SessionId::mint(),
        };
        let key = self.key_of(which, &id);
        let is_kept = key.is_some() && self.has_kept(&id);
        let own = match &key {
            Some(key) => self.own_of_kept(key, (&id, which), own),
            None => own,
        };
        let restore = if is_kept { None } else { restore.take() };
        let mut handle = self.spawn(&id, own, permit, (Birth::OnDemand, key), restore);
        handle.is_kept |= is_kept;
        if is_kept {
            // It may be older than the template of new sandboxes.
            handle.image = None;
        }
        let opened = self.started(&mut registry, which, &handle);
        drop(registry);
        self.inner.changes.tell();
        Ok((opened, handle))
    }

    pub(super) fn pool(&self) -> &Pool {
        &self.inner.pool
    }

    /// The caller's session of this name.
    pub(super) fn find(&self, id: &SessionId) -> Option<Handle> {
        self.registry().find(&self.caller, id).filter(|handle| self.sees(handle)).cloned()
    }

    pub(super) fn sees(&self, handle: &Handle) -> bool {
        self.only.is_none_or(|number| self.public(handle.number) == number)
    }

    /// Why there is no session of this name: the error of every call that names it. It gives a reason only for sessions
    /// that the caller had, as far as remembered.
    pub(crate) fn gone(&self, id: &SessionId) -> Error {
        self.not_found(&self.registry(), id)
    }

    pub(super) fn not_found(&self, registry: &Registry, id: &SessionId) -> Error {
        match registry.why_gone(&self.caller, id) {
            Some(LostReason::Evicted) => Error::SessionEvicted(id.clone()),
            Some(LostReason::Expired(ttl)) if id.is_minted() => {
                Error::SessionEnded { id: id.clone(), ttl }
            }
            Some(_) if id.is_minted() => {
                Error::SessionEnded { id: id.clone(), ttl: self.inner.config.session_ttl }
            }
            _ => Error::SessionNotFound(id.clone()),
        }
    }
}
