//! How connections to servers of MCP begin, in both generations of the protocol.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use config::upstreams::Reached;
use model::text::quoted;
use rmcp::{
    ClientHandler, Peer, RoleClient,
    model::{
        ClientCapabilities, ClientConfig, Implementation, ProtocolVersion, SubscriptionFilter,
    },
    service::{
        ClientCacheConfig, ClientInitializeError, ClientLifecycleMode, NotificationContext,
        serve_client_with_lifecycle,
    },
};

use super::{
    Client, GRACE, Running, http,
    process::{self, Process},
};

/// The handler of what a server asks or reports. It has no capabilities: servers cannot ask for a model or a person.
pub(super) struct Handler {
    changes: Arc<AtomicU64>,
}

impl ClientHandler for Handler {
    fn get_info(&self) -> ClientConfig {
        let own = Implementation::new("llm-sandbox", env!("CARGO_PKG_VERSION"));
        ClientConfig::new(ClientCapabilities::default(), own)
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.changes.fetch_add(1, Ordering::Relaxed);
    }
}

impl Client {
    /// Opens a connection with the newest generation of the protocol that the server knows.
    pub(super) async fn open(&self) -> Result<(Running, Option<Process>), String> {
        let first = self.open_as(self.is_old.load(Ordering::Relaxed)).await;
        let (running, process) = match first {
            // An old server may end at a request that it does not know, or answer it after the time in which a newer
            // one must have answered.
            Err(_)
                if !self.is_old.load(Ordering::Relaxed)
                    && !self.words.lock().is_given_up()
                    && matches!(self.settings.reached, Reached::Command { .. }) =>
            {
                self.open_as(true).await
            }
            first => first,
        }
        .map_err(|(error, status)| self.why_not(&error, status))?;
        let info = running.peer().peer_info();
        let is_old = info.as_ref().is_some_and(|info| info.protocol_version.has_initialize());
        self.is_old.store(is_old, Ordering::Relaxed);
        running.peer().set_response_cache_config(ClientCacheConfig::disabled()).await;
        let reports = info.and_then(|info| info.capabilities.tools.as_ref()?.list_changed);
        if !is_old && reports == Some(true) {
            self.listen(running.peer().clone());
        }
        Ok((running, process))
    }

    /// Why a connection could not be opened, with how its process ended.
    fn why_not(&self, error: &ClientInitializeError, status: Option<String>) -> String {
        let words = self.words.lock();
        let status = status.filter(|_| !words.is_given_up());
        match (words.stray().map(quoted), status) {
            (Some(line), None) => format!("it is not an MCP server: it writes {line}"),
            (Some(line), Some(status)) => {
                format!("it is not an MCP server: it wrote {line}, and {status}")
            }
            (None, status) => status.unwrap_or_else(|| not_opened(error)),
        }
    }

    async fn open_as(
        &self,
        is_old: bool,
    ) -> Result<(Running, Option<Process>), (ClientInitializeError, Option<String>)> {
        let mode = if is_old {
            ClientLifecycleMode::Initialize
        } else {
            ClientLifecycleMode::Auto {
                preferred_versions: vec![ProtocolVersion::V_2026_07_28],
                legacy_version: Some(ProtocolVersion::LATEST_WITH_INITIALIZE),
            }
        };
        let handler = Handler { changes: self.changes.clone() };
        let failed = |why: String| (ClientInitializeError::Cancelled, Some(why));
        match &self.settings.reached {
            Reached::Command { .. } => {
                let (mut process, transport) =
                    process::start(&self.settings, &self.words).map_err(failed)?;
                match serve_client_with_lifecycle(handler, transport, mode).await {
                    Ok(running) => Ok((running, Some(process))),
                    Err(error) => {
                        let status = process.status(GRACE).await;
                        process.end(Duration::ZERO).await;
                        Err((error, status))
                    }
                }
            }
            Reached::Mcp { .. } => {
                let transport = http::transport(&self.settings).map_err(failed)?;
                let running = serve_client_with_lifecycle(handler, transport, mode).await;
                running.map(|running| (running, None)).map_err(|error| (error, None))
            }
            Reached::Http { .. } => Err(failed("it is no server of MCP".into())),
        }
    }

    /// Listens to changes of the list, as the newer generation reports them, until the connection ends.
    fn listen(&self, peer: Peer<RoleClient>) {
        let changes = self.changes.clone();
        tokio::spawn(async move {
            let filter = SubscriptionFilter::builder().tools_list_changed().build();
            let Ok(mut subscription) = peer.listen(filter).await else { return };
            while let Ok(Some(_)) = subscription.next().await {
                changes.fetch_add(1, Ordering::Relaxed);
            }
            // Changes are no longer reported, or some were missed.
            changes.fetch_add(1, Ordering::Relaxed);
        });
    }
}

/// Why a connection could not be opened.
fn not_opened(error: &ClientInitializeError) -> String {
    match error {
        ClientInitializeError::TransportError { error, .. } => {
            http::told(error).unwrap_or_else(|| error.error.to_string())
        }
        ClientInitializeError::LegacyFallbackFailed { fallback, .. } => not_opened(fallback),
        ClientInitializeError::JsonRpcError(error) => error.message.to_string(),
        ClientInitializeError::ConnectionClosed(_) => "it ended the connection".into(),
        // Others would quote whole messages.
        _ => "it does not begin as a server of MCP does".into(),
    }
}
