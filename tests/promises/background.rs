//! Runs that outlive the call that began them, and results that can be asked for later.

use std::{fs, path::PathBuf};

use serde_json::{Value, json};
use support::{On, Server, answered, name, on_all, text, until, web::*};

on_all! {
    a_run_in_the_background_is_answered_at_once_and_its_result_is_that_of_a_call,
    a_cell_in_the_background_keeps_its_variables,
    a_run_in_the_background_is_seen_while_it_runs_and_is_cancelled,
}

/// A program that prints a line, and ends when the file `go` is uploaded.
const WAITS: &str = "
import os, time
open('seen.txt', 'w').write('seen')
print('begun', flush=True)
while not os.path.exists('go'): time.sleep(0.01)
print('done')
";

/// Asks for the result of a run, without waiting.
async fn asked(call: impl AsyncFn(&str, Value) -> Value, run: &Value, wait_s: u32) -> Value {
    call("get_execution_result", json!({ "execution_id": run, "wait_s": wait_s })).await
}

async fn a_run_in_the_background_is_answered_at_once_and_its_result_is_that_of_a_call(on: On) {
    let (server, id) = (Server::start(on).await, name("background"));
    let call = async |tool: &str, arguments| server.call(tool, arguments).await.ok();
    server.run(&id, "pass").await;
    let code = format!("{WAITS}\nraise SystemExit(3)");
    let arguments = json!({ "session_id": id, "code": code, "background": true });
    let begun = call("run_python", arguments).await;
    let run = begun["run_id"].clone();
    assert_eq!(begun, json!({ "session_id": id, "run_id": run, "status": "running" }));
    let busy = server.call("run_python", json!({ "session_id": id, "code": "1" })).await;
    assert_eq!(busy.error(), "session_busy", "it counts as any run");
    server.upload(&id, "go", b"").await.ok();
    let result = asked(call, &run, 50).await;
    let code = "open('seen.txt', 'w').write('again')\nprint('x')\nraise SystemExit(3)";
    let foreground = call("run_python", json!({ "session_id": id, "code": code })).await;
    let names =
        |result: &Value| result.as_object().expect("an object").keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&result), names(&foreground), "the fields of the tool's own result");
    assert_eq!((&result["run_id"], &result["exit_code"]), (&run, &json!(3)));
    assert_eq!(result["stdout"], "begun\ndone\n");
    assert_eq!(asked(call, &run, 0).await, result, "it can be asked for again");
    assert_eq!(asked(call, &foreground["run_id"], 0).await, foreground, "as that of any call");
    server.close(&id).await;
    assert_eq!(asked(call, &run, 0).await["status"], "session_ended");
    assert_eq!(asked(call, &json!("run_none"), 0).await["status"], "not_found");
}

async fn a_cell_in_the_background_keeps_its_variables(on: On) {
    let server = Server::start(on).await;
    let call = async |tool: &str, arguments| server.call(tool, arguments).await.ok();
    let begun = call("execute_code", json!({ "code": "x = 20 + 1\nx", "background": true })).await;
    assert_eq!((&begun["status"], &begun["new_workspace"]), (&json!("running"), &json!(true)));
    let result = asked(call, &begun["run_id"], 50).await;
    assert_eq!((&result["status"], &result["result"]), (&json!("success"), &json!("21")));
    assert_eq!(result["new_workspace"], true);
    assert_eq!(call("execute_code", json!({ "code": "x + 1" })).await["result"], "22");
}

async fn a_run_in_the_background_is_seen_while_it_runs_and_is_cancelled(on: On) {
    let (server, id) = (Server::start(on).await, name("background"));
    let call = async |tool: &str, arguments| server.call(tool, arguments).await.ok();
    let arguments = json!({ "session_id": id, "code": WAITS, "background": true });
    let begun = call("run_python", arguments).await;
    assert_eq!(begun["new_session"], true);
    let run = begun["run_id"].clone();
    until("its output is seen", async || {
        let seen = asked(call, &run, 0).await;
        assert_eq!((&seen["status"], &seen["run_id"]), (&json!("running"), &run));
        seen["stdout"] == "begun\n"
    })
    .await;
    let cancelled = call("cancel_execution", json!({ "execution_id": run })).await;
    assert_eq!(cancelled["status"], "cancelled");
    let result = asked(call, &run, 50).await;
    assert_eq!((&result["outcome"], &result["stdout"]), (&json!("cancelled"), &json!("begun\n")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_is_there_for_another_connection_of_the_caller_and_for_no_other_caller() {
    let web =
        Web::start(On::Local, &[("SANDBOX_AUTH_TOKENS", "alice:secret-a,bob:secret-b")]).await;
    let (alice, bob) = (web.caller(Some("secret-a")), web.caller(Some("secret-b")));
    let id = name("background");
    // In an MCP session, in one that is then lost, and without one.
    let mcp = alice.open().await;
    let arguments = json!({ "session_id": id, "code": WAITS, "background": true });
    let run = mcp.call("run_python", arguments).await.ok()["run_id"].clone();
    let other = alice.open().await;
    alice.upload(&id, "go", b"").await.ok();
    for connection in 0..2 {
        let ask = json!({ "execution_id": run, "wait_s": 50 });
        let result = match connection {
            0 => other.call("get_execution_result", ask).await.ok(),
            _ => alice.call("get_execution_result", ask).await.ok(),
        };
        assert_eq!(
            (&result["stdout"], &result["outcome"]),
            (&json!("begun\ndone\n"), &json!("ok"))
        );
        assert!(result["artifacts"].to_string().contains("seen.txt"), "{result}");
    }
    let his = bob.call("get_execution_result", json!({ "execution_id": run })).await.ok();
    assert_eq!(his["status"], "not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_in_the_background_has_a_time_limit_of_its_own() {
    let settings = [("SANDBOX_EXEC_TIMEOUT_S", "1"), ("SANDBOX_BACKGROUND_TIMEOUT_S", "7200")];
    let (server, id) = (Server::start_with(On::Local, &settings).await, name("background"));
    let call = async |tool: &str, arguments| server.call(tool, arguments).await.ok();
    let arguments = json!({ "session_id": id, "code": WAITS, "background": true });
    let run = call("run_python", arguments).await["run_id"].clone();
    // It is in progress for longer than a run in the foreground may be.
    let busy = async || {
        let seen = asked(call, &run, 2).await;
        seen["running_s"].as_u64().is_some_and(|seconds| seconds >= 2)
    };
    until("it runs for two seconds", busy).await;
    server.upload(&id, "go", b"").await.ok();
    assert_eq!(asked(call, &run, 50).await["outcome"], "ok");

    let arguments =
        json!({ "session_id": id, "code": "while True: pass", "background": true, "timeout_s": 1 });
    let run = call("run_python", arguments).await["run_id"].clone();
    assert_eq!(asked(call, &run, 50).await["outcome"], "timeout", "a caller may lower it");
    let arguments = json!({ "code": "while True: pass", "background": true, "timeout": 1 });
    let run = call("execute_code", arguments).await["run_id"].clone();
    let advice = asked(call, &run, 50).await["error_message"].to_string();
    assert!(advice.contains("(at most 7200)"), "the limit of the background: {advice}");
    let arguments = json!({ "session_id": id, "code": "1", "timeout_s": 9 });
    let notes = call("run_python", arguments).await["notes"].to_string();
    assert!(notes.contains("timeout_s"), "in the foreground it is as before: {notes}");
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_in_the_background_are_offered_with_their_results_and_not_otherwise() {
    for (settings, is_offered) in [
        (&[][..], true),
        (&[("SANDBOX_TOOLSETS", "run,code")], false),
        (&[("SANDBOX_BACKGROUND_TIMEOUT_S", "0")], false),
    ] {
        let server = Server::start_with(On::Local, settings).await;
        for tool in server.tools().await {
            let tool_name = text(&tool["name"]);
            if matches!(tool_name, "run_python" | "execute_code") {
                let argument = tool.pointer("/inputSchema/properties/background");
                assert_eq!(argument.is_some(), is_offered, "{tool_name} {settings:?}");
            }
        }
        let call = json!({ "code": "1", "background": true });
        let answer = server.call("run_python", call).await;
        assert_eq!(answer.raw["isError"] == true, !is_offered, "{}", answer.json);
    }
    let server = Server::start(On::Local).await;
    let call = json!({ "session_id": "__stateless__", "code": "1", "background": true });
    assert_eq!(server.call("execute_code", call).await.error(), "invalid_argument");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_sees_the_output_of_a_run_and_cancels_it() {
    let web =
        Web::start(On::Local, &[("SANDBOX_AUTH_TOKENS", "alice:secret-a,bob:secret-b")]).await;
    let (alice, bob) = (web.caller(Some("secret-a")), web.caller(Some("secret-b")));
    let id = name("background");
    let arguments = json!({ "session_id": id, "code": WAITS, "background": true });
    let run = alice.call("run_python", arguments).await.ok()["run_id"].clone();
    until("its output is seen", async || {
        let shown = alice.send("GET", &format!("/sessions/{id}"), &[], &[]).await.json();
        assert!(shown["runs"][0].get("outcome").is_none(), "{shown}");
        shown["runs"][0]["stdout"] == "begun\n" && shown["runs"][0]["stderr"] == ""
    })
    .await;
    let target = format!("/sessions/{id}/runs/{}", text(&run));
    assert_eq!(bob.send("DELETE", &target, &[], &[]).await.status, 404);
    let none = alice.send("DELETE", &format!("/sessions/{id}/runs/run_none"), &[], &[]).await;
    assert_eq!(none.status, 404);
    let foreign = [("Origin", "https://elsewhere.example")];
    assert_eq!(alice.send("DELETE", &target, &foreign, &[]).await.status, 403);
    let cancelled = alice.send("DELETE", &target, &[], &[]).await;
    assert_eq!(cancelled.json(), json!({ "run_id": run, "status": "cancelled" }));
    let again = alice.send("DELETE", &target, &[], &[]).await.json();
    assert_eq!(again["status"], "finished");
}

/// A server whose sandboxes do not start before the test allows it.
struct SlowStart {
    server: Server,
    folder: tempfile::TempDir,
}

impl SlowStart {
    async fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let settings = [("TMPDIR", folder.path().to_str().expect("text"))];
        let server = Server::start_with(On::Local, &settings).await;
        let slow = Self { server, folder };
        let (agent, real) = (slow.sandboxes().join("agent"), slow.sandboxes().join("real"));
        fs::rename(&agent, &real).expect("done");
        let (real, go) = (real.display(), slow.go());
        let waits = format!("while [ ! -e {} ]; do sleep 0.02; done", go.display());
        fs::write(&agent, format!("#!/bin/sh\n{waits}\nexec {real} \"$@\"\n")).expect("done");
        fs::set_permissions(&agent, std::os::unix::fs::PermissionsExt::from_mode(0o700))
            .expect("done");
        slow
    }

    /// The folder of the server's sandboxes.
    fn sandboxes(&self) -> PathBuf {
        let found = fs::read_dir(self.folder.path())
            .expect("done")
            .map(|entry| entry.expect("read").path());
        let is_theirs = |path: &PathBuf| path.to_str().expect("text").contains("llm-sandbox-local");
        found.into_iter().find(is_theirs).expect("the folder of the sandboxes")
    }

    fn go(&self) -> PathBuf {
        self.folder.path().join("go")
    }

    /// Begins a call that asks for progress; returns the receiver of its answer, and the id in its first message.
    async fn begin(&self, tool: &str, arguments: Value) -> (Answer, String) {
        let meta = json!({ "progressToken": 5 });
        let params = json!({ "name": tool, "arguments": arguments, "_meta": meta });
        let heard = self.server.notifications();
        let before = heard.lock().expect("not poisoned").len();
        let answer = self.server.begin_request("tools/call", params).1;
        let first =
            || heard.lock().expect("not poisoned").get(before).map(|it| it["params"].clone());
        until("it reports", async || first().is_some()).await;
        let first = first().expect("just seen");
        let run = text(&first["_meta"]["run_id"]).to_owned();
        assert_eq!(first["message"], format!("{run}: starting the sandbox"));
        (answer, run)
    }
}

type Answer = tokio::sync::oneshot::Receiver<Value>;

#[tokio::test(flavor = "multi_thread")]
async fn the_first_message_of_a_run_has_its_id_while_the_sandbox_starts() {
    for (tool, session) in [("run_python", None), ("execute_code", None), ("run_python", Some(()))]
    {
        let slow = SlowStart::new().await;
        let call = async |tool: &str, arguments| slow.server.call(tool, arguments).await.ok();
        let mut arguments = json!({ "code": "print(6 * 7)" });
        let id = session.map(|()| name("background"));
        if let Some(id) = &id {
            arguments["session_id"] = json!(id);
        }
        let (answer, run) = slow.begin(tool, arguments).await;
        let mut expected = json!({
            "run_id": run,
            "status": "running",
            "running_s": 0,
            "notes": ["The run has not begun: its sandbox is being started."],
        });
        if let Some(id) = &id {
            expected["session_id"] = json!(id);
        }
        assert_eq!(asked(call, &json!(run), 0).await, expected);
        let ask = json!({ "name": "get_execution_result", "arguments": { "execution_id": run } });
        let asked = slow.server.begin_request("tools/call", ask).1;
        fs::write(slow.go(), "").expect("done");
        let answer = answered(answer).await["result"]["structuredContent"].clone();
        assert_eq!((&answer["run_id"], &answer["stdout"]), (&json!(run), &json!("42\n")));
        let asked = answered(asked).await["result"]["structuredContent"].clone();
        assert_eq!(asked, answer, "who asked before it began waits for its end");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_cancelled_while_its_sandbox_starts() {
    let slow = SlowStart::new().await;
    let arguments = json!({ "code": "import time\nwhile True: time.sleep(0.01)" });
    let (answer, run) = slow.begin("run_python", arguments).await;
    let cancel = json!({ "name": "cancel_execution", "arguments": { "execution_id": run } });
    let cancelled = slow.server.begin_request("tools/call", cancel).1;
    // The server reads messages in turn: it has read the one before this one.
    slow.server.request("ping", json!({})).await;
    fs::write(slow.go(), "").expect("done");
    let cancelled = answered(cancelled).await["result"]["structuredContent"].clone();
    assert_eq!(cancelled["status"], "cancelled");
    let answer = answered(answer).await["result"]["structuredContent"].clone();
    assert_eq!((&answer["run_id"], &answer["outcome"]), (&json!(run), &json!("cancelled")));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_id_of_a_run_that_never_begins_is_no_run() {
    let slow = SlowStart::new().await;
    let id = name("background");
    let arguments =
        json!({ "session_id": id, "code": "import time\nwhile True: time.sleep(0.01)" });
    let (first, began) = slow.begin("run_python", arguments.clone()).await;
    let (second, refused) = slow.begin("run_python", arguments).await;
    fs::write(slow.go(), "").expect("done");
    let second = answered(second).await["result"].clone();
    assert!(second["isError"] == true && text(&second["content"][0]["text"]).contains(&began));
    for tool in ["get_execution_result", "cancel_execution"] {
        let known = slow.server.call(tool, json!({ "execution_id": refused })).await.ok();
        assert_eq!(known["status"], "not_found", "{tool}");
    }
    slow.server.call("cancel_execution", json!({ "execution_id": began })).await.ok();
    assert_eq!(answered(first).await["result"]["structuredContent"]["run_id"], began);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_session_ends_says_so_and_not_that_it_was_cancelled() {
    let (server, id) = (Server::start(On::Local).await, name("background"));
    let answer = server.begin("run_python", json!({ "session_id": id, "code": WAITS })).1;
    until("it runs", async || {
        let seen = json!({ "session_id": id, "path": "seen.txt" });
        server.call("read_artifact", seen).await.json["text"] == "seen"
    })
    .await;
    server.close(&id).await;
    let stopped = answered(answer).await["result"]["structuredContent"].clone();
    assert_eq!(stopped["outcome"], "cancelled");
    let why = "Execution stopped, because its session or the server ended";
    assert!(text(&stopped["stderr"]).contains(why), "{stopped}");
}
