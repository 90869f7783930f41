//! Calls that a client repeats with the decisions of its user. From 2026-07-28 on a server sends no requests to clients:
//! it answers the call with its questions, and the client calls again with the answers.
//!
//! ```text
//! call --> a run --> a person must decide --> questions, `requestState` --> the client and its user
//!            '------ goes on ------------------------------------.                |
//! the call again, with answers and `requestState` --> decisions, the run's result or next questions
//! ```
//!
//! A repeated call runs nothing. Nothing is stored for it: `requestState` is the run's name and the names of the
//! questions that were asked. The client may change it, but finds only runs and questions of its own caller with it.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use model::{Approval, RunId, SessionId, text::quoted};
use rmcp::model::{
    CallToolResponse, ElicitRequest, InputRequest, InputRequests, InputRequiredResult, JsonObject,
};
use tokio::{sync::watch, time::Instant};

use super::{
    approval::{BY, decided, form},
    audited::{self, OK, WithoutLongTexts},
    call::{Call, failure},
    running::reporting,
    tasks,
    tools::get_execution_result::recorded,
};
use crate::{
    error::{Error, Result},
    progress::{Progress, newest_line},
    session::PastRun,
    sessions::Execution,
};

/// Time after which a client is told to repeat its call once more: longer than any run takes.
const LONGEST_WAIT: Duration = Duration::from_secs(30 * 24 * 3600);

/// Longest `requestState` that is read, in bytes: that of a run with more questions than calls can wait at once.
const MAX_STATE: usize = 4 << 10;

/// Between the names in a `requestState`.
const SEPARATOR: char = '.';

/// The answer to a call whose run waits for decisions. `asked` are the names of questions that were asked before.
pub(super) fn questions(
    run_id: &RunId,
    asked: &[&str],
    approvals: &[Arc<Approval>],
) -> InputRequiredResult {
    let mut state = run_id.to_string();
    for approval in approvals {
        state.push(SEPARATOR);
        state.push_str(&approval.id);
    }
    let requests = forms(approvals.iter().filter(|it| !asked.contains(&&*it.id)));
    InputRequiredResult::new((!requests.is_empty()).then_some(requests), Some(state))
}

/// The forms of calls that wait for decisions, by their names.
pub(super) fn forms<'a>(approvals: impl IntoIterator<Item = &'a Arc<Approval>>) -> InputRequests {
    let forms = approvals.into_iter().filter_map(|approval| {
        let form = InputRequest::Elicitation(ElicitRequest::new(form(approval)?));
        Some((approval.id.clone(), form))
    });
    forms.collect()
}

/// Answers a repeated call. The line of the call in the audit file is that of its first attempt. A repetition has one of
/// its own if it is refused, or reads the result of a run that has ended before.
pub(super) async fn repeated(
    tool: &str,
    call: &Call,
    arguments: &JsonObject,
    state: &str,
) -> CallToolResponse {
    call.release_message().await;
    let audit = |outcome: &str, run_id: Option<&str>| {
        let begun = audited::begin(&call.services, tool, &WithoutLongTexts(arguments));
        if let Ok(Some(mut entry)) = begun {
            entry.record.run_id = run_id.map(str::to_owned);
            entry.end(outcome);
        }
    };
    match continued(call, state).await {
        Ok((response, reads)) => {
            if reads {
                audit(OK, state.split(SEPARATOR).next());
            }
            response
        }
        Err(error) => {
            // The name in a state that is refused can be any text.
            audit(error.code(), None);
            failure(&error).into()
        }
    }
}

/// Applies the decisions, and waits for the result of the run or its next questions. Returns also whether the run had
/// ended before.
async fn continued(call: &Call, state: &str) -> Result<(CallToolResponse, bool)> {
    let sessions = &call.services.sessions;
    if state.len() > MAX_STATE {
        return Err(unknown("a run"));
    }
    let mut names = state.split(SEPARATOR);
    let run_id = names.next().unwrap_or_default();
    let asked: Vec<_> = names.collect();
    if let Some(other) = call.answers.iter().flatten().find(|(id, _)| !asked.contains(&&***id)) {
        return Err(unknown(&format!("{}, with an answer to {}", quoted(run_id), quoted(other.0))));
    }
    let mut found = sessions.execution_when(run_id, Duration::ZERO, |_| true).await;
    let had_ended = matches!(found, Execution::Ended(..) | Execution::Recorded(..));
    if let Execution::Running(session, run) = &found {
        decide(call, session);
        found = followed(call, session, run, &asked).await;
    }
    let response = match found {
        Execution::Running(session, run) => {
            let is_new = run.approvals.iter().any(|it| !asked.contains(&&*it.id));
            if !is_new && call.takes_tasks() {
                tasks::begun(sessions, &session, &run.run_id).into()
            } else {
                questions(&run.run_id, &asked, &run.approvals).into()
            }
        }
        Execution::Ended(_, _, result) => {
            let result = serde_json::from_slice(&result);
            CallToolResponse::Complete(result.map_err(|error| Error::internal(&error))?)
        }
        Execution::Recorded(session, run) => recorded(call, &session, &run).await.into(),
        Execution::SessionEnded => {
            return Err(Error::InvalidArgument(format!(
                "The session of {} has ended, and its result with it. Nothing was run again.",
                quoted(run_id)
            )));
        }
        Execution::NotFound | Execution::Unbegun(_) => return Err(unknown(&quoted(run_id))),
    };
    Ok((response, had_ended))
}

fn unknown(run: &str) -> Error {
    Error::InvalidArgument(format!(
        "Nothing was run: the call continues {run}, which you do not have here. Call again to run the \
         code from its beginning."
    ))
}

/// Makes the decisions that the client's user has sent with the call on calls out of this session.
pub(super) fn decide(call: &Call, session: &SessionId) {
    for (id, answer) in call.answers.iter().flatten() {
        // A form that was closed decides nothing.
        let answer = serde_json::from_value(answer.clone()).ok();
        if let Some(decision) = answer.and_then(decided) {
            call.services.sessions.decide(session, id, decision, BY);
        }
    }
}

/// Reports the progress of a run until it has ended or has other questions than these. If the client leaves, the run is
/// cancelled.
async fn followed(call: &Call, session: &SessionId, run: &PastRun, asked: &[&str]) -> Execution {
    let sessions = &call.services.sessions;
    let run_id = run.run_id.as_str();
    let since = Duration::try_from(Timestamp::now().duration_since(run.begun)).unwrap_or_default();
    let (progress, heard) = watch::channel(Progress {
        run_id: Some(run.run_id.clone()),
        session: Some(session.clone()),
        started: true,
        since: Instant::now().checked_sub(since),
        ..Progress::default()
    });
    let has_news = |run: &PastRun| {
        progress.send_modify(|it| {
            it.approval = run.approvals.first().cloned();
            it.bar = newest_line(&run.newest).unwrap_or_default();
        });
        run.approvals.iter().any(|it| !asked.contains(&&*it.id))
    };
    let may_be_task =
        call.takes_tasks() && sessions.get(session).is_some_and(|live| !live.is_stateless());
    let wait = if may_be_task { tasks::SOON } else { LONGEST_WAIT };
    let waiting = sessions.execution_when(run_id, wait, has_news);
    tokio::select! {
        found = reporting(call, heard, waiting) => found,
        () = call.context.ct.cancelled() => {
            sessions.cancel(run_id).await;
            // The client gets no answer.
            Execution::NotFound
        }
    }
}
