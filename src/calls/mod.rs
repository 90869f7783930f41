//! Calls out of sandboxes: the questions of programs, answered as calls of their session's caller.
//!
//! ```text
//! session --question--> RunCalls --limits--> upstream: names, rights, arguments
//!                          |                    '-- a person must decide: the run is paused, approvals
//!                          '--- the call ------> upstream --> answer, files in the data area
//! ```
//!
//! A question may be anything: it can only make calls that its session's caller may make, while a run of the session is
//! in progress. [`approvals`]: calls that wait for a person. [`answer`]: for the program. [`called`]: for people.

mod answer;
pub(crate) mod approvals;
mod called;

use std::{
    collections::{HashMap, HashSet},
    num::NonZeroU32,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use config::Config;
use link::{Link, Question};
use model::{
    Approval, Decision, Principal, RunId, SessionId,
    approval::{DENIED, UNANSWERED},
    text::{human_size, printable, whole_ms},
};
use parking_lot::Mutex;
use tokio::{
    sync::{Semaphore, watch},
    time::sleep,
};

use self::approvals::{Approvals, approval};
pub(crate) use self::called::{Begun, Called};
use crate::{
    audit::{Audit, CannotWrite, Digest, Entry},
    progress::Progress,
    upstream::{
        CallError, CallErrorKind, CallLimits, CallersUpstreams, MAX_TOKENS, Prepared, Request,
        ToolCall, Upstreams, Verdict,
    },
};

/// Maximum number of questions of a run about which tools there are.
const MAX_DISCOVERIES: u32 = 1000;

/// Delay of the answer to the first question of a run beyond a limit, and the most by which each further one is
/// delayed longer: a program that asks again and again must not occupy the server.
const BEYOND_LIMIT: Duration = Duration::from_millis(20);
const MAX_DELAYS: u32 = 50;

/// Maximum number of characters of a name that a program has chosen.
const MAX_NAME: usize = 100;

/// The outcome of a call that was made.
const OK: &str = "ok";

/// Maximum number of structural characters of a run's questions that are parsed and not answered: as many as one
/// question may have, which take 30 MB.
const MAX_PARSED: usize = MAX_TOKENS;

/// The calls of all callers of a server.
pub(crate) struct Calls {
    upstreams: Arc<Upstreams>,
    approvals: Approvals,
    /// The calls of each caller in the present minute.
    recent: Mutex<HashMap<Principal, (Instant, u32)>>,
    audit: Option<Audit>,
}

/// The limits of a run's calls.
#[derive(Debug, Clone, Copy)]
struct Limits {
    calls: u32,
    at_once: usize,
    bytes: u64,
    per_minute: Option<NonZeroU32>,
    ask_timeout: Duration,
}

impl Limits {
    /// The limits of a caller with these settings.
    fn of(settings: &Config) -> Self {
        Self {
            calls: settings.calls_per_run,
            at_once: settings.calls_at_once as usize,
            bytes: settings.calls_bytes,
            per_minute: settings.calls_per_minute,
            ask_timeout: settings.call_ask_timeout,
        }
    }
}

impl Calls {
    /// The calls of a server with these settings; `None` if it has no upstreams.
    pub(crate) fn new(config: &Config, audit: Option<Audit>) -> Option<Arc<Self>> {
        Some(Arc::new(Self {
            upstreams: Upstreams::new(config)?,
            approvals: Approvals::default(),
            recent: Mutex::default(),
            audit,
        }))
    }

    /// Ends the connections to upstreams, at the end of the server.
    pub(crate) async fn end(&self) {
        self.upstreams.end().await;
    }

    /// The calls of a caller's next run, with the caller's settings; `None` if the caller may use no upstream.
    pub(crate) fn of_run(
        self: &Arc<Self>,
        caller: &Principal,
        settings: &Config,
    ) -> Option<Arc<RunCalls>> {
        let upstreams = self.upstreams.of(caller, settings.upstream_list.as_deref());
        if upstreams.is_empty() {
            return None;
        }
        let limits = Limits::of(settings);
        Some(Arc::new(RunCalls {
            server: self.clone(),
            caller: caller.clone(),
            upstreams,
            limits,
            turns: Semaphore::new(limits.at_once),
            parsed: Semaphore::new(MAX_PARSED),
            used: Mutex::default(),
            granted: Granted::default(),
        }))
    }

    /// The names of the upstreams that a caller with these settings may use.
    pub(crate) fn names(&self, caller: &Principal, settings: &Config) -> Vec<String> {
        let upstreams = self.upstreams.of(caller, settings.upstream_list.as_deref());
        upstreams.names().into_iter().map(str::to_owned).collect()
    }

    /// The calls that wait for a person.
    pub(crate) fn approvals(&self) -> &Approvals {
        &self.approvals
    }

    /// Counts a call of a caller. Returns false if the caller has made too many in this minute.
    fn admits(&self, caller: &Principal, per_minute: Option<NonZeroU32>) -> bool {
        const MINUTE: Duration = Duration::from_secs(60);
        let Some(most) = per_minute else { return true };
        let (mut recent, now) = (self.recent.lock(), Instant::now());
        recent.retain(|_, (since, _)| now.duration_since(*since) < MINUTE);
        let (_, count) = recent.entry(caller.clone()).or_insert((now, 0));
        *count += 1;
        *count <= most.get()
    }
}

/// Tools that a person has allowed, by upstream and name. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Granted(Arc<Mutex<HashSet<(String, String)>>>);

impl Granted {
    fn has(&self, tool: &(String, String)) -> bool {
        self.0.lock().contains(tool)
    }

    fn add(&self, tool: (String, String)) {
        self.0.lock().insert(tool);
    }
}

/// The calls of one run.
pub struct RunCalls {
    server: Arc<Calls>,
    caller: Principal,
    upstreams: CallersUpstreams,
    limits: Limits,
    turns: Semaphore,
    /// A permit for each structural character that a question may have, from its parsing to its answer.
    parsed: Semaphore,
    used: Mutex<Used>,
    /// Tools that a person has allowed for the run.
    granted: Granted,
}

impl std::fmt::Debug for RunCalls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunCalls").field("caller", &self.caller).finish_non_exhaustive()
    }
}

/// A run's use of its limits.
#[derive(Debug, Default)]
struct Used {
    discoveries: u32,
    calls: u32,
    bytes: u64,
    /// The number of answers that were delayed, up to [`MAX_DELAYS`].
    delays: u32,
}

/// The run whose code asks, as its session sees it.
#[derive(Debug, Clone)]
pub(crate) struct Asking {
    pub(crate) session: SessionId,
    pub(crate) run_id: RunId,
    pub(crate) link: Link,
    /// Tools that a person has allowed for the session.
    pub(crate) granted: Granted,
    /// Receives the calls that wait for a person.
    pub(crate) waiting: Arc<watch::Sender<Vec<Arc<Approval>>>>,
    pub(crate) progress: Option<watch::Sender<Progress>>,
}

impl RunCalls {
    /// Answers a question. Also returns the call, if the question was one. While it is in progress, it is in `begun`.
    pub(crate) async fn answer(
        &self,
        question: Question,
        asking: &Asking,
        begun: &Begun,
    ) -> (Bytes, Option<Called>) {
        // Before it is parsed, which takes more memory and time than to send it.
        let _turn = self.turns.acquire().await;
        let weight = match self.use_bytes(question.body.len() as u64) {
            Ok(()) => Request::weight(&question.body),
            Err(error) => Err(error),
        };
        let _parsed = self.parsed.acquire_many(*weight.as_ref().unwrap_or(&0)).await;
        match weight.and_then(|_| Request::parse(&question.body)) {
            Ok(Request::Discover(wanted)) => {
                let listed = match self.count_discovery() {
                    Ok(()) => self.upstreams.discover(wanted).await,
                    Err(error) => Err(error),
                };
                (self.delivered(listed.and_then(|value| answer::of_value(&value))).await, None)
            }
            Ok(Request::Call(call)) => {
                let (upstream, tool) = (printable(&call.upstream), printable(&call.tool));
                let is_known = self.upstreams.names().contains(&&*upstream);
                let [upstream, tool] = [upstream, tool].map(|name| short(&name));
                begun.begin(upstream, tool, is_known);
                let made = self.call(call, &question, asking, begun).await;
                let called = begun.end(made.as_ref().map_or_else(kind, |_| OK.to_owned()));
                if let Some(called) = &called {
                    self.log(called, asking);
                }
                (self.delivered(made).await, called)
            }
            // A program that sends nonsense has as many attempts as one that looks for tools.
            Err(error) => {
                let error = self.count_discovery().err().unwrap_or(error);
                (self.delivered(Err(error)).await, None)
            }
        }
    }

    /// The call in progress, which is given up, as one that has ended.
    pub(crate) fn abandoned(&self, begun: &Begun, asking: &Asking) -> Option<Called> {
        let called = begun.abandon()?;
        self.log(&called, asking);
        Some(called)
    }

    fn log(&self, called: &Called, asking: &Asking) {
        tracing::info!(
            call = format!("{}.{}", called.upstream, called.tool),
            client = self.caller.name(),
            session_id = %asking.session,
            run_id = %asking.run_id,
            outcome = called.outcome,
            decision = called.decision,
            duration_ms = whole_ms(called.took),
            "call out of a sandbox"
        );
    }

    /// The answer that a program gets. A program beyond a limit has to wait for it, the longer the more often it asks.
    async fn delivered(&self, made: Result<Bytes, CallError>) -> Bytes {
        match made {
            Ok(answer) => answer,
            Err(error) => {
                if error.kind == CallErrorKind::Limit {
                    let delays = {
                        let mut used = self.used.lock();
                        used.delays = (used.delays + 1).min(MAX_DELAYS);
                        used.delays
                    };
                    sleep(BEYOND_LIMIT * delays).await;
                }
                answer::of_error(&error)
            }
        }
    }

    fn count_discovery(&self) -> Result<(), CallError> {
        let mut used = self.used.lock();
        used.discoveries = used.discoveries.saturating_add(1);
        if used.discoveries > MAX_DISCOVERIES {
            return Err(limit(format!("a run can list tools {MAX_DISCOVERIES} times")));
        }
        Ok(())
    }

    /// Makes a call, with its line in the audit file.
    async fn call(
        &self,
        call: ToolCall,
        question: &Question,
        asking: &Asking,
        begun: &Begun,
    ) -> Result<Bytes, CallError> {
        let name =
            format!("{}.{}", short(&printable(&call.upstream)), short(&printable(&call.tool)));
        let mut entry = match &self.server.audit {
            Some(audit) => {
                Some(Entry::begin(audit, &self.caller, &name).map_err(|CannotWrite| {
                    CallError::new(
                        CallErrorKind::Unavailable,
                        "the audit file cannot be written, so that no call is made",
                    )
                })?)
            }
            None => None,
        };
        if let Some(entry) = &mut entry {
            entry.record.session_id = Some(asking.session.to_string());
            entry.record.run_id = Some(asking.run_id.to_string());
            entry.record.inputs.arguments = Some(Digest::of_json(&call.arguments));
        }
        let made = self.checked(call, question, asking, (begun, &mut entry)).await;
        if let Some(mut entry) = entry {
            entry.record.outputs.answer = made.as_ref().ok().map(Digest::of);
            entry.end(&made.as_ref().map_or_else(kind, |_| OK.to_owned()));
        }
        made
    }

    async fn checked(
        &self,
        call: ToolCall,
        question: &Question,
        asking: &Asking,
        (begun, entry): (&Begun, &mut Option<Entry>),
    ) -> Result<Bytes, CallError> {
        let limits = self.limits;
        self.count_call()?;
        if !self.server.admits(&self.caller, limits.per_minute) {
            let most = limits.per_minute.map_or(0, NonZeroU32::get);
            let why = format!(
                "more than {most} calls in a minute (SANDBOX_CALLS_PER_MINUTE); wait a little"
            );
            return Err(limit(why));
        }
        let prepared = self.upstreams.prepare(call).await?;
        if question.before == Some(false) && !prepared.read_only() {
            return Err(CallError::new(
                CallErrorKind::UnknownOutcome,
                "the server was replaced during the call, which may have been made",
            ));
        }
        if prepared.verdict() == Verdict::Ask {
            let (decided, by) = self.ask(&prepared, question.number, asking).await?;
            begun.decide(decided);
            if let Some(entry) = entry {
                entry.record.decision = Some(decided.to_owned());
                entry.record.decided_by = by;
            }
            if decided == Decision::Deny.as_str() {
                return Err(CallError::new(CallErrorKind::Denied, DENIED));
            }
        }
        let name = format!("{}_{}", prepared.upstream(), prepared.tool());
        let left = limits.bytes.saturating_sub(self.used.lock().bytes);
        let is_less = left < prepared.max_answer();
        let made = prepared.carry_out(CallLimits { timeout: Duration::MAX, max_bytes: left }).await;
        let items = made.map_err(|error| match error.kind {
            CallErrorKind::Limit if is_less => self.bytes_used_up(),
            _ => error,
        })?;
        let bytes: u64 = items.iter().map(crate::upstream::Item::size).sum();
        self.use_bytes(bytes)?;
        answer::of_items(items, &name, (&asking.link, &asking.run_id, question.number)).await
    }

    fn count_call(&self) -> Result<(), CallError> {
        let most = self.limits.calls;
        let mut used = self.used.lock();
        used.calls = used.calls.saturating_add(1);
        if used.calls > most {
            let why = format!(
                "a run can make {most} calls (SANDBOX_CALLS_PER_RUN), and this one has made them"
            );
            return Err(limit(why));
        }
        Ok(())
    }

    fn use_bytes(&self, bytes: u64) -> Result<(), CallError> {
        let most = self.limits.bytes;
        let mut used = self.used.lock();
        used.bytes = used.bytes.saturating_add(bytes);
        if used.bytes > most {
            return Err(self.bytes_used_up());
        }
        Ok(())
    }

    fn bytes_used_up(&self) -> CallError {
        limit(format!(
            "the arguments and answers of a run's calls can have {} in all (SANDBOX_CALLS_BYTES), and this call exceeds \
             that: ask for smaller pages, filter, or go on in another run",
            human_size(self.limits.bytes)
        ))
    }

    /// Asks a person, unless one has allowed the tool for the run or the session. Returns the decision, and the way by
    /// which it came.
    async fn ask(
        &self,
        prepared: &Prepared,
        number: u32,
        asking: &Asking,
    ) -> Result<(&'static str, Option<&'static str>), CallError> {
        let tool = (prepared.upstream().to_string(), prepared.tool().to_owned());
        if self.granted.has(&tool) {
            return Ok(("allowed for the run", None));
        }
        if asking.granted.has(&tool) {
            return Ok(("allowed for the session", None));
        }
        let within = self.limits.ask_timeout;
        let approval = Arc::new(approval(prepared, asking, within));
        let lost = |_| CallError::new(CallErrorKind::Cancelled, "the run has ended");
        asking.link.pause(number).await.map_err(lost)?;
        let shown = Shown::new(asking, approval.clone());
        let decided = self.server.approvals.decision(&approval, &self.caller, within).await;
        drop(shown);
        let (decided, by) = decided.ok_or_else(|| {
            let why = format!("{UNANSWERED} within {} s", within.as_secs());
            CallError::new(CallErrorKind::Unanswered, why)
        })?;
        match decided {
            Decision::Once | Decision::Deny => {}
            Decision::Run => self.granted.add(tool),
            Decision::Session => asking.granted.add(tool),
        }
        // The upstream's time counts as that of any other call.
        asking.link.go_on(number).await.map_err(lost)?;
        Ok((decided.as_str(), Some(by)))
    }
}

/// An approval that people see until this is dropped.
struct Shown<'a> {
    asking: &'a Asking,
    approval: Arc<Approval>,
}

impl<'a> Shown<'a> {
    fn new(asking: &'a Asking, approval: Arc<Approval>) -> Self {
        let shown = Self { asking, approval };
        shown.change(|waiting| waiting.push(shown.approval.clone()));
        shown
    }

    fn change(&self, change: impl FnOnce(&mut Vec<Arc<Approval>>)) {
        self.asking.waiting.send_modify(change);
        if let Some(progress) = &self.asking.progress {
            let waiting = self.asking.waiting.borrow().first().cloned();
            progress.send_modify(|progress| progress.approval = waiting);
        }
    }
}

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        self.change(|waiting| waiting.retain(|other| other.id != self.approval.id));
    }
}

/// The answer to a question of a program that may call no tools.
pub(crate) fn not_enabled() -> Bytes {
    let why = "this server has no tools for code in a sandbox, or none for this caller";
    answer::of_error(&CallError::new(CallErrorKind::NotEnabled, why))
}

fn limit(why: String) -> CallError {
    CallError::new(CallErrorKind::Limit, why)
}

/// The start of a name that a program has chosen.
fn short(name: &str) -> String {
    name.chars().take(MAX_NAME).collect()
}

/// The kind of an error, as programs get it.
fn kind(error: &CallError) -> String {
    let kind = serde_json::to_value(error.kind).unwrap_or_default();
    kind.as_str().unwrap_or("unavailable").to_owned()
}
