//! Making room for a session: permits, hibernating and ending sessions that are unused.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use tokio::sync::OwnedSemaphorePermit;

use super::{
    Sessions,
    registry::{MostResting, Registry},
};
use crate::{
    error::{Error, OwnSession, Result},
    metrics::Full,
    session::{Phase, command::Command, handle::Handle},
};

/// Memory that the sessions of a caller may use together which hibernate without a permit, as a multiple of one
/// sandbox's memory limit.
const RESTING: u64 = 2;

/// Gives the session that has given up its permit another one before it is used. If the session gives it up again
/// while a call is on its way, that call runs without one and the next call gets one.
pub(super) async fn wake(sessions: &Sessions, handle: &Handle) -> Result<()> {
    let mut room = Room::new(sessions);
    while handle.usage.resting().is_some() && !handle.is_ended() {
        match room.place_for(handle) {
            // Fails if the session has ended: then it needs none.
            Ok(permit) => drop(handle.send(Command::Wake { permit }).await),
            Err(full) => room.make(full).await?,
        }
    }
    Ok(())
}

/// Whether this caller may have one more session.
pub(super) fn has_quota(sessions: &Sessions, registry: &Registry) -> bool {
    registry.places_of(&sessions.caller) < sessions.config().max_sessions_per_client
}

/// The steps so far to make room for one session.
pub(super) struct Room<'a> {
    sessions: &'a Sessions,
    asked_to_rest: HashSet<u64>,
    asked_to_end: HashSet<u64>,
    /// The permit that another session gave up.
    permit: Option<OwnedSemaphorePermit>,
}

impl<'a> Room<'a> {
    pub(super) fn new(sessions: &'a Sessions) -> Self {
        let (asked_to_rest, asked_to_end) = Default::default();
        Self { sessions, asked_to_rest, asked_to_end, permit: None }
    }

    /// A permit for a session that hibernates without one. The session counts as having it at once.
    fn place_for(&mut self, handle: &Handle) -> std::result::Result<OwnedSemaphorePermit, Full> {
        let registry = self.sessions.host.registry();
        if !has_quota(self.sessions, &registry) {
            return Err(Full::Client);
        }
        let permit = self.permit().ok_or(Full::Server)?;
        handle.usage.set_resting(None);
        Ok(permit)
    }

    /// The permit that another session gave up, or any free one.
    pub(super) fn permit(&mut self) -> Option<OwnedSemaphorePermit> {
        let permits = &self.sessions.host.permits;
        self.permit.take().or_else(|| permits.clone().try_acquire_owned().ok())
    }

    /// Makes room for one more session: closes a pooled sandbox, or else makes an unused session hibernate, or ends one
    /// that its caller has not used for long.
    pub(super) async fn make(&mut self, full: Full) -> Result<()> {
        let host = self.sessions.host();
        if (matches!(full, Full::Server) && host.pool.make_room().await)
            || self.rest_another(full).await
            || self.evict().await
        {
            return Ok(());
        }
        host.metrics.refused(full);
        host.metrics.refused_to(host.label(&self.sessions.caller), full);
        Err(self.too_many(full))
    }

    /// Makes the session hibernate that was unused for longest, and takes its permit. Returns false if every candidate
    /// has been asked.
    async fn rest_another(&mut self, full: Full) -> bool {
        let sessions = self.sessions;
        let (config, caller) = (sessions.config(), &sessions.caller);
        let bytes = config.memory_limit.saturating_mul(RESTING);
        let most = MostResting { sessions: config.max_hibernated, bytes };
        if most.sessions == 0 {
            return false;
        }
        loop {
            let (next, surplus) = {
                let registry = sessions.host.registry();
                let is_enough = registry.rests_enough(caller, most);
                let surplus = is_enough.then(|| registry.longest_resting(caller)).flatten();
                let own = !is_enough || surplus.is_some();
                let others = matches!(full, Full::Server);
                let passed_over = &self.asked_to_rest;
                let next = registry.next_to_rest(caller, [own, others], most, passed_over);
                (next, surplus)
            };
            let Some((is_own, handle)) = next else { return false };
            self.asked_to_rest.insert(handle.number);
            match handle.rest().await {
                Ok(Some(permit)) => {
                    self.permit = Some(permit);
                    if let Some(surplus) = surplus.filter(|_| is_own) {
                        let _ = surplus.evict(Duration::ZERO).await;
                    }
                    return true;
                }
                // The session is in use now, or uses too much memory.
                Ok(None) => {}
                // The session has ended by itself, and its permit may be free.
                Err(_) => return true,
            }
        }
    }

    /// Ends the caller's own unnamed session that was unused for longest, if it was unused for the configured time. The
    /// session's task decides, and never ends while the session is in use. Returns false if every candidate has been
    /// asked.
    async fn evict(&mut self) -> bool {
        let sessions = self.sessions;
        let Some(idle) = sessions.config().evict_idle else { return false };
        loop {
            let Some(since) = Instant::now().checked_sub(idle) else { return false };
            let asked = &self.asked_to_end;
            let longest = sessions.host.registry().longest_idle(&sessions.caller, since, asked);
            let Some(handle) = longest else { return false };
            self.asked_to_end.insert(handle.number);
            match handle.evict(idle).await {
                Ok(Some(permit)) => {
                    self.permit = Some(permit);
                    return true;
                }
                // The session is in use now.
                Ok(None) => {}
                // The session has ended by itself, and its permit may be free.
                _ => return true,
            }
        }
    }

    fn too_many(&self, full: Full) -> Error {
        let (config, now) = (self.sessions.config(), Instant::now());
        let registry = self.sessions.host.registry();
        let all = registry.of(&self.sessions.caller).map(|handle| {
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
}
