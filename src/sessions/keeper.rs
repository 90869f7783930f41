//! Keeps the pool full: starts what is missing, and closes what is out of date.

use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::{Sessions, pool::Pooled};

/// How long the permit of one that was taken stays free: its first run has the processors first.
const PAUSE_AFTER_TAKE: Duration = Duration::from_secs(1);

/// How often the pool is compared with the image.
const REVIEW_INTERVAL: Duration = Duration::from_secs(10);

/// Pause after a start that failed, which doubles with each up to the last.
const RETRY_PAUSES: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(300));

/// Keeps the pool full until the server ends.
pub async fn keep(sessions: Sessions) {
    let size = sessions.config().pool_size;
    let pool = sessions.pool();
    let mut pause = RETRY_PAUSES.0;
    if size == 0 {
        return;
    }
    loop {
        let image = sessions.backend().template().await.map(|template| template.id);
        // An engine that does not say is no reason to begin anew.
        for outdated in image.as_deref().map(|image| pool.outdated(image)).unwrap_or_default() {
            tracing::info!(session_id = %outdated.handle.id, "pooled sandbox has another image");
            outdated.close().await;
        }
        let taken = pool.taken();
        let start = || sessions.start_pooled().map(|handle| Pooled::starting(handle, image));
        if pool.len() < size
            && let Some(handle) = pool.add(start)
        {
            // Also takes until the start is over.
            if handle.is_well().await {
                pool.mark_started(handle.number);
                pause = RETRY_PAUSES.0;
            } else if taken == pool.taken() {
                sleep(pause).await;
                pause = (pause * 2).min(RETRY_PAUSES.1);
            } else {
                sleep(PAUSE_AFTER_TAKE).await;
            }
            continue;
        }
        if timeout(REVIEW_INTERVAL, pool.changed.notified()).await.is_ok() {
            sleep(PAUSE_AFTER_TAKE).await;
        }
    }
}
