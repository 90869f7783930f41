//! The body of an upload, which is read in part even if the upload is refused.

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

/// Time for data that a client still sends after a refusal.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum number of bytes that are read after a refusal.
const MAX_DRAINED_BYTES: usize = 64 << 20;

/// A body that may be only partly read when the upload is refused.
#[derive(Clone)]
pub(in crate::http) struct UnreadBody {
    body: Arc<Mutex<BodyDataStream>>,
    /// Whether the client still waits to be asked for its body (`Expect`). Reading asks for it.
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
            // A form's reader takes all pieces that are ready, and the end, before it processes them.
            tokio::task::yield_now().await;
            let piece = unread.body.lock().await.next().await?;
            Some((piece, unread))
        })
    }

    /// Passes a result on. After an error, first reads some of what the client still sends.
    pub(super) async fn finish<T>(&self, done: Result<T>) -> Result<T> {
        if done.is_err() {
            self.drain().await;
        }
        done
    }

    /// Reads some of what the client still sends. A client that is cut off while it writes often does not
    /// read the reason.
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
