//! The HTTP server, and the only place that names axum: files in and out and, if it is asked for, MCP. It parses
//! requests and renders answers; sessions do the work. It knows no tools: messages of MCP go to the service that
//! [`Listener::serve`] gets.
//!
//! ```text
//! accept --> seat? --> TLS, head --> host and origin --> whose sessions? --> caller, rate --> handler --> session
//!             |                                           '-- another server's: passed on
//!             '-- no: another connection is closed, or this one
//! ```
//!
//! - [`connections`]: accepts connections and cuts them off; [`seats`] decides who may be connected.
//! - [`tls`]: HTTPS, and the certificate's files.
//! - `router`: maps URLs to handlers; [`error`]: the answers of requests that fail.
//! - [`hosts`]: checks which host names requests may be for, and which sites' pages may call the server.
//! - [`forward`]: passes requests on to the server that has their caller's sessions.
//! - [`oauth`]: tells clients which authorization server has access tokens for this one.
//! - [`access`]: authenticates requests by token or signed URL, and limits their rate.
//! - [`mcp`]: messages of the protocol, for a service that the caller of [`Listener::serve`] provides.
//! - [`download`]: one file ([`conditions`] decides which part of it) or all of them ([`list`], [`archive`]).
//! - [`notebook`]: a session's runs, to be run again; [`script`]: its cells as plain Python.
//! - [`upload`]: files into a session.
//! - [`audited`]: entries in the audit file for files in and out; [`body`]: bodies that are watched while they are sent.
//! - [`viewer`]: the state of sessions, and the page that shows it to people.
//! - [`metrics`]: for the operator; [`readiness`]: whether a session could be started.

mod access;
mod archive;
mod audited;
mod body;
mod conditions;
mod connections;
mod download;
mod error;
mod forward;
mod hosts;
mod limits;
mod list;
mod mcp;
mod metrics;
mod notebook;
mod oauth;
mod readiness;
mod router;
mod script;
mod seats;
mod shared;
mod tls;
mod upload;
mod viewer;

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use config::Config;
use futures::future::OptionFuture;
use tokio::net::{TcpListener, TcpSocket};
use tokio_util::sync::CancellationToken;

use self::{
    access::Access,
    connections::Entry,
    forward::{PeerGate, Peers},
    hosts::Hosts,
    readiness::Readiness,
    router::router,
    shared::Shared,
    viewer::Waiters,
};
pub use self::{limits::Limits, router::rights, tls::Tls};
use crate::{
    budget::Budget, request::McpService, session::PieceSizes, sessions::Sessions,
    signed_urls::SignedUrls,
};

/// A bound listener, whose address is known before it serves.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
    /// The listener for other servers, if the settings have an address for it.
    peers: Option<TcpListener>,
    /// The certificate, for HTTPS.
    tls: Option<Arc<Tls>>,
    limits: Limits,
}

/// The action if a port is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortInUse {
    /// Bind another port: several servers may run on one host.
    UseAnother,
    /// Fail.
    Fail,
}

/// The address at which a listener on this one can be reached from this machine. A listener on all addresses
/// includes the loopback address, and clients cannot connect to "all addresses".
pub(crate) fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

impl Listener {
    /// Binds the host and port of the settings.
    ///
    /// # Errors
    /// If neither the port nor, if that is allowed, another one can be bound; or the address for other servers cannot.
    pub fn bind(config: &Config, in_use: PortInUse) -> io::Result<Self> {
        let wanted = SocketAddr::new(config.http_host, config.http_port);
        let socket = match listen(wanted) {
            Err(error)
                if error.kind() == io::ErrorKind::AddrInUse && in_use == PortInUse::UseAnother =>
            {
                tracing::info!(port = config.http_port, "port is in use, using another");
                listen(SocketAddr::new(config.http_host, 0))?
            }
            Err(error) => {
                let why = format!(
                    "{wanted}: {error}. Set SANDBOX_HTTP_HOST and SANDBOX_HTTP_PORT to another"
                );
                return Err(io::Error::new(error.kind(), why));
            }
            Ok(socket) => socket,
        };
        let address = socket.local_addr()?;
        let peers = config.peer_address.map(|address| {
            listen(address).map_err(|error| {
                let why = format!("SANDBOX_PEER_ADDRESS, {address}: {error}");
                io::Error::new(error.kind(), why)
            })
        });
        let (tls, limits) = Default::default();
        Ok(Self { socket, address, peers: peers.transpose()?, tls, limits })
    }

    /// The address of the listener.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Base of the URLs of files, without a slash at the end.
    pub fn base_url(&self, config: &Config) -> String {
        let own = || format!("{}://{}", config.scheme(), reachable(self.address));
        config.public_url.clone().unwrap_or_else(own)
    }

    /// Speaks HTTPS with this certificate, if there is one, except to other servers.
    #[must_use]
    pub fn with_tls(self, tls: Option<Arc<Tls>>) -> Self {
        Self { tls, ..self }
    }

    /// Replaces the default limits, for tests.
    #[must_use]
    pub fn with_limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    /// Serves until `stop` is cancelled: then the server answers requests in progress within its
    /// grace time, and downloads are cut off with their sandbox. MCP is served if a service for it
    /// is given.
    pub async fn serve(
        self,
        sessions: Sessions,
        urls: SignedUrls,
        mcp: Option<Arc<dyn McpService>>,
        stop: CancellationToken,
    ) {
        if let Some(oauth) = sessions.host().permissions().oauth() {
            // The first request need not wait for keys, and the log says whether they can be fetched.
            oauth.fetch();
        }
        let config = sessions.config();
        let engine = config.has_sessions().then(|| sessions.host().backend().clone());
        let shared = Shared {
            hosts: Arc::new(Hosts::new(config, self.address.ip())),
            access: Access::new(&sessions, urls.clone()),
            viewers: Access::new(&sessions, urls.clone()),
            waiters: Arc::new(Waiters::new(self.limits.waiters)),
            urls,
            mcp,
            memory: Budget::new(Limits::share(config)),
            readiness: Readiness::new(engine, self.limits.ready),
            pieces: PieceSizes::new(self.limits.large_pieces),
            limits: self.limits,
            peers: Peers::new(config),
            is_for_peers: false,
            sessions: sessions.clone(),
        };
        let of_peers = self.peers.map(|socket| {
            let shared = Shared { is_for_peers: true, ..shared.clone() };
            let entry = PeerGate::new(&sessions).map_or(Entry::Open, Entry::Peers);
            connections::serve(socket, router(shared), self.limits, entry, stop.clone())
        });
        let entry = self.tls.map_or(Entry::Open, Entry::Tls);
        let of_clients = connections::serve(self.socket, router(shared), self.limits, entry, stop);
        tokio::join!(of_clients, OptionFuture::from(of_peers));
    }
}

/// Maximum number of connections that may wait to be accepted; the kernel's own limit is 4096 as well.
const BACKLOG: u32 = 4096;

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // The port can be bound although connections of the previous server linger, as usual for servers.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}
