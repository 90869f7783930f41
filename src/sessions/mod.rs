//! The registry: finds and starts sessions, and ends all of them when the server ends.
//!
//! It knows names and counts. A session's own task handles what happens in it ([`session::driver`](crate::session)).
//!
//! - [`which`]: which session a call means. [`open`]: finds or starts it; [`turns`]: once for concurrent calls.
//! - [`adopt`]: takes over sessions of ended servers. [`homes`]: which of several servers has a caller's sessions.
//! - [`kept`]: sessions that the backend has saved on disk. [`archived`]: sessions in the archive, and their restore.
//! - [`create`]: starts a session with settings of its own. [`cancel`]: ends a run by its name.
//! - [`registry`]: live sessions by name and by workspace; [`gone`]: ended ones.
//! - [`pool`], [`keeper`]: sandboxes that wait for sessions. [`stateless`]: sessions that end with a call.

mod adopt;
mod archived;
mod cancel;
mod create;
mod gone;
mod homes;
pub mod keeper;
mod kept;
mod numbers;
mod open;
mod packages;
mod pool;
mod registry;
mod stateless;
mod turns;
mod which;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use jiff::Timestamp;
use model::{OwnSettings, Principal, SessionId, SessionKey};
use parking_lot::{Mutex, MutexGuard};
pub use protocol::message::{RuntimeName, Stream};
use tokio::{
    sync::{Semaphore, watch},
    time::{sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub(crate) use self::archived::ArchivedSession;
use self::{
    adopt::NotYet, homes::Callers, kept::KeptSessions, numbers::Numbers, pool::Pool,
    registry::Registry, turns::Turns, which::WorkspaceKey,
};
pub use self::{
    cancel::CancelOutcome,
    kept::Sleeper,
    packages::Installed,
    stateless::Stateless,
    which::{Opened, Which, Workspace},
};
use crate::{
    archive::Archive,
    audit::Audit,
    backend::{Abilities, Backend, KnownTemplate, Limits, Spec, Template},
    config::Config,
    error::Result,
    link::Timing,
    metrics::Metrics,
    packages::Packages,
    session::{
        History, Phase, RunReport, command::Command, events::EndReason, history::Changes,
        hold::Hold, lease::Lessor,
    },
};
pub use crate::{
    content::Content,
    progress::Progress,
    session::{
        command::Program,
        operations::{
            Inspect, Inspected, Install, List, Listing, Open, Operation, OutputPart, ReadOutput,
            Reset, Upload, Uploaded,
        },
        view::View,
    },
};

/// The sessions of this server as one caller sees them: other callers' sessions are hidden. Clones share the sessions.
#[derive(Debug, Clone)]
pub struct Sessions {
    inner: Arc<Inner>,
    caller: Principal,
    /// If set, only the session with this number is visible.
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
    turns: Turns<(Principal, WorkspaceKey)>,
    /// Callers that are shared with other servers; `None` on a single server.
    callers: Option<Callers>,
    kept_sessions: KeptSessions,
    /// How sandboxes outlive their streams and this server; `None` if they do not.
    hold: Option<Hold>,
    not_yet: NotYet,
    changes: Changes,
    archive: Option<Archive>,
    /// Packages that may be installed; `None` if installing is disabled or impossible.
    packages: Option<Packages>,
    audit: Option<Audit>,
    pool: Pool,
    numbers: Numbers,
    permits: Arc<Semaphore>,
    starts: Arc<Semaphore>,
    tasks: TaskTracker,
    shutdown: CancellationToken,
    /// The server is about to end.
    is_ending_soon: AtomicBool,
    /// Its clones count the requests that other servers are answering.
    passed_on: Arc<()>,
    /// Set if a sandbox may not have been removed.
    may_be_unclean: AtomicBool,
}

/// Interval at which the template is asked for, for readers that do not wait for it.
const TEMPLATE_INTERVAL: Duration = Duration::from_secs(5);

/// The state of a session, for its viewers.
#[derive(Debug, Clone)]
pub struct Look {
    /// Its name.
    pub id: SessionId,
    /// Distinguishes sessions of one name.
    pub number: u64,
    /// When a caller asked for it.
    pub since: Timestamp,
    /// When it expires if it is not used until then.
    pub expires: Timestamp,
    /// Its runs and uploads so far, and what it is doing now.
    pub history: History,
}

impl Sessions {
    /// An empty registry.
    pub fn new(config: Config, backend: Arc<dyn Backend>) -> Self {
        Self::with_timing(config, backend, Timing::default())
    }

    /// The same, with other deadlines on the links.
    pub fn with_timing(config: Config, backend: Arc<dyn Backend>, timing: Timing) -> Self {
        Self::with_archive(config, backend, timing, None)
    }

    /// The same, with an archive for sessions that end without being closed.
    pub fn with_archive(
        config: Config,
        backend: Arc<dyn Backend>,
        timing: Timing,
        archive: Option<Archive>,
    ) -> Self {
        let permits = Arc::new(Semaphore::new(config.max_sessions));
        let starts = Arc::new(Semaphore::new(backend.concurrent_starts()));
        let metrics = Metrics::new(config.max_sessions, config.memory_limit);
        let Abilities { shared, saved, .. } = backend.abilities();
        let is_shared = shared.is_some();
        let kept_sessions = saved.map(KeptSessions::noted).unwrap_or_default();
        let numbers = Numbers::new(config.server_key.is_some(), is_shared);
        let hold = adopt::hold(&config, &*backend);
        let secret = config.server_key.clone().filter(|_| is_shared);
        let callers = secret.map(Callers::new);
        let kind = config.packages_within().and_then(|_| backend.packages());
        let packages = kind.map(|kind| Packages::new(&config, kind));
        let inner = Arc::new(Inner {
            config,
            archive,
            packages,
            audit: None,
            numbers,
            template: KnownTemplate::new(backend.clone()),
            kept_sessions,
            hold,
            not_yet: NotYet::default(),
            backend,
            timing,
            metrics,
            registry: Mutex::default(),
            turns: Turns::default(),
            callers,
            changes: Changes::default(),
            pool: Pool::default(),
            permits,
            starts,
            tasks: TaskTracker::new(),
            shutdown: CancellationToken::new(),
            is_ending_soon: AtomicBool::default(),
            passed_on: Arc::default(),
            may_be_unclean: AtomicBool::default(),
        });
        Self { inner, caller: Principal::local(), only: None }
    }

    /// The same, with an audit file that records operations on them. Must be called before the first clone.
    #[must_use]
    pub fn audited(mut self, audit: Option<Audit>) -> Self {
        Arc::get_mut(&mut self.inner).expect("nobody else has them yet").audit = audit;
        self
    }

    /// The same sessions, as another caller sees them.
    #[must_use]
    pub fn seen_by(&self, caller: Principal) -> Self {
        Self { inner: self.inner.clone(), caller, only: None }
    }

    /// The same, restricted to the session with this number: later sessions of its name are hidden.
    #[must_use]
    pub fn only(&self, number: u64) -> Self {
        Self { only: Some(number), ..self.clone() }
    }

    /// The caller that sees them so.
    pub fn caller(&self) -> &Principal {
        &self.caller
    }

    /// The settings of the sessions.
    pub fn config(&self) -> &Config {
        &self.inner.config
    }

    /// The backend that starts their sandboxes.
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.inner.backend
    }

    /// The template of new sandboxes. The backend is asked for it at most every ten seconds.
    pub async fn template(&self) -> Template {
        self.inner.template.get().await
    }

    /// Metrics of the sessions.
    pub fn metrics(&self) -> &Metrics {
        &self.inner.metrics
    }

    /// The audit file, if auditing is enabled.
    pub fn audit(&self) -> Option<&Audit> {
        self.inner.audit.as_ref()
    }

    /// Keeps the template known to readers that do not wait for it. Runs forever.
    pub async fn keep_template_known(self) {
        loop {
            self.template().await;
            sleep(TEMPLATE_INTERVAL).await;
        }
    }

    /// The image of the caller's session of this name, if known, and the session's limits.
    pub(crate) fn made_with(&self, id: &SessionId) -> Option<(Option<Arc<str>>, Limits)> {
        let handle = self.find(id)?;
        let spec = Spec::new(self.config(), &handle.id).with_memory(handle.own.memory);
        Some((handle.image, spec.limits))
    }

    /// Runs a program in the session that the call means, or in a new one.
    pub async fn run(
        &self,
        which: impl Into<Which>,
        program: Program,
    ) -> (Opened, Result<RunReport>) {
        self.ask_or_create(which.into(), OwnSettings::default(), |reply| Command::Run {
            program,
            reply,
        })
        .await
    }

    /// Performs an operation in a session.
    ///
    /// # Errors
    /// If there is no such session, or the operation fails.
    pub async fn perform<O: Operation>(&self, id: &SessionId, operation: O) -> Result<O::Output> {
        self.woken(id).await?.ask(|reply| Command::operate(operation, reply)).await
    }

    /// Performs an operation in the session that the call means, or in a new one.
    pub async fn perform_or_create<O: Operation>(
        &self,
        which: impl Into<Which>,
        operation: O,
    ) -> (Opened, Result<O::Output>) {
        self.ask_or_create(which.into(), OwnSettings::default(), |reply| {
            Command::operate(operation, reply)
        })
        .await
    }

    /// A session as it was after its last run or upload, for its viewers: asking does not count as activity, and
    /// all viewers share one view.
    ///
    /// # Errors
    /// If there is no such session, or its sandbox does not answer.
    pub async fn view(&self, id: &SessionId) -> Result<Arc<View>> {
        self.woken(id).await?.ask(|reply| Command::View { reply }).await
    }

    /// Ends a session. Its sandbox has been removed when this returns.
    ///
    /// # Errors
    /// If there is no such session, or it died meanwhile.
    pub async fn close(&self, id: &SessionId) -> Result<()> {
        let found = self.find(id);
        let may_be_archived = found.as_ref().is_none_or(|it| it.is_kept || it.archived.may_be);
        let closed = match found {
            Some(handle) => handle.close().await,
            None if self.only.is_none() && self.has_kept(id) => {
                if let Some(saved) = self.saved() {
                    saved.forget(&SessionKey::of(&self.caller, id));
                }
                self.inner.changes.tell();
                Ok(())
            }
            None => Err(self.gone(id)),
        };
        // A session that has just ended by itself may be in the archive as well.
        if (may_be_archived || closed.is_err()) && Box::pin(self.forget_archived(id)).await? {
            self.inner.changes.tell();
            return Ok(());
        }
        closed
    }

    /// Ends the caller's session of this workspace, if it has one. Its sandbox has been removed when this returns.
    pub async fn close_workspace(&self, workspace: &Workspace) {
        let handle = {
            let registry = self.registry();
            let found = self.find_workspace(&registry, workspace);
            found.map(|(_, handle)| handle.clone())
        };
        if let Some(handle) = handle {
            // Fails if the session has ended by itself.
            let _ = handle.close().await;
        }
    }

    /// The caller's session of this workspace, without starting one. A saved session is woken by the first operation on
    /// it.
    pub fn of_workspace(&self, workspace: &Workspace) -> Option<Opened> {
        let there = self.find_workspace(&self.registry(), workspace).map(|(opened, _)| opened);
        there.or_else(|| {
            let id = self.kept_for(workspace)?;
            Some(Opened { id, is_new: false, lost: None })
        })
    }

    /// Records that the caller has the result of a call for this workspace, which says whether its session was new.
    /// Until then every result says so.
    pub fn told(&self, workspace: &Workspace) {
        self.registry().told(&self.caller, workspace);
    }

    /// The number of sessions of all callers.
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

    /// The states of all the caller's sessions, by name.
    pub fn looks(&self) -> Vec<Look> {
        self.names().iter().filter_map(|id| self.look(id)).collect()
    }

    /// The state of the caller's session of this name. Does not ask the session's task, so it does not count as use.
    pub fn look(&self, id: &SessionId) -> Option<Look> {
        let handle = self.find(id)?;
        let (expires, history) = (handle.expires(), handle.history.borrow().clone());
        let number = self.public(handle.number);
        Some(Look { id: id.clone(), number, since: handle.since, expires, history })
    }

    /// The same. Wakes the session first if it is saved.
    ///
    /// # Errors
    /// If there is no such session, or it cannot be woken.
    pub async fn look_awake(&self, id: &SessionId) -> Result<Look> {
        self.woken(id).await?;
        self.look(id).ok_or_else(|| self.gone(id))
    }

    /// Changes whenever something happens in a session of any caller, or one starts or ends.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.inner.changes.listen()
    }

    /// Announces that the server is about to end, so that no new clients are sent here.
    pub fn announce_end(&self) {
        self.inner.is_ending_soon.store(true, Ordering::Relaxed);
    }

    /// Whether the server is about to end.
    pub fn is_ending_soon(&self) -> bool {
        self.inner.is_ending_soon.load(Ordering::Relaxed)
    }

    /// Counts a request that another server answers, until the result is dropped.
    pub(crate) fn passing_on(&self) -> Arc<()> {
        self.inner.passed_on.clone()
    }

    /// Whether a run is in progress, or another server is answering a request that arrived here.
    pub fn are_busy(&self) -> bool {
        let registry = self.registry();
        let runs = registry.all().any(|handle| handle.history.borrow().phase() == Phase::Running);
        runs || Arc::strong_count(&self.inner.passed_on) > 1
    }

    /// Waits until the server ends.
    pub async fn ending(&self) {
        self.inner.shutdown.cancelled().await;
    }

    /// The number of the caller's session of this name, which distinguishes it from earlier and later ones.
    pub fn number(&self, id: &SessionId) -> Option<u64> {
        self.find(id).map(|handle| self.public(handle.number))
    }

    /// The number of a session of the caller as its URLs have it. If servers share callers, it begins with bits of the
    /// caller's key, by which they find its home.
    fn public(&self, number: u64) -> u64 {
        match self.caller_key(&self.caller) {
            Some(key) => numbers::of_caller(number, key.prefix()),
            None => number,
        }
    }

    /// Whether the caller's session of this name ends with the call that it was started for.
    pub fn is_stateless(&self, id: &SessionId) -> bool {
        self.find(id).is_some_and(|handle| handle.is_stateless)
    }

    /// The session of this name and number as its holder sees it, and no other, for any caller.
    pub(crate) fn held(&self, id: &SessionId, number: u64) -> Option<Self> {
        let is_number = |holder: &Principal, it| self.seen_by(holder.clone()).public(it) == number;
        let holder = self.registry().holder(id, is_number)?.clone();
        Some(self.seen_by(holder).only(number))
    }

    /// Opens the session that the call means, or a new one. It is ready when this returns.
    pub async fn ensure(&self, which: impl Into<Which>) -> (Opened, Result<()>) {
        self.ask_or_create(which.into(), OwnSettings::default(), |reply| Command::Touch { reply })
            .await
    }

    /// Ends all sessions and waits until their sandboxes are removed. Returns false if one may remain, because the
    /// engine failed or did not do it in time.
    pub async fn shutdown(&self) -> bool {
        self.inner.shutdown.cancel();
        self.inner.tasks.close();
        let ended =
            timeout(self.inner.config.shutdown_timeout, self.inner.tasks.wait()).await.is_ok();
        ended && !self.inner.may_be_unclean.load(Ordering::Relaxed)
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.inner.registry.lock()
    }
}

impl Lessor for Inner {
    fn name_released(&self, number: u64, why: Option<EndReason>) {
        self.registry.lock().remove(number, why);
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
