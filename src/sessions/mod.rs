//! The registry: finds and makes sessions, and ends them all when the server ends.
//!
//! It knows names and counts. What happens in a session is its task's business
//! ([`session::driver`](crate::session)).

pub mod keeper;
mod pool;
mod registry;

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};
pub use protocol::message::Stream;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch},
    time::timeout,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::{pool::Pool, registry::Registry};
pub use crate::session::{
    command::{Program, Progress},
    operations::{
        Content, List, Listing, Open, Operation, OutputPart, ReadOutput, Upload, Uploaded,
    },
};
use crate::{
    auth::Principal,
    backend::{Backend, KnownTemplate, Spec, Template},
    config::Config,
    error::{Error, OwnSession, Result},
    link::Timing,
    metrics::{Full, Metrics},
    session::{
        History, Phase, RunReport, SessionId,
        command::Command,
        driver,
        events::{Observer, Observers},
        handle::Handle,
        history::{Changes, Journal},
        lease::{Lease, Lessor},
        reply::{Reply, received},
        setup::{Birth, Setup},
        state::IdleLimits,
        usage::Usage,
    },
};

/// The sessions of this server, as one caller sees them: those of others are not there. Clones share
/// them.
#[derive(Debug, Clone)]
pub struct Sessions {
    inner: Arc<Inner>,
    caller: Principal,
    /// Only the session of this number can be seen.
    only: Option<u64>,
}

#[derive(Debug)]
struct Inner {
    config: Config,
    backend: Arc<dyn Backend>,
    template: KnownTemplate,
    timing: Timing,
    metrics: Metrics,
    registry: Mutex<Registry>,
    changes: Changes,
    pool: Pool,
    next: AtomicU64,
    permits: Arc<Semaphore>,
    starts: Arc<Semaphore>,
    tasks: TaskTracker,
    shutdown: CancellationToken,
    /// A sandbox may have been left behind.
    may_be_unclean: AtomicBool,
}

/// Which session a call was for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opened {
    /// Its name.
    pub id: SessionId,
    /// It was started for this call.
    pub is_new: bool,
}

/// Why a session was not opened.
enum NotOpened {
    /// There are as many as there may be.
    Full(Full),
    Other(Error),
}

/// A session, as whoever looks at it sees it.
#[derive(Debug, Clone)]
pub struct Look {
    /// Its name.
    pub id: SessionId,
    /// Tells two sessions of one name apart.
    pub number: u64,
    /// When somebody asked for it.
    pub since: Timestamp,
    /// What it has done.
    pub history: History,
}

impl Sessions {
    /// An empty registry.
    pub fn new(config: Config, backend: Arc<dyn Backend>) -> Self {
        Self::with_timing(config, backend, Timing::default())
    }

    /// The same, with other deadlines on the links.
    pub fn with_timing(config: Config, backend: Arc<dyn Backend>, timing: Timing) -> Self {
        let permits = Arc::new(Semaphore::new(config.max_sessions));
        let starts = Arc::new(Semaphore::new(backend.concurrent_starts()));
        let metrics = Metrics::new(config.max_sessions, config.memory_limit);
        let inner = Arc::new(Inner {
            config,
            template: KnownTemplate::new(backend.clone()),
            backend,
            timing,
            metrics,
            registry: Mutex::default(),
            changes: Changes::default(),
            pool: Pool::default(),
            next: AtomicU64::new(0),
            permits,
            starts,
            tasks: TaskTracker::new(),
            shutdown: CancellationToken::new(),
            may_be_unclean: AtomicBool::default(),
        });
        Self { inner, caller: Principal::local(), only: None }
    }

    /// The same sessions, as another caller sees them.
    #[must_use]
    pub fn seen_by(&self, caller: Principal) -> Self {
        Self { inner: self.inner.clone(), caller, only: None }
    }

    /// The same for whoever may see this one session, and no later one of its name.
    #[must_use]
    pub fn only(&self, number: u64) -> Self {
        Self { only: Some(number), ..self.clone() }
    }

    /// Who sees them so.
    pub fn caller(&self) -> &Principal {
        &self.caller
    }

    /// The settings that the sessions are made with.
    pub fn config(&self) -> &Config {
        &self.inner.config
    }

    /// The backend that makes their sandboxes.
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.inner.backend
    }

    /// What new sandboxes hold, as it was told within the last ten seconds.
    pub async fn template(&self) -> Template {
        self.inner.template.get().await
    }

    /// What is counted of them.
    pub fn metrics(&self) -> &Metrics {
        &self.inner.metrics
    }

    /// Runs a program, in a new session if none is named or none has that name. Names that are minted
    /// here start none: their session has ended.
    pub async fn run(
        &self,
        id: Option<SessionId>,
        program: Program,
    ) -> (Opened, Result<RunReport>) {
        self.ask_or_create(id, |reply| Command::Run { program, reply }).await
    }

    /// Does something in a session.
    ///
    /// # Errors
    /// There is no such session, or the operation fails.
    pub async fn perform<O: Operation>(&self, id: &SessionId, operation: O) -> Result<O::Output> {
        self.named(id)?.ask(|reply| Command::operate(operation, reply)).await
    }

    /// Does something in a session, or in a new one as a program is run in one.
    pub async fn perform_or_create<O: Operation>(
        &self,
        id: Option<SessionId>,
        operation: O,
    ) -> (Opened, Result<O::Output>) {
        self.ask_or_create(id, |reply| Command::operate(operation, reply)).await
    }

    /// The files of a session as they were after its last run or upload, for its viewers: asking does
    /// not count as activity, and all viewers share one listing.
    ///
    /// # Errors
    /// There is no such session, or its sandbox does not list them.
    pub async fn cached_listing(&self, id: &SessionId) -> Result<Arc<Listing>> {
        self.named(id)?.ask(|reply| Command::ViewListing { reply }).await
    }

    /// Ends a session. Its sandbox is gone when this returns.
    ///
    /// # Errors
    /// There is no such session, or it died meanwhile.
    pub async fn close(&self, id: &SessionId) -> Result<()> {
        self.named(id)?.close().await
    }

    /// How many sessions there are, of all callers.
    pub fn count(&self) -> usize {
        self.registry().len()
    }

    /// The caller's sessions, by name.
    pub fn names(&self) -> Vec<SessionId> {
        let registry = self.registry();
        let mut names: Vec<_> = registry.of(&self.caller).map(|handle| handle.id.clone()).collect();
        drop(registry);
        names.sort_unstable();
        names
    }

    /// The same of all the caller's sessions, by name.
    pub fn looks(&self) -> Vec<Look> {
        self.names().iter().filter_map(|id| self.look(id)).collect()
    }

    /// What the caller's session of this name is and has done, without asking its task: that is no
    /// use of it.
    pub fn look(&self, id: &SessionId) -> Option<Look> {
        let Handle { number, since, history, .. } = self.find(id)?;
        let history = history.borrow().clone();
        Some(Look { id: id.clone(), number, since, history })
    }

    /// Changes whenever something happens in a session, whoever's, or one comes or goes.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.inner.changes.listen()
    }

    /// Waits until the server ends.
    pub async fn ending(&self) {
        self.inner.shutdown.cancelled().await;
    }

    /// Tells the caller's session of this name from others of that name, earlier and later.
    pub fn number(&self, id: &SessionId) -> Option<u64> {
        self.find(id).map(|handle| handle.number)
    }

    /// The session of this name and number as its holder sees it, and no other, whoever asks.
    pub(crate) fn held(&self, id: &SessionId, number: u64) -> Option<Self> {
        let holder = self.registry().holder(id, number)?.clone();
        Some(self.seen_by(holder).only(number))
    }

    /// The session that is named, or a new one; it is there when this returns.
    pub async fn ensure(&self, id: Option<SessionId>) -> (Opened, Result<()>) {
        self.ask_or_create(id, |reply| Command::Touch { reply }).await
    }

    /// Ends all sessions and waits until their sandboxes are gone. False if one may be left: the
    /// engine did not do it, or not in time.
    pub async fn shutdown(&self) -> bool {
        const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);
        self.inner.shutdown.cancel();
        self.inner.tasks.close();
        let ended = timeout(SHUTDOWN_TIMEOUT, self.inner.tasks.wait()).await.is_ok();
        ended && !self.inner.may_be_unclean.load(Ordering::Relaxed)
    }

    /// The caller's session of this name, or why it is not there.
    fn named(&self, id: &SessionId) -> Result<Handle> {
        self.find(id).ok_or_else(|| self.not_found(&self.registry(), id))
    }

    async fn ask_or_create<T>(
        &self,
        named: Option<SessionId>,
        command: impl FnOnce(Reply<T>) -> Command,
    ) -> (Opened, Result<T>) {
        let (reply, answer) = oneshot::channel();
        let mut command = command(reply);
        loop {
            let (opened, handle) = match self.open_session(named.as_ref()).await {
                Ok(opened) => opened,
                Err(error) => {
                    let id = named.unwrap_or_else(SessionId::mint);
                    return (Opened { id, is_new: false }, Err(error));
                }
            };
            match handle.send(command).await {
                Ok(()) => return (opened, received(answer).await),
                // It ended between the two. It has left the registry, so the next turn makes another.
                Err(unsent) => command = unsent,
            }
        }
    }

    /// The session that is named, or a new one. If there are as many as there may be, a sandbox in the
    /// pool makes room, or else a session that its caller has not used for long.
    async fn open_session(&self, named: Option<&SessionId>) -> Result<(Opened, Handle)> {
        let (mut given_up, mut asked) = (None, HashSet::new());
        loop {
            if named.is_none()
                && let Some(opened) = self.take_pooled().await
            {
                return Ok(opened);
            }
            let full = match self.find_or_create(named, &mut given_up) {
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

    /// A sandbox from the pool, if one is there and the caller may have it.
    async fn take_pooled(&self) -> Option<(Opened, Handle)> {
        while self.has_quota(&self.registry())
            && let Some(pooled) = self.inner.pool.take()
        {
            if pooled.is_well().await {
                let handle = pooled.handle.clone().asked_for_now();
                let mut registry = self.registry();
                if !self.has_quota(&registry) {
                    // Others came first. Whoever makes the session says so.
                    drop(registry);
                    self.inner.tasks.spawn(pooled.close());
                    return None;
                }
                registry.insert(&self.caller, handle.clone());
                drop(registry);
                self.inner.changes.tell();
                self.inner.pool.hand_over(handle.number);
                return Some((Opened { id: handle.id.clone(), is_new: true }, handle));
            }
            tracing::warn!(session_id = %pooled.handle.id, "pooled sandbox does not answer");
            self.inner.tasks.spawn(pooled.close());
        }
        None
    }

    /// The task of a session, with the permit that was given up for it if one was.
    fn find_or_create(
        &self,
        named: Option<&SessionId>,
        given_up: &mut Option<OwnedSemaphorePermit>,
    ) -> std::result::Result<(Opened, Handle), NotOpened> {
        let mut registry = self.registry();
        if let Some(id) = named {
            let there = registry.find(&self.caller, id);
            if let Some(handle) = there.filter(|handle| !handle.is_ended())
                && self.sees(handle)
            {
                return Ok((Opened { id: id.clone(), is_new: false }, handle.clone()));
            }
            if self.only.is_some() || id.is_minted() {
                return Err(NotOpened::Other(self.not_found(&registry, id)));
            }
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
        let id = named.cloned().unwrap_or_else(SessionId::mint);
        let handle = self.spawn(&id, permit, Birth::OnDemand);
        registry.insert(&self.caller, handle.clone());
        drop(registry);
        self.inner.changes.tell();
        Ok((Opened { id, is_new: true }, handle))
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
                    self.registry().note_evicted(&self.caller, &handle.id);
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
    fn start_pooled(&self) -> Option<Handle> {
        let permit = self.inner.permits.clone().try_acquire_owned().ok()?;
        Some(self.spawn(&SessionId::mint(), permit, Birth::InPool))
    }

    fn pool(&self) -> &Pool {
        &self.inner.pool
    }

    fn spawn(&self, id: &SessionId, permit: OwnedSemaphorePermit, birth: Birth) -> Handle {
        let config = &self.inner.config;
        let (journal, history) =
            Journal::new(self.inner.changes.clone(), self.inner.config.max_sessions);
        let number = self.inner.next.fetch_add(1, Ordering::Relaxed);
        let usage = Usage::default();
        let (handle, commands) = Handle::new(id, number, history, usage.clone());
        let spec = Spec::new(config, id);
        let metrics = &self.inner.metrics;
        let observers: [Box<dyn Observer>; 3] = [
            Box::new(metrics.clone()),
            Box::new(metrics.watch(birth, spec.limits.memory)),
            Box::new(journal),
        ];
        let setup = Setup {
            id: id.clone(),
            spec,
            idle: IdleLimits { hibernate: config.hibernate_after, ttl: config.session_ttl },
            birth,
            max_output: config.max_output,
            tracebacks: config.tracebacks,
            timing: self.inner.timing,
            preload: config.preload.clone(),
            backend: self.inner.backend.clone(),
            commands,
            observers: Observers::new(id, observers),
            reads: Arc::new(metrics.clone()),
            usage,
            starts: self.inner.starts.clone(),
            shutdown: self.inner.shutdown.clone(),
            lease: Lease::new(self.inner.clone(), number, permit),
        };
        self.inner.tasks.spawn(driver::drive(setup));
        handle
    }

    /// The caller's session of this name.
    fn find(&self, id: &SessionId) -> Option<Handle> {
        self.registry().find(&self.caller, id).filter(|handle| self.sees(handle)).cloned()
    }

    fn sees(&self, handle: &Handle) -> bool {
        self.only.is_none_or(|number| handle.number == number)
    }

    fn not_found(&self, registry: &Registry, id: &SessionId) -> Error {
        if registry.was_evicted(&self.caller, id) {
            Error::SessionEvicted(id.clone())
        } else if id.is_minted() {
            Error::SessionEnded { id: id.clone(), ttl: self.inner.config.session_ttl }
        } else {
            Error::SessionNotFound(id.clone())
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

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.inner.registry.lock()
    }
}

impl Lessor for Inner {
    fn name_released(&self, number: u64) {
        self.registry.lock().remove(number);
        self.changes.tell();
        self.pool.forget(number);
    }

    fn permit_freed(&self, number: u64) {
        self.pool.permit_freed(number);
    }

    fn sandbox_may_be_left(&self) {
        self.may_be_unclean.store(true, Ordering::Relaxed);
    }
}
