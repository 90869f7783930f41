//! Limits for clients, so that none can harm the others. The module `link` limits what a sandbox may send.

use std::time::Duration;

use config::Config;

use crate::{
    budget::Share,
    request::{ANSWER_BYTES, longest_message},
};

/// Time and number limits of the HTTP server. They are not settings, because operators would have no better
/// values. Tests use their own.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Maximum time for the head of a request, and for a kept-alive connection without a new one. A normal
    /// client sends a head at once; one that sends it slowly occupies a place.
    pub head: Duration,
    /// Maximum time for a client to take no byte of an answer in progress, or to send none in the middle of a
    /// body. Long enough for a phone that changes networks; an inactive client cannot occupy a place forever.
    pub stall: Duration,
    /// Maximum time for requests in progress when the server ends.
    pub grace: Duration,
    /// Maximum time for the engine to say whether a sandbox could be started. A health check repeats its request
    /// rather than waits longer.
    pub ready: Duration,
    /// Connections of known clients at a time. At the limit, the client with the most loses one.
    pub connections: usize,
    /// Connections without a known client at a time. At the limit, a newer one cuts off an older one.
    pub strangers: usize,
    /// Requests that may wait for changes of sessions at a time, at most half of them of one client; further
    /// ones are answered at once.
    pub waiters: usize,
    /// Pieces of files of up to 1 MiB in memory at a time. This many downloads keep the processors busy;
    /// further ones use small pieces.
    pub large_pieces: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            // Common clients reuse a connection that was idle for up to 15 s.
            head: Duration::from_secs(20),
            stall: Duration::from_secs(60),
            grace: Duration::from_secs(2),
            ready: Duration::from_secs(10),
            // An MCP client keeps one or two connections for as long as it runs.
            connections: 768,
            strangers: 1024,
            waiters: 256,
            large_pieces: 16,
        }
    }
}

impl Limits {
    /// Memory for requests: for each client the longest message and an answer for each of its sessions; for
    /// all clients together somewhat more, so that no client can take all of it.
    pub(super) fn share(config: &Config) -> Share {
        const OTHERS: usize = 16 << 20;
        let client = longest_message(config) + config.max_sessions_per_client * ANSWER_BYTES;
        let others =
            config.max_sessions.saturating_sub(config.max_sessions_per_client) * ANSWER_BYTES;
        Share { total: client + others + OTHERS, client }
    }
}

/// Maximum number of bytes of a request's head. The longest path that can name a file takes 3 KiB, and browsers
/// add little; hyper's own limit is 400 KiB, for each connection.
pub(super) const MAX_HEAD: usize = 16 << 10;
