//! Passing on what another server is to answer: requests of callers whose sessions are there.
//!
//! ```text
//!   client --> any server --(its own connections)--> the caller's server
//! ```
//!
//! A request goes on once and whole, with whatever proves who sends it, and is looked at there as if it had come there.
//! Servers speak to each other at an address of their own, and prove by their common secret that they are servers;
//! what comes that way is never passed on again.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    body::{Body, Bytes, HttpBody},
    extract::{Request, State},
    http::{
        HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header, uri::PathAndQuery,
    },
    middleware::Next,
    response::{IntoResponse, Response},
};
use futures::StreamExt;
use hyper::body::{Frame, SizeHint};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use parking_lot::Mutex;
use subtle::ConstantTimeEq;

use super::{
    access::Whose,
    connections,
    error::{ApiError, Result},
    seats::TooMany,
    shared::Shared,
};
use crate::{
    auth::Principal,
    backend::{CallerKey, Claim},
    config::Config,
    metrics::Forwarded,
};

/// Longest that a server which lives takes to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a connection that nobody uses is kept: less than its server waits for a request.
const IDLE: Duration = Duration::from_secs(10);

/// How often it is looked where a caller is at home, before a request is given up.
const ATTEMPTS: usize = 4;

/// What proves that a request comes from a server with the same secret.
const PROOF: HeaderName = HeaderName::from_static("llm-sandbox-peer");

/// What the proof is derived for.
const PURPOSE: &str = "llm-sandbox peers 1";

/// Headers of a connection, and not of what goes over it (RFC 9110, section 7.6.1). Whether a body is wanted is said
/// by reading it.
const OF_CONNECTION: [HeaderName; 7] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::EXPECT,
];

/// The other servers, as this one reaches them. Clones share the connections.
#[derive(Clone)]
pub(super) struct Peers {
    client: Client<HttpConnector, Lent>,
    proof: Arc<HeaderValue>,
}

impl Peers {
    /// None without an address at which they reach this one.
    pub(super) fn new(config: &Config) -> Option<Self> {
        let secret = config.server_key.as_ref().filter(|_| config.peer_address.is_some())?;
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .build(connector);
        let proof = HeaderValue::try_from(hex::encode(secret.derive(PURPOSE)));
        Some(Self { client, proof: Arc::new(proof.expect("hexadecimal digits")) })
    }

    fn are_proven(&self, headers: &HeaderMap) -> bool {
        let given = headers.get(PROOF).map_or(&[][..], HeaderValue::as_bytes);
        self.proof.as_bytes().ct_eq(given).into()
    }

    async fn send(
        &self,
        to: &Claim,
        mut request: Request<Lent>,
    ) -> std::result::Result<Response, NotSent> {
        let path = request.uri().path_and_query().map_or("/", PathAndQuery::as_str);
        let uri = format!("http://{}{path}", to.address);
        *request.uri_mut() = Uri::try_from(uri).map_err(|_| NotSent::Broken)?;
        remove_of_connection(request.headers_mut());
        request.headers_mut().insert(PROOF, (*self.proof).clone());
        match self.client.request(request).await {
            Ok(mut response) => {
                remove_of_connection(response.headers_mut());
                Ok(response.map(Body::new))
            }
            Err(error) if error.is_connect() => Err(NotSent::Unreachable),
            Err(error) => {
                tracing::debug!(%error, server = to.server, "a request was not answered");
                Err(NotSent::Broken)
            }
        }
    }
}

impl std::fmt::Debug for Peers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Peers").finish_non_exhaustive()
    }
}

/// Why there is no answer.
enum NotSent {
    /// There is no server: nothing was sent.
    Unreachable,
    /// It went away, or does not keep to the protocol. The request may have been carried out.
    Broken,
}

fn remove_of_connection(headers: &mut HeaderMap) {
    for name in &OF_CONNECTION {
        headers.remove(name);
    }
}

/// Answers what is this server's to answer, and has the rest answered by the server whose it is.
pub(super) async fn forward(
    State(shared): State<Shared>,
    request: Request,
    next: Next,
) -> Response {
    let Some(peers) = &shared.peers else { return next.run(request).await };
    let is_mcp = request.uri().path().starts_with("/mcp");
    let answered = if shared.is_for_peers {
        receive(&shared, peers, request, next).await
    } else {
        route(&shared, peers, request, next).await
    };
    answered.unwrap_or_else(
        |error| {
            if is_mcp { error.into_message() } else { error.into_response() }
        },
    )
}

/// From another server, which took this one for the home of whoever asks.
async fn receive(
    shared: &Shared,
    peers: &Peers,
    mut request: Request,
    next: Next,
) -> Result<Response> {
    if !peers.are_proven(request.headers()) {
        let why = "Only servers of the same deployment come this way.";
        return Err(ApiError::refused(StatusCode::FORBIDDEN, "not_a_server", why));
    }
    request.headers_mut().remove(PROOF);
    if let Some(caller) = whose(shared, &request).and_then(|whose| key(shared, &whose))
        && shared.sessions.home_of(&caller, None).await?.is_some()
    {
        return Err(moving());
    }
    Ok(next.run(request).await)
}

async fn route(
    shared: &Shared,
    peers: &Peers,
    mut request: Request,
    next: Next,
) -> Result<Response> {
    request.headers_mut().remove(PROOF);
    let Some(whose) = whose(shared, &request) else { return Ok(next.run(request).await) };
    if let Whose::Number(_) = whose {
        // Otherwise a session would be taken for one that has ended.
        shared.sessions.homes_known().await?;
    }
    let Some(caller) = key(shared, &whose) else { return Ok(next.run(request).await) };
    let (head, body) = request.into_parts();
    // What was read of it is gone.
    let can_repeat = matches!(head.method, Method::GET | Method::HEAD);
    let body = Lending::new(body);
    let mut gone = None;
    for _ in 0..ATTEMPTS {
        let home = shared.sessions.home_of(&caller, gone.as_ref()).await?;
        let Some(home) = home else {
            let body = body.whole().ok_or_else(lost)?;
            return Ok(next.run(Request::from_parts(head, body)).await);
        };
        if let Whose::Principal(who) = &whose {
            connections::is_of(who).map_err(|TooMany| ApiError::TooManyConnections)?;
        }
        let request = Request::from_parts(head.clone(), body.lend());
        let passing_on = (!can_repeat).then(|| shared.sessions.passing_on());
        let sent = tokio::select! {
            sent = peers.send(&home, request) => sent,
            // A server that hangs does not answer, and does not break off either.
            () = shared.sessions.moved_from(&caller, &home) => Err(NotSent::Broken),
            // It may be waiting for something to happen; whoever asks can ask another server that.
            () = shared.sessions.ending(), if can_repeat => return Err(moving()),
        };
        let outcome = match sent {
            Ok(_) => Forwarded::Answered,
            Err(NotSent::Unreachable) => Forwarded::Unreachable,
            Err(NotSent::Broken) => Forwarded::Broken,
        };
        shared.sessions.metrics().forwarded(outcome);
        gone = match sent {
            Ok(response) => {
                let response = if can_repeat { until_ending(shared, response) } else { response };
                if let Whose::Number(_) = whose
                    && response.status().is_success()
                    && let Some(pseudonym) = Principal::named(caller.as_str())
                {
                    // Whoever has a good URL is no stranger.
                    connections::is_of(&pseudonym)
                        .map_err(|TooMany| ApiError::TooManyConnections)?;
                }
                return Ok(response.map(|body| connections::holding(body, passing_on)));
            }
            Err(NotSent::Unreachable) => Some(home),
            Err(NotSent::Broken) if can_repeat => None,
            Err(NotSent::Broken) => return Err(lost()),
        };
    }
    Err(moving())
}

/// Of what only one server can answer, who asks, as far as that can be told before it is looked at.
fn whose(shared: &Shared, request: &Request) -> Option<Whose> {
    let path = request.uri().path();
    let is_of_somebody = ["/mcp", "/files", "/sessions"].iter().any(|it| path.starts_with(it));
    is_of_somebody.then(|| shared.access.whose(request.headers(), request.uri())).flatten()
}

fn key(shared: &Shared, whose: &Whose) -> Option<CallerKey> {
    match whose {
        Whose::Principal(who) => shared.sessions.caller_key(who),
        Whose::Number(number) => shared.sessions.caller_of_number(*number),
    }
}

/// A stream of events goes on for ever. This end of it ends with this server.
fn until_ending(shared: &Shared, response: Response) -> Response {
    let kind = response.headers().get(header::CONTENT_TYPE);
    if !kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream")) {
        return response;
    }
    let sessions = shared.sessions.clone();
    response.map(|body| {
        let ending = async move { sessions.ending().await };
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

/// A body that can be had back as long as nothing of it was read.
struct Lending(Arc<Mutex<Option<Body>>>);

impl Lending {
    fn new(body: Body) -> Self {
        Self(Arc::new(Mutex::new(Some(body))))
    }

    fn lend(&self) -> Lent {
        let body = self.0.lock();
        let (size, is_empty) = body.as_ref().map_or_else(
            || (SizeHint::with_exact(0), true),
            |body| (body.size_hint(), body.is_end_stream()),
        );
        drop(body);
        Lent { from: self.0.clone(), body: None, size, is_empty }
    }

    fn whole(&self) -> Option<Body> {
        self.0.lock().take()
    }
}

/// A body that was lent.
struct Lent {
    from: Arc<Mutex<Option<Body>>>,
    /// Taken with the first piece.
    body: Option<Body>,
    size: SizeHint,
    is_empty: bool,
}

impl HttpBody for Lent {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, axum::Error>>> {
        if self.body.is_none() && !self.is_empty {
            let body = self.from.lock().take();
            self.body = body;
        }
        match &mut self.body {
            Some(body) => Pin::new(body).poll_frame(context),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().map_or(self.is_empty, HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| self.size, HttpBody::size_hint)
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test]
    async fn a_body_is_had_back_unless_something_of_it_was_read() {
        let body = Lending::new(Body::from("whole"));
        let lent = body.lend();
        assert_eq!((lent.size_hint().exact(), lent.is_end_stream()), (Some(5), false));
        drop(lent);
        assert_eq!(body.lend().collect().await.expect("read").to_bytes(), "whole");
        assert!(body.whole().is_none());
        let unread = Lending::new(Body::from("whole"));
        drop(unread.lend());
        let back = unread.whole().expect("nobody has read it");
        assert_eq!(back.collect().await.expect("read").to_bytes(), "whole");
        assert!(Lending::new(Body::empty()).lend().is_end_stream());
    }

    #[test]
    fn a_server_is_known_by_the_common_secret_alone() {
        let secret = crate::server_key::ServerKey::random();
        let config = |key| Config {
            peer_address: "127.0.0.1:1".parse().ok(),
            server_key: Some(key),
            ..Config::default()
        };
        let peers = Peers::new(&config(secret.clone())).expect("there are");
        let stranger = Peers::new(&config(crate::server_key::ServerKey::random())).expect("too");
        let with = |proof: &HeaderValue| HeaderMap::from_iter([(PROOF, proof.clone())]);
        assert!(peers.are_proven(&with(&peers.proof)));
        assert!(!peers.are_proven(&with(&stranger.proof)));
        assert!(!peers.are_proven(&HeaderMap::new()));
        assert!(Peers::new(&Config { server_key: Some(secret), ..Config::default() }).is_none());
    }
}
