//! Making room for a session: permits, hibernating and ending sessions that are unused.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use tokio::sync::OwnedSemaphorePermit;

use crate::{
    error::{Error, OwnSession, Result},
    metrics::Full,
    session::{Phase, command::Command, handle::Handle},
    sessions::{
        Sessions,
        registry::{MostResting, Registry},
    },
};

/// Memory that the sessions of a caller may use together which hibernate without a permit, as a multiple of one
/// sandbox's memory limit.
const RESTING: u64 = 2;

/// The steps so far to make room for one session.
#[derive(Default)]
pub(super) struct Room {
    asked_to_rest: HashSet<u64>,
    asked_to_end: HashSet<u64>,
    /// The permit that another session gave up for it.
    permit: Option<OwnedSemaphorePermit>,
}

impl Sessions {
    /// Gets a permit for a session that hibernates without one, before it is used. If the session gives up its permit
    /// while a call is on its way, that call runs without one and the next call gets one.
    pub(super) async fn wake(&self, handle: &Handle) -> Result<()> {
        let mut room = Room::default();
        while handle.usage.resting().is_some() && !handle.is_ended() {
            match self.place_for(handle, &mut room) {
                // Fails if the session has ended: then it needs none.
                Ok(permit) => drop(handle.send(Command::Wake { permit }).await),
                Err(full) => self.make_room(full, &mut room).await?,
            }
        }
        Ok(())
    }

    /// A permit for a session that hibernates without one. The session counts as having it at once.
    fn place_for(
        &self,
        handle: &Handle,
        room: &mut Room,
    ) -> std::result::Result<OwnedSemaphorePermit, Full> {
        let registry = self.registry();
        if !self.has_quota(&registry) {
            return Err(Full::Client);
        }
        let permit = self.permit(room).ok_or(Full::Server)?;
        handle.usage.set_resting(None);
        Ok(permit)
    }

    pub(super) fn permit(&self, room: &mut Room) -> Option<OwnedSemaphorePermit> {
        room.permit.take().or_else(|| self.inner.permits.clone().try_acquire_owned().ok())
    }

    /// Makes room for one more session: closes a pooled sandbox, or else makes an unused session hibernate, or ends one
    /// that its caller has not used for long.
    pub(super) async fn make_room(&self, full: Full, room: &mut Room) -> Result<()> {
        if (matches!(full, Full::Server) && self.inner.pool.make_room().await)
            || self.rest_another(full, room).await
            || self.evict(room).await
        {
            return Ok(());
        }
        self.inner.metrics.refused(full);
        Err(self.too_many(full))
    }

    /// Makes the session hibernate that was unused for longest, and takes its permit. Returns false if every candidate
    /// has been asked.
    async fn rest_another(&self, full: Full, room: &mut Room) -> bool {
        let config = &self.inner.config;
        let (sessions, bytes) =
            (config.max_hibernated, config.memory_limit.saturating_mul(RESTING));
        let most = MostResting { sessions, bytes };
        if sessions == 0 {
            return false;
        }
        loop {
            let (next, surplus) = {
                let registry = self.registry();
                let is_enough = registry.rests_enough(&self.caller, most);
                let surplus = is_enough.then(|| registry.longest_resting(&self.caller)).flatten();
                let own = !is_enough || surplus.is_some();
                let others = matches!(full, Full::Server);
                let passed_over = &room.asked_to_rest;
                let next = registry.next_to_rest(&self.caller, [own, others], most, passed_over);
                (next, surplus)
            };
            let Some((is_own, handle)) = next else { return false };
            room.asked_to_rest.insert(handle.number);
            match handle.rest().await {
                Ok(Some(permit)) => {
                    room.permit = Some(permit);
                    if let Some(surplus) = surplus.filter(|_| is_own) {
                        let _ = surplus.evict(Duration::ZERO).await;
                    }
                    return true;
                }
                // It is in use now, or uses too much memory.
                Ok(None) => {}
                // The session has ended by itself, and its permit may be free.
                Err(_) => return true,
            }
        }
    }

    /// Ends the caller's own unnamed session that was unused for longest, if it was unused for the configured time. The
    /// session's task decides, and never ends while the session is in use. Returns false if every candidate has been
    /// asked.
    async fn evict(&self, room: &mut Room) -> bool {
        let Some(idle) = self.inner.config.evict_idle else { return false };
        loop {
            let Some(since) = Instant::now().checked_sub(idle) else { return false };
            let longest = self.registry().longest_idle(&self.caller, since, &room.asked_to_end);
            let Some(handle) = longest else { return false };
            room.asked_to_end.insert(handle.number);
            match handle.evict(idle).await {
                Ok(Some(permit)) => {
                    room.permit = Some(permit);
                    return true;
                }
                // It is in use now.
                Ok(None) => {}
                // The session has ended by itself, and its permit may be free.
                _ => return true,
            }
        }
    }

    fn too_many(&self, full: Full) -> Error {
        let (config, now) = (&self.inner.config, Instant::now());
        let registry = self.registry();
        let all = registry.of(&self.caller).map(|handle| {
            let idle = handle.idle_for(now);
            let state = match (handle.history.borrow().phase(), idle) {
                (Phase::Idle | Phase::Hibernating, None) => "in_use",
                (phase, _) => phase.as_str(),
            };
            OwnSession { id: handle.id.clone(), state, idle: idle.unwrap_or_default() }
        });
        let mut own: Vec<_> = all.collect();
        drop(registry);
        own.sort_unstable_by(|a, b| b.idle.cmp(&a.idle).then_with(|| a.id.cmp(&b.id)));
        match full {
            Full::Server => Error::MaxSessions { limit: config.max_sessions, own },
            Full::Client => Error::TooManySessions { limit: config.max_sessions_per_client, own },
        }
    }

    /// Whether the caller may have one more session.
    pub(super) fn has_quota(&self, registry: &Registry) -> bool {
        registry.places_of(&self.caller) < self.inner.config.max_sessions_per_client
    }
}
