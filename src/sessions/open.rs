//! Finding or starting the session that a call means.

use std::{
    collections::HashSet,
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::{
    Sessions,
    create::OwnLimits,
    pool::Pool,
    registry::Registry,
    which::{LostReason, Opened, Which},
};
use crate::{
    backend::{KeptKey, Spec},
    config::Toolset,
    error::{Error, OwnSession, Result},
    metrics::Full,
    session::{
        Phase, SessionId,
        command::Command,
        driver,
        events::{Observer, Observers},
        handle::Handle,
        history::Journal,
        lease::Lease,
        reply::{Reply, received},
        setup::{Birth, Setup},
        state::IdleLimits,
        usage::Usage,
    },
};

/// Why a session was not opened.
enum NotOpened {
    /// There are as many as there may be.
    Full(Full),
    Other(Error),
}

impl Sessions {
    pub(super) async fn ask_or_create<T>(
        &self,
        which: Which,
        own: OwnLimits,
        command: impl FnOnce(Reply<T>) -> Command,
    ) -> (Opened, Result<T>) {
        let (reply, answer) = oneshot::channel();
        let mut command = command(reply);
        loop {
            let (opened, handle) = match self.open_session(&which, own).await {
                Ok(opened) => opened,
                Err(error) => {
                    let id = match which {
                        Which::Named(id) => id,
                        _ => SessionId::mint(),
                    };
                    return (Opened { id, is_new: false, lost: None }, Err(error));
                }
            };
            match handle.send(command).await {
                Ok(()) => {
                    let answer = received(answer).await;
                    return (opened.knowing(handle.beginning.tell()), answer);
                }
                // It ended between the two. It has left the registry, so the next turn makes another.
                Err(unsent) => command = unsent,
            }
        }
    }

    /// The session that is meant, or a new one. If there are as many as there may be, a sandbox in the
    /// pool makes room, or else a session that its caller has not used for long.
    async fn open_session(&self, which: &Which, own: OwnLimits) -> Result<(Opened, Handle)> {
        // Two that come for a workspace that has no session yet shall not start two.
        let _turn = match which {
            Which::Automatic(workspace) => Some(self.inner.turns.of(&self.caller, workspace).await),
            _ => None,
        };
        let (mut given_up, mut asked) = (None, HashSet::new());
        loop {
            if !own.are_special()
                && let Some(opened) = self.take_pooled(which).await
            {
                return Ok(opened);
            }
            let full = match self.find_or_create(which, own, &mut given_up) {
                Ok(opened) => return Ok(opened),
                Err(NotOpened::Other(error)) => return Err(error),
                Err(NotOpened::Full(full)) => full,
            };
            if matches!(full, Full::Server) && self.inner.pool.make_room().await {
                continue;
            }
            if !self.evict(&mut asked, &mut given_up).await {
                self.inner.metrics.refused(full);
                return Err(self.too_many(full));
            }
        }
    }

    /// A sandbox from the pool for a session that is to be started, if one is there and the caller may
    /// have it.
    async fn take_pooled(&self, which: &Which) -> Option<(Opened, Handle)> {
        // One that is named was born with another name.
        if matches!(which, Which::Named(_)) || self.keeps(which) {
            return None;
        }
        let is_wanted = |registry: &Registry| {
            self.has_quota(registry) && matches!(self.find_open(registry, which), Ok(None))
        };
        while is_wanted(&self.registry())
            && let Some(pooled) = self.inner.pool.take()
        {
            if pooled.is_well().await {
                let handle = pooled.handle.clone().asked_for_now();
                let mut registry = self.registry();
                if !is_wanted(&registry) {
                    // Others came first. Whoever makes the session says so.
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

    /// The session that is meant, if it is there; `None` if one may be started instead.
    fn find_open(&self, registry: &Registry, which: &Which) -> Result<Option<(Opened, Handle)>> {
        let found = match which {
            Which::New | Which::Stateless(_) => return Ok(None),
            Which::Named(id) => {
                let opened = Opened { id: id.clone(), is_new: false, lost: None };
                registry.find(&self.caller, id).map(|handle| (opened, handle))
            }
            Which::Automatic(workspace) => registry.find_workspace(&self.caller, workspace),
        };
        if let Some((opened, handle)) = found.filter(|(_, handle)| !handle.is_ended())
            && self.sees(handle)
        {
            return Ok(Some((opened, handle.clone())));
        }
        match which {
            Which::Named(id) if self.only.is_none() && self.has_kept(id) => Ok(None),
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

    /// Enters a session that was started for what is meant.
    fn started(&self, registry: &mut Registry, which: &Which, handle: &Handle) -> Opened {
        let handle = match which {
            Which::Stateless(_) => &handle.clone().stateless(),
            _ => handle,
        };
        registry.insert(&self.caller, handle.clone());
        let lost = match which {
            Which::Automatic(workspace) => {
                let opened = registry.bind(&self.caller, workspace, handle);
                if handle.is_kept {
                    registry.told(&self.caller, workspace);
                }
                return Opened { is_new: !handle.is_kept, ..opened };
            }
            Which::Named(id) => registry.take_lost(&self.caller, id),
            Which::New => None,
            Which::Stateless(call) => {
                call.hold(handle.clone());
                None
            }
        };
        // One that goes on from what was kept is not new to its caller.
        Opened { id: handle.id.clone(), is_new: !handle.is_kept, lost }
    }

    /// The caller's session of this name, which goes on from what was kept if it is not there.
    pub(super) async fn woken(&self, id: &SessionId) -> Result<Handle> {
        match self.find(id) {
            Some(handle) => Ok(handle),
            None if self.only.is_none() && self.has_kept(id) => {
                let which = Which::Named(id.clone());
                // Rare, and much larger than what every other call waits for.
                Ok(Box::pin(self.open_session(&which, OwnLimits::default())).await?.1)
            }
            None => Err(self.not_found(&self.registry(), id)),
        }
    }

    /// The task of a session, with the permit that was given up for it if one was.
    fn find_or_create(
        &self,
        which: &Which,
        own: OwnLimits,
        given_up: &mut Option<OwnedSemaphorePermit>,
    ) -> std::result::Result<(Opened, Handle), NotOpened> {
        let mut registry = self.registry();
        if let Some(there) = self.find_open(&registry, which).map_err(NotOpened::Other)? {
            return Ok(there);
        }
        if self.inner.shutdown.is_cancelled() {
            let why = "The server is shutting down. Try again later.";
            return Err(NotOpened::Other(Error::SandboxUnavailable(why.into())));
        }
        let config = &self.inner.config;
        if !self.has_quota(&registry) {
            // One caller with all there are is told of the server's limit.
            let is_own = config.max_sessions_per_client < config.max_sessions;
            return Err(NotOpened::Full(if is_own { Full::Client } else { Full::Server }));
        }
        let permit =
            given_up.take().or_else(|| self.inner.permits.clone().try_acquire_owned().ok());
        let permit = permit.ok_or(NotOpened::Full(Full::Server))?;
        let id = match which {
            Which::Named(id) => id.clone(),
            Which::Automatic(workspace) => self.kept_for(workspace).unwrap_or_else(SessionId::mint),
            _ => SessionId::mint(),
        };
        let key = self.key_of(which, &id);
        let is_kept = key.as_ref().is_some_and(|key| self.inner.backend.has_kept(key));
        let own = key.as_ref().map_or(own, |key| self.limits_of_kept(key, (&id, which), own));
        let mut handle = self.spawn(&id, own, permit, (Birth::OnDemand, key));
        handle.is_kept = is_kept;
        let opened = self.started(&mut registry, which, &handle);
        drop(registry);
        self.inner.changes.tell();
        Ok((opened, handle))
    }

    /// Ends the caller's own session that nobody has named and that was unused for longest, if it was for
    /// as long as the settings say; never one that is in use, which its own task decides. False if there
    /// is none such that has not been asked yet.
    async fn evict(
        &self,
        asked: &mut HashSet<u64>,
        given_up: &mut Option<OwnedSemaphorePermit>,
    ) -> bool {
        let Some(idle) = self.inner.config.evict_idle else { return false };
        loop {
            let Some(since) = Instant::now().checked_sub(idle) else { return false };
            let longest = self.registry().longest_idle(&self.caller, since, asked);
            let Some(handle) = longest else { return false };
            asked.insert(handle.number);
            match handle.evict(idle).await {
                Ok(Some(permit)) => {
                    *given_up = Some(permit);
                    return true;
                }
                // It is in use now.
                Ok(None) => {}
                // It has ended by itself, and its permit may be free.
                _ => return true,
            }
        }
    }

    /// Starts a sandbox for the pool, if there is a permit for it.
    pub(super) fn start_pooled(&self) -> Option<Handle> {
        let permit = self.inner.permits.clone().try_acquire_owned().ok()?;
        Some(self.spawn(&SessionId::mint(), OwnLimits::default(), permit, (Birth::InPool, None)))
    }

    pub(super) fn pool(&self) -> &Pool {
        &self.inner.pool
    }

    fn spawn(
        &self,
        id: &SessionId,
        own: OwnLimits,
        permit: OwnedSemaphorePermit,
        (birth, key): (Birth, Option<KeptKey>),
    ) -> Handle {
        let config = &self.inner.config;
        let (journal, history) = Journal::new(
            self.inner.changes.clone(),
            config.max_sessions,
            config.history_dir.as_deref(),
        );
        let number = self.inner.next.fetch_add(1, Ordering::Relaxed);
        let usage = Usage::default();
        let ttl = own.ttl.unwrap_or(config.session_ttl);
        let (handle, commands) = Handle::new(id, number, ttl, history, usage.clone());
        let spec = Spec::new(config, id).with_memory(own.memory).kept_as(key);
        let preload = config.preload_within(&spec.limits);
        let metrics = &self.inner.metrics;
        let observers: [Box<dyn Observer>; 3] = [
            Box::new(metrics.clone()),
            Box::new(metrics.watch(birth, spec.limits.memory)),
            Box::new(journal),
        ];
        let setup = Setup {
            id: id.clone(),
            spec,
            idle: IdleLimits { hibernate: config.hibernate_after, ttl },
            birth,
            max_output: config.max_output,
            tracebacks: config.tracebacks,
            max_timeout: config.exec_timeout,
            timing: self.inner.timing,
            preload,
            undo: config.toolsets.has(Toolset::Code).then_some(config.undo),
            backend: self.inner.backend.clone(),
            commands,
            observers: Observers::new(id, observers),
            reads: Arc::new(metrics.clone()),
            usage,
            beginning: handle.beginning.clone(),
            starts: self.inner.starts.clone(),
            shutdown: self.inner.shutdown.clone(),
            lease: Lease::new(self.inner.clone(), number, permit),
        };
        self.inner.tasks.spawn(driver::drive(setup));
        handle
    }

    /// The caller's session of this name.
    pub(super) fn find(&self, id: &SessionId) -> Option<Handle> {
        self.registry().find(&self.caller, id).filter(|handle| self.sees(handle)).cloned()
    }

    pub(super) fn sees(&self, handle: &Handle) -> bool {
        self.only.is_none_or(|number| handle.number == number)
    }

    /// Why there is no session of this name, as every call is told that names it. Of what the caller never
    /// had, as far as is remembered, nothing is said.
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

    fn too_many(&self, full: Full) -> Error {
        let (config, now) = (&self.inner.config, Instant::now());
        let registry = self.registry();
        let all = registry.of(&self.caller).map(|handle| {
            let idle = handle.idle_for(now);
            let state = match (handle.history.borrow().phase(), idle) {
                (Phase::Idle | Phase::Hibernating, None) => "in_use",
                (phase, _) => phase.as_str(),
            };
            OwnSession { id: handle.id.clone(), state, idle: idle.unwrap_or_default() }
        });
        let mut own: Vec<_> = all.collect();
        drop(registry);
        own.sort_unstable_by(|a, b| b.idle.cmp(&a.idle).then_with(|| a.id.cmp(&b.id)));
        match full {
            Full::Server => Error::MaxSessions { limit: config.max_sessions, own },
            Full::Client => Error::TooManySessions { limit: config.max_sessions_per_client, own },
        }
    }

    /// Whether the caller may have one more session.
    fn has_quota(&self, registry: &Registry) -> bool {
        registry.of(&self.caller).count() < self.inner.config.max_sessions_per_client
    }
}
