//! The audit file: a line for each action, chained to the previous line, without any content of the user.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Output, Stdio},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::{process::Command, time::timeout};

use support::{
    On, PATIENCE, Server, http, http_with, key_in, name, program, text, until, until_uploaded,
    url_in, web::Web,
};

/// A mark in everything that a user sends or makes. Its base64 contains the same text at every offset.
const MARK: &str = "zqMARKzqMARKzq";

/// An audit file in a folder of its own.
struct Audited {
    folder: tempfile::TempDir,
}

impl Audited {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a folder") }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("audit/audit.jsonl")
    }

    fn text(&self) -> String {
        self.path().display().to_string()
    }

    /// Starts a server over stdio that has this audit file and these other settings.
    async fn start(&self, settings: &[(&str, &str)]) -> Server {
        let file = self.text();
        Server::start_with(On::Local, &[&[("SANDBOX_AUDIT_FILE", &*file)], settings].concat()).await
    }

    /// Does the same over HTTP.
    async fn web(&self, settings: &[(&str, &str)]) -> Web {
        let file = self.text();
        Web::start(On::Local, &[&[("SANDBOX_AUDIT_FILE", &*file)], settings].concat()).await
    }

    /// The lines of the newest file.
    fn all(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.path()).expect("UTF-8");
        text.lines()
            .map(|line| serde_json::from_str(line).expect("one JSON object a line"))
            .collect()
    }

    /// The lines of calls in it.
    fn calls(&self) -> Vec<Value> {
        self.all().into_iter().filter(|line| line.get("event").is_none()).collect()
    }

    async fn verify(&self, settings: &[(&str, &str)], arguments: &[&str]) -> Output {
        let file = self.text();
        let settings = [&[("SANDBOX_AUDIT_FILE", &*file)], settings].concat();
        let mut command = program(self.folder.path(), &settings);
        command.args(["audit", "verify"]).args(arguments);
        timeout(PATIENCE, command.output()).await.expect("it ends").expect("it runs")
    }

    #[track_caller]
    fn is_whole(output: &Output) -> String {
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(
            output.status.code(),
            Some(0),
            "{said}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(said.ends_with("whole\n"), "{said}");
        said
    }

    #[track_caller]
    fn is_broken(output: &Output) -> String {
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(
            output.status.code(),
            Some(1),
            "{said}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(said.ends_with("NOT WHOLE\n"), "{said}");
        said
    }
}

fn digest(bytes: impl AsRef<[u8]>) -> Value {
    let bytes = bytes.as_ref();
    json!({ "sha256": hex::encode(Sha256::digest(bytes)), "bytes": bytes.len() })
}

/// The tool and the outcome of each line.
fn outcomes(lines: &[Value]) -> Vec<(&str, &str)> {
    lines.iter().map(|line| (text(&line["tool"]), text(&line["outcome"]))).collect()
}

async fn ended(mut server: Server) {
    server.close_input();
    assert_eq!(server.exit_code().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_call_is_one_line_whatever_came_of_it() {
    let audited = Audited::new();
    let server = audited.start(&[]).await;
    let id = name("audit");
    server.upload(&id, "a.csv", b"1,2").await.ok();
    server.run(&id, "print(1)").await;
    server.run(&id, "raise SystemExit(3)").await;
    server.run_for(&id, "while True: pass", 1).await;
    server.call("read_artifact", json!({ "session_id": id, "path": "b.csv" })).await.error();
    server.call("run_python", json!({ "code": 7 })).await.error();
    server.call("run_python", json!({ "session_id": "a/b", "code": "1" })).await.error();
    server.request("tools/call", json!({ "name": MARK })).await;
    server.request("resources/read", json!({ "uri": format!("sandbox:///{id}/a.csv") })).await;
    server.request("resources/read", json!({ "uri": MARK })).await;
    server.call("close_session", json!({ "session_id": id })).await.ok();
    server.call("list_artifacts", json!({ "session_id": id })).await.error();
    ended(server).await;

    let calls = audited.calls();
    assert_eq!(
        outcomes(&calls),
        [
            ("upload_file", "ok"),
            ("run_python", "ok"),
            ("run_python", "error"),
            ("run_python", "timeout"),
            ("read_artifact", "not_found"),
            ("run_python", "invalid_argument"),
            ("run_python", "invalid_session_id"),
            ("unknown", "invalid_argument"),
            ("resources/read", "ok"),
            ("resources/read", "not_read"),
            ("close_session", "ok"),
            ("list_artifacts", "session_not_found"),
        ]
    );
    assert!(calls.iter().all(|line| line["caller"] == "local"));
    assert!(calls[..5].iter().all(|line| line["session_id"] == id));
    Audited::is_whole(&audited.verify(&[], &[]).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_says_who_ran_what_on_what_within_which_limits_and_what_came_of_it() {
    let audited = Audited::new();
    let settings = [("SANDBOX_MEMORY_LIMIT", "300MB"), ("SANDBOX_PIDS_LIMIT", "77")];
    let server = audited.start(&settings).await;
    let code = "import sys; print(input()); print('e', file=sys.stderr)\nopen('a.txt', 'w').write('xy')\n6 * 7";
    let arguments = json!({ "code": code, "stdin": "in\n", "timeout": 9 });
    let answer = server.call("execute_code", arguments.clone()).await;
    let text = answer.raw["content"][0]["text"].as_str().expect("a text").to_owned();
    let ran = answer.ok();
    ended(server).await;

    let [line] = &audited.calls()[..] else { panic!("one line") };
    let mut line = line.clone();
    let object = line.as_object_mut().expect("an object");
    for name in ["seq", "prev", "time", "server", "duration_ms"] {
        assert!(object.remove(name).is_some_and(|value| !value.is_null()), "{name}");
    }
    let list = "2 a.txt\n";
    assert_eq!(
        line,
        json!({
            "caller": "local",
            "tool": "execute_code",
            "session_id": ran["session_id"],
            "run_id": ran["run_id"],
            "language": "python",
            "code": digest(code),
            "inputs": { "arguments": digest(arguments.to_string()), "stdin": digest("in\n") },
            "outputs": {
                "stdout": digest(ran["stdout"].as_str().expect("a text")),
                "stderr": digest(ran["stderr"].as_str().expect("a text")),
                "result": digest("42"),
                "artifacts": {
                    "count": 1, "bytes": 2, "list_sha256": hex::encode(Sha256::digest(list)),
                },
                "answer": digest(text),
            },
            "image": "local",
            "limits": {
                "memory": 300_000_000, "cpus": 1.0, "pids": 77, "data": 150_000_000, "timeout_s": 9.0,
            },
            "outcome": "success",
            "exit_code": 0,
        })
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_come_and_go_by_url_have_lines_with_what_was_in_them() {
    let audited = Audited::new();
    let server = audited.start(&[]).await;
    let id = name("audit");
    let asked = server.call("upload_file", json!({ "session_id": id, "filename": "a.csv" })).await;
    let url = asked.ok()["upload_url"].as_str().expect("a URL").to_owned();
    assert_eq!(http_with("PUT", &url, &[], b"1,2,3").await.status, 201);
    assert_eq!(http_with("PUT", &url, &[], b"again").await.status, 409);
    let file = server.url(&id, "a.csv").await;
    assert_eq!(http("GET", &file).await.body, b"1,2,3");
    assert_eq!(http_with("GET", &file, &[("Range", "bytes=2-2")], b"").await.body, b"2");
    assert_eq!(http("HEAD", &file).await.status, 200);
    assert_eq!(http("GET", &format!("{file}x")).await.status, 403);
    let base64 = STANDARD.encode("4,5");
    let given = json!({ "session_id": id, "filename": "b.csv", "content_base64": base64 });
    server.call("upload_file", given).await.ok();
    // Long enough that the server reads the text from the message while it writes the file.
    let long = "x".repeat(300_000);
    let text = json!({ "session_id": id, "filename": "c.txt", "text": long });
    server.call("upload_file", text).await.ok();
    ended(server).await;

    let calls = audited.calls();
    let moved: Vec<_> = calls
        .iter()
        .filter(|line| line["tool"] != "list_artifacts")
        .map(|line| {
            let of = |what: &str| line[what]["content"].clone();
            assert_eq!(line["session_id"], id);
            (line["tool"].as_str().expect("it"), &line["outcome"], of("inputs"), of("outputs"))
        })
        .collect();
    let (ok, none) = (&json!("ok"), Value::Null);
    assert_eq!(
        moved,
        [
            ("upload_file", ok, none.clone(), none.clone()),
            ("upload", ok, digest("1,2,3"), none.clone()),
            ("upload", &json!("file_exists"), none.clone(), none.clone()),
            ("download", ok, none.clone(), digest("1,2,3")),
            ("download", ok, none.clone(), digest("2")),
            ("upload_file", ok, digest("4,5"), none.clone()),
            ("upload_file", ok, digest(long), none.clone()),
        ]
    );
    // Long arguments have digests of their own, and are not part of the digest of all arguments.
    let arguments = json!({ "session_id": id, "filename": "c.txt", "text": "\u{0}long" });
    let last = calls.last().expect("a line");
    assert_eq!(last["inputs"]["arguments"], digest(arguments.to_string()));
}

#[tokio::test(flavor = "multi_thread")]
async fn over_http_each_line_has_its_callers_name() {
    let audited = Audited::new();
    let key = key_in(audited.folder.path());
    let settings =
        [("SANDBOX_AUTH_TOKENS", "ann:token-of-ann,bob:token-of-bob"), ("SANDBOX_KEY_FILE", &*key)];
    let mut web = audited.web(&settings).await;
    let (ann, bob) = (web.caller(Some("token-of-ann")), web.caller(Some("token-of-bob")));
    let id = name("audit");
    ann.run(&id, "open('a.txt', 'w').write('1')").await;
    bob.run(&id, "1").await;
    let listed = ann.call("list_artifacts", json!({ "session_id": id })).await.ok();
    assert_eq!(http("GET", &url_in(&listed, "a.txt")).await.body, b"1");
    let put = format!("/files/{id}/b.txt");
    assert_eq!(bob.send("PUT", &put, &[], b"2").await.status, 201);
    let zip = format!("/files/{id}/?format=zip");
    assert_eq!(bob.send("GET", &zip, &[], b"").await.status, 200);
    let boundary = [("Content-Type", "multipart/form-data; boundary=b")];
    let form = b"--b\r\nContent-Disposition: form-data; name=\"f\"; filename=\"c.txt\"\r\n\r\n3\r\n--b--\r\n";
    let target = format!("/files/{id}");
    assert_eq!(ann.send("POST", &target, &boundary, form).await.status, 201);
    // Also with an MCP session.
    let mcp = ann.open().await;
    let params = json!({ "name": "list_runtimes", "arguments": {} });
    let message = json!({ "jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": params });
    assert_eq!(mcp.post(&message).await.status, 200);
    let end = format!("/sessions/{id}");
    assert_eq!(bob.send("DELETE", &end, &[], b"").await.status, 204);
    web.signal("TERM");
    assert_eq!(web.exit_code().await, Some(0));

    let calls = audited.calls();
    let who: Vec<_> = calls
        .iter()
        .map(|line| (line["caller"].as_str().expect("one"), line["tool"].as_str().expect("one")))
        .collect();
    assert_eq!(
        who,
        [
            ("ann", "run_python"),
            ("bob", "run_python"),
            ("ann", "list_artifacts"),
            ("ann", "download"),
            ("bob", "upload"),
            ("bob", "download"),
            ("ann", "upload"),
            ("ann", "list_runtimes"),
            ("bob", "end_session"),
        ]
    );
    let said = Audited::is_whole(&audited.verify(&[("SANDBOX_KEY_FILE", &key)], &[]).await);
    assert!(said.contains("with the key"), "{said}");
    // Without the key, a reader of the file cannot forge a line.
    let other = tempfile::tempdir().expect("a folder");
    let settings = [("SANDBOX_KEY_FILE", key_in(other.path()))];
    let settings: Vec<_> = settings.iter().map(|(name, value)| (*name, &**value)).collect();
    let said = Audited::is_broken(&audited.verify(&settings, &[]).await);
    assert!(said.contains("not written by a server with this key"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_callers_send_or_get_is_in_the_file() {
    let audited = Audited::new();
    let server = audited.start(&[]).await;
    let id = name("audit");
    let file = format!("{MARK}/{MARK}.csv");
    server.upload(&id, &file, MARK.as_bytes()).await.ok();
    server.upload(&id, &file, MARK.as_bytes()).await.error();
    for code in [
        format!("# {MARK}\nimport sys\nprint('{MARK}')\nprint('{MARK}', file=sys.stderr)"),
        format!("raise ValueError('{MARK}')"),
        format!("open('{MARK}.txt', 'w').write('{MARK}')"),
    ] {
        server.run(&id, &code).await;
        server.call("execute_code", json!({ "session_id": id, "code": code, "stdin": MARK })).await;
    }
    server.call("read_artifact", json!({ "session_id": id, "path": file })).await.ok();
    server.call("read_artifact", json!({ "session_id": id, "path": MARK })).await.error();
    server.call("run_python", json!({ "session_id": id, "code": "1", (MARK): MARK })).await.error();
    server
        .call("run_python", json!({ "session_id": format!("{MARK}!"), "code": "1" }))
        .await
        .error();
    server.call("cancel_execution", json!({ "execution_id": MARK })).await.ok();
    server.request("tools/call", json!({ "name": MARK, "arguments": { (MARK): MARK } })).await;
    server.request("resources/read", json!({ "uri": MARK })).await;
    let url = server.url(&id, &file).await;
    assert_eq!(http("GET", &url).await.body, MARK.as_bytes());
    ended(server).await;

    let text = fs::read_to_string(audited.path()).expect("UTF-8");
    assert!(text.lines().count() > 15, "something is written");
    let encoded = ["", "1", "12"].map(|shift| {
        let encoded = STANDARD.encode(format!("{shift}{MARK}"));
        encoded[4..encoded.len() - 4].to_owned()
    });
    let leaks = text.lines().filter(|line| {
        line.to_lowercase().contains(&MARK.to_lowercase())
            || encoded.iter().any(|code| line.contains(code))
    });
    assert_eq!(leaks.collect::<Vec<_>>(), Vec::<&str>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_whose_calls_are_refused_cannot_fill_the_file() {
    let audited = Audited::new();
    let server = audited.start(&[("SANDBOX_AUDIT_REFUSED_PER_M", "5")]).await;
    for _ in 0..100 {
        assert!(!server.call("run_python", json!({ "cod": "1" })).await.error().is_empty());
    }
    server.run(&name("audited"), "print(1)").await;
    ended(server).await;
    let calls = audited.calls();
    assert!(calls.len() < 20, "{}", calls.len());
    let omitted: u64 = calls.iter().filter_map(|line| line["omitted"].as_u64()).sum();
    assert_eq!(omitted + calls.len() as u64, 101, "all are counted");
    let verified = audited.verify(&[], &[]).await;
    assert!(verified.status.success(), "{verified:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_cancelled_has_its_line() {
    let audited = Audited::new();
    let server = audited.start(&[]).await;
    let id = name("audit");
    let code = "open('started', 'w')\nwhile True: pass";
    let (request, _answer) = server.begin("run_python", json!({ "session_id": id, "code": code }));
    until("it runs", async || !server.files_if_any(&id).await.is_empty()).await;
    server.cancel(request);
    until("it has its line", async || {
        audited.calls().iter().any(|line| line["tool"] == "run_python")
    })
    .await;
    ended(server).await;
    let calls = audited.calls();
    let runs: Vec<_> = calls.iter().filter(|line| line["tool"] == "run_python").collect();
    assert_eq!(runs.len(), 1);
    assert_eq!((&runs[0]["outcome"], &runs[0]["code"]), (&json!("cancelled"), &digest(code)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_whose_client_leaves_has_its_line() {
    let audited = Audited::new();
    let server = audited.start(&[]).await;
    let id = name("audit");
    let code = until_uploaded("never");
    server.begin("run_python", json!({ "session_id": id, "code": code }));
    until("it is there", async || {
        let listed = server.call("list_artifacts", json!({ "session_id": id })).await;
        listed.raw["isError"] == false
    })
    .await;
    ended(server).await;
    let calls = audited.calls();
    let runs: Vec<_> = calls.iter().filter(|line| line["tool"] == "run_python").collect();
    assert_eq!(runs.len(), 1, "{calls:#?}");
    Audited::is_whole(&audited.verify(&[], &[]).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_killed_leaves_a_chain_that_the_next_one_goes_on_with() {
    let audited = Audited::new();
    let key = key_in(audited.folder.path());
    let settings = [("SANDBOX_KEY_FILE", &*key)];
    for round in 1..=5 {
        let mut server = audited.start(&settings).await;
        let before = audited.all().len();
        for n in 0..1000 {
            let params = json!({ "name": "list_runtimes", "arguments": {} });
            let id = format!("{round}-{n}");
            server.send(
                &json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params }),
            );
        }
        until("some lines are there", async || {
            let text = fs::read_to_string(audited.path()).expect("UTF-8");
            text.lines().count() > before + 20 * round
        })
        .await;
        server.kill().await;
        server.exit_code().await;
        Audited::is_whole(&audited.verify(&settings, &[]).await);
    }
    ended(audited.start(&settings).await).await;
    let said = Audited::is_whole(&audited.verify(&settings, &[]).await);
    assert!(said.contains("with the key"), "{said}");
    let events =
        audited.all().into_iter().filter_map(|line| line["event"].as_str().map(str::to_owned));
    let events: Vec<_> = events.collect();
    assert_eq!(events[events.len() - 2..], ["started", "stopped"]);
    assert_eq!(events.len(), 7, "{events:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_full_is_renamed_and_the_chain_goes_on_in_the_next() {
    let audited = Audited::new();
    let settings = [("SANDBOX_AUDIT_MAX_SIZE", "4096")];
    let mut web = audited.web(&settings).await;
    let callers: Vec<_> = (0..8).map(|_| web.caller(None)).collect();
    let calls = callers.iter().map(async |caller| {
        for _ in 0..10 {
            caller.call("list_runtimes", json!({})).await.ok();
        }
    });
    let verified = async {
        // At any moment.
        for _ in 0..3 {
            Audited::is_whole(&audited.verify(&settings, &[]).await);
        }
    };
    tokio::join!(futures::future::join_all(calls), verified);
    web.signal("TERM");
    web.exit_code().await;
    let said = Audited::is_whole(&audited.verify(&settings, &[]).await);
    assert!(said.starts_with("82 lines in "), "{said}");
    let folder = audited.path().parent().expect("a folder").to_owned();
    let mut older: Vec<(u64, PathBuf)> = fs::read_dir(folder)
        .expect("listed")
        .filter_map(|entry| {
            let path = entry.expect("listed").path();
            Some((path.extension()?.to_str()?.parse().ok()?, path))
        })
        .collect();
    older.sort_unstable();
    assert!(older.len() > 5, "{older:?}");
    for (last, path) in &older {
        assert!(fs::metadata(path).expect("there").len() <= 4096);
        let text = fs::read_to_string(path).expect("UTF-8");
        let line: Value =
            serde_json::from_str(text.lines().next_back().expect("one")).expect("JSON");
        assert_eq!(line["seq"], *last);
    }
    // An operator may remove old files, and names the last line of those that were removed.
    let text = fs::read(&older[0].1).expect("read");
    let last = text.split_inclusive(|byte| *byte == b'\n').next_back().expect("one");
    let hash = hex::encode(Sha256::digest(last));
    fs::remove_file(&older[0].1).expect("removed");
    let said = Audited::is_broken(&audited.verify(&settings, &[]).await);
    assert!(said.contains(&format!("--from {hash}")), "{said}");
    Audited::is_whole(&audited.verify(&settings, &["--from", &hash]).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_changed_is_found_where_it_was_changed() {
    let audited = Audited::new();
    let server = audited.start(&[]).await;
    for _ in 0..4 {
        server.call("list_runtimes", json!({})).await.ok();
    }
    ended(server).await;
    let whole = fs::read_to_string(audited.path()).expect("UTF-8");
    let lines: Vec<_> = whole.split_inclusive('\n').collect();
    let said = Audited::is_whole(&audited.verify(&[], &[]).await);
    let last = hex::encode(Sha256::digest(lines[5]));
    assert!(said.contains(&format!("the last one is 6, {last}")), "{said}");

    let changed = whole.replacen("list_runtimes", "list_artifacts", 1);
    fs::write(audited.path(), changed).expect("written");
    let said = Audited::is_broken(&audited.verify(&[], &[]).await);
    assert!(said.contains("audit.jsonl:3: the line before it, 2, is not what it was"), "{said}");

    fs::write(audited.path(), [&lines[..2], &lines[4..]].concat().concat()).expect("written");
    let said = Audited::is_broken(&audited.verify(&[], &[]).await);
    assert!(said.contains("audit.jsonl:3: it is line 5, and lines 3 to 4 are missing"), "{said}");

    fs::write(audited.path(), lines[..4].concat()).expect("written");
    let said = Audited::is_broken(&audited.verify(&[], &[]).await);
    assert!(said.contains("audit.jsonl:4: lines are missing after this one"), "{said}");
    let fourth = hex::encode(Sha256::digest(lines[3]));
    Audited::is_whole(&audited.verify(&[], &["--to", &fourth]).await);
    Audited::is_broken(&audited.verify(&[], &["--to", &last]).await);

    // A file in the arguments takes precedence over the setting.
    let copy = audited.folder.path().join("copy");
    fs::write(&copy, &whole).expect("written");
    let copy = copy.to_str().expect("UTF-8");
    let said = Audited::is_broken(&audited.verify(&[], &[copy]).await);
    assert!(said.contains("copy:6: there is no head file beside it"), "{said}");
    Audited::is_whole(&audited.verify(&[], &[copy, "--to", &last]).await);
    let wrong = audited.verify(&[], &["--to", "1234"]).await;
    assert_eq!(wrong.status.code(), Some(64));
    let unnamed = audited.verify(&[("SANDBOX_AUDIT_FILE", "")], &[]).await;
    assert_eq!(unnamed.status.code(), Some(64));
    let unreadable = audited.verify(&[], &[audited.folder.path().to_str().expect("UTF-8")]).await;
    assert_eq!(unreadable.status.code(), Some(69));
}

/// The command in docs/audit.md for a reader who has only a shell.
#[tokio::test(flavor = "multi_thread")]
async fn a_shell_can_verify_the_chain() {
    let page = fs::read_to_string(support::root().join("docs/audit.md"));
    let page = page.expect("the page is there");
    let script = page.split("```sh\n# by hand\n").nth(1).expect("the script");
    let script = script.split("```").next().expect("its end");
    let audited = Audited::new();
    let server = audited.start(&[]).await;
    server.call("list_runtimes", json!({})).await.ok();
    ended(server).await;
    let by_hand = async || {
        let mut command = Command::new("sh");
        command.args(["-c", script]).current_dir(audited.path().parent().expect("a folder"));
        let output = timeout(PATIENCE, command.output()).await.expect("it ends").expect("sh runs");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let whole = fs::read_to_string(audited.path()).expect("UTF-8");
    let last = hex::encode(Sha256::digest(whole.split_inclusive('\n').next_back().expect("one")));
    assert_eq!(by_hand().await, format!("{last}\n"));
    fs::write(audited.path(), whole.replacen("local", "lokal", 1)).expect("written");
    assert_eq!(by_hand().await, format!("line 3 does not follow\n{last}\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_server_with_the_same_file_does_not_start() {
    let audited = Audited::new();
    let first = audited.start(&[]).await;
    let file = audited.text();
    let mut second = program(audited.folder.path(), &[("SANDBOX_AUDIT_FILE", &*file)]);
    second.args(["serve", "--no-isolation"]).stdin(Stdio::null());
    let second = timeout(PATIENCE, second.output()).await.expect("it ends").expect("it runs");
    let said = String::from_utf8_lossy(&second.stderr);
    assert_eq!(second.status.code(), Some(69), "{said}");
    assert!(said.contains(&file) && said.contains("is another server's"), "{said}");
    first.call("list_runtimes", json!({})).await.ok();
    ended(first).await;
    Audited::is_whole(&audited.verify(&[], &[]).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_whose_file_cannot_be_written_does_not_start() {
    let folder = tempfile::tempdir().expect("a folder");
    let full = folder.path().join("audit.jsonl");
    std::os::unix::fs::symlink("/dev/full", &full).expect("made");
    for path in [full.to_str().expect("UTF-8"), "/proc/no/audit.jsonl"] {
        let mut server = program(folder.path(), &[("SANDBOX_AUDIT_FILE", path)]);
        server.args(["serve", "--no-isolation"]).stdin(Stdio::null());
        let ended = timeout(PATIENCE, server.output()).await.expect("it ends").expect("it runs");
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(69), "{path}: {said}");
        assert!(said.contains("SANDBOX_AUDIT_FILE") && said.contains(path), "{said}");
    }
}

/// Limits the size of the server's files to `bytes`, so that the server sees a full disk.
fn limit_files(server: &Server, bytes: &str) {
    let pid = server.process.id().expect("running").to_string();
    let limit = format!("--fsize={bytes}:unlimited");
    let set = std::process::Command::new("prlimit").args([&*limit, "--pid", &*pid]).status();
    assert!(set.expect("prlimit runs").success());
}

/// Starts a server that a write beyond the limit does not kill.
async fn patient(audited: &Audited, stderr: File) -> Server {
    let folder = audited.folder.path();
    let file = audited.text();
    let roomy = program(folder, &[("SANDBOX_AUDIT_FILE", &*file)]);
    let mut command = Command::new("sh");
    // The next program inherits the ignored signal.
    let script = "trap '' XFSZ; exec \"$0\" \"$@\"";
    command.args(["-c", script]).arg(support::binary()).current_dir(folder);
    for (name, value) in roomy.as_std().get_envs() {
        command.env(name, value.expect("set"));
    }
    command.stderr(stderr);
    Server::start_as(On::Local, command).await
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_done_that_cannot_be_written_down_and_nothing_written_is_damaged() {
    let audited = Audited::new();
    let log = audited.folder.path().join("stderr.log");
    let mut server = patient(&audited, File::create(&log).expect("created")).await;
    limit_files(&server, "8192");
    let mut answered = 0;
    let refused = loop {
        let answer = server.call("list_runtimes", json!({})).await;
        if answer.raw["isError"] == true {
            break answer;
        }
        answered += 1;
    };
    // The one call that was in progress when the disk became full is answered.
    assert_eq!(refused.error(), "sandbox_unavailable");
    assert!(refused.json["message"].as_str().is_some_and(|text| text.contains("audit file")));
    let ran = json!({ "code": "open('/tmp/never', 'w')" });
    assert_eq!(server.call("run_python", ran).await.error(), "sandbox_unavailable");
    let said = || fs::read_to_string(&log).expect("UTF-8");
    until("the log says so", async || said().contains("the audit file cannot be written")).await;
    Audited::is_whole(&audited.verify(&[], &[]).await);

    limit_files(&server, "unlimited");
    server.call("list_runtimes", json!({})).await.ok();
    server.close_input();
    assert_eq!(server.exit_code().await, Some(0));
    let lines = audited.all();
    let calls = lines.iter().filter(|line| line["tool"] == "list_runtimes").count();
    assert_eq!(calls, answered + 1, "those that were answered, and no other");
    let refused: Vec<_> = lines.iter().filter(|line| line["event"] == "recovered").collect();
    assert_eq!(refused.len(), 1);
    assert_eq!(refused[0]["refused"], 2);
    assert_eq!(said().matches("the audit file cannot be written").count(), 1, "{}", said());
    Audited::is_whole(&audited.verify(&[], &[]).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_of_a_tool_of_the_operators_own_is_one_line() {
    let audited = Audited::new();
    let folder = audited.folder.path();
    let module = r#"(module
      (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
      (memory (export "memory") 1)
      (data (i32.const 16) "hello\n")
      (func (export "_start")
        (i32.store (i32.const 0) (i32.const 16)) (i32.store (i32.const 4) (i32.const 6))
        (drop (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))))"#;
    fs::write(folder.join("hello.wasm"), wat::parse_str(module).expect("a module"))
        .expect("written");
    let tools = folder.join("tools.json");
    let tool =
        json!([{ "name": "hello", "description": "Says hello.", "wasm_file": "hello.wasm" }]);
    fs::write(&tools, tool.to_string()).expect("written");
    let server = audited.start(&[("SANDBOX_TOOLS_FILE", tools.to_str().expect("UTF-8"))]).await;
    server.call("hello", json!({})).await.ok();
    ended(server).await;
    let [line] = &audited.calls()[..] else { panic!("one line") };
    assert_eq!((&line["tool"], &line["outcome"]), (&json!("hello"), &json!("ok")));
    assert_eq!(line["outputs"]["stdout"], digest("hello\n"));
    assert_eq!(line["inputs"]["arguments"], digest("{}"));
    assert!(line["limits"]["memory"].is_u64() && line["limits"]["timeout_s"].is_number());
}

/// The files of a chain are accessible only to their owner.
#[tokio::test(flavor = "multi_thread")]
async fn its_files_and_their_folder_are_for_the_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let audited = Audited::new();
    ended(audited.start(&[]).await).await;
    let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
    assert_eq!(mode(&audited.path()), 0o600);
    assert_eq!(mode(&audited.folder.path().join("audit/audit.jsonl.head")), 0o600);
    assert_eq!(mode(&audited.folder.path().join("audit")), 0o700);
}
