//! The state that all requests share.

use std::sync::Arc;

use model::Principal;

use super::{
    access::Access,
    connections,
    error::{ApiError, Result},
    forward::Peers,
    hosts::Hosts,
    limits::Limits,
    readiness::Readiness,
    viewer::Waiters,
};
use crate::{
    budget::{Budget, Lease},
    request::McpService,
    session::PieceSizes,
    sessions::Sessions,
    signed_urls::SignedUrls,
};

/// The state of one server. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Shared {
    pub(super) sessions: Sessions,
    pub(super) hosts: Arc<Hosts>,
    pub(super) access: Access,
    /// The access of viewers, with separate counts.
    pub(super) viewers: Access,
    /// Permits for requests that wait for changes.
    pub(super) waiters: Arc<Waiters>,
    pub(super) urls: SignedUrls,
    pub(super) mcp: Option<Arc<dyn McpService>>,
    /// The memory budget of requests: messages, answers, listings.
    pub(super) memory: Budget,
    pub(super) readiness: Readiness,
    pub(super) pieces: PieceSizes,
    pub(super) limits: Limits,
    /// The servers that share callers with this one.
    pub(super) peers: Option<Peers>,
    /// Whether requests come from those servers.
    pub(super) is_for_peers: bool,
}

/// Memory that a listing of a session takes at most, in bytes, before its size is known.
const MAX_LISTING_BYTES: usize = 8 << 20;

impl Shared {
    /// Leases memory for a listing that is about to be created.
    ///
    /// # Errors
    /// If no memory is free in time.
    pub(super) async fn memory_for_listing(&self, client: &Principal) -> Result<Lease> {
        let mut lease = self.memory.lease(client);
        if let Some(connection) = connections::cut_off() {
            // A reader that has stopped reading notices nothing but the end of its connection.
            lease.revoke_by(connection);
        }
        lease.grow(MAX_LISTING_BYTES).await.map_err(|_| ApiError::NoMemory)?;
        Ok(lease)
    }

    /// Leases memory, in bytes, for a request in progress. The lease is not revoked.
    ///
    /// # Errors
    /// If no memory is free in time.
    pub(super) async fn memory_for(&self, client: &Principal, bytes: usize) -> Result<Lease> {
        let mut lease = self.memory.lease(client);
        lease.grow(bytes).await.map_err(|_| ApiError::NoMemory)?;
        lease.keep();
        Ok(lease)
    }
}
