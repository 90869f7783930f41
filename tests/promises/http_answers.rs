//! MCP over HTTP as clients without a library speak it: any `Accept` header, answers in JSON, and errors as messages of
//! the protocol.

use serde_json::{Value, json};
use support::{On, PATIENCE, Response, http_begin, http_with, name, on_all, text, until, web::*};
use tokio::{io::AsyncReadExt, net::TcpStream, time::timeout};

use crate::http::read_until;

on_all! {
    a_program_that_reads_json_runs_code,
    a_program_that_reads_json_builds_on_its_variables,
}

/// `Accept` headers that are answered in JSON.
const TAKE_JSON: [Option<&str>; 6] = [
    None,
    Some("*/*"),
    Some("application/json"),
    Some("application/*, text/*;q=0.9"),
    Some("application/json, text/event-stream"),
    Some("text/event-stream;q=0.5, application/json"),
];

/// `Accept` headers that are answered in events.
const TAKE_EVENTS: [Option<&str>; 4] = [
    Some("text/event-stream"),
    Some("text/*"),
    Some("text/event-stream, application/json;q=0.5"),
    Some("application/json;q=0, */*"),
];

const TAKE_NEITHER: [Option<&str>; 2] =
    [Some("text/html"), Some("application/json;q=0, text/event-stream;q=0")];

type Headers<'a> = Vec<(&'a str, &'a str)>;

/// The headers of a request with this `Accept` header.
fn accepting<'a>(accept: Option<&'a str>, more: &[(&'a str, &'a str)]) -> Headers<'a> {
    let accept = accept.map(|accept| ("Accept", accept));
    [("Content-Type", "application/json")]
        .into_iter()
        .chain(accept)
        .chain(more.iter().copied())
        .collect()
}

async fn post(caller: &Caller, message: &Value, headers: &[(&str, &str)]) -> Response {
    caller.send("POST", "/mcp", headers, message.to_string().as_bytes()).await
}

fn hello() -> Value {
    json!({
        "jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": { "protocolVersion": "2025-06-18", "capabilities": {},
                    "clientInfo": { "name": "program", "version": "1.0" } },
    })
}

/// Makes a request in both generations, with its headers.
fn both<'a>(
    caller: &Caller,
    mcp: &'a Mcp<'_>,
    method: &str,
    params: &Value,
) -> [(Value, Vec<(&'a str, String)>); 2] {
    let legacy = json!({ "jsonrpc": "2.0", "id": 7, "method": method, "params": params });
    let session =
        vec![("Mcp-Session-Id", mcp.id.clone()), ("MCP-Protocol-Version", LEGACY.to_owned())];
    [(legacy, session), caller.modern(method, params.clone())]
}

fn borrowed<'a>(headers: &'a [(&'a str, String)]) -> Headers<'a> {
    headers.iter().map(|(name, value)| (*name, &**value)).collect()
}

/// The message of an error, checked for its form.
#[track_caller]
fn error(response: &Response) -> (u16, i64) {
    assert_eq!(response.header("content-type"), "application/json", "{}", response.status);
    let message = response.json();
    assert_eq!(message["jsonrpc"], "2.0", "{message}");
    assert!(message.get("id").is_some() && message.get("result").is_none(), "{message}");
    assert!(!text(&message["error"]["message"]).is_empty(), "{message}");
    (response.status, message["error"]["code"].as_i64().expect("a code"))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_has_the_form_that_its_client_accepts_and_is_json_if_it_may_be() {
    let (_web, caller) = Web::open(On::Local, &[]).await;
    let mcp = caller.open().await;
    let call = json!({ "name": "run_python", "arguments": { "code": "print(2+2)" } });
    let mut requests = vec![(hello(), vec![])];
    for (method, params) in
        [("tools/list", json!({})), ("resources/list", json!({})), ("tools/call", call)]
    {
        requests.extend(both(&caller, &mcp, method, &params));
    }
    for (message, headers) in &requests {
        let ask =
            async |accept| post(&caller, message, &accepting(accept, &borrowed(headers))).await;
        for accept in TAKE_JSON {
            let answer = ask(accept).await;
            let kind = (answer.status, answer.header("content-type"));
            assert_eq!(kind, (200, "application/json"), "{accept:?}: {message}");
            let body = answer.json();
            assert_eq!(body["id"], message["id"]);
            assert!(body["result"].is_object(), "{body}");
        }
        for accept in TAKE_EVENTS {
            let answer = ask(accept).await;
            let kind = (answer.status, answer.header("content-type"));
            assert_eq!(kind, (200, "text/event-stream"), "{accept:?}: {message}");
            let messages = answer.messages();
            assert_eq!(messages.len(), 1);
            assert_eq!(messages[0]["id"], message["id"]);
            assert!(messages[0]["result"].is_object(), "{messages:?}");
        }
        for accept in TAKE_NEITHER {
            assert_eq!(error(&ask(accept).await), (406, -32000), "{accept:?}: {message}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_notification_is_taken_whatever_its_client_accepts() {
    let (_web, caller) = Web::open(On::Local, &[]).await;
    let mcp = caller.open().await;
    let ready = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
    let session = [("Mcp-Session-Id", &*mcp.id), ("MCP-Protocol-Version", LEGACY)];
    for accept in TAKE_JSON.iter().chain(&TAKE_EVENTS) {
        let answer = post(&caller, &ready, &accepting(*accept, &session)).await;
        assert_eq!((answer.status, answer.body.len()), (202, 0), "{accept:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_the_server_is_for_those_who_accept_one() {
    let (web, caller) = Web::open(On::Local, &[]).await;
    let mcp = caller.open().await;
    let url = format!("{}/mcp", web.base);
    for accept in ["text/event-stream", "text/*", "*/*"] {
        let headers = [("Accept", accept), ("Mcp-Session-Id", &*mcp.id)];
        let mut stream = http_begin("GET", &url, &headers, &[]).await;
        let head = read_until(&mut stream, "\r\n\r\n").await;
        assert!(head.starts_with("HTTP/1.1 200") && head.contains("text/event-stream"), "{head}");
    }
    let headers = [("Accept", "application/json"), ("Mcp-Session-Id", &*mcp.id)];
    assert_eq!(error(&caller.send("GET", "/mcp", &headers, &[]).await), (406, -32000));
}

/// Code that runs until there is a file `go`.
const WAITING: &str = "
import os, time
open('started', 'w').close()
print('step 1 of 2')
while not os.path.exists('go'): time.sleep(0.01)
open('done', 'w').close()
";

async fn go(caller: &Caller, session: &str) {
    caller.upload(session, "go", b"").await.ok();
}

async fn begin(caller: &Caller, message: &Value, headers: &[(&str, &str)]) -> TcpStream {
    let url = format!("{}/mcp", caller.base);
    http_begin("POST", &url, headers, message.to_string().as_bytes()).await
}

/// Reads the rest of an answer that began with `before`.
async fn rest(mut stream: TcpStream, before: &str) -> Response {
    let mut all = before.as_bytes().to_vec();
    timeout(PATIENCE, stream.read_to_end(&mut all)).await.expect("in time").expect("read");
    Response::parse(&all)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_takes_long_is_one_json_body_that_begins_before_it_has_ended() {
    let (_web, caller) = Web::open(On::Local, &[]).await;
    let mcp = caller.open().await;
    for accept in [None, Some("application/json"), Some("application/json, text/event-stream")] {
        let session = name("long");
        let arguments = json!({ "session_id": session, "code": WAITING });
        let call = json!({ "name": "run_python", "arguments": arguments });
        for (message, headers) in both(&caller, &mcp, "tools/call", &call) {
            let headers = accepting(accept, &borrowed(&headers));
            let mut stream = begin(&caller, &message, &headers).await;
            // The head arrives before the program has a reason to end.
            let head = read_until(&mut stream, "\r\n\r\n").await;
            assert!(head.contains("application/json"), "{head}");
            go(&caller, &session).await;
            let answer = rest(stream, &head).await;
            assert!(answer.whole && answer.body.starts_with(b" "));
            assert_eq!(answer.json()["result"]["structuredContent"]["outcome"], "ok");
            caller.run(&session, "import os; os.remove('go')").await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_asks_for_progress_is_a_stream_for_those_who_accept_one() {
    let (_web, caller) = Web::open(On::Local, &[]).await;
    let mcp = caller.open().await;
    let session = name("asking");
    let call = json!({
        "name": "run_python",
        "arguments": { "session_id": session, "code": WAITING },
        "_meta": { "progressToken": "p" },
    });
    for (message, headers) in both(&caller, &mcp, "tools/call", &call) {
        for accept in [None, Some("*/*"), Some("application/json, text/event-stream")] {
            let headers = accepting(accept, &borrowed(&headers));
            let mut stream = begin(&caller, &message, &headers).await;
            let news = read_until(&mut stream, "step 1 of 2").await;
            assert!(news.contains("text/event-stream"), "{news}");
            assert!(news.contains("notifications/progress"), "{news}");
            go(&caller, &session).await;
            let messages = rest(stream, &news).await.messages();
            let result = &messages.last().expect("an answer")["result"];
            assert_eq!(result["structuredContent"]["outcome"], "ok");
            caller.run(&session, "import os; os.remove('go')").await;
        }
        let headers = accepting(Some("application/json"), &borrowed(&headers));
        let mut stream = begin(&caller, &message, &headers).await;
        let head = read_until(&mut stream, "\r\n\r\n").await;
        go(&caller, &session).await;
        let answer = rest(stream, &head).await;
        assert_eq!(answer.header("content-type"), "application/json");
        assert_eq!(answer.json()["result"]["structuredContent"]["outcome"], "ok");
        caller.run(&session, "import os; os.remove('go')").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_answer_in_json_is_not_waited_for_goes_on_in_an_mcp_session() {
    let (_web, caller) = Web::open(On::Local, &[]).await;
    let mcp = caller.open().await;
    let session = name("left");
    let arguments = json!({ "session_id": session, "code": WAITING });
    let call = json!({ "name": "run_python", "arguments": arguments });
    let [(message, headers), _] = both(&caller, &mcp, "tools/call", &call);
    let stream = begin(&caller, &message, &accepting(Some("*/*"), &borrowed(&headers))).await;
    let has = async |file: &str| {
        let listed = caller.call("list_artifacts", json!({ "session_id": session })).await;
        listed.json["artifacts"].to_string().contains(file)
    };
    until("it runs", async || has("started").await).await;
    drop(stream);
    go(&caller, &session).await;
    until("it has ended", async || has("done").await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_error_is_a_message_of_the_protocol() {
    let settings = [("SANDBOX_AUTH_TOKENS", "ann:a"), ("SANDBOX_MAX_UPLOAD_BYTES", "1MB")];
    let web = Web::start(On::Local, &settings).await;
    let (ann, nobody) = (web.caller(Some("a")), web.caller(None));
    let ping = json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" }).to_string();
    let ping = ping.as_bytes();
    let typed = accepting(None, &[]);
    let with = |header: (&'static str, &'static str)| [&typed[..], &[header]].concat();
    let large = vec![b' '; 4_000_000];
    for (method, headers, body, expected) in [
        ("POST", typed.clone(), ping, (400, -32000)),
        ("POST", typed.clone(), &b"{"[..], (400, -32700)),
        ("POST", typed.clone(), b"[]", (400, -32600)),
        ("POST", with(("MCP-Protocol-Version", "1999-01-01")), ping, (400, -32000)),
        ("POST", with(("Host", "evil.test")), ping, (421, -32000)),
        ("POST", with(("Origin", "https://evil.test")), ping, (403, -32000)),
        ("POST", with(("Mcp-Session-Id", "unknown")), ping, (404, -32000)),
        ("DELETE", with(("Mcp-Session-Id", "unknown")), b"", (404, -32000)),
        ("GET", with(("Mcp-Session-Id", "unknown")), b"", (404, -32000)),
        ("GET", typed.clone(), b"", (400, -32000)),
        ("PATCH", typed.clone(), b"", (405, -32000)),
        ("POST", accepting(Some("text/html"), &[]), ping, (406, -32000)),
        ("POST", typed.clone(), &large, (413, -32000)),
        ("POST", vec![("Content-Type", "text/plain")], ping, (415, -32000)),
        ("POST", vec![], ping, (415, -32000)),
    ] {
        let response = ann.send(method, "/mcp", &headers, body).await;
        assert_eq!(error(&response), expected, "{method} {headers:?}");
        let may = response.header("allow");
        assert_eq!(may, if response.status == 405 { "GET, POST, DELETE" } else { "" });
    }
    for method in ["POST", "GET", "DELETE"] {
        let response = nobody.send(method, "/mcp", &typed, ping).await;
        assert_eq!(error(&response), (401, -32000), "{method}");
        assert!(response.header("www-authenticate").starts_with("Bearer "));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_asks_too_often_is_told_so_in_a_message() {
    let settings = [("SANDBOX_AUTH_TOKENS", "ann:a"), ("SANDBOX_RATE_LIMIT_PER_M", "3")];
    let web = Web::start(On::Local, &settings).await;
    let ann = web.caller(Some("a"));
    for _ in 0..3 {
        assert_eq!(post(&ann, &hello(), &accepting(Some("*/*"), &[])).await.status, 200);
    }
    let refused = post(&ann, &hello(), &accepting(Some("*/*"), &[])).await;
    assert_eq!(error(&refused), (429, -32000));
    assert!(refused.header("retry-after").parse::<u64>().is_ok());
}

/// A program that posts with a library for HTTP, and expects JSON.
struct Program<'a> {
    base: &'a str,
    session: String,
}

impl<'a> Program<'a> {
    const BOTH: &'static str = "application/json, text/event-stream";

    /// Sends a request with the headers that such libraries add.
    async fn request(base: &str, method: &str, headers: &[(&str, &str)], body: &Value) -> Response {
        let own = [("Accept-Encoding", "gzip, deflate"), ("User-Agent", "python-httpx/0.28.1")];
        let accept = headers.iter().all(|(name, _)| *name != "Accept").then_some(("Accept", "*/*"));
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let typed = (!body.is_empty()).then_some(("Content-Type", "application/json"));
        let all: Vec<_> = own.iter().chain(&accept).chain(&typed).chain(headers).copied().collect();
        http_with(method, &format!("{base}/mcp"), &all, body.as_bytes()).await
    }

    async fn start(base: &'a str) -> Self {
        let hello = Self::request(base, "POST", &[("Accept", Self::BOTH)], &hello()).await;
        assert_eq!(hello.status, 200);
        assert_eq!(hello.json()["result"]["protocolVersion"], "2025-06-18");
        let program = Self { base, session: hello.header("mcp-session-id").to_owned() };
        let ready = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        assert_eq!(Self::request(base, "POST", &program.named(), &ready).await.status, 202);
        program
    }

    fn named(&self) -> [(&str, &str); 2] {
        [("Mcp-Session-Id", &self.session), ("MCP-Protocol-Version", "2025-06-18")]
    }

    async fn call(&self, id: u64, tool: &str, arguments: Value) -> Value {
        let call = json!({
            "jsonrpc": "2.0", "id": id, "method": "tools/call",
            "params": { "name": tool, "arguments": arguments },
        });
        let headers = [&self.named()[..], &[("Accept", Self::BOTH)]].concat();
        let answer = Self::request(self.base, "POST", &headers, &call).await;
        assert_eq!(answer.status, 200);
        let mut answer = answer.json();
        assert_eq!(answer["id"], id, "{answer}");
        answer["result"].take()
    }

    async fn end(self) {
        let named = [("Mcp-Session-Id", &*self.session)];
        assert_eq!(Self::request(self.base, "DELETE", &named, &Value::Null).await.status, 204);
    }
}

async fn a_program_that_reads_json_runs_code(on: On) {
    let web = Web::start(on, &[]).await;
    let program = Program::start(&web.base).await;
    let code = json!({ "code": "print(2 + 2)", "language": "python" });
    let result = program.call(2, "execute_code", code).await;
    assert!(text(&result["content"][0]["text"]).contains('4'), "{result}");
    assert_eq!(result["structuredContent"]["stdout"], "4\n");
    program.end().await;
}

async fn a_program_that_reads_json_builds_on_its_variables(on: On) {
    let web = Web::start(on, &[]).await;
    let program = Program::start(&web.base).await;
    let steps = [
        ("sales = [('Jan', 10_000), ('Feb', 12_000), ('May', 18_000)]\nprint(len(sales))", "3\n"),
        (
            "total = sum(revenue for _, revenue in sales)\nbest = max(sales, key=lambda it: it[1])\n\
             print(f'{total:,}')",
            "40,000\n",
        ),
        (
            "for month, revenue in sales: print(month, '█' * (revenue * 3 // best[1]))",
            "Jan █\nFeb ██\nMay ███\n",
        ),
    ];
    let mut id = 2;
    for (code, stdout) in steps {
        let arguments = json!({ "code": code, "language": "python" });
        let result = program.call(id, "execute_code", arguments).await;
        assert_eq!(result["structuredContent"]["stdout"], stdout, "{result}");
        id += 1;
    }
    let info = program.call(id, "get_workspace_info", json!({ "language": "python" })).await;
    let told = &info["structuredContent"];
    let variables = told["variables"].as_array().expect("a list");
    for variable in ["sales", "total", "best"] {
        assert!(variables.contains(&json!(variable)), "{variable} in {told}");
    }
    assert_eq!(told["execution_count"], 3);
    program.call(id + 1, "reset_workspace", json!({ "language": "python" })).await;
    let code = json!({ "code": "print('sales' in globals())", "language": "python" });
    let result = program.call(id + 2, "execute_code", code).await;
    assert_eq!(result["structuredContent"]["stdout"], "False\n", "{result}");
    program.end().await;
}
