//! MCP over streamable HTTP, for both generations of the protocol.
//!
//! ```text
//!                        up to 2025-11-25: MCP sessions, ended by the client or, if unused, by the server
//! request, principal --<
//!                        2026-07-28: none; each request stands alone, closing it cancels the call
//! ```
//!
//! An MCP session has no state of a sandbox: clients open one for a call, never close it, or have none. The server
//! stores its owner, the time of its last use and the client's `initialize`. The workspace of its calls that name no
//! session ends with it. If sandbox sessions outlive their server, MCP sessions do, too ([`outlived`]).

mod answer;
mod eviction;
mod form;
mod outlived;
mod refused;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use futures::{FutureExt, future::BoxFuture};
use http_body_util::{BodyExt, Empty, Full};
use hyper::{
    Method, Request, Response, StatusCode,
    header::{ACCEPT, HeaderMap, HeaderValue},
};
use model::Principal;
use rmcp::transport::streamable_http_server::{
    StreamableHttpServerConfig, StreamableHttpService,
    session::{
        SessionManager,
        local::{LocalSessionManager, SessionConfig},
    },
};
use tokio::{
    sync::oneshot,
    time::{Instant, interval, timeout},
};
use tokio_util::sync::CancellationToken;

use self::{
    answer::{begin, formed, guarded, is_json},
    eviction::{Open, evicted},
    form::Form,
    outlived::{Ended, Resuming, SessionNames},
    refused::{explained, invalid, refused},
};
use super::{
    Server,
    long_text::CutOut,
    message::{Asks, Message, TOKEN_BYTES},
    services::OfMcpSession,
};
use crate::{
    budget::Exhausted,
    request::{Answer, McpService, RequestMemory, longest_message},
    sessions::{Sessions, Workspace},
};

/// Maximum number of MCP sessions that are open at a time; one client has four fifths of them at most. A new one beyond
/// that ends one of the client that has most.
const MAX_SESSIONS: usize = 200;

/// Time after which an answer begins without its content: clients and proxies give up if no header comes for a minute,
/// and a run may take longer.
const HEAD_TIMEOUT: Duration = Duration::from_secs(1);

const SESSION_ID: &str = "mcp-session-id";

const VERSION: &str = "mcp-protocol-version";

/// Answers MCP requests. Clones share it.
#[derive(Clone)]
pub struct Endpoint(Arc<Inner>);

struct Inner {
    service: StreamableHttpService<Server, LocalSessionManager>,
    manager: Arc<LocalSessionManager>,
    sessions: Sessions,
    clients: Mutex<HashMap<Arc<str>, Client>>,
    /// Translates between the names of MCP sessions that clients have and those of rmcp.
    session_names: SessionNames,
    /// MCP sessions of an earlier server that rmcp is about to continue.
    resuming: Arc<Resuming>,
    /// MCP sessions that have ended here, and must not be continued.
    ended: parking_lot::Mutex<Ended>,
    /// How long an MCP session may be unused.
    idle: Duration,
    /// Longest request, in bytes.
    longest: usize,
    /// Cancelled when the server ends: ends all open streams.
    streams: CancellationToken,
}

/// An MCP session.
struct Client {
    principal: Principal,
    last_used: Instant,
    /// Shared with every open stream.
    in_use: Arc<()>,
    /// Cancelled when the MCP session has ended: it then gets no new workspace.
    ended: CancellationToken,
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
    /// Makes an endpoint. Unused MCP sessions end soon after unused sandboxes do.
    pub fn new(server: Server) -> Self {
        let mut sessions = SessionConfig::default();
        // With a keep-alive time, rmcp would end a session during a run that sends nothing for that time.
        sessions.keep_alive = None;
        let mut manager = LocalSessionManager::default();
        manager.session_config = sessions;
        let manager = Arc::new(manager);

        let sessions = server.services.sessions.clone();
        let config = sessions.config();
        let longest = longest_message(config);
        // A run continues if its client loses the stream, which the client may resume.
        let idle = config.session_ttl + config.exec_timeout;
        let streams = CancellationToken::new();
        let (session_names, resuming) = (SessionNames::new(config), Arc::<Resuming>::default());
        let mut settings = StreamableHttpServerConfig::default()
            .with_json_response(true)
            .with_cancellation_token(streams.clone())
            .with_max_request_body_bytes(longest)
            // Host and Origin were checked before, for all URLs alike.
            .disable_allowed_hosts();
        settings.session_store = Some(resuming.clone());
        let service =
            StreamableHttpService::new(move || Ok(server.clone()), manager.clone(), settings);
        Self(Arc::new(Inner {
            service,
            manager,
            sessions,
            clients: Mutex::default(),
            session_names,
            resuming,
            ended: parking_lot::Mutex::default(),
            idle,
            longest,
            streams,
        }))
    }

    async fn respond(
        self,
        who: Principal,
        memory: RequestMemory,
        request: Request<Bytes>,
    ) -> Result<Answer, Exhausted> {
        let (mut head, body) = request.into_parts();
        let message = match Message::read(body) {
            Ok(message) => message,
            Err(refused) => return Ok(invalid(refused.message())),
        };
        if message.is_long_initialize() {
            // The server stores an `initialize` for as long as its MCP session lives, and there are hundreds of MCP
            // sessions. Over stdio there is one.
            let why = "initialize is longer than 16 KiB, or has too many fields. Nothing was done.";
            return Ok(invalid(why));
        }
        // Memory that the message's structure takes once it is parsed.
        memory.grow(message.tokens * TOKEN_BYTES).await?;
        let (is_initialize, Asks { id: request_id, streams }) =
            (message.is_initialize(), message.asks());
        let Some(form) = Form::of(&head.method, &head.headers, streams) else {
            let why = "Not Acceptable: accept application/json or text/event-stream. A GET is answered in events.";
            return Ok(refused(StatusCode::NOT_ACCEPTABLE, why));
        };
        // rmcp requires both types of every client.
        let both = HeaderValue::from_static("application/json, text/event-stream");
        head.headers.insert(ACCEPT, both);
        let Message { json: body, long, .. } = message;
        head.extensions.insert(memory);
        if let Some(long) = long {
            head.extensions.insert(CutOut::new(long));
        }
        let mut request = Request::from_parts(head, body);
        let name: Option<Arc<str>> = session_id(request.headers());
        let id = name.map(|name| self.0.session_names.of_server(&name, &who));
        if let Some((id, true)) = &id {
            self.resume_mcp_session(id, &who, request.headers());
            let inner = HeaderValue::from_str(id).expect("part of a header's value");
            request.headers_mut().insert(SESSION_ID, inner);
        }
        let id = id.map(|(id, _)| id);
        let in_use = match &id {
            Some(id) => match self.enter(id, &who) {
                Some((in_use, ended)) => {
                    let of = OfMcpSession { id: id.clone(), ended, _in_use: in_use.clone() };
                    request.extensions_mut().insert(of);
                    Some(in_use)
                }
                // The answer does not reveal whether another caller has the session.
                None => {
                    return Ok(refused(StatusCode::NOT_FOUND, "Not Found: Session not found"));
                }
            },
            None => None,
        };
        request.extensions_mut().insert(who.clone());
        let method = request.method().clone();
        let may_begin_early = method == Method::POST && !request_id.is_null() && !is_initialize;
        let answering = if is_initialize && id.is_none() {
            self.clone().initialize(who.clone(), request).boxed()
        } else {
            self.clone().ask(request).boxed()
        };
        let mut answering = formed(answering, form, request_id);
        let in_time = if may_begin_early {
            timeout(HEAD_TIMEOUT, &mut answering).await.ok()
        } else {
            Some(answering.as_mut().await)
        };
        let Some(mut response) = in_time else {
            return Ok(guarded(begin(answering, form), in_use));
        };
        if method == Method::DELETE
            && response.status().is_success()
            && let Some(id) = &id
        {
            let client = self.forget(id);
            if let Some(client) = client {
                // In a task of its own, as the client may disconnect meanwhile.
                let (endpoint, id) = (self.clone(), id.clone());
                let ending = async move { endpoint.end_workspace(id, client).await };
                let _ = tokio::spawn(ending).await;
            }
            // Not 202, which announces that more follows: some clients complain of that.
            let mut response = Response::new(Empty::new().boxed_unsync());
            *response.status_mut() = StatusCode::NO_CONTENT;
            return Ok(response);
        }
        self.name(&mut response, &who);
        Ok(guarded(response, in_use))
    }

    /// Lets rmcp answer.
    async fn ask(self, request: Request<Bytes>) -> Answer {
        let (body, was_json) = (request.body().clone(), is_json(request.headers()));
        let response = self.0.service.clone().handle(request.map(Full::new)).await;
        explained(response.map(BodyExt::boxed_unsync), &body, was_json).await
    }

    /// Answers an `initialize` in a task that comes to its end even if the client disconnects: rmcp would otherwise
    /// keep the MCP session that it has opened, and this server would not know it and never end it.
    async fn initialize(self, who: Principal, request: Request<Bytes>) -> Answer {
        let (sender, opened) = oneshot::channel();
        tokio::spawn(async move {
            let response = self.clone().ask(request).await;
            let id = session_id(response.headers());
            if let Some(id) = &id {
                self.remember(id.clone(), who);
            }
            if sender.send(response).is_err()
                && let Some(id) = id
            {
                let client = self.forget(&id);
                if let Some(client) = client {
                    self.end(id, client).await;
                }
            }
        });
        let failed = |_| refused(StatusCode::INTERNAL_SERVER_ERROR, "Internal Server Error");
        opened.await.unwrap_or_else(failed)
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
                clients.extract_if(|_, client| is_idle(client)).collect()
            };
            for (id, client) in idle {
                self.clone().end(id, client).await;
            }
        }
    }

    /// Ends all open streams, then all MCP sessions. Their workspaces end with the server.
    pub async fn shutdown(&self) {
        self.0.streams.cancel();
        let all: Vec<_> = self.clients().drain().collect();
        for (id, client) in all {
            client.ended.cancel();
            self.close(&id).await;
        }
    }

    /// Continues an MCP session that an earlier server has opened for this caller.
    fn resume_mcp_session(&self, id: &Arc<str>, who: &Principal, headers: &HeaderMap) {
        if self.clients().contains_key(id) || self.0.ended.lock().contains(id) {
            return;
        }
        let version = headers.get(VERSION).and_then(|version| version.to_str().ok());
        self.0.resuming.begin(id, version);
        self.remember(id.clone(), who.clone());
    }

    /// Replaces the name of a session in an answer by the one that its caller has for it.
    fn name<T>(&self, response: &mut Response<T>, who: &Principal) {
        if let Some(id) = session_id(response.headers())
            && let Ok(name) = HeaderValue::try_from(self.0.session_names.of_client(&id, who))
        {
            response.headers_mut().insert(SESSION_ID, name);
        }
    }

    /// Removes an MCP session, and remembers that it has ended.
    fn forget(&self, id: &Arc<str>) -> Option<Client> {
        self.0.ended.lock().add(id.clone());
        self.clients().remove(id)
    }

    /// Takes an MCP session of this caller into use. Returns its mark of use, and the token that is cancelled when it
    /// has ended.
    fn enter(&self, id: &str, who: &Principal) -> Option<(Arc<()>, CancellationToken)> {
        let mut clients = self.clients();
        let client = clients.get_mut(id).filter(|client| client.principal == *who)?;
        client.last_used = Instant::now();
        Some((client.in_use.clone(), client.ended.clone()))
    }

    fn remember(&self, id: Arc<str>, principal: Principal) {
        let evicted = {
            let mut clients = self.clients();
            let open: Vec<_> = clients.iter().map(|(id, client)| client.open(id)).collect();
            let evicted = evicted(MAX_SESSIONS, &principal, &open);
            let evicted = evicted.and_then(|evicted| clients.remove_entry(&evicted));
            let (in_use, ended) = Default::default();
            let client = Client { principal, last_used: Instant::now(), in_use, ended };
            clients.insert(id, client);
            evicted
        };
        if let Some((id, client)) = evicted {
            // In a task of its own: a stream that its client does not read delays it, and the newcomer may disconnect
            // meanwhile.
            tokio::spawn(self.clone().end(id, client));
        }
    }

    /// Ends an MCP session that is no longer known here, and its workspace.
    async fn end(self, id: Arc<str>, client: Client) {
        self.0.ended.lock().add(id.clone());
        tokio::join!(self.close(&id), self.end_workspace(id.clone(), client));
    }

    async fn end_workspace(&self, id: Arc<str>, client: Client) {
        // First, so that no call in progress starts another workspace.
        client.ended.cancel();
        let workspace = Workspace::of_mcp_session(id, client.ended);
        self.0.sessions.seen_by(client.principal).workspaces().close(&workspace).await;
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
    ) -> BoxFuture<'_, Result<Answer, Exhausted>> {
        self.clone().respond(principal, memory, request).boxed()
    }
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint").field("sessions", &self.clients().len()).finish_non_exhaustive()
    }
}

fn session_id(headers: &HeaderMap) -> Option<Arc<str>> {
    Some(headers.get(SESSION_ID)?.to_str().ok()?.into())
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use backend::local::Local;
    use config::{Config, Transport};
    use futures::poll;
    use serde_json::json;

    use super::*;
    use crate::{
        budget::{Budget, Share},
        sessions::Options,
    };

    fn endpoint() -> Endpoint {
        let backend = Arc::new(Local::new().expect("a backend"));
        let sessions = Sessions::new(Config::default(), backend, Options::default());
        Endpoint::new(Server::new(sessions, None, Transport::Http, None))
    }

    fn initialize() -> Request<Bytes> {
        let message = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "a", "version": "1" },
        }});
        Request::post("/mcp")
            .header("host", "localhost")
            .header("accept", "application/json, text/event-stream")
            .header("content-type", "application/json")
            .body(Bytes::from(message.to_string()))
            .expect("a request")
    }

    #[tokio::test]
    async fn a_message_that_there_is_no_memory_for_is_refused_as_http_does() {
        let budget = Budget::new(Share { total: 1, client: 1 });
        let who = Principal::local();
        let memory = RequestMemory::new(budget.lease(&who));
        let answer = endpoint().answer(who, memory, initialize()).await;
        assert!(matches!(answer, Err(Exhausted)));
    }

    #[tokio::test]
    async fn an_initialize_whose_client_goes_away_leaves_no_mcp_session_behind() {
        const STEPS: usize = 20;
        let endpoint = endpoint();
        let budget = Budget::new(Share { total: 1 << 30, client: 1 << 30 });
        let who = Principal::local();
        let mut answered = 0;
        // The client disconnects after a growing number of steps between the request and its answer.
        for steps in 0..STEPS {
            let memory = RequestMemory::new(budget.lease(&who));
            let mut answering = endpoint.answer(who.clone(), memory, initialize());
            for _ in 0..steps {
                if let Poll::Ready(answer) = poll!(&mut answering) {
                    let answer = answer.expect("there is memory");
                    assert!(session_id(answer.headers()).is_some(), "{}", answer.status());
                    answered += 1;
                    break;
                }
                tokio::task::yield_now().await;
            }
        }
        assert!((1..STEPS).contains(&answered), "{answered} of {STEPS}");
        let known = async {
            loop {
                let open = endpoint.0.manager.sessions.read().await;
                if open.keys().all(|id| endpoint.clients().contains_key(id)) {
                    return;
                }
                drop(open);
                tokio::task::yield_now().await;
            }
        };
        timeout(Duration::from_secs(20), known).await.expect("all that is open is known");
    }
}
