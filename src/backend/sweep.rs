//! Removing what servers that have died left behind, and nothing that a living one owns: the leash
//! that catches what the others cannot, because it needs nothing of the dead server.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use super::{Backend, Found, FoundState, Life, OwnerId, SETTLING};

/// Whether a sandbox may be removed, by what is known of its owner.
///
/// | owner | running | never started, or ended |
/// |---|---|---|
/// | dead | removed | removed |
/// | alive | kept | kept |
/// | cannot be told | kept | removed when older than a minute |
/// | none that we understand | removed | removed when older than a minute |
///
/// One that holds its session is kept as long as it runs: another server may have gone on with it, which does not show
/// on it, and if none has, it ends by itself.
pub fn may_remove(found: &Found, now: SystemTime) -> bool {
    let owner = found.owner.as_ref().map(|owner| owner.life);
    if found.holds && found.state == FoundState::Running {
        return false;
    }
    match (owner, found.state) {
        (Some(Life::Dead), _) | (None, FoundState::Running) => true,
        (Some(Life::Alive), _) | (Some(Life::Unknown), FoundState::Running) => false,
        (_, FoundState::Stopped) => {
            now.duration_since(found.created).is_ok_and(|age| age > SETTLING)
        }
    }
}

/// Looks for leftovers once. Errors are logged: a server works without sweeping.
pub async fn sweep(backend: &dyn Backend) {
    let all = match backend.list().await {
        Ok(all) => all,
        Err(error) => return tracing::debug!(%error, "sweep: sandboxes cannot be listed"),
    };
    for found in all {
        if may_remove(&found, SystemTime::now()) {
            match backend.remove(found.id.clone()).await {
                Ok(()) => tracing::info!(sandbox = found.id, "sweep: leftover removed"),
                Err(error) => {
                    tracing::warn!(sandbox = found.id, %error, "sweep: leftover not removed");
                }
            }
        }
    }
}

/// Removes all that one server owns, which must be dead, until nothing comes up any more: an engine
/// may still be carrying out what the server asked of it last.
pub async fn clear(backend: &dyn Backend, owner: &OwnerId) {
    /// Listings in a row that must find nothing.
    const EMPTY_LISTINGS: u32 = 4;
    const LISTING_INTERVAL: Duration = Duration::from_millis(500);
    /// After these, what is left is left to other servers' sweeps.
    const MAX_LISTINGS: u32 = 40;

    let mut quiet = 0;
    for _ in 0..MAX_LISTINGS {
        quiet += 1;
        match backend.list().await {
            Ok(all) => {
                for found in all {
                    let holds = found.holds && found.state == FoundState::Running;
                    if !holds && found.owner.is_some_and(|of| of.id == *owner) {
                        let _ = backend.remove(found.id).await;
                        quiet = 0;
                    }
                }
            }
            // An engine that does not answer may come back; one that lets nobody in will not let us in
            // later.
            Err(error) if error.kind.is_transient() => quiet = 0,
            Err(_) => return,
        }
        if quiet == EMPTY_LISTINGS {
            return;
        }
        tokio::time::sleep(LISTING_INTERVAL).await;
    }
}

/// Sweeps at once and then at every interval, for ever.
pub async fn sweep_regularly(backend: Arc<dyn Backend>, interval: Duration) {
    let mut ticks = tokio::time::interval(interval);
    loop {
        ticks.tick().await;
        sweep(&*backend).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::FoundOwner;

    #[test]
    fn only_what_nobody_can_still_need_is_removed() {
        let now = SystemTime::now();
        let found = |alive: bool, age, life: Option<Life>| Found {
            id: "x".into(),
            created: now - Duration::from_secs(age),
            state: if alive { FoundState::Running } else { FoundState::Stopped },
            owner: life.map(|life| FoundOwner { id: "y".to_owned().into(), life }),
            holds: false,
            caller: None,
            is_in_use: false,
        };
        let cases = [
            // alive, age in seconds, owner -> removed
            (true, 3600, Some(Life::Alive), false),
            (false, 3600, Some(Life::Alive), false),
            (true, 0, Some(Life::Dead), true),
            (false, 0, Some(Life::Dead), true),
            (true, 3600, Some(Life::Unknown), false),
            (false, 0, Some(Life::Unknown), false),
            (false, 61, Some(Life::Unknown), true),
            (true, 0, None, true),
            (false, 0, None, false),
            (false, 61, None, true),
        ];
        for (alive, age, owner, removed) in cases {
            let found = found(alive, age, owner);
            assert_eq!(may_remove(&found, now), removed, "{found:?}");
            let holds = Found { holds: true, ..found };
            assert_eq!(may_remove(&holds, now), removed && !alive, "{holds:?}");
        }
    }
}
