//! The registry: finds and makes sessions, and ends them all when the server ends.
//!
//! It knows names and counts. What happens in a session is its task's business
//! ([`session::driver`](crate::session)).

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use jiff::Timestamp;
pub use protocol::message::Stream;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch},
    time::timeout,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use crate::session::{
    command::{Listing, OutputPart, Program, Progress},
    upload::{Content, Uploaded},
};
use crate::{
    artifact::DataPath,
    auth::Principal,
    backend::{Backend, Spec, Template, template::KnownTemplate},
    config::Config,
    error::{Error, OwnSession, Result},
    figures::{Figures, Full},
    link::Timing,
    pool::Pool,
    registry::{Handle, Registry},
    session::{
        Doing, FileReader, History, RunReport, SessionId,
        command::{Command, Wanted},
        driver::{self, Forget, Place, QUEUE, Setup},
        history::{Changes, Journal},
        state::Patience,
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
    figures: Figures,
    registry: Mutex<Registry>,
    changes: Changes,
    pool: Pool,
    next: AtomicU64,
    places: Arc<Semaphore>,
    starts: Arc<Semaphore>,
    tasks: TaskTracker,
    shutdown: CancellationToken,
    /// A sandbox may have been left behind.
    unclean: Arc<AtomicBool>,
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
enum Refused {
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
        let places = Arc::new(Semaphore::new(config.max_sessions));
        let starts = Arc::new(Semaphore::new(backend.concurrent_starts()));
        let figures = Figures::new(config.max_sessions, config.memory_limit);
        let inner = Arc::new(Inner {
            config,
            template: KnownTemplate::new(backend.clone()),
            backend,
            timing,
            figures,
            registry: Mutex::default(),
            changes: Changes::default(),
            pool: Pool::default(),
            next: AtomicU64::new(0),
            places,
            starts,
            tasks: TaskTracker::new(),
            shutdown: CancellationToken::new(),
            unclean: Arc::default(),
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
    pub fn figures(&self) -> &Figures {
        &self.inner.figures
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

    /// Writes a file, in a new session as a program is run in one.
    pub async fn upload(
        &self,
        id: Option<SessionId>,
        path: DataPath,
        content: Content,
        overwrite: bool,
    ) -> (Opened, Result<Uploaded>) {
        let command = |reply| Command::Upload { path, content, overwrite, reply };
        self.ask_or_create(id, command).await
    }

    /// Reads on in an output from which something was cut: at most `len` bytes from `offset`, and at
    /// most a mebibyte. The run is named as in its [`RunReport`].
    pub async fn read_output(
        &self,
        id: &SessionId,
        run_id: &str,
        stream: Stream,
        offset: Option<u64>,
        len: usize,
    ) -> Result<OutputPart> {
        let wanted = Wanted { run_id: run_id.to_owned(), stream, offset, len };
        self.ask(id, |reply| Command::ReadOutput { wanted, reply }).await
    }

    /// Lists the files of a session.
    pub async fn list(&self, id: &SessionId) -> Result<Listing> {
        self.ask(id, |reply| Command::List { reply }).await
    }

    /// The files of a session as they were after its last run or upload: for whoever looks, as that
    /// is no use of it and all who look share one listing.
    pub async fn glance(&self, id: &SessionId) -> Result<Arc<Listing>> {
        self.ask(id, |reply| Command::Look { reply }).await
    }

    /// Opens a file of a session for reading.
    pub async fn open(&self, id: &SessionId, path: DataPath) -> Result<FileReader> {
        self.ask(id, |reply| Command::Open { path, reply }).await
    }

    /// Ends a session. Its sandbox is gone when this returns.
    pub async fn close(&self, id: &SessionId) -> Result<()> {
        self.ask(id, |reply| Command::Close { reply }).await
    }

    /// How many sessions there are, of all callers.
    pub fn count(&self) -> usize {
        self.registry().len()
    }

    /// The caller's sessions, by name.
    pub fn names(&self) -> Vec<SessionId> {
        let registry = self.registry();
        let mut names: Vec<_> = registry.of(&self.caller).map(|(id, _)| id.clone()).collect();
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
        const PATIENCE: Duration = Duration::from_secs(10);
        self.inner.shutdown.cancel();
        self.inner.tasks.close();
        let ended = timeout(PATIENCE, self.inner.tasks.wait()).await.is_ok();
        ended && !self.inner.unclean.load(Ordering::Relaxed)
    }

    async fn ask<T>(
        &self,
        id: &SessionId,
        command: impl FnOnce(oneshot::Sender<Result<T>>) -> Command,
    ) -> Result<T> {
        let not_found = || self.not_found(&self.registry(), id);
        let handle = self.find(id).ok_or_else(not_found)?;
        let (reply, answer) = oneshot::channel();
        handle.commands.send(command(reply)).await.map_err(|_| not_found())?;
        self.wait(answer).await
    }

    async fn ask_or_create<T>(
        &self,
        named: Option<SessionId>,
        command: impl FnOnce(oneshot::Sender<Result<T>>) -> Command,
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
            match handle.commands.send(command).await {
                Ok(()) => return (opened, self.wait(answer).await),
                // It ended between the two. It has left the registry, so the next turn makes another.
                Err(mpsc::error::SendError(unsent)) => command = unsent,
            }
        }
    }

    async fn wait<T>(&self, answer: oneshot::Receiver<Result<T>>) -> Result<T> {
        answer.await.unwrap_or_else(|_| Err(Error::internal(&"a session's task ended early")))
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
                Err(Refused::Other(error)) => return Err(error),
                Err(Refused::Full(full)) => full,
            };
            if matches!(full, Full::Server) && self.inner.pool.make_room().await {
                continue;
            }
            if !self.evict(&mut asked, &mut given_up).await {
                self.inner.figures.refused(full);
                return Err(self.no_place(full));
            }
        }
    }

    /// A sandbox from the pool, if one is there and the caller may have it.
    async fn take_pooled(&self) -> Option<(Opened, Handle)> {
        while self.has_quota(&self.registry())
            && let Some(pooled) = self.inner.pool.take()
        {
            if pooled.is_well().await {
                let handle = Handle { since: Timestamp::now(), ..pooled.handle.clone() };
                let mut registry = self.registry();
                if !self.has_quota(&registry) {
                    // Others came first. Whoever makes the session says so.
                    drop(registry);
                    self.inner.tasks.spawn(pooled.close());
                    return None;
                }
                registry.insert(&self.caller, &pooled.id, handle.clone());
                drop(registry);
                self.inner.changes.tell();
                self.inner.pool.hand_over(handle.number);
                return Some((Opened { id: pooled.id, is_new: true }, handle));
            }
            tracing::warn!(session_id = %pooled.id, "pooled sandbox does not answer");
            self.inner.tasks.spawn(pooled.close());
        }
        None
    }

    /// The task of a session, in the place that was given up for it if one was.
    fn find_or_create(
        &self,
        named: Option<&SessionId>,
        given_up: &mut Option<OwnedSemaphorePermit>,
    ) -> std::result::Result<(Opened, Handle), Refused> {
        let mut registry = self.registry();
        if let Some(id) = named {
            let there = registry.find(&self.caller, id);
            if let Some(handle) = there.filter(|handle| !handle.commands.is_closed())
                && self.sees(handle)
            {
                return Ok((Opened { id: id.clone(), is_new: false }, handle.clone()));
            }
            if self.only.is_some() || id.is_minted() {
                return Err(Refused::Other(self.not_found(&registry, id)));
            }
        }
        if self.inner.shutdown.is_cancelled() {
            let why = "The server is shutting down.";
            return Err(Refused::Other(Error::SandboxUnavailable(why.into())));
        }
        let config = &self.inner.config;
        if !self.has_quota(&registry) {
            // One caller with all there are is told of the server's limit.
            let is_own = config.max_sessions_per_client < config.max_sessions;
            return Err(Refused::Full(if is_own { Full::Client } else { Full::Server }));
        }
        let place = given_up.take().or_else(|| self.inner.places.clone().try_acquire_owned().ok());
        let place = place.ok_or(Refused::Full(Full::Server))?;
        let id = named.cloned().unwrap_or_else(SessionId::mint);
        let handle = self.spawn(&id, place, false);
        registry.insert(&self.caller, &id, handle.clone());
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
            let Some((id, handle)) = longest else { return false };
            asked.insert(handle.number);
            let (reply, answer) = oneshot::channel();
            let _ = handle.commands.send(Command::Evict { idle, reply }).await;
            match answer.await {
                Ok(Ok(Some(place))) => {
                    self.registry().note_evicted(&self.caller, &id);
                    *given_up = Some(place);
                    return true;
                }
                // It is in use now.
                Ok(Ok(None)) => {}
                // It has ended by itself, and its place may be free.
                _ => return true,
            }
        }
    }

    /// Starts a sandbox for the pool, if there is a place for it.
    pub(crate) fn start_pooled(&self) -> Option<(SessionId, Handle)> {
        let place = self.inner.places.clone().try_acquire_owned().ok()?;
        let id = SessionId::mint();
        let handle = self.spawn(&id, place, true);
        Some((id, handle))
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.inner.pool
    }

    fn spawn(&self, id: &SessionId, place: OwnedSemaphorePermit, pooled: bool) -> Handle {
        let config = &self.inner.config;
        let (commands, receiver) = mpsc::channel(QUEUE);
        let (journal, history) = Journal::new(self.inner.changes.clone());
        let number = self.inner.next.fetch_add(1, Ordering::Relaxed);
        let usage = Usage::default();
        let setup = Setup {
            id: id.clone(),
            spec: Spec::new(config, id),
            patience: Patience { rest: config.hibernate_after, ttl: config.session_ttl },
            pooled,
            figures: self.inner.figures.clone(),
            watched: self.inner.figures.watch(pooled),
            max_output: config.max_output,
            timing: self.inner.timing,
            preload: config.preload.clone(),
            backend: self.inner.backend.clone(),
            commands: receiver,
            journal,
            usage: usage.clone(),
            starts: self.inner.starts.clone(),
            place: Place(Some(place), {
                let sessions = self.clone();
                Box::new(move || sessions.inner.pool.place_freed(number))
            }),
            shutdown: self.inner.shutdown.clone(),
            unclean: self.inner.unclean.clone(),
            forget: Forget(Some(Box::new({
                let sessions = self.clone();
                move || sessions.forget(number)
            }))),
        };
        self.inner.tasks.spawn(driver::drive(setup));
        Handle { number, commands, history, usage, since: Timestamp::now() }
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
        } else {
            Error::SessionNotFound(id.clone())
        }
    }

    fn no_place(&self, full: Full) -> Error {
        let (config, now) = (&self.inner.config, Instant::now());
        let registry = self.registry();
        let all = registry.of(&self.caller).map(|(id, handle)| {
            let idle = handle.usage.idle_for(now);
            let state = match (handle.history.borrow().doing(), idle) {
                (Doing::Idle, None) => "in_use",
                (doing, _) => doing.as_str(),
            };
            OwnSession { id: id.clone(), state, idle: idle.unwrap_or_default() }
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

    fn forget(&self, number: u64) {
        self.registry().remove(number);
        self.inner.changes.tell();
        self.inner.pool.forget(number);
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.inner.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
