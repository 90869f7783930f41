//! Calls of which a person must decide: they wait here until somebody answers, and their run is paused meanwhile.

use std::{collections::HashMap, sync::Arc, time::Duration};

use model::{Approval, Decision, Principal, SessionId};
use parking_lot::Mutex;
use tokio::{sync::oneshot, time::timeout};

/// Maximum number of characters of the arguments that a person sees.
pub(super) const MAX_ARGUMENTS: usize = 20_000;

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
