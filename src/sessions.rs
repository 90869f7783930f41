//! The registry: finds and makes sessions, and ends them all when the server ends.
//!
//! It knows names and counts. What happens in a session is its task's business
//! ([`session::driver`](crate::session)).

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
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
    backend::{Backend, Spec},
    config::Config,
    error::{Error, Result},
    figures::{Figures, Full},
    link::Timing,
    owner::Owner,
    pool::Pool,
    session::{
        FileReader, History, RunReport, SessionId,
        command::{Command, Wanted},
        driver::{self, Forget, Place, QUEUE, Setup},
        history::{Changes, Journal},
        state::Patience,
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
    owner: Owner,
    timing: Timing,
    figures: Figures,
    live: Mutex<Live>,
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

type Live = HashMap<SessionId, Handle>;

/// Reaches a session's task.
#[derive(Debug, Clone)]
pub(crate) struct Handle {
    /// Tells two sessions of one name apart.
    pub(crate) number: u64,
    pub(crate) commands: mpsc::Sender<Command>,
    /// What it has done.
    pub(crate) history: watch::Receiver<History>,
    /// When somebody asked for it.
    pub(crate) since: Timestamp,
    /// Whose it is; while it waits in the pool, nobody's that matters.
    pub(crate) principal: Principal,
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
        // More at once only take the processors from each other: two cores start ten a second,
        // however many are asked for.
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let figures = Figures::new(config.max_sessions, config.memory_limit);
        let inner = Arc::new(Inner {
            config,
            backend,
            owner: Owner::current(),
            timing,
            figures,
            live: Mutex::default(),
            changes: Changes::default(),
            pool: Pool::default(),
            next: AtomicU64::new(0),
            places,
            starts: Arc::new(Semaphore::new(cpus)),
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

    /// Who their sandboxes belong to.
    pub fn owner(&self) -> &Owner {
        &self.inner.owner
    }

    /// The backend that makes their sandboxes.
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.inner.backend
    }

    /// What is counted of them.
    pub fn figures(&self) -> &Figures {
        &self.inner.figures
    }

    /// Runs a program, in a new session if none is named or none has that name.
    pub async fn run(
        &self,
        id: Option<SessionId>,
        program: Program,
    ) -> (SessionId, Result<RunReport>) {
        let id = self.named_or_new(id).await;
        let report = self.ask_or_create(&id, |reply| Command::Run { program, reply }).await;
        (id, report)
    }

    /// Writes a file, in a new session if none is named or none has that name.
    pub async fn upload(
        &self,
        id: Option<SessionId>,
        path: DataPath,
        content: Content,
        overwrite: bool,
    ) -> (SessionId, Result<Uploaded>) {
        let id = self.named_or_new(id).await;
        let command = |reply| Command::Upload { path, content, overwrite, reply };
        let done = self.ask_or_create(&id, command).await;
        (id, done)
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
        self.live().len()
    }

    /// The caller's sessions, by name.
    pub fn names(&self) -> Vec<SessionId> {
        let mut names: Vec<_> = self.own(&self.live()).cloned().collect();
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
        let live = self.live();
        let handle = live.get(id).filter(|handle| handle.number == number)?;
        Some(self.seen_by(handle.principal.clone()).only(number))
    }

    /// The session that is named, or a new one; it is there when this returns.
    pub async fn ensure(&self, id: Option<SessionId>) -> (SessionId, Result<()>) {
        let id = self.named_or_new(id).await;
        let done = self.ask_or_create(&id, |reply| Command::Touch { reply }).await;
        (id, done)
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
        let not_found = || Error::SessionNotFound(id.clone());
        let handle = self.find(id).ok_or_else(not_found)?;
        let (reply, answer) = oneshot::channel();
        handle.commands.send(command(reply)).await.map_err(|_| not_found())?;
        self.wait(answer).await
    }

    async fn ask_or_create<T>(
        &self,
        id: &SessionId,
        command: impl FnOnce(oneshot::Sender<Result<T>>) -> Command,
    ) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        let mut command = command(reply);
        loop {
            let handle = self.find_or_create(id).await?;
            match handle.commands.send(command).await {
                Ok(()) => return self.wait(answer).await,
                // It ended between the two. It has left the registry, so the next turn makes another.
                Err(mpsc::error::SendError(unsent)) => command = unsent,
            }
        }
    }

    async fn wait<T>(&self, answer: oneshot::Receiver<Result<T>>) -> Result<T> {
        answer.await.unwrap_or_else(|_| Err(Error::internal(&"a session's task ended early")))
    }

    /// The session that is named, or a new one: of a sandbox from the pool if one is there.
    async fn named_or_new(&self, id: Option<SessionId>) -> SessionId {
        if let Some(id) = id {
            return id;
        }
        while self.has_quota(&self.live())
            && let Some(pooled) = self.inner.pool.take()
        {
            if pooled.is_well().await {
                let number = pooled.handle.number;
                let principal = self.caller.clone();
                let since = Timestamp::now();
                let handle = Handle { since, principal, ..pooled.handle.clone() };
                let mut live = self.live();
                if !self.has_quota(&live) {
                    // Others came first. Whoever makes the session says so.
                    drop(live);
                    self.inner.tasks.spawn(pooled.close());
                    break;
                }
                live.insert(pooled.id.clone(), handle);
                self.inner.changes.tell();
                self.inner.pool.hand_over(number);
                return pooled.id;
            }
            tracing::warn!(session_id = %pooled.id, "pooled sandbox does not answer");
            self.inner.tasks.spawn(pooled.close());
        }
        SessionId::mint()
    }

    /// The task of a session. If there are as many as there may be, one in the pool makes room.
    async fn find_or_create(&self, id: &SessionId) -> Result<Handle> {
        loop {
            match self.try_find_or_create(id) {
                Err(Error::MaxSessions(_)) if self.inner.pool.make_room().await => {}
                Err(error) => {
                    match error {
                        Error::MaxSessions(_) => self.inner.figures.refused(Full::Server),
                        Error::TooManySessions(_) => self.inner.figures.refused(Full::Client),
                        _ => {}
                    }
                    return Err(error);
                }
                found => return found,
            }
        }
    }

    fn try_find_or_create(&self, id: &SessionId) -> Result<Handle> {
        let mut live = self.live();
        if let Some(handle) = live.get(id).filter(|handle| !handle.commands.is_closed()) {
            if !self.sees(handle) {
                return Err(Error::SessionNotFound(id.clone()));
            }
            return Ok(handle.clone());
        }
        if self.only.is_some() {
            return Err(Error::SessionNotFound(id.clone()));
        }
        if self.inner.shutdown.is_cancelled() {
            return Err(Error::SandboxUnavailable("The server is shutting down.".into()));
        }
        if !self.has_quota(&live) {
            return Err(self.over_quota());
        }
        let place = self.inner.places.clone().try_acquire_owned();
        let place = place.map_err(|_| Error::MaxSessions(self.inner.config.max_sessions))?;
        let handle = self.spawn(id, place, false);
        live.insert(id.clone(), handle.clone());
        self.inner.changes.tell();
        Ok(handle)
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
        let setup = Setup {
            id: id.clone(),
            spec: Spec::new(config, &self.inner.owner, id),
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
            starts: self.inner.starts.clone(),
            place: Place(Some(place), {
                let sessions = self.clone();
                Box::new(move || sessions.inner.pool.place_freed(number))
            }),
            shutdown: self.inner.shutdown.clone(),
            unclean: self.inner.unclean.clone(),
            forget: Forget(Some(Box::new({
                let (sessions, id) = (self.clone(), id.clone());
                move || sessions.forget(&id, number)
            }))),
        };
        self.inner.tasks.spawn(driver::drive(setup));
        Handle {
            number,
            commands,
            history,
            since: Timestamp::now(),
            principal: self.caller.clone(),
        }
    }

    /// The caller's session of this name.
    fn find(&self, id: &SessionId) -> Option<Handle> {
        self.live().get(id).filter(|handle| self.sees(handle)).cloned()
    }

    fn sees(&self, handle: &Handle) -> bool {
        handle.principal == self.caller && self.only.is_none_or(|number| handle.number == number)
    }

    /// One caller with all there are is told of the server's limit.
    fn over_quota(&self) -> Error {
        let config = &self.inner.config;
        if config.max_sessions_per_client < config.max_sessions {
            Error::TooManySessions(config.max_sessions_per_client)
        } else {
            Error::MaxSessions(config.max_sessions)
        }
    }

    fn own<'a>(&self, live: &'a Live) -> impl Iterator<Item = &'a SessionId> {
        let own = live.iter().filter(|(_, handle)| handle.principal == self.caller);
        own.map(|(id, _)| id)
    }

    /// Whether the caller may have one more session.
    fn has_quota(&self, live: &Live) -> bool {
        self.own(live).count() < self.inner.config.max_sessions_per_client
    }

    fn forget(&self, id: &SessionId, number: u64) {
        let mut live = self.live();
        if live.get(id).is_some_and(|handle| handle.number == number) {
            live.remove(id);
        }
        drop(live);
        self.inner.changes.tell();
        self.inner.pool.forget(number);
    }

    fn live(&self) -> MutexGuard<'_, Live> {
        self.inner.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
