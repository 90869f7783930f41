//! The sessions of each caller by name, the workspaces that they belong to, and why earlier ones ended. It starts and
//! ends no session.
//!
//! A name belongs to its caller: two callers may have a session of the same name, and neither can notice. The same
//! applies to workspaces.

use std::{
    collections::{HashMap, HashSet},
    time::{Duration, Instant},
};

use model::{Lost, LostReason, Principal, SessionId, SessionKey, WorkspaceId};

use super::{
    gone::{FoundBy, Gone},
    which::{Opened, Workspace},
};
use crate::{
    error::Error,
    session::{events::EndReason, handle::Handle},
};

/// A caller, and the name of one of its sessions.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    caller: Principal,
    id: SessionId,
}

/// All live sessions.
#[derive(Debug, Default)]
pub(super) struct Registry {
    live: HashMap<Key, Handle>,
    workspaces: HashMap<(Principal, WorkspaceId), Bound>,
    gone: Gone,
}

/// Limits for the sessions of one caller that hibernate without a permit.
#[derive(Debug, Clone, Copy)]
pub(super) struct MostResting {
    pub(super) sessions: usize,
    /// Memory that they use together: when this is reached, no further session may hibernate.
    pub(super) bytes: u64,
}

/// The session of a workspace.
#[derive(Debug)]
struct Bound {
    id: SessionId,
    number: u64,
    /// The note that the caller has not got yet.
    news: Option<News>,
}

/// The session of a workspace is new; `lost` is the one before it.
#[derive(Debug, Clone)]
struct News {
    lost: Option<Lost>,
}

impl Registry {
    pub(super) fn len(&self) -> usize {
        self.live.len()
    }

    pub(super) fn insert(&mut self, caller: &Principal, handle: Handle) {
        self.live.insert(Key::new(caller, &handle.id), handle);
    }

    /// Removes the session with this number, of any caller, and records why it ended, unless it has never started.
    /// Returns the session's key; `None` if it is not registered.
    pub(super) fn remove(&mut self, number: u64, why: Option<EndReason>) -> Option<SessionKey> {
        let ended = self.live.extract_if(|_, handle| handle.number == number).next();
        let key = ended.as_ref().map(|(Key { caller, id }, _)| SessionKey::of(caller, id));
        let lost = ended.and_then(|(Key { caller, id }, handle)| {
            let runs = handle.history.borrow().clone();
            self.gone.note_runs(&caller, runs.runs().map(|run| run.run_id.clone()));
            let lost = Lost { why: lost_by(why?, &handle)?, id };
            self.gone.note(&caller, FoundBy::Name(lost.id.clone()), lost.clone());
            Some(lost)
        });
        self.unbind(number, lost.as_ref());
        key
    }

    /// Releases the workspace of the session with this number.
    fn unbind(&mut self, number: u64, lost: Option<&Lost>) {
        for ((caller, key), bound) in self.workspaces.extract_if(|_, bound| bound.number == number)
        {
            // If the caller has never heard of this session, the one before it counts.
            let earlier = bound.news.and_then(|news| news.lost);
            if let Some(lost) = earlier.or_else(|| lost.cloned()) {
                self.gone.note(&caller, FoundBy::Workspace(key), lost);
            }
        }
    }

    /// The caller's session of this workspace.
    pub(super) fn find_workspace(
        &self,
        caller: &Principal,
        workspace: &Workspace,
    ) -> Option<(Opened, &Handle)> {
        let bound = self.workspaces.get(&(caller.clone(), workspace.id().clone()))?;
        let handle = self.find(caller, &bound.id).filter(|it| it.number == bound.number)?;
        let lost = bound.news.as_ref().and_then(|news| news.lost.clone());
        Some((Opened { id: bound.id.clone(), is_new: bound.news.is_some(), lost }, handle))
    }

    /// Binds a session that was just inserted to this workspace.
    pub(super) fn bind(
        &mut self,
        caller: &Principal,
        workspace: &Workspace,
        handle: &Handle,
    ) -> Opened {
        let key = workspace.id().clone();
        let lost = self.gone.take(caller, &FoundBy::Workspace(key.clone()));
        let (id, number) = (handle.id.clone(), handle.number);
        let news = Some(News { lost: lost.clone() });
        let bound = Bound { id: id.clone(), number, news };
        self.workspaces.insert((caller.clone(), key), bound);
        Opened { id, is_new: true, lost }
    }

    /// Records that the caller has been told that the session of this workspace is new, if it was.
    pub(super) fn told(&mut self, caller: &Principal, workspace: &Workspace) {
        if let Some(bound) = self.workspaces.get_mut(&(caller.clone(), workspace.id().clone())) {
            bound.news = None;
        }
    }

    /// The caller's earlier session with the name of one that was just started, if the earlier one is remembered.
    pub(super) fn take_lost(&mut self, caller: &Principal, id: &SessionId) -> Option<Lost> {
        self.gone.take(caller, &FoundBy::Name(id.clone()))
    }

    /// The caller's session of this name.
    pub(super) fn find(&self, caller: &Principal, id: &SessionId) -> Option<&Handle> {
        self.live.get(&Key::new(caller, id))
    }

    /// The caller that has the session with this name and number.
    pub(super) fn holder(
        &self,
        id: &SessionId,
        is_number: impl Fn(&Principal, u64) -> bool,
    ) -> Option<&Principal> {
        let mut all = self.live.iter().filter(|(key, _)| key.id == *id);
        let found = all.find(|(key, handle)| is_number(&key.caller, handle.number));
        found.map(|(key, _)| &key.caller)
    }

    /// Whether a live session of any caller has this number.
    pub(super) fn has_number(&self, number: u64) -> bool {
        self.all().any(|handle| handle.number == number)
    }

    /// The sessions of all callers.
    pub(super) fn all(&self) -> impl Iterator<Item = &Handle> {
        self.live.values()
    }

    /// The callers that have sessions, once for each session.
    pub(super) fn callers(&self) -> impl Iterator<Item = Principal> {
        self.live.keys().map(|key| key.caller.clone())
    }

    /// The caller's sessions.
    pub(super) fn of(&self, caller: &Principal) -> impl Iterator<Item = &Handle> {
        let own = self.live.iter().filter(move |(key, _)| key.caller == *caller);
        own.map(|(_, handle)| handle)
    }

    /// The caller's unnamed session that was unused for longest, and at least since that time. Sessions in
    /// `passed_over` are skipped.
    pub(super) fn longest_idle(
        &self,
        caller: &Principal,
        since: Instant,
        passed_over: &HashSet<u64>,
    ) -> Option<Handle> {
        let unnamed =
            self.of(caller).filter(|it| it.id.is_minted() && it.usage.resting().is_none());
        let idle = unnamed.filter_map(|handle| {
            let idle = handle.usage.idle_since().filter(|idle| *idle <= since)?;
            (!passed_over.contains(&handle.number)).then_some((idle, handle))
        });
        let longest = idle.min_by_key(|(idle, ..)| *idle);
        longest.map(|(_, handle)| handle.clone())
    }

    /// The number of the caller's sessions that have a permit.
    pub(super) fn places_of(&self, caller: &Principal) -> usize {
        self.of(caller).filter(|handle| handle.usage.resting().is_none()).count()
    }

    /// Whether no further session of the caller may hibernate without a permit.
    pub(super) fn rests_enough(&self, caller: &Principal, most: MostResting) -> bool {
        let resting = self.of(caller).filter_map(|handle| handle.usage.resting());
        let (count, bytes) =
            resting.fold((0, 0_u64), |(count, all), bytes| (count + 1, all.saturating_add(bytes)));
        count >= most.sessions || bytes >= most.bytes
    }

    /// The session that was unused for longest and may hibernate to make room for this caller, and whether it is the
    /// caller's own. Sessions in `passed_over` are skipped. Other callers give way only if they have more permits than
    /// this one and may have more sessions that hibernate without a permit.
    pub(super) fn next_to_rest(
        &self,
        caller: &Principal,
        [own, others]: [bool; 2],
        most: MostResting,
        passed_over: &HashSet<u64>,
    ) -> Option<(bool, Handle)> {
        let places = self.places_of(caller);
        let gives_way = |other: &Principal| {
            if other == caller {
                return own;
            }
            others && self.places_of(other) > places && !self.rests_enough(other, most)
        };
        let callers: HashSet<_> = self.live.keys().map(|key| &key.caller).collect();
        let giving: HashSet<_> = callers.into_iter().filter(|other| gives_way(other)).collect();
        let candidates = self.live.iter().filter(|(key, handle)| {
            handle.usage.resting().is_none()
                && !passed_over.contains(&handle.number)
                && giving.contains(&key.caller)
        });
        let idle =
            candidates.filter_map(|(key, handle)| Some((handle.usage.idle_since()?, key, handle)));
        let longest = idle.min_by_key(|(idle, ..)| *idle);
        longest.map(|(_, key, handle)| (key.caller == *caller, handle.clone()))
    }

    /// The caller's unnamed session that hibernates without a permit and was unused for longest.
    pub(super) fn longest_resting(&self, caller: &Principal) -> Option<Handle> {
        let resting =
            self.of(caller).filter(|it| it.id.is_minted() && it.usage.resting().is_some());
        let idle = resting.filter_map(|handle| Some((handle.usage.idle_since()?, handle)));
        idle.min_by_key(|(idle, _)| *idle).map(|(_, handle)| handle.clone())
    }

    /// The caller's session that has or had a run of this name.
    pub(super) fn with_run(&self, caller: &Principal, run_id: &str) -> Option<&Handle> {
        let has_run = |it: &&Handle| it.history.borrow().run(run_id).is_some();
        self.of(caller).find(|it| has_run(it) || it.results.of(run_id).is_some())
    }

    /// Whether a remembered ended session of the caller had a run of this name.
    pub(super) fn had_run(&self, caller: &Principal, run_id: &str) -> bool {
        self.gone.had_run(caller, run_id)
    }

    /// The error of a call that names a session which the caller does not have. `ttl` is the time that sessions may be
    /// unused.
    pub(super) fn not_found(&self, caller: &Principal, id: &SessionId, ttl: Duration) -> Error {
        match self.gone.why(caller, id) {
            Some(LostReason::Evicted) => Error::SessionEvicted(id.clone()),
            Some(LostReason::Expired(ttl)) if id.is_minted() => {
                Error::SessionEnded { id: id.clone(), ttl }
            }
            Some(_) if id.is_minted() => Error::SessionEnded { id: id.clone(), ttl },
            _ => Error::SessionNotFound(id.clone()),
        }
    }
}

/// Why a session ended, as its caller is told; `None` when the server ends, as no caller is told then.
fn lost_by(why: EndReason, handle: &Handle) -> Option<LostReason> {
    match why {
        EndReason::Closed => Some(LostReason::Closed),
        EndReason::Expired => Some(LostReason::Expired(handle.ttl)),
        EndReason::Evicted => Some(LostReason::Evicted),
        EndReason::Died => Some(LostReason::Died),
        EndReason::Shutdown => None,
    }
}

impl Key {
    fn new(caller: &Principal, id: &SessionId) -> Self {
        Self { caller: caller.clone(), id: id.clone() }
    }
}

#[cfg(test)]
mod tests {
    use config::auth::Tokens;

    use super::*;
    use crate::session::usage::Usage;

    fn callers() -> [Principal; 2] {
        let tokens = Tokens::parse("alice:a,bob:b").expect("valid");
        ["a", "b"].map(|token| tokens.principal(token).expect("known"))
    }

    /// A session that was used last at this time, or is in use.
    fn handle(id: &SessionId, number: u64, idle_since: Option<Instant>) -> Handle {
        let usage = Usage::default();
        usage.set(idle_since);
        Handle::detached(id.clone(), number, usage)
    }

    #[test]
    fn a_name_belongs_to_its_caller() {
        let ([alice, bob], id) = (callers(), SessionId::mint());
        let mut registry = Registry::default();
        registry.insert(&alice, handle(&id, 1, None));
        registry.insert(&bob, handle(&id, 2, None));
        let number = |registry: &Registry, who: &Principal| {
            registry.find(who, &id).map(|handle| handle.number)
        };
        assert_eq!((number(&registry, &alice), number(&registry, &bob)), (Some(1), Some(2)));
        let is = |number| move |_: &Principal, it| it == number;
        assert_eq!(registry.holder(&id, is(2)), Some(&bob));
        assert_eq!(registry.holder(&id, is(3)), None);
        assert_eq!(registry.holder(&SessionId::mint(), is(2)), None, "a number goes with its name");
        registry.remove(1, None);
        assert_eq!((number(&registry, &alice), number(&registry, &bob)), (None, Some(2)));
        assert_eq!(registry.of(&bob).count(), 1);
    }

    #[test]
    fn the_callers_unnamed_session_that_was_unused_for_longest_gives_way() {
        let [alice, bob] = callers();
        let now = Instant::now();
        let ago = |seconds| now.checked_sub(Duration::from_secs(seconds));
        let (first, second, recent, busy) =
            (SessionId::mint(), SessionId::mint(), SessionId::mint(), SessionId::mint());
        let mut registry = Registry::default();
        registry.insert(&alice, handle(&"reports".parse().expect("valid"), 1, ago(900)));
        registry.insert(&bob, handle(&SessionId::mint(), 2, ago(900)));
        registry.insert(&alice, handle(&second, 3, ago(70)));
        registry.insert(&alice, handle(&first, 4, ago(80)));
        registry.insert(&alice, handle(&recent, 5, ago(50)));
        registry.insert(&alice, handle(&busy, 6, None));
        let longest = |passed_over: &[u64]| {
            let passed_over = passed_over.iter().copied().collect();
            let since = ago(60).expect("a boot before");
            registry.longest_idle(&alice, since, &passed_over).map(|handle| handle.id)
        };
        assert_eq!(longest(&[]), Some(first));
        assert_eq!(longest(&[4]), Some(second));
        assert_eq!(longest(&[4, 3]), None);
    }

    #[test]
    fn a_session_rests_for_one_of_its_caller_or_of_one_with_fewer_places() {
        let [alice, bob] = callers();
        let now = Instant::now();
        let ago = |seconds| now.checked_sub(Duration::from_secs(seconds));
        let most = MostResting { sessions: 2, bytes: 100 };
        let mut registry = Registry::default();
        let [old, new, his] = [(1, 80), (2, 70), (3, 90)].map(|(number, seconds)| {
            let session = handle(&SessionId::mint(), number, ago(seconds));
            let caller = if number == 3 { &bob } else { &alice };
            registry.insert(caller, session.clone());
            session
        });
        let (none, hers) = (HashSet::new(), HashSet::from([1, 2]));
        let next = |registry: &Registry, caller, which, passed_over| {
            let next = registry.next_to_rest(caller, which, most, passed_over);
            next.map(|(is_own, handle)| (is_own, handle.number))
        };
        assert_eq!(
            next(&registry, &alice, [true, true], &none),
            Some((true, 1)),
            "his has one place"
        );
        assert_eq!(next(&registry, &bob, [false, true], &none), Some((false, 1)), "she has two");
        assert_eq!(next(&registry, &bob, [true, false], &none), Some((true, 3)));
        assert_eq!(next(&registry, &bob, [false, true], &hers), None);
        old.usage.set_resting(Some(99));
        assert!(!registry.rests_enough(&alice, most));
        assert_eq!(registry.places_of(&alice), 1);
        assert_eq!(next(&registry, &bob, [false, true], &none), None, "each has one place");
        new.usage.set_resting(Some(1));
        assert!(registry.rests_enough(&alice, MostResting { sessions: 9, ..most }), "their memory");
        assert!(registry.rests_enough(&alice, MostResting { bytes: 999, ..most }), "their number");
        assert!(!registry.rests_enough(&bob, most));
        assert_eq!(registry.longest_resting(&alice).map(|it| it.number), Some(1));
        assert_eq!(his.usage.resting(), None);
    }

    #[test]
    fn a_workspace_belongs_to_its_caller_and_to_one_session() {
        let ([alice, bob], name) = (callers(), "default".parse().expect("valid"));
        let (workspace, mut registry) = (Workspace::named(name), Registry::default());
        let insert = |registry: &mut Registry, who: &Principal, number| {
            let new = handle(&SessionId::mint(), number, None);
            registry.insert(who, new.clone());
            registry.bind(who, &workspace, &new)
        };
        let hers = insert(&mut registry, &alice, 1);
        assert!(hers.is_new && hers.lost.is_none());
        assert!(registry.find_workspace(&bob, &workspace).is_none());
        let his = insert(&mut registry, &bob, 2);
        let found = |registry: &Registry, who: &Principal| {
            registry.find_workspace(who, &workspace).map(|(opened, _)| opened)
        };
        assert_eq!(found(&registry, &alice), Some(hers.clone()));
        registry.told(&alice, &workspace);
        assert_eq!(found(&registry, &alice), Some(Opened { is_new: false, ..hers.clone() }));
        assert_eq!(found(&registry, &bob), Some(his), "nobody has told him");

        registry.remove(1, Some(EndReason::Evicted));
        assert_eq!(found(&registry, &alice), None);
        let again = insert(&mut registry, &alice, 3);
        assert_eq!(again.lost, Some(Lost { id: hers.id.clone(), why: LostReason::Evicted }));
        // She is told nothing of sessions that she never heard of: hers was the first.
        registry.remove(3, Some(EndReason::Died));
        let later = insert(&mut registry, &alice, 4);
        assert_eq!(later.lost, again.lost);
        registry.remove(4, None);
        assert_eq!(insert(&mut registry, &alice, 5).lost, again.lost);
    }
}
