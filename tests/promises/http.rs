//! MCP over HTTP, for both generations of the protocol.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use support::{
    On, PATIENCE, Server, answered, assert_fields, http, http_begin, http_with, name, on_all, text,
    until, web::*,
};
use tokio::{io::AsyncReadExt, sync::oneshot, time::timeout};

on_all!(
    a_client_without_sessions_does_the_whole_job,
    a_client_with_sessions_does_the_whole_job,
    closing_a_request_kills_its_run_and_the_session_is_usable_at_once,
    a_cancelled_run_is_killed_and_the_session_is_usable_at_once,
    a_call_that_overtakes_the_cancel_sent_before_it_is_not_refused,
);

const CHART: &str = "
import base64
open('chart.png', 'wb').write(base64.b64decode(
    'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=='))
print(open('sales.csv').read())
";

async fn a_client_without_sessions_does_the_whole_job(on: On) {
    let (_web, caller) = Web::open(on, &[]).await;
    let discovered = caller.ask("server/discover", json!({})).await;
    let versions = discovered[0]["result"]["supportedVersions"].to_string();
    assert!(versions.contains(MODERN) && versions.contains(LEGACY), "{discovered:?}");
    let call = async |tool: &str, arguments| caller.call(tool, arguments).await.ok();
    let session = whole_job(call, call).await;
    let closed = caller.call("close_session", json!({ "session_id": session })).await.ok();
    assert_eq!(closed["status"], "closed");
}

async fn a_client_with_sessions_does_the_whole_job(on: On) {
    let (_web, caller) = Web::open(on, &[]).await;
    // Two MCP sessions of the same caller: no state belongs to one.
    let (first, mcp) = (caller.open().await, caller.open().await);
    let session = whole_job(
        async |tool, arguments| first.call(tool, arguments).await.ok(),
        async |tool, arguments| mcp.call(tool, arguments).await.ok(),
    )
    .await;
    let headers = [("Mcp-Session-Id", &*mcp.id), ("MCP-Protocol-Version", LEGACY)];
    assert_eq!(caller.send("DELETE", "/mcp", &headers, &[]).await.status, 204);
    let ping = json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" });
    assert_eq!(mcp.post(&ping).await.status, 404);
    // The sandbox belongs to the caller, not to the MCP session.
    assert_eq!(caller.run(&session, "print(2)").await["stdout"], "2\n");
}

/// Uploads a table by one client, and draws a chart by the other; returns the session.
async fn whole_job(
    first: impl AsyncFn(&str, Value) -> Value,
    second: impl AsyncFn(&str, Value) -> Value,
) -> String {
    let csv = json!({ "filename": "sales.csv", "text": "a,b\n1,2\n" });
    let session = text(&first("upload_file", csv).await["session_id"]).to_owned();
    let run = second("run_python", json!({ "session_id": session, "code": CHART })).await;
    assert_fields!(run, { "stdout": "a,b\n1,2\n\n", "session_id": session });
    let file = http("GET", text(&run["artifacts"][0]["download_url"])).await;
    assert_eq!((file.status, file.header("content-type")), (200, "image/png"));
    assert!(file.body.starts_with(b"\x89PNG"));
    session
}

/// Reads until this text has arrived.
pub(super) async fn read_until(stream: &mut tokio::net::TcpStream, text: &str) -> String {
    let mut all = vec![];
    let reading = async {
        let mut byte = [0];
        while !String::from_utf8_lossy(&all).contains(text) {
            assert_eq!(stream.read(&mut byte).await.expect("read"), 1, "ended: {all:?}");
            all.push(byte[0]);
        }
    };
    timeout(PATIENCE, reading).await.expect("in time");
    String::from_utf8(all).expect("UTF-8")
}

/// Begins a call of the generation without sessions.
async fn begin(
    caller: &Caller,
    tool: &str,
    arguments: Value,
    meta: Value,
) -> tokio::net::TcpStream {
    let params = json!({ "name": tool, "arguments": arguments, "_meta": meta });
    let (message, headers) = caller.modern("tools/call", params);
    let mut all = caller.mcp_headers();
    all.extend(headers.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
    let all: Vec<_> = all.iter().map(|(name, value)| (&**name, &**value)).collect();
    http_begin("POST", &format!("{}/mcp", caller.base), &all, message.to_string().as_bytes()).await
}

const ENDLESS: &str = "
import time
open('started', 'w').close()
while True: time.sleep(1)
";

/// A call of a program that does not end, and the message that cancels it.
fn endless(session: &str) -> Value {
    json!({
        "jsonrpc": "2.0", "id": "endless", "method": "tools/call",
        "params": { "name": "run_python", "arguments": { "session_id": session, "code": ENDLESS } },
    })
}

fn cancel() -> Value {
    let params = json!({ "requestId": "endless" });
    json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params })
}

async fn until_started(caller: &Caller, session: &str) {
    until("the program runs", async || {
        let listed = caller.call("list_artifacts", json!({ "session_id": session })).await;
        listed.json["artifacts"].to_string().contains("started")
    })
    .await;
}

async fn closing_a_request_kills_its_run_and_the_session_is_usable_at_once(on: On) {
    let (_web, caller) = Web::open(on, &[]).await;
    for meta in [json!({}), json!({ "progressToken": 1 })] {
        let session = name("closed");
        let arguments = json!({ "session_id": session, "code": ENDLESS });
        let stream = begin(&caller, "run_python", arguments, meta).await;
        until_started(&caller, &session).await;
        let busy = caller.call("run_python", json!({ "session_id": session, "code": "1" })).await;
        assert_eq!(busy.error(), "session_busy");
        drop(stream);
        until("the run is killed", async || {
            let code = json!({ "session_id": session, "code": "print(1)" });
            let run = caller.call("run_python", code).await;
            run.raw["isError"] == false
        })
        .await;
        let code = "import os; print(len([p for p in os.listdir('/proc') if p.isdigit()]))";
        if on == On::Docker {
            let left = caller.run(&session, code).await;
            let left: u32 = text(&left["stdout"]).trim().parse().expect("a number");
            assert!(left < 8, "{left} processes");
        }
    }
}

async fn a_cancelled_run_is_killed_and_the_session_is_usable_at_once(on: On) {
    let (_web, caller) = Web::open(on, &[]).await;
    let mcp = caller.open().await;
    let session = name("cancelled");
    let call = endless(&session);
    let (answer, ()) = tokio::join!(mcp.post(&call), async {
        until_started(&caller, &session).await;
        assert_eq!(mcp.post(&cancel()).await.status, 202);
        let run =
            mcp.call("run_python", json!({ "session_id": session, "code": "print(1)" })).await;
        assert_eq!(run.ok()["stdout"], "1\n");
    });
    // The protocol has no result for a cancelled call, but HTTP must answer.
    let answer = answer.json();
    assert_eq!((&answer["id"], answer.get("result")), (&json!("endless"), None), "{answer}");
    assert!(answer["error"]["message"].as_str().is_some_and(|why| why.contains("cancelled")));
}

async fn a_call_that_overtakes_the_cancel_sent_before_it_is_not_refused(on: On) {
    let (_web, caller) = Web::open(on, &[]).await;
    let mcp = caller.open().await;
    let session = name("overtaken");
    let call = endless(&session);
    tokio::join!(mcp.post(&call), async {
        until_started(&caller, &session).await;
        let code = json!({ "session_id": session, "code": "print(1)" });
        let (run, ()) = tokio::join!(mcp.call("run_python", code), async {
            // Delayed, so that it arrives second.
            tokio::time::sleep(Duration::from_millis(20)).await;
            assert_eq!(mcp.post(&cancel()).await.status, 202);
        });
        assert_eq!(run.ok()["stdout"], "1\n");
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_with_sessions_that_loses_its_connection_can_take_up_a_stream_again() {
    let (web, caller) = Web::open(On::Local, &[]).await;
    let mcp = caller.open().await;
    let session = name("lost");
    let code = "
import os, time
open('started', 'w').close()
while not os.path.exists('tell'): time.sleep(0.01)
print('a line of meanwhile', flush=True)
open('told', 'w').close()
while not os.path.exists('go'): time.sleep(0.01)
open('done', 'w').close()
";
    let call = json!({
        "jsonrpc": "2.0", "id": 7, "method": "tools/call",
        "params": {
            "name": "run_python",
            "arguments": { "session_id": session, "code": code },
            "_meta": { "progressToken": "p" },
        },
    });
    let mut headers = caller.mcp_headers();
    headers.push(("Mcp-Session-Id".into(), mcp.id.clone()));
    let headers: Vec<_> = headers.iter().map(|(name, value)| (&**name, &**value)).collect();
    let url = format!("{}/mcp", web.base);
    let mut stream = http_begin("POST", &url, &headers, call.to_string().as_bytes()).await;
    // The events of the stream have ids, so a client can resume it.
    let head = read_until(&mut stream, "id: ").await + &read_until(&mut stream, "\n").await;
    let event =
        head.lines().find_map(|line| line.strip_prefix("id: ")).expect("an id").trim().to_owned();
    until_started(&caller, &session).await;
    drop(stream);
    caller.upload(&session, "tell", b"").await.ok();
    let files = async || caller.files(&session).await;
    until("it prints", async || files().await.iter().any(|file| file.0 == "told")).await;

    let resume =
        [("Accept", "text/event-stream"), ("Mcp-Session-Id", &mcp.id), ("Last-Event-ID", &event)];
    let mut resumed = http_begin("GET", &url, &resume, &[]).await;
    let head = read_until(&mut resumed, "\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let news = read_until(&mut resumed, "a line of meanwhile").await;
    assert!(news.contains("notifications/progress") && news.contains("run_id"), "{news}");
    caller.upload(&session, "go", b"").await.ok();
    let answer = read_until(&mut resumed, "\"outcome\"").await;
    assert!(answer.contains("\"id\":7"), "{answer}");
    let listed = caller.call("list_artifacts", json!({ "session_id": session })).await.ok();
    assert!(listed["artifacts"].to_string().contains("done"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_begins_before_a_long_silent_run_has_ended() {
    let (_web, caller) = Web::open(On::Local, &[]).await;
    let session = name("silent");
    let arguments = json!({ "session_id": session, "code": ENDLESS, "timeout_s": 30 });
    let mut stream = begin(&caller, "run_python", arguments, json!({})).await;
    let head = read_until(&mut stream, "\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(head.contains("application/json"), "{head}");
    until_started(&caller, &session).await;
    // The run is still in progress, and its result follows in the same answer.
    let busy = caller.call("run_python", json!({ "session_id": session, "code": "1" })).await;
    assert_eq!(busy.error(), "session_busy");
    caller.call("close_session", json!({ "session_id": session })).await.ok();
    read_until(&mut stream, "\"outcome\":\"cancelled\"").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_asks_for_progress_hears_the_newest_line_before_the_result() {
    let (_web, caller) = Web::open(On::Local, &[]).await;
    let session = name("progress");
    let code = "
import os, time
print('step 1 of 2')
while not os.path.exists('go'): time.sleep(0.01)
print('step 2 of 2')
";
    let arguments = json!({ "session_id": session, "code": code });
    let mut stream = begin(&caller, "run_python", arguments, json!({ "progressToken": "p" })).await;
    let news = read_until(&mut stream, "step 1 of 2").await;
    assert!(news.contains("notifications/progress") && !news.contains("\"result\""), "{news}");
    caller.upload(&session, "go", b"").await.ok();
    read_until(&mut stream, "\"outcome\":\"ok\"").await;
}

/// Begins a run over standard input and output that asks for progress.
fn begin_heard(server: &Server, session: &str, code: &str) -> oneshot::Receiver<Value> {
    let arguments = json!({ "session_id": session, "code": code });
    let meta = json!({ "progressToken": 5 });
    let params = json!({ "name": "run_python", "arguments": arguments, "_meta": meta });
    server.begin_request("tools/call", params).1
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_over_stdio_hears_the_newest_line_too() {
    let server = Server::start(On::Local).await;
    let (session, heard) = (name("progress"), server.notifications());
    let code = "
import os, time
print('half'); print(' ')
while not os.path.exists('go'): time.sleep(0.01)
";
    let answer = begin_heard(&server, &session, code);
    until("the line is heard", async || {
        heard.lock().unwrap().iter().any(|message| {
            message["method"] == "notifications/progress"
                && message["params"]["progressToken"] == 5
                && text(&message["params"]["message"]).ends_with("half")
        })
    })
    .await;
    server.upload(&session, "go", b"").await.ok();
    let answer = answered(answer).await;
    assert_eq!(answer["result"]["structuredContent"]["outcome"], "ok");
    let heard = heard.lock().unwrap();
    let steps = heard.iter().filter_map(|message| message["params"]["progress"].as_f64());
    assert!(steps.collect::<Vec<_>>().is_sorted_by(|a, b| a < b), "progress only grows");
    let total = heard.iter().find_map(|message| message["params"].get("total"));
    assert_eq!(total, None, "nobody knows how long code takes");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_line_is_heard_before_the_next_is_written() {
    let server = Server::start(On::Local).await;
    let (session, heard) = (name("progress"), server.notifications());
    let code = "
import os, sys, time
for n in range(12):
    print('line', n) if n % 2 else print('line', n, file=sys.stderr)
    while not os.path.exists(f'go{n}'): time.sleep(0.01)
sys.stdout.write('\\r 10%|# |\\r 90%|## |')
sys.stdout.flush()
while not os.path.exists('go'): time.sleep(0.01)
";
    let answer = begin_heard(&server, &session, code);
    let messages = || {
        let heard = heard.lock().unwrap();
        let heard = heard.iter().filter(|message| message["method"] == "notifications/progress");
        heard.map(|message| text(&message["params"]["message"]).to_owned()).collect::<Vec<_>>()
    };
    for n in 0..12 {
        let line = format!("line {n}");
        until("the line is heard", async || messages().iter().any(|it| it.ends_with(&line))).await;
        server.upload(&session, &format!("go{n}"), b"").await.ok();
    }
    until("the bar is heard", async || messages().iter().any(|it| it == "90%|## |")).await;
    server.upload(&session, "go", b"").await.ok();
    let answer = answered(answer).await;
    let stdout = text(&answer["result"]["structuredContent"]["stdout"]);
    assert!(stdout.starts_with("line 1\nline 3\n") && stdout.contains("90%|## |"), "{stdout}");
    let lines = messages().concat();
    assert_eq!(lines.matches("line 1").count(), 3, "each is told once: {lines}");
    assert!(!lines.contains("10%"), "{lines}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_that_is_still_being_written_is_not_told_as_progress() {
    let server = Server::start(On::Local).await;
    let (session, heard) = (name("progress"), server.notifications());
    let code = "
import os, sys, time
print('whole')
sys.stdout.write('hal')
sys.stdout.flush()
while not os.path.exists('go'): time.sleep(0.01)
print('f')
";
    let answer = begin_heard(&server, &session, code);
    let ends = |end: &str| {
        let heard = heard.lock().unwrap();
        heard.iter().any(|message| text(&message["params"]["message"]).ends_with(end))
    };
    until("the line is heard", async || ends("whole")).await;
    server.upload(&session, "go", b"").await.ok();
    let answer = answered(answer).await;
    assert_eq!(answer["result"]["structuredContent"]["stdout"], "whole\nhalf\n");
    assert!(!ends("hal"), "{:?}", heard.lock().unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn who_asks_for_progress_hears_by_which_id_the_run_can_be_cancelled() {
    let server = Server::start(On::Local).await;
    let heard = server.notifications();
    let code = "import time\nwhile True: time.sleep(0.01)";
    let answer = begin_heard(&server, &name("progress"), code);
    let told = |message: &Value| {
        let run_id = message["params"]["_meta"]["run_id"].as_str()?;
        let is_named = text(&message["params"]["message"]).starts_with(&format!("{run_id}: "));
        is_named.then(|| run_id.to_owned())
    };
    let named = || heard.lock().unwrap().iter().find_map(told);
    until("the run is named", async || named().is_some()).await;
    let run_id = named().expect("just heard");
    let cancelled = server.call("cancel_execution", json!({ "execution_id": run_id })).await.ok();
    assert_eq!(cancelled["status"], "cancelled");
    let answer = answered(answer).await;
    assert_eq!(answer["result"]["structuredContent"]["run_id"], run_id);
    assert_eq!(answer["result"]["structuredContent"]["outcome"], "cancelled");
}

#[tokio::test(flavor = "multi_thread")]
async fn mcp_sessions_that_nobody_uses_end() {
    let settings = [("SANDBOX_SESSION_TTL_M", "0.02"), ("SANDBOX_EXEC_TIMEOUT_S", "1")];
    let (web, caller) = Web::open(On::Local, &settings).await;
    let (idle, used) = (caller.open().await, caller.open().await);
    // An open stream counts as use.
    let headers = [("Accept", "text/event-stream"), ("Mcp-Session-Id", &*used.id)];
    let mut stream = http_begin("GET", &format!("{}/mcp", web.base), &headers, &[]).await;
    read_until(&mut stream, "\r\n\r\n").await;
    let ping = json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" });
    until("the idle one has ended", async || {
        // Asking counts as use, too, so this waits for longer than the session's time to live.
        tokio::time::sleep(Duration::from_secs(4)).await;
        idle.post(&ping).await.status == 404
    })
    .await;
    assert_eq!(used.post(&ping).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_opens_very_many_mcp_sessions_loses_their_own_oldest_and_leaves_room_for_others() {
    let web = Web::start(On::Local, &[("SANDBOX_AUTH_TOKENS", "ann:a,bob:b")]).await;
    let (ann, bob) = (web.caller(Some("a")), web.caller(Some("b")));
    let (bobs, oldest) = (bob.open().await, ann.open().await);
    for _ in 0..200 {
        ann.open().await;
    }
    let ping = json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" });
    assert_eq!(oldest.post(&ping).await.status, 404);
    assert_eq!(bobs.post(&ping).await.status, 200);
    let more = [bob.open().await, bob.open().await, bob.open().await];
    for session in more.iter().chain([&bobs]) {
        assert_eq!(session.post(&ping).await.status, 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_opens_very_many_mcp_sessions_and_uses_them_all_ends_none_of_others() {
    let web = Web::start(On::Local, &[("SANDBOX_AUTH_TOKENS", "ann:a,bob:b")]).await;
    let (ann, bob) = (web.caller(Some("a")), web.caller(Some("b")));
    let (bobs, mut oldest) = (bob.open().await, None);
    let mut streams = vec![];
    for _ in 0..205 {
        let mcp = ann.open().await;
        // An open stream counts as use.
        let headers = [
            ("Accept", "text/event-stream"),
            ("Authorization", "Bearer a"),
            ("Mcp-Session-Id", &*mcp.id),
        ];
        let mut stream = http_begin("GET", &format!("{}/mcp", web.base), &headers, &[]).await;
        assert!(read_until(&mut stream, "\r\n\r\n").await.starts_with("HTTP/1.1 200"));
        streams.push(stream);
        oldest.get_or_insert(mcp);
    }
    let ping = json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" });
    let more = [bob.open().await, bob.open().await, bob.open().await];
    for session in more.iter().chain([&bobs]) {
        assert_eq!(session.post(&ping).await.status, 200);
    }
    assert_eq!(oldest.expect("one of them").post(&ping).await.status, 404);
    // The session's stream has ended, too.
    let ended = timeout(PATIENCE, streams[0].read_to_end(&mut vec![])).await;
    ended.expect("in time").expect("its end");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_largest_upload_fits_into_a_request_and_a_larger_one_is_refused_as_such() {
    let (_web, caller) = Web::open(On::Local, &[("SANDBOX_MAX_UPLOAD_BYTES", "8MB")]).await;
    let full = STANDARD.encode(vec![7; 8_000_000]);
    let arguments = json!({ "filename": "full", "content_base64": full });
    assert_eq!(caller.call("upload_file", arguments).await.ok()["size_bytes"], 8_000_000);
    let larger = STANDARD.encode(vec![7; 8_000_001]);
    let arguments = json!({ "filename": "larger", "content_base64": larger });
    assert_eq!(caller.call("upload_file", arguments).await.error(), "upload_too_large");
    let far_larger = vec![b' '; 16_000_000];
    let response =
        caller.send("POST", "/mcp", &[("Content-Type", "application/json")], &far_larger).await;
    assert_eq!(
        (response.status, response.json()["error"]["data"]["error"].as_str()),
        (413, Some("upload_too_large"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_message_is_answered_as_the_protocol_says() {
    let (web, caller) = Web::open(On::Local, &[]).await;
    let headers = caller.mcp_headers();
    let headers: Vec<_> = headers.iter().map(|(name, value)| (&**name, &**value)).collect();
    for (body, code) in [
        ("{", -32700),
        ("", -32700),
        (
            "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\",\"params\":{\"x\":\"\\ud83d\"}}",
            -32700,
        ),
        ("[]", -32600),
        ("{\"jsonrpc\":\"1.0\",\"id\":1,\"method\":\"ping\"}", -32600),
    ] {
        let response =
            http_with("POST", &format!("{}/mcp", web.base), &headers, body.as_bytes()).await;
        assert_eq!(
            (response.status, &response.json()["error"]["code"]),
            (400, &code.into()),
            "{body}"
        );
    }
    let typed = [("Content-Type", "text/plain"), ("Accept", "application/json, text/event-stream")];
    assert_eq!(caller.send("POST", "/mcp", &typed, b"{}").await.status, 415);
    assert_eq!(caller.send("PATCH", "/mcp", &[], b"").await.status, 405);
    // The server still works.
    let mcp = caller.open().await;
    assert!(mcp.ask("ping", json!({})).await[0]["result"].is_object());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_ends_kills_and_answers_what_is_under_way() {
    let (mut web, caller) = Web::open(On::Local, &[]).await;
    let session = name("shutdown");
    let mcp = caller.open().await;
    let call = endless(&session);
    let (answer, ()) = tokio::join!(mcp.post(&call), async {
        until_started(&caller, &session).await;
        web.signal("TERM");
    });
    let messages = answer.messages();
    let result = &messages.last().expect("an answer")["result"]["structuredContent"];
    assert_eq!(result["outcome"], "cancelled", "{messages:?}");
    assert_eq!(web.exit_code().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_for_http_whose_port_is_taken_says_so_and_ends() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("bound").port().to_string();
    let folder = tempfile::tempdir().expect("a folder");
    let settings = [("SANDBOX_TRANSPORT", "http"), ("SANDBOX_HTTP_PORT", &*port)];
    let mut server = support::program(folder.path(), &settings);
    let (code, _, said) = support::ended(server.arg("--no-isolation")).await;
    assert_eq!(code, Some(69), "{said}");
    assert!(said.contains(&port) && said.contains("SANDBOX_HTTP_PORT"), "{said}");
}
