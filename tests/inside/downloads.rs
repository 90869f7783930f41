//! The artifact server: its answers, who gets them, and its limits against clients.
//!
//! The server runs in the test, on plain processes as sandboxes, so that its limits can be short.

use std::{io::ErrorKind, net::SocketAddr, sync::Arc};

use backend::local::Local;
use bytes::Bytes;
use config::{Config, Transport};
use llm_sandbox::{
    http::{Limits, Listener, PortInUse, Tls},
    sessions::{Options, Sessions, Upload},
    signed_urls::SignedUrls,
};
use model::{DataPath, Existing, SessionId};
use serde_json::Value;
use support::{PATIENCE, Response, tls, until};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Duration, timeout},
};
use tokio_util::sync::{CancellationToken, DropGuard};

/// A limit that a test waits for, but long enough to act within it on a busy machine.
const SOON: Duration = Duration::from_secs(2);

/// More than all the buffers between a server and a client that does not read.
const LARGE: usize = 48 << 20;

/// A server with one session.
struct Site {
    address: SocketAddr,
    sessions: Sessions,
    session: SessionId,
    _stop: DropGuard,
}

impl Site {
    fn start() -> Self {
        Self::start_with(Limits::default(), Config::default())
    }

    fn start_with(limits: Limits, config: Config) -> Self {
        let config = Config { http_port: 0, transport: Transport::Http, ..config };
        let backend = Arc::new(Local::new().expect("a folder"));
        let tls = Tls::of(&config).expect("a certificate");
        let listener = Listener::bind(&config, PortInUse::Fail).expect("a free port").with_tls(tls);
        let address = listener.address();
        let sessions = Sessions::new(config, backend, Options::default());
        let stop = CancellationToken::new();
        let addresses =
            SignedUrls::new(listener.base_url(sessions.config()).into(), sessions.config());
        let listener = listener.with_limits(limits);
        tokio::spawn(listener.serve(sessions.clone(), addresses, None, stop.clone()));
        let session = "site".parse().expect("an id");
        Self { address, sessions, session, _stop: stop.drop_guard() }
    }

    async fn put(&self, path: &str, content: impl Into<Bytes>) {
        let path = DataPath::relative(path).expect("a path");
        let id = Some(self.session.clone());
        let (_, done) = self
            .sessions
            .perform_or_create(
                id,
                Upload { path, content: content.into().into(), existing: Existing::Replace },
            )
            .await;
        done.expect("uploaded");
    }

    async fn connect(&self) -> TcpStream {
        within(TcpStream::connect(self.address)).await.expect("connected")
    }

    /// Sends a request and leaves the answer unread.
    async fn send(&self, method: &str, target: &str, headers: &[(&str, &str)]) -> TcpStream {
        let mut stream = self.connect().await;
        let mut lines = vec![format!("{method} {target} HTTP/1.1"), "Connection: close".into()];
        if headers.iter().all(|(name, _)| *name != "Host") {
            lines.push(format!("Host: {}", self.address));
        }
        lines.extend(headers.iter().map(|(name, value)| format!("{name}: {value}")));
        let head = lines.join("\r\n") + "\r\n\r\n";
        within(stream.write_all(head.as_bytes())).await.expect("sent");
        stream
    }

    async fn ask(&self, method: &str, target: &str, headers: &[(&str, &str)]) -> Response {
        let mut stream = self.send(method, target, headers).await;
        let mut all = vec![];
        within(stream.read_to_end(&mut all)).await.expect("received");
        Response::parse(&all)
    }

    /// Requests a file of the session.
    async fn get(&self, path: &str, headers: &[(&str, &str)]) -> Response {
        self.ask("GET", &format!("/files/site/{path}"), headers).await
    }
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    timeout(PATIENCE, future).await.expect("in time")
}

#[track_caller]
fn error(response: &Response) -> (u16, String) {
    assert_eq!(response.header("content-type"), "application/json");
    let body: Value = serde_json::from_slice(&response.body).expect("JSON");
    assert!(body["message"].as_str().is_some_and(|text| !text.is_empty()));
    (response.status, body["error"].as_str().expect("a code").to_owned())
}

#[tokio::test]
async fn head_is_get_without_the_body() {
    let site = Site::start();
    site.put("a.csv", "0123456789").await;
    let mut get = site.get("a.csv", &[]).await;
    let mut head = site.ask("HEAD", "/files/site/a.csv", &[("Range", "bytes=0-1")]).await;
    assert_eq!((get.status, &get.body[..]), (200, &b"0123456789"[..]));
    assert_eq!((head.status, head.body.len()), (200, 0), "a range is for GET alone");
    get.headers.remove("date");
    head.headers.remove("date");
    assert_eq!(head.headers, get.headers);
    assert_eq!(head.header("content-length"), "10");
    assert_eq!(head.header("accept-ranges"), "bytes");
    let missing = site.ask("HEAD", "/files/site/b.csv", &[]).await;
    assert_eq!((missing.status, missing.body.len()), (404, 0));
}

#[tokio::test]
async fn one_range_gets_exactly_its_bytes() {
    let site = Site::start();
    site.put("a", "0123456789").await;
    for (range, content, within) in [
        ("bytes=0-0", "0", "bytes 0-0/10"),
        ("bytes=2-4", "234", "bytes 2-4/10"),
        ("bytes=7-", "789", "bytes 7-9/10"),
        ("bytes=7-100", "789", "bytes 7-9/10"),
        ("bytes=9-18446744073709551615", "9", "bytes 9-9/10"),
        ("bytes=0-", "0123456789", "bytes 0-9/10"),
        ("bytes=-3", "789", "bytes 7-9/10"),
        ("bytes=-100", "0123456789", "bytes 0-9/10"),
    ] {
        let part = site.get("a", &[("Range", range)]).await;
        assert_eq!((part.status, &part.body[..]), (206, content.as_bytes()), "{range}");
        assert_eq!(part.header("content-range"), within);
        assert_eq!(part.header("content-length"), content.len().to_string());
        assert!(part.header("etag").starts_with('"'));
        assert!(part.header("content-disposition").starts_with("attachment"));
    }
}

#[tokio::test]
async fn a_range_across_many_pieces_is_whole() {
    let site = Site::start_with(Limits { large_pieces: 1, ..Limits::default() }, Config::default());
    let content: Vec<u8> = (0..5_000_000_u32).flat_map(|n| n.to_le_bytes()[..3].to_vec()).collect();
    site.put("a", content.clone()).await;
    let ranges = [(1, 14_999_998), (1_048_575, 1_048_576), (65_535, 7_000_000)];
    let parts = futures::future::join_all(ranges.map(async |(from, to)| {
        let range = format!("bytes={from}-{to}");
        (from, to, site.get("a", &[("Range", &range)]).await)
    }));
    for (from, to, part) in parts.await {
        assert_eq!(part.status, 206);
        assert!(part.body == content[from..=to], "{from}-{to}");
    }
}

#[tokio::test]
async fn bytes_that_are_not_there_are_told_apart_from_nonsense() {
    let site = Site::start();
    site.put("a", "0123456789").await;
    for range in ["bytes=10-", "bytes=10-20", "bytes=99-", "bytes=-0"] {
        let none = site.get("a", &[("Range", range)]).await;
        assert_eq!(error(&none), (416, "range_not_satisfiable".into()), "{range}");
        assert_eq!(none.header("content-range"), "bytes */10");
    }
    for range in
        ["bytes=0-1,4-5", "bytes=5-4", "bytes=a-b", "bytes=", "lines=1-2", "bytes=--1", "x"]
    {
        let whole = site.get("a", &[("Range", range)]).await;
        assert_eq!((whole.status, &whole.body[..]), (200, &b"0123456789"[..]), "{range}");
        assert_eq!(whole.header("content-range"), "");
    }
}

#[tokio::test]
async fn an_empty_file_is_served_whatever_range_is_asked_for() {
    let site = Site::start();
    site.put("empty.txt", "").await;
    for headers in [&[][..], &[("Range", "bytes=0-")], &[("Range", "bytes=-5")]] {
        let response = site.get("empty.txt", headers).await;
        assert_eq!((response.status, response.body.len()), (200, 0));
        assert_eq!(response.header("content-length"), "0");
    }
}

#[tokio::test]
async fn a_file_that_the_client_has_is_not_sent_again() {
    let site = Site::start();
    site.put("a", "first").await;
    let first = site.get("a", &[]).await;
    let (tag, date) = (first.header("etag"), first.header("last-modified"));
    let (old, new) = ("Thu, 01 Jan 1970 00:00:00 GMT", "Fri, 31 Dec 9999 23:59:59 GMT");
    let (weak, list) = (format!("W/{tag}"), format!("\"other\", {tag}"));
    for (headers, status) in [
        (vec![("If-None-Match", tag)], 304),
        (vec![("If-None-Match", &*weak)], 304),
        (vec![("If-None-Match", &*list)], 304),
        (vec![("If-None-Match", "*")], 304),
        (vec![("If-None-Match", "\"other\"")], 200),
        (vec![("If-Modified-Since", date)], 304),
        (vec![("If-Modified-Since", new)], 304),
        (vec![("If-Modified-Since", old)], 200),
        (vec![("If-Modified-Since", "yesterday")], 200),
        // The tag takes precedence over the date, both ways.
        (vec![("If-None-Match", "\"other\""), ("If-Modified-Since", date)], 200),
        (vec![("If-None-Match", "nonsense"), ("If-Modified-Since", date)], 200),
        (vec![("If-None-Match", tag), ("If-Modified-Since", old)], 304),
        (vec![("If-None-Match", tag), ("Range", "bytes=0-1")], 304),
        (vec![("If-Match", tag)], 200),
        (vec![("If-Match", "*"), ("If-Unmodified-Since", old)], 200),
        (vec![("If-Match", "\"other\"")], 412),
        (vec![("If-Unmodified-Since", old)], 412),
        (vec![("If-Unmodified-Since", date)], 200),
    ] {
        let response = site.get("a", &headers).await;
        assert_eq!(response.status, status, "{headers:?}");
        if status == 304 {
            assert_eq!(response.body.len(), 0, "{headers:?}");
            assert_eq!(response.header("etag"), tag);
            assert_eq!(response.header("cache-control"), "private, no-cache");
        }
    }
    // The new content probably has the same length and the same second, but another tag.
    site.put("a", "later").await;
    let second = site.get("a", &[("If-None-Match", tag)]).await;
    assert_eq!((second.status, &second.body[..]), (200, &b"later"[..]));
}

#[tokio::test]
async fn a_download_is_resumed_only_with_the_same_version() {
    let site = Site::start();
    site.put("a", "0123456789").await;
    let first = site.get("a", &[]).await;
    let (tag, date) = (first.header("etag").to_owned(), first.header("last-modified").to_owned());
    let range = ("Range", "bytes=5-");
    for (validator, status) in [
        (&*tag, 206),
        (&*date, 206),
        ("\"other\"", 200),
        (&*format!("W/{tag}"), 200),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 200),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 200),
        ("nonsense", 200),
    ] {
        let response = site.get("a", &[range, ("If-Range", validator)]).await;
        assert_eq!(response.status, status, "{validator}");
        assert_eq!(response.body.len(), if status == 206 { 5 } else { 10 });
    }
    let past = site.get("a", &[("Range", "bytes=50-"), ("If-Range", "\"other\"")]).await;
    assert_eq!(past.status, 200, "a range of another version is no range of this one");
    site.put("a", "abcdefghij").await;
    let second = site.get("a", &[range, ("If-Range", &tag)]).await;
    assert_eq!((second.status, &second.body[..]), (200, &b"abcdefghij"[..]));
}

#[tokio::test]
async fn types_and_names_are_told_as_browsers_need_them() {
    let site = Site::start();
    let name = "r%C3%A9sum%C3%A9%20%22final%22%3B%20%E6%9D%B1%E4%BA%AC.txt";
    site.put("résumé \"final\"; 東京.txt", "é").await;
    let text = site.get(name, &[]).await;
    assert_eq!(text.header("content-type"), "text/plain; charset=utf-8");
    assert_eq!(
        text.header("content-disposition"),
        "inline; filename=\"r_sum_ _final_; __.txt\"; \
         filename*=UTF-8''r%C3%A9sum%C3%A9%20%22final%22%3B%20%E6%9D%B1%E4%BA%AC.txt"
    );
    for (path, kind, disposition) in [
        ("a.png", "image/png", "inline"),
        ("a.html", "text/html; charset=utf-8", "attachment"),
        ("a.svg", "image/svg+xml", "attachment"),
        ("a.pdf", "application/pdf", "attachment"),
        ("a.js", "text/javascript; charset=utf-8", "attachment"),
        ("plots/a.csv", "text/csv; charset=utf-8", "attachment"),
        ("a", "application/octet-stream", "attachment"),
    ] {
        site.put(path, "<script>alert(1)</script>").await;
        let file = site.get(path, &[]).await;
        assert_eq!(file.header("content-type"), kind, "{path}");
        let short = path.rsplit('/').next().expect("a name");
        let wanted = format!("{disposition}; filename=\"{short}\"");
        assert_eq!(file.header("content-disposition"), wanted);
    }
}

#[tokio::test]
async fn every_answer_carries_the_headers_that_make_it_harmless() {
    let site = Site::start();
    site.put("a", "0123456789").await;
    let tag = site.get("a", &[]).await.header("etag").to_owned();
    for (method, target, headers, status) in [
        ("GET", "/files/site/a", vec![], 200),
        ("HEAD", "/files/site/a", vec![], 200),
        ("GET", "/files/site/a", vec![("Range", "bytes=1-2")], 206),
        ("GET", "/files/site/a", vec![("If-None-Match", &*tag)], 304),
        ("GET", "/files/site/a", vec![("Host", "")], 400),
        ("GET", "/files/site/b", vec![], 404),
        ("GET", "/nowhere", vec![], 404),
        ("DELETE", "/files/site/a", vec![], 405),
        ("OPTIONS", "/health", vec![], 405),
        ("GET", "/files/site/a", vec![("If-Match", "\"b\"")], 412),
        ("GET", "/files/site/a", vec![("Range", "bytes=99-")], 416),
        ("GET", "/files/site/a", vec![("Host", "evil.test")], 421),
        ("GET", "/health", vec![], 200),
        ("GET", "/ready", vec![], 200),
    ] {
        let response = site.ask(method, target, &headers).await;
        assert_eq!(response.status, status, "{method} {target} {headers:?}");
        assert_eq!(response.header("x-content-type-options"), "nosniff", "{status}");
        assert_eq!(response.header("content-security-policy"), "sandbox; default-src 'none'");
        assert_eq!(response.header("access-control-allow-origin"), "");
        if status == 405 {
            let all = if target == "/health" { "GET,HEAD" } else { "GET,HEAD,PUT,POST" };
            assert_eq!(response.header("allow").replace(' ', ""), all);
        }
        if status >= 400 {
            error(&response);
        }
    }
}

#[tokio::test]
async fn no_spelling_of_a_path_leads_out_of_the_session() {
    let site = Site::start();
    site.put("a", "inside").await;
    for path in [
        "../a",
        "../../../../../../etc/passwd",
        "x/../a",
        "./a",
        "a/.",
        "/a",
        "//etc/passwd",
        "%2e%2e/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
        "%2E%2E%2Fetc%2Fpasswd",
        ".%2e/.%2e/etc/passwd",
        "..%2f..%2f..%2fetc%2fpasswd",
        "%2fetc%2fpasswd",
        "%2Fa",
        "%252e%252e%252fetc%252fpasswd",
        "%25252e%25252e/a",
        "..%5c..%5cetc%5cpasswd",
        "..\\..\\etc\\passwd",
        "%c0%ae%c0%ae/%c0%ae%c0%ae/etc/passwd",
        "%c0%af..%c0%afetc%c0%afpasswd",
        "%e0%80%ae%e0%80%ae/etc/passwd",
        "%uff0e%uff0e/etc/passwd",
        "%ef%bc%8e%ef%bc%8e/etc/passwd",
        "%u002e%u002e/etc/passwd",
        "..;/..;/etc/passwd",
        "..%00/etc/passwd",
        "a%00",
        "a%00.png",
        "a%0d%0aX-Injected:%201",
        "%ff",
        "%",
        "%zz",
        "proc/self/environ",
        "a/below",
    ] {
        let response = site.get(path, &[]).await;
        assert_eq!(error(&response), (404, "not_found".into()), "{path}");
        assert_eq!(response.header("x-injected"), "");
    }
    for target in [
        "/files/site/../../etc/passwd",
        "/files/../etc/passwd",
        "/files/%2e%2e/etc/passwd",
        "/files/..%2fsite/a",
        "/files/site%2f..%2fsite/a",
        "/files//a",
        "/../files/site/a",
        "//files/site/a",
    ] {
        assert_eq!(site.ask("GET", target, &[]).await.status, 404, "{target}");
    }
    assert_eq!(site.get("a", &[]).await.body, b"inside");
    assert_eq!(site.get("%61?download=1", &[]).await.body, b"inside");
}

#[tokio::test]
async fn only_names_of_its_own_are_answered() {
    let config = Config { allowed_hosts: vec!["sandbox.test".into()], ..Config::default() };
    let site = Site::start_with(Limits::default(), config);
    site.put("a", "inside").await;
    for own in
        ["localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:80", "sandbox.test", "sandbox.test:8"]
    {
        assert_eq!(site.get("a", &[("Host", own)]).await.body, b"inside", "{own}");
    }
    for other in ["evil.test", "127.0.0.1.evil.test", "localhost.evil.test", "192.0.2.1"] {
        for target in ["/files/site/a", "/health", "/ready", "/"] {
            let refused = site.ask("GET", target, &[("Host", other)]).await;
            assert_eq!(error(&refused), (421, "unknown_host".into()), "{other}");
        }
    }
    let absolute = site.ask("GET", "http://evil.test/files/site/a", &[]).await;
    assert_eq!(absolute.status, 421, "the target's host comes before the header's");
    let twice = site.get("a", &[("Host", "localhost"), ("Host", "evil.test")]).await;
    assert_eq!(error(&twice), (400, "bad_request".into()));
}

#[tokio::test]
async fn a_request_is_answered_without_its_body() {
    let site = Site::start();
    site.put("a", "inside").await;
    let never_sent = [("Content-Length", "1000000000")];
    assert_eq!(site.get("a", &never_sent).await.body, b"inside");
    assert_eq!(site.ask("DELETE", "/files/site/a", &never_sent).await.status, 405);
}

#[tokio::test]
async fn a_head_that_never_ends_is_cut_off() {
    let site = Site::start_with(Limits { head: SOON, ..Limits::default() }, Config::default());
    let mut silent = site.connect().await;
    let mut trickling = site.connect().await;
    let mut kept = site.connect().await;
    let request = format!("GET /health HTTP/1.1\r\nHost: {}\r\n\r\n", site.address);
    within(kept.write_all(request.as_bytes())).await.expect("sent");

    within(trickling.write_all(b"GET /health HTTP/1.1\r\nX-Slow: ")).await.expect("sent");
    // A write fails once the server has closed the connection.
    until("the trickle is cut off", || {
        let cut = trickling.try_write(b"x").is_err_and(|e| e.kind() != ErrorKind::WouldBlock);
        async move { cut }
    })
    .await;
    let mut nothing = vec![];
    within(silent.read_to_end(&mut nothing)).await.expect("closed");
    assert_eq!(nothing, b"");
    let mut answer = vec![];
    within(kept.read_to_end(&mut answer)).await.expect("closed");
    assert_eq!(
        Response::parse(&answer).status,
        200,
        "it had its answer, and was not kept for ever"
    );
}

/// A server that speaks HTTPS with a certificate in this folder.
fn with_tls(folder: &tempfile::TempDir, limits: Limits) -> Site {
    tls::Certificate::new().write(folder.path());
    let [(_, tls_cert), (_, tls_key)] =
        tls::settings(folder.path()).map(|(name, path)| (name, Some(path.into())));
    Site::start_with(limits, Config { tls_cert, tls_key, ..Config::default() })
}

#[tokio::test]
async fn clients_that_begin_no_handshake_take_no_places_from_others() {
    let folder = tempfile::tempdir().expect("a folder");
    let site = with_tls(&folder, Limits { strangers: 4, ..Limits::default() });
    let mut silent = vec![];
    for _ in 0..12 {
        silent.push(site.connect().await);
    }
    let url = format!("https://{}/health", site.address);
    assert_eq!(support::http("GET", &url).await.status, 200);
    let mut nothing = vec![];
    let _ = within(silent[0].read_to_end(&mut nothing)).await;
    assert_eq!(nothing, b"", "the oldest made room");
}

#[tokio::test]
async fn a_handshake_that_never_ends_is_cut_off() {
    let folder = tempfile::tempdir().expect("a folder");
    let site = with_tls(&folder, Limits { head: SOON, ..Limits::default() });
    let mut silent = site.connect().await;
    let mut half = site.connect().await;
    within(half.write_all(&[22, 3, 1, 1])).await.expect("sent");
    let address = site.address.to_string();
    let mut without_a_head = within(tls::connect(&address)).await.expect("connected");
    let mut all = vec![];
    for stream in [&mut silent, &mut half] {
        // The part of a greeting that was not read makes the end a reset.
        let _ = within(stream.read_to_end(&mut all)).await;
    }
    let _ = within(without_a_head.read_to_end(&mut all)).await;
    assert_eq!(all, b"");
}

#[tokio::test]
async fn a_head_that_is_too_large_is_refused() {
    let site = Site::start();
    let mut stream = site.send("GET", "/health", &[("X-Large", &"x".repeat(12 << 10))]).await;
    let mut answer = vec![];
    within(stream.read_to_end(&mut answer)).await.expect("received");
    assert_eq!(Response::parse(&answer).status, 200);
    let mut stream = site.connect().await;
    let head = format!("GET /health HTTP/1.1\r\nX-Large: {}", "x".repeat(1 << 20));
    // The server may refuse the head before all of it was sent.
    let _ = within(stream.write_all(head.as_bytes())).await;
    let mut start = vec![0; 12];
    // If the server closes with input unread, a reset may arrive instead of the answer.
    if within(stream.read_exact(&mut start)).await.is_ok() {
        assert_eq!(start, b"HTTP/1.1 431");
    }
}

#[tokio::test]
async fn a_client_that_does_not_read_loses_its_place() {
    let limits = Limits { stall: SOON, connections: 1, ..Limits::default() };
    let site = Site::start_with(limits, Config::default());
    site.put("large", vec![7; LARGE]).await;
    let mut stalled = site.send("GET", "/files/site/large", &[]).await;
    within(stalled.readable()).await.expect("an answer has begun");
    until("the only place is free again", async || {
        site.get("large", &[("range", "bytes=0-0")]).await.status == 206
    })
    .await;
    let mut got = vec![];
    let _ = within(stalled.read_to_end(&mut got)).await;
    assert!(got.len() < LARGE, "{}", got.len());
}

#[tokio::test]
async fn a_download_may_take_longer_than_a_head() {
    let limits = Limits { head: SOON, ..Limits::default() };
    let site = Site::start_with(limits, Config::default());
    site.put("large", vec![7; LARGE]).await;
    let mut stream = site.send("GET", "/files/site/large", &[]).await;
    within(stream.readable()).await.expect("an answer has begun");
    let mut silent = site.connect().await;
    assert_eq!(within(silent.read(&mut [0])).await.expect("closed"), 0, "its time is up");
    let mut all = vec![];
    within(stream.read_to_end(&mut all)).await.expect("received");
    assert_eq!(Response::parse(&all).body.len(), LARGE);
}

#[tokio::test]
async fn who_says_nothing_makes_room_for_who_does() {
    let limits = Limits { strangers: 1, ..Limits::default() };
    let site = Site::start_with(limits, Config::default());
    let first = site.connect().await;
    assert_eq!(site.ask("GET", "/health", &[]).await.status, 200);
    // The server was full, so it must have closed the first connection before it answered.
    let closed = within(first.readable()).await.map(|()| first.try_read(&mut [0]));
    assert!(matches!(closed, Ok(Ok(0) | Err(_))), "{closed:?}");
}

#[tokio::test]
async fn many_connections_beyond_the_bound_are_all_served() {
    let limits = Limits { strangers: 3, ..Limits::default() };
    let site = Site::start_with(limits, Config::default());
    site.put("a", vec![7; 100_000]).await;
    let answers = (0..50).map(|_| site.get("a", &[]));
    for answer in futures::future::join_all(answers).await {
        assert_eq!((answer.status, answer.body.len()), (200, 100_000));
    }
}

#[tokio::test]
async fn a_client_that_goes_away_leaves_nothing_behind() {
    let config = Config { session_ttl: SOON, ..Config::default() };
    let site = Site::start_with(Limits::default(), config);
    site.put("large", vec![7; LARGE]).await;
    let mut stream = site.send("GET", "/files/site/large", &[]).await;
    within(stream.read_exact(&mut [0; 10_000])).await.expect("a part");
    drop(stream);
    // A download counts as use of its session, so the session's end shows that the download has ended.
    until("the session expires", async || site.sessions.host().count() == 0).await;
}

#[tokio::test]
async fn a_file_that_changes_meanwhile_is_cut_off_and_not_mixed() {
    let site = Site::start();
    site.put("large", vec![7; LARGE]).await;
    let mut stream = site.send("GET", "/files/site/large", &[]).await;
    within(stream.read_exact(&mut [0; 1000])).await.expect("a part");
    site.put("large", vec![8; LARGE]).await;
    let mut rest = vec![];
    let _ = within(stream.read_to_end(&mut rest)).await;
    assert!(rest.len() < LARGE, "{}", rest.len());
    assert!(!rest.contains(&8));
}

#[tokio::test]
async fn a_closed_session_ends_its_downloads() {
    let site = Site::start();
    site.put("large", vec![7; LARGE]).await;
    let mut stream = site.send("GET", "/files/site/large", &[]).await;
    within(stream.read_exact(&mut [0; 1000])).await.expect("a part");
    within(site.sessions.close(&site.session)).await.expect("closed");
    let mut rest = vec![];
    let _ = within(stream.read_to_end(&mut rest)).await;
    assert!(rest.len() < LARGE, "{}", rest.len());
    assert_eq!(error(&site.get("large", &[]).await).0, 404);
}
