//! Access over HTTP: which token or URL opens what, and that callers see nothing of each other.
//!
//! Two callers, alice and bob, share only the server. Sandboxes are plain processes, because these tests are about the
//! separation of names, not of programs.

use std::fs;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::{Value, json};
use support::{
    On, PATIENCE, Response, ended, http, http_begin, http_with, name, program, until,
    until_sessions, web::*,
};
use tokio::{io::AsyncReadExt, time::timeout};

/// A server with two callers.
async fn start(settings: &[(&str, &str)]) -> (Web, Caller, Caller) {
    Web::of_two(On::Local, settings).await
}

/// Status and code of a refusal, checked for its form.
#[track_caller]
pub(super) fn refusal(response: &Response) -> (u16, String) {
    assert_eq!(response.header("content-type"), "application/json", "{}", response.status);
    let mut body = response.json();
    if body["jsonrpc"] == "2.0" {
        // In the form that a client of MCP can read.
        assert_eq!(body["error"]["message"], body["error"]["data"]["message"]);
        body = body["error"]["data"].take();
    }
    assert!(body["message"].as_str().is_some_and(|text| !text.is_empty()), "{body}");
    (response.status, body["error"].as_str().expect("a code").to_owned())
}

/// Puts a file; returns its download URL.
async fn put(caller: &Caller, session: &str, file: &str, content: &[u8]) -> String {
    let response = caller.send("PUT", &format!("/files/{session}/{file}"), &[], content).await;
    assert!(matches!(response.status, 200 | 201), "{}", response.json());
    response.json()["download_url"].as_str().expect("an address").to_owned()
}

/// The URL to upload a file to.
async fn upload_url(caller: &Caller, session: &str, file: &str, overwrite: bool) -> String {
    let arguments = json!({ "session_id": session, "filename": file, "overwrite": overwrite });
    let result = caller.call("upload_file", arguments).await.ok();
    result["upload_url"].as_str().expect("an address").to_owned()
}

async fn content(caller: &Caller, session: &str, file: &str) -> Vec<u8> {
    let response = caller.send("GET", &format!("/files/{session}/{file}"), &[], &[]).await;
    assert_eq!(response.status, 200);
    response.body
}

/// The URL with another value for a part of its query.
fn with(url: &str, part: &str, value: &str) -> String {
    let (path, query) = url.split_once('?').expect("a query");
    let mut found = false;
    let parts = query.split('&').map(|pair| match pair.split_once('=') {
        Some((name, _)) if name == part => {
            found = true;
            format!("{part}={value}")
        }
        _ => pair.to_owned(),
    });
    let changed = format!("{path}?{}", parts.collect::<Vec<_>>().join("&"));
    assert!(found, "no {part} in {url}");
    changed
}

/// The URL without a part of its query.
fn without(url: &str, part: &str) -> String {
    let (path, query) = url.split_once('?').expect("a query");
    let rest = query.split('&').filter(|pair| !pair.starts_with(&format!("{part}=")));
    format!("{path}?{}", rest.collect::<Vec<_>>().join("&"))
}

fn part<'a>(url: &'a str, name: &str) -> &'a str {
    let (_, query) = url.split_once('?').expect("a query");
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.find(|(key, _)| *key == name).expect("is there").1
}

/// The signature for any file of a session, as its list has it.
async fn any_signature(caller: &Caller, session: &str) -> String {
    let code = "import os\nos.mkdir('many')\nfor n in range(6): open(f'many/{n}', 'w')";
    caller.run(session, code).await;
    let listed = caller.call("list_artifacts", json!({ "session_id": session })).await.ok();
    let template = listed["download_url_template"].as_str().expect("an address");
    let (_, rest) = template.split_once('~').expect("a signature");
    rest.strip_suffix("/{filename}").expect("a place for the name").to_owned()
}

/// The URL of all files of a session.
async fn all_url(caller: &Caller, session: &str) -> String {
    caller.list(session).await["download_all_url"].as_str().expect("an address").to_owned()
}

/// All kinds of URLs of a session with the file `a.txt`, whose URL is `url`, and the methods that they are for.
async fn all_kinds(
    caller: &Caller,
    session: &str,
    url: &str,
    upload: &str,
) -> [(&'static str, String); 5] {
    let (all, any) = (all_url(caller, session).await, any_signature(caller, session).await);
    let any = url.split('?').next().expect("a path").replace(session, &format!("{session}~{any}"));
    let upload = || upload.to_owned();
    [("GET", url.to_owned()), ("GET", all), ("GET", any), ("GET", upload()), ("PUT", upload())]
}

/// The URL with a guessed signature.
fn forged(url: &str) -> String {
    let start = url.find("signature=").map_or_else(|| url.find('~'), |at| Some(at + 10));
    let start = start.expect("a signature");
    let end = url[start..].find(['&', '/']).map_or(url.len(), |at| start + at);
    let other = if url[..end].ends_with('A') { "B" } else { "A" };
    format!("{}{other}{}", &url[..end - 1], &url[end..])
}

/// A form with one file.
fn form(file: &str, content: &str) -> (String, Vec<u8>) {
    let body = format!(
        "--b0undary\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{file}\"\r\n\r\n\
         {content}\r\n--b0undary--\r\n"
    );
    ("multipart/form-data; boundary=b0undary".into(), body.into_bytes())
}

#[tokio::test(flavor = "multi_thread")]
async fn without_tokens_everybody_on_this_machine_comes_in_and_addresses_are_plain() {
    let web = Web::start(On::Local, &[]).await;
    let (nobody, somebody) = (web.caller(None), web.caller(Some("any")));
    let session = name("open");
    let url = put(&nobody, &session, "a.txt", b"open").await;
    assert_eq!(url, format!("{}/files/{session}/a.txt", web.base));
    assert_eq!(http("GET", &url).await.body, b"open");
    // A client that is configured for a server with tokens also works with a server without.
    assert_eq!(content(&somebody, &session, "a.txt").await, b"open");
    assert_eq!(somebody.run(&session, "print(1)").await["stdout"], "1\n");
    let listed = nobody.call("list_artifacts", json!({ "session_id": session })).await.ok();
    let all = listed["download_all_url"].as_str().expect("an address");
    assert!(!all.contains("signature"), "{all}");
    assert_eq!(http("GET", all).await.status, 200);
    nobody.close(&session).await;
    assert_eq!(refusal(&http("GET", &url).await), (404, "not_found".into()));
}

#[tokio::test]
async fn a_server_that_others_can_reach_does_not_start_without_tokens() {
    let folder = tempfile::tempdir().expect("a folder");
    for host in ["0.0.0.0", "::"] {
        for transport in ["stdio", "http"] {
            let settings = [("SANDBOX_HTTP_HOST", host), ("SANDBOX_TRANSPORT", transport)];
            let mut server = program(folder.path(), &settings);
            let (code, _, said) = ended(server.arg("--no-isolation")).await;
            assert_eq!(code, Some(64), "{host} {transport}: {said}");
            assert!(said.contains("SANDBOX_AUTH_TOKENS"), "{said}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn with_tokens_it_can_be_reached_by_others() {
    for host in ["0.0.0.0", "::"] {
        let insecure = ("SANDBOX_ALLOW_INSECURE_HTTP", "true");
        let (web, alice, _) = start(&[("SANDBOX_HTTP_HOST", host), insecure]).await;
        let url = put(&alice, &name("reached"), "a.txt", b"1").await;
        assert!(url.starts_with(&format!("{}/files/", web.base)), "{url}");
        assert_eq!(http("GET", &url).await.body, b"1");
        assert_eq!(http("GET", &format!("{}/files/s/a", web.base)).await.status, 401);
    }
}

#[tokio::test]
async fn a_mistake_in_the_tokens_is_told_without_them() {
    let folder = tempfile::tempdir().expect("a folder");
    for list in ["hunter2", "me:hunter2,you:hunter2", "m e:hunter2", "me:hunter2 hunter2"] {
        let mut server = program(folder.path(), &[("SANDBOX_AUTH_TOKENS", list)]);
        let (code, _, said) = ended(server.arg("--no-isolation")).await;
        assert_eq!(code, Some(64), "{said}");
        assert!(said.contains("SANDBOX_AUTH_TOKENS") && !said.contains("hunter2"), "{said}");
    }
}

#[tokio::test]
async fn a_line_of_the_settings_file_that_cannot_be_read_is_not_quoted_if_it_has_tokens() {
    let folder = tempfile::tempdir().expect("a folder");
    for line in [
        "SANDBOX_AUTH_TOKENS=me:it's-hunter2",
        "SANDBOX_AUTH_TOKENS=\"me:hunter2",
        "SANDBOX_AUTH_TOKENS: me:hunter2",
    ] {
        fs::write(folder.path().join(".env"), line).expect("written");
        let mut server = program(folder.path(), &[]);
        let (code, _, said) = ended(server.args(["--no-isolation", "serve", "--http"])).await;
        assert_eq!(code, Some(64), "{line}: {said}");
        assert!(said.contains(".env") && !said.contains("hunter2"), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_and_signatures_are_in_no_log_and_no_answer() {
    for level in ["DEBUG", "TRACE"] {
        let folder = tempfile::tempdir().expect("a folder");
        let log = folder.path().join("server.log");
        let settings = [
            ("SANDBOX_LOG_LEVEL", level),
            ("SANDBOX_LOG_FORMAT", "json"),
            ("SANDBOX_LOG_FILE", log.to_str().expect("UTF-8")),
        ];
        let (mut web, alice, bob) = start(&settings).await;
        let session = name("logged");
        let url = put(&alice, &session, "a.txt", b"1").await;
        let signature = part(&url, "signature").to_owned();
        let upload = upload_url(&alice, &session, "b.txt", false).await;
        let upload_signature = part(&upload, "signature").to_owned();
        alice.run(&session, "open('c.txt', 'w')").await;
        let mcp = alice.open().await;
        mcp.call("list_artifacts", json!({ "session_id": session })).await.ok();
        let wrong = web.caller(Some("wrong-zq"));
        let refused = [
            wrong.send("GET", "/files/a/b", &[], &[]).await,
            wrong.send("POST", "/mcp", &[], b"{}").await,
            bob.send("GET", &format!("/files/{session}/a.txt"), &[], &[]).await,
            bob.send("POST", "/mcp", &[("Mcp-Session-Id", &mcp.id)], b"{}").await,
            http("GET", &with(&url, "signature", "1")).await,
            http_with("PUT", &url, &[], b"2").await,
            http("GET", &format!("{}/mcp", web.base)).await,
        ];
        let mut all: Vec<_> = refused
            .iter()
            .map(|response| {
                assert!(response.status >= 400);
                format!("{:?}{}", response.headers, String::from_utf8_lossy(&response.body))
            })
            .collect();
        web.signal("TERM");
        assert_eq!(web.exit_code().await, Some(0));
        let written = fs::read_to_string(&log).expect("UTF-8");
        assert!(written.contains("\"client\":\"alice\""), "who called is there: {written}");
        all.push(written);
        for text in all {
            for secret in ["secret-a", "secret-b", "wrong-zq", &signature, &upload_signature] {
                assert!(!text.contains(secret), "{secret} in {text}");
            }
        }
    }
}

/// Method, target, headers and body of a request.
type Request = (&'static str, String, Vec<(&'static str, String)>, Vec<u8>);

/// Requests that need a token.
fn doors(session: &str) -> Vec<Request> {
    let json = || {
        vec![
            ("Content-Type", "application/json".to_owned()),
            ("Accept", "application/json, text/event-stream".to_owned()),
        ]
    };
    let ping = br#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#.to_vec();
    let (kind, form) = form("a.txt", "theirs");
    let kind = || vec![("Content-Type", kind.clone())];
    let file = format!("/files/{session}/a.txt");
    vec![
        ("POST", "/mcp".into(), json(), ping),
        ("GET", "/mcp".into(), vec![("Accept", "text/event-stream".into())], vec![]),
        ("DELETE", "/mcp".into(), vec![], vec![]),
        ("GET", file.clone(), vec![], vec![]),
        ("HEAD", file.clone(), vec![], vec![]),
        ("PUT", file.clone(), vec![], b"theirs".to_vec()),
        ("POST", file, kind(), form.clone()),
        ("POST", format!("/files/{session}/"), kind(), form.clone()),
        ("POST", format!("/files/{session}"), kind(), form.clone()),
        ("POST", "/files".into(), kind(), form),
        ("GET", format!("/files/{session}/"), vec![], vec![]),
        ("GET", format!("/files/{session}/?format=zip"), vec![], vec![]),
        ("HEAD", format!("/files/{session}/?format=tar"), vec![], vec![]),
        ("PUT", format!("/files/{}/new.txt", name("new")), vec![], b"theirs".to_vec()),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_no_token_of_ours_comes_in_nowhere() {
    let (web, alice, _) = start(&[]).await;
    let session = name("closed");
    put(&alice, &session, "a.txt", b"ours").await;
    let credentials: &[&[&str]] = &[
        &[],
        &["Bearer wrong"],
        &["Bearer"],
        &["Bearer "],
        &["secret-a"],
        &["Bearersecret-a"],
        &["Bearer alice:secret-a"],
        &["Bearer SECRET-A"],
        &["Bearer secret-a secret-b"],
        &["Bearer secret-a,"],
        &["Bearer \"secret-a\""],
        &["Bearer secret-aé"],
        &["Basic YWxpY2U6c2VjcmV0LWE="],
        &["Token secret-a"],
    ];
    for (method, target, headers, body) in &doors(&session) {
        for given in credentials {
            let mut headers: Vec<_> = headers.iter().map(|(k, v)| (*k, &**v)).collect();
            headers.extend(given.iter().map(|value| ("Authorization", *value)));
            let url = format!("{}{target}", web.base);
            let response = http_with(method, &url, &headers, body).await;
            let case = format!("{method} {target} with {given:?}");
            assert_eq!(response.status, 401, "{case}");
            let challenge = response.header("www-authenticate");
            assert!(challenge.starts_with("Bearer realm="), "{case}: {challenge}");
            assert_eq!(challenge.contains("invalid_token"), !given.is_empty(), "{case}");
            if *method != "HEAD" {
                assert_eq!(refusal(&response).1, "unauthorized", "{case}");
            }
        }
    }
    for target in ["/files/{}/a.txt?token=secret-a", "/files/{}/?access_token=secret-a"] {
        let target = target.replace("{}", &session);
        assert_eq!(http("GET", &format!("{}{target}", web.base)).await.status, 401);
    }
    assert_eq!(content(&alice, &session, "a.txt").await, b"ours");
    let ready = http("GET", &format!("{}/ready", web.base)).await;
    assert_eq!((ready.status, &ready.json()["sessions"]), (200, &1.into()), "none was made");
    assert_eq!(http("GET", &format!("{}/health", web.base)).await.status, 200);
    // The scheme is written in any case (RFC 9110, section 11.1).
    let lower = [("Authorization", "bearer secret-a")];
    let url = format!("{}/files/{session}/a.txt", web.base);
    assert_eq!(http_with("GET", &url, &lower, &[]).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_sends_two_tokens_does_not_come_in() {
    // A proxy in front may check the other token, so the server does not guess which one is meant.
    let (web, alice, _) = start(&[]).await;
    let session = name("twice");
    put(&alice, &session, "a.txt", b"ours").await;
    for (method, target, headers, body) in &doors(&session) {
        for given in [["wrong", "secret-a"], ["secret-a", "wrong"], ["secret-a", "secret-b"]] {
            let given = given.map(|token| format!("Bearer {token}"));
            let mut headers: Vec<_> = headers.iter().map(|(k, v)| (*k, &**v)).collect();
            headers.extend(given.iter().map(|value| ("Authorization", &**value)));
            let url = format!("{}{target}", web.base);
            let response = http_with(method, &url, &headers, body).await;
            assert_eq!(response.status, 401, "{method} {target} with {given:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_no_token_hears_nothing_else_either() {
    let (web, ..) = start(&[]).await;
    let (kind, form) = form("a.txt", "theirs");
    let headers = [("Content-Type", &*kind)];
    for (method, target) in [
        ("GET", "/files/s/.."),
        ("GET", "/files/s/%FF"),
        ("GET", "/files/a.b/"),
        ("GET", "/files/%FF/"),
        ("GET", "/files/s/?format=rar"),
        ("PUT", "/files/s/.."),
        ("PUT", "/files/a.b/c"),
        ("POST", "/files/a.b/"),
        ("POST", "/files/%FF/"),
    ] {
        let body = if method == "GET" { &[][..] } else { &form };
        let response = http_with(method, &format!("{}{target}", web.base), &headers, body).await;
        assert_eq!(refusal(&response), (401, "unauthorized".into()), "{method} {target}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_of_another_is_not_there() {
    let (_web, alice, bob) = start(&[]).await;
    let session = name("hers");
    put(&alice, &session, "a.txt", b"hers").await;
    let code = "print('x' * 200_000)";
    let run = alice.run(&session, code).await["run_id"].as_str().expect("an id").to_owned();
    let unknown = name("unknown");
    let calls = |session: &str| {
        [
            ("list_artifacts", json!({ "session_id": session })),
            ("read_artifact", json!({ "session_id": session, "path": "a.txt" })),
            ("read_output", json!({ "session_id": session, "run_id": run })),
            ("close_session", json!({ "session_id": session })),
        ]
    };
    for (tool, arguments) in calls(&session) {
        let answer = bob.call(tool, arguments).await;
        assert_eq!(answer.error(), "session_not_found", "{tool}");
        let said = answer.json["message"].to_string().replace(&session, "");
        assert!(!said.contains("alice"), "{said}");
    }
    // The answer says nothing that differs from the answer for an unknown name.
    for (n, (tool, arguments)) in calls(&unknown).into_iter().enumerate() {
        let (hers, nobodys) = (calls(&session)[n].1.clone(), arguments);
        let (hers, nobodys) = (bob.call(tool, hers).await, bob.call(tool, nobodys).await);
        let said = nobodys.json.to_string().replace(&unknown, &session);
        assert_eq!(hers.json.to_string(), said, "{tool}");
    }
    let listed = alice.call("list_artifacts", json!({ "session_id": session })).await.ok();
    assert_eq!(listed["artifacts"].as_array().map(Vec::len), Some(1), "{listed}");
    alice.call("read_output", json!({ "session_id": session, "run_id": run })).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_belongs_to_its_caller_and_nobody_can_tell_that_another_has_it() {
    let (_web, alice, bob) = start(&[]).await;
    let session = name("invoices");
    put(&alice, &session, "a.txt", b"hers").await;
    // His answers for the name of her session are the same as for an unknown name.
    let unknown = name("invoices");
    let mut said = vec![];
    for id in [&session, &unknown] {
        let run = json!({ "session_id": id, "code": "import os; print(os.listdir())" });
        let mut run = bob.call("run_python", run).await.ok();
        for field in ["run_id", "duration_ms"] {
            run[field] = Value::Null;
        }
        let upload = json!({ "session_id": id, "filename": "b.txt", "text": "his" });
        let upload = bob.call("upload_file", upload).await.ok();
        said.push((run.to_string() + &upload.to_string()).replace(id, "the session"));
    }
    assert_eq!(said[0], said[1]);
    assert!(said[0].contains("\"stdout\":\"[]\\n\""), "{}", said[0]);
    assert_eq!(content(&alice, &session, "a.txt").await, b"hers");
    assert_eq!(content(&bob, &session, "b.txt").await, b"his");
    assert_eq!(alice.files(&session).await, [("a.txt".to_owned(), 4)]);
    assert_eq!(bob.files(&session).await, [("b.txt".to_owned(), 3)]);
    // Each URL leads to the session that it was made for.
    let (hers, his) =
        (put(&alice, &session, "c.txt", b"hers").await, put(&bob, &session, "c.txt", b"his").await);
    assert_eq!(http("GET", &hers).await.body, b"hers");
    assert_eq!(http("GET", &his).await.body, b"his");
    assert_ne!(hers, his);
    bob.close(&session).await;
    assert_eq!(refusal(&http("GET", &his).await), (404, "not_found".into()));
    assert_eq!(http("GET", &hers).await.body, b"hers");
    let run = alice.run(&session, "print(open('a.txt').read())").await;
    assert_eq!(run["stdout"], "hers\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_another_are_not_there() {
    let (web, alice, bob) = start(&[]).await;
    let session = name("hers");
    let url = put(&alice, &session, "a.txt", b"hers").await;
    let file = format!("/files/{session}/a.txt");
    for target in [
        file.clone(),
        format!("/files/{session}/"),
        format!("/files/{session}"),
        format!("/files/{session}/?format=zip"),
        format!("/files/{session}/?format=tar"),
    ] {
        let response = bob.send("GET", &target, &[], &[]).await;
        assert_eq!(refusal(&response), (404, "not_found".into()), "{target}");
    }
    let end = bob.send("DELETE", &format!("/sessions/{session}"), &[], &[]).await;
    assert_eq!(refusal(&end), (404, "not_found".into()));
    assert_eq!(bob.send("HEAD", &file, &[], &[]).await.status, 404);
    // If a request has a token, the token decides: her signature does not give him her rights.
    let target = url.strip_prefix(&web.base).expect("ours");
    assert_eq!(bob.send("GET", target, &[], &[]).await.status, 404);
    assert_eq!(content(&alice, &session, "a.txt").await, b"hers");
    let listed = alice.send("GET", &format!("/files/{session}/"), &[], &[]).await.json();
    assert_eq!(listed["artifacts"].as_array().map(Vec::len), Some(1), "{listed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_mcp_session_of_another_is_not_there() {
    let (web, alice, bob) = start(&[]).await;
    let mcp = alice.open().await;
    let session = [("Mcp-Session-Id", &*mcp.id), ("MCP-Protocol-Version", LEGACY)];
    let stream = [&session[..], &[("Accept", "text/event-stream")]].concat();
    let ping = json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" });
    let hello = json!({
        "jsonrpc": "2.0", "id": 0, "method": "initialize",
        "params": { "protocolVersion": LEGACY, "capabilities": {},
                    "clientInfo": { "name": "his", "version": "1" } },
    });
    for message in [&ping, &hello] {
        assert_eq!(bob.post(message, &session).await.status, 404);
    }
    assert_eq!(bob.send("GET", "/mcp", &stream, &[]).await.status, 404);
    let resumed = [&stream[..], &[("Last-Event-ID", "0")]].concat();
    assert_eq!(bob.send("GET", "/mcp", &resumed, &[]).await.status, 404);
    assert_eq!(bob.send("DELETE", "/mcp", &session, &[]).await.status, 404);
    let nobody = web.caller(None);
    assert_eq!(nobody.post(&ping, &session).await.status, 401);
    assert_eq!(nobody.send("DELETE", "/mcp", &session, &[]).await.status, 401);

    assert_eq!(mcp.post(&ping).await.status, 200);
    let token = [&stream[..], &[("Authorization", "Bearer secret-a")]].concat();
    let mut open = http_begin("GET", &format!("{}/mcp", web.base), &token, &[]).await;
    let mut head = [0; 12];
    timeout(PATIENCE, open.read_exact(&mut head)).await.expect("in time").expect("read");
    assert_eq!(&head, b"HTTP/1.1 200");
    drop(open);
    assert_eq!(alice.send("DELETE", "/mcp", &session, &[]).await.status, 204);
    assert_eq!(mcp.post(&ping).await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_mcp_session_whose_end_is_refused_goes_on() {
    let (_web, alice, _) = start(&[]).await;
    let mcp = alice.open().await;
    let wrong = [("Mcp-Session-Id", &*mcp.id), ("MCP-Protocol-Version", "1999-01-01")];
    let refused = alice.send("DELETE", "/mcp", &wrong, &[]).await;
    assert_eq!(refused.status, 400, "{}", String::from_utf8_lossy(&refused.body));
    let ping = json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" });
    assert_eq!(mcp.post(&ping).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn resources_are_the_callers_own() {
    let (_web, alice, bob) = start(&[]).await;
    let (hers, his) = (name("hers"), name("his"));
    put(&alice, &hers, "a.txt", b"hers").await;
    put(&bob, &his, "b.txt", b"his").await;
    let uris = |messages: Vec<Value>| -> Vec<String> {
        let resources = messages.last().expect("an answer")["result"]["resources"].clone();
        let resources = resources.as_array().expect("a list").clone();
        resources.iter().map(|it| it["uri"].as_str().expect("a uri").to_owned()).collect()
    };
    let (alices, bobs) = (format!("sandbox:///{hers}/a.txt"), format!("sandbox:///{his}/b.txt"));
    assert_eq!(uris(alice.ask("resources/list", json!({})).await), [&*alices]);
    assert_eq!(uris(bob.ask("resources/list", json!({})).await), [&*bobs]);
    // A page whose cursor is another caller's file begins at the next file of one's own.
    let rest = bob.ask("resources/list", json!({ "cursor": alices })).await;
    assert_eq!(uris(rest), if hers < his { vec![&*bobs] } else { vec![] });
    assert_eq!(uris(alice.open().await.ask("resources/list", json!({})).await), [&*alices]);

    let read = |caller: &Caller, uri: &str| {
        let (message, headers) = caller.modern("resources/read", json!({ "uri": uri }));
        (message, headers)
    };
    let mut said = vec![];
    for uri in [&*alices, &format!("sandbox:///{}/a.txt", name("nobody"))] {
        let (message, headers) = read(&bob, uri);
        let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, &**value)).collect();
        let answer = bob.post(&message, &headers).await.messages();
        let error = &answer.last().expect("an answer")["error"];
        said.push((error["code"].clone(), error["message"].to_string().replace(uri, "")));
        let legacy = bob.open().await.ask("resources/read", json!({ "uri": uri })).await;
        assert!(legacy.last().expect("an answer")["error"].is_object(), "{legacy:?}");
    }
    assert_eq!(said[0], said[1], "no word more than of what nobody has");
    let own = alice.ask("resources/read", json!({ "uri": alices })).await;
    assert_eq!(own.last().expect("an answer")["result"]["contents"][0]["text"], "hers");
}

async fn a_client_has_so_many_sessions_and_no_more(pool: &str) {
    let settings = [
        ("SANDBOX_MAX_SESSIONS_PER_CLIENT", "2"),
        ("SANDBOX_MAX_HIBERNATED", "0"),
        ("SANDBOX_POOL_SIZE", pool),
        ("SANDBOX_PRELOAD", "none"),
    ];
    let (_web, alice, bob) = start(&settings).await;
    let new = async |caller: &Caller| {
        let answer = caller.call("run_python", json!({ "code": "print(1)" })).await;
        if answer.raw["isError"] == true {
            return Err(answer.error().to_owned());
        }
        Ok(answer.json["session_id"].as_str().expect("an id").to_owned())
    };
    // All at once: none of them knows about the others.
    let all = tokio::join!(new(&alice), new(&alice), new(&alice), new(&alice), new(&alice));
    let all = [all.0, all.1, all.2, all.3, all.4];
    let own: Vec<_> = all.iter().filter_map(|made| made.as_ref().ok()).collect();
    assert_eq!(own.len(), 2, "{all:?}");
    let refused = all.iter().filter_map(|made| made.as_ref().err());
    assert!(refused.clone().all(|code| code == "max_sessions"), "{all:?}");

    for (tool, arguments) in [
        ("run_python", json!({ "code": "1" })),
        ("run_python", json!({ "session_id": name("third"), "code": "1" })),
        ("upload_file", json!({ "filename": "a", "text": "1" })),
        ("upload_file", json!({ "session_id": name("third"), "filename": "a" })),
    ] {
        let answer = alice.call(tool, arguments).await;
        assert_eq!(answer.error(), "max_sessions", "{tool}");
        assert!(answer.json["message"].to_string().contains('2'), "{}", answer.json);
    }
    let (kind, form) = form("a.txt", "1");
    let third = format!("/files/{}/a.txt", name("third"));
    let put = alice.send("PUT", &third, &[], b"1").await;
    assert_eq!(refusal(&put), (429, "max_sessions".into()));
    let posted = alice.send("POST", "/files", &[("Content-Type", &kind)], &form).await;
    assert_eq!(refusal(&posted), (429, "max_sessions".into()));
    // The existing sessions go on, and other callers are not affected.
    assert_eq!(alice.run(own[0], "print(2)").await["stdout"], "2\n");
    assert_eq!(bob.send("PUT", &third, &[], b"1").await.status, 201);
    new(&bob).await.expect("his second");
    assert_eq!(new(&bob).await, Err("max_sessions".into()));

    alice.call("close_session", json!({ "session_id": own[1] })).await.ok();
    new(&alice).await.expect("there is room again");
    assert_eq!(new(&alice).await, Err("max_sessions".into()));
}

support::tests! {
    a_client_has_so_many_sessions_and_no_more_without_a_pool =>
        a_client_has_so_many_sessions_and_no_more("0");
    a_client_has_so_many_sessions_and_no_more_with_a_pool =>
        a_client_has_so_many_sessions_and_no_more("1");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_asks_too_often_is_told_when_to_ask_again() {
    // The limit allows another request every 20 seconds: none becomes free while this test runs, unless the machine
    // takes 20 seconds for three requests.
    let (_web, alice, bob) = start(&[("SANDBOX_RATE_LIMIT_PER_M", "3")]).await;
    let (kind, form) = form("a.txt", "1");
    let kind = [("Content-Type", &*kind)];
    let session = name("often");
    let file = format!("/files/{session}/a.txt");
    assert_eq!(alice.send("PUT", &file, &[], b"1").await.status, 201);
    assert_eq!(alice.send("GET", "/files/no/such", &[], &[]).await.status, 404);
    assert_eq!(alice.send("DELETE", "/mcp", &[("Mcp-Session-Id", "no")], &[]).await.status, 404);
    for (method, target, headers, body) in [
        ("GET", &*file, &[][..], &[][..]),
        ("PUT", &*file, &[], b"2"),
        ("POST", "/files", &kind, &form),
        ("GET", &*format!("/files/{session}/?format=zip"), &[], &[]),
        ("POST", "/mcp", &[("Content-Type", "application/json")], b"{}"),
        ("GET", "/mcp", &[], &[]),
    ] {
        let response = alice.send(method, target, headers, body).await;
        assert_eq!(refusal(&response), (429, "rate_limited".into()), "{method} {target}");
        let wait: u64 = response.header("retry-after").parse().expect("seconds");
        assert!((1..=61).contains(&wait), "{wait}");
    }
    assert_eq!(bob.send("PUT", &format!("/files/{}/a", name("his")), &[], b"1").await.status, 201);
    // Health checks do not count for any caller.
    for _ in 0..5 {
        assert_eq!(bob.send("GET", "/health", &[], &[]).await.status, 200);
    }
    assert_eq!(bob.send("GET", "/files/no/such", &[], &[]).await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_by_an_address_counts_as_its_owners() {
    let (_web, alice, bob) = start(&[("SANDBOX_RATE_LIMIT_PER_M", "3")]).await;
    let url = put(&alice, &name("counted"), "a.txt", b"1").await;
    // Requests with a wrong signature do not count for her.
    for _ in 0..5 {
        assert_eq!(http("GET", &with(&url, "signature", "1")).await.status, 403);
    }
    assert_eq!(http("GET", &url).await.status, 200);
    assert_eq!(http("GET", &url).await.status, 200);
    let response = http("GET", &url).await;
    assert_eq!(refusal(&response), (429, "rate_limited".into()));
    assert_eq!(bob.send("GET", "/files/no/such", &[], &[]).await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn there_is_no_limit_if_none_is_set() {
    let (_web, alice, _) = start(&[]).await;
    for _ in 0..200 {
        assert_eq!(alice.send("GET", "/files/no/such", &[], &[]).await.status, 404);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_address_of_a_file_opens_it_without_a_token() {
    let (_web, alice, _) = start(&[]).await;
    let session = name("signed");
    let run = alice.run(&session, "open('ü b.txt', 'w').write('0123456789')").await;
    let url = run["artifacts"][0]["download_url"].as_str().expect("an address");
    let whole = http("GET", url).await;
    assert_eq!((whole.status, &whole.body[..]), (200, &b"0123456789"[..]));
    let head = http("HEAD", url).await;
    assert_eq!((head.status, head.header("content-length")), (200, "10"));
    let part = http_with("GET", url, &[("Range", "bytes=2-4")], &[]).await;
    assert_eq!((part.status, &part.body[..]), (206, &b"234"[..]));
    let same = http_with("GET", url, &[("If-None-Match", whole.header("etag"))], &[]).await;
    assert_eq!(same.status, 304);
    // A page that the file links to does not learn the URL.
    assert_eq!(whole.header("referrer-policy"), "no-referrer");
    assert!(whole.header("cache-control").contains("private"));

    let listed = alice.call("list_artifacts", json!({ "session_id": session })).await.ok();
    let all = listed["download_all_url"].as_str().expect("an address");
    let archive = http("GET", all).await;
    assert_eq!((archive.status, &archive.body[..2]), (200, &b"PK"[..]));
    let listed = http("GET", &with(all, "format", "json")).await.json();
    let url = listed["artifacts"][0]["download_url"].as_str().expect("an address");
    assert_eq!(http("GET", url).await.body, b"0123456789");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_is_good_for_nothing_but_what_it_was_made_for() {
    let (web, alice, _) = start(&[]).await;
    let (session, other) = (name("one"), name("two"));
    let url = put(&alice, &session, "a.txt", b"ours").await;
    put(&alice, &session, "b.txt", b"ours").await;
    put(&alice, &other, "a.txt", b"ours").await;
    let all = all_url(&alice, &session).await;
    let upload = upload_url(&alice, &session, "a.txt", false).await;
    let signed = |url: &str| format!("signature={}", part(url, "signature"));
    let base = format!("{}/files/{session}", web.base);
    let (kind, form) = form("a.txt", "theirs");
    let kind = [("Content-Type", &*kind)];

    let mut cases = vec![
        ("GET", url.replace("a.txt", "b.txt")),
        ("GET", url.replace("a.txt", "missing.txt")),
        ("GET", url.replace(&session, &other)),
        ("GET", url.replace(&session, "nobody")),
        ("GET", format!("{url}&overwrite=true")),
        ("GET", format!("{url}&overwrite=false")),
        ("GET", format!("{base}/?format=zip&{}", signed(&url))),
        ("GET", format!("{base}/?{}", signed(&url))),
        ("GET", format!("{base}/a.txt?{}", signed(&all))),
        ("GET", format!("{base}/a.txt?{}", signed(&upload))),
        ("GET", all.replace(&session, &other)),
        ("GET", without(&upload, "overwrite")),
        ("GET", with(&upload, "overwrite", "true")),
        ("GET", upload.replace("a.txt", "b.txt")),
    ];
    for method in ["PUT", "POST"] {
        cases.extend([
            (method, url.clone()),
            (method, format!("{url}&overwrite=true")),
            (method, format!("{url}&overwrite=false")),
            (method, format!("{base}/a.txt?overwrite=true&{}", signed(&all))),
            (method, with(&upload, "overwrite", "true")),
            (method, upload.replace("a.txt", "b.txt")),
            (method, upload.replace("a.txt", "new.txt")),
            (method, upload.replace(&session, &other)),
            (method, upload.replace(&session, &name("new"))),
        ]);
    }
    for (method, url) in cases {
        let body = if method == "POST" { &form[..] } else { b"theirs" };
        let body = if method == "GET" { &[] } else { body };
        let response = http_with(method, &url, &kind, body).await;
        assert_eq!(refusal(&response), (403, "invalid_signature".into()), "{method} {url}");
    }
    // A signature opens no other kind of request either.
    for (method, url) in [
        ("POST", format!("{base}/?{}", signed(&all))),
        ("POST", format!("{}/files?{}", web.base, signed(&upload))),
        ("POST", format!("{}/mcp?{}", web.base, signed(&all))),
    ] {
        assert_eq!(http_with(method, &url, &kind, &form).await.status, 401, "{method} {url}");
    }
    for file in ["a.txt", "b.txt"] {
        assert_eq!(content(&alice, &session, file).await, b"ours");
    }
    let ready = http("GET", &format!("{}/ready", web.base)).await.json();
    assert_eq!(ready["sessions"], 2, "none was made");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_address_says_cannot_be_changed_and_there_is_one_way_to_say_it() {
    let (web, alice, _) = start(&[]).await;
    let session = name("one");
    let url = put(&alice, &session, "a.txt", b"ours").await;
    let base = format!("{}/files/{session}", web.base);
    let signature = part(&url, "signature").to_owned();
    // A change of any byte of the signature makes it invalid: the number that tells whose it is, the time of expiry,
    // and the MAC.
    let bytes = URL_SAFE_NO_PAD.decode(&signature).expect("base64");
    let changed = |at: usize| {
        let mut bytes = bytes.clone();
        bytes[at] ^= 1;
        URL_SAFE_NO_PAD.encode(bytes)
    };
    let (number, expires, mac) =
        (bytes[0], u32::from_be_bytes(bytes[1..5].try_into().expect("four")), &bytes[5..]);
    let longer = |number: &str, expires: &str| {
        let url = with(&url, "signature", &format!("{number}-{}", hex::encode(mac)));
        format!("{url}&expires={expires}")
    };
    let mut cases = vec![
        with(&url, "signature", ""),
        with(&url, "signature", "zz"),
        with(&url, "signature", &signature[..signature.len() - 2]),
        with(&url, "signature", &URL_SAFE_NO_PAD.encode(mac)),
        // A signature has only one valid spelling.
        with(&url, "signature", &format!("{signature}=")),
        with(&url, "signature", &format!("{signature}A")),
        with(&url, "signature", &format!("A{signature}")),
        with(&url, "signature", &format!("%2B{signature}")),
        format!("{base}~{signature}/a.txt"),
        // The longer form of the signature accepts no other spelling either.
        longer(&number.to_string(), &(expires + 1).to_string()),
        longer(&number.to_string(), &format!("0{expires}")),
        longer(&number.to_string(), &format!("%2B{expires}")),
        longer(&number.to_string(), "99999999999999999999999"),
        longer(&number.to_string(), "-1"),
        longer(&(number + 1).to_string(), &expires.to_string()),
        longer(&format!("0{number}"), &expires.to_string()),
        format!("{url}&expires={expires}"),
    ];
    for at in 0..bytes.len() {
        cases.push(with(&url, "signature", &changed(at)));
    }
    for url in cases {
        assert_eq!(refusal(&http("GET", &url).await), (403, "invalid_signature".into()), "{url}");
    }
    // The unchanged URL is valid, and so is its longer form.
    for url in [url.clone(), longer(&number.to_string(), &expires.to_string())] {
        assert_eq!(http("GET", &url).await.body, b"ours", "{url}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_of_any_file_is_good_for_reading_one_and_for_nothing_else() {
    let (web, alice, _) = start(&[]).await;
    let (session, other) = (name("any"), name("other"));
    let url = put(&alice, &session, "a.txt", b"ours").await;
    put(&alice, &session, "b.txt", b"ours").await;
    put(&alice, &other, "a.txt", b"ours").await;
    let all = all_url(&alice, &session).await;
    let any = any_signature(&alice, &session).await;
    let signed = |url: &str| format!("signature={}", part(url, "signature"));
    let base = format!("{}/files/{session}", web.base);
    for url in [
        format!("{base}/a.txt?signature={any}"),
        format!("{base}/?format=zip&signature={any}"),
        format!("{base}/?signature={any}"),
        format!("{base}~{any}/a.txt?signature={any}"),
        format!("{base}~{any}/a.txt?{}", signed(&url)),
        format!("{base}~/a.txt"),
        format!("{base}~{any}~/a.txt"),
        format!("{base}~{any}=/a.txt"),
        format!("{base}~{}/a.txt", part(&all, "signature")),
        format!("{}/files/{other}~{any}/a.txt", web.base),
        format!("{}/files/nobody~{any}/a.txt", web.base),
    ] {
        assert_eq!(refusal(&http("GET", &url).await), (403, "invalid_signature".into()), "{url}");
    }
    for file in ["a.txt", "b.txt"] {
        let url = format!("{base}~{any}/{file}");
        for method in ["GET", "HEAD"] {
            assert_eq!(http(method, &url).await.status, 200, "{method} {url}");
        }
        let page = http_with("GET", &url, &[("Accept", "text/html")], b"").await;
        assert_eq!(page.body, b"ours", "the file, and no page");
    }
    assert_eq!(http("GET", &format!("{base}~{any}/missing.txt")).await.status, 404);
    for (method, url) in [
        ("PUT", format!("{base}~{any}/a.txt")),
        ("PUT", format!("{base}~{any}/new.txt?overwrite=true")),
        ("POST", format!("{base}~{any}/a.txt")),
        ("GET", format!("{base}~{any}/")),
        ("GET", format!("{base}~{any}/?format=zip")),
        ("GET", format!("{base}~{any}")),
        ("GET", format!("{}/sessions/{session}~{any}", web.base)),
        ("DELETE", format!("{}/sessions/{session}~{any}", web.base)),
    ] {
        assert_eq!(http_with(method, &url, &[], b"theirs").await.status, 401, "{method} {url}");
    }
    assert_eq!(content(&alice, &session, "a.txt").await, b"ours");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_address_of_an_upload_shows_a_form_and_not_the_file() {
    let (_web, alice, _) = start(&[]).await;
    let session = name("form");
    put(&alice, &session, "a.txt", b"confidential").await;
    for overwrite in [false, true] {
        let url = upload_url(&alice, &session, "a.txt", overwrite).await;
        for headers in
            [&[][..], &[("Accept", "application/octet-stream")], &[("Range", "bytes=0-")]]
        {
            let page = http_with("GET", &url, headers, &[]).await;
            assert_eq!(
                (page.status, page.header("content-type")),
                (200, "text/html; charset=utf-8")
            );
            let text = String::from_utf8(page.body).expect("UTF-8");
            assert!(text.contains("<form") && !text.contains("confidential"), "{text}");
        }
        assert_eq!(http("HEAD", &url).await.header("etag"), "", "nor what would tell it");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_expires() {
    let (_web, alice, _) = start(&[("SANDBOX_URL_TTL_M", "0.02")]).await;
    let session = name("expires");
    let url = put(&alice, &session, "a.txt", b"1").await;
    let upload = upload_url(&alice, &session, "b.txt", true).await;
    for (method, url) in &all_kinds(&alice, &session, &url, &upload).await {
        until("it has expired", async || {
            let response = http_with(method, url, &[], b"").await;
            assert!(matches!(response.status, 200 | 201 | 403), "{}", response.status);
            response.status == 403
        })
        .await;
        let late = http(method, url).await;
        assert_eq!(refusal(&late), (403, "url_expired".into()), "{method} {url}");
        // A holder of an expired URL still cannot learn which signature would be valid.
        let forged = http(method, &forged(url)).await;
        assert_eq!(refusal(&forged), (403, "invalid_signature".into()));
    }
    assert_eq!(content(&alice, &session, "a.txt").await, b"1", "with a token as ever");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_ends_with_its_session_even_if_another_takes_the_name() {
    let (web, alice, bob) = start(&[]).await;
    let session = name("reborn");
    let url = put(&alice, &session, "a.txt", b"first").await;
    let upload = upload_url(&alice, &session, "a.txt", true).await;
    let kinds = all_kinds(&alice, &session, &url, &upload).await;
    let port = web.base.rsplit(':').next().expect("a port").to_owned();
    let dead = async || {
        for (method, url) in &kinds {
            let body: &[u8] = if *method == "PUT" { b"theirs" } else { b"" };
            let response = http_with(method, url, &[], body).await;
            assert_eq!(refusal(&response), (404, "not_found".into()), "{method} {url}");
            let message = response.json()["message"].to_string();
            assert!(message.contains("has ended and its files are gone"), "{message}");
            // Only the valid signature gets that answer, so that a client that guesses learns nothing.
            let forged = forged(url);
            let response = http_with(method, &forged, &[], body).await;
            assert_eq!(refusal(&response), (403, "invalid_signature".into()), "{method} {forged}");
        }
    };
    alice.close(&session).await;
    dead().await;
    until_sessions(&port, 0).await;
    let second = put(&alice, &session, "a.txt", b"second").await;
    dead().await;
    assert_eq!(http("GET", &second).await.body, b"second");
    alice.close(&session).await;
    // The name is free for any caller when its session has ended.
    put(&bob, &session, "a.txt", b"his").await;
    dead().await;
    assert_eq!(http("GET", &second).await.status, 404);
    assert_eq!(content(&bob, &session, "a.txt").await, b"his");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_an_address_whose_session_ended_before_it_expired_the_end_is_told() {
    let settings = [("SANDBOX_URL_TTL_M", "0.02")];
    let (_web, alice, _) = start(&settings).await;
    let session = name("late");
    let url = put(&alice, &session, "a.txt", b"1").await;
    until("it has expired", async || http("GET", &url).await.status == 403).await;
    alice.close(&session).await;
    // A new URL would not help, so the error does not suggest one.
    assert_eq!(refusal(&http("GET", &url).await), (404, "not_found".into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_of_the_server_before_is_refused_in_words_that_are_true() {
    let session = name("restarted");
    let (before, alice, _) = start(&[]).await;
    let url = put(&alice, &session, "a.txt", b"1").await;
    let (after, alice, _) = start(&[]).await;
    put(&alice, &session, "a.txt", b"2").await;
    let url = url.replace(&before.base, &after.base);
    let refused = http("GET", &url).await;
    assert_eq!(refusal(&refused), (403, "invalid_signature".into()));
    assert!(refused.json()["message"].to_string().contains("restarted"), "{}", refused.json());
}

/// The origin whose pages may read an answer.
fn may_read(response: &Response) -> Option<&str> {
    assert_eq!(response.header("access-control-allow-credentials"), "", "no cookies here");
    response.headers.get("access-control-allow-origin").map(|origin| &**origin)
}

#[tokio::test(flavor = "multi_thread")]
async fn another_host_and_pages_of_other_sites_are_turned_away() {
    let (web, alice, _) = start(&[]).await;
    let session = name("origin");
    let url = put(&alice, &session, "a.txt", b"1").await;
    let target = url.strip_prefix(&web.base).expect("ours").to_owned();
    let all = format!("/files/{session}/?format=zip");
    let nobody = web.caller(None);
    // With or without access to the target.
    for (caller, target) in [(&alice, "/mcp"), (&alice, &*all), (&nobody, &*target)] {
        for host in ["evil.test", "localhost.evil.test", "127.0.0.1.evil.test", "192.0.2.1"] {
            let response = caller.send("GET", target, &[("Host", host)], &[]).await;
            assert_eq!(refusal(&response), (421, "unknown_host".into()), "{target} {host}");
        }
        for method in ["GET", "POST", "PUT", "DELETE", "OPTIONS"] {
            for origin in ["http://evil.test", "null", "http://localhost:1", "file://"] {
                let response = caller.send(method, target, &[("Origin", origin)], &[]).await;
                assert_eq!(refusal(&response), (403, "foreign_origin".into()), "{method} {target}");
                assert_eq!(may_read(&response), None);
            }
        }
    }
    let own = [("Origin", &*web.base)];
    let response = nobody.send("GET", &target, &own, &[]).await;
    assert_eq!((response.status, may_read(&response)), (200, None));
    let ping = json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" });
    assert_ne!(alice.post(&ping, &own).await.status, 403);
    assert_eq!(alice.send("PUT", "/files/o/a", &own, b"1").await.status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_a_site_that_is_named_can_use_all_of_it() {
    const APP: &str = "https://app.example.org";
    let (web, alice, _) = start(&[("SANDBOX_ALLOWED_ORIGINS", APP)]).await;
    let nobody = web.caller(None);
    let wanted = "authorization,content-type,mcp-protocol-version,mcp-session-id,mcp-method,\
                  mcp-name,last-event-id,if-none-match,prefer,range";
    for (target, method) in [
        ("/mcp", "POST"),
        ("/mcp", "GET"),
        ("/mcp", "DELETE"),
        ("/files/s/a.txt", "PUT"),
        ("/files/s/a.txt", "GET"),
        ("/files", "POST"),
    ] {
        let asked = [
            ("Origin", APP),
            ("Access-Control-Request-Method", method),
            ("Access-Control-Request-Headers", wanted),
        ];
        // A browser sends no token with a preflight request.
        let answer = nobody.send("OPTIONS", target, &asked, &[]).await;
        assert!((200..300).contains(&answer.status), "{target} {method}: {}", answer.status);
        assert_eq!(may_read(&answer), Some(APP));
        let allowed = answer.header("access-control-allow-methods").to_ascii_uppercase();
        assert!(allowed.split(',').any(|it| it.trim() == method), "{allowed}");
        let allowed = answer.header("access-control-allow-headers").to_ascii_lowercase();
        for header in wanted.split(',') {
            assert!(allowed.split(',').any(|it| it.trim() == header), "{header} in {allowed}");
        }
    }
    let hello = json!({
        "jsonrpc": "2.0", "id": 0, "method": "initialize",
        "params": { "protocolVersion": LEGACY, "capabilities": {},
                    "clientInfo": { "name": "page", "version": "1" } },
    });
    let opened = alice.post(&hello, &[("Origin", APP)]).await;
    assert_eq!((opened.status, may_read(&opened)), (200, Some(APP)));
    assert!(!opened.header("mcp-session-id").is_empty());
    let exposed = opened.header("access-control-expose-headers").to_ascii_lowercase();
    for header in ["mcp-session-id", "www-authenticate", "retry-after", "etag"] {
        assert!(exposed.split(',').any(|it| it.trim() == header), "{header} in {exposed}");
    }
    // The page may also read error messages.
    let refused = nobody.send("GET", "/files/s/a.txt", &[("Origin", APP)], &[]).await;
    assert_eq!((refused.status, may_read(&refused)), (401, Some(APP)));
    let put = alice.send("PUT", "/files/s/a.txt", &[("Origin", APP)], b"1").await;
    assert_eq!((put.status, may_read(&put)), (201, Some(APP)));
    // No other origin may read answers.
    for origin in [&[][..], &[("Origin", &*web.base)], &[("Origin", "https://example.org")]] {
        let response = alice.send("GET", "/files/s/a.txt", origin, &[]).await;
        assert_eq!(may_read(&response), None, "{origin:?}");
        assert!(response.header("vary").contains("origin") || response.status == 403);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_site_may_be_named_at_any_port() {
    let (_web, alice, _) = start(&[("SANDBOX_ALLOWED_ORIGINS", "http://localhost:*")]).await;
    for origin in ["http://localhost", "http://localhost:3000", "http://localhost:65535"] {
        let response = alice.send("GET", "/files/s/a.txt", &[("Origin", origin)], &[]).await;
        assert_eq!((response.status, may_read(&response)), (404, Some(origin)));
    }
    for origin in ["https://localhost:3000", "http://localhost.evil.test", "http://localhost:"] {
        let response = alice.send("GET", "/files/s/a.txt", &[("Origin", origin)], &[]).await;
        assert_eq!((response.status, may_read(&response)), (403, None), "{origin}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_tokens_of_one_name_are_one_caller() {
    let tokens = [("SANDBOX_AUTH_TOKENS", "alice:old,alice:new,bob:other")];
    let web = Web::start(On::Local, &tokens).await;
    let session = name("rotated");
    put(&web.caller(Some("old")), &session, "a.txt", b"1").await;
    assert_eq!(content(&web.caller(Some("new")), &session, "a.txt").await, b"1");
    let mcp = web.caller(Some("old"));
    let mcp = mcp.open().await;
    let ping = json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" });
    let headers = [("Mcp-Session-Id", &*mcp.id), ("MCP-Protocol-Version", LEGACY)];
    assert_eq!(web.caller(Some("new")).post(&ping, &headers).await.status, 200);
    assert_eq!(web.caller(Some("other")).post(&ping, &headers).await.status, 404);
}
