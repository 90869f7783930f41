//! MCP over streamable HTTP, for both generations of the protocol.
//!
//! ```text
//!                        up to 2025-11-25: MCP sessions, ended by the client or, unused, by us
//! request, principal --<
//!                        2026-07-28: none; each request stands alone, closing it cancels the call
//! ```
//!
//! Nothing of ours is kept in an MCP session: clients open one for a call, never close it, or have
//! none. It is only remembered whose it is, and when it was used last.

mod eviction;

use std::{
    collections::HashMap,
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use futures::{FutureExt, Stream, StreamExt, future::BoxFuture, stream::BoxStream};
use http_body_util::{BodyExt, BodyStream, Full, StreamBody, combinators::BoxBody};
use hyper::{
    Method, Request, Response, StatusCode,
    body::Frame,
    header::{CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderValue},
};
use rmcp::transport::streamable_http_server::{
    StreamableHttpServerConfig, StreamableHttpService,
    session::{
        SessionManager,
        local::{LocalSessionManager, SessionConfig},
    },
};
use serde_json::{Value, json};
use tokio::time::{Instant, interval, timeout};
use tokio_util::sync::CancellationToken;

use self::eviction::{Open, evicted};
use super::{
    Server, UNREADABLE_MESSAGE,
    long_text::CutOut,
    message::{Message, TOKEN_BYTES},
};
use crate::{
    auth::Principal,
    request::{Answer, McpService, NO_MEMORY, RequestMemory, longest_message},
};

/// MCP sessions that are open at a time; one client has four fifths of them at most. A new one beyond
/// them ends one of the client that has most.
const MAX_SESSIONS: usize = 200;

/// Time that a request has to be answered before its answer begins without its content: clients and
/// proxies give up where no header comes for a minute, and a run may take longer.
const PROMPT: Duration = Duration::from_secs(1);

/// Time between signs of life on an answer that has begun.
const SIGN_OF_LIFE: Duration = Duration::from_secs(15);

const SESSION_ID: &str = "mcp-session-id";

/// Stands in each request of 2026-07-28 and in none before.
const METHOD: &str = "mcp-method";
const EVENT_STREAM: &str = "text/event-stream";

/// Answers MCP requests. Clones share it.
#[derive(Clone)]
pub struct Endpoint(Arc<Inner>);

struct Inner {
    service: StreamableHttpService<Server, LocalSessionManager>,
    manager: Arc<LocalSessionManager>,
    clients: Mutex<HashMap<Arc<str>, Client>>,
    idle: Duration,
    longest: usize,
    streams: CancellationToken,
}

/// An MCP session.
struct Client {
    principal: Principal,
    last_used: Instant,
    /// Shared with every stream that is open.
    in_use: Arc<()>,
}

impl Client {
    fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.in_use) > 1
    }

    fn open<'a>(&'a self, id: &'a Arc<str>) -> Open<'a> {
        let Self { principal, last_used, .. } = self;
        Open { id, principal, in_use: self.is_in_use(), last_used: *last_used }
    }
}

impl Endpoint {
    /// MCP sessions that nobody uses end soon after the time that sandboxes do.
    pub fn new(server: Server) -> Self {
        let mut sessions = SessionConfig::default();
        // It would end a session under a run that says nothing for so long.
        sessions.keep_alive = None;
        let mut manager = LocalSessionManager::default();
        manager.session_config = sessions;
        let manager = Arc::new(manager);

        let config = server.services.sessions.config();
        let longest = longest_message(config);
        // A run goes on when its client has lost the stream, which it may take up again.
        let idle = config.session_ttl + config.exec_timeout;
        let streams = CancellationToken::new();
        let settings = StreamableHttpServerConfig::default()
            .with_json_response(true)
            .with_cancellation_token(streams.clone())
            .with_max_request_body_bytes(longest)
            // Host and Origin were checked, for all addresses alike.
            .disable_allowed_hosts();
        let service =
            StreamableHttpService::new(move || Ok(server.clone()), manager.clone(), settings);
        let clients = Mutex::default();
        Self(Arc::new(Inner { service, manager, clients, idle, longest, streams }))
    }

    async fn respond(
        self,
        who: Principal,
        memory: RequestMemory,
        request: Request<Bytes>,
    ) -> Answer {
        let (mut head, body) = request.into_parts();
        let message = match Message::read(body) {
            Ok(message) => message,
            Err(refused) => return invalid(None, -32600, refused.message()),
        };
        if message.is_long_initialize() {
            // Kept for as long as the MCP session lives, of which there are hundreds. Over stdio there is one.
            let why = "initialize has more than 16 KiB, or very many fields. Nothing was done.";
            return invalid(None, -32600, why);
        }
        // What its structure takes once it is parsed.
        if memory.grow(message.tokens * TOKEN_BYTES).await.is_err() {
            return text(StatusCode::SERVICE_UNAVAILABLE, NO_MEMORY);
        }
        let Message { json: body, long, .. } = message;
        head.extensions.insert(memory);
        if let Some(long) = long {
            head.extensions.insert(CutOut::new(long));
        }
        let mut request = Request::from_parts(head, body);
        let id: Option<Arc<str>> = session_id(request.headers());
        let in_use = match &id {
            Some(id) => match self.enter(id, &who) {
                Some(in_use) => Some(in_use),
                // Whose it is, if anybody's, is nobody else's business.
                None => return text(StatusCode::NOT_FOUND, "Not Found: Session not found"),
            },
            None => None,
        };
        request.extensions_mut().insert(who.clone());
        let method = request.method().clone();
        let body = request.body().clone();
        let is_json = has_type(request.headers(), "application/json");
        // With an MCP session the head comes at once, and the first one names the session.
        let may_begin_early = request.headers().contains_key(METHOD);
        let service = self.0.service.clone();
        let mut answering = async move { service.handle(request.map(Full::new)).await }.boxed();
        let prompt = if may_begin_early {
            timeout(PROMPT, &mut answering).await.ok()
        } else {
            Some(answering.as_mut().await)
        };
        let Some(response) = prompt else {
            return begun(guarded(begin(answering), in_use));
        };
        if method == Method::DELETE
            && response.status().is_success()
            && let Some(id) = &id
        {
            self.clients().remove(id);
            // Nothing more is to come, as 202 would say; some clients complain of that.
            return text(StatusCode::NO_CONTENT, "");
        }
        if let Some(new) = session_id(response.headers()).filter(|_| id.is_none()) {
            self.remember(new, who);
        }
        if response.status() == StatusCode::UNSUPPORTED_MEDIA_TYPE && is_json {
            return unreadable(&body);
        }
        if has_type(response.headers(), EVENT_STREAM) {
            let (head, body) = response.into_parts();
            let mut answer = begun(guarded(data(body), in_use));
            *answer.headers_mut() = head.headers;
            return answer;
        }
        response.map(BodyExt::boxed_unsync)
    }

    /// Ends MCP sessions that have not been used for long, until the task is dropped.
    pub async fn reap(self) {
        let mut tick = interval(self.0.idle.div_f64(4.0).min(Duration::from_secs(30)));
        loop {
            tick.tick().await;
            let idle: Vec<_> = {
                let mut clients = self.clients();
                let is_idle = |client: &Client| {
                    !client.is_in_use() && client.last_used.elapsed() > self.0.idle
                };
                clients.extract_if(|_, client| is_idle(client)).map(|(id, _)| id).collect()
            };
            for id in idle {
                self.close(&id).await;
            }
        }
    }

    /// Ends what is still open: streams first, then MCP sessions.
    pub async fn shutdown(&self) {
        self.0.streams.cancel();
        let all: Vec<_> = self.clients().drain().map(|(id, _)| id).collect();
        for id in all {
            self.close(&id).await;
        }
    }

    fn enter(&self, id: &str, who: &Principal) -> Option<Arc<()>> {
        let mut clients = self.clients();
        let client = clients.get_mut(id).filter(|client| client.principal == *who)?;
        client.last_used = Instant::now();
        Some(client.in_use.clone())
    }

    fn remember(&self, id: Arc<str>, principal: Principal) {
        let evicted = {
            let mut clients = self.clients();
            let open: Vec<_> = clients.iter().map(|(id, client)| client.open(id)).collect();
            let evicted = evicted(MAX_SESSIONS, &principal, &open);
            if let Some(evicted) = &evicted {
                clients.remove(evicted);
            }
            let in_use = Arc::default();
            clients.insert(id, Client { principal, last_used: Instant::now(), in_use });
            evicted
        };
        if let Some(evicted) = evicted {
            // On its own: a stream that nobody reads holds it up, and the newcomer may go away meanwhile.
            let endpoint = self.clone();
            tokio::spawn(async move { endpoint.close(&evicted).await });
        }
    }

    async fn close(&self, id: &Arc<str>) {
        if let Err(error) = self.0.manager.close_session(id).await {
            tracing::debug!(%error, "MCP session not closed");
        }
    }

    fn clients(&self) -> MutexGuard<'_, HashMap<Arc<str>, Client>> {
        self.0.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl McpService for Endpoint {
    fn longest_request(&self) -> usize {
        self.0.longest
    }

    fn answer(
        &self,
        principal: Principal,
        memory: RequestMemory,
        request: Request<Bytes>,
    ) -> BoxFuture<'_, Answer> {
        self.clone().respond(principal, memory, request).boxed()
    }
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint").field("sessions", &self.clients().len()).finish_non_exhaustive()
    }
}

type Answering = BoxFuture<'static, Response<BoxBody<Bytes, Infallible>>>;
type Events = BoxStream<'static, Bytes>;

fn session_id(headers: &HeaderMap) -> Option<Arc<str>> {
    Some(headers.get(SESSION_ID)?.to_str().ok()?.into())
}

fn has_type(headers: &HeaderMap, wanted: &str) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| kind.starts_with(wanted))
}

/// The head of a stream, and its events.
fn begun(events: Events) -> Answer {
    let frames = events.map(|event| Ok(Frame::data(event)));
    let mut response = Response::new(StreamBody::new(frames).boxed_unsync());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(EVENT_STREAM));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

/// Signs of life until there is an answer, and then that. Whoever drops it cancels the call.
fn begin(answering: Answering) -> Events {
    enum State {
        Waiting(Answering),
        Sending(Events),
    }
    let later = futures::stream::unfold(State::Waiting(answering), |state| async {
        let mut events = match state {
            State::Waiting(mut answering) => match timeout(SIGN_OF_LIFE, &mut answering).await {
                Ok(response) => events(response).await,
                Err(_) => return Some((sign_of_life(), State::Waiting(answering))),
            },
            State::Sending(events) => events,
        };
        Some((events.next().await?, State::Sending(events)))
    });
    futures::stream::once(async { sign_of_life() }).chain(later).boxed()
}

fn sign_of_life() -> Bytes {
    Bytes::from_static(b": working\n\n")
}

/// An answer's events; one that is JSON is one event.
async fn events(response: Response<BoxBody<Bytes, Infallible>>) -> Events {
    let is_stream = has_type(response.headers(), EVENT_STREAM);
    let body = response.into_body();
    if is_stream {
        return data(body);
    }
    let json = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let event = [b"data: ", &json[..], b"\n\n"].concat();
    let is_json = serde_json::from_slice::<serde::de::IgnoredAny>(&json).is_ok();
    futures::stream::iter(is_json.then(|| Bytes::from(event))).boxed()
}

fn data(body: BoxBody<Bytes, Infallible>) -> Events {
    BodyStream::new(body).filter_map(async |frame| frame.ok()?.into_data().ok()).boxed()
}

/// While the stream is open, its MCP session is in use.
fn guarded(events: impl Stream<Item = Bytes> + Send + 'static, in_use: Option<Arc<()>>) -> Events {
    events
        .inspect(move |_| {
            let _ = &in_use;
        })
        .boxed()
}

/// A body that is no JSON, or no message; rmcp calls either an unsupported type.
fn unreadable(body: &[u8]) -> Answer {
    let (id, code, message) = match serde_json::from_slice::<Value>(body) {
        Ok(value) => {
            let id = value.get("id").filter(|id| id.is_string() || id.is_number()).cloned();
            (id, -32600, "The body is not one JSON-RPC message.")
        }
        Err(_) => (None, -32700, UNREADABLE_MESSAGE),
    };
    invalid(id, code, message)
}

/// A message that cannot be answered by its meaning.
fn invalid(id: Option<Value>, code: i32, message: &str) -> Answer {
    let error =
        json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": message } });
    let mut response = Response::new(Full::from(error.to_string()).boxed_unsync());
    *response.status_mut() = StatusCode::BAD_REQUEST;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}

fn text(status: StatusCode, text: &'static str) -> Answer {
    let mut response = Response::new(Full::from(text).boxed_unsync());
    *response.status_mut() = status;
    response
}
