//! Services over HTTP, and servers of MCP over HTTP.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicUsize, Ordering},
};

use axum::{
    Json, Router,
    body::{Body, Bytes},
    extract::Request as HttpRequest,
    http::{HeaderMap, StatusCode, Uri, header},
    response::{IntoResponse, Redirect, Response},
    routing::{any, get, post},
};
use tokio::net::TcpListener;

use super::*;

/// Serves HTTP on a free port until the test ends.
async fn serve(router: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

/// Answers with the request.
async fn echo(request: HttpRequest) -> Json<Value> {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 1_000_000).await.expect("a body");
    let header = |name: &str| parts.headers.get(name).and_then(|it| it.to_str().ok());
    Json(json!({
        "method": parts.method.as_str(), "uri": parts.uri.to_string(), "body": String::from_utf8_lossy(&body),
        "token": header("authorization"), "kind": header("content-type"), "own": header("x-own"),
    }))
}

fn settings(address: SocketAddr, more: &str) -> String {
    format!("upstreams:\n  web:\n    base_url: http://{address}/api\n    private: true\n{more}")
}

async fn web(
    upstreams: &CallersUpstreams,
    method: &str,
    arguments: Value,
) -> Result<Vec<Item>, CallError> {
    call_of(upstreams, "web", method, arguments).await
}

#[tokio::test]
async fn a_request_has_the_secrets_of_the_settings_and_no_answer_has() {
    let address = serve(Router::new().fallback(any(echo))).await;
    let more = "    headers: { Authorization: Bearer hunter2-hunter2 }\n    methods: [get, post]\n    \
                allow: [post]\n";
    let all = of(&settings(address, more));
    let get = async |arguments| web(&all, "get", arguments).await;
    let params = json!({ "a": 1, "b": ["x y", "z"], "c": null });
    let sent = value(get(json!({ "path": "/v1/é?k=1", "params": params })).await);
    assert_eq!(sent["uri"], "/api/v1/%C3%A9?k=1&a=1&b=x+y&b=z");
    assert_eq!(sent["token"], "[secret]");
    let arguments = json!({ "path": "/", "json": { "a": [1] }, "headers": { "X-Own": "1" } });
    let sent = value(web(&all, "post", arguments).await);
    assert_eq!(sent["method"], "POST");
    assert_eq!(sent["body"], "{\"a\":[1]}");
    assert_eq!((&sent["kind"], &sent["own"]), (&"application/json".into(), &"1".into()));
    for (arguments, why) in [
        (json!({}), "path is missing"),
        (json!({ "path": "v1" }), "does not begin with /"),
        (json!({ "path": "/../x" }), "has . or .."),
        (json!({ "path": "/%2e%2e/x" }), "has . or .."),
        (json!({ "path": "/a%252f..%252fx" }), "has . or .."),
        (json!({ "path": "/a\\..\\x" }), "has . or .."),
        (json!({ "path": "/", "headers": { "authorization": "x" } }), "only the operator can set"),
        (json!({ "path": "/", "headers": { "Host": "x" } }), "only the operator can set"),
        (json!({ "path": "/", "headers": { "X-A": "a\nb" } }), "is invalid"),
        (json!({ "path": "/", "body": "x" }), "there is no argument \"body\""),
    ] {
        let error = get(arguments.clone()).await.expect_err("refused");
        assert_eq!(error.kind, CallErrorKind::InvalidArguments, "{arguments}");
        assert!(error.message.contains(why), "{arguments}: {}", error.message);
    }
    let unlisted = web(&all, "delete", json!({ "path": "/" })).await;
    assert_eq!(kind(unlisted), CallErrorKind::UnknownTool);
}

#[tokio::test]
async fn a_method_that_writes_needs_a_setting_and_a_path_a_pattern() {
    let address = serve(Router::new().fallback(any(echo))).await;
    let more =
        "    methods: [GET, POST, DELETE]\n    ask: [delete]\n    paths: ['/v1/*', /status]\n";
    let all = of(&settings(address, more));
    let refused = web(&all, "post", json!({ "path": "/v1/x" })).await;
    assert_eq!(kind(refused), CallErrorKind::NotAllowed);
    let asked = all.prepare(tool_call("web", "delete", json!({ "path": "/v1/x" }))).await;
    assert_eq!(asked.expect("prepared").verdict(), Verdict::Ask);
    for path in ["/v1/x", "/status", "/status?x=/v2"] {
        web(&all, "get", json!({ "path": path })).await.expect("allowed");
    }
    for path in ["/v2/x", "/status/x", "/V1/x", "//v1/x", "/v2/v1/x", "/%76%31x"] {
        let error = web(&all, "get", json!({ "path": path })).await.expect_err("refused");
        assert_eq!(error.kind, CallErrorKind::NotAllowed, "{path}");
        assert!(error.message.contains("upstreams.web.paths"), "{}", error.message);
    }
}

#[tokio::test]
async fn answers_are_values_texts_or_files_by_their_types() {
    let typed = |kind: &'static str, body: &'static [u8]| {
        get(async move || ([(header::CONTENT_TYPE, kind)], Bytes::from_static(body)))
    };
    let router = Router::new()
        .route("/api/json", typed("application/problem+json; charset=utf-8", b"[1]"))
        .route("/api/text", typed("text/csv", b"[1]"))
        .route("/api/png", typed("image/png", b"\x89PNG"))
        .route("/api/bad", typed("text/plain", b"\xff"))
        .route("/api/none", get(async || StatusCode::NO_CONTENT))
        .route("/api/missing", get(async || (StatusCode::NOT_FOUND, "no such city")));
    let all = of(&settings(serve(router).await, "    methods: [GET, HEAD]\n"));
    let get = async |path: &str| web(&all, "get", json!({ "path": path })).await;
    assert_eq!(value(get("/json").await), json!([1]));
    assert_eq!(value(get("/text").await), "[1]");
    let file = |data: &'static [u8], mime_type: &str| {
        let data = Bytes::from_static(data);
        Ok(vec![Item::Bytes { data, mime_type: mime_type.into(), name: None }])
    };
    assert_eq!(get("/png").await, file(b"\x89PNG", "image/png"));
    assert_eq!(get("/bad").await, file(b"\xff", "text/plain"));
    assert_eq!(get("/none").await, Ok(vec![]));
    let error = get("/missing").await.expect_err("an error");
    let wanted = "HTTP 404 Not Found: no such city";
    assert_eq!(error, CallError::new(CallErrorKind::Upstream, wanted));
    let head = value(web(&all, "head", json!({ "path": "/png" })).await);
    assert_eq!(
        (&head["status"], &head["headers"]["content-type"]),
        (&200.into(), &"image/png".into())
    );
}

#[tokio::test]
async fn no_redirect_is_followed_and_no_large_answer_is_read() {
    static REACHED: AtomicUsize = AtomicUsize::new(0);
    static SENT: AtomicUsize = AtomicUsize::new(0);

    let other = get(async || {
        REACHED.fetch_add(1, Ordering::Relaxed);
        "secret"
    });
    let other = serve(Router::new().fallback(other)).await;
    let endless = get(async || {
        let chunks = futures::stream::repeat_with(|| {
            SENT.fetch_add(1 << 16, Ordering::Relaxed);
            Ok::<_, std::io::Error>(Bytes::from("x".repeat(1 << 16)))
        });
        Body::from_stream(chunks)
    });
    let leave = get(async move || Redirect::temporary(&format!("http://{other}/")));
    let stay = get(async || Redirect::temporary("/api/json"));
    let router = Router::new()
        .route("/api/leave", leave)
        .route("/api/stay", stay)
        .route("/api/endless", endless);
    let all = of(&settings(serve(router).await, "    max_answer_mb: 1\n"));
    for path in ["/leave", "/stay"] {
        let error = web(&all, "get", json!({ "path": path })).await.expect_err("not followed");
        assert_eq!(error.kind, CallErrorKind::Upstream);
        assert!(error.message.contains("no redirect is followed"), "{}", error.message);
    }
    assert_eq!(REACHED.load(Ordering::Relaxed), 0);
    let endless = web(&all, "get", json!({ "path": "/endless" })).await;
    assert_eq!(kind(endless), CallErrorKind::Limit);
    assert!(SENT.load(Ordering::Relaxed) < 20_000_000);
}

#[tokio::test]
async fn a_private_address_is_refused_by_address_and_by_name() {
    static REACHED: AtomicUsize = AtomicUsize::new(0);

    let count = any(async || {
        REACHED.fetch_add(1, Ordering::Relaxed);
    });
    let port = serve(Router::new().fallback(count)).await.port();
    for host in ["127.0.0.1", "localhost", "[::1]", "2130706433", "0x7f.1", "[::ffff:127.0.0.1]"] {
        let yaml = format!(
            "upstreams:\n  web: {{ base_url: 'https://{host}:{port}' }}\n  crm: {{ url: 'https://{host}:{port}/mcp' }}"
        );
        let all = of(&yaml);
        let get = web(&all, "get", json!({ "path": "/" })).await;
        let mcp = call(&all, "x", json!({})).await;
        for error in [get.expect_err("refused"), mcp.expect_err("refused")] {
            assert_eq!(error.kind, CallErrorKind::Unavailable);
            assert!(
                error.message.contains("private or local address"),
                "{host}: {}",
                error.message
            );
        }
    }
    assert_eq!(REACHED.load(Ordering::Relaxed), 0);
    let mistakes = config("upstreams: { web: { base_url: 'http://example.org' } }");
    assert!(mistakes.expect_err("refused").contains("http:// is only for private addresses"));
}

/// A server of MCP over HTTP, at `/new` of the newer generation.
async fn mcp(headers: HeaderMap, uri: Uri, Json(message): Json<Value>) -> Response {
    let is_new = uri.path() == "/new";
    let id = &message["id"];
    if headers.get("authorization").is_none_or(|it| it != "Bearer hunter2-hunter2") {
        return (StatusCode::UNAUTHORIZED, "who are you?").into_response();
    }
    let result = match message["method"].as_str() {
        Some("server/discover") if is_new => json!({
            "supportedVersions": ["2026-07-28"], "capabilities": { "tools": {} }, "ttlMs": 0,
            "cacheScope": "private", "resultType": "complete",
        }),
        Some("initialize") if !is_new => json!({
            "protocolVersion": "2025-06-18", "capabilities": { "tools": {} },
            "serverInfo": { "name": "test", "version": "1" },
        }),
        Some("tools/list") => {
            let schema = json!({ "type": "object" });
            let hints = json!({ "readOnlyHint": true });
            let tool =
                |name: &str| json!({ "name": name, "inputSchema": schema, "annotations": hints });
            json!({
                "tools": [tool("hello"), tool("huge"), tool("events")], "resultType": "complete", "ttlMs": 0,
                "cacheScope": "private",
            })
        }
        Some("tools/call") => {
            let name = message["params"]["name"].as_str().unwrap_or_default();
            let size = if name == "hello" { 2 } else { 6_000_000 };
            let content = json!([{ "type": "text", "text": "x".repeat(size) }]);
            let result = json!({ "content": content, "resultType": "complete" });
            if name == "events" {
                let answer = json!({ "jsonrpc": "2.0", "id": id, "result": result });
                let kind = [(header::CONTENT_TYPE, "text/event-stream")];
                return (kind, format!("data: {answer}\n\n")).into_response();
            }
            result
        }
        Some(method) if method.starts_with("notifications/") => {
            return StatusCode::ACCEPTED.into_response();
        }
        _ => return StatusCode::BAD_REQUEST.into_response(),
    };
    Json(json!({ "jsonrpc": "2.0", "id": id, "result": result })).into_response()
}

#[tokio::test]
async fn a_server_over_http_is_called_with_the_secrets_and_bounded_in_both_generations() {
    let address = serve(Router::new().fallback(post(mcp))).await;
    for path in ["old", "new"] {
        one_over_http(address, path).await;
    }
}

/// A server of MCP whose sessions end with each call. It refuses a lost session with the status that its path names.
async fn forgetful(headers: HeaderMap, uri: Uri, Json(message): Json<Value>) -> Response {
    static SESSION: AtomicUsize = AtomicUsize::new(0);

    let method = message["method"].as_str().unwrap_or_default();
    let session = format!("s{}", SESSION.load(Ordering::Relaxed));
    if method == "initialize" {
        let result = json!({
            "protocolVersion": "2025-06-18", "capabilities": { "tools": {} },
            "serverInfo": { "name": "test", "version": "1" },
        });
        let answer = json!({ "jsonrpc": "2.0", "id": message["id"], "result": result });
        return ([("mcp-session-id", session)], Json(answer)).into_response();
    }
    if headers.get("mcp-session-id").is_none_or(|it| *it != *session) {
        let status = uri.path()[1..].parse().expect("a status");
        let error =
            json!({ "code": -32000, "message": "Bad Request: No valid session ID provided" });
        let answer = json!({ "jsonrpc": "2.0", "id": null, "error": error });
        return (StatusCode::from_u16(status).expect("a status"), Json(answer)).into_response();
    }
    let result = match method {
        "tools/list" => {
            json!({ "tools": [{ "name": "count", "inputSchema": { "type": "object" } }] })
        }
        "tools/call" => {
            let count = SESSION.fetch_add(1, Ordering::Relaxed);
            json!({ "content": [{ "type": "text", "text": count.to_string() }] })
        }
        _ => return StatusCode::ACCEPTED.into_response(),
    };
    Json(json!({ "jsonrpc": "2.0", "id": message["id"], "result": result })).into_response()
}

#[tokio::test]
async fn a_call_in_a_session_that_the_server_has_lost_is_made_once_in_another() {
    let address = serve(Router::new().fallback(post(forgetful))).await;
    let mut made = 0;
    for status in [404, 400] {
        let crm = of(&format!(
            "upstreams:\n  crm: {{ url: 'http://{address}/{status}', private: true, allow: count }}\n"
        ));
        for _ in 0..3 {
            let count = value(call(&crm, "count", json!({})).await);
            assert_eq!(count, made.to_string(), "{status}");
            made += 1;
        }
    }
}

async fn one_over_http(address: SocketAddr, path: &str) {
    let yaml = |token: &str| {
        format!(
            "upstreams:\n  crm:\n    type: http\n    url: http://{address}/{path}\n    private: true\n    \
             max_answer_mb: 1\n    headers: {{ Authorization: Bearer {token} }}\n"
        )
    };
    let crm = of(&yaml("hunter2-hunter2"));
    assert_eq!(value(call(&crm, "hello", json!({})).await), "xx");
    for tool in ["huge", "events"] {
        assert_eq!(kind(call(&crm, tool, json!({})).await), CallErrorKind::Limit, "{tool}");
    }
    assert_eq!(value(call(&crm, "hello", json!({})).await), "xx");
    let error = call(&of(&yaml("wrong-token")), "hello", json!({})).await.expect_err("refused");
    assert_eq!(error.kind, CallErrorKind::Unavailable);
    assert!(error.message.contains("401"), "{}", error.message);
    assert!(!error.message.contains("wrong-token"), "{}", error.message);
}
