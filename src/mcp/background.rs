//! Runs that go on after their call was answered (`background`, and [questions](super::repeat)), and the results that are
//! stored of runs.
//!
//! ```text
//! perform --> the run has begun --> early answer: run_id --> the client
//!    '------> the rest, in a task of its own --> the run's result --> stored in the session --> get_execution_result,
//!                                                                               or the call, when it is repeated
//! ```
//!
//! The rest of the call is the same as that of any other: it writes the lines of the call, and its result is the one
//! that the call would have had.

use std::{
    slice,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use config::{Config, Toolset};
use futures::{FutureExt, future::BoxFuture};
use hyper::http::request::Parts;
use model::{Approval, RunId, SessionId};
use parking_lot::Mutex;
use rmcp::model::CallToolResponse;
use serde_json::{Value, json};
use tokio::{
    sync::{oneshot, watch},
    time::sleep,
};
use tokio_util::sync::CancellationToken;

use super::{
    approval::{self, asking},
    arguments::hidden,
    call::{Call, add_notes, success, whole},
    repeat,
    running::reporting,
    tasks,
    tool::ToolFacts,
};
use crate::{
    error::{Error, Result},
    notes::Note,
    progress::Progress,
    request::RequestMemory,
    session::RunReport,
    sessions::{Opened, Program, ResultPlace, Sessions, Which},
    trace::Parent,
};

/// The word for a run that is in progress, in results.
pub(super) const RUNNING: &str = "running";

/// The run of a call.
#[derive(Default)]
pub(super) struct OfCall {
    early: Mutex<Option<oneshot::Sender<CallToolResponse>>>,
    /// Whether the early answer named the session.
    has_told: AtomicBool,
    /// The place for the result, once the run has begun.
    begun: Mutex<Option<ResultPlace>>,
}

impl OfCall {
    /// The run of a new call, and the receiver of its early answer.
    pub(super) fn new() -> (Self, oneshot::Receiver<CallToolResponse>) {
        let (early, answer) = oneshot::channel();
        (Self { early: Mutex::new(Some(early)), ..Self::default() }, answer)
    }

    /// Notes that the run has begun.
    pub(super) fn began(&self, sessions: &Sessions, session: &SessionId, run_id: &RunId) {
        let mut begun = self.begun.lock();
        // If its session has ended since, the place from before is the only one.
        if begun.is_none() {
            *begun = sessions.place_of_result(session, run_id.clone());
        }
    }

    /// Whether the call was answered before its end.
    pub(super) fn is_answered(&self) -> bool {
        self.early.lock().is_none()
    }

    /// Whether an early answer has told the client the name of its session.
    pub(super) fn has_told_session(&self) -> bool {
        self.has_told.load(Ordering::Relaxed)
    }

    /// Stores the result of the call for its caller, if it has run something.
    pub(super) fn keep(&self, response: &CallToolResponse) {
        if let Some(place) = self.begun.lock().take()
            && let CallToolResponse::Complete(result) = response
            && let Ok(result) = serde_json::to_vec(result)
        {
            place.keep(self.is_answered(), result.into());
        }
    }
}

/// Waits for the answer of a call. If it is an early one, the rest of the call goes on in a task of its own.
pub(super) async fn answered(
    mut work: BoxFuture<'static, CallToolResponse>,
    early: oneshot::Receiver<CallToolResponse>,
    sessions: &Sessions,
) -> CallToolResponse {
    tokio::select! {
        biased;
        response = &mut work => response,
        Ok(early) = early => {
            sessions.host().spawn(Parent::current().around(work.map(drop)));
            early
        }
    }
}

/// Whether runs in the background are offered: only to clients that are offered their results.
pub(super) fn is_offered(facts: &ToolFacts) -> bool {
    facts.toolsets.has(Toolset::Sessions) && !facts.config.background_timeout.is_zero()
}

/// The schema of the argument `background`; hidden from clients that are not offered it.
pub(super) fn argument(facts: &ToolFacts) -> Value {
    let most = facts.config.background_timeout.as_secs();
    let description = format!(
        "Answer at once with run_id and run on, up to {most} s; then get_execution_result."
    );
    let argument = json!({ "type": "boolean", "description": description });
    if is_offered(facts) { argument } else { hidden(json!({ "type": "boolean" })) }
}

/// The schema of a time limit in seconds, which [`time_limit`] reads.
pub(super) fn timeout_argument(facts: &ToolFacts, description: String, most: u64) -> Value {
    let mut argument = json!({ "type": "integer", "description": description, "minimum": 1 });
    // Otherwise the maximum depends on the call.
    if !is_offered(facts) {
        argument["maximum"] = most.into();
    }
    argument
}

/// The fields that a result needs if it may be that of a run in progress.
pub(super) fn required<'a>(facts: &ToolFacts, all: &'a [&'a str]) -> &'a [&'a str] {
    // Each result begins with the session and the run.
    if is_offered(facts) { &all[..2] } else { all }
}

/// The time limit of a run, and the longest that its caller could name: the first as the caller names it, or the usual
/// one; the second is that of foreground runs or, in the background, that of the settings.
pub(super) fn time_limit(
    call: &Call,
    (name, given): (&str, Option<f64>),
    (usual, most): (u64, u64),
    in_background: bool,
) -> Result<(Duration, Duration)> {
    let of_background = call.services.sessions.config().background_timeout.as_secs();
    let (usual, most) = if in_background { (of_background, of_background) } else { (usual, most) };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "a positive whole number, and a number of seconds within a day"
    )]
    if let Some(more) = given.filter(|given| *given > most as f64) {
        let (argument, given) = (name.to_owned(), json!(more as u64));
        call.note(Note::Clamped { argument, given, is_more: true, used: most });
        return Ok((Duration::from_secs(most), Duration::from_secs(most)));
    }
    let limit = whole(name, given, 1..=most)?.unwrap_or(usual);
    Ok((Duration::from_secs(limit), Duration::from_secs(most)))
}

/// Checks that a call may run in the background.
///
/// # Errors
/// If it may not, or its session ends with the call.
pub(super) fn check(call: &Call, which: &Which, config: &Config) -> Result<()> {
    let has_results = call.toolsets.has(Toolset::Sessions) || call.takes_tasks();
    let why = if config.background_timeout.is_zero() || !has_results {
        "Runs in the background are not offered here. Leave background out."
    } else if matches!(which, Which::Stateless(_)) {
        "A session that ends with its call has no runs in the background. Leave session_id out, or \
         pass that of an earlier result."
    } else {
        return Ok(());
    };
    Err(Error::InvalidArgument(why.into()))
}

impl Call {
    /// Whether the call may be answered with a [task](tasks).
    pub(super) fn takes_tasks(&self) -> bool {
        tasks::are_taken(&self.context, self.services.sessions.config())
    }

    /// Runs a program and answers the call when it has run for this time, or with a [question](super::repeat) for its
    /// user. Returns when the run has ended.
    pub(super) async fn run_in_background(
        &self,
        which: Which,
        mut program: Program,
        mut heard: watch::Receiver<Progress>,
        after: Option<Duration>,
    ) -> (Opened, Result<RunReport>) {
        // Not the token of the request, which ends with its answer.
        let cancel = CancellationToken::new();
        program.cancel = cancel.clone();
        let run_id = program.run_id.clone();
        let (is_named, is_automatic) =
            (matches!(which, Which::Named(_)), matches!(which, Which::Automatic(_)));
        let mut ran = std::pin::pin!(self.run_when_free(which, program));
        let (told, mut waits) = (heard.clone(), heard.clone());
        let begun = async {
            let begun = heard.wait_for(|progress| progress.session.is_some()).await;
            let begun = begun.ok().and_then(|it| Some((it.session.clone()?, it.is_new)));
            match after {
                // Even a sleep of no time lasts longer than the shortest run.
                Some(Duration::ZERO) => {}
                Some(after) => sleep(after).await,
                None => return std::future::pending().await,
            }
            begun
        };
        let asked = async move {
            if !approval::can_ask_in_answer(self) {
                return None;
            }
            let asks = waits.wait_for(|progress| progress.approval.is_some()).await;
            asks.ok().and_then(|it| it.approval.clone())
        };
        let first = async {
            tokio::select! {
                biased;
                ran = &mut ran => return Some(ran),
                Some((session, is_new)) = begun => {
                    let is_new = [is_new && is_named, is_new && is_automatic];
                    self.answer_that_it_runs(session, run_id, is_new).await;
                }
                Some(approval) = asked => self.answer_with_question(&approval).await,
                () = self.context.ct.cancelled() => cancel.cancel(),
            }
            None
        };
        // No progress of a run is reported after the answer to its call.
        if let Some(ran) = reporting(self, told.clone(), asking(self, told, first)).await {
            return ran;
        }
        // The client has its answer, so the output is read for viewers alone.
        drop(heard);
        ran.await
    }

    /// Answers the call. The flags say whether its session is new and had been named, or is that of a new workspace.
    async fn answer_that_it_runs(&self, session: SessionId, run_id: RunId, is_new: [bool; 2]) {
        let answer = if self.takes_tasks() {
            tasks::begun(&self.services.sessions, &session, &run_id).into()
        } else {
            let mut running = json!({
                "session_id": session.as_str(),
                "run_id": run_id.to_string(),
                "status": RUNNING,
            });
            for (field, is_new) in ["new_session", "new_workspace"].into_iter().zip(is_new) {
                if is_new {
                    running[field] = true.into();
                }
            }
            let mut running = success(running);
            add_notes(&self.notes(), &mut running);
            running.into()
        };
        self.run.has_told.store(true, Ordering::Relaxed);
        self.answer_early(&session, &run_id, answer).await;
    }

    /// Answers the call with the question whether a call out of its sandbox may be made.
    async fn answer_with_question(&self, approval: &Arc<Approval>) {
        let question = repeat::questions(&approval.run_id, &[], slice::from_ref(approval));
        self.answer_early(&approval.session, &approval.run_id, question.into()).await;
    }

    async fn answer_early(&self, session: &SessionId, run_id: &RunId, answer: CallToolResponse) {
        self.run.began(&self.services.sessions, session, run_id);
        self.release_message().await;
        let head = self.context.extensions.get::<Parts>();
        if let Some(memory) = head.and_then(|head| head.extensions.get::<RequestMemory>()) {
            memory.shrink_to(0).await;
        }
        let early = self.run.early.lock().take();
        if let Some(early) = early {
            // The caller may have left meanwhile: the result is stored all the same.
            let _ = early.send(answer);
        }
    }
}
