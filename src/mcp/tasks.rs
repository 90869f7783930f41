//! Tasks: the extension by which a call of a tool is answered with a name, and its result is fetched later.
//!
//! ```text
//! call --> the run ends soon -----------------------------------> its result
//!    '---> it goes on, or is one in the background --> its task --> tasks/get, again and again --> its result
//! ```
//!
//! A task is a run: its id is the run's, and its state and result are those that the run's session stores
//! ([`background`](super::background)). Only clients that declare the extension with a request get one in its answer.
//! Nothing is stored for tasks alone, and changes are not announced: rmcp cannot send `notifications/tasks` to the
//! clients that subscribe to a task. A task asks for input only if a person must allow a call out of its sandbox.

use std::time::Duration;

use config::Config;
use futures::FutureExt;
use jiff::Timestamp;
use model::{Outcome, RunId, SessionId, text::quoted};
use rmcp::{
    ErrorData, RoleServer,
    model::{
        CallToolResult, ClientCapabilities, CreateTaskResult, DetailedTask, InputResponses,
        JsonObject, ProtocolVersion, ServerCapabilities, TASKS_EXTENSION_ID, Task, TaskPayload,
        TaskStatus,
    },
    service::RequestContext,
};
use serde_json::Value;

use super::{
    Server, approval,
    audited::{self, OK},
    call::{Call, take_memory},
    repeat,
    resources::failed,
    tools::get_execution_result::recorded,
};
use crate::{
    error::Error,
    progress,
    session::PastRun,
    sessions::{Execution, Sessions},
};

/// The requests of the extension.
pub(super) const GET: &str = "tasks/get";
pub(super) const UPDATE: &str = "tasks/update";
pub(super) const CANCEL: &str = "tasks/cancel";

/// Time after which a run that is still in progress is a task. Most runs have ended, and the shortest timeouts of
/// clients have not.
pub(super) const SOON: Duration = Duration::from_secs(5);

/// Shortest and longest time between two requests for the state of a task. In between it is this part of the time that
/// the run has taken.
const POLL: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
const POLL_PART: u32 = 20;

/// The outcome, in the audit file, of a request for a task that the caller does not have.
const NOT_FOUND: &str = "not_found";

/// Declares the extension, unless no run may go on after its call was answered.
pub(super) fn declare(server: &mut ServerCapabilities, config: &Config) {
    if !config.background_timeout.is_zero() {
        let all = server.extensions.get_or_insert_default();
        all.insert(TASKS_EXTENSION_ID.into(), JsonObject::new());
    }
}

/// Whether a request may be answered with a task: its client declares the extension with the request itself, as the
/// protocol does from 2026-07-28 on.
pub(super) fn are_taken(context: &RequestContext<RoleServer>, config: &Config) -> bool {
    let version = context.protocol_version();
    version.is_some_and(|version| version >= ProtocolVersion::V_2026_07_28)
        && context.meta.client_capabilities().is_some_and(|client| client.supports_tasks())
        && !config.background_timeout.is_zero()
}

/// The answer to a call whose run is in progress.
pub(super) fn begun(sessions: &Sessions, session: &SessionId, run_id: &RunId) -> CreateTaskResult {
    CreateTaskResult::new(task(sessions, session, run_id.as_str(), TaskStatus::Working, None))
}

/// A run as a task. `elapsed` is its wall time, once it has ended and if that is known.
fn task(
    sessions: &Sessions,
    session: &SessionId,
    run_id: &str,
    status: TaskStatus,
    elapsed: Option<Duration>,
) -> Task {
    let now = Timestamp::now();
    let created = RunId::minted_at(run_id).unwrap_or(now);
    // The time at which its state last changed.
    let updated = created.checked_add(elapsed.unwrap_or_default()).unwrap_or(created);
    let mut task = Task::new(run_id, status, created.to_string(), updated.to_string());
    let since =
        |then: Timestamp| Duration::try_from(then.duration_since(created)).unwrap_or_default();
    let millis = |it: Duration| u64::try_from(it.as_millis()).unwrap_or(u64::MAX);
    // The session expires then at the earliest, because it does not while it has a run.
    task.ttl_ms = sessions.get(session).map(|live| millis(since(live.info().expires)));
    if !status.is_terminal() {
        task.poll_interval_ms = Some(millis((since(now) / POLL_PART).clamp(POLL.0, POLL.1)));
    }
    task
}

/// A task that the caller has.
struct Found {
    session: SessionId,
    run: Option<Box<PastRun>>,
    /// The result of the call that the run belongs to, once it has ended.
    result: Option<CallToolResult>,
}

impl Found {
    async fn new(call: &Call, task_id: &str) -> Result<Self, ErrorData> {
        match call.services.sessions.execution(task_id, Duration::ZERO).await {
            Execution::Running(session, run) => Ok(Self { session, run: Some(run), result: None }),
            Execution::Ended(session, run, result) => {
                let result = serde_json::from_slice(&result);
                let result = result.map_err(|error| failed(&Error::internal(&error)))?;
                Ok(Self { session, run, result: Some(result) })
            }
            Execution::Recorded(session, run) => {
                let result = recorded(call, &session, &run).await;
                Ok(Self { session, run: Some(run), result: Some(result) })
            }
            Execution::SessionEnded => {
                let why = "The session of this task has ended. If it is archived, a call that names it \
                           brings the result back.";
                Err(ErrorData::invalid_params(why, None))
            }
            // A run is a task once it has begun.
            Execution::NotFound | Execution::Unbegun(_) => {
                let why = format!("There is no task {} here.", quoted(task_id));
                Err(ErrorData::invalid_params(why, None))
            }
        }
    }

    /// The state of the task: with the result, unless the run was cancelled.
    fn state(self, call: &Call, task_id: &str) -> Result<DetailedTask, ErrorData> {
        let approvals = self.run.iter().flat_map(|run| &run.approvals);
        let forms = approval::can_ask_in_answer(call).then(|| repeat::forms(approvals));
        let end = self.run.as_ref().and_then(|run| run.end.as_ref());
        let payload = match self.result {
            None => match forms.filter(|forms| !forms.is_empty()) {
                Some(input_requests) => TaskPayload::InputRequired { input_requests },
                None => TaskPayload::Working,
            },
            Some(_) if end.is_some_and(|end| end.outcome == Outcome::Cancelled) => {
                TaskPayload::Cancelled
            }
            Some(result) => match serde_json::to_value(result) {
                Ok(Value::Object(result)) => TaskPayload::Completed { result },
                Ok(_) => unreachable!("a result of a tool is an object"),
                Err(error) => return Err(failed(&Error::internal(&error))),
            },
        };
        let elapsed = end.map(|end| end.elapsed);
        let sessions = &call.services.sessions;
        let mut task = task(sessions, &self.session, task_id, payload.status(), elapsed);
        let running = self.run.filter(|run| run.end.is_none());
        task.status_message = running.and_then(|run| progress::newest_line(&run.newest));
        Ok(DetailedTask::new(task, payload))
    }
}

impl Server {
    /// Answers a request about a task. All three look for it; [`UPDATE`] makes the decisions that it has in `answers`.
    pub(super) async fn task(
        &self,
        method: &'static str,
        task_id: &str,
        answers: Option<InputResponses>,
        context: &RequestContext<RoleServer>,
    ) -> Result<DetailedTask, ErrorData> {
        let work = async {
            let (services, toolsets) = (self.services.seen_by(context), self.toolsets(context)?);
            let (call, _) = Call::new(services, toolsets, context.clone(), answers);
            let sessions = &call.services.sessions;
            if !are_taken(context, sessions.config()) {
                let needed = ClientCapabilities::builder().enable_tasks().build();
                return Err(ErrorData::missing_required_client_capability(needed));
            }
            take_memory(context).await?;
            let entry = audited::begin(&call.services, method, &task_id);
            let entry = entry.map_err(|error| failed(&error))?;
            if method == CANCEL {
                sessions.cancel(task_id).await;
            }
            let found = Found::new(&call, task_id).await;
            if let Ok(found) = &found {
                repeat::decide(&call, &found.session);
            }
            if let Some(mut entry) = entry {
                if let Ok(found) = &found {
                    entry.record.session_id = Some(found.session.to_string());
                    entry.record.run_id = Some(task_id.to_owned());
                    if let Some(result) = found.result.as_ref().filter(|_| method == GET) {
                        audited::answered(&mut entry.record, result);
                    }
                }
                entry.end(if found.is_ok() { OK } else { NOT_FOUND });
            }
            found?.state(&call, task_id)
        };
        self.observed(method, context).answer(work.boxed()).await
    }
}
