//! Finds and starts sessions, and ends all of them when the server ends.
//!
//! A session's own task handles what happens in it ([`session::driver`](crate::session)); this module knows names and
//! counts. A call says which session it means ([`which`]), and [`open`] finds or starts that session:
//!
//! ```text
//!   call --> which --> live already? ----------------------------------------> its handle
//!                        |
//!                        '--> permit (room) --> pool -------------- pooled --> handle + task
//!                                          |--> state folder ------ woken ---> handle + task
//!                                          |--> archive ----------- restored > handle + task
//!                                          '--> new sandbox ------- new -----> handle + task
//!   another server ended ----------------------> adopt ------------ resumed -> handle + task
//! ```
//!
//! - [`Sessions`]: the sessions as one caller sees them. [`host`]: the sessions of all callers, and what they share.
//! - [`registry`]: live sessions by name and by workspace; [`gone`]: ended ones; [`numbers`]: their numbers, to which
//!   URLs are bound. None of them starts or ends anything.
//! - [`workspaces`]: sessions that calls without a name mean.
//! - [`open`]: from a call to a session; [`turns`]: once for concurrent calls; [`room`]: permits; [`start`]: its task.
//! - [`saved`]: sandboxes in the state folder. [`archived`]: sessions in the archive. [`adopt`]: sandboxes that wait for
//!   another server. [`homes`]: which of several servers has a caller's sessions.
//! - [`pool`], [`keeper`]: sandboxes that wait for sessions. [`stateless`]: sessions that end with a call.
//! - [`live`]: a session, for readers. [`shown`]: its runs, for people. [`all`]: the sessions of all callers, for
//!   operators. [`cancel`]: ends a run by its name; [`execution`]: its state and result; [`unbegun`]: before it begins.
//!   [`packages`]: installs packages; [`summary`]: of a file.

mod adopt;
mod all;
mod archived;
mod cancel;
mod execution;
mod gone;
mod homes;
mod host;
mod keeper;
mod live;
mod numbers;
mod open;
mod packages;
mod pool;
mod registry;
mod room;
mod saved;
pub(crate) mod shown;
mod start;
mod stateless;
mod summary;
mod turns;
mod unbegun;
mod which;
mod workspaces;

use std::sync::Arc;

use backend::{Backend, Template};
use config::Config;
use model::{Dataset, DatasetName, Decision, OwnSettings, Principal, SessionId, SessionKey};
pub use protocol::message::{RuntimeName, Stream};

pub(crate) use self::summary::is_table;
use self::{
    all::AllSessions, archived::ArchivedSessions, homes::SharedCallers, open::Opening,
    saved::SavedSessions,
};
pub(crate) use self::{
    all::Dormant,
    archived::ArchivedSession,
    execution::ResultPlace,
    stateless::{STATELESS, session_name},
};
pub use self::{
    cancel::CancelOutcome,
    execution::Execution,
    host::{Host, Options},
    live::{Live, SessionInfo},
    packages::{CallersPackages, Installed},
    saved::Sleeper,
    stateless::Stateless,
    which::{Opened, Which, Workspace},
    workspaces::Workspaces,
};
pub use crate::{
    calls::RunCalls,
    content::Content,
    progress::Progress,
    session::{
        command::Program,
        operations::{
            Draw, Found, Inspect, Inspected, Install, List, ListWithin, Listing, Open, Operation,
            OutputPart, ReadOutput, Reset, Summarize, Upload, Uploaded,
        },
        view::View,
    },
};
use crate::{
    error::{Error, Result},
    session::{RunReport, command::Command, handle::Handle},
};

/// The sessions of this server as one caller sees them: other callers' sessions are hidden. Clones share the sessions.
#[derive(Debug, Clone)]
pub struct Sessions {
    host: Arc<Host>,
    caller: Principal,
    /// The settings that hold for the caller.
    config: Arc<Config>,
    /// The program that the caller uses, if it says which.
    client: Option<Arc<str>>,
    /// If set, only the session with this number is visible.
    only: Option<u64>,
}

impl Sessions {
    /// No sessions yet, as the local caller sees them.
    pub fn new(config: Config, backend: Arc<dyn Backend>, options: Options) -> Self {
        let host = Arc::new(Host::new(config, backend, options));
        let (config, caller) = (host.config.clone(), Principal::local());
        Self { host, config, caller, client: None, only: None }
    }

    /// The sessions as another caller sees them.
    #[must_use]
    pub fn seen_by(&self, caller: Principal) -> Self {
        let config = self.host.permissions.settings(&caller);
        Self { host: self.host.clone(), config, caller, client: None, only: None }
    }

    /// Names the program that the caller uses, for the operators' list of sessions.
    #[must_use]
    pub fn with(self, client: Option<Arc<str>>) -> Self {
        Self { client, ..self }
    }

    /// Restricts the view to the session with this number: later sessions of its name are hidden.
    #[must_use]
    pub fn only(&self, number: u64) -> Self {
        Self { only: Some(number), ..self.clone() }
    }

    /// The live, saved or archived session of this name and number as its holder sees it, and no other, for any caller.
    pub(crate) async fn held(&self, id: &SessionId, number: u64) -> Option<Self> {
        let host = &self.host;
        let is_number = |holder: &Principal, it| host.number_in_urls(holder, it) == number;
        let holder = host.registry().holder(id, is_number).cloned();
        if let Some(holder) = holder {
            return Some(self.seen_by(holder).only(number));
        }
        // The archive may have an older state of a saved session.
        if let Some(held) = self.saved().and_then(|saved| saved.held(id, number)) {
            return Some(held);
        }
        self.archived()?.held(id, number).await
    }

    /// The caller that sees these sessions.
    pub fn caller(&self) -> &Principal {
        &self.caller
    }

    /// The settings that hold for the caller.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The settings of the caller's policy, if it has one.
    pub(crate) fn policy(&self) -> Option<&Arc<Config>> {
        Some(&self.config).filter(|it| !Arc::ptr_eq(it, &self.host.config))
    }

    /// The datasets that new sandboxes of the caller can read.
    pub fn datasets(&self) -> Vec<Arc<Dataset>> {
        self.host.permissions.datasets(&self.caller)
    }

    /// Datasets of the caller that have one of these names.
    fn datasets_named(&self, names: &[DatasetName]) -> Vec<Arc<Dataset>> {
        self.datasets().into_iter().filter(|it| names.contains(&it.name)).collect()
    }

    /// The template of new sandboxes, with the languages that the caller may use.
    pub async fn template(&self) -> Template {
        let mut template = self.host.template().await;
        template.runtimes.retain(|runtime| self.config.has_language(&runtime.name));
        template
    }

    /// The sessions of all callers.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Keeps the pool full, takes over sessions of servers that have ended, and shares callers. Runs forever.
    pub async fn upkeep(self) {
        let known = async {
            // Audit lines say from which template sessions start.
            if self.host.audit().is_some() {
                self.host.keep_template_known().await;
            }
        };
        let share = async {
            if let Some(callers) = self.shared_callers() {
                callers.share().await;
            }
        };
        tokio::join!(keeper::keep(&self.host), adopt::regularly(&self), share, known);
    }

    /// Takes over all sessions that servers with the same secret have left. Returns when all have been asked.
    pub async fn adopt(&self) {
        adopt::once(self).await;
    }

    /// The caller's sessions in the state folder; `None` if sandboxes are not saved.
    pub(crate) fn saved(&self) -> Option<SavedSessions<'_>> {
        Some(SavedSessions::new(self, self.host.backend.abilities().saved?))
    }

    /// The caller's sessions in the archive; `None` without an archive.
    pub(crate) fn archived(&self) -> Option<ArchivedSessions<'_>> {
        Some(ArchivedSessions::new(self, self.host.archive.as_ref()?))
    }

    /// The sessions of all callers, for operators.
    pub(crate) fn all(&self) -> AllSessions<'_> {
        AllSessions(self)
    }

    /// The packages that the caller can install.
    pub fn packages(&self) -> CallersPackages<'_> {
        CallersPackages(self)
    }

    /// The caller's workspaces.
    pub fn workspaces(&self) -> Workspaces<'_> {
        Workspaces(self)
    }

    /// The callers that this server shares with others; `None` on a single server.
    pub(crate) fn shared_callers(&self) -> Option<SharedCallers<'_>> {
        let callers = self.host.callers.as_ref();
        let (callers, shared) = callers.zip(self.host.backend.abilities().shared)?;
        Some(SharedCallers::new(self, callers, shared))
    }

    /// The calls of the caller's next run; `None` if its code can call no tools.
    fn calls_of_run(&self) -> Option<Arc<RunCalls>> {
        self.host.calls.as_ref()?.of_run(&self.caller, &self.config)
    }

    /// The names of the upstreams whose tools the caller's code can call.
    pub(crate) fn upstreams(&self) -> Vec<String> {
        let calls = self.host.calls.as_ref();
        calls.map(|calls| calls.names(&self.caller, &self.config)).unwrap_or_default()
    }

    /// Decides on a call of a session of the caller that waits for a person. Returns false if there is none of this
    /// name, or somebody has decided before.
    pub(crate) fn decide(
        &self,
        session: &SessionId,
        approval: &str,
        decision: Decision,
        by: &'static str,
    ) -> bool {
        let of = (&self.caller, session);
        let calls = self.host.calls.as_ref();
        calls.is_some_and(|calls| calls.approvals().decide(of, approval, decision, by))
    }

    /// Runs a program in the session that the call means, or in a new one.
    pub async fn run(
        &self,
        which: impl Into<Which>,
        mut program: Program,
    ) -> (Opened, Result<RunReport>) {
        let which = which.into();
        program.calls = self.calls_of_run();
        self.host.unbegun.add(&self.caller, &which, &mut program);
        let opening = Opening::new(self, which).telling(program.progress.clone());
        let program = Box::new(program);
        opening.ask(|reply| Command::Run { program, reply }).await
    }

    /// Performs an operation in the session that the call means, or in a new one.
    pub async fn perform_or_create<O: Operation>(
        &self,
        which: impl Into<Which>,
        operation: O,
    ) -> (Opened, Result<O::Output>) {
        let opening = Opening::new(self, which.into());
        opening.ask(|reply| Command::operate(operation, reply)).await
    }

    /// Performs an operation in a session.
    ///
    /// # Errors
    /// If there is no such session, or the operation fails.
    pub async fn perform<O: Operation>(&self, id: &SessionId, operation: O) -> Result<O::Output> {
        open::awake(self, id).await?.ask(|reply| Command::operate(operation, reply)).await
    }

    /// Opens the session that the call means, or a new one. It is ready when this returns.
    pub async fn ensure(&self, which: impl Into<Which>) -> (Opened, Result<()>) {
        Opening::new(self, which.into()).ask(|reply| Command::Touch { reply }).await
    }

    /// Starts a session with this name, or with a generated one, and with settings of its own. Its sandbox has started
    /// when this returns. Settings above the caller's maxima count as those.
    ///
    /// # Errors
    /// If the caller has a session of this name already, or a limit of sessions is reached.
    pub async fn create(&self, id: Option<SessionId>, own: OwnSettings) -> Result<SessionInfo> {
        let opening = Opening::new(self, Which::from(id)).with(own);
        let (Opened { id, is_new, .. }, there) =
            opening.ask(|reply| Command::Touch { reply }).await;
        there?;
        if !is_new {
            return Err(Error::InvalidArgument(format!(
                "There is a session {id} already, with limits of its own. Use it, choose another \
                 session_id, or end it first with destroy_session."
            )));
        }
        let info = self.get(&id).map(|live| live.info());
        info.ok_or(Error::SessionNotFound(id))
    }

    /// Ends a session. Its sandbox has been removed when this returns.
    ///
    /// # Errors
    /// If there is no such session, or it died meanwhile.
    pub async fn close(&self, id: &SessionId) -> Result<()> {
        // The next session of the name starts after everything of this one is deleted.
        let _ending = self.host.mark_ending(SessionKey::of(&self.caller, id));
        let found = self.find(id);
        let may_be_archived =
            found.as_ref().is_none_or(|it| it.origin.continues() || it.archived.may_be);
        let closed = match found {
            Some(handle) => handle.close().await,
            None => match self.saved().filter(|saved| saved.has(id)) {
                Some(saved) => {
                    saved.forget(id);
                    self.host.changes.tell();
                    Ok(())
                }
                None => Err(self.gone(id)),
            },
        };
        // A session that has just ended by itself may be in the archive as well.
        if (may_be_archived || closed.is_err())
            && let Some(archived) = self.archived()
            && Box::pin(archived.forget(id)).await?
        {
            self.host.changes.tell();
            return Ok(());
        }
        closed
    }

    /// The caller's live session of this name.
    pub fn get(&self, id: &SessionId) -> Option<Live<'_>> {
        Some(Live::new(self, self.find(id)?))
    }

    /// The caller's live session of this name. Wakes or restores the session first if it is not live.
    ///
    /// # Errors
    /// If there is no such session, or it cannot be woken.
    pub async fn awake(&self, id: &SessionId) -> Result<Live<'_>> {
        open::awake(self, id).await?;
        self.get(id).ok_or_else(|| self.gone(id))
    }

    /// The names of the caller's live sessions, in order.
    pub fn names(&self) -> Vec<SessionId> {
        let registry = self.host.registry();
        let mut names: Vec<_> = registry.of(&self.caller).map(|handle| handle.id.clone()).collect();
        drop(registry);
        names.sort_unstable();
        names
    }

    /// The language of cells that name none, in the caller's session of this name, if it was created with one. The
    /// session may be live, saved or archived.
    pub async fn language(&self, id: &SessionId) -> Option<RuntimeName> {
        if let Some(handle) = self.find(id) {
            return handle.own.language;
        }
        if let Some(record) = self.saved().and_then(|saved| saved.record(id)) {
            return record.own.language;
        }
        self.archived()?.find(id).await?.manifest.own.language
    }

    /// Why there is no session of this name: the error of every call that names it. The error gives a reason only for
    /// remembered sessions of the caller.
    pub(crate) fn gone(&self, id: &SessionId) -> Error {
        self.host.registry().not_found(&self.caller, id, self.config().session_ttl)
    }

    fn find(&self, id: &SessionId) -> Option<Handle> {
        self.host.registry().find(&self.caller, id).filter(|handle| self.sees(handle)).cloned()
    }

    fn sees(&self, handle: &Handle) -> bool {
        let number = || self.host.number_in_urls(&self.caller, handle.number);
        self.only.is_none_or(|only| number() == only)
    }
}
