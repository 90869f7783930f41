//! Ended sessions, so that a caller that asks for one learns why it ended. Their number is limited for each caller, so
//! that no caller displaces another's entries.

use std::collections::{HashMap, VecDeque};

use model::{Lost, LostReason, Principal, RunId, SessionId, WorkspaceId};

/// Maximum number of ended sessions and workspaces that are remembered for each caller.
pub(super) const REMEMBERED: usize = 256;

/// The name or workspace by which a session was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FoundBy {
    Name(SessionId),
    Workspace(WorkspaceId),
}

/// Maximum number of runs of ended sessions that are remembered for each caller.
const REMEMBERED_RUNS: usize = 256;

/// Ended sessions by caller. There are as many callers as there are tokens.
#[derive(Debug, Default)]
pub(super) struct Gone(HashMap<Principal, OfCaller>);

/// A caller's ended sessions and runs, the newest last.
#[derive(Debug, Default)]
struct OfCaller {
    sessions: VecDeque<(FoundBy, Lost)>,
    runs: VecDeque<RunId>,
}

impl Gone {
    /// Records an ended session. Replaces the previous entry of this name or workspace.
    pub(super) fn note(&mut self, caller: &Principal, by: FoundBy, lost: Lost) {
        let all = &mut self.0.entry(caller.clone()).or_default().sessions;
        all.retain(|(known, _)| *known != by);
        all.push_back((by, lost));
        if all.len() > REMEMBERED {
            all.pop_front();
        }
    }

    /// Records the runs of an ended session.
    pub(super) fn note_runs(&mut self, caller: &Principal, runs: impl Iterator<Item = RunId>) {
        let all = &mut self.0.entry(caller.clone()).or_default().runs;
        all.extend(runs);
        all.drain(..all.len().saturating_sub(REMEMBERED_RUNS));
    }

    /// Whether one of the caller's remembered ended sessions had a run of this name.
    pub(super) fn had_run(&self, caller: &Principal, run_id: &str) -> bool {
        let all = self.0.get(caller);
        all.is_some_and(|all| all.runs.iter().any(|known| known.as_str() == run_id))
    }

    /// Why the caller's session of this name ended, if the session is remembered.
    pub(super) fn why(&self, caller: &Principal, id: &SessionId) -> Option<LostReason> {
        let all = &self.0.get(caller)?.sessions;
        let found = all.iter().find(|(by, _)| matches!(by, FoundBy::Name(name) if name == id))?;
        Some(found.1.why)
    }

    /// Removes and returns the entry of a session that is started anew.
    pub(super) fn take(&mut self, caller: &Principal, by: &FoundBy) -> Option<Lost> {
        let all = &mut self.0.get_mut(caller)?.sessions;
        let at = all.iter().position(|(known, _)| known == by)?;
        all.remove(at).map(|(_, lost)| lost)
    }
}

#[cfg(test)]
mod tests {
    use config::auth::Tokens;

    use super::*;

    #[test]
    fn so_much_is_remembered_of_each_caller_and_no_more() {
        let tokens = Tokens::parse("alice:a,bob:b").expect("valid");
        let [alice, bob] = ["a", "b"].map(|token| tokens.principal(token).expect("known"));
        let note = |gone: &mut Gone, who: &Principal, id: &SessionId| {
            let lost = Lost { id: id.clone(), why: LostReason::Evicted };
            gone.note(who, FoundBy::Name(id.clone()), lost);
        };
        let (first, mut gone) = (SessionId::mint(), Gone::default());
        note(&mut gone, &alice, &first);
        assert_eq!(gone.why(&alice, &first), Some(LostReason::Evicted));
        assert_eq!(gone.why(&bob, &first), None);
        for _ in 0..=REMEMBERED {
            note(&mut gone, &bob, &SessionId::mint());
        }
        assert_eq!(gone.0[&bob].sessions.len(), REMEMBERED);
        assert!(gone.why(&alice, &first).is_some(), "what bob lost is none of hers");
        for _ in 0..REMEMBERED {
            note(&mut gone, &alice, &SessionId::mint());
        }
        assert_eq!(gone.why(&alice, &first), None);
    }

    #[test]
    fn so_many_runs_are_remembered_of_each_caller_and_no_more() {
        let (who, mut gone) = (Principal::local(), Gone::default());
        let first = RunId::mint();
        gone.note_runs(&who, [first.clone()].into_iter());
        assert!(gone.had_run(&who, first.as_str()));
        gone.note_runs(&who, (0..REMEMBERED_RUNS).map(|_| RunId::mint()));
        assert_eq!(gone.0[&who].runs.len(), REMEMBERED_RUNS);
        // `had_run` is not tested here: a later run may have the same name by chance.
        assert_ne!(gone.0[&who].runs.front(), Some(&first));
    }

    #[test]
    fn what_is_made_anew_is_told_of_once() {
        let (who, mut gone) = (Principal::local(), Gone::default());
        let by = FoundBy::Workspace(WorkspaceId::Named("default".parse().expect("valid")));
        let lost = |why| Lost { id: SessionId::mint(), why };
        gone.note(&who, by.clone(), lost(LostReason::Evicted));
        gone.note(&who, by.clone(), lost(LostReason::Died));
        let taken = gone.take(&who, &by).expect("remembered");
        assert_eq!(taken.why, LostReason::Died, "the last of them");
        assert_eq!(gone.take(&who, &by), None);
    }
}
