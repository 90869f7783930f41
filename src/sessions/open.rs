//! Finds or starts the session that a call means.

use std::{
    collections::HashSet,
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

use model::{LostReason, OwnSettings, SessionId, SessionKey};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::{
    Sessions,
    archived::Restore,
    pool::Pool,
    registry::{MostResting, Registry},
    which::{Opened, Which},
};
use crate::{
    archive::{Identity, Restored},
    backend::Spec,
    config::Toolset,
    error::{Error, OwnSession, Result},
    metrics::Full,
    session::{
        Phase,
        archiving::{Archived, Archiving},
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
    /// A limit of sessions is reached.
    Full(Full),
    Other(Error),
}

/// Memory that the sessions of a caller may use together which hibernate without a permit, as a multiple of one
/// sandbox's memory limit.
const RESTING: u64 = 2;

/// The steps so far to make room for one session.
#[derive(Default)]
struct Room {
    asked_to_rest: HashSet<u64>,
    asked_to_end: HashSet<u64>,
    /// The permit that another session gave up for it.
    permit: Option<OwnedSemaphorePermit>,
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

    /// Gets a permit for a session that hibernates without one, before it is used. If the session gives up its permit
    /// while a call is on its way, that call runs without one and the next call gets one.
    async fn wake(&self, handle: &Handle) -> Result<()> {
        let mut room = Room::default();
        while handle.usage.resting().is_some() && !handle.is_ended() {
            match self.place_for(handle, &mut room) {
                // Fails if the session has ended: then it needs none.
                Ok(permit) => drop(handle.send(Command::Wake { permit }).await),
                Err(full) => self.make_room(full, &mut room).await?,
            }
        }
        Ok(())
    }

    /// A permit for a session that hibernates without one. The session counts as having it at once.
    fn place_for(
        &self,
        handle: &Handle,
        room: &mut Room,
    ) -> std::result::Result<OwnedSemaphorePermit, Full> {
        let registry = self.registry();
        if !self.has_quota(&registry) {
            return Err(Full::Client);
        }
        let permit = self.permit(room).ok_or(Full::Server)?;
        handle.usage.set_resting(None);
        Ok(permit)
    }

    fn permit(&self, room: &mut Room) -> Option<OwnedSemaphorePermit> {
        room.permit.take().or_else(|| self.inner.permits.clone().try_acquire_owned().ok())
    }

    /// Makes room for one more session: closes a pooled sandbox, or else makes an unused session hibernate, or ends one
    /// that its caller has not used for long.
    async fn make_room(&self, full: Full, room: &mut Room) -> Result<()> {
        if (matches!(full, Full::Server) && self.inner.pool.make_room().await)
            || self.rest_another(full, room).await
            || self.evict(room).await
        {
            return Ok(());
        }
        self.inner.metrics.refused(full);
        Err(self.too_many(full))
    }

    /// Makes the session hibernate that was unused for longest, and takes its permit. Returns false if every candidate
    /// has been asked.
    async fn rest_another(&self, full: Full, room: &mut Room) -> bool {
        let config = &self.inner.config;
        let (sessions, bytes) =
            (config.max_hibernated, config.memory_limit.saturating_mul(RESTING));
        let most = MostResting { sessions, bytes };
        if sessions == 0 {
            return false;
        }
        loop {
            let (next, surplus) = {
                let registry = self.registry();
                let is_enough = registry.rests_enough(&self.caller, most);
                let surplus = is_enough.then(|| registry.longest_resting(&self.caller)).flatten();
                let own = !is_enough || surplus.is_some();
                let others = matches!(full, Full::Server);
                let passed_over = &room.asked_to_rest;
                let next = registry.next_to_rest(&self.caller, [own, others], most, passed_over);
                (next, surplus)
            };
            let Some((is_own, handle)) = next else { return false };
            room.asked_to_rest.insert(handle.number);
            match handle.rest().await {
                Ok(Some(permit)) => {
                    room.permit = Some(permit);
                    if let Some(surplus) = surplus.filter(|_| is_own) {
                        let _ = surplus.evict(Duration::ZERO).await;
                    }
                    return true;
                }
                // It is in use now, or uses too much memory.
                Ok(None) => {}
                // The session has ended by itself, and its permit may be free.
                Err(_) => return true,
            }
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

    /// Ends the caller's own unnamed session that was unused for longest, if it was unused for the configured time. The
    /// session's task decides, and never ends while the session is in use. Returns false if every candidate has been
    /// asked.
    async fn evict(&self, room: &mut Room) -> bool {
        let Some(idle) = self.inner.config.evict_idle else { return false };
        loop {
            let Some(since) = Instant::now().checked_sub(idle) else { return false };
            let longest = self.registry().longest_idle(&self.caller, since, &room.asked_to_end);
            let Some(handle) = longest else { return false };
            room.asked_to_end.insert(handle.number);
            match handle.evict(idle).await {
                Ok(Some(permit)) => {
                    room.permit = Some(permit);
                    return true;
                }
                // It is in use now.
                Ok(None) => {}
                // The session has ended by itself, and its permit may be free.
                _ => return true,
            }
        }
    }

    /// Starts a sandbox for the pool, if there is a permit for it.
    pub(super) fn start_pooled(&self) -> Option<Handle> {
        let permit = self.inner.permits.clone().try_acquire_owned().ok()?;
        Some(self.spawn(
            &SessionId::mint(),
            OwnSettings::default(),
            permit,
            (Birth::InPool, None),
            None,
        ))
    }

    pub(super) fn pool(&self) -> &Pool {
        &self.inner.pool
    }

    fn spawn(
        &self,
        id: &SessionId,
        own: OwnSettings,
        permit: OwnedSemaphorePermit,
        (birth, key): (Birth, Option<SessionKey>),
        restore: Option<Restore>,
    ) -> Handle {
        let (mut handle, setup) =
            self.prepare((id, None), own, Some(permit), (birth, key), restore);
        handle.image = self.inner.template.last_id();
        self.inner.tasks.spawn(driver::drive(setup));
        handle
    }

    /// The setup of a session's task, and the session's handle. The session gets this number, if one is given.
    pub(super) fn prepare(
        &self,
        (id, number): (&SessionId, Option<u64>),
        own: OwnSettings,
        permit: Option<OwnedSemaphorePermit>,
        (birth, key): (Birth, Option<SessionKey>),
        restore: Option<Restore>,
    ) -> (Handle, Setup) {
        let (manifest, failed) = match restore {
            Some(Restore::From(_, manifest)) => (Some(manifest), None),
            Some(Restore::Nothing(failed)) => (None, Some(failed)),
            None => (None, None),
        };
        let own = manifest.as_ref().map_or(own, |manifest| manifest.own.clone());
        let config = &self.inner.config;
        let (journal, history) = Journal::new(
            self.inner.changes.clone(),
            config.max_sessions,
            config.history_dir.as_deref(),
            config.min_free,
        );
        // The URLs of a restored session stay valid.
        let archive = self.inner.archive.as_ref();
        let archived_as =
            archive.zip(manifest.as_ref()).and_then(|(it, found)| it.number_of(found));
        let number = number.or(archived_as).unwrap_or_else(|| self.inner.numbers.next());
        let usage = Usage::default();
        let ttl = own.ttl.unwrap_or(config.session_ttl);
        let (mut handle, commands) = Handle::new(id, number, ttl, history, usage.clone());
        handle.let_go = self.inner.shutdown.child_token();
        handle.is_kept = manifest.is_some();
        handle.own = own.clone();
        let archived = Archived {
            may_be: manifest.is_some() || failed.is_some(),
            began_without: AtomicBool::new(failed.as_deref() == Some(&Restored::Unreachable)),
            workspace: manifest.as_ref().and_then(|manifest| manifest.workspace()),
            ..Archived::default()
        };
        if let Some(failed) = failed {
            archived.news.set(*failed);
        }
        if manifest.is_some() {
            // Set before its task begins, which reads it.
            let _ = archived.identity.set(Identity {
                caller: self.caller.clone(),
                session: id.clone(),
                workspace: archived.workspace.clone(),
                own: own.clone(),
                number: self.public(number),
            });
        }
        handle.archived = Arc::new(archived);
        let archiving = archive.map(|archive| Archiving {
            archive: archive.clone(),
            of: handle.archived.clone(),
            restore: manifest,
            shutdown_timeout: config.shutdown_timeout,
        });
        let hold = self.inner.hold.clone();
        // Pooled sandboxes have no caller yet.
        let caller = (birth == Birth::OnDemand).then(|| self.caller_key(&self.caller)).flatten();
        let spec = Spec::new(config, id)
            .with_memory(own.memory)
            .kept_as(key)
            .holding(hold.as_ref().map(|hold| hold.limit))
            .of_caller(caller);
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
            hold,
            max_output: config.max_output,
            tracebacks: config.tracebacks,
            max_timeout: config.exec_timeout,
            timing: self.inner.timing,
            preload,
            timezone: config.timezone.clone(),
            undo: config.toolsets.has(Toolset::Code).then_some(config.undo),
            backend: self.inner.backend.clone(),
            archiving,
            commands,
            observers: Observers::new(id, observers),
            reads: Arc::new(metrics.clone()),
            usage,
            beginning: handle.beginning.clone(),
            starts: self.inner.starts.clone(),
            shutdown: handle.let_go.clone(),
            lease: Lease::new(self.inner.clone(), number, permit),
        };
        (handle, setup)
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
        registry.places_of(&self.caller) < self.inner.config.max_sessions_per_client
    }
}
