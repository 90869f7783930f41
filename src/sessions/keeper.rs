//! Keeps the pool full: starts missing sandboxes, and closes outdated ones.

use std::{sync::Arc, time::Duration};

use tokio::time::{sleep, timeout};

use super::{host::Host, pool::Pooled, start::NewSession};

/// Pause before a sandbox that was taken is replaced: the first run of its session gets the processors first.
const PAUSE_AFTER_TAKE: Duration = Duration::from_secs(1);

/// Interval at which the pool is compared with the image.
const REVIEW_INTERVAL: Duration = Duration::from_secs(10);

/// Pauses after a failed start: the first, which doubles with each failure, and the longest.
const RETRY_PAUSES: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(300));

/// Keeps the pool full until the server ends.
pub(super) async fn keep(host: &Arc<Host>) {
    let (size, pool) = (host.config.pool_size, &host.pool);
    let mut pause = RETRY_PAUSES.0;
    if size == 0 {
        return;
    }
    loop {
        let image = host.backend.template().await.map(|template| template.id);
        let datasets = host.permissions.usual_datasets();
        for outdated in pool.outdated(image.as_deref(), &datasets) {
            let session_id = &outdated.handle.id;
            tracing::info!(%session_id, "pooled sandbox has another image or other datasets");
            outdated.close().await;
        }
        let taken = pool.taken();
        let start = || Some(Pooled::starting(NewSession::pooled(host)?.spawn(host), image));
        if pool.len() < size
            && let Some(handle) = pool.add(start)
        {
            // Also waits until the start is over.
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
