//! What one client may use, so that none can harm the others. What a sandbox may send is the
//! link's business.

use std::time::Duration;

use crate::{
    budget::Share,
    config::Config,
    request::{ANSWER_BYTES, longest_message},
};

/// Times and numbers of the artifact server. They are not settings: nobody who runs it would know
/// better values. Tests have their own.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Most time for the head of a request, and for a kept connection without a new one. A real
    /// client sends a head at once; one that trickles it holds a place.
    pub head: Duration,
    /// Most time without a byte taken by a client that has an answer under way, or without one sent
    /// by a client in the middle of a body. Long enough for a phone that changes networks; nobody
    /// gets a place for good by doing nothing.
    pub stall: Duration,
    /// Most time that requests under way have when the server ends.
    pub grace: Duration,
    /// Most time for the engine to say whether a sandbox could be started. Health checks ask
    /// again sooner than they wait longer.
    pub ready: Duration,
    /// Connections of known clients at a time. Where they have all of these, the one that has most makes room.
    pub connections: usize,
    /// Connections at a time on which no client is known yet: a newer one cuts off the oldest.
    pub strangers: usize,
    /// Requests that may wait for changes of sessions at a time, at most half of them of one client; more are
    /// answered at once.
    pub waiters: usize,
    /// Pieces of files of up to 1 MiB in memory at a time. So many downloads are more than the
    /// processors keep busy; others go on in small pieces.
    pub large_pieces: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            // Common clients keep a connection for up to 15 s and then take it for good.
            head: Duration::from_secs(20),
            stall: Duration::from_secs(60),
            grace: Duration::from_secs(2),
            ready: Duration::from_secs(10),
            // An MCP client holds one or two, for as long as it lives.
            connections: 768,
            strangers: 1024,
            waiters: 256,
            large_pieces: 16,
        }
    }
}

impl Limits {
    /// Memory that requests may hold: each client the longest message and an answer for each of its
    /// sessions, and all clients together somewhat more, so that none has everything.
    pub(super) fn share(config: &Config) -> Share {
        const OTHERS: usize = 16 << 20;
        let client = longest_message(config) + config.max_sessions_per_client * ANSWER_BYTES;
        let others =
            config.max_sessions.saturating_sub(config.max_sessions_per_client) * ANSWER_BYTES;
        Share { total: client + others + OTHERS, client }
    }
}

/// Most bytes of a request's head. The longest path that can name a file takes 3 KiB, and browsers
/// add little; hyper's own limit is 400 KiB, for each connection.
pub(super) const MAX_HEAD: usize = 16 << 10;
