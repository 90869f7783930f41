//! Removing the sandboxes of servers that have died, and none of a living server. A sweep needs nothing of the dead
//! server, so it also removes sandboxes that neither the end of their stream nor the server's guard has removed.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use super::{Backend, Life, ListedSandbox, OwnerId, SETTLING, SandboxState};

/// Whether a sandbox may be removed, depending on its owner.
///
/// | owner | running | never started, or ended |
/// |---|---|---|
/// | dead | removed | removed |
/// | alive | kept | kept |
/// | unknown | kept | removed when older than a minute |
/// | no valid owner | removed | removed when older than a minute |
///
/// A resumable sandbox is never removed while it runs: another server may have taken it over, which its mark does not
/// show, and if none has, it ends by itself.
pub fn may_remove(found: &ListedSandbox, now: SystemTime) -> bool {
    let owner = found.owner.as_ref().map(|owner| owner.life);
    if found.is_resumable && found.state == SandboxState::Running {
        return false;
    }
    match (owner, found.state) {
        (Some(Life::Dead), _) | (None, SandboxState::Running) => true,
        (Some(Life::Alive), _) | (Some(Life::Unknown), SandboxState::Running) => false,
        (_, SandboxState::Stopped) => {
            now.duration_since(found.created).is_ok_and(|age| age > SETTLING)
        }
    }
}

/// Removes leftovers once. Errors are only logged: a server works without sweeping.
pub async fn sweep(backend: &dyn Backend) {
    let all = match backend.list().await {
        Ok(all) => all,
        Err(error) => return tracing::debug!(%error, "sweep: failed to list sandboxes"),
    };
    for found in all {
        if may_remove(&found, SystemTime::now()) {
            match backend.remove(found.id.clone()).await {
                Ok(()) => tracing::info!(sandbox = found.id, "sweep: removed a leftover"),
                Err(error) => {
                    tracing::warn!(sandbox = found.id, %error, "sweep: failed to remove a leftover");
                }
            }
        }
    }
    backend.remove_unused_volumes().await;
}

/// Removes all sandboxes of one server, which must be dead, but those that are resumable and run. Repeats until no
/// more appear: the engine may still be executing the server's last requests.
pub async fn clear(backend: &dyn Backend, owner: &OwnerId) {
    /// Number of consecutive listings that must find nothing.
    const EMPTY_LISTINGS: u32 = 4;
    const LISTING_INTERVAL: Duration = Duration::from_millis(500);
    /// Maximum number of listings, after which the sweeps of other servers remove the rest.
    const MAX_LISTINGS: u32 = 40;

    let mut quiet = 0;
    for _ in 0..MAX_LISTINGS {
        quiet += 1;
        match backend.list().await {
            Ok(all) => {
                for found in all {
                    let holds = found.is_resumable && found.state == SandboxState::Running;
                    if !holds && found.owner.is_some_and(|of| of.id == *owner) {
                        let _ = backend.remove(found.id).await;
                        quiet = 0;
                    }
                }
            }
            // An engine that does not answer may recover; one that denies access will deny it later, too.
            Err(error) if error.kind.is_transient() => quiet = 0,
            Err(_) => return,
        }
        if quiet == EMPTY_LISTINGS {
            return;
        }
        tokio::time::sleep(LISTING_INTERVAL).await;
    }
}

/// Sweeps at once and then at every interval. Never returns.
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
    use crate::SandboxOwner;

    #[test]
    fn only_what_nobody_can_still_need_is_removed() {
        let now = SystemTime::now();
        let found = |alive: bool, age, life: Option<Life>| ListedSandbox {
            id: "x".into(),
            created: now - Duration::from_secs(age),
            state: if alive { SandboxState::Running } else { SandboxState::Stopped },
            owner: life.map(|life| SandboxOwner { id: "y".to_owned().into(), life }),
            is_resumable: false,
            caller: None,
            is_in_use: false,
        };
        let cases = [
            // running, age in seconds, owner -> removed
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
            let holds = ListedSandbox { is_resumable: true, ..found };
            assert_eq!(may_remove(&holds, now), removed && !alive, "{holds:?}");
        }
    }
}
