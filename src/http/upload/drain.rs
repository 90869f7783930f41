//! The body of an upload, of which some is read even where it is refused.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{
    body::{Body, BodyDataStream, Bytes},
    http::{HeaderMap, header},
};
use futures::{Stream, StreamExt};
use tokio::{sync::Mutex, time::timeout};

use crate::http::error::Result;

/// Time for what a client still sends after it was refused.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Most bytes of that.
const MAX_DRAINED_BYTES: usize = 64 << 20;

/// A body, and what of it has not been read when it is refused.
#[derive(Clone)]
pub(in crate::http) struct UnreadBody {
    body: Arc<Mutex<BodyDataStream>>,
    /// Nothing more is sent unless we ask for it, which is what reading does.
    waits: Arc<AtomicBool>,
}

impl UnreadBody {
    pub(in crate::http) fn new(headers: &HeaderMap, body: Body) -> Self {
        Self {
            body: Arc::new(Mutex::new(body.into_data_stream())),
            waits: Arc::new(AtomicBool::new(headers.contains_key(header::EXPECT))),
        }
    }

    pub(super) fn pieces(
        &self,
    ) -> impl Stream<Item = std::result::Result<Bytes, axum::Error>> + use<> {
        futures::stream::unfold(self.clone(), |unread| async {
            unread.waits.store(false, Ordering::Relaxed);
            // A form's reader takes all that is ready, and the end, before it looks at any of it.
            tokio::task::yield_now().await;
            let piece = unread.body.lock().await.next().await?;
            Some((piece, unread))
        })
    }

    /// Passes a result on. After an error some of what is still sent is taken first.
    pub(super) async fn finish<T>(&self, done: Result<T>) -> Result<T> {
        if done.is_err() {
            self.drain().await;
        }
        done
    }

    /// Takes some of what is still sent. A client that is cut off while it writes often does not read
    /// why.
    pub(in crate::http) async fn drain(&self) {
        if self.waits.load(Ordering::Relaxed) {
            return;
        }
        let mut taken = 0;
        let _ = timeout(DRAIN_TIMEOUT, async {
            while let Some(Ok(piece)) = self.body.lock().await.next().await {
                taken += piece.len();
                if taken > MAX_DRAINED_BYTES {
                    return;
                }
            }
        })
        .await;
    }
}
