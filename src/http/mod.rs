//! The HTTP server: the only place that names axum. Files in and out, and where it is asked for, MCP.
//!
//! - [`connections`]: accepting and cutting off; [`seats`] says who may be connected.
//! - [`hosts`]: which names the server goes by, and whose pages may talk to it.
//! - [`access`]: who comes in, by token or by a signed address, and how often.
//! - [`figures`]: what the operator is told; [`readiness`]: whether a session could be started.
//! - [`files`]: one download; [`conditions`] decides what of the file it is. [`archive`]: all of them.
//! - [`uploads`]: files the other way.
//! - [`overview`]: what the sessions do, and the [`page`] that shows it to people.

mod access;
mod archive;
mod conditions;
mod connections;
mod figures;
mod files;
mod hosts;
mod limits;
mod list;
mod overview;
mod page;
mod readiness;
mod seats;
mod uploads;
mod waiters;

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use axum::{
    Router,
    body::{Body, Bytes, to_bytes},
    extract::{Request, State},
    http::{HeaderName, HeaderValue, Method, StatusCode, header},
    middleware::{Next, from_fn, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::{any, get, post},
};
use bytes::BytesMut;
use futures::StreamExt;
use headers::{ContentLength, HeaderMapExt};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpSocket};
use tokio_util::sync::CancellationToken;
use tower_http::{cors::CorsLayer, timeout::RequestBodyTimeoutLayer};

pub use self::limits::Limits;
use self::{
    access::Access,
    connections::holding,
    hosts::{Hosts, Refusal},
    readiness::Readiness,
    uploads::Rest,
    waiters::Waiters,
};
use crate::{
    addresses::{Addresses, Base},
    budget::{Budget, Exhausted, Lease},
    config::Config,
    error::Error,
    mcp::http::{Endpoint, NO_ROOM, RequestMemory},
    session::Pieces,
    sessions::Sessions,
};

/// A bound listener, which can be asked for its address before it serves.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
    limits: Limits,
}

/// What to do about a port that is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// Take another, as several servers run on one host.
    UseAnother,
    /// Fail.
    Fail,
}

/// Where what listens on this address can be reached from this machine: every address means the loopback one,
/// too, and that one can be opened.
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
    pub fn bind(config: &Config, taken: Taken) -> io::Result<Self> {
        let wanted = SocketAddr::new(config.http_host, config.http_port);
        let socket = match listen(wanted) {
            Err(error)
                if error.kind() == io::ErrorKind::AddrInUse && taken == Taken::UseAnother =>
            {
                tracing::info!(port = config.http_port, "port is taken, another is used");
                listen(SocketAddr::new(config.http_host, 0))?
            }
            Err(error) => {
                let why = format!(
                    "{wanted}: {error}. SANDBOX_HTTP_HOST and SANDBOX_HTTP_PORT can name another"
                );
                return Err(io::Error::new(error.kind(), why));
            }
            Ok(socket) => socket,
        };
        let address = socket.local_addr()?;
        Ok(Self { socket, address, limits: Limits::default() })
    }

    /// The address that is listened on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Base of the addresses of files, without a slash at the end.
    pub fn base_url(&self, config: &Config) -> String {
        let own = || format!("http://{}", reachable(self.address));
        config.public_url.clone().unwrap_or_else(own)
    }

    /// Other limits than the usual ones, for tests.
    #[must_use]
    pub fn with_limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    /// Serves until `stop` is cancelled: requests under way then have a moment to be answered, and
    /// downloads are cut off with their sandbox. MCP is served if there is an endpoint for it.
    pub async fn serve(
        self,
        sessions: Sessions,
        addresses: Addresses,
        endpoint: Option<Endpoint>,
        stop: CancellationToken,
    ) {
        let config = sessions.config();
        let shared = Shared {
            hosts: Arc::new(Hosts::new(config, self.address.ip())),
            access: Access::new(config, addresses.clone()),
            lookers: Access::new(config, addresses.clone()),
            waiters: Arc::new(Waiters::new(self.limits.waiters)),
            addresses,
            endpoint,
            memory: Budget::new(Limits::share(config)),
            readiness: Readiness::new(sessions.backend().clone(), self.limits.ready),
            pieces: Pieces::new(self.limits.large_pieces),
            limits: self.limits,
            sessions: sessions.clone(),
        };
        connections::serve(self.socket, router(shared), self.limits, stop).await;
    }
}

/// Connections that may wait to be accepted; the kernel's own limit is 4096 as well.
const BACKLOG: u32 = 4096;

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // As for every server: the port is free although connections of the last one linger.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// What all requests share.
#[derive(Debug, Clone)]
struct Shared {
    sessions: Sessions,
    hosts: Arc<Hosts>,
    access: Access,
    /// The same for those who look, with counts of their own.
    lookers: Access,
    /// Places for those who wait for news.
    waiters: Arc<Waiters>,
    addresses: Addresses,
    endpoint: Option<Endpoint>,
    /// What requests hold: messages, answers, listings.
    memory: Budget,
    readiness: Readiness,
    pieces: Pieces,
    limits: Limits,
}

fn router(shared: Shared) -> Router {
    let all = get(files::all).post(uploads::post);
    let router = Router::new()
        .route("/", get(page::page))
        .route("/sessions", get(overview::list))
        .route("/sessions/{session}", get(overview::one).delete(overview::end))
        .route("/files", post(uploads::post))
        .route("/files/", post(uploads::post))
        .route("/files/{session}", all.clone())
        .route("/files/{session}/", all)
        .route(
            "/files/{session}/{*path}",
            get(files::download).put(uploads::put).post(uploads::post_to),
        )
        .route("/mcp", any(mcp))
        .route("/mcp/", any(mcp))
        .route("/health", get(|| async { reply(StatusCode::OK, &json!({ "status": "ok" })) }))
        .route("/ready", get(ready))
        .route("/metrics", get(figures::read))
        .fallback(|| async { not_found("There is nothing at this address.") })
        .method_not_allowed_fallback(|| async {
            let why = "There is no such method here.";
            refuse(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", why)
        });
    let config = shared.sessions.config();
    let router =
        if config.allowed_origins.is_empty() { router } else { router.layer(cors(config)) };
    router
        .layer(from_fn_with_state(shared.clone(), guard))
        .layer(from_fn_with_state(shared.clone(), figures::count))
        .layer(from_fn(connections::occupy))
        // Between two parts of a body, not for all of it.
        .layer(RequestBodyTimeoutLayer::new(shared.limits.stall))
        .with_state(shared)
}

/// What pages of the sites that the settings name may read. Whether they may come in is decided
/// before.
fn cors(config: &Config) -> CorsLayer {
    let origins = config.allowed_origins.iter();
    let origins: Vec<_> = origins.filter_map(|origin| HeaderValue::from_str(origin).ok()).collect();
    let named = |names: &[&'static str]| -> Vec<HeaderName> {
        names.iter().map(|name| HeaderName::from_static(name)).collect()
    };
    CorsLayer::new()
        .allow_origin(origins)
        .allow_methods([Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::DELETE])
        .allow_headers(named(&[
            "accept",
            "authorization",
            "baggage",
            "content-type",
            "if-none-match",
            "last-event-id",
            "mcp-method",
            "mcp-name",
            "mcp-protocol-version",
            "mcp-session-id",
            "prefer",
            "range",
            "traceparent",
            "tracestate",
        ]))
        .expose_headers(named(&[
            "accept-ranges",
            "content-disposition",
            "content-range",
            "etag",
            "mcp-session-id",
            "retry-after",
            "www-authenticate",
        ]))
}

/// One MCP request. Clients show what they are refused for only if that is a message of the protocol.
async fn mcp(State(shared): State<Shared>, request: Request) -> Response {
    let refusal = match converse(shared, request).await {
        Ok(response) => return response,
        Err(refusal) => *refusal,
    };
    let (mut head, body) = refusal.into_parts();
    let body = to_bytes(body, usize::MAX).await.unwrap_or_default();
    let data: Value = serde_json::from_slice(&body).unwrap_or_default();
    let error = json!({ "code": REFUSED, "message": data["message"], "data": data });
    let message = json!({ "jsonrpc": "2.0", "id": null, "error": error }).to_string();
    head.headers.remove(header::CONTENT_LENGTH);
    Response::from_parts(head, message.into())
}

/// The protocol's code for what the server decides.
const REFUSED: i32 = -32000;

/// The body is read here, as whether it comes in full is a matter of HTTP.
async fn converse(shared: Shared, request: Request) -> Result<Response, Box<Response>> {
    let Some(endpoint) = &shared.endpoint else {
        let why = "MCP is spoken over standard input and output here.";
        return Err(Box::new(not_found(why)));
    };
    let who = shared.access.principal(request.headers())?;
    let longest = endpoint.longest_request();
    let too_large = || {
        let limit = shared.sessions.config().max_upload;
        Box::new(failure(&Error::MessageTooLarge { limit }))
    };
    let length = request.headers().typed_get::<ContentLength>();
    let length = length.map(|ContentLength(length)| usize::try_from(length).unwrap_or(usize::MAX));
    let (head, body) = request.into_parts();
    if length.is_some_and(|length| length > longest) {
        Rest::new(&head.headers, body).linger().await;
        return Err(too_large());
    }
    let mut lease = shared.memory.lease(&who);
    let body = match receive(body, length, longest, &mut lease).await {
        Ok(body) => body,
        Err(NotReceived::TooLong) => return Err(too_large()),
        Err(NotReceived::NoRoom) => return Err(Box::new(no_room())),
        Err(NotReceived::BrokenOff) => {
            let why = "The message broke off.";
            return Err(Box::new(refuse(StatusCode::BAD_REQUEST, "bad_request", why)));
        }
    };
    lease.keep();
    let memory = RequestMemory::new(lease);
    let answer = endpoint.answer(who, memory.clone(), Request::from_parts(head, body)).await;
    // Until it has been sent.
    Ok(answer.map(|body| holding(Body::new(body), memory)))
}

/// Why there is no whole message.
enum NotReceived {
    TooLong,
    NoRoom,
    BrokenOff,
}

impl From<Exhausted> for NotReceived {
    fn from(_: Exhausted) -> Self {
        Self::NoRoom
    }
}

/// Reads a body. Its memory is leased before it comes: all of it if its length is known, else as it
/// comes.
async fn receive(
    body: Body,
    length: Option<usize>,
    longest: usize,
    lease: &mut Lease,
) -> Result<Bytes, NotReceived> {
    const STEP: usize = 64 << 10;
    const DOUBLES_TO: usize = 1 << 20;
    let mut leased = length.unwrap_or(0);
    lease.grow(leased).await?;
    let mut whole = BytesMut::with_capacity(leased);
    let mut pieces = body.into_data_stream();
    loop {
        let piece = tokio::select! {
            piece = pieces.next() => piece,
            () = lease.revoked() => return Err(NotReceived::NoRoom),
        };
        let Some(piece) = piece else { return Ok(whole.freeze()) };
        let piece = piece.map_err(|_| NotReceived::BrokenOff)?;
        let len = whole.len() + piece.len();
        if len > longest {
            return Err(NotReceived::TooLong);
        }
        // Whose length is not known grows by doubling, up to a point.
        let takes = if length.is_some() { len } else { len + len.min(DOUBLES_TO) };
        if takes > leased {
            let step = (takes - leased).max(STEP);
            lease.grow(step).await?;
            leased += step;
        }
        if len > whole.capacity() && len > DOUBLES_TO {
            // Growing by doubling would hold a long one twice; memory that nothing is written to costs
            // nothing.
            whole.reserve(longest - whole.len());
        }
        lease.moved(piece.len());
        whole.extend_from_slice(&piece);
    }
}

/// Turns away what is for another host, notes which one it was for, and gives every answer the headers
/// that make it harmless.
async fn guard(State(shared): State<Shared>, mut request: Request, next: Next) -> Response {
    let is_signed = hosts::is_signed(request.uri());
    let mut response = match shared.hosts.check(&request) {
        Ok(host) => {
            request.extensions_mut().insert(Base::at(host.as_str()));
            next.run(request).await
        }
        Err(Refusal::Unclear) => {
            refuse(StatusCode::BAD_REQUEST, "bad_request", "The request names no host, or two.")
        }
        Err(Refusal::Another) => refuse(
            StatusCode::MISDIRECTED_REQUEST,
            "unknown_host",
            "The server does not go by that name. SANDBOX_ALLOWED_HOSTS can add it.",
        ),
        Err(Refusal::Foreign) => refuse(
            StatusCode::FORBIDDEN,
            "foreign_origin",
            "Pages of that site may not talk to this server. SANDBOX_ALLOWED_ORIGINS can add it.",
        ),
    };
    let headers = response.headers_mut();
    // The type is the one that is given, whatever the bytes look like.
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    // A hostile page or SVG can do nothing in the reader's browser.
    headers
        .entry(header::CONTENT_SECURITY_POLICY)
        .or_insert(HeaderValue::from_static("sandbox; default-src 'none'"));
    // An address may be all that is needed to come in.
    headers.entry(header::REFERRER_POLICY).or_insert(HeaderValue::from_static("no-referrer"));
    // Pages of other sites may show what they have a signed URL of, and nothing else.
    let embedded = if is_signed { "cross-origin" } else { "same-origin" };
    headers.insert("cross-origin-resource-policy", HeaderValue::from_static(embedded));
    // A file may change at any time under the same address: what is kept is asked for again, which
    // costs an `If-None-Match`, and only the reader's own browser keeps it.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
    response
}

/// Whether a session could be started now.
async fn ready(State(shared): State<Shared>) -> Response {
    match shared.readiness.ask().await {
        Ok(()) => {
            let body = json!({ "status": "ready", "sessions": shared.sessions.count() });
            reply(StatusCode::OK, &body)
        }
        Err(why) => reply(
            StatusCode::SERVICE_UNAVAILABLE,
            &Error::SandboxUnavailable(why.to_string()).to_json(),
        ),
    }
}

/// Requests hold as much memory as they may.
fn no_room() -> Response {
    let refusal = refuse(StatusCode::SERVICE_UNAVAILABLE, "too_busy", NO_ROOM);
    ([(header::RETRY_AFTER, "10")], refusal).into_response()
}

/// A call that could not be carried out.
fn failure(error: &Error) -> Response {
    let status = match error {
        Error::InvalidSessionId
        | Error::InvalidFilename(_)
        | Error::InvalidPath(_)
        | Error::InvalidBase64(_)
        | Error::InvalidArgument(_) => StatusCode::BAD_REQUEST,
        Error::NotFound(_)
        | Error::OutputNotKept(_)
        | Error::SessionNotFound(_)
        | Error::SessionEvicted(_) => StatusCode::NOT_FOUND,
        Error::FileExists(_) | Error::SessionBusy => StatusCode::CONFLICT,
        Error::ArtifactTooLarge { .. }
        | Error::UploadTooLarge { .. }
        | Error::MessageTooLarge { .. }
        | Error::CodeTooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
        Error::QuotaExceeded(_) => StatusCode::INSUFFICIENT_STORAGE,
        Error::TooManySessions { .. } => StatusCode::TOO_MANY_REQUESTS,
        Error::MaxSessions { .. } | Error::SandboxUnavailable(_) | Error::SandboxDied(_) => {
            StatusCode::SERVICE_UNAVAILABLE
        }
        Error::Internal(_) => StatusCode::INTERNAL_SERVER_ERROR,
    };
    reply(status, &error.to_json())
}

fn not_found(message: &str) -> Response {
    refuse(StatusCode::NOT_FOUND, "not_found", message)
}

fn refuse(status: StatusCode, error: &str, message: &str) -> Response {
    reply(status, &json!({ "error": error, "message": message }))
}

fn reply(status: StatusCode, body: &Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}
