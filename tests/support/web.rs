//! A server over HTTP, and clients of both generations of the protocol.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{
    process::Child,
    time::{sleep, timeout},
};
use tokio_util::task::AbortOnDropHandle;

use super::{Answer, On, PATIENCE, Response, free_port, http, http_with, program};

/// The last protocol revision with sessions, and the one without.
pub const LEGACY: &str = "2025-11-25";
pub const MODERN: &str = "2026-07-28";

/// The tokens of two callers.
pub const TOKENS: (&str, &str) = ("SANDBOX_AUTH_TOKENS", "alice:secret-a,bob:secret-b");

/// A server over HTTP for one test.
pub struct Web {
    pub process: Child,
    pub base: String,
    /// Another server of the same deployment, and the task that forwards connections to both in turn.
    _beside: Option<Box<(Child, AbortOnDropHandle<()>)>>,
    _folder: tempfile::TempDir,
}

impl Web {
    /// Starts the program with these settings and waits until it answers.
    pub async fn start(on: On, settings: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let (process, address) = launch(on, &folder, settings).await;
        if on == On::Kubernetes && std::env::var_os(REPLICAS).is_some() {
            let (beside, other) = launch(on, &folder, settings).await;
            let (proxy, between) = in_turn([address, other]).await;
            let pair = Some(Box::new((beside, between)));
            return Self {
                process,
                base: format!("http://{proxy}"),
                _beside: pair,
                _folder: folder,
            };
        }
        let is_tls = settings.iter().any(|(name, _)| *name == "SANDBOX_TLS_CERT");
        let base = format!("{}://{address}", if is_tls { "https" } else { "http" });
        assert_eq!(http("GET", &format!("{base}/health")).await.status, 200);
        Self { process, base, _beside: None, _folder: folder }
    }

    /// Starts the program with these settings; returns a caller without a token, too.
    pub async fn open(on: On, settings: &[(&str, &str)]) -> (Self, Caller) {
        let web = Self::start(on, settings).await;
        let caller = web.caller(None);
        (web, caller)
    }

    /// Starts the program for two callers, alice and bob, and with these settings.
    pub async fn of_two(on: On, settings: &[(&str, &str)]) -> (Self, Caller, Caller) {
        let web = Self::start(on, &[&[TOKENS], settings].concat()).await;
        let (alice, bob) = (web.caller(Some("secret-a")), web.caller(Some("secret-b")));
        (web, alice, bob)
    }

    /// A caller with this token, or without one.
    pub fn caller(&self, token: Option<&str>) -> Caller {
        Caller {
            base: self.base.clone(),
            query: String::new(),
            token: token.map(str::to_owned),
            next: AtomicU64::new(1),
        }
    }

    process!();
}

/// If this variable is set, each server on pods is two servers behind a round robin of connections: promises of one
/// server hold for both.
const REPLICAS: &str = "TEST_REPLICAS";

/// Starts the program, and waits until it listens; returns its address, too.
async fn launch(on: On, folder: &tempfile::TempDir, settings: &[(&str, &str)]) -> (Child, String) {
    let port = free_port();
    let mut command = program(folder.path(), settings);
    on.choose(&mut command);
    if on == On::Kubernetes && std::env::var_os(REPLICAS).is_some() {
        let is_set = |name| settings.iter().any(|(key, _)| *key == name);
        if !is_set("SANDBOX_KEY_FILE") {
            command.env("SANDBOX_KEY_FILE", super::key_in(folder.path()));
        }
        if !is_set("SANDBOX_PEER_ADDRESS") {
            command.env("SANDBOX_PEER_ADDRESS", format!("127.0.0.1:{}", free_port()));
        }
    }
    let mut process = command
        .env("SANDBOX_HTTP_PORT", &port)
        .args(["serve", "--http"])
        .args((on == On::Local).then_some("--no-isolation"))
        .kill_on_drop(true)
        .spawn()
        .expect("the server starts");
    let address = format!("127.0.0.1:{port}");
    let listens = async {
        while tokio::net::TcpStream::connect(&address).await.is_err() {
            assert_eq!(process.try_wait().expect("asked"), None, "the server has ended");
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, listens).await.expect("the server listens");
    (process, address)
}

/// Forwards connections to these servers in turn, from the address that is returned.
pub async fn in_turn<const N: usize>(servers: [String; N]) -> (String, AbortOnDropHandle<()>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    let passing_on = tokio::spawn(async move {
        for server in servers.iter().cycle() {
            let Ok((mut near, _)) = listener.accept().await else { return };
            let server = server.clone();
            tokio::spawn(async move {
                let Ok(mut far) = tokio::net::TcpStream::connect(server).await else { return };
                let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
            });
        }
    });
    (address, AbortOnDropHandle::new(passing_on))
}

/// A client that sends requests.
pub struct Caller {
    pub base: String,
    /// The query of the URL for messages of the protocol, with the question mark.
    pub query: String,
    pub token: Option<String>,
    next: AtomicU64,
}

impl Caller {
    /// The same caller with this query in its URL of the protocol.
    #[must_use]
    pub fn at(self, query: &str) -> Self {
        Self { query: query.to_owned(), ..self }
    }

    /// Sends one request; the target starts with a slash.
    pub async fn send(
        &self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Response {
        let token = self.token.as_ref().map(|token| format!("Bearer {token}"));
        let mut all: Vec<_> = headers.to_vec();
        all.extend(token.as_ref().map(|token| ("Authorization", &**token)));
        http_with(method, &format!("{}{target}", self.base), &all, body).await
    }

    /// The headers of an MCP request.
    pub fn mcp_headers(&self) -> Vec<(String, String)> {
        let mut headers = vec![
            ("Content-Type".to_owned(), "application/json".to_owned()),
            ("Accept".to_owned(), "application/json, text/event-stream".to_owned()),
        ];
        if let Some(token) = &self.token {
            headers.push(("Authorization".to_owned(), format!("Bearer {token}")));
        }
        headers
    }

    /// Sends one MCP message with more headers.
    pub async fn post(&self, message: &Value, headers: &[(&str, &str)]) -> Response {
        let own = self.mcp_headers();
        let own = own.iter().map(|(name, value)| (&**name, &**value));
        let all: Vec<_> = own.chain(headers.iter().copied()).collect();
        let url = format!("{}/mcp{}", self.base, self.query);
        http_with("POST", &url, &all, message.to_string().as_bytes()).await
    }

    /// Makes a request of the generation without sessions, and its headers. The client has no capabilities, unless the
    /// parameters name some.
    pub fn modern(&self, method: &str, mut params: Value) -> (Value, Vec<(&'static str, String)>) {
        params["_meta"]["io.modelcontextprotocol/protocolVersion"] = MODERN.into();
        let capabilities = &mut params["_meta"]["io.modelcontextprotocol/clientCapabilities"];
        if capabilities.is_null() {
            *capabilities = json!({});
        }
        params["_meta"]["io.modelcontextprotocol/clientInfo"] =
            json!({ "name": "tests", "version": "1" });
        let names = ["name", "uri", "taskId"].map(|field| params[field].as_str());
        let name = names.into_iter().flatten().next().map(str::to_owned);
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let message = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        let mut headers =
            vec![("MCP-Protocol-Version", MODERN.to_owned()), ("Mcp-Method", method.to_owned())];
        headers.extend(name.map(|name| ("Mcp-Name", name)));
        (message, headers)
    }

    /// Sends such a request; returns all messages of the answer.
    pub async fn ask(&self, method: &str, params: Value) -> Vec<Value> {
        let (message, headers) = self.modern(method, params);
        let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, &**value)).collect();
        let response = self.post(&message, &headers).await;
        assert_eq!(response.status, 200, "{}", String::from_utf8_lossy(&response.body));
        response.messages()
    }

    /// Calls a tool without an MCP session.
    pub async fn call(&self, tool: &str, arguments: Value) -> Answer {
        let params = json!({ "name": tool, "arguments": arguments });
        let messages = self.ask("tools/call", params).await;
        Answer::new(messages.last().expect("an answer")["result"].clone())
    }

    calls!();

    /// Runs a cell; returns `None` if the request failed on its way to the server.
    pub async fn try_cell(&self, session: &str, code: &str) -> Option<Value> {
        let arguments = json!({ "session_id": session, "code": code });
        let params = json!({ "name": "execute_code", "arguments": arguments });
        let (message, headers) = self.modern("tools/call", params);
        let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, &**value)).collect();
        let response = self.post(&message, &headers).await;
        let messages = (response.status == 200).then(|| response.messages())?;
        Some(Answer::new(messages.last()?["result"].clone()).json)
    }

    /// Opens an MCP session.
    pub async fn open(&self) -> Mcp<'_> {
        let params = json!({
            "protocolVersion": LEGACY,
            "capabilities": {},
            "clientInfo": { "name": "tests", "version": "1" },
        });
        let message =
            json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params });
        let response = self.post(&message, &[]).await;
        assert_eq!(response.status, 200, "{}", String::from_utf8_lossy(&response.body));
        assert_eq!(response.messages()[0]["result"]["protocolVersion"], LEGACY);
        let mcp = Mcp { caller: self, id: response.header("mcp-session-id").to_owned() };
        let ready = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        assert_eq!(mcp.post(&ready).await.status, 202);
        mcp
    }
}

/// An MCP session.
pub struct Mcp<'a> {
    pub caller: &'a Caller,
    pub id: String,
}

impl Mcp<'_> {
    /// Sends one message.
    pub async fn post(&self, message: &Value) -> Response {
        let headers = [("Mcp-Session-Id", &*self.id), ("MCP-Protocol-Version", LEGACY)];
        self.caller.post(message, &headers).await
    }

    /// Sends one request; returns all messages of its answer.
    pub async fn ask(&self, method: &str, params: Value) -> Vec<Value> {
        let id = self.caller.next.fetch_add(1, Ordering::Relaxed);
        let message = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        let response = self.post(&message).await;
        assert_eq!(response.status, 200, "{}", String::from_utf8_lossy(&response.body));
        response.messages()
    }

    /// Calls a tool.
    pub async fn call(&self, tool: &str, arguments: Value) -> Answer {
        let params = json!({ "name": tool, "arguments": arguments });
        let messages = self.ask("tools/call", params).await;
        Answer::new(messages.last().expect("an answer")["result"].clone())
    }
}
