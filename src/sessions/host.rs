//! The sessions of all callers, and what they share.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use backend::{Abilities, Backend, CallerKey, KnownTemplate, Template};
use config::Config;
use link::Timing;
use model::{Dataset, Principal, SessionKey, WorkspaceId, package::Ecosystem};
use parking_lot::{Mutex, MutexGuard};
use tokio::{
    sync::{Semaphore, watch},
    time::{sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    adopt::{self, NotYet},
    homes::Callers,
    numbers::{self, Numbers},
    pool::Pool,
    registry::Registry,
    saved::SavedBefore,
    turns::Turns,
    unbegun::AllUnbegun,
};
use crate::{
    archive::Archive,
    audit::Audit,
    calls::Calls,
    error::{Error, Result},
    marks::{Mark, Marks},
    metrics::Metrics,
    packages::{Packages, disabled, not_with_this_engine},
    permissions::Permissions,
    session::{
        Phase, events::EndReason, history::Changes, hold::HoldSettings, label::Label, lease::Lessor,
    },
};

/// Interval at which the template is asked for, for readers that do not wait for it.
const TEMPLATE_INTERVAL: Duration = Duration::from_secs(5);

/// Longest time that a call waits for the end of the last session of its name.
const ENDING_TIMEOUT: Duration = Duration::from_secs(30);

/// Optional parts of a server that its sessions use.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The deadlines on the links to sandboxes.
    pub timing: Timing,
    /// The archive for sessions that end without being closed.
    pub archive: Option<Archive>,
    /// The audit file that records operations on sessions.
    pub audit: Option<Audit>,
}

/// The sessions of all callers, and what they share.
pub struct Host {
    pub(super) config: Arc<Config>,
    pub(super) permissions: Permissions,
    pub(super) backend: Arc<dyn Backend>,
    pub(super) template: Arc<KnownTemplate>,
    pub(super) timing: Timing,
    pub(super) metrics: Metrics,
    registry: Mutex<Registry>,
    /// Workspaces for which a session is being opened.
    pub(super) turns: Turns<(Principal, WorkspaceId)>,
    pub(super) unbegun: AllUnbegun,
    /// Sessions that end: their names are free, but what they have saved is not removed or archived yet.
    pub(super) endings: Marks<SessionKey>,
    /// Callers that are shared with other servers; `None` on a single server.
    pub(super) callers: Option<Callers>,
    pub(super) saved_before: SavedBefore,
    /// How sandboxes outlive their streams and this server; `None` if they do not.
    pub(super) hold: Option<HoldSettings>,
    pub(super) not_yet: NotYet,
    pub(super) changes: Changes,
    pub(super) archive: Option<Archive>,
    /// Calls out of sandboxes; `None` if there are no upstreams.
    pub(super) calls: Option<Arc<Calls>>,
    /// Packages that may be installed; `None` if installing is disabled or impossible.
    packages: Option<Packages>,
    audit: Option<Audit>,
    pub(super) pool: Pool,
    pub(super) numbers: Numbers,
    pub(super) permits: Arc<Semaphore>,
    pub(super) starts: Arc<Semaphore>,
    pub(super) tasks: TaskTracker,
    pub(super) shutdown: CancellationToken,
    is_ending_soon: AtomicBool,
    /// Each clone counts a request that another server is answering.
    passed_on: Arc<()>,
    /// Set if a sandbox may not have been removed.
    may_be_unclean: AtomicBool,
}

impl Host {
    pub(super) fn new(config: Config, backend: Arc<dyn Backend>, options: Options) -> Self {
        let Options { timing, archive, audit } = options;
        let config = Arc::new(config);
        let Abilities { shared, saved, .. } = backend.abilities();
        let is_shared = shared.is_some();
        let secret = config.server_key.clone().filter(|_| is_shared);
        let metrics = Metrics::new(config.max_sessions, config.memory_limit);
        let kind = config.packages_within().and_then(|_| backend.packages());
        let metrics = if config.metrics_callers { metrics.by_caller() } else { metrics };
        Self {
            calls: Calls::new(&config, audit.clone()),
            saved_before: saved.map(|it| SavedBefore::read(it, &config)).unwrap_or_default(),
            hold: adopt::hold(&config, &*backend),
            callers: secret.map(Callers::new),
            numbers: Numbers::new(config.server_key.is_some(), is_shared),
            packages: kind.map(|kind| Packages::new(&config, kind)),
            metrics,
            permits: Arc::new(Semaphore::new(config.max_sessions)),
            starts: Arc::new(Semaphore::new(backend.concurrent_starts())),
            template: Arc::new(KnownTemplate::new(backend.clone())),
            permissions: Permissions::new(config.clone()),
            config,
            backend,
            timing,
            archive,
            audit,
            registry: Mutex::default(),
            turns: Turns::default(),
            unbegun: AllUnbegun::default(),
            endings: Marks::default(),
            not_yet: NotYet::default(),
            changes: Changes::default(),
            pool: Pool::default(),
            tasks: TaskTracker::new(),
            shutdown: CancellationToken::new(),
            is_ending_soon: AtomicBool::default(),
            passed_on: Arc::default(),
            may_be_unclean: AtomicBool::default(),
        }
    }

    /// The backend that starts their sandboxes.
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// The template of new sandboxes. The backend is asked for it at most every ten seconds.
    pub(crate) async fn template(&self) -> Template {
        self.template.get().await
    }

    /// The permissions of callers.
    pub(crate) fn permissions(&self) -> &Permissions {
        &self.permissions
    }

    /// Makes folders of the client datasets of its sessions. Returns whether they are others than before.
    pub(crate) fn set_roots(&self, roots: Vec<Arc<Dataset>>) -> bool {
        let is_news = self.permissions.set_roots(roots);
        if is_news {
            // Pooled sandboxes have other datasets.
            self.pool.changed.notify_one();
        }
        is_news
    }

    /// Keeps the template known to readers that do not wait for it. Runs forever.
    pub(super) async fn keep_template_known(&self) {
        loop {
            self.template().await;
            sleep(TEMPLATE_INTERVAL).await;
        }
    }

    /// Metrics of the sessions.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// The caller in metrics; `None` if they do not tell callers apart.
    pub(crate) fn label(&self, caller: &Principal) -> Option<Label> {
        self.metrics.label(caller.name(), self.permissions.is_listed(caller))
    }

    /// The audit file, if auditing is enabled.
    pub fn audit(&self) -> Option<&Audit> {
        self.audit.as_ref()
    }

    /// The ecosystems from which packages can be installed.
    pub(super) fn ecosystems(&self) -> &'static [Ecosystem] {
        self.packages.as_ref().map_or(&[], Packages::ecosystems)
    }

    /// The packages of this ecosystem.
    ///
    /// # Errors
    /// If packages are disabled, or not supported by the engine.
    pub(super) fn packages(&self, ecosystem: Ecosystem) -> Result<&Packages> {
        let takes = |it: &&Packages| it.ecosystems().contains(&ecosystem);
        let none = || match self.config.packages_within() {
            Some(_) => not_with_this_engine(ecosystem),
            None => disabled(),
        };
        Ok(self.packages.as_ref().filter(takes).ok_or_else(none)?)
    }

    /// The number of sessions of all callers.
    pub fn count(&self) -> usize {
        self.registry().len()
    }

    /// Changes with each event of a session of any caller, and when a session starts or ends.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changes.listen()
    }

    /// Announces that the server is about to end, so that no new clients are sent here.
    pub fn announce_end(&self) {
        self.is_ending_soon.store(true, Ordering::Relaxed);
    }

    /// Whether the server is about to end.
    pub fn is_ending_soon(&self) -> bool {
        self.is_ending_soon.load(Ordering::Relaxed)
    }

    /// Counts a request that another server answers, until the result is dropped.
    pub(crate) fn passing_on(&self) -> Arc<()> {
        self.passed_on.clone()
    }

    /// Whether a run is in progress, or another server is answering a request that arrived here.
    pub fn is_busy(&self) -> bool {
        let registry = self.registry();
        let runs = registry.all().any(|handle| handle.history.borrow().phase() == Phase::Running);
        runs || Arc::strong_count(&self.passed_on) > 1
    }

    /// Carries out work that the end of the server waits for.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(work);
    }

    /// Waits until the server ends.
    pub async fn ending(&self) {
        self.shutdown.cancelled().await;
    }

    /// Ends all sessions and waits until their sandboxes are removed. Returns false if one may remain, because the
    /// engine failed or did not do it in time.
    pub async fn shutdown(&self) -> bool {
        self.shutdown.cancel();
        self.tasks.close();
        let ended = timeout(self.config.shutdown_timeout, self.tasks.wait()).await.is_ok();
        if let Some(calls) = &self.calls {
            calls.end().await;
        }
        ended && !self.may_be_unclean.load(Ordering::Relaxed)
    }

    /// The key of a caller among the servers that share callers; `None` if this is the only server.
    pub(crate) fn caller_key(&self, caller: &Principal) -> Option<CallerKey> {
        self.callers.as_ref().map(|callers| callers.key_of(caller))
    }

    /// The number of a session of this caller as its URLs have it. If servers share callers, it begins with bits of the
    /// caller's key, by which they find its home.
    pub(super) fn number_in_urls(&self, caller: &Principal, number: u64) -> u64 {
        match self.caller_key(caller) {
            Some(key) => numbers::of_caller(number, key.prefix()),
            None => number,
        }
    }

    /// Marks a session as ending, if another session of its name could begin with what it has saved: sessions of the
    /// name start only when the mark is dropped.
    pub(super) fn mark_ending(&self, key: SessionKey) -> Option<Mark<SessionKey>> {
        let is_saved = self.archive.is_some() || self.backend.abilities().saved.is_some();
        is_saved.then(|| self.endings.mark(key))
    }

    /// Waits until no session with this key is ending, or this server ends.
    ///
    /// # Errors
    /// If that takes too long.
    pub(super) async fn ended(&self, key: &SessionKey) -> Result<()> {
        let ended = timeout(ENDING_TIMEOUT, self.endings.cleared(key));
        match self.shutdown.run_until_cancelled(ended).await {
            Some(Err(_)) => {
                let why = "The last session of this name has not ended yet. Try again in a minute.";
                Err(Error::SandboxUnavailable(why.into()))
            }
            Some(Ok(())) | None => Ok(()),
        }
    }

    pub(super) fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock()
    }
}

impl Lessor for Host {
    fn name_released(&self, number: u64, why: Option<EndReason>) -> Option<Mark<SessionKey>> {
        let mut registry = self.registry();
        let removed = registry.remove(number, why);
        // Before another call can find the name free.
        let ending = removed.and_then(|key| self.mark_ending(key));
        drop(registry);
        self.changes.tell();
        self.pool.forget(number);
        ending
    }

    fn permit_freed(&self, number: u64) {
        self.pool.permit_freed(number);
    }

    fn sandbox_may_be_left(&self) {
        self.may_be_unclean.store(true, Ordering::Relaxed);
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("sessions", &self.count()).finish_non_exhaustive()
    }
}
