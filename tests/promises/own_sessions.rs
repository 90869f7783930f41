//! Sessions that are created explicitly, with limits of their own; and ending sessions and their runs.

use std::{cell::RefCell, process::Command};

use serde_json::{Value, json};
use support::{
    On, PRELOADED, Server, assert_fields, containers, name, on_all, text, until, web::*,
};

on_all! {
    a_session_is_created_used_and_destroyed,
    a_session_has_the_language_that_it_was_created_with,
    a_session_gets_the_default_limits_and_may_ask_for_more,
    a_run_is_cancelled_from_a_second_connection,
    a_run_is_cancelled_over_stdio;
    on docker alone:
    notes_are_the_same_where_no_library_is_loaded_ahead,
    a_container_has_the_memory_that_its_session_asked_for,
    a_pooled_sandbox_is_not_taken_for_limits_of_ones_own,
}

const ALICE_AND_BOB: (&str, &str) = ("SANDBOX_AUTH_TOKENS", "alice:secret-a,bob:secret-b");
const COLD: (&str, &str) = ("SANDBOX_PRELOAD", "none");

const ENDLESS: &str = "
import time
open('started', 'w').close()
while True: time.sleep(1)
";

#[track_caller]
fn time(value: &Value) -> jiff::Timestamp {
    text(value).parse().expect("a time")
}

async fn a_session_has_the_language_that_it_was_created_with(on: On) {
    let (server, id) = (Server::start(on).await, name("language"));
    let created = json!({ "session_id": id, "language": "javascript" });
    assert_eq!(server.call("create_session", created).await.ok()["language"], "javascript");
    let cell = async |code: &str, language: Option<&str>| {
        let mut cell = json!({ "session_id": id, "code": code });
        if let Some(language) = language {
            cell["language"] = language.into();
        }
        server.call("execute_code", cell).await.ok()
    };
    assert_eq!(cell("const n = 1; [typeof n, n]", None).await["result"], "[ 'number', 1 ]");
    assert_eq!(cell("(1, 2)", Some("python")).await["result"], "(1, 2)");
    assert_eq!(cell("```python\n(1, 2)\n```", None).await["result"], "(1, 2)", "the code says so");
    let look = server.call("get_workspace_info", json!({ "session_id": id })).await.ok();
    assert_eq!((&look["language"], &look["variables"]), (&json!("javascript"), &json!(["n"])));
    let reset = server.call("reset_workspace", json!({ "session_id": id })).await.ok();
    assert_eq!(reset["language"], "javascript");
    assert_eq!(server.run(&id, "print(1)").await["stdout"], "1\n", "programs are Python's");
}

async fn a_session_is_created_used_and_destroyed(on: On) {
    let server = Server::start(on).await;
    let created = server.call("create_session", json!({})).await.ok();
    assert_eq!(created["language"], "python");
    let lives = time(&created["expires_at"]) - time(&created["created_at"]);
    let seconds = lives.total(jiff::Unit::Second).expect("seconds");
    assert!((1795.0..=1805.0).contains(&seconds), "{created}");
    let id = text(&created["session_id"]);
    assert!(id.starts_with("sess_"), "{id}");
    let run = server.run(id, "open('a', 'w').write('1')").await;
    assert!(run.get("new_session").is_none(), "it was there: {run}");
    assert_eq!(server.files(id).await, [("a".to_owned(), 1)]);

    let own = name("own");
    let arguments = json!({ "session_id": own, "timeout_seconds": 90, "memory_limit_mb": 256 });
    let named = server.call("create_session", arguments.clone()).await.ok();
    assert_eq!(named["session_id"], own);
    let lives = time(&named["expires_at"]) - time(&named["created_at"]);
    let seconds = lives.total(jiff::Unit::Second).expect("seconds");
    assert!((85.0..=95.0).contains(&seconds), "{named}");
    let again = server.call("create_session", arguments).await;
    assert_eq!(again.error(), "invalid_argument");
    assert!(text(&again.json["message"]).contains("destroy_session"), "{}", again.json);

    for session in [id, &own] {
        let arguments = json!({ "session_id": session });
        let destroyed = server.call("destroy_session", arguments.clone()).await.ok();
        assert_eq!(destroyed, json!({ "session_id": session, "status": "destroyed" }));
        assert!(on != On::Docker || containers(session).is_empty(), "it is gone with the answer");
        let gone = server.call("destroy_session", arguments).await;
        assert_eq!(gone.error(), "session_not_found");
    }
    server.call("create_session", json!({ "session_id": own })).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_can_be_asked_for_than_the_settings_allow() {
    let server = Server::start_with(On::Local, &[COLD]).await;
    for (argument, given, used) in [
        ("memory_limit_mb", json!(4096), "512 was used"),
        ("memory_limit_mb", json!(1), "64 was used"),
        ("memory_limit_mb", json!(-5), "64 was used"),
        ("timeout_seconds", json!(1), "60 was used"),
        ("timeout_seconds", json!(1_000_000), "1800 was used"),
    ] {
        let created = server.call("create_session", json!({ argument: given })).await.ok();
        assert!(created["notes"].to_string().contains(used), "{created}");
        let arguments = json!({ "session_id": created["session_id"] });
        server.call("destroy_session", arguments).await.ok();
    }
    for (argument, given, code) in [
        ("memory_limit_mb", json!("much"), "invalid_argument"),
        ("memory_limit_mb", json!(64.5), "invalid_argument"),
        ("timeout_seconds", json!([]), "invalid_argument"),
        ("session_id", json!("a b"), "invalid_session_id"),
        ("session_id", json!("__stateless__"), "invalid_argument"),
        ("session_id", json!("sess_0123456789ab"), "session_not_found"),
        ("language", json!("cobol"), "unsupported_language"),
        ("more", json!(1), "invalid_argument"),
    ] {
        let refused = server.call("create_session", json!({ argument: given })).await;
        assert_eq!(refused.error(), code, "{argument}: {given}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_default_times_hold_for_those_who_ask_for_none_and_both_are_described() {
    let settings = [
        COLD,
        ("SANDBOX_DEFAULT_MEMORY", "128MB"),
        ("SANDBOX_DEFAULT_DATA", "10MB"),
        ("SANDBOX_MAX_UPLOAD_BYTES", "5MB"),
        ("SANDBOX_DEFAULT_SESSION_TTL_M", "5"),
        ("SANDBOX_DEFAULT_TIMEOUT_S", "1"),
        ("SANDBOX_EXEC_TIMEOUT_S", "50"),
    ];
    let server = Server::start_with(On::Local, &settings).await;
    for (asked, minutes) in [(json!({}), 5), (json!({ "timeout_seconds": 1800 }), 30)] {
        let created = server.call("create_session", asked).await.ok();
        let lives = time(&created["expires_at"]) - time(&created["created_at"]);
        let lives = lives.round(jiff::Unit::Minute).expect("a span");
        assert_eq!(lives.get_minutes(), minutes, "{created}");
    }
    let sleep = "import time; time.sleep(1.5)";
    let usual = server.call("run_python", json!({ "code": sleep })).await.ok();
    assert_eq!(usual["outcome"], "timeout", "{usual}");
    let longer = server.call("run_python", json!({ "code": sleep, "timeout_s": 20 })).await.ok();
    assert_eq!(longer["outcome"], "ok", "{longer}");
    let usual = server.call("execute_code", json!({ "code": sleep })).await.ok();
    assert_eq!(usual["status"], "timeout", "{usual}");

    let tools = server.tools().await;
    let described = |tool: &str, argument: &str| {
        let listed = tools.iter().find(|listed| listed["name"] == tool);
        let listed = listed.unwrap_or_else(|| panic!("{tool} is listed"));
        text(&listed["inputSchema"]["properties"][argument]["description"]).to_owned()
    };
    assert_eq!(described("create_session", "memory_limit_mb"), "64 to 512; otherwise 128.");
    assert_eq!(described("create_session", "disk_limit_mb"), "1 to 256; otherwise 10.");
    assert!(described("create_session", "timeout_seconds").contains("30 min; otherwise 5 min"));
    assert_eq!(described("run_python", "timeout_s"), "Default 1, limit 50.");
    assert_eq!(described("execute_code", "timeout"), "Seconds; default 1, limit 50.");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_language_that_is_turned_off_is_neither_listed_nor_run() {
    let settings = [COLD, ("SANDBOX_PYTHON", "false")];
    let server = Server::start_with(On::Local, &settings).await;
    let names: Vec<_> = server.tools().await.iter().map(|tool| tool["name"].clone()).collect();
    assert!(!names.contains(&json!("run_python")), "{names:?}");
    let listed = server.call("list_runtimes", json!({})).await.ok();
    assert!(!listed.to_string().contains("\"python\""), "{listed}");
    for (tool, arguments) in [
        ("run_python", json!({ "code": "1" })),
        ("execute_code", json!({ "code": "1", "language": "python" })),
        ("create_session", json!({ "language": "python" })),
    ] {
        let refused = server.call(tool, arguments).await;
        assert_eq!(refused.error(), "unsupported_language", "{tool}: {}", refused.json);
    }
    let cell = json!({ "code": "echo of $((1 + 1))", "language": "bash" });
    assert_eq!(server.call("execute_code", cell).await.ok()["stdout"], "of 2\n");
}

async fn notes_are_the_same_where_no_library_is_loaded_ahead() {
    let (server, id) = (Server::start_with(On::Docker, &[PRELOADED]).await, name("bare"));
    let arguments = json!({ "session_id": id, "memory_limit_mb": 256 });
    server.call("create_session", arguments).await.ok();
    let code = "import pandas as pd\npd.DataFrame({'Cost': [1]})['cost']";
    // The first run may come before the interpreter has loaded its libraries.
    until("a run is warm", async || {
        let run = server.run(&id, code).await;
        run["notes"] == json!(["The columns are: \"Cost\"."])
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_created_session_counts_as_any_other_and_is_its_callers() {
    let settings = [
        ALICE_AND_BOB,
        ("SANDBOX_MAX_SESSIONS_PER_CLIENT", "1"),
        ("SANDBOX_MAX_HIBERNATED", "0"),
        COLD,
    ];
    let (_web, alice, bob) = Web::of_two(On::Local, &settings).await;
    let shared = json!({ "session_id": name("shared") });
    alice.call("create_session", shared.clone()).await.ok();
    let refused = alice.call("create_session", json!({})).await;
    assert_eq!(refused.error(), "max_sessions");
    assert_eq!(bob.call("destroy_session", shared.clone()).await.error(), "session_not_found");
    bob.call("create_session", shared.clone()).await.ok();
    alice.call("destroy_session", shared.clone()).await.ok();
    alice.call("create_session", json!({})).await.ok();
    bob.call("destroy_session", shared).await.ok();
}

/// The id of the run in progress, as the page shows it, once its program has begun.
async fn running(caller: &Caller, session: &str) -> String {
    until("the program runs", async || {
        let listed = caller.call("list_artifacts", json!({ "session_id": session })).await;
        listed.json["artifacts"].to_string().contains("started")
    })
    .await;
    let shown = caller.send("GET", &format!("/sessions/{session}"), &[], &[]).await.json();
    let runs = shown["runs"].as_array().expect("a list");
    let run = runs.iter().find(|run| run.get("outcome").is_none()).expect("one in progress");
    text(&run["run_id"]).to_owned()
}

async fn a_run_is_cancelled_from_a_second_connection(on: On) {
    let web = Web::start(on, &[ALICE_AND_BOB]).await;
    let (alice, bob) = (web.caller(Some("secret-a")), web.caller(Some("secret-b")));
    let second = web.caller(Some("secret-a"));
    for (tool, status) in [("run_python", "outcome"), ("execute_code", "status")] {
        let session = name("cancelled");
        let call = json!({ "session_id": session, "code": ENDLESS });
        let cancelling = async {
            let run = running(&second, &session).await;
            let cancel = json!({ "execution_id": run });
            let his = bob.call("cancel_execution", cancel.clone()).await.ok();
            assert_eq!(his, json!({ "execution_id": run, "status": "not_found" }));
            let mcp = second.open().await;
            let hers = mcp.call("cancel_execution", cancel.clone()).await.ok();
            assert_eq!(hers, json!({ "execution_id": run, "status": "cancelled" }));
            // The session is free at once.
            let next = second.run(&session, "print(1)").await;
            assert_eq!(next["stdout"], "1\n");
            let again = second.call("cancel_execution", cancel.clone()).await.ok();
            assert_eq!(again["status"], "finished");
            run
        };
        let (answer, run) = tokio::join!(alice.call(tool, call), cancelling);
        let answer = answer.ok();
        assert_eq!((&answer["run_id"], &answer[status]), (&json!(run), &json!("cancelled")));
        let close = json!({ "session_id": session });
        alice.call("close_session", close).await.ok();
        let cancel = json!({ "execution_id": run });
        let later = alice.call("cancel_execution", cancel.clone()).await.ok();
        assert_eq!(later["status"], "finished", "also when its session is gone");
        let his = bob.call("cancel_execution", cancel).await.ok();
        assert_eq!(his["status"], "not_found");
    }
    for unknown in ["", "run_20260206T123456Z_a1b2", "run\u{1b}[2J", &"x".repeat(10_000)] {
        let cancel = json!({ "execution_id": unknown });
        assert_eq!(alice.call("cancel_execution", cancel).await.ok()["status"], "not_found");
    }
}

async fn a_run_is_cancelled_over_stdio(on: On) {
    let server = Server::start(on).await;
    let cancelling = async {
        // `get_workspace_info` answers during a run, and tells its id.
        let found = RefCell::new(None);
        until("the program runs", async || {
            let info = server.call("get_workspace_info", json!({})).await;
            let history = info.json["history"].as_array().cloned().unwrap_or_default();
            let run = history.into_iter().find(|run| run["status"] == "running");
            found.replace(run.map(|run| text(&run["run_id"]).to_owned()));
            found.borrow().is_some()
        })
        .await;
        let run = found.take();
        let cancel = json!({ "execution_id": run });
        assert_eq!(server.call("cancel_execution", cancel).await.ok()["status"], "cancelled");
        run
    };
    let call = json!({ "code": ENDLESS });
    let (answer, run) = tokio::join!(server.call("execute_code", call), cancelling);
    let answer = answer.ok();
    assert_eq!((&answer["run_id"], &answer["status"]), (&json!(run), &json!("cancelled")));
}

/// The host configuration of the session's only container, as Docker reports it.
fn inspected(session: &str) -> Value {
    let [container] = &containers(session)[..] else { panic!("one container of {session}") };
    let shown = Command::new("docker").args(["inspect", container]).output().expect("it runs");
    let shown: Value = serde_json::from_slice(&shown.stdout).expect("JSON");
    shown[0]["HostConfig"].clone()
}

const LARGE: &str = "open('f', 'wb').write(bytes(12_000_000)); print('written')";
const BOMB: &str = "x = bytearray(200_000_000); print(len(x))";

async fn a_session_gets_the_default_limits_and_may_ask_for_more(on: On) {
    let settings = [
        COLD,
        ("SANDBOX_DEFAULT_MEMORY", "150MB"),
        ("SANDBOX_DEFAULT_DATA", "10MB"),
        ("SANDBOX_MAX_UPLOAD_BYTES", "5MB"),
    ];
    // Plain processes have no limit of memory or of files.
    if on.is_plain() {
        return;
    }
    let server = Server::start_with(on, &settings).await;
    let usual = name("usual");
    let run = server.run(&usual, BOMB).await;
    assert_eq!(run["outcome"], "out_of_memory", "{run}");
    let run = server.run(&usual, LARGE).await;
    assert!(text(&run["stderr"]).contains("No space left"), "{run}");
    let more = name("more");
    let most = json!({ "session_id": more, "memory_limit_mb": 512, "disk_limit_mb": 50 });
    server.call("create_session", most).await.ok();
    assert_eq!(server.run(&more, BOMB).await["stdout"], "200000000\n");
    assert_eq!(server.run(&more, LARGE).await["stdout"], "written\n");
}

async fn a_container_has_the_memory_that_its_session_asked_for() {
    let (server, own) = (Server::start(On::Docker).await, name("little"));
    let arguments = json!({ "session_id": own, "memory_limit_mb": 64 });
    server.call("create_session", arguments).await.ok();
    let options = inspected(&own);
    assert_fields!(options, { "Memory": 64_000_000, "MemorySwap": 64_000_000 });
    assert!(text(&options["Tmpfs"]["/mnt/data"]).contains("size=32000000,"), "{options}");
    assert!(text(&options["Tmpfs"]["/tmp"]).contains("size=4000000,"), "{options}");
    let run = server.run(&own, "print(1)").await;
    assert_eq!((&run["outcome"], &run["stdout"]), (&json!("ok"), &json!("1\n")), "{run}");
    let run = server.run(&own, BOMB).await;
    assert_eq!(run["outcome"], "out_of_memory", "{run}");
    assert!(text(&run["stderr"]).contains("limit 64MB"), "{run}");
    let run = server.run(&own, "print(2)").await;
    assert_eq!(run["stdout"], "2\n", "it goes on");
    let full = server.run(&own, "open('f', 'wb').write(bytes(40_000_000))").await;
    assert!(text(&full["stderr"]).contains("No space left"), "{full}");

    let usual = name("usual");
    let run = server.run(&usual, BOMB).await;
    assert_eq!(run["stdout"], "200000000\n", "{run}");
    assert_eq!(inspected(&usual)["Memory"], 512_000_000);
}

async fn a_pooled_sandbox_is_not_taken_for_limits_of_ones_own() {
    let server = Server::start_with(On::Docker, &[("SANDBOX_POOL_SIZE", "1")]).await;
    for (arguments, memory, ttl) in [
        (json!({ "memory_limit_mb": 100 }), 100_000_000, 1800.0),
        (json!({ "timeout_seconds": 60 }), 512_000_000, 60.0),
        (json!({ "memory_limit_mb": 512, "timeout_seconds": 1800 }), 512_000_000, 1800.0),
        (json!({}), 512_000_000, 1800.0),
    ] {
        let created = server.call("create_session", arguments).await.ok();
        let lives = time(&created["expires_at"]) - time(&created["created_at"]);
        let lives = lives.total(jiff::Unit::Second).expect("seconds");
        assert!((lives - ttl).abs() < 5.0, "{created}");
        assert_eq!(inspected(text(&created["session_id"]))["Memory"], memory);
    }
}
