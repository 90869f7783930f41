//! Shares callers between servers: which server has a caller's sessions (its home), and how sessions move here.
//!
//! ```text
//!   a request of a caller --> at home here? ------------------------> answered here
//!                                |-- elsewhere ---------------------> answered there
//!                                '-- nowhere, or it is dead --------> taken, sessions taken over, answered here
//! ```

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use backend::{CallerKey, Claim, Home, Homes, Life, ListedSandbox, SandboxState, SharesCallers};
use config::server_key::ServerKey;
use futures::{StreamExt, stream};
use model::Principal;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, timeout};

use super::{
    Sessions,
    adopt::{self, NotAdopted},
    turns::Turns,
};
use crate::{
    error::{Error, Result},
    peers::Proof,
    session::explain,
};

/// Longest time that a request waits for sessions to be taken over.
const ADOPTION: Duration = Duration::from_secs(10);

/// Pauses between attempts to take over sessions: the first, and the longest. Their sandboxes first have to notice that
/// the connection to the previous server has closed.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

/// A caller without a session or a request for this long is released, so that another server can be its home.
const IDLE: Duration = Duration::from_secs(600);

/// Interval at which idle callers are released.
const LOOK: Duration = Duration::from_secs(60);

/// Interval at which a waiting request checks whether its caller has moved to another server.
const GLANCE: Duration = Duration::from_secs(1);

/// Longest time that a request waits until a server that has just started knows the callers' homes.
const FIRST_LOOK: Duration = Duration::from_secs(5);

/// Maximum number of callers that are released at a time when the server ends.
const AT_ONCE: usize = 16;

/// The callers that this server shares with others.
#[derive(Debug)]
pub(super) struct Callers {
    secret: ServerKey,
    proof: Proof,
    turns: Turns<CallerKey>,
    /// Callers that were taken, some of whose sessions may not be here yet.
    settling: Mutex<HashMap<CallerKey, Instant>>,
    used: Mutex<HashMap<CallerKey, Instant>>,
    /// Time of the last handover of sessions to another server, which may not have taken them over yet.
    handed_over_at: Mutex<Option<Instant>>,
}

impl Callers {
    /// Starts without known callers. All servers share the secret.
    pub(super) fn new(secret: ServerKey) -> Self {
        let (turns, settling, used) = Default::default();
        Self {
            proof: Proof::of(&secret),
            secret,
            turns,
            settling,
            used,
            handed_over_at: Mutex::default(),
        }
    }

    /// The key of this caller among the servers.
    pub(super) fn key_of(&self, caller: &Principal) -> CallerKey {
        CallerKey::of(&self.secret, caller)
    }

    fn is_settled(&self, caller: &CallerKey) -> bool {
        !self.settling.lock().contains_key(caller)
    }

    /// Whether this server handed sessions over within this time. They wait for a server to take them over, which may be
    /// this one.
    pub(super) fn has_handed_over_within(&self, hold: Duration) -> bool {
        let handed_over_at = *self.handed_over_at.lock();
        handed_over_at.is_some_and(|at| at.elapsed() < hold)
    }
}

/// The callers that this server shares with others, and their sessions here.
#[derive(Clone, Copy)]
pub(crate) struct SharedCallers<'a> {
    sessions: &'a Sessions,
    callers: &'a Callers,
    pub(super) shared: &'a dyn SharesCallers,
    homes: &'a dyn Homes,
}

impl<'a> SharedCallers<'a> {
    pub(super) fn new(
        sessions: &'a Sessions,
        callers: &'a Callers,
        shared: &'a dyn SharesCallers,
    ) -> Self {
        Self { sessions, callers, shared, homes: shared.homes() }
    }

    /// The name of this server among the others; `None` before it has started.
    pub(crate) fn name(&self) -> Option<String> {
        self.homes.name()
    }

    /// The other servers that are the home of a caller.
    pub(crate) fn servers(&self) -> Vec<Claim> {
        self.homes.others()
    }

    /// The caller whose session has this number in its URLs, if that caller has a home.
    pub(crate) fn of_number(&self, number: u64) -> Option<CallerKey> {
        let prefix = u32::try_from(number >> u32::BITS).ok()?;
        // Two callers whose keys have the same prefix are practically impossible.
        self.homes.beginning_with(prefix).pop()
    }

    /// The server that has this caller's sessions; `None` if it is this one: then all of them are here. `gone` is a
    /// server that did not answer: the caller is taken over from it.
    ///
    /// # Errors
    /// If the home cannot be determined, or the sessions cannot be taken over yet.
    pub(crate) async fn home_of(
        &self,
        caller: &CallerKey,
        gone: Option<&Claim>,
    ) -> Result<Option<Claim>> {
        let Self { callers, homes, .. } = *self;
        match homes.known(caller) {
            Some(Home::Here) if callers.is_settled(caller) => {
                callers.used.lock().insert(caller.clone(), Instant::now());
                return Ok(None);
            }
            Some(Home::At(claim)) if gone != Some(&claim) => return Ok(Some(claim)),
            _ => {}
        }
        let _turn = callers.turns.of(caller.clone()).await;
        let instead_of = match homes.known(caller) {
            Some(Home::Here) if callers.is_settled(caller) => return Ok(None),
            Some(Home::At(claim)) if gone != Some(&claim) => return Ok(Some(claim)),
            Some(Home::At(claim) | Home::Left(claim)) => Some(claim),
            Some(Home::Here) | None => None,
        };
        let since = *callers.settling.lock().entry(caller.clone()).or_insert_with(Instant::now);
        if !matches!(homes.known(caller), Some(Home::Here)) {
            match homes.take(caller, instead_of).await {
                Ok(Home::Here) => {}
                Ok(Home::At(claim) | Home::Left(claim)) => {
                    callers.settling.lock().remove(caller);
                    return Ok(Some(claim));
                }
                Err(error) => {
                    callers.settling.lock().remove(caller);
                    return Err(Error::SandboxUnavailable(error.to_string()));
                }
            }
        }
        // Sandboxes wait for a server for `hold` and then end: one that has not answered until then is given up.
        let may_give_up = since.elapsed() > self.sessions.config().hold;
        if !self.adopt_of(caller).await && !may_give_up {
            let why = "Your sessions were on a server that is gone, and this one is taking them over. They go on, and so \
                       does what runs in them: call again in a moment.";
            return Err(Error::SandboxUnavailable(why.into()));
        }
        callers.used.lock().insert(caller.clone(), Instant::now());
        callers.settling.lock().remove(caller);
        Ok(None)
    }

    /// Resolves when this is no longer the caller's home.
    pub(crate) async fn moved_from(&self, caller: &CallerKey, home: &Claim) {
        while self.homes.known(caller).is_some_and(|it| it == Home::At(home.clone())) {
            sleep(GLANCE).await;
        }
    }

    /// Waits until the homes of all callers are known.
    ///
    /// # Errors
    /// If they are not known within [`FIRST_LOOK`].
    pub(crate) async fn known(&self) -> Result<()> {
        timeout(FIRST_LOOK, self.homes.seen()).await.map_err(|_| {
            let why = "The server cannot reach the cluster, and does not know which server has that session. Try again later.";
            Error::SandboxUnavailable(why.into())
        })
    }

    /// Whether this server is the caller's home. Takes a caller that has none.
    pub(super) async fn has(&self, caller: &CallerKey) -> bool {
        let homes = self.homes;
        match homes.known(caller) {
            Some(Home::Here) => true,
            Some(Home::At(_)) => false,
            Some(Home::Left(claim)) => {
                matches!(homes.take(caller, Some(claim)).await, Ok(Home::Here))
            }
            None => matches!(homes.take(caller, None).await, Ok(Home::Here)),
        }
    }

    /// Whether this server should take over this sandbox. The agent in it may still refuse. Returns false if the caller
    /// is taken here, as that takes over all of its sandboxes.
    pub(super) async fn is_to_adopt(&self, found: &ListedSandbox, reached: &Reached) -> bool {
        let Self { callers, homes, .. } = *self;
        let life = found.owner.as_ref().map(|owner| owner.life);
        // Only the agent's note says whose session the sandbox has. If the sandbox's server is not known to be dead,
        // the sandbox may be pooled, or wait for its own server.
        let Some(caller) = &found.caller else { return life == Some(Life::Dead) };
        let owner = found.owner.as_ref().map(|owner| owner.id.to_string());
        let gone = match homes.known(caller) {
            Some(Home::Here) => return callers.is_settled(caller),
            // The caller's home is the sandbox's own server, which does not answer.
            Some(Home::At(claim))
                if owner.as_deref() == Some(&claim.server)
                    && !reached.is(&callers.proof, &claim).await =>
            {
                Some(claim)
            }
            Some(Home::At(_)) => return false,
            Some(Home::Left(_)) | None => None,
        };
        // Boxed, because the call is recursive.
        if let Err(error) = Box::pin(self.home_of(caller, gone.as_ref())).await {
            tracing::debug!(%error, "failed to take over a caller's sessions");
        }
        false
    }

    /// Checks that the caller is at home here before a session is started: another server may have taken the caller
    /// since its request arrived.
    ///
    /// # Errors
    /// If the caller's home is another server, or unknown.
    pub(super) fn check_home(&self) -> Result<()> {
        match self.homes.known(&self.callers.key_of(&self.sessions.caller)) {
            Some(Home::Here) => Ok(()),
            _ => Err(explain::left()),
        }
    }

    /// Takes over all sessions of a caller that was taken. Returns false if some may follow later.
    async fn adopt_of(&self, caller: &CallerKey) -> bool {
        let until = Instant::now() + ADOPTION;
        let mut pause = PAUSES.0;
        loop {
            let may_be_adopted = |found: &ListedSandbox| {
                found.is_resumable && found.state == SandboxState::Running && !found.is_in_use
            };
            match self.shared.list_of(caller).await {
                Ok(all) => {
                    let left = all.into_iter().filter(may_be_adopted);
                    let asked = stream::iter(left)
                        .map(|found| async move { adopt::in_time(self.sessions, &found.id).await });
                    let asked: Vec<_> = asked.buffer_unordered(adopt::AT_ONCE).collect().await;
                    if !asked.contains(&Err(NotAdopted::Yet)) {
                        return true;
                    }
                }
                Err(error) => tracing::debug!(%error, "failed to list a caller's sandboxes"),
            }
            if Instant::now() + pause > until {
                return false;
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// Leaves the sessions of callers that other servers take, and releases idle callers. Runs forever.
    pub(super) async fn share(&self) {
        let mut look = tokio::time::interval(LOOK);
        loop {
            tokio::select! {
                caller = self.homes.taken() => self.let_go(&caller),
                _ = look.tick() => self.leave_idle().await,
            }
        }
    }

    /// Leaves the sessions of a caller that is no longer at home here to the caller's new server.
    fn let_go(&self, caller: &CallerKey) {
        tracing::info!("left a caller's sessions to another server");
        *self.callers.handed_over_at.lock() = Some(Instant::now());
        let registry = self.sessions.host.registry();
        for principal in registry.callers() {
            if self.callers.key_of(&principal) == *caller {
                for handle in registry.of(&principal) {
                    handle.let_go.cancel();
                }
            }
        }
    }

    async fn leave_idle(&self) {
        for caller in self.homes.here() {
            let _turn = self.callers.turns.of(caller.clone()).await;
            let used = *self.callers.used.lock().entry(caller.clone()).or_insert_with(Instant::now);
            if used.elapsed() < IDLE || self.has_sessions_of(&caller) {
                continue;
            }
            self.homes.leave(&caller, false).await;
            self.callers.used.lock().remove(&caller);
        }
    }

    fn has_sessions_of(&self, caller: &CallerKey) -> bool {
        let principals: HashSet<_> = self.sessions.host.registry().callers().collect();
        principals.iter().any(|it| self.callers.key_of(it) == *caller)
    }

    /// Gives up all callers, so that other servers can take them. Their sandboxes have been handed over before.
    pub(crate) async fn leave_all(&self) {
        stream::iter(self.homes.here())
            .for_each_concurrent(AT_ONCE, |caller| async move {
                self.homes.leave(&caller, true).await;
            })
            .await;
    }
}

/// Whether other servers answered at their addresses. Each server is tried once.
#[derive(Debug, Default)]
pub(super) struct Reached(tokio::sync::Mutex<HashMap<String, bool>>);

impl Reached {
    async fn is(&self, proof: &Proof, claim: &Claim) -> bool {
        let mut known = self.0.lock().await;
        if let Some(is) = known.get(&claim.server) {
            return *is;
        }
        let is = proof.connect(claim).await.is_ok();
        *known.entry(claim.server.clone()).or_insert(is)
    }
}
