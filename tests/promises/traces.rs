//! Traces: the spans that a collector of OpenTelemetry gets, by OTLP over HTTP.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    sync::{Arc, Mutex},
};

use axum::{Router, body::Bytes, extract::State, http::StatusCode, routing::post};
use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{KeyValue, any_value},
    trace::v1::{Span, span::SpanKind, status::StatusCode as SpanStatus},
};
use prost::Message;
use serde_json::{Value, json};
use support::{On, Server, free_port, name, until, web::*};
use tokio_util::task::AbortOnDropHandle;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SPAN: &str = "00f067aa0ba902b7";

/// Spans are exported as soon as they have ended, and not every five seconds.
const AT_ONCE: (&str, &str) = ("OTEL_BSP_SCHEDULE_DELAY", "20");

/// A collector.
struct Collector {
    endpoint: String,
    got: Arc<Mutex<Vec<ExportTraceServiceRequest>>>,
    _serving: AbortOnDropHandle<()>,
}

impl Collector {
    async fn start() -> Self {
        let got = Arc::<Mutex<Vec<_>>>::default();
        let receive = async |State(got): State<Arc<Mutex<Vec<_>>>>, body: Bytes| {
            let request = ExportTraceServiceRequest::decode(body).expect("a request of OTLP");
            got.lock().expect("not poisoned").push(request);
            StatusCode::OK
        };
        let app = Router::new().route("/v1/traces", post(receive)).with_state(got.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let endpoint = format!("http://{}", listener.local_addr().expect("bound"));
        let serving =
            tokio::spawn(async move { axum::serve(listener, app).await.expect("served") });
        Self { endpoint, got, _serving: AbortOnDropHandle::new(serving) }
    }

    /// The setting of a server that exports to this collector.
    fn setting(&self) -> (&str, &str) {
        ("SANDBOX_OTLP_ENDPOINT", &self.endpoint)
    }

    fn spans(&self) -> Vec<Span> {
        let got = self.got.lock().expect("not poisoned");
        let resources = got.iter().flat_map(|request| &request.resource_spans);
        resources.flat_map(|it| &it.scope_spans).flat_map(|it| it.spans.clone()).collect()
    }

    /// Everything that has arrived, as text.
    fn text(&self) -> String {
        format!("{:?}", self.got.lock().expect("not poisoned"))
    }

    /// The span of this name, when it has arrived.
    async fn span(&self, name: &str) -> Span {
        let found = || self.spans().into_iter().find(|span| span.name == name);
        until(name, async || found().is_some()).await;
        found().expect("it was there")
    }
}

/// Attributes, with texts and numbers as text.
fn attributes(of: &[KeyValue]) -> BTreeMap<String, String> {
    let value = |pair: &KeyValue| match pair.value.as_ref().and_then(|it| it.value.as_ref()) {
        Some(any_value::Value::StringValue(text)) => text.clone(),
        Some(any_value::Value::IntValue(number)) => number.to_string(),
        other => format!("{other:?}"),
    };
    of.iter().map(|pair| (pair.key.clone(), value(pair))).collect()
}

#[track_caller]
fn assert_has(span: &Span, expected: &[(&str, &str)]) {
    let attributes = attributes(&span.attributes);
    for (name, value) in expected {
        let got = attributes.get(*name).map(String::as_str);
        assert_eq!(got, Some(*value), "{name} of {}: {attributes:#?}", span.name);
    }
}

fn is_error(span: &Span) -> bool {
    span.status.as_ref().is_some_and(|status| status.code() == SpanStatus::Error)
}

fn id(bytes: &[u8]) -> String {
    hex::encode(bytes)
}

/// A call as a message, with this metadata.
fn call(tool: &str, arguments: Value, meta: Value) -> Value {
    json!({ "name": tool, "arguments": arguments, "_meta": meta })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_is_a_span_of_the_callers_trace_and_the_sandbox_and_the_run_are_within_it() {
    let collector = Collector::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("log");
    let settings = [
        collector.setting(),
        AT_ONCE,
        ("SANDBOX_LOG_FILE", log.to_str().expect("UTF-8")),
        ("SANDBOX_LOG_FORMAT", "json"),
        ("SANDBOX_LOG_LEVEL", "INFO"),
    ];
    let web = Web::start(On::Local, &settings).await;
    let (caller, session) = (web.caller(None), name("span"));
    let meta = json!({ "traceparent": format!("00-{TRACE}-{SPAN}-01"), "tracestate": "a=b" });
    let arguments = json!({ "code": "print(1)", "session_id": session });
    let (message, headers) = caller.modern("tools/call", call("run_python", arguments, meta));
    let other = format!("00-{}-{SPAN}-01", "a".repeat(32));
    let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, &**value)).collect();
    let headers = [&headers[..], &[("traceparent", &*other)]].concat();
    assert_eq!(caller.post(&message, &headers).await.status, 200);

    let span = collector.span("tools/call run_python").await;
    // The message's own comes before that of the HTTP request.
    assert_eq!((id(&span.trace_id), id(&span.parent_span_id)), (TRACE.into(), SPAN.into()));
    assert_eq!((span.kind(), &*span.trace_state), (SpanKind::Server, "a=b"));
    assert!(!is_error(&span) && span.end_time_unix_nano > span.start_time_unix_nano);
    let request_id = message["id"].to_string();
    assert_has(
        &span,
        &[
            ("mcp.method.name", "tools/call"),
            ("gen_ai.operation.name", "execute_tool"),
            ("gen_ai.tool.name", "run_python"),
            ("jsonrpc.request.id", &request_id),
            ("mcp.protocol.version", MODERN),
            ("network.transport", "tcp"),
            ("network.protocol.name", "http"),
            ("enduser.id", "local"),
            ("llm_sandbox.language", "python"),
            ("llm_sandbox.outcome", "ok"),
            ("llm_sandbox.session_id", &session),
        ],
    );
    for (name, expected) in [
        ("start sandbox", vec![("llm_sandbox.session_id", &*session)]),
        ("run python", vec![("llm_sandbox.outcome", "ok"), ("process.exit.code", "0")]),
    ] {
        let inner = collector.span(name).await;
        assert_eq!((&inner.trace_id, &inner.parent_span_id), (&span.trace_id, &span.span_id));
        assert_eq!(inner.kind(), SpanKind::Internal);
        assert_has(&inner, &expected);
        assert!(!is_error(&inner), "{inner:?}");
    }

    let resource = collector.got.lock().expect("not poisoned")[0].resource_spans[0].clone();
    let resource = attributes(&resource.resource.expect("one").attributes);
    assert_eq!(resource["service.name"], "llm-sandbox");
    assert_eq!(resource["service.version"], env!("CARGO_PKG_VERSION"));
    // The log has the call's own span, in the caller's trace.
    let lines = fs::read_to_string(&log).expect("UTF-8");
    let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let line = lines.into_iter().find(|line| line["message"] == "tool call").expect("a line");
    assert_eq!((&line["trace_id"], &line["span_id"]), (&json!(TRACE), &json!(id(&span.span_id))));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_header_of_a_request_is_the_parent_if_the_message_has_none() {
    let collector = Collector::start().await;
    let (_web, caller) = Web::open(On::Local, &[collector.setting(), AT_ONCE]).await;
    let (parent, session) = (format!("00-{TRACE}-{SPAN}-01"), name("head"));
    let headers = [("traceparent", &*parent)];
    let mcp = caller.open().await;
    let params = call("list_artifacts", json!({ "session_id": session }), json!({}));
    let message =
        json!({ "jsonrpc": "2.0", "id": "seven", "method": "tools/call", "params": params });
    let own = [("Mcp-Session-Id", &*mcp.id)];
    caller.post(&message, &[&own[..], &headers].concat()).await;
    let span = collector.span("tools/call list_artifacts").await;
    assert_eq!((id(&span.trace_id), id(&span.parent_span_id)), (TRACE.into(), SPAN.into()));
    let version = [("mcp.protocol.version", LEGACY), ("jsonrpc.request.id", "seven")];
    assert_has(&span, &version);
    assert!(attributes(&span.attributes).contains_key("mcp.session.id"));
    // Other methods have spans as well, and a trace of their own without a parent.
    let hello = collector.span("initialize").await;
    assert!(hello.parent_span_id.is_empty() && hello.trace_id != span.trace_id);

    caller.send("PUT", &format!("/files/{session}/data.csv"), &headers, b"1").await;
    let put = collector.span("PUT /files/{session}/{*path}").await;
    assert_eq!((id(&put.trace_id), id(&put.parent_span_id)), (TRACE.into(), SPAN.into()));
    assert_has(
        &put,
        &[
            ("http.request.method", "PUT"),
            ("http.route", "/files/{session}/{*path}"),
            ("http.response.status_code", "201"),
            ("llm_sandbox.session_id", &session),
        ],
    );
    let start = collector.span("start sandbox").await;
    assert_eq!(start.parent_span_id, put.span_id, "the upload started the sandbox");

    // A caller that does not want its trace recorded.
    let before = collector.spans().len();
    let unsampled = format!("00-{}-{SPAN}-00", "c".repeat(32));
    let meta = json!({ "traceparent": unsampled });
    caller.ask("tools/call", call("run_python", json!({ "code": "1" }), meta)).await;
    caller.ask("tools/list", json!({})).await;
    collector.span("tools/list").await;
    let after = collector.spans();
    assert!(after[before..].iter().all(|span| id(&span.trace_id) != "c".repeat(32)), "{after:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_are_marked_where_they_happen() {
    let collector = Collector::start().await;
    let settings = [collector.setting(), AT_ONCE];
    let (_web, caller) = Web::open(On::Local, &settings).await;
    let session = name("fails");
    // The program fails, and the call does not.
    caller.run(&session, "raise SystemExit(3)").await;
    let run = collector.span("run python").await;
    assert!(is_error(&run));
    assert_has(&run, &[("error.type", "error"), ("process.exit.code", "3")]);
    let ran = collector.span("tools/call run_python").await;
    assert!(!is_error(&ran));
    assert_has(&ran, &[("llm_sandbox.outcome", "error")]);

    let missing = json!({ "session_id": session, "path": "missing" });
    caller.call("read_artifact", missing).await.error();
    let read = collector.span("tools/call read_artifact").await;
    assert!(is_error(&read));
    assert_has(&read, &[("error.type", "tool_error"), ("llm_sandbox.outcome", "not_found")]);

    caller.ask("tools/call", json!({ "name": "nothing", "arguments": {} })).await;
    let unknown = collector.span("tools/call").await;
    assert!(is_error(&unknown));
    assert_has(&unknown, &[("error.type", "-32602"), ("rpc.response.status_code", "-32602")]);
    assert!(!collector.text().contains("nothing"), "a name that the caller has chosen");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_comes_later_is_the_parent_of_its_run_and_not_the_call_before() {
    let collector = Collector::start().await;
    let (_web, caller) = Web::open(On::Local, &[collector.setting(), AT_ONCE]).await;
    let session = name("later");
    caller.run(&session, "1").await;
    let bash = json!({ "session_id": session, "code": "true", "language": "bash" });
    caller.call("execute_code", bash).await.ok();
    let (first, second) = (
        collector.span("tools/call run_python").await,
        collector.span("tools/call execute_code").await,
    );
    let (python, bash) = (collector.span("run python").await, collector.span("run bash").await);
    assert_eq!((&python.parent_span_id, &bash.parent_span_id), (&first.span_id, &second.span_id));
    let starts = collector.spans().into_iter().filter(|span| span.name == "start sandbox");
    let parents: Vec<_> = starts.map(|span| span.parent_span_id).collect();
    assert_eq!(parents, [first.span_id]);
}

#[tokio::test(flavor = "multi_thread")]
async fn over_stdio_the_last_spans_are_exported_before_the_server_ends() {
    let collector = Collector::start().await;
    // Without `AT_ONCE`: only the end of the server is soon enough.
    let settings = [collector.setting(), ("OTEL_BSP_SCHEDULE_DELAY", "600000")];
    let settings = [&settings[..], &[("OTEL_SERVICE_NAME", "mine")]].concat();
    let mut server = Server::start_with(On::Local, &settings).await;
    let meta = json!({ "traceparent": format!("00-{TRACE}-{SPAN}-01") });
    let arguments = json!({ "code": "print(1)" });
    server.request("tools/call", call("run_python", arguments, meta)).await;
    server.close_input();
    server.exit_code().await;
    let spans = collector.spans();
    let span = spans.iter().find(|span| span.name == "tools/call run_python").expect("exported");
    assert_eq!((id(&span.trace_id), id(&span.parent_span_id)), (TRACE.into(), SPAN.into()));
    assert_has(span, &[("network.transport", "pipe")]);
    let run = spans.iter().find(|span| span.name == "run python").expect("exported");
    assert_eq!(run.parent_span_id, span.span_id);
    assert!(collector.text().contains("\"mine\""), "the name in the environment");
}

/// A mark in everything that a user sends or makes.
const MARK: &str = "zqMARKzq";

#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_callers_send_or_make_is_in_a_span() {
    let collector = Collector::start().await;
    let settings = [
        collector.setting(),
        AT_ONCE,
        ("SANDBOX_AUTH_TOKENS", "alice:secret-zqMARKzq"),
        ("SANDBOX_METRICS_TOKEN", "metrics-zqMARKzq"),
    ];
    let web = Web::start(On::Local, &settings).await;
    let caller = web.caller(Some("secret-zqMARKzq"));
    let session = name("private");
    let code = format!("# {MARK}\nopen('{MARK}.csv', 'w').write('{MARK}')\nprint('{MARK}')");
    let ran = caller.run(&session, &code).await;
    assert!(ran.to_string().contains(MARK));
    caller.run(&session, &format!("raise ValueError('{MARK}')")).await;
    let path = format!("/files/{session}/{MARK}.csv");
    caller.send("GET", &path, &[], &[]).await;
    caller.send("PUT", &format!("{path}?overwrite={MARK}"), &[], MARK.as_bytes()).await;
    let url = json!({ "session_id": session, "filename": format!("{MARK}2") });
    let url = caller.call("upload_file", url).await.ok();
    let url = url["upload_url"].as_str().expect("an address").to_owned();
    let signature = url.rsplit('=').next().expect("a signature").to_owned();
    support::http_with("PUT", &url, &[], MARK.as_bytes()).await;
    let read = json!({ "session_id": session, "path": format!("{MARK}.csv") });
    caller.call("read_artifact", read).await.ok();
    let (message, _) = caller.modern(MARK, json!({}));
    caller.post(&message, &[]).await;
    caller.ask("tools/call", json!({ "name": MARK, "arguments": { (MARK): MARK } })).await;
    let uri = json!({ "uri": format!("sandbox:///{session}/{MARK}.csv") });
    caller.ask("resources/read", uri).await;
    let params = call("list_runtimes", json!({}), json!({ "traceparent": MARK, "baggage": MARK }));
    let long = MARK.repeat(100);
    let message = json!({ "jsonrpc": "2.0", "id": long, "method": "tools/call", "params": params });
    let mcp = caller.open().await;
    caller.post(&message, &[("Mcp-Session-Id", &mcp.id), ("traceparent", MARK)]).await;
    caller.send(MARK, &path, &[], &[]).await;

    collector.span("tools/call list_runtimes").await;
    collector.span("HTTP /files/{session}/{*path}").await;
    collector.span("resources/read").await;
    let text = collector.text();
    assert!(text.contains(&session) && text.contains("alice"), "something has arrived");
    assert!(!text.contains(MARK) && !text.contains(&signature), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_not_there_costs_no_call_and_one_line_in_the_log() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("log");
    let endpoint = format!("http://127.0.0.1:{}", free_port());
    let settings = [
        ("SANDBOX_OTLP_ENDPOINT", &*endpoint),
        AT_ONCE,
        ("OTEL_BSP_MAX_QUEUE_SIZE", "8"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4"),
        ("SANDBOX_LOG_FILE", log.to_str().expect("UTF-8")),
        ("SANDBOX_LOG_LEVEL", "INFO"),
    ];
    let mut web = Web::start(On::Local, &settings).await;
    let caller = web.caller(None);
    let lines = || fs::read_to_string(&log).expect("UTF-8");
    let told = || lines().matches("spans cannot be exported").count();
    for _ in 0..50 {
        caller.call("list_runtimes", json!({})).await.ok();
    }
    until("the line", async || told() > 0).await;
    for _ in 0..50 {
        caller.call("list_runtimes", json!({})).await.ok();
    }
    web.signal("TERM");
    assert_eq!(web.exit_code().await, Some(0));
    assert_eq!((told(), lines().matches("tool call").count()), (1, 100));
    assert!(!lines().to_lowercase().contains("batchspanprocessor"), "{}", lines());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_does_not_answer_holds_up_neither_calls_nor_the_end() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let endpoint = format!("http://{}", silent.local_addr().expect("bound"));
    let folder = tempfile::tempdir().expect("a folder");
    let stderr = File::create(folder.path().join("stderr")).expect("created");
    let settings = [
        ("SANDBOX_OTLP_ENDPOINT", &*endpoint),
        AT_ONCE,
        // Longer than this test waits for anything.
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "10000000"),
    ];
    let mut server = Server::start_to(On::Local, &settings, stderr.into()).await;
    // Accepted and never read.
    let (_connection, _) = silent.accept().await.expect("the exporter connects");
    for _ in 0..20 {
        server.call("list_runtimes", json!({})).await.ok();
    }
    server.close_input();
    server.exit_code().await;
}
