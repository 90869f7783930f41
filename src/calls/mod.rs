//! Calls out of sandboxes: the questions of programs, answered as calls of their session's caller.
//!
//! ```text
//! session --question--> RunCalls --limits--> upstream: names, rights, arguments
//!                          |                    '-- a person must decide: the run is paused, approvals
//!                          '--- the call ------> upstream --> answer, files in the data area
//! ```
//!
//! A question may be anything: it can only make calls that its session's caller may make, while a run of the session is
//! in progress. [`approvals`]: calls that wait for a person. [`answer`]: what the program gets.

mod answer;
pub(crate) mod approvals;

use std::{
    collections::{HashMap, HashSet},
    num::NonZeroU32,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use config::Config;
use link::{Link, Question};
use model::{Approval, Decision, Principal, RunId, SessionId, text::printable};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::{
    sync::{Semaphore, watch},
    time::sleep,
};

use self::approvals::{Approvals, approval};
use crate::{
    audit::{Audit, CannotWrite, Digest, Entry},
    progress::Progress,
    upstream::{
        CallError, CallErrorKind, CallLimits, CallersUpstreams, Prepared, Request, ToolCall,
        Upstreams, Verdict,
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

/// A call that was made or refused, for people who view the session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Called {
    /// The upstream, as the program has named it, as printable text.
    pub upstream: String,
    /// Its tool, likewise.
    pub tool: String,
    /// `ok`, or the kind of the error.
    pub outcome: String,
    /// The time that it took, a person's decision included.
    pub took: Duration,
    /// A person's decision on it, if one was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<String>,
    /// Whether there is such an upstream.
    #[serde(skip)]
    pub is_known: bool,
}

impl RunCalls {
    /// Answers a question. Also returns the call, if the question was one.
    pub(crate) async fn answer(
        &self,
        question: Question,
        asking: &Asking,
    ) -> (Bytes, Option<Called>) {
        // Before it is parsed, which takes more memory and time than to send it.
        let _turn = self.turns.acquire().await;
        let parsed = self.use_bytes(question.body.len() as u64);
        match parsed.and_then(|()| Request::parse(&question.body)) {
            Ok(Request::Discover(wanted)) => {
                let listed = match self.count_discovery() {
                    Ok(()) => self.upstreams.discover(wanted).await,
                    Err(error) => Err(error),
                };
                (self.delivered(listed.and_then(|value| answer::of_value(&value))).await, None)
            }
            Ok(Request::Call(call)) => {
                let begun = Instant::now();
                let (upstream, tool) = (printable(&call.upstream), printable(&call.tool));
                let mut decision = None;
                let made = self.call(call, &question, asking, &mut decision).await;
                let outcome = made.as_ref().map_or_else(kind, |_| OK.to_owned());
                let is_known = self.upstreams.names().contains(&&*upstream);
                let [upstream, tool] = [upstream, tool].map(|name| short(&name));
                let decision = decision.map(str::to_owned);
                let called =
                    Called { upstream, tool, outcome, took: begun.elapsed(), decision, is_known };
                (self.delivered(made).await, Some(called))
            }
            // A program that sends nonsense has as many attempts as one that looks for tools.
            Err(error) => {
                let error = self.count_discovery().err().unwrap_or(error);
                (self.delivered(Err(error)).await, None)
            }
        }
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

    /// Makes a call, with its line in the audit file and in the log.
    async fn call(
        &self,
        call: ToolCall,
        question: &Question,
        asking: &Asking,
        decision: &mut Option<&'static str>,
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
        let begun = Instant::now();
        let made = self.checked(call, question, asking, (decision, &mut entry)).await;
        let outcome = made.as_ref().map_or_else(kind, |_| OK.to_owned());
        tracing::info!(
            call = name,
            client = self.caller.name(),
            session_id = %asking.session,
            run_id = %asking.run_id,
            outcome,
            decision = *decision,
            duration_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX),
            "call out of a sandbox"
        );
        if let Some(mut entry) = entry {
            let decided = decision.map(str::to_owned);
            entry.record.decision = decided;
            entry.record.outputs.answer = made.as_ref().ok().map(Digest::of);
            entry.end(&outcome);
        }
        made
    }

    async fn checked(
        &self,
        call: ToolCall,
        question: &Question,
        asking: &Asking,
        (decision, entry): (&mut Option<&'static str>, &mut Option<Entry>),
    ) -> Result<Bytes, CallError> {
        let limits = self.limits;
        self.count_call()?;
        if !self.server.admits(&self.caller, limits.per_minute) {
            let most = limits.per_minute.map_or(0, NonZeroU32::get);
            return Err(limit(format!("more than {most} calls in a minute; wait a little")));
        }
        let prepared = self.upstreams.prepare(call).await?;
        if question.before == Some(false) && !prepared.read_only() {
            return Err(CallError::new(
                CallErrorKind::UnknownOutcome,
                "the server was replaced during the call, which may have been made",
            ));
        }
        if prepared.verdict() == Verdict::Ask {
            *decision = Some(self.ask(&prepared, question.number, asking, entry).await?);
        }
        let name = format!("{}_{}", prepared.upstream(), prepared.tool());
        let left = limits.bytes.saturating_sub(self.used.lock().bytes);
        let items =
            prepared.carry_out(CallLimits { timeout: Duration::MAX, max_bytes: left }).await?;
        let bytes: u64 = items.iter().map(crate::upstream::Item::size).sum();
        self.use_bytes(bytes)?;
        answer::of_items(items, &name, (&asking.link, &asking.run_id, question.number)).await
    }

    fn count_call(&self) -> Result<(), CallError> {
        let most = self.limits.calls;
        let mut used = self.used.lock();
        used.calls = used.calls.saturating_add(1);
        if used.calls > most {
            return Err(limit(format!("a run can make {most} calls, and this one has made them")));
        }
        Ok(())
    }

    fn use_bytes(&self, bytes: u64) -> Result<(), CallError> {
        let most = self.limits.bytes;
        let mut used = self.used.lock();
        used.bytes = used.bytes.saturating_add(bytes);
        if used.bytes > most {
            return Err(limit(format!("the calls of a run can have {most} bytes in all")));
        }
        Ok(())
    }

    /// Asks a person, unless one has allowed the tool for the run or the session. Returns the decision.
    async fn ask(
        &self,
        prepared: &Prepared,
        number: u32,
        asking: &Asking,
        entry: &mut Option<Entry>,
    ) -> Result<&'static str, CallError> {
        let tool = (prepared.upstream().to_string(), prepared.tool().to_owned());
        if self.granted.has(&tool) {
            return Ok("allowed for the run");
        }
        if asking.granted.has(&tool) {
            return Ok("allowed for the session");
        }
        let within = self.limits.ask_timeout;
        let approval = Arc::new(approval(prepared, asking, within));
        let lost = |_| CallError::new(CallErrorKind::Cancelled, "the run has ended");
        asking.link.pause(number).await.map_err(lost)?;
        let shown = Shown::new(asking, approval.clone());
        let decided = self.server.approvals.decision(&approval, &self.caller, within).await;
        drop(shown);
        let name = format!("{}.{}", tool.0, tool.1);
        let (decided, by) = decided.ok_or_else(|| {
            let why = format!("nobody decided on {name} within {} s", within.as_secs());
            CallError::new(CallErrorKind::Unanswered, why)
        })?;
        if let Some(entry) = entry {
            entry.record.decided_by = Some(by);
        }
        match decided {
            Decision::Once => {}
            Decision::Run => self.granted.add(tool),
            Decision::Session => asking.granted.add(tool),
            Decision::Deny => {
                if let Some(entry) = entry {
                    entry.record.decision = Some(decided.as_str().to_owned());
                }
                let why = format!("a person did not allow the call of {name}");
                return Err(CallError::new(CallErrorKind::Denied, why));
            }
        }
        Ok(decided.as_str())
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
