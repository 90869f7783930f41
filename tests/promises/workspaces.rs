//! The session of a call that names none: that of its workspace, which depends on how the client connects. Its owner,
//! its end, and the notice to a caller that it had to be made anew.

use serde_json::{Value, json};
use support::{On, Server, containers, http_begin, name, on_all, text, until, web::*};

on_all! {
    over_stdio_a_server_has_one_workspace,
    an_mcp_session_has_a_workspace_of_its_own_that_ends_with_it,
    a_url_names_a_workspace_that_outlives_mcp_sessions,
    without_mcp_sessions_a_caller_has_one_workspace,
    two_callers_have_workspaces_of_their_own_under_one_name,
    a_workspace_that_is_gone_is_made_anew_and_the_caller_is_told_why;
    on docker alone:
    a_session_that_ends_with_its_call_leaves_no_container_behind,
    a_workspace_whose_container_died_is_made_anew_and_that_is_said,
}

const ALICE_AND_BOB: (&str, &str) = ("SANDBOX_AUTH_TOKENS", "alice:secret-a,bob:secret-b");
const COLD: (&str, &str) = ("SANDBOX_PRELOAD", "none");
const ONE: (&str, &str) = ("SANDBOX_MAX_SESSIONS", "1");
/// Less than the time between any two calls, so that every unused session can be evicted.
const AT_ONCE: (&str, &str) = ("SANDBOX_EVICT_IDLE_M", "0.000001");
/// Three seconds.
const SHORT_LIFE: (&str, &str) = ("SANDBOX_SESSION_TTL_M", "0.05");

/// A cell that creates a file, and prints the names of the files before.
fn marked(mark: &str) -> Value {
    let code = format!("import os; print(sorted(os.listdir('.')))\nopen('{mark}', 'w').close()");
    json!({ "code": code })
}

#[track_caller]
fn id(result: &Value) -> String {
    text(&result["session_id"]).to_owned()
}

/// Whether a result says that its workspace is new.
fn is_new(result: &Value) -> bool {
    result["new_workspace"] == true
}

/// All notes of a result, joined.
fn notes(result: &Value) -> String {
    let notes = result["notes"].as_array().cloned().unwrap_or_default();
    notes.iter().map(text).collect::<Vec<_>>().join(" ")
}

/// The names of the caller's sessions.
async fn sessions(caller: &Caller) -> Vec<String> {
    let listed = caller.send("GET", "/sessions", &[], &[]).await.json();
    let sessions = listed["sessions"].as_array().expect("a list").iter();
    sessions.map(id).collect()
}

async fn delete(mcp: &Mcp<'_>) {
    let headers = [("Mcp-Session-Id", &*mcp.id), ("MCP-Protocol-Version", LEGACY)];
    assert_eq!(mcp.caller.send("DELETE", "/mcp", &headers, &[]).await.status, 204);
}

async fn over_stdio_a_server_has_one_workspace(on: On) {
    let server = Server::start(on).await;
    let first = server.call("execute_code", marked("a")).await.ok();
    assert!(is_new(&first), "{first}");
    let second = server.call("execute_code", marked("b")).await.ok();
    assert_eq!(id(&second), id(&first));
    assert!(!is_new(&second), "{second}");
    assert_eq!(second["stdout"], "['a']\n");
    let mut named = marked("c");
    named["session_id"] = first["session_id"].clone();
    let named = server.call("execute_code", named).await.ok();
    assert_eq!((id(&named), &named["stdout"]), (id(&first), &json!("['a', 'b']\n")));
    // The tools that start a session if none is named still do so.
    let run = server.call("run_python", json!({ "code": "print(1)" })).await.ok();
    assert_ne!(id(&run), id(&first));
    let run = server.run(&id(&first), "import os; print(len(os.listdir()))").await;
    assert_eq!(run["stdout"], "3\n", "the same files");
}

async fn an_mcp_session_has_a_workspace_of_its_own_that_ends_with_it(on: On) {
    let (_web, caller) = Web::open(on, &[]).await;
    let (one, other) = (caller.open().await, caller.open().await);
    let first = one.call("execute_code", marked("a")).await.ok();
    let second = other.call("execute_code", marked("b")).await.ok();
    assert!(is_new(&first) && is_new(&second));
    assert_ne!(id(&first), id(&second));
    assert_eq!(second["stdout"], "[]\n");
    let again = one.call("execute_code", marked("c")).await.ok();
    assert_eq!((id(&again), &again["stdout"]), (id(&first), &json!("['a']\n")));
    assert!(!is_new(&again), "{again}");
    delete(&one).await;
    assert!(on != On::Docker || containers(&id(&first)).is_empty(), "it is gone with the answer");
    assert_eq!(sessions(&caller).await, [id(&second)]);
    let again = other.call("execute_code", marked("d")).await.ok();
    assert_eq!((id(&again), &again["stdout"]), (id(&second), &json!("['b']\n")));
}

async fn a_url_names_a_workspace_that_outlives_mcp_sessions(on: On) {
    let web = Web::start(on, &[]).await;
    let caller = web.caller(None).at("?workspace=sales-2026");
    let mut seen = vec![];
    for (n, mark) in ["a", "b", "c"].into_iter().enumerate() {
        // Some clients open an MCP session for each call, and may close it or not.
        let mcp = caller.open().await;
        let result = mcp.call("execute_code", marked(mark)).await.ok();
        assert_eq!(is_new(&result), n == 0, "{result}");
        seen.push(id(&result));
        if n == 1 {
            delete(&mcp).await;
        }
    }
    let modern = caller.call("execute_code", marked("d")).await.ok();
    assert_eq!(modern["stdout"], "['a', 'b', 'c']\n");
    assert!(seen.iter().all(|session| *session == id(&modern)), "{seen:?}");
    let other = web.caller(None).at("?workspace=other&toolsets=run,code,sessions");
    let other = other.call("execute_code", marked("a")).await.ok();
    assert_ne!(id(&other), id(&modern));
}

async fn without_mcp_sessions_a_caller_has_one_workspace(on: On) {
    let (web, caller) = Web::open(on, &[]).await;
    let first = caller.call("execute_code", marked("a")).await.ok();
    let second = caller.call("execute_code", marked("b")).await.ok();
    assert_eq!((id(&second), &second["stdout"]), (id(&first), &json!("['a']\n")));
    assert!(is_new(&first) && !is_new(&second));
    let by_name = web.caller(None).at("?workspace=default");
    assert_eq!(id(&by_name.call("execute_code", marked("c")).await.ok()), id(&first));
    let mcp = caller.open().await;
    assert_ne!(id(&mcp.call("execute_code", marked("d")).await.ok()), id(&first));
}

async fn two_callers_have_workspaces_of_their_own_under_one_name(on: On) {
    let web = Web::start(on, &[ALICE_AND_BOB]).await;
    let at = "?workspace=shared";
    let (alice, bob) = (web.caller(Some("secret-a")).at(at), web.caller(Some("secret-b")).at(at));
    let hers = alice.call("execute_code", marked("hers")).await.ok();
    let his = bob.call("execute_code", marked("his")).await.ok();
    assert!(is_new(&his) && id(&his) != id(&hers));
    assert_eq!(his["stdout"], "[]\n");
    let mut stolen = marked("stolen");
    stolen["session_id"] = hers["session_id"].clone();
    let stolen = bob.call("execute_code", stolen).await;
    assert_eq!(stolen.error(), "session_not_found");
    // Her MCP session does not give him access either.
    let mcp = web.caller(Some("secret-a"));
    let mcp = mcp.open().await;
    let of_mcp = mcp.call("execute_code", marked("a")).await.ok();
    let thief = Mcp { caller: &bob, id: mcp.id.clone() };
    let message = json!({
        "jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": { "name": "execute_code", "arguments": marked("stolen") },
    });
    assert_eq!(thief.post(&message).await.status, 404);
    let (modern, headers) = bob.modern("tools/call", message["params"].clone());
    let mut headers: Vec<_> = headers.iter().map(|(name, value)| (*name, &**value)).collect();
    headers.push(("Mcp-Session-Id", &mcp.id));
    assert_eq!(bob.post(&modern, &headers).await.status, 404);
    let again = mcp.call("execute_code", marked("b")).await.ok();
    assert_eq!((id(&again), &again["stdout"]), (id(&of_mcp), &json!("['a']\n")));
}

async fn a_workspace_that_is_gone_is_made_anew_and_the_caller_is_told_why(on: On) {
    let server = Server::start(on).await;
    let first = server.call("execute_code", marked("a")).await.ok();
    assert_eq!(notes(&first), "", "there was none before");
    server.call("close_session", json!({ "session_id": first["session_id"] })).await.ok();
    let second = server.call("execute_code", marked("b")).await.ok();
    assert!(is_new(&second) && id(&second) != id(&first));
    assert_eq!(second["stdout"], "[]\n");
    assert!(notes(&second).contains("closed"), "{second}");
    let third = server.call("execute_code", marked("c")).await.ok();
    assert!(!is_new(&third) && !notes(&third).contains("closed"), "told once: {third}");
}

/// Begins a call of the generation without sessions; dropping the stream cancels it.
async fn begin(caller: &Caller, tool: &str, arguments: Value) -> tokio::net::TcpStream {
    let params = json!({ "name": tool, "arguments": arguments });
    let (message, headers) = caller.modern("tools/call", params);
    let mut all = caller.mcp_headers();
    all.extend(headers.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
    let all: Vec<_> = all.iter().map(|(name, value)| (&**name, &**value)).collect();
    let url = format!("{}/mcp{}", caller.base, caller.query);
    http_begin("POST", &url, &all, message.to_string().as_bytes()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_did_not_hear_that_its_workspace_is_new_is_told_with_the_next_result() {
    let (_web, caller) = Web::open(On::Local, &[COLD]).await;
    let first = caller.call("execute_code", marked("a")).await.ok();
    caller.call("close_session", json!({ "session_id": first["session_id"] })).await.ok();
    let endless = json!({ "code": "while True: pass" });
    let unheard = begin(&caller, "execute_code", endless).await;
    let state = async || {
        let listed = caller.send("GET", "/sessions", &[], &[]).await.json();
        listed["sessions"][0]["state"].clone()
    };
    until("it runs", async || state().await == "running").await;
    drop(unheard);
    until("it is cancelled", async || state().await == "idle").await;
    let told = caller.call("execute_code", marked("b")).await.ok();
    assert!(is_new(&told) && notes(&told).contains("closed"), "{told}");
    let heard = caller.call("execute_code", marked("c")).await.ok();
    assert!(!is_new(&heard) && !notes(&heard).contains("closed"), "{heard}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workspace_that_nobody_used_for_its_time_to_live_is_made_anew_and_that_is_said() {
    let (_web, caller) = Web::open(On::Local, &[SHORT_LIFE, COLD]).await;
    let first = caller.call("execute_code", marked("a")).await.ok();
    until("it expires", async || sessions(&caller).await.is_empty()).await;
    let second = caller.call("execute_code", marked("b")).await.ok();
    assert!(is_new(&second) && id(&second) != id(&first));
    assert!(notes(&second).contains("unused"), "{second}");
    assert_eq!(second["stdout"], "[]\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workspace_gives_way_as_unnamed_sessions_do_and_its_caller_is_told() {
    let (_web, caller) =
        Web::open(On::Local, &[ONE, ("SANDBOX_MAX_HIBERNATED", "0"), AT_ONCE, COLD]).await;
    let first = caller.call("execute_code", marked("a")).await.ok();
    let run = caller.call("run_python", json!({ "code": "print(1)" })).await.ok();
    assert_eq!(sessions(&caller).await, [id(&run)]);
    let second = caller.call("execute_code", marked("b")).await.ok();
    assert!(is_new(&second) && id(&second) != id(&first));
    assert!(notes(&second).contains("make room"), "{second}");
    assert_eq!(sessions(&caller).await, [id(&second)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workspace_counts_as_any_session_of_its_caller_does() {
    let limit = ("SANDBOX_MAX_SESSIONS_PER_CLIENT", "2");
    let web =
        Web::start(On::Local, &[ALICE_AND_BOB, limit, ("SANDBOX_MAX_HIBERNATED", "0"), COLD]).await;
    let alice = web.caller(Some("secret-a"));
    let named = json!({ "session_id": name("own"), "code": "print(1)" });
    alice.call("run_python", named).await.ok();
    let first = alice.call("execute_code", marked("a")).await.ok();
    let other = web.caller(Some("secret-a")).at("?workspace=other");
    let refused = other.call("execute_code", marked("b")).await;
    assert_eq!(refused.error(), "max_sessions");
    assert_eq!(refused.json["sessions"].as_array().map(Vec::len), Some(2));
    assert_eq!(id(&alice.call("execute_code", marked("c")).await.ok()), id(&first));
    let bob = web.caller(Some("secret-b"));
    bob.call("execute_code", marked("a")).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn two_calls_at_once_for_a_workspace_that_is_not_there_yet_make_one() {
    for pool in ["0", "2"] {
        let (web, caller) = Web::open(On::Local, &[("SANDBOX_POOL_SIZE", pool), COLD]).await;
        for round in 0..5 {
            let at = format!("?workspace=round-{round}");
            let caller = web.caller(None).at(&at);
            let calls = (0..4).map(|_| caller.call("execute_code", json!({ "code": "print(1)" })));
            let answers = futures::future::join_all(calls).await;
            let served = answers.iter().filter(|answer| answer.raw["isError"] == false);
            let ids: Vec<_> = served.map(|answer| id(&answer.json)).collect();
            assert!(!ids.is_empty());
            assert!(ids.iter().all(|session| *session == ids[0]), "{ids:?}");
            let others = answers.iter().filter(|answer| answer.raw["isError"] == true);
            assert!(others.map(|answer| answer.error()).all(|code| code == "session_busy"));
        }
        assert_eq!(sessions(&caller).await.len(), 5);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_mcp_session_that_gives_way_to_a_newer_one_takes_its_workspace_along() {
    let (_web, caller) = Web::open(On::Local, &[COLD]).await;
    let first = caller.open().await;
    let result = first.call("execute_code", marked("a")).await.ok();
    assert_eq!(sessions(&caller).await, [id(&result)]);
    // The maximum number of MCP sessions for one client.
    for _ in 0..160 {
        caller.open().await;
    }
    until("it has ended", async || sessions(&caller).await.is_empty()).await;
    let ping = json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" });
    assert_eq!(first.post(&ping).await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workspace_of_an_mcp_session_that_was_unused_for_long_ends_with_it() {
    let settings = [SHORT_LIFE, ("SANDBOX_EXEC_TIMEOUT_S", "1"), COLD];
    let (_web, caller) = Web::open(On::Local, &settings).await;
    let mcp = caller.open().await;
    let result = mcp.call("execute_code", marked("a")).await.ok();
    // The workspace is used all the time by its name, so it does not expire itself.
    until("it ends with its MCP session", async || {
        let listed =
            caller.call("list_artifacts", json!({ "session_id": result["session_id"] })).await;
        listed.raw["isError"] == true && listed.error() == "session_not_found"
    })
    .await;
    let ping = json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" });
    assert_eq!(mcp.post(&ping).await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workspace_has_a_name_as_sessions_have() {
    let web = Web::start(On::Local, &[COLD]).await;
    for wrong in ["?workspace=", "?workspace=a%2Fb", &format!("?workspace={}", "x".repeat(65))] {
        let refused = web.caller(None).at(wrong).call("execute_code", marked("a")).await;
        assert_eq!(refused.error(), "invalid_argument", "{wrong}");
        assert!(text(&refused.json["message"]).contains("?workspace="), "{}", refused.json);
    }
    assert!(sessions(&web.caller(None)).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_ends_with_its_call_leaves_nothing_behind() {
    let (_web, caller) = Web::open(On::Local, &[COLD]).await;
    let stateless = |code: &str| json!({ "session_id": "__stateless__", "code": code });
    for tool in ["execute_code", "run_python"] {
        for code in ["print(1)", "raise SystemExit(3)", "open('a', 'w')"] {
            let result = caller.call(tool, stateless(code)).await.ok();
            assert_ne!(id(&result), "__stateless__");
            assert!(!is_new(&result) && result.get("new_session").is_none(), "{result}");
            for file in result["artifacts"].as_array().into_iter().flatten() {
                assert!(file.get("download_url").is_none(), "it would lead nowhere: {file}");
            }
            assert!(sessions(&caller).await.is_empty(), "{tool}: {code}");
            let gone = caller.call("list_artifacts", json!({ "session_id": id(&result) })).await;
            assert_eq!(gone.error(), "session_not_found");
        }
    }
    // A session also ends if its call fails or is cancelled.
    let long = "x".repeat(200_000);
    assert_eq!(caller.call("run_python", stateless(&long)).await.error(), "code_too_large");
    let stream = begin(&caller, "run_python", stateless("while True: pass")).await;
    until("it runs", async || !sessions(&caller).await.is_empty()).await;
    drop(stream);
    until("it has ended", async || sessions(&caller).await.is_empty()).await;
    // Tools that need a lasting session refuse the name.
    for (tool, mut arguments) in [
        ("list_artifacts", json!({})),
        ("close_session", json!({})),
        ("upload_file", json!({ "filename": "a", "text": "1" })),
    ] {
        arguments["session_id"] = "__stateless__".into();
        assert_eq!(caller.call(tool, arguments).await.error(), "invalid_argument", "{tool}");
    }
    assert!(sessions(&caller).await.is_empty());
}

async fn a_session_that_ends_with_its_call_leaves_no_container_behind() {
    let server = Server::start_with(On::Docker, &[("SANDBOX_POOL_SIZE", "1")]).await;
    for tool in ["execute_code", "run_python"] {
        let arguments = json!({ "session_id": "__stateless__", "code": "print(1)" });
        let result = server.call(tool, arguments).await.ok();
        assert!(containers(&id(&result)).is_empty(), "{tool}");
    }
}

async fn a_workspace_whose_container_died_is_made_anew_and_that_is_said() {
    let server = Server::start(On::Docker).await;
    let first = server.call("execute_code", marked("a")).await.ok();
    let [container] = &containers(&id(&first))[..] else { panic!("one container") };
    let killed = std::process::Command::new("docker").args(["kill", container]).output();
    assert!(killed.expect("docker runs").status.success());
    let second = {
        let mut answer = server.call("execute_code", marked("b")).await;
        if answer.raw["isError"] == true {
            // The call reached the sandbox while it died.
            assert_eq!(answer.error(), "sandbox_died");
            answer = server.call("execute_code", marked("b")).await;
        }
        answer.ok()
    };
    assert!(is_new(&second) && id(&second) != id(&first));
    assert_eq!(second["stdout"], "[]\n");
    assert!(notes(&second).contains("unexpectedly"), "{second}");
}
