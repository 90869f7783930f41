//! Requests as both edges handle them: the memory of a request, and how the HTTP server calls MCP.
//!
//! ```text
//! http (bodies, access, headers) ---> McpService <--- mcp (messages of the protocol)
//! ```

use std::{convert::Infallible, fmt, sync::Arc};

use bytes::Bytes;
use config::Config;
use futures::future::BoxFuture;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::{Request, Response};
use model::Principal;

use crate::budget::{Exhausted, Lease};

/// Maximum memory that a call and its answer take beyond the request itself, in bytes: over HTTP an answer has at most
/// 1 MB, and exists as a value and as text.
pub(crate) const ANSWER_BYTES: usize = 1 << 20;

/// The error code, in MCP's messages, of requests that the server itself refuses.
pub(crate) const REFUSED: i32 = -32000;

/// Message for a client while it, or all clients together, use as much memory as they may.
pub(crate) const NO_MEMORY: &str =
    "The server's memory for requests is used up. Try again in a moment.";

/// Length of the longest message, in bytes: a file in base64, wrapped as command-line tools do it, or code of which
/// every byte is escaped; and 1 MiB for the rest of its JSON.
pub(crate) fn longest_message(config: &Config) -> usize {
    let upload = usize::try_from(config.max_message_upload() / 3 * 4).unwrap_or(usize::MAX);
    (upload + upload / 16).max(config.max_code * 6).saturating_add(1 << 20)
}

/// The memory of one request, from its body to its answer. Clones share it; dropping the last of them releases it.
#[derive(Debug, Clone)]
pub struct RequestMemory(Arc<tokio::sync::Mutex<Lease>>);

impl RequestMemory {
    /// Makes the memory of a request whose body the lease covers already.
    pub fn new(lease: Lease) -> Self {
        Self(Arc::new(tokio::sync::Mutex::new(lease)))
    }

    /// Takes this many bytes more as soon as there is room.
    ///
    /// # Errors
    /// If there is no room in time.
    pub(crate) async fn grow(&self, bytes: usize) -> Result<(), Exhausted> {
        self.0.lock().await.grow(bytes).await
    }

    /// Releases all but this many bytes.
    pub(crate) async fn shrink_to(&self, bytes: usize) {
        self.0.lock().await.shrink_to(bytes);
    }
}

/// A response over HTTP.
pub(crate) type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

/// MCP over HTTP, as the HTTP server calls it.
pub trait McpService: fmt::Debug + Send + Sync {
    /// Length of the longest request, in bytes.
    fn longest_request(&self) -> usize;

    /// Answers a request of this principal. Its body is counted in `memory`, and so will its answer be.
    ///
    /// # Errors
    /// If there is not enough memory in time.
    fn answer(
        &self,
        principal: Principal,
        memory: RequestMemory,
        request: Request<Bytes>,
    ) -> BoxFuture<'_, Result<Answer, Exhausted>>;
}
