//! Memory that requests use in this process, in bytes, counted for each client and in total.
//!
//! Memory that a client can make the server use is leased here first: for the body of a message, for its answer, for a
//! listing that the client does not read. Dropping a lease releases it.
//!
//! ```text
//! lease --grow--> granted                      there is room
//!            |--> waits                        there is none, or this client has its share
//!            |      '--> a slow lease of a client that holds more is revoked
//!            '--> Exhausted                    after a minute
//! ```
//!
//! One client can never use all memory: the total is larger than a client's share. If clients together use all of it,
//! leases of the client that uses most are revoked if hardly any bytes of them move.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use model::Principal;
use parking_lot::{Mutex, MutexGuard};
use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};
use tokio_util::sync::CancellationToken;

/// Longest wait for room.
const GROW_TIMEOUT: Duration = Duration::from_secs(60);

/// Age from which a lease counts as slow, if it also moves fewer bytes a second than [`SLOW_BYTES_PER_S`].
const SLOW_AFTER: Duration = Duration::from_secs(5);

/// Rate in bytes a second below which an old lease counts as slow.
const SLOW_BYTES_PER_S: u64 = 1 << 20;

/// Limits of the memory that requests use.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Share {
    /// Limit of all clients together, in bytes.
    pub total: usize,
    /// Limit of one client, in bytes.
    pub client: usize,
}

/// The memory of one server. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Budget(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    share: Share,
    state: Mutex<State>,
    freed: Notify,
}

#[derive(Debug, Default)]
struct State {
    used: usize,
    clients: HashMap<Principal, usize>,
    leases: HashMap<u64, Held>,
    next: u64,
}

#[derive(Debug)]
struct Held {
    client: Principal,
    bytes: usize,
    since: Instant,
    /// Bytes that were transferred so far.
    moved: Arc<AtomicU64>,
    /// Cancelled to revoke the lease; `None` if it cannot be revoked.
    revoke: Option<CancellationToken>,
}

/// There was not enough room, and none became free in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too much memory is in use by requests of this client, or of all clients")]
pub struct Exhausted;

/// Memory that one request uses. Dropping the lease releases it.
#[derive(Debug)]
pub struct Lease {
    inner: Arc<Inner>,
    client: Principal,
    number: u64,
    moved: Arc<AtomicU64>,
    revoked: CancellationToken,
}

impl Budget {
    /// A budget without leases.
    pub(crate) fn new(share: Share) -> Self {
        Self(Arc::new(Inner { share, state: Mutex::default(), freed: Notify::new() }))
    }

    /// Returns an empty lease. It may be revoked until it is [kept](Lease::keep).
    pub(crate) fn lease(&self, client: &Principal) -> Lease {
        let (moved, revoked) = (Arc::<AtomicU64>::default(), CancellationToken::new());
        let mut state = self.0.lock();
        let number = state.next;
        state.next += 1;
        let held = Held {
            client: client.clone(),
            bytes: 0,
            since: Instant::now(),
            moved: moved.clone(),
            revoke: Some(revoked.clone()),
        };
        state.leases.insert(number, held);
        drop(state);
        Lease { inner: self.0.clone(), client: client.clone(), number, moved, revoked }
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

/// The answer to a request for more memory.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Granted,
    /// There is no room yet. The lease of this number, if any, should be revoked.
    Wait(Option<u64>),
    Never,
}

impl State {
    fn held_by(&self, client: &Principal) -> usize {
        self.clients.get(client).copied().unwrap_or(0)
    }

    /// Whether a client may use this many bytes more.
    fn ask(&self, share: Share, client: &Principal, more: usize, now: Instant) -> Verdict {
        let own = self.held_by(client).saturating_add(more);
        if more > share.client {
            return Verdict::Never;
        }
        if own > share.client {
            return Verdict::Wait(None);
        }
        if self.used.saturating_add(more) <= share.total {
            return Verdict::Granted;
        }
        let gives_way = |held: &&Held| {
            held.revoke.is_some() && held.is_slow(now) && self.held_by(&held.client) > own
        };
        let mut others = self.leases.iter().filter(|(_, held)| gives_way(held)).collect::<Vec<_>>();
        others.sort_by_key(|(_, held)| (self.held_by(&held.client), held.bytes));
        Verdict::Wait(others.last().map(|(number, _)| **number))
    }

    fn add(&mut self, number: u64, more: usize) {
        let Some(held) = self.leases.get_mut(&number) else { return };
        held.bytes += more;
        self.used += more;
        *self.clients.entry(held.client.clone()).or_default() += more;
    }

    fn give_back(&mut self, number: u64, bytes: usize) {
        let Some(held) = self.leases.get_mut(&number) else { return };
        held.bytes -= bytes;
        self.used -= bytes;
        if let Some(all) = self.clients.get_mut(&held.client) {
            *all -= bytes;
            if *all == 0 {
                self.clients.remove(&held.client);
            }
        }
    }
}

impl Held {
    fn is_slow(&self, now: Instant) -> bool {
        let age = now.saturating_duration_since(self.since);
        age > SLOW_AFTER && self.moved.load(Ordering::Relaxed) < age.as_secs() * SLOW_BYTES_PER_S
    }
}

impl Lease {
    /// Takes this many bytes more as soon as there is room for them.
    ///
    /// # Errors
    /// If there is no room within a minute, `more` is over the client's share, or the lease is revoked meanwhile.
    pub async fn grow(&mut self, more: usize) -> Result<(), Exhausted> {
        let until = Instant::now() + GROW_TIMEOUT;
        loop {
            let freed = self.inner.freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            {
                let mut state = self.inner.lock();
                match state.ask(self.inner.share, &self.client, more, Instant::now()) {
                    Verdict::Granted => {
                        state.add(self.number, more);
                        return Ok(());
                    }
                    Verdict::Never => return Err(Exhausted),
                    Verdict::Wait(gives_way) => {
                        let revoke = gives_way.and_then(|number| state.leases.get(&number));
                        if let Some(revoke) = revoke.and_then(|held| held.revoke.as_ref()) {
                            revoke.cancel();
                        }
                    }
                }
            }
            // Checked from time to time, too, as a lease becomes slow without any memory being released.
            let next = until.min(Instant::now() + SLOW_AFTER / 5);
            tokio::select! {
                _ = timeout_at(next, freed) => {}
                () = self.revoked.cancelled() => return Err(Exhausted),
            }
            if Instant::now() >= until {
                return Err(Exhausted);
            }
        }
    }

    /// Releases all but this many bytes.
    pub fn shrink_to(&mut self, bytes: usize) {
        let mut state = self.inner.lock();
        let over =
            state.leases.get(&self.number).map_or(0, |held| held.bytes.saturating_sub(bytes));
        state.give_back(self.number, over);
        drop(state);
        self.inner.freed.notify_waiters();
    }

    /// Notes that this many bytes were transferred: the lease is in use.
    pub fn moved(&self, bytes: usize) {
        self.moved.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Makes `token` the token that is cancelled to revoke the lease.
    pub fn revoke_by(&mut self, token: CancellationToken) {
        if let Some(held) = self.inner.lock().leases.get_mut(&self.number) {
            held.revoke = Some(token.clone());
        }
        self.revoked = token;
    }

    /// Protects the lease from being revoked from now on.
    pub fn keep(&mut self) {
        if let Some(held) = self.inner.lock().leases.get_mut(&self.number) {
            held.revoke = None;
        }
    }

    /// Resolves when the lease is revoked: another client needs the memory, and this one uses more. The lease is then
    /// to be dropped.
    pub async fn revoked(&self) {
        self.revoked.cancelled().await;
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.shrink_to(0);
        self.inner.lock().leases.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use config::auth::Tokens;
    use futures::FutureExt;
    use proptest::prelude::*;

    use super::*;

    const SHARE: Share = Share { total: 100, client: 60 };

    /// Three clients.
    fn clients() -> [Principal; 3] {
        let tokens = Tokens::parse("a:a,b:b,c:c").expect("valid");
        ["a", "b", "c"].map(|token| tokens.principal(token).expect("known"))
    }

    fn take(lease: &mut Lease, bytes: usize) -> Option<Result<(), Exhausted>> {
        lease.grow(bytes).now_or_never()
    }

    #[tokio::test]
    async fn one_client_has_its_share_and_leaves_the_rest_to_others() {
        let (budget, [a, b, _]) = (Budget::new(SHARE), clients());
        let (mut first, mut second) = (budget.lease(&a), budget.lease(&a));
        assert_eq!(take(&mut first, 61), Some(Err(Exhausted)), "more than a share");
        assert_eq!(take(&mut first, 60), Some(Ok(())));
        assert_eq!(take(&mut second, 1), None, "waits");
        let mut other = budget.lease(&b);
        assert_eq!(take(&mut other, 40), Some(Ok(())));
        drop(first);
        assert_eq!(take(&mut second, 60), Some(Ok(())));
    }

    #[tokio::test]
    async fn what_is_given_back_goes_to_who_waits() {
        let (budget, [a, ..]) = (Budget::new(SHARE), clients());
        let (mut first, mut second) = (budget.lease(&a), budget.lease(&a));
        first.grow(60).await.expect("room");
        let waiting = tokio::spawn(async move { second.grow(30).await });
        first.shrink_to(30);
        waiting.await.expect("no panic").expect("room");
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_in_vain_is_told() {
        let (budget, [a, ..]) = (Budget::new(SHARE), clients());
        let (mut first, mut second) = (budget.lease(&a), budget.lease(&a));
        first.grow(60).await.expect("room");
        assert_eq!(second.grow(1).await, Err(Exhausted));
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_lease_of_who_holds_most_gives_way_and_no_other() {
        let (budget, [a, b, c]) = (Budget::new(SHARE), clients());
        let mut held = [budget.lease(&a), budget.lease(&a), budget.lease(&b)];
        let [stalled, moving, others] = &mut held;
        stalled.grow(20).await.expect("room");
        moving.grow(40).await.expect("room");
        moving.moved(1 << 30);
        others.grow(40).await.expect("room");
        let mut new = budget.lease(&c);
        let growing = new.grow(10);
        let given = async {
            stalled.revoked().await;
            stalled.shrink_to(0);
        };
        tokio::join!(given, growing.map(|grown| grown.expect("room")));
        assert!(moving.revoked().now_or_never().is_none(), "its bytes move");
        assert!(others.revoked().now_or_never().is_none(), "it holds less");
    }

    #[tokio::test(start_paused = true)]
    async fn who_holds_as_much_as_is_asked_for_is_left_alone() {
        let (budget, [a, b, _]) = (Budget::new(SHARE), clients());
        let mut first = budget.lease(&a);
        first.grow(60).await.expect("room");
        let mut second = budget.lease(&b);
        assert_eq!(second.grow(60).await, Err(Exhausted));
        assert!(first.revoked().now_or_never().is_none());
        drop(first);
        second.grow(60).await.expect("room");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_kept_is_not_revoked() {
        let (budget, [a, b, _]) = (Budget::new(SHARE), clients());
        let mut first = budget.lease(&a);
        first.grow(60).await.expect("room");
        first.keep();
        let mut second = budget.lease(&b);
        assert_eq!(second.grow(50).await, Err(Exhausted));
        assert!(first.revoked().now_or_never().is_none());
    }

    proptest! {
        #[test]
        fn the_counts_are_those_of_the_leases(steps in prop::collection::vec((0usize..6, 0usize..50, any::<bool>()), 0..60)) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
            let runtime = runtime.expect("a runtime");
            let _entered = runtime.enter();
            let (budget, clients) = (Budget::new(SHARE), clients());
            let mut leases: Vec<_> = (0..6).map(|n| Some((budget.lease(&clients[n % 3]), 0))).collect();
            for (n, bytes, drops) in steps {
                if drops {
                    leases[n] = Some((budget.lease(&clients[n % 3]), 0));
                } else if let Some((lease, held)) = &mut leases[n]
                    && take(lease, bytes) == Some(Ok(()))
                {
                    *held += bytes;
                }
                let of = |client: usize| -> usize {
                    let own = leases.iter().enumerate().filter(|(n, _)| n % 3 == client);
                    own.filter_map(|(_, lease)| lease.as_ref().map(|(_, held)| held)).sum()
                };
                let state = budget.0.lock();
                for (n, client) in clients.iter().enumerate() {
                    prop_assert_eq!(state.held_by(client), of(n));
                    prop_assert!(of(n) <= SHARE.client);
                }
                prop_assert_eq!(state.used, of(0) + of(1) + of(2));
                prop_assert!(state.used <= SHARE.total);
            }
            drop(leases);
            let state = budget.0.lock();
            prop_assert_eq!((state.used, state.clients.len(), state.leases.len()), (0, 0, 0));
        }
    }
}
