//! Decides who may be connected: places for connections, shared fairly. Pure but for the clock;
//! [`connections`](super::connections) carries out the decisions.
//!
//! ```text
//! accepted --> stranger --first request of a known client--> the client's
//!                 |                                              |
//!                 '-- a newer one needs room: cut off,           '-- all places of clients are taken: the
//!                     oldest first, of the peer that                 client with the most loses one
//!                     has the most
//! ```
//!
//! Occupying a stranger's place gains nothing: the next connection gets it. A client becomes known within
//! milliseconds of its connection, by its token or a signed URL.

use std::{
    collections::HashMap,
    hash::Hash,
    net::IpAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use model::Principal;
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

/// Time before a stranger may be cut off, for each round trip until its first request has arrived: enough from the other
/// side of the world.
const CUT_AFTER: Duration = Duration::from_millis(250);

/// Time before a stranger whose data has not been read yet may be cut off.
const CUT_UNREAD_AFTER: Duration = Duration::from_secs(1);

/// Maximum number of strangers that are cut off together. Finding them means searching all connections, which is not
/// needed for each new one this way.
const CUT_AT_ONCE: usize = 32;

/// Numbers of places.
#[derive(Debug, Clone, Copy)]
pub(super) struct Places {
    /// Places for connections without a known client.
    pub(super) strangers: usize,
    /// Places for connections of known clients; one client has at most three quarters.
    pub(super) clients: usize,
    /// Round trips until a stranger's first request has arrived.
    pub(super) round_trips: u32,
}

/// All connections of a server. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Seats(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    places: Places,
    taken: Mutex<Table>,
    freed: Notify,
}

#[derive(Debug, Default)]
struct Table {
    seats: HashMap<u64, Holder>,
    /// Strangers that have not been cut off.
    strangers: usize,
    next: u64,
}

#[derive(Debug)]
struct Holder {
    peer: IpAddr,
    client: Option<Principal>,
    /// Requests in progress, including the sending of their answers.
    requests: usize,
    since: Instant,
    /// Whether everything that the peer has sent was read.
    silent: Arc<AtomicBool>,
    /// Whether the connection was cut off and is about to end.
    leaving: bool,
    cut: CancellationToken,
}

/// A connection's place. Dropping the last clone gives it back.
#[derive(Debug, Clone)]
pub(super) struct Seat(Arc<Owned>);

#[derive(Debug)]
struct Owned {
    all: Arc<Inner>,
    number: u64,
    silent: Arc<AtomicBool>,
    cut: CancellationToken,
}

/// The client has reached its limit of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooMany;

/// A request in progress on a connection.
#[derive(Debug)]
pub(super) struct Busy(Seat);

impl Seats {
    pub(super) fn new(places: Places) -> Self {
        let (taken, freed) = Default::default();
        Self(Arc::new(Inner { places, taken, freed }))
    }

    /// Waits until there is room for one more stranger; cuts off older ones if necessary.
    pub(super) async fn room(&self) {
        loop {
            let freed = self.0.freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            let wait = {
                let mut taken = self.0.lock();
                if taken.strangers < self.0.places.strangers {
                    return;
                }
                let most = (self.0.places.strangers / CUT_AT_ONCE).clamp(1, CUT_AT_ONCE);
                let patience = CUT_AFTER * self.0.places.round_trips;
                match taken.strangers_to_cut(Instant::now(), most, patience) {
                    Ok(numbers) => {
                        for number in numbers {
                            taken.cut(number);
                        }
                        return;
                    }
                    Err(wait) => wait,
                }
            };
            let _ = tokio::time::timeout(wait, freed).await;
        }
    }

    /// Takes a place for a connection from this address.
    pub(super) fn take(&self, peer: IpAddr) -> Seat {
        let (cut, silent) = (CancellationToken::new(), Arc::<AtomicBool>::default());
        let mut taken = self.0.lock();
        let number = taken.next;
        taken.next += 1;
        let holder = Holder {
            peer: peer.to_canonical(),
            client: None,
            requests: 0,
            since: Instant::now(),
            silent: silent.clone(),
            leaving: false,
            cut: cut.clone(),
        };
        taken.seats.insert(number, holder);
        taken.strangers += 1;
        drop(taken);
        Seat(Arc::new(Owned { all: self.0.clone(), number, silent, cut }))
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// The strangers to cut off, of the address that has the most: the oldest without a request first, then
    /// others; or the time until one may be cut off.
    fn strangers_to_cut(
        &self,
        now: Instant,
        most_cut: usize,
        patience: Duration,
    ) -> Result<Vec<u64>, Duration> {
        let due = |holder: &Holder| {
            // A busy server may not have read the stranger's first request yet.
            let is_unread = holder.requests == 0 && !holder.silent.load(Ordering::Relaxed);
            let wait = if is_unread { CUT_UNREAD_AFTER.max(patience) } else { patience };
            wait.saturating_sub(now.saturating_duration_since(holder.since))
        };
        let staying = || {
            let strangers = self.seats.iter().filter(|(_, holder)| holder.client.is_none());
            strangers.filter(|(_, holder)| !holder.leaving)
        };
        let may_go = || staying().filter(|(_, holder)| due(holder).is_zero());
        let Some((peer, _)) = most(may_go().map(|(_, holder)| holder.peer)) else {
            return Err(staying().map(|(_, holder)| due(holder)).min().unwrap_or(patience));
        };
        let theirs = may_go().filter(|(_, holder)| holder.peer == peer);
        // A stranger's request takes long only on purpose: known clients are not strangers.
        let mut theirs: Vec<_> =
            theirs.map(|(number, holder)| (holder.requests > 0, *number)).collect();
        theirs.sort_unstable();
        Ok(theirs.into_iter().map(|(_, number)| number).take(most_cut).collect())
    }

    fn cut(&mut self, number: u64) {
        if let Some(holder) = self.seats.get_mut(&number).filter(|holder| !holder.leaving) {
            holder.leaving = true;
            holder.cut.cancel();
            self.strangers -= usize::from(holder.client.is_none());
        }
    }

    fn remove(&mut self, number: u64) {
        if let Some(holder) = self.seats.remove(&number) {
            self.strangers -= usize::from(holder.client.is_none() && !holder.leaving);
        }
    }

    /// Decides whether a client may have one more connection, and which one to cut off for it. A client that
    /// has its share loses its oldest one without a request. If all places of clients are taken, the client
    /// with the most loses one: the oldest without a request, else the oldest.
    fn give(&self, places: Places, client: &Principal) -> Result<Option<u64>, TooMany> {
        let known = || {
            let known = self.seats.iter().filter(|(_, holder)| !holder.leaving);
            known.filter_map(|(n, holder)| Some((*n, holder, holder.client.as_ref()?)))
        };
        let own = known().filter(|(_, _, owner)| *owner == client).count();
        if own >= (places.clients * 3).div_ceil(4) {
            let idle = known().filter(|(_, holder, of)| *of == client && holder.requests == 0);
            let oldest = idle.min_by_key(|(n, ..)| *n).ok_or(TooMany)?;
            return Ok(Some(oldest.0));
        }
        if known().count() < places.clients {
            return Ok(None);
        }
        match most(known().map(|(_, _, owner)| owner)) {
            Some((owner, held)) if held > own + 1 => {
                let theirs = known().filter(|(_, _, of)| *of == owner);
                let cut = theirs.min_by_key(|(n, holder, _)| (holder.requests > 0, *n));
                Ok(cut.map(|(number, ..)| number))
            }
            _ => Err(TooMany),
        }
    }
}

/// The most frequent item, and how often it occurs.
fn most<T: Hash + Eq>(all: impl Iterator<Item = T>) -> Option<(T, usize)> {
    let mut counts = HashMap::new();
    for one in all {
        *counts.entry(one).or_default() += 1;
    }
    counts.into_iter().max_by_key(|(_, count)| *count)
}

impl Seat {
    /// Assigns the connection to this client.
    ///
    /// # Errors
    /// If the client has reached its limit of connections.
    pub(super) fn known(&self, client: &Principal) -> Result<(), TooMany> {
        let Owned { all, number, .. } = &*self.0;
        let mut taken = all.lock();
        if taken.seats.get(number).is_some_and(|holder| holder.client.as_ref() == Some(client)) {
            return Ok(());
        }
        if let Some(in_the_way) = taken.give(all.places, client)? {
            taken.cut(in_the_way);
        }
        if let Some(holder) = taken.seats.get_mut(number) {
            let was_stranger = holder.client.replace(client.clone()).is_none() && !holder.leaving;
            taken.strangers -= usize::from(was_stranger);
        }
        drop(taken);
        all.freed.notify_waiters();
        Ok(())
    }

    /// Records whether everything sent on the connection was read, and the server waits for more.
    pub(super) fn is_silent(&self, silent: bool) {
        self.0.silent.store(silent, Ordering::Relaxed);
    }

    /// Whether the connection has no known client.
    pub(super) fn is_strangers(&self) -> bool {
        let taken = self.0.all.lock();
        taken.seats.get(&self.0.number).is_some_and(|holder| holder.client.is_none())
    }

    /// Counts a request in progress, until the result is dropped.
    pub(super) fn begin(&self) -> Busy {
        self.count(|requests| requests + 1);
        Busy(self.clone())
    }

    fn count(&self, change: impl FnOnce(usize) -> usize) {
        if let Some(holder) = self.0.all.lock().seats.get_mut(&self.0.number) {
            holder.requests = change(holder.requests);
        }
    }

    /// The token whose cancellation cuts off the connection.
    pub(super) fn cut_off(&self) -> CancellationToken {
        self.0.cut.clone()
    }

    /// Resolves when the connection is to be cut off.
    pub(super) async fn cut(&self) {
        self.0.cut.cancelled().await;
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.count(|requests| requests.saturating_sub(1));
        self.0.0.all.freed.notify_waiters();
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.all.lock().remove(self.number);
        self.all.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use config::auth::Tokens;
    use futures::FutureExt;
    use tokio::time::timeout;

    use super::*;

    const PLACES: Places = Places { strangers: 4, clients: 8, round_trips: 1 };

    fn client(name: &str) -> Principal {
        let tokens = Tokens::parse(&format!("{name}:x")).expect("valid");
        tokens.principal("x").expect("known")
    }

    fn peer(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    fn is_cut(seat: &Seat) -> bool {
        seat.cut().now_or_never().is_some()
    }

    fn silence(taken: &[Seat]) {
        for seat in taken {
            seat.is_silent(true);
        }
    }

    /// Silent strangers from these addresses that may be cut off now.
    async fn strangers(seats: &Seats, peers: &[u8]) -> Vec<Seat> {
        let taken: Vec<_> = peers.iter().map(|last| seats.take(peer(*last))).collect();
        silence(&taken);
        tokio::time::advance(CUT_AFTER).await;
        taken
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_stranger_of_the_busiest_address_makes_room() {
        let seats = Seats::new(PLACES);
        let taken = strangers(&seats, &[1, 2, 2, 2]).await;
        seats.room().await;
        assert_eq!(taken.iter().map(is_cut).collect::<Vec<_>>(), [false, true, false, false]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stranger_has_time_to_say_who_it_is() {
        let seats = Seats::new(PLACES);
        let taken: Vec<_> = (0..4).map(|_| seats.take(peer(1))).collect();
        assert!(timeout(CUT_AFTER, seats.room()).await.is_err(), "nothing of them was read");
        silence(&taken);
        seats.room().await;
        assert!(is_cut(&taken[0]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_stranger_has_a_moment_to_say_more() {
        let seats = Seats::new(PLACES);
        let taken: Vec<_> = (0..4).map(|_| seats.take(peer(1))).collect();
        silence(&taken);
        let before = Instant::now();
        seats.room().await;
        assert!(before.elapsed() >= CUT_AFTER && is_cut(&taken[0]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_stranger_with_a_request_goes_after_those_without() {
        let seats = Seats::new(PLACES);
        let taken = strangers(&seats, &[1, 1, 1, 1]).await;
        let _busy: Vec<_> = taken[..3].iter().map(Seat::begin).collect();
        seats.room().await;
        assert_eq!(taken.iter().map(is_cut).collect::<Vec<_>>(), [false, false, false, true]);
        let newer = seats.take(peer(1));
        seats.room().await;
        assert!(is_cut(&taken[0]), "an answer that nobody reads holds no place for long");
        assert!(!is_cut(&newer), "it has just come");
    }

    #[tokio::test(start_paused = true)]
    async fn a_known_client_is_no_stranger() {
        let seats = Seats::new(PLACES);
        let taken = strangers(&seats, &[1, 1, 1, 1]).await;
        taken[0].known(&client("a")).expect("room");
        assert!(seats.room().now_or_never().is_some());
        assert!(!taken.iter().any(is_cut));
    }

    #[tokio::test(start_paused = true)]
    async fn one_client_has_three_quarters_at_most() {
        let seats = Seats::new(PLACES);
        let (taken, a) = (strangers(&seats, &[1; 7]).await, client("a"));
        for seat in &taken[..6] {
            seat.known(&a).expect("room");
            seat.known(&a).expect("it is its already");
        }
        let busy: Vec<_> = taken[..6].iter().map(Seat::begin).collect();
        assert_eq!(taken[6].known(&a), Err(TooMany));
        drop(busy);
        taken[6].known(&a).expect("an old one makes room");
        assert!(is_cut(&taken[0]) && !taken[1..].iter().any(is_cut));
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_most_makes_room_for_who_has_fewer() {
        let seats = Seats::new(PLACES);
        let (a, b, c) = (client("a"), client("b"), client("c"));
        let taken = strangers(&seats, &[1; 12]).await;
        for (seat, owner) in taken.iter().zip([&a, &a, &a, &a, &a, &b, &b, &b]) {
            seat.known(owner).expect("room");
        }
        let _busy = taken[0].begin();
        taken[8].known(&c).expect("a makes room");
        assert!(!is_cut(&taken[0]) && is_cut(&taken[1]), "one without a request");
        taken[9].known(&c).expect("a makes room again");
        assert!(is_cut(&taken[2]));
        assert_eq!(taken.iter().filter(|seat| is_cut(seat)).count(), 2);
        assert_eq!(taken[10].known(&a), Err(TooMany), "nobody has more than it would have");
        assert_eq!(taken[11].known(&b), Err(TooMany));
    }

    #[tokio::test(start_paused = true)]
    async fn a_place_is_free_when_its_connection_is_gone() {
        let seats = Seats::new(PLACES);
        let taken = strangers(&seats, &[1; 4]).await;
        for seat in &taken {
            seat.known(&client("a")).expect("room");
        }
        let strangers: Vec<_> = (0..4).map(|_| seats.take(peer(1))).collect();
        assert!(seats.room().now_or_never().is_none());
        drop((taken, strangers));
        assert!(seats.room().now_or_never().is_some());
    }
}
