//! Calls of which a person must decide: they wait here until somebody answers, and their run is paused meanwhile.

use std::{collections::HashMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use model::{Principal, RunId, SessionId};
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::{sync::oneshot, time::timeout};

/// Maximum number of characters of the arguments that a person sees.
pub(super) const MAX_ARGUMENTS: usize = 20_000;

/// A call of which a person must decide.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Approval {
    /// Its name among all approvals of the server.
    pub(crate) id: String,
    /// The session, and the run whose code makes the call.
    pub(crate) session: SessionId,
    pub(crate) run_id: RunId,
    /// The upstream, its tool, and the first line of the tool's description.
    pub(crate) upstream: String,
    pub(crate) tool: String,
    pub(crate) description: String,
    /// The arguments as JSON for people, cut if it is long.
    pub(crate) arguments: String,
    /// When the call is refused if nobody decides.
    pub(crate) until: Timestamp,
}

/// A person's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Decision {
    /// The call may be made.
    Once,
    /// The run may call the tool from now on.
    Run,
    /// The session may call the tool from now on.
    Session,
    /// The call must not be made.
    Deny,
}

impl Decision {
    /// The word for it, as in requests.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Once => "once",
            Self::Run => "run",
            Self::Session => "session",
            Self::Deny => "deny",
        }
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
