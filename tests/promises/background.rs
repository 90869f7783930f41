//! Runs that outlive the call that began them, and results that can be asked for later.

use serde_json::{Value, json};
use support::{On, Server, name, on_all, text, until, web::*};

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
    assert_eq!(begun["status"], "running");
    let result = asked(call, &begun["run_id"], 50).await;
    assert_eq!((&result["status"], &result["result"]), (&json!("success"), &json!("21")));
    assert_eq!(result["new_workspace"], true);
    assert_eq!(call("execute_code", json!({ "code": "x + 1" })).await["result"], "22");
}

async fn a_run_in_the_background_is_seen_while_it_runs_and_is_cancelled(on: On) {
    let (server, id) = (Server::start(on).await, name("background"));
    let call = async |tool: &str, arguments| server.call(tool, arguments).await.ok();
    let arguments = json!({ "session_id": id, "code": WAITS, "background": true });
    let run = call("run_python", arguments).await["run_id"].clone();
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
