//! Sessions that end without an explicit close, and their copies in the archive.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use support::{On, PATIENCE, Server, http_with, key_in, name, on_all, text, until, web::*};
use tokio::time::timeout;

on_all! {
    a_session_that_expires_comes_back_with_files_and_variables_and_says_so,
    a_session_comes_back_after_its_server_was_ended,
    what_is_closed_is_gone_from_the_archive_as_well,
    urls_of_an_archived_session_go_on_from_the_archive,
    another_caller_finds_nothing_of_an_archived_session,
    an_archived_session_is_in_the_list_until_it_is_back_or_closed,
    a_damaged_archive_starts_empty_and_says_so,
    an_archive_that_cannot_be_reached_holds_nobody_up,
    a_workspace_comes_back_by_its_name,
    a_session_comes_back_with_the_language_that_it_was_created_with,
    a_session_that_gave_way_comes_back;
    not on wasm:
    variables_that_cannot_be_kept_are_named,
}

/// Three seconds.
const SHORT_LIFE: (&str, &str) = ("SANDBOX_SESSION_TTL_M", "0.05");

/// A folder for an archive and a key.
pub(super) struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    pub(super) fn new() -> Self {
        Self { dir: tempfile::tempdir().expect("a folder") }
    }

    pub(super) fn archive(&self) -> PathBuf {
        self.dir.path().join("archive")
    }

    /// Starts a server with this archive.
    async fn server(&self, on: On, more: &[(&str, &str)]) -> Server {
        let settings = self.settings();
        let mut all: Vec<_> =
            settings.iter().map(|(name, value)| (*name, value.as_str())).collect();
        all.extend(more);
        Server::start_with(on, &all).await
    }

    /// Starts a server over HTTP with this archive, for alice and bob.
    pub(super) async fn web(&self, on: On) -> (Web, Caller, Caller) {
        let settings = self.settings();
        let mut all: Vec<_> =
            settings.iter().map(|(name, value)| (*name, value.as_str())).collect();
        // Sandboxes end with their server, so that the next one needs the archive.
        all.push(("SANDBOX_HOLD_S", "0"));
        Web::of_two(on, &all).await
    }

    fn settings(&self) -> [(&'static str, String); 2] {
        let path = |path: PathBuf| path.to_str().expect("UTF-8").to_owned();
        [("SANDBOX_ARCHIVE", path(self.archive())), ("SANDBOX_KEY_FILE", key_in(self.dir.path()))]
    }

    /// Waits until `count` sessions are archived.
    async fn until_archived(&self, count: usize) {
        until("it is archived", async || manifests(&self.archive()).len() == count).await;
    }
}

/// The manifests below a folder.
pub(super) fn manifests(folder: &Path) -> Vec<PathBuf> {
    let sessions = std::fs::read_dir(folder.join("sessions")).into_iter().flatten().flatten();
    sessions.map(|it| it.path().join("manifest")).filter(|it| it.exists()).collect()
}

fn notes(result: &Value) -> String {
    let notes = result["notes"].as_array().cloned().unwrap_or_default();
    notes.iter().map(text).collect::<Vec<_>>().join(" ")
}

async fn cell(server: &Server, session: &str, code: &str) -> Value {
    server.cell(session, code).await.ok()
}

async fn a_session_that_expires_comes_back_with_files_and_variables_and_says_so(on: On) {
    let place = Place::new();
    // The embedded engine has hibernated the session by then, and wakes it to save it.
    let server = place.server(on, &[SHORT_LIFE, ("SANDBOX_HIBERNATE_AFTER_M", "0.01")]).await;
    let session = name("back");
    server.upload(&session, "data.csv", b"a,b\n1,2\n").await.ok();
    cell(&server, &session, "import math\nx = [1, 2]\ny = x\nopen('made.txt', 'w').write('é')")
        .await;
    place.until_archived(1).await;
    let back = cell(&server, &session, "x.append(3); (x, y, math.pi > 3)").await;
    assert_eq!(back["result"], "([1, 2, 3], [1, 2, 3], True)", "{back}");
    assert!(back.get("new_session").is_none(), "{back}");
    let told = notes(&back);
    assert!(told.contains("was brought back as it was at") && told.contains("2 files"), "{told}");
    let next = cell(&server, &session, "x").await;
    assert!(notes(&next).is_empty(), "it is told once: {next}");
    let mut files = server.files(&session).await;
    files.sort();
    assert_eq!(files, [("data.csv".to_owned(), 8), ("made.txt".to_owned(), 2)]);
    // When the session expires again, the server saves it with the new state.
    let manifest = manifests(&place.archive()).remove(0);
    let before = std::fs::read(&manifest).expect("read");
    until("it is saved again", async || {
        std::fs::read(&manifest).is_ok_and(|bytes| bytes != before)
    })
    .await;
    let listed = server.call("list_artifacts", json!({ "session_id": session })).await.ok();
    assert!(notes(&listed).contains("brought back"), "a look is enough: {listed}");
    assert_eq!(cell(&server, &session, "x").await["result"], "[1, 2, 3]");
}

async fn a_session_comes_back_after_its_server_was_ended(on: On) {
    let place = Place::new();
    let mut server = place.server(on, &[]).await;
    let minted = server.call("execute_code", json!({ "code": "total = 41" })).await.ok();
    let minted = text(&minted["session_id"]).to_owned();
    let own = name("own");
    cell(
        &server,
        &own,
        "def f(n):\n    return n + total\ntotal = 1\nclass Point:\n    x = 3\np = Point()",
    )
    .await;
    server.signal("TERM");
    server.exit_code().await;
    assert_eq!(manifests(&place.archive()).len(), 2);
    let mut server = place.server(on, &[]).await;
    let back = cell(&server, &minted, "total += 1\ntotal").await;
    assert_eq!(back["result"], "42", "a name of the server's comes back as well: {back}");
    let back = cell(&server, &own, "total = 10\n(f(1), isinstance(p, Point), p.x)").await;
    assert_eq!(back["result"], "(11, True, 3)", "functions see the variables: {back}");
    assert_eq!(back["execution_count"], 2, "{back}");
    // The end of the input also ends the server, which saves the session.
    server.close_input();
    server.exit_code().await;
    let server = place.server(on, &[]).await;
    assert_eq!(cell(&server, &own, "f(5)").await["result"], "15");
}

async fn what_is_closed_is_gone_from_the_archive_as_well(on: On) {
    let place = Place::new();
    let server = place.server(on, &[SHORT_LIFE]).await;
    let (closed, back) = (name("closed"), name("back"));
    for session in [&closed, &back] {
        server.upload(session, "a.txt", b"a").await.ok();
    }
    place.until_archived(2).await;
    // One session is closed while it is archived, the other one after it was restored.
    server.call("close_session", json!({ "session_id": closed })).await.ok();
    place.until_archived(1).await;
    assert_eq!(server.files(&back).await.len(), 1);
    server.call("destroy_session", json!({ "session_id": back })).await.ok();
    place.until_archived(0).await;
    for session in [&closed, &back] {
        let again = server.call("list_artifacts", json!({ "session_id": session })).await;
        assert_eq!(again.error(), "session_not_found");
    }
    let live = name("live");
    server.upload(&live, "a.txt", b"a").await.ok();
    server.call("close_session", json!({ "session_id": live })).await.ok();
    assert_eq!(manifests(&place.archive()).len(), 0, "one that was never archived is not");
}

async fn urls_of_an_archived_session_go_on_from_the_archive(on: On) {
    let place = Place::new();
    let mut server = place.server(on, &[("SANDBOX_HTTP_PORT", "0")]).await;
    let session = name("urls");
    let content: Vec<u8> = (0..200_000_u32).map(|n| (n % 251) as u8).collect();
    server.upload(&session, "a/large.bin", &content).await.ok();
    server.upload(&session, "b.txt", b"hello").await.ok();
    let (large, small) =
        (server.url(&session, "a/large.bin").await, server.url(&session, "b.txt").await);
    server.signal("TERM");
    server.exit_code().await;
    let server = place.server(on, &[("SANDBOX_HTTP_PORT", "0")]).await;
    let other = name("other");
    server.upload(&other, "x", b"x").await.ok();
    let base = server.url(&other, "x").await;
    let base = base.split("/files/").next().expect("a base").to_owned();
    let here =
        |url: &str| format!("{base}/files/{}", url.split_once("/files/").expect("of a file").1);
    for _ in 0..2 {
        let got = http_with("GET", &here(&large), &[], b"").await;
        assert_eq!((got.status, got.body == content), (200, true));
        let got = http_with("GET", &here(&large), &[("Range", "bytes=100000-100009")], b"").await;
        assert_eq!((got.status, &got.body[..]), (206, &content[100_000..100_010]));
        assert_eq!(http_with("GET", &here(&small), &[], b"").await.body, b"hello");
        let forged = here(&small).replace("b.txt", "a/large.bin");
        assert_eq!(http_with("GET", &forged, &[], b"").await.status, 403);
        // The URLs also work after the session was restored.
        assert_eq!(server.files(&session).await.len(), 2);
    }
    server.call("close_session", json!({ "session_id": session })).await.ok();
    assert_eq!(http_with("GET", &here(&small), &[], b"").await.status, 404);
}

async fn another_caller_finds_nothing_of_an_archived_session(on: On) {
    let place = Place::new();
    let settings = place.settings();
    let mut all: Vec<_> = settings.iter().map(|(name, value)| (*name, value.as_str())).collect();
    all.extend([("SANDBOX_AUTH_TOKENS", "alice:secret-a,bob:secret-b"), SHORT_LIFE]);
    let site = Web::start(on, &all).await;
    let [alice, bob] = ["secret-a", "secret-b"].map(|token| site.caller(Some(token)));
    let session = name("hers");
    let put = format!("/files/{session}/a.txt");
    assert_eq!(alice.send("PUT", &put, &[], b"hers").await.status, 201);
    place.until_archived(1).await;
    assert_eq!(alice.send("GET", &put, &[], &[]).await.body, b"hers");
    let answer = bob.send("GET", &put, &[], &[]).await;
    assert_eq!(answer.status, 404);
    assert_eq!(bob.send("DELETE", &format!("/sessions/{session}"), &[], &[]).await.status, 404);
    let listed = alice.send("GET", &format!("/sessions/{session}"), &[], &[]).await.json();
    assert_eq!(listed["state"], "archived");
    assert_eq!(listed["artifacts"][0]["filename"], "a.txt");
    assert_eq!(alice.send("DELETE", &format!("/sessions/{session}"), &[], &[]).await.status, 204);
    place.until_archived(0).await;
}

async fn an_archived_session_is_in_the_list_until_it_is_back_or_closed(on: On) {
    let place = Place::new();
    let settings = place.settings();
    let mut all: Vec<_> = settings.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let tokens = ("SANDBOX_AUTH_TOKENS", "alice:secret-a,bob:secret-b");
    all.extend([tokens, SHORT_LIFE]);
    let site = Web::start(on, &all).await;
    let [alice, bob] = ["secret-a", "secret-b"].map(|token| site.caller(Some(token)));
    let session = name("listed");
    let put = format!("/files/{session}/a.txt");
    assert_eq!(alice.send("PUT", &put, &[], b"hers").await.status, 201);
    // A client that waits for changes is notified.
    let mut list = alice.send("GET", "/sessions", &[], &[]).await;
    while list.json()["sessions"][0]["state"] != "archived" {
        let headers = [("If-None-Match", list.header("etag")), ("Prefer", "wait=30")];
        let next = timeout(PATIENCE, alice.send("GET", "/sessions", &headers, &[])).await;
        let next = next.expect("in time");
        if next.status == 200 {
            list = next;
        }
    }
    let of_list = &list.json()["sessions"][0];
    assert_eq!((&of_list["session_id"], &of_list["runs"]), (&json!(session), &json!(0)));
    let states = async |caller: &Caller| {
        let list = caller.send("GET", "/sessions", &[], &[]).await.json();
        let all = list["sessions"].as_array().cloned().expect("a list");
        all.iter().map(|it| text(&it["state"]).to_owned()).collect::<Vec<_>>()
    };
    assert!(states(&bob).await.is_empty());
    drop(site);
    // The next server also knows the archived session.
    all.retain(|(name, _)| *name != SHORT_LIFE.0);
    let site = Web::start(on, &all).await;
    let alice = site.caller(Some("secret-a"));
    assert_eq!(states(&alice).await, ["archived"]);
    alice.run(&session, "print(open('a.txt').read())").await;
    assert_eq!(states(&alice).await, ["idle"], "it is back, once");
    alice.call("close_session", json!({ "session_id": session })).await.ok();
    assert!(states(&alice).await.is_empty());
}

async fn a_damaged_archive_starts_empty_and_says_so(on: On) {
    let place = Place::new();
    let server = place.server(on, &[SHORT_LIFE]).await;
    let session = name("damaged");
    server.upload(&session, "a.txt", b"a").await.ok();
    place.until_archived(1).await;
    let manifest = manifests(&place.archive()).remove(0);
    let mut bytes = std::fs::read(&manifest).expect("read");
    let last = bytes.len() - 2;
    bytes[last] ^= 1;
    std::fs::write(&manifest, bytes).expect("written");
    let new = cell(&server, &session, "1 + 1").await;
    assert_eq!((&new["result"], &new["new_session"]), (&json!("2"), &json!(true)), "{new}");
    assert!(notes(&new).contains("damaged"), "{new}");
    assert!(server.files(&session).await.is_empty());
}

async fn an_archive_that_cannot_be_reached_holds_nobody_up(on: On) {
    let place = Place::new();
    let mut server = place.server(on, &[SHORT_LIFE]).await;
    let session = name("alone");
    server.upload(&session, "a.txt", b"a").await.ok();
    place.until_archived(1).await;
    // A file in the place of the archive's folder.
    let away = place.dir.path().join("away");
    std::fs::rename(place.archive(), &away).expect("renamed");
    std::fs::write(place.archive(), "x").expect("written");
    let new = cell(&server, &session, "1 + 1").await;
    assert_eq!(new["result"], "2");
    assert!(notes(&new).contains("cannot be reached"), "{new}");
    let minted = server.call("execute_code", json!({ "code": "1" })).await.ok();
    assert_eq!(minted["result"], "1");
    std::fs::remove_file(place.archive()).expect("removed");
    std::fs::rename(&away, place.archive()).expect("renamed");
    server.signal("TERM");
    server.exit_code().await;
    let server = place.server(on, &[]).await;
    assert_eq!(server.files(&session).await, [("a.txt".to_owned(), 1)], "it was left alone");
}

async fn a_workspace_comes_back_by_its_name(on: On) {
    let place = Place::new();
    let server = place.server(on, &[SHORT_LIFE]).await;
    let first = server.call("execute_code", json!({ "code": "x = 1" })).await.ok();
    assert_eq!(first["new_workspace"], true);
    place.until_archived(1).await;
    let info = server.call("get_workspace_info", json!({})).await.ok();
    assert_eq!(info["session_id"], first["session_id"], "{info}");
    assert!(notes(&info).contains("brought back"), "{info}");
    let next = server.call("execute_code", json!({ "code": "x + 1" })).await.ok();
    assert_eq!(next["result"], "2", "{next}");
    assert!(next.get("new_workspace").is_none(), "{next}");
}

async fn a_session_that_gave_way_comes_back(on: On) {
    let place = Place::new();
    let one = [
        ("SANDBOX_MAX_SESSIONS", "1"),
        ("SANDBOX_MAX_HIBERNATED", "0"),
        ("SANDBOX_EVICT_IDLE_M", "0.000001"),
    ];
    let server = place.server(on, &one).await;
    let mut sessions = vec![];
    for n in 0..2 {
        let created = server.call("create_session", json!({ "memory_limit_mb": 300 })).await.ok();
        let session = text(&created["session_id"]).to_owned();
        cell(&server, &session, &format!("x = {n}")).await;
        sessions.push(session);
    }
    for _ in 0..2 {
        for (n, session) in sessions.iter().enumerate() {
            let back = cell(&server, session, "x").await;
            assert_eq!(back["result"], n.to_string(), "{back}");
            assert!(notes(&back).contains("brought back"), "{back}");
        }
    }
}

async fn a_session_comes_back_with_the_language_that_it_was_created_with(on: On) {
    let place = Place::new();
    let mut server = place.server(on, &[]).await;
    let session = name("language");
    let created = json!({ "session_id": session, "language": "javascript" });
    server.call("create_session", created).await.ok();
    server.upload(&session, "data.csv", b"a,b\n1,2\n").await.ok();
    server.signal("TERM");
    server.exit_code().await;
    let server = place.server(on, &[]).await;
    // The call that restores the session knows the language, and so do the next ones.
    for _ in 0..2 {
        assert_eq!(cell(&server, &session, "typeof 1").await["result"], "'number'");
    }
}

async fn variables_that_cannot_be_kept_are_named(on: On) {
    let place = Place::new();
    let server = place.server(on, &[]).await;
    let session = name("lost");
    let code = "import threading, socket\nlock = threading.Lock()\ngen = (n for n in range(3))\n\
                log = open('log.txt', 'w')\nsock = socket.socket(socket.AF_UNIX)\nkept = {'a': 1}\nf = lambda n: n * 2\n\
                huge = b'x' * (70 << 20)";
    cell(&server, &session, code).await;
    let script = json!({ "session_id": session, "language": "javascript", "code": "let a = 1" });
    if on == On::Docker {
        server.call("execute_code", script).await.ok();
    }
    let mut server = server;
    server.signal("TERM");
    server.exit_code().await;
    let server = place.server(on, &[]).await;
    let back = cell(
        &server,
        &session,
        "sorted(n for n in globals() if n in 'lock gen log sock kept f huge threading'.split())",
    )
    .await;
    let told = notes(&back);
    for lost in ["lock", "gen", "log", "sock", "huge"] {
        assert!(told.contains(&format!("{lost:?}")), "{lost}: {told}");
    }
    if on == On::Docker {
        assert_eq!(back["result"], "['f', 'kept', 'threading']", "{back}");
        assert!(told.contains("Variables of \"javascript\""), "{told}");
        assert_eq!(cell(&server, &session, "(f(4), kept)").await["result"], "(8, {'a': 1})");
    }
}
