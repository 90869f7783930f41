//! Calls of which a person must decide: they wait here until somebody answers, and their run is paused meanwhile.

use std::{collections::HashMap, fmt::Write, sync::Arc, time::Duration};

use jiff::Timestamp;
use model::{
    Approval, Decision, Principal, SessionId,
    text::{human_size, with_escaped_controls, without_controls},
};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::{sync::oneshot, time::timeout};

use super::Asking;
use crate::upstream::Prepared;

/// Maximum number of characters of the arguments that a person sees.
const MAX_ARGUMENTS: usize = 20_000;

/// The approval of a call.
pub(super) fn approval(prepared: &Prepared, asking: &Asking, within: Duration) -> Approval {
    let arguments = Value::Object(prepared.arguments().clone());
    let arguments = serde_json::to_string_pretty(&arguments).unwrap_or_default();
    // A person must see the text that the tool gets, not text that turns or hides itself.
    let arguments = with_escaped_controls(&arguments);
    let mut shown: String = arguments.chars().take(MAX_ARGUMENTS).collect();
    if shown.len() < arguments.len() {
        let more = human_size((arguments.len() - shown.len()) as u64);
        let _ = write!(shown, "\n[cut: {more} more are not shown]");
    }
    let until = Timestamp::now().checked_add(within).unwrap_or(Timestamp::MAX);
    Approval {
        id: uuid::Uuid::new_v4().simple().to_string(),
        session: asking.session.clone(),
        run_id: asking.run_id.clone(),
        upstream: prepared.upstream().to_string(),
        tool: with_escaped_controls(prepared.tool()).replace('\n', "\\n"),
        description: without_controls(prepared.description().chars()),
        arguments: shown,
        until,
    }
}

/// The approvals that wait for a person.
#[derive(Debug, Default)]
pub(crate) struct Approvals(Mutex<HashMap<String, Waiting>>);

#[derive(Debug)]
struct Waiting {
    caller: Principal,
    session: SessionId,
    decided: oneshot::Sender<(Decision, &'static str)>,
}

impl Approvals {
    /// Waits for a person's decision, and the way by which it came; `None` if nobody decides in time.
    pub(super) async fn decision(
        &self,
        approval: &Arc<Approval>,
        caller: &Principal,
        within: Duration,
    ) -> Option<(Decision, &'static str)> {
        let (decided, decision) = oneshot::channel();
        let (id, session) = (&approval.id, approval.session.clone());
        self.0.lock().insert(id.clone(), Waiting { caller: caller.clone(), session, decided });
        let _forget = Forget { approvals: self, id };
        timeout(within, decision).await.ok()?.ok()
    }

    /// Decides. Returns false if this session of the caller has no such approval, or somebody has decided before.
    pub(crate) fn decide(
        &self,
        (caller, session): (&Principal, &SessionId),
        id: &str,
        decision: Decision,
        by: &'static str,
    ) -> bool {
        let mut all = self.0.lock();
        let is_theirs =
            all.get(id).is_some_and(|it| it.caller == *caller && it.session == *session);
        let waiting = if is_theirs { all.remove(id) } else { None };
        waiting.is_some_and(|it| it.decided.send((decision, by)).is_ok())
    }
}

/// Removes an approval for which nobody waits any more.
struct Forget<'a> {
    approvals: &'a Approvals,
    id: &'a str,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.approvals.0.lock().remove(self.id);
    }
}
