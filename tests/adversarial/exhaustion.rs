//! Memory and connections that one client can occupy on a server, while others are served. The drill in a container
//! with 256 MB is `tests/exhaustion.sh`.

use std::time::Duration;

use futures::future::join_all;
use serde_json::{Value, json};
use support::{On, PATIENCE, Server, http_with, name, until, web::*};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    time::timeout,
};

const TOKENS: (&str, &str) = ("SANDBOX_AUTH_TOKENS", "a:token-a,b:token-b");

/// A message that needs hundreds of times its size in memory once it is parsed.
fn bomb(id: u64, bytes: usize) -> String {
    let objects = r#"{"":0},"#.repeat(bytes / 7);
    let call = format!(r#""jsonrpc":"2.0","id":{id},"method":"tools/call""#);
    format!(r#"{{{call},"params":{{"name":"run_python","arguments":{{"code":[{objects}0]}}}}}}"#)
}

/// Resident memory of a process in bytes: now, and the peak.
fn memory(pid: u32) -> (u64, u64) {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("is there");
    let field = |name: &str| -> u64 {
        let line = status.lines().find(|line| line.starts_with(name)).expect("a field");
        line.split_whitespace().nth(1).expect("a value").parse::<u64>().expect("a number") * 1024
    };
    (field("VmRSS:"), field("VmHWM:"))
}

async fn connect(base: &str) -> TcpStream {
    let address = base.strip_prefix("http://").expect("http");
    timeout(PATIENCE, TcpStream::connect(address)).await.expect("in time").expect("connected")
}

fn head(token: &str, length: usize) -> String {
    format!(
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\
         Accept: application/json, text/event-stream\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n"
    )
}

#[tokio::test]
async fn a_message_with_far_too_much_structure_is_refused_unparsed_over_http() {
    let web = Web::start(On::Local, &[TOKENS]).await;
    let before = memory(web.process.id().expect("running")).1;
    for bytes in [100_000, 1_000_000, 8_000_000] {
        let headers = [
            ("Authorization", "Bearer token-a"),
            ("Accept", "application/json, text/event-stream"),
            ("Content-Type", "application/json"),
        ];
        let body = bomb(7, bytes).into_bytes();
        let answer = http_with("POST", &format!("{}/mcp", web.base), &headers, &body).await;
        let error: Value = serde_json::from_slice(&answer.body).expect("JSON");
        assert_eq!((answer.status, &error["error"]["code"]), (400, &json!(-32600)), "{error}");
    }
    // An unparsed message needs its own size; parsed, the longest would need two gigabytes.
    let grown = memory(web.process.id().expect("running")).1 - before;
    assert!(grown < 64_000_000, "{grown}");
}

#[tokio::test]
async fn a_message_with_far_too_much_structure_is_answered_over_stdio_and_the_next_one_too() {
    let server = Server::start(On::Local).await;
    let (id, answer) = server.expect_answer();
    server.send_line(bomb(id, 8_000_000));
    let answer = timeout(PATIENCE, answer).await.expect("in time").expect("answered");
    assert_eq!(answer["error"]["code"], -32600, "{answer}");
    assert_eq!(server.run(&name("after"), "print(1)").await["stdout"], "1\n");
}

#[tokio::test]
async fn an_initialize_that_says_very_much_is_refused() {
    let web = Web::start(On::Local, &[]).await;
    let initialize = |bytes: usize| {
        let client = json!({ "name": "x".repeat(bytes), "version": "1" });
        let params = json!({ "protocolVersion": LEGACY, "capabilities": {}, "clientInfo": client });
        json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params }).to_string()
    };
    let ask = async |bytes: usize| {
        let headers = [
            ("Accept", "application/json, text/event-stream"),
            ("Content-Type", "application/json"),
        ];
        let body = initialize(bytes).into_bytes();
        http_with("POST", &format!("{}/mcp", web.base), &headers, &body).await.status
    };
    assert_eq!(ask(10_000).await, 200);
    let fields = json!({ "x": vec![json!({ "": 0 }); 400] });
    let params = json!({ "protocolVersion": LEGACY, "capabilities": { "experimental": fields }, "clientInfo": { "name": "x", "version": "1" } });
    let message = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params });
    assert_eq!(web.caller(None).post(&message, &[]).await.status, 400);
    for bytes in [20_000, 2_000_000, 20_000_000] {
        assert_eq!(ask(bytes).await, 400, "{bytes}");
    }
}

#[tokio::test]
async fn over_stdio_a_client_may_say_of_itself_what_it_likes() {
    let server = Server::launch(On::Local, &[]);
    let client = json!({ "name": "x".repeat(500_000), "version": "1" });
    let params = json!({ "protocolVersion": LEGACY, "capabilities": {}, "clientInfo": client });
    let answer = server.request("initialize", params).await;
    assert_eq!(answer["result"]["protocolVersion"], LEGACY, "{answer}");
}

#[tokio::test]
async fn a_file_of_the_upload_limit_is_in_memory_once() {
    let web = Web::start(On::Local, &[]).await;
    let before = memory(web.process.id().expect("running")).0;
    let caller = web.caller(None);
    let content = "QUJD".repeat(16_000_000);
    let arguments =
        json!({ "session_id": name("large"), "filename": "a", "content_base64": content });
    let uploaded = caller.call("upload_file", arguments).await.ok();
    assert_eq!(uploaded["size_bytes"], 48_000_000);
    // 64 MB of message, and room for the part that is on its way to the sandbox.
    let grown = memory(web.process.id().expect("running")).1 - before;
    assert!(grown < 90_000_000, "{grown}");
}

#[tokio::test]
async fn a_long_string_stands_in_one_place_however_often_it_is_asked_for() {
    let web = Web::start(On::Local, &[]).await;
    let before = memory(web.process.id().expect("running")).1;
    let mut arguments = json!({ "session_id": "x".repeat(500_000) });
    for n in 0..900 {
        arguments[format!("k{n}")] = "\u{0}long".into();
    }
    let answer = web.caller(None).call("list_artifacts", arguments).await;
    assert!(answer.error().starts_with("invalid_"), "{:?}", answer.json);
    let grown = memory(web.process.id().expect("running")).1 - before;
    assert!(grown < 32_000_000, "{grown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_strangers_do_not_read_hold_nobody_up() {
    let web = Web::start(On::Local, &[TOKENS]).await;
    let requests = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(400);
    let address = web.base.strip_prefix("http://").expect("http").parse().expect("an address");
    let unread = join_all((0..1300).map(async |_| {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_recv_buffer_size(2048).expect("set");
        let mut stream =
            timeout(PATIENCE, socket.connect(address)).await.expect("in time").expect("connected");
        let _ = timeout(Duration::from_millis(200), stream.write_all(requests.as_bytes())).await;
        stream
    }))
    .await;
    let caller = web.caller(Some("token-a"));
    // Far less than the minute after which the server closes the connection of a client that does not read.
    let served = timeout(Duration::from_secs(20), caller.run(&name("read"), "print(1)")).await;
    assert_eq!(served.expect("not held up")["stdout"], "1\n");
    drop(unread);
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_never_end_cost_a_clients_share_and_leave_room_for_another_client() {
    let web = Web::start(On::Local, &[TOKENS]).await;
    let pid = web.process.id().expect("running");
    let before = memory(pid).0;
    let stalled = join_all((0..300).map(async |_| {
        let mut stream = connect(&web.base).await;
        let body = vec![b' '; (1 << 20) - 1];
        timeout(PATIENCE, stream.write_all(head("token-a", 1 << 20).as_bytes()))
            .await
            .expect("in time")
            .expect("sent");
        // The server reads nothing more of most of these bodies.
        let _ = stream.try_write(&body);
        stream
    }))
    .await;
    let other = web.caller(Some("token-b"));
    let session = name("other");
    let content = "QUJD".repeat(1_000_000);
    let arguments = json!({ "session_id": session, "filename": "a", "content_base64": content });
    assert_eq!(other.call("upload_file", arguments).await.ok()["size_bytes"], 3_000_000);
    assert_eq!(other.run(&session, "print(1)").await["stdout"], "1\n");
    let grown = memory(pid).1 - before;
    assert!(grown < 130_000_000, "{grown}");
    drop(stalled);
    until("the memory is given back", async || memory(pid).0 < before + 32_000_000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn very_many_connections_that_say_hardly_anything_hold_nobody_up() {
    let web = Web::start(On::Local, &[TOKENS]).await;
    let trickled = join_all((0..1500).map(async |_| {
        let mut stream = connect(&web.base).await;
        let _ = stream.write_all(b"GET /fi").await;
        stream
    }))
    .await;
    let caller = web.caller(Some("token-a"));
    assert_eq!(caller.run(&name("busy"), "print(1)").await["stdout"], "1\n");
    let mut cut = 0;
    for mut stream in trickled {
        cut += usize::from(matches!(
            timeout(Duration::from_millis(1), stream.read(&mut [0])).await,
            Ok(Ok(0) | Err(_))
        ));
    }
    assert!(cut >= 400, "{cut} of them made room");
}

#[tokio::test]
async fn only_what_is_signed_may_be_embedded_in_pages_of_other_sites() {
    let web = Web::start(On::Local, &[TOKENS]).await;
    let caller = web.caller(Some("token-a"));
    let run = caller.run(&name("page"), "open('a.txt', 'w').write('x')").await;
    let signed = run["artifacts"][0]["download_url"].as_str().expect("a URL").to_owned();
    let plain = signed.split('?').next().expect("a path").to_owned();
    let embedded = [("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Mode", "no-cors")];
    let token = ("Authorization", "Bearer token-a");
    let answer = http_with("GET", &signed, &embedded, &[]).await;
    assert_eq!(
        (answer.status, answer.header("cross-origin-resource-policy")),
        (200, "cross-origin")
    );
    let answer = http_with("GET", &plain, &[token], &[]).await;
    assert_eq!(
        (answer.status, answer.header("cross-origin-resource-policy")),
        (200, "same-origin")
    );
    let answer = http_with("GET", &plain, &[token, embedded[0], embedded[1]], &[]).await;
    assert_eq!(answer.status, 403);
}
