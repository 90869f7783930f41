//! Passes requests on to the server that has their caller's sessions.
//!
//! ```text
//!   client --> any server --(server-to-server connection)--> the caller's server
//! ```
//!
//! A request is passed on once and complete, with its credentials, and is checked there as if it had arrived
//! there. Servers reach each other at a separate address, over connections that begin with a [`Proof`];
//! requests that arrive that way are never passed on again.

use std::{
    collections::HashMap,
    io,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    body::{Body, HttpBody},
    extract::{Request, State},
    http::{
        HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header, uri::PathAndQuery,
    },
    middleware::Next,
    response::{IntoResponse, Response},
};
use backend::{CallerKey, Claim};
use config::Config;
use futures::{FutureExt, StreamExt, future::BoxFuture, stream};
use headers::{ContentLength, HeaderMapExt};
use hyper_util::{
    client::legacy::Client,
    rt::{TokioExecutor, TokioIo, TokioTimer},
};
use model::Principal;
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tower_service::Service;

use super::{
    access::Whose,
    body::holding,
    connections,
    error::{ApiError, Result},
    hosts,
    seats::TooMany,
    shared::Shared,
    viewer::OfOthers,
};
use crate::{metrics::Forwarded, peers::Proof, sessions::Sessions};

/// How long an unused connection stays open: less than the server at its other end waits for a request.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum number of attempts to find and reach a caller's home server before the request fails.
const ATTEMPTS: usize = 4;

/// Maximum number of bytes of an answer that are buffered for a slow reader.
const MAX_BUFFER: usize = 64 << 10;

/// Maximum number of servers whose addresses are remembered. Each rollout adds new ones.
const MAX_KNOWN: usize = 1024;

/// Headers of a connection, not of the message (RFC 9110, section 7.6.1). `Expect` is among them because
/// reading the body already asks the client for it.
const OF_CONNECTION: [HeaderName; 7] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::EXPECT,
];

/// Admits connections of other servers only.
#[derive(Debug, Clone)]
pub(super) struct PeerGate {
    proof: Proof,
    sessions: Sessions,
}

impl PeerGate {
    /// The gate for the servers that share callers with this one; `None` without a server key.
    pub(super) fn new(sessions: &Sessions) -> Option<Self> {
        let secret = sessions.config().server_key.as_ref()?;
        Some(Self { proof: Proof::of(secret), sessions: sessions.clone() })
    }

    /// Waits for the proof that the peer is another server.
    ///
    /// # Errors
    /// If it does not arrive in time or is invalid.
    pub(super) async fn admit(&self, stream: &mut TcpStream) -> io::Result<()> {
        let shared = self.sessions.host().backend().abilities().shared;
        let name = shared.and_then(|it| it.homes().name()).ok_or(io::ErrorKind::NotConnected)?;
        self.proof.accept(stream, &name).await
    }
}

/// Connections to the other servers. Clones share them.
#[derive(Clone)]
pub(super) struct Peers {
    client: Client<Connector, Body>,
    /// Their addresses by name: a connection is to one run of a server, not to another that later has its address.
    known: Arc<Mutex<HashMap<String, Claim>>>,
}

impl Peers {
    /// `None` without a server key and an address for other servers.
    pub(super) fn new(config: &Config) -> Option<Self> {
        let secret = config.server_key.as_ref().filter(|_| config.peer_address.is_some())?;
        let known = Arc::<Mutex<HashMap<String, Claim>>>::default();
        let connector = Connector { proof: Proof::of(secret), known: known.clone() };
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            // Bounds the bytes of an answer that nothing reads.
            .http1_max_buf_size(MAX_BUFFER)
            .build(connector);
        Some(Self { client, known })
    }

    pub(super) async fn send(
        &self,
        to: &Claim,
        mut request: Request,
    ) -> std::result::Result<Response, NotSent> {
        {
            let mut known = self.known.lock();
            if known.len() >= MAX_KNOWN {
                known.clear();
            }
            known.insert(to.server.clone(), to.clone());
        }
        let path = request.uri().path_and_query().map_or("/", PathAndQuery::as_str);
        let uri = format!("http://{}{path}", to.server);
        // The host that this server has checked, whether the URL or the `Host` header named it.
        if let Some(host) = hosts::wanted(&request)
            && let Ok(host) = HeaderValue::from_str(host.as_str())
        {
            request.headers_mut().insert(header::HOST, host);
        }
        *request.uri_mut() = Uri::try_from(uri).map_err(|_| NotSent::Broken)?;
        remove_of_connection(request.headers_mut());
        match self.client.request(request).await {
            Ok(mut response) => {
                remove_of_connection(response.headers_mut());
                Ok(response.map(Body::new))
            }
            Err(error) if error.is_connect() => Err(NotSent::Unreachable),
            Err(error) => {
                tracing::debug!(%error, server = to.server, "server did not answer a forwarded request");
                Err(NotSent::Broken)
            }
        }
    }
}

/// Connects to servers by their names.
#[derive(Debug, Clone)]
struct Connector {
    proof: Proof,
    known: Arc<Mutex<HashMap<String, Claim>>>,
}

impl Service<Uri> for Connector {
    type Response = TokioIo<TcpStream>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let to = self.known.lock().get(uri.host().unwrap_or_default()).cloned();
        let proof = self.proof.clone();
        async move {
            let to = to.ok_or(io::ErrorKind::NotFound)?;
            Ok(TokioIo::new(proof.connect(&to).await?))
        }
        .boxed()
    }
}

impl std::fmt::Debug for Peers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Peers").finish_non_exhaustive()
    }
}

/// The reason why there is no answer.
pub(super) enum NotSent {
    /// The server could not be reached: nothing was sent.
    Unreachable,
    /// The server disconnected or violated the protocol. The request may have been carried out.
    Broken,
}

fn remove_of_connection(headers: &mut HeaderMap) {
    for name in &OF_CONNECTION {
        headers.remove(name);
    }
}

/// Answers requests of this server's callers, and passes other requests on to the servers of their callers.
pub(super) async fn forward(
    State(shared): State<Shared>,
    request: Request,
    next: Next,
) -> Response {
    let Some(peers) = &shared.peers else { return next.run(request).await };
    let answered = if shared.is_for_peers {
        receive(&shared, request, next).await
    } else {
        route(&shared, peers, request, next).await
    };
    answered.unwrap_or_else(IntoResponse::into_response)
}

/// Answers a request from another server, which took this one for the caller's home.
async fn receive(shared: &Shared, request: Request, next: Next) -> Result<Response> {
    if let Some(caller) = whose(shared, &request).and_then(|whose| key(shared, &whose))
        && let Some(callers) = shared.sessions.shared_callers()
        && callers.home_of(&caller, None).await?.is_some()
    {
        return Err(moving());
    }
    Ok(next.run(request).await)
}

async fn route(shared: &Shared, peers: &Peers, request: Request, next: Next) -> Result<Response> {
    let (Some(whose), Some(callers)) = (whose(shared, &request), shared.sessions.shared_callers())
    else {
        return Ok(next.run(request).await);
    };
    if let Whose::Number(_) = whose {
        // Until the homes are known, a session of another server would be taken for one that has ended.
        callers.known().await?;
    }
    let Some(caller) = key(shared, &whose) else { return Ok(next.run(request).await) };
    let (head, body) = request.into_parts();
    let changes_nothing = matches!(head.method, Method::GET | Method::HEAD);
    let body = Lending::new(body, has_body(&head.headers));
    let mut gone = None;
    for _ in 0..ATTEMPTS {
        let home = callers.home_of(&caller, gone.as_ref()).await?;
        let Some(home) = home else {
            let body = body.take().ok_or_else(lost)?;
            return Ok(next.run(Request::from_parts(head, body)).await);
        };
        if let Whose::Principal(who) = &whose {
            connections::is_of(who).map_err(|TooMany| ApiError::TooManyConnections)?;
        }
        let request = Request::from_parts(head.clone(), body.lend().ok_or_else(lost)?);
        let passing_on = (!changes_nothing).then(|| shared.sessions.host().passing_on());
        let sent = tokio::select! {
            sent = peers.send(&home, request) => sent,
            // A server that hangs neither answers nor closes the connection.
            () = callers.moved_from(&caller, &home) => Err(NotSent::Broken),
            // The request may be a long poll, which its client can repeat at another server.
            () = shared.sessions.host().ending(), if changes_nothing => return Err(moving()),
        };
        let outcome = match sent {
            Ok(_) => Forwarded::Answered,
            Err(NotSent::Unreachable) => Forwarded::Unreachable,
            Err(NotSent::Broken) => Forwarded::Broken,
        };
        shared.sessions.host().metrics().forwarded(outcome);
        gone = match sent {
            Ok(response) => {
                let response =
                    if changes_nothing { until_ending(shared, response) } else { response };
                if let Whose::Number(_) = whose
                    && response.status().is_success()
                    && let Some(pseudonym) = Principal::named(caller.as_str())
                {
                    // A valid signed URL makes its client a known one.
                    connections::is_of(&pseudonym)
                        .map_err(|TooMany| ApiError::TooManyConnections)?;
                }
                return Ok(response.map(|body| holding(body, passing_on)));
            }
            Err(NotSent::Unreachable) => Some(home),
            Err(NotSent::Broken) if changes_nothing => None,
            Err(NotSent::Broken) => return Err(lost()),
        };
    }
    Err(moving())
}

/// The caller of a request that only its home server can answer; `None` if path and headers name no
/// such caller.
fn whose(shared: &Shared, request: &Request) -> Option<Whose> {
    match OfOthers::of(request.uri()) {
        // The server that is asked asks the others.
        Some(OfOthers::All) => return None,
        Some(OfOthers::Caller(caller)) => {
            let operator = shared.access.may_see_all(request.headers());
            return Principal::named(&caller).filter(|_| operator).map(Whose::Principal);
        }
        None => {}
    }
    let path = request.uri().path();
    let is_of_somebody = ["/mcp", "/files", "/sessions"].iter().any(|it| path.starts_with(it));
    is_of_somebody.then(|| shared.access.whose(request.headers(), request.uri())).flatten()
}

fn key(shared: &Shared, whose: &Whose) -> Option<CallerKey> {
    match whose {
        Whose::Principal(who) => shared.sessions.host().caller_key(who),
        Whose::Number(number) => shared.sessions.shared_callers()?.of_number(*number),
    }
}

/// Ends a stream of events, which is otherwise endless, when this server ends.
fn until_ending(shared: &Shared, response: Response) -> Response {
    let kind = response.headers().get(header::CONTENT_TYPE);
    if !kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream")) {
        return response;
    }
    let sessions = shared.sessions.clone();
    response.map(|body| {
        let ending = async move { sessions.host().ending().await };
        Body::from_stream(body.into_data_stream().take_until(Box::pin(ending)))
    })
}

fn moving() -> ApiError {
    let why = "Your sessions are moving to another server. They go on: call again in a moment.";
    ApiError::refused(StatusCode::SERVICE_UNAVAILABLE, "sandbox_unavailable", why)
}

fn lost() -> ApiError {
    let why = "The server that has your sessions went away before it answered. They go on with another one, and so does \
               what runs in them: what was asked for may have been done. Call again in a moment, and look at what is there.";
    ApiError::refused(StatusCode::BAD_GATEWAY, "sandbox_unavailable", why)
}

/// Whether a request has a body, by its head (RFC 9112, section 6.3).
fn has_body(headers: &HeaderMap) -> bool {
    let length = headers.typed_get::<ContentLength>();
    headers.contains_key(header::TRANSFER_ENCODING) || length.is_some_and(|it| it.0 > 0)
}

/// A body that can be taken back as long as nothing of it was read. After that the request cannot be sent
/// again: a body that differs from what its head says would be taken for the start of the next request.
#[derive(Clone)]
struct Lending(Arc<Mutex<Option<Body>>>);

impl Lending {
    fn new(body: Body, has_body: bool) -> Self {
        Self(Arc::new(Mutex::new(Some(if has_body { body } else { Body::empty() }))))
    }

    /// The body, if nothing of it was read; an empty one can be lent any number of times. It is taken from here when
    /// the first piece is read.
    fn lend(&self) -> Option<Body> {
        if self.0.lock().as_ref()?.is_end_stream() {
            return Some(Body::empty());
        }
        let from = self.clone();
        let body = stream::once(async move { from.take().unwrap_or_default() });
        Some(Body::from_stream(body.flat_map(Body::into_data_stream)))
    }

    fn take(&self) -> Option<Body> {
        self.0.lock().take()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test]
    async fn a_body_is_sent_once_and_had_back_only_if_nothing_of_it_was_read() {
        let body = Lending::new(Body::from("whole"), true);
        let lent = body.lend().expect("it is there");
        assert!(!lent.is_end_stream());
        drop(lent);
        let lent = body.lend().expect("it is there still");
        assert_eq!(lent.collect().await.expect("read").to_bytes(), "whole");
        assert!(body.lend().is_none() && body.take().is_none(), "and not again");
        let unread = Lending::new(Body::from("whole"), true);
        drop(unread.lend());
        let back = unread.take().expect("nobody has read it");
        assert_eq!(back.collect().await.expect("read").to_bytes(), "whole");
        let none = Lending::new(Body::from("of no request"), false);
        for _ in 0..2 {
            let lent = none.lend().expect("as often as is asked");
            assert_eq!((lent.is_end_stream(), lent.size_hint().exact()), (true, Some(0)));
        }
    }

    #[test]
    fn a_request_has_the_body_that_its_head_says() {
        let has = |headers: &[(&'static str, &'static str)]| {
            let headers = headers.iter().map(|(name, value)| {
                (HeaderName::from_static(name), HeaderValue::from_static(value))
            });
            has_body(&headers.collect())
        };
        assert!(!has(&[]) && !has(&[("content-length", "0")]));
        assert!(has(&[("content-length", "5")]) && has(&[("transfer-encoding", "chunked")]));
    }
}
