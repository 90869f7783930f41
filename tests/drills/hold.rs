//! Drills: sessions that survive the stream to their sandbox, and their server.

use std::{os::unix::net::UnixListener, process::Command, sync::Mutex, time::Duration};

use serde_json::{Value, json};
use tokio::{
    io::copy_bidirectional,
    net::{UnixStream, unix::SocketAddr},
    task::{AbortHandle, JoinHandle},
};

use support::{
    Answer, On, PRELOADED, Server, assert_fields, containers, name, text, until,
    web::{Mcp, Web},
};

/// Settings with which sessions outlive a server; the key is in a folder of the test's own.
fn settings(folder: &tempfile::TempDir) -> Vec<(&'static str, String)> {
    vec![
        ("SANDBOX_HOLD_S", "60".into()),
        ("SANDBOX_KEY_FILE", folder.path().join("key").display().to_string()),
        ("SANDBOX_AUTH_TOKENS", "alice:a-token,bob:b-token".into()),
        // No pooled sandboxes: they have no caller yet, so only their own server can tell about them.
        ("SANDBOX_POOL_SIZE", "0".into()),
        (PRELOADED.0, PRELOADED.1.into()),
    ]
}

async fn start(settings: &[(&'static str, String)], more: &[(&str, &str)]) -> Web {
    let mut all: Vec<_> = settings.iter().map(|(name, value)| (*name, value.as_str())).collect();
    all.extend(more);
    Web::start(On::Docker, &all).await
}

/// A server whose sessions outlive it, its settings, the name of a session, and the folder of its key.
async fn first(test: &str) -> (Web, Vec<(&'static str, String)>, String, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    let settings = settings(&folder);
    (start(&settings, &[]).await, settings, name(test), folder)
}

async fn cell(web: &Web, token: &str, session: &str, code: &str) -> Value {
    web.caller(Some(token)).cell(session, code).await.json
}

async fn close(web: &Web, session: &str) {
    web.caller(Some("a-token")).close(session).await;
}

/// Begins a cell, and waits until it has made the file `begun`.
async fn begin(web: &Web, session: &str, code: &str) -> JoinHandle<Answer> {
    let caller = web.caller(Some("a-token"));
    let arguments = json!({ "session_id": session, "code": code, "timeout": 300 });
    let answer = tokio::spawn(async move { caller.call("execute_code", arguments).await });
    let files = async || web.caller(Some("a-token")).files(session).await;
    until("it runs", async || files().await.iter().any(|file| file.0 == "begun")).await;
    answer
}

/// Makes the file `go` in a session that has no server, and waits until its run has made the file `over`.
async fn let_go(session: &str) {
    let [container] = &containers(session)[..] else { panic!("one container") };
    let inside = |words: &[&str]| {
        let output = Command::new("docker").args(["exec", container]).args(words).output();
        output.expect("the docker client runs").status.success()
    };
    assert!(inside(&["touch", "/mnt/data/go"]));
    until("it is over", async || inside(&["test", "-e", "/mnt/data/over"])).await;
}

async fn ended(mut web: Web, signal: &str) {
    web.signal(signal);
    web.exit_code().await;
}

support::tests! {
    the_next_server_goes_on_with_what_a_killed_one_has_left => goes_on("held-killed", "KILL");
    the_next_server_goes_on_with_what_one_that_was_told_to_end_has_left =>
        goes_on("held-ended", "TERM");
}

async fn goes_on(test: &str, signal: &str) {
    let (first, settings, id, _folder) = first(test).await;
    let made = "import itertools\nnumbers = itertools.count(5)\nnext(numbers)\nopen('kept.txt', 'w').write('x')";
    let made = cell(&first, "a-token", &id, made).await;
    assert_eq!(made["status"], "success", "{made}");
    let javascript = json!({ "session_id": id, "language": "javascript", "code": "let seven = 7" });
    let alice = first.caller(Some("a-token"));
    alice.call("execute_code", javascript).await.ok();
    let of_language = name("held-language");
    let created = json!({ "session_id": of_language, "language": "javascript" });
    alice.call("create_session", created).await.ok();
    let listed = alice.call("list_artifacts", json!({ "session_id": id })).await.json;
    let url = support::url_in(&listed, "kept.txt");
    let opened = alice.open().await;
    let of_mcp = opened.call("execute_code", json!({ "code": "y = 8" })).await.ok();
    let mcp_session = opened.id.clone();
    ended(first, signal).await;
    assert_eq!(containers(&id).len(), 1, "it holds");

    let second = start(&settings, &[]).await;
    // The second server has another address in tests.
    let path = &url[url.find("/files").expect("files")..];
    let downloaded = support::http("GET", &format!("{}{path}", second.base)).await;
    assert_eq!((downloaded.status, &*downloaded.body), (200, &b"x"[..]));
    let next = cell(&second, "a-token", &id, "next(numbers)").await;
    assert_eq!((&next["result"], &next["new_session"]), (&json!("6"), &Value::Null), "{next}");
    let seven = json!({ "session_id": id, "language": "javascript", "code": "seven" });
    let seven = second.caller(Some("a-token")).call("execute_code", seven).await.json;
    assert_eq!(seven["result"], "7", "{seven}");
    let language = cell(&second, "a-token", &of_language, "typeof 1").await;
    assert_eq!(language["result"], "'number'", "{language}");
    let undo = json!({ "session_id": id, "undo": 1 });
    let undone = second.caller(Some("a-token")).call("reset_workspace", undo).await.json;
    assert_eq!(undone["status"], "undone", "{undone}");
    assert_eq!(cell(&second, "a-token", &id, "next(numbers)").await["result"], "6");

    // The caller with an MCP session can continue it; another caller gets 404.
    let (alice, bob) = (second.caller(Some("a-token")), second.caller(Some("b-token")));
    let stolen = Mcp { caller: &bob, id: mcp_session.clone() };
    let ping = json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" });
    assert_eq!(stolen.post(&ping).await.status, 404);
    let same = Mcp { caller: &alice, id: mcp_session };
    let y = same.call("execute_code", json!({ "code": "y" })).await.json;
    assert_eq!((&y["result"], &y["session_id"]), (&json!("8"), &of_mcp["session_id"]), "{y}");
    let headers = [("Mcp-Session-Id", &*same.id)];
    assert_eq!(alice.send("DELETE", "/mcp", &headers, &[]).await.status, 204);
    assert_eq!(same.post(&ping).await.status, 404);
    let of_mcp = text(&of_mcp["session_id"]);
    until("its workspace is gone", async || containers(of_mcp).is_empty()).await;

    // A caller who had no part in the session gets a new one.
    let another = cell(&second, "b-token", &id, "numbers").await;
    assert_eq!(another["new_session"], true, "{another}");
    second.caller(Some("b-token")).close(&id).await;
    for id in [&id, &of_language] {
        close(&second, id).await;
    }
    assert_eq!(containers(&id), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_runs_when_a_server_is_replaced_runs_on() {
    let (first, settings, id, _folder) = first("held-run").await;
    cell(&first, "a-token", &id, "x = 1").await;
    let code = "import os, time\nopen('begun', 'w').close()\n\
                while not os.path.exists('go'): time.sleep(.01)\nx = 2";
    let answer = begin(&first, &id, code).await;
    ended(first, "TERM").await;
    // The connection may have ended before the answer.
    if let Ok(answer) = answer.await {
        assert_eq!(answer.error(), "sandbox_unavailable", "{:?}", answer.json);
        assert!(text(&answer.json["message"]).contains("goes on"), "{:?}", answer.json);
    }

    let second = start(&settings, &[]).await;
    let busy = cell(&second, "a-token", &id, "x").await;
    assert_eq!(busy["error"], "session_busy", "{busy}");
    second.caller(Some("a-token")).upload(&id, "go", b"").await.ok();
    until("it is over", async || cell(&second, "a-token", &id, "x").await["result"] == "2").await;
    ended(second, "TERM").await;
    let third = start(&settings, &[]).await;
    let next = cell(&third, "a-token", &id, "x + 1").await;
    assert_eq!(next["result"], "3", "{next}");
    close(&third, &id).await;
}

/// The call of a session's last run that waits for a person.
async fn approval(web: &Web, session: &str) -> Value {
    let (alice, mut found) = (web.caller(Some("a-token")), Value::Null);
    until("a call waits", async || {
        let seen = alice.send("GET", &format!("/sessions/{session}"), &[], &[]).await;
        found = if seen.status == 200 {
            seen.json()["runs"][0]["approvals"][0].clone()
        } else {
            Value::Null
        };
        !found.is_null()
    })
    .await;
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_waits_for_a_person_outlives_a_killed_server_and_is_made_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let upstream = concat!(env!("CARGO_MANIFEST_DIR"), "/upstream/server.py");
    let notes = folder.path().join("notes");
    std::fs::create_dir(&notes).expect("made");
    let config = folder.path().join("config.yaml");
    let args = format!("[\"{upstream}\", old, \"{}\"]", notes.display());
    let written =
        format!("upstreams:\n  crm: {{ command: python3, args: {args}, ask: [create_*] }}\n");
    std::fs::write(&config, written).expect("written");
    let mut settings = settings(&folder);
    settings.push(("SANDBOX_CONFIG_FILE", config.display().to_string()));
    let (first, id) = (start(&settings, &[]).await, name("held-approval"));
    let code = "import tools\nprint(tools.crm.create_contact(text='x'))";
    let arguments = json!({ "session_id": id, "code": code, "timeout_s": 10, "background": true });
    let alice = first.caller(Some("a-token"));
    let run = alice.call("run_python", arguments).await.ok()["run_id"].clone();
    let before = approval(&first, &id).await;
    ended(first, "KILL").await;

    let second = start(&settings, &[]).await;
    let now = approval(&second, &id).await;
    assert_eq!((&now["tool"], &now["arguments"]), (&before["tool"], &before["arguments"]));
    let made = || {
        let names =
            std::fs::read_dir(&notes).expect("a folder").map(|it| it.expect("read").file_name());
        names.filter(|name| name.to_string_lossy().starts_with("create_contact")).count()
    };
    assert_eq!(made(), 0);
    let target = format!("/sessions/{id}/approvals/{}", support::text(&now["approval_id"]));
    let alice = second.caller(Some("a-token"));
    let headers = [("Content-Type", "application/json")];
    let decided = alice.send("POST", &target, &headers, br#"{"decision": "once"}"#).await;
    assert_eq!(decided.status, 204);
    let wanted = json!({ "execution_id": run, "wait_s": 50 });
    let result = alice.call("get_execution_result", wanted).await.ok();
    assert_eq!((&result["stdout"], made()), (&json!("done\n"), 1), "{result}");
    close(&second, &id).await;
}

support::tests! {
    the_next_server_has_the_result_of_a_run_that_ends_with_it => result(End::Next);
    the_next_server_has_the_result_of_a_run_that_has_ended_without_a_server => result(End::Between);
    the_next_server_has_the_result_of_a_run_that_has_ended_with_the_last => result(End::Last);
}

/// When a run ends whose server is replaced.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Last,
    Between,
    Next,
}

async fn result(end: End) {
    let (first, settings, id, _folder) = first("held-result").await;
    let alice = first.caller(Some("a-token"));
    let code = "import os, time\nopen('begun', 'w').close()\nprint('at work', flush=True)\n\
                while not os.path.exists('go'): time.sleep(.01)\nopen('over', 'w').close()\n6 * 7";
    let cell = json!({ "session_id": id, "code": code, "background": true });
    let run = alice.call("execute_code", cell).await.ok()["run_id"].clone();
    let files = async || alice.files(&id).await;
    until("it runs", async || files().await.iter().any(|file| file.0 == "begun")).await;
    let go = async |web: &Web| web.caller(Some("a-token")).upload(&id, "go", b"").await.ok();
    let ask = |wait_s| json!({ "execution_id": run, "wait_s": wait_s });
    if end == End::Last {
        go(&first).await;
        alice.call("get_execution_result", ask(50)).await.ok();
    }
    ended(first, "KILL").await;
    if end == End::Between {
        let_go(&id).await;
    }
    let second = start(&settings, &[]).await;
    let (alice, bob) = (second.caller(Some("a-token")), second.caller(Some("b-token")));
    if end == End::Next {
        until("its output is seen", async || {
            let seen = alice.call("get_execution_result", ask(0)).await.ok();
            assert_eq!((&seen["status"], &seen["run_id"]), (&json!("running"), &run));
            seen["stdout"] == "at work\n"
        })
        .await;
        go(&second).await;
    }
    let result = alice.call("get_execution_result", ask(50)).await.ok();
    assert_eq!((&result["run_id"], &result["status"]), (&run, &json!("success")), "{result}");
    assert_eq!((&result["stdout"], &result["result"]), (&json!("at work\n"), &json!("42")));
    let url = support::url_in(&result, "over");
    assert_eq!(support::http("GET", &url).await.status, 200, "{result}");
    let his = bob.call("get_execution_result", ask(0)).await.ok();
    assert_eq!(his["status"], "not_found");
    close(&second, &id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_ends_while_there_is_no_server_is_over_for_the_next() {
    let (first, settings, id, _folder) = first("held-over").await;
    cell(&first, "a-token", &id, "x = 1").await;
    let code = "import os, time\nopen('begun', 'w').close()\n\
                while not os.path.exists('go'): time.sleep(.01)\nx = 2\nopen('over', 'w').close()";
    let answer = begin(&first, &id, code).await;
    ended(first, "KILL").await;
    drop(answer);
    let_go(&id).await;
    // The reply is ready, and there is no server to take it.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let second = start(&settings, &[]).await;
    let next = cell(&second, "a-token", &id, "x").await;
    assert_eq!((&next["result"], &next["new_session"]), (&json!("2"), &Value::Null), "{next}");
    close(&second, &id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workspace_of_a_name_and_limits_of_its_own_go_on() {
    let (first, settings, id, _folder) = first("held-limits").await;
    let caller = first.caller(Some("a-token")).at("?workspace=sales");
    let made = caller.call("execute_code", json!({ "code": "v = 41" })).await.json;
    let own = json!({ "session_id": id, "memory_limit_mb": 128, "timeout_seconds": 600 });
    first.caller(Some("a-token")).call("create_session", own).await.ok();
    ended(first, "KILL").await;
    let second = start(&settings, &[]).await;
    let caller = second.caller(Some("a-token")).at("?workspace=sales");
    let next = caller.call("execute_code", json!({ "code": "v + 1" })).await.json;
    assert_fields!(next, { "result": "42", "session_id": made["session_id"], "new_workspace": null });
    let alice = second.caller(Some("a-token"));
    let info = alice.call("get_workspace_info", json!({ "session_id": id })).await.json;
    assert!(info["expires_at"].as_str() > info["created_at"].as_str(), "{info}");
    for id in [text(&next["session_id"]), &id] {
        close(&second, id).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_nobody_comes_for_ends_by_itself() {
    let folder = tempfile::tempdir().expect("a folder");
    let (mut settings, id) = (settings(&folder), name("held-alone"));
    settings[0].1 = "2".into();
    let first = start(&settings, &[]).await;
    cell(&first, "a-token", &id, "x = 1").await;
    ended(first, "KILL").await;
    until("it ends", async || containers(&id).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_another_key_gets_nothing_and_ends_nothing() {
    let (folder, other) =
        (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("one"));
    let (settings, others, id) = (settings(&folder), settings(&other), name("held-key"));
    let first = start(&settings, &[]).await;
    cell(&first, "a-token", &id, "x = 1").await;
    ended(first, "KILL").await;
    let stranger = start(&others, &[]).await;
    let found = cell(&stranger, "a-token", &id, "x").await;
    assert_fields!(found, { "new_session": true, "status": "execution_error" });
    close(&stranger, &id).await;
    let second = start(&settings, &[]).await;
    assert_eq!(cell(&second, "a-token", &id, "x").await["result"], "1");
    close(&second, &id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_can_neither_take_the_agents_place_nor_come_in_by_its_door() {
    let (first, settings, id, _folder) = first("held-door").await;
    let code = "import socket, array\n\
        NAME = b'\\0llm-sandbox-agent'\n\
        try: socket.socket(socket.AF_UNIX).bind(NAME); print('bound')\n\
        except OSError as error: print(error.strerror)\n\
        a, b = socket.socketpair()\n\
        s = socket.socket(socket.AF_UNIX); s.settimeout(5)\n\
        s.connect(NAME)\n\
        try:\n    s.sendmsg([b'.'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [a.fileno(), a.fileno()]))])\n    print(s.recv(1))\n\
        except OSError as error: print('turned away')";
    let tried = cell(&first, "a-token", &id, code).await;
    let stdout = text(&tried["stdout"]);
    assert!(stdout.starts_with("Address already in use\n"), "{tried}");
    assert!(stdout.ends_with("turned away\n") || stdout.ends_with("b''\n"), "{tried}");
    // While no server is connected, a thread of the program keeps trying: the next server must not be affected.
    let code = "import threading, time\n\
        def knock():\n    while True:\n        try:\n            t = socket.socket(socket.AF_UNIX); t.connect(NAME)\n\
        \x20           t.sendmsg([b'.'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [a.fileno(), a.fileno()]))])\n\
        \x20       except OSError: pass\n        time.sleep(.001)\n\
        threading.Thread(target=knock, daemon=True).start()\n\
        import os\nopen('begun', 'w').close()\n\
        while not os.path.exists('go'): time.sleep(.01)";
    let answer = begin(&first, &id, code).await;
    ended(first, "KILL").await;
    drop(answer);
    let second = start(&settings, &[]).await;
    second.caller(Some("a-token")).upload(&id, "go", b"").await.ok();
    until("it is over", async || cell(&second, "a-token", &id, "1 + 1").await["result"] == "2")
        .await;
    close(&second, &id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_waits_for_a_session_that_could_not_be_taken_over_at_once() {
    let (first, settings, id, _folder) = first("held-late").await;
    cell(&first, "a-token", &id, "x = 41").await;
    // Kills the first five processes that come from outside: one more than a server sends when it starts.
    let code = "import os, signal\nopen('begun', 'w').close()\nended = set()\n\
                while len(ended) < 5:\n    for pid in filter(str.isdigit, os.listdir('/proc')):\n        try:\n\
        \x20           if int(pid) == 1 or int(open(f'/proc/{pid}/stat').read().rsplit(') ', 1)[1].split()[1]): continue\n\
        \x20           os.kill(int(pid), signal.SIGKILL)\n            ended.add(pid)\n        except OSError: pass\nx += 1";
    let answer = begin(&first, &id, code).await;
    ended(first, "KILL").await;
    drop(answer);
    let second = start(&settings, &[]).await;
    let next = cell(&second, "a-token", &id, "x").await;
    assert_eq!(next["new_session"], Value::Null, "{next}");
    until("it is over", async || cell(&second, "a-token", &id, "x").await["result"] == "42").await;
    close(&second, &id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_in_a_sandbox_can_look_into_what_brings_a_stream() {
    let folder = tempfile::tempdir().expect("a folder");
    let (settings, id) = (settings(&folder), name("held-secret"));
    let mut server = start(&settings, &[]).await;
    let code = "import os\npath = '/opt/sandbox/connect'\n\
                (os.access(path, os.X_OK), os.access(path, os.R_OK), oct(os.stat(path).st_mode & 0o7777))";
    let mode = cell(&server, "a-token", &id, code).await;
    assert_eq!(mode["result"], "(True, False, '0o111')", "{mode}");
    // Looks all the time for processes that are started from outside (they have no parent here), and tries to open
    // their files. It reports each process that it has seen.
    let code = "import os, time\nopen('begun', 'w').close()\nseen, opened = set(), []\n\
                while not os.path.exists('go'):\n    for pid in filter(str.isdigit, os.listdir('/proc')):\n        try:\n\
        \x20           if int(pid) == 1 or int(open(f'/proc/{pid}/stat').read().rsplit(') ', 1)[1].split()[1]): continue\n\
        \x20           seen.add(pid)\n\
        \x20           for what in 'environ', 'mem', 'fd/0', 'fd/1':\n                try: opened.append(open(f'/proc/{pid}/{what}', 'rb', 0))\n\
        \x20               except OSError: pass\n        except OSError: pass\n";
    let answer = begin(&server, &id, code).await;
    for _ in 0..4 {
        ended(server, "KILL").await;
        server = start(&settings, &[]).await;
    }
    drop(answer);
    server.caller(Some("a-token")).upload(&id, "go", b"").await.ok();
    until("it is over", async || cell(&server, "a-token", &id, "1 + 1").await["result"] == "2")
        .await;
    let found =
        cell(&server, "a-token", &id, "(len(seen) > 0, [file.name for file in opened])").await;
    assert_eq!(found["result"], "(True, [])", "{found}");
    close(&server, &id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_run_spares_who_comes_from_outside_for_as_long_as_a_stream_takes() {
    let server = Server::start_with(On::Docker, &[("SANDBOX_POOL_SIZE", "0")]).await;
    let id = name("held-visitor");
    server.run(&id, "print(1)").await;
    let [container] = &containers(&id)[..] else { panic!("one container") };
    let docker = |words: &[&str]| {
        let output = Command::new("docker").args(words).output().expect("the docker client runs");
        String::from_utf8(output.stdout).expect("text")
    };
    docker(&["exec", "--detach", container, "sleep", "1000"]);
    let is_there = || docker(&["top", container]).contains("sleep 1000");
    until("it runs", async || is_there()).await;
    for _ in 0..2 {
        // The run leaves a process that the agent has to clean up.
        let code = "import subprocess\nsubprocess.Popen(['sleep', '999'])";
        assert_eq!(server.run(&id, code).await["outcome"], "ok");
        assert!(!docker(&["top", container]).contains("sleep 999"));
        assert!(is_there());
    }
    until("it is taken for no visitor any more", async || {
        server.run(&id, "print(1)").await;
        !is_there()
    })
    .await;
    server.call("close_session", json!({ "session_id": id })).await.ok();
}

/// Forwards connections to the engine's socket, until it is cut.
struct Cable {
    folder: tempfile::TempDir,
    carried: std::sync::Arc<Mutex<Vec<AbortHandle>>>,
}

impl Cable {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let listener = UnixListener::bind(folder.path().join("engine.sock")).expect("bound");
        listener.set_nonblocking(true).expect("set");
        let listener = tokio::net::UnixListener::from_std(listener).expect("listens");
        let carried = std::sync::Arc::<Mutex<Vec<AbortHandle>>>::default();
        let all = carried.clone();
        tokio::spawn(async move {
            while let Ok((mut near, _)) =
                listener.accept().await as std::io::Result<(UnixStream, SocketAddr)>
            {
                let carrying = tokio::spawn(async move {
                    let mut far =
                        UnixStream::connect("/var/run/docker.sock").await.expect("the engine");
                    let _ = copy_bidirectional(&mut near, &mut far).await;
                });
                all.lock().expect("nobody panics").push(carrying.abort_handle());
            }
        });
        Self { folder, carried }
    }

    async fn server(&self) -> Server {
        let host = format!("unix://{}", self.folder.path().join("engine.sock").display());
        let hold = [("SANDBOX_HOLD_S", "60"), ("SANDBOX_POOL_SIZE", "0")];
        Server::start_with(On::Docker, &[&[("DOCKER_HOST", &*host)], &hold[..]].concat()).await
    }

    fn cut(&self) {
        for carrying in self.carried.lock().expect("nobody panics").drain(..) {
            carrying.abort();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_breaks_off_in_a_run_is_replaced_and_nobody_notices() {
    let cable = Cable::new();
    let (server, id) = (cable.server().await, name("held-cable"));
    let cell = async |code: &str| server.cell(&id, code).await.json;
    assert_eq!(cell("x = [0]").await["status"], "success");
    for round in 1..=5 {
        // During a run that prints all the time and changes files.
        let running = cell(
            "import time\nfor i in range(100): print(i); time.sleep(.01)\nx.append(len(x))\n\
             open(f'{len(x)}.txt', 'w').write('x')\nx",
        );
        let cutting = async {
            let begun = async || {
                let peek = server.files_if_any(&id).await;
                peek.len() >= round - 1
            };
            until("files are listed", begun).await;
            tokio::time::sleep(Duration::from_millis(100 * round as u64)).await;
            cable.cut();
        };
        let (answer, ()) = tokio::join!(running, cutting);
        assert_eq!(answer["status"], "success", "round {round}: {answer}");
        assert!(text(&answer["stdout"]).ends_with("99\n"), "{answer}");
        let expected: Vec<_> = (0..=round).collect();
        assert_eq!(answer["result"], format!("{expected:?}"), "once and not twice");
    }
    // During uploads.
    let large = vec![b'y'; 8 << 20];
    for round in 0..3 {
        let file = format!("large-{round}");
        let uploading = server.upload(&id, &file, &large);
        let cutting = async {
            tokio::time::sleep(Duration::from_millis(30 * round)).await;
            cable.cut();
        };
        let (uploaded, ()) = tokio::join!(uploading, cutting);
        assert_eq!(uploaded.ok()["size_bytes"], large.len(), "round {round}");
    }
    server.call("close_session", json!({ "session_id": id })).await.ok();
    assert_eq!(containers(&id), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_dies_while_it_has_no_stream_is_reported() {
    let cable = Cable::new();
    let (server, id) = (cable.server().await, name("held-dies"));
    server.upload(&id, "a", b"1").await.ok();
    let [container] = &containers(&id)[..] else { panic!("one container") };
    let killed = Command::new("docker").args(["kill", container]).output();
    assert!(killed.expect("the docker client runs").status.success());
    cable.cut();
    until("it is known", async || {
        let answer = server.call("list_artifacts", json!({ "session_id": id })).await;
        matches!(answer.error(), "session_not_found" | "sandbox_died")
    })
    .await;
}
