//! Tasks: a client that declares the extension is answered with one if the run of its call takes long, and fetches the
//! result later. `tests/clients` does the same with the official clients.

use serde_json::{Value, json};
use support::{On, Server, assert_fields, name, on_all, text, until, web::*};

on_all! {
    a_call_that_takes_long_is_answered_with_a_task_and_the_task_has_its_result,
    a_call_that_ends_soon_is_answered_with_its_result,
    a_task_is_cancelled,
    a_task_ends_with_its_session,
}

const EXTENSION: &str = "io.modelcontextprotocol/tasks";
const INVALID_PARAMS: i64 = -32602;
const METHOD_NOT_FOUND: i64 = -32601;
const MISSING_CAPABILITY: i64 = -32021;

/// A program that prints a line, and ends when the file `go` is uploaded.
const WAITS: &str = "
import os, time
print('begun', flush=True)
while not os.path.exists('go'): time.sleep(0.01)
print('done')
raise SystemExit(3)
";

/// A program that takes longer than a call may before it is answered with a task.
const LONG: &str = "import time; time.sleep(6); print('done')";

/// A program that a client sees in progress.
const SHORT: &str = "import time; time.sleep(1); print('done')";

fn extensions() -> Value {
    json!({ "extensions": { EXTENSION: {} } })
}

/// A client over standard input that sends these capabilities with each request.
struct Client {
    server: Server,
    capabilities: Value,
}

impl Client {
    fn new(on: On, capabilities: Value) -> Self {
        Self::with(on, &[], capabilities)
    }

    fn with(on: On, settings: &[(&str, &str)], capabilities: Value) -> Self {
        Self { server: Server::launch(on, settings), capabilities }
    }

    /// The answer to a request, the whole message.
    async fn ask(&self, method: &str, mut params: Value) -> Value {
        let meta = &mut params["_meta"];
        meta["io.modelcontextprotocol/protocolVersion"] = MODERN.into();
        meta["io.modelcontextprotocol/clientCapabilities"] = self.capabilities.clone();
        self.server.request(method, params).await
    }

    /// The result of a call.
    async fn call(&self, tool: &str, arguments: Value) -> Value {
        let answer = self.ask("tools/call", json!({ "name": tool, "arguments": arguments })).await;
        answer.get("result").cloned().unwrap_or_else(|| panic!("no result: {answer}"))
    }

    async fn get(&self, task: &Value) -> Value {
        self.ask("tasks/get", json!({ "taskId": task })).await
    }

    /// The last state of a task.
    async fn ended(&self, task: &Value) -> Value {
        let mut state = Value::Null;
        until("the task ends", async || {
            state = self.get(task).await["result"].clone();
            state["status"] != "working"
        })
        .await;
        state
    }
}

async fn a_call_that_takes_long_is_answered_with_a_task_and_the_task_has_its_result(on: On) {
    let (client, id) = (Client::new(on, extensions()), name("tasks"));
    let params = json!({
        "name": "run_python",
        "arguments": { "session_id": id, "code": WAITS },
        "_meta": { "progressToken": 1 },
    });
    let answer = client.ask("tools/call", params).await["result"].clone();
    let heard = client.server.notifications().lock().expect("heard").len();
    assert!(heard > 0, "progress is reported until the answer");
    assert_fields!(answer, { "resultType": "task", "status": "working", "content": null });
    let task = &answer["taskId"];
    assert!(text(task).starts_with("run_"), "{answer}");
    let mut state = Value::Null;
    until("its output is seen", async || {
        state = client.get(task).await["result"].clone();
        state["statusMessage"] == "begun"
    })
    .await;
    assert_fields!(state, {
        "resultType": "complete", "status": "working", "taskId": task, "createdAt": answer["createdAt"],
        "result": null,
    });
    for state in [&answer, &state] {
        let (poll, ttl) = (state["pollIntervalMs"].as_u64(), state["ttlMs"].as_u64());
        assert!(poll >= Some(1000) && ttl > Some(60_000), "{state}");
    }
    client.call("upload_file", json!({ "session_id": id, "filename": "go", "text": "1" })).await;
    let state = client.ended(task).await;
    assert_fields!(state, { "status": "completed", "error": null, "createdAt": answer["createdAt"] });
    let result = &state["result"];
    assert_eq!(result["structuredContent"]["stdout"], "begun\ndone\n");
    assert_eq!(result["structuredContent"]["exit_code"], 3);
    let kept = json!({ "execution_id": task });
    assert_eq!(&client.call("get_execution_result", kept).await, result, "that of its call");
    assert_eq!(client.get(task).await["result"], state, "it can be asked for again");
    let update = json!({ "taskId": task, "inputResponses": { "a": { "action": "accept" } } });
    assert_eq!(
        client.ask("tasks/update", update).await["result"],
        json!({ "resultType": "complete" })
    );
    assert_eq!(client.server.notifications().lock().expect("heard").len(), heard);
}

async fn a_call_that_ends_soon_is_answered_with_its_result(on: On) {
    let client = Client::new(on, extensions());
    let mut result = Value::Null;
    // On a busy machine the interpreter may take long to start; later cells find it running.
    until("a call is answered with its result", async || {
        result = client.call("execute_code", json!({ "code": "print(6 * 7)" })).await;
        result["structuredContent"]["stdout"] == "42\n"
    })
    .await;
    assert_eq!(result["resultType"], "complete");
    let state = client.ended(&result["structuredContent"]["run_id"]).await;
    assert_eq!(state["result"], result, "an answer that was lost");
}

async fn a_task_is_cancelled(on: On) {
    let client = Client::new(on, extensions());
    let begun = client.call("execute_code", json!({ "code": WAITS, "background": true })).await;
    assert_eq!(begun["resultType"], "task", "{begun}");
    let task = &begun["taskId"];
    // Once more when it has ended, as the two may come together.
    for _ in 0..2 {
        let answer = client.ask("tasks/cancel", json!({ "taskId": task })).await;
        assert_eq!(answer["result"], json!({ "resultType": "complete" }), "{answer}");
        assert_fields!(client.ended(task).await, { "status": "cancelled", "result": null });
    }
}

async fn a_task_ends_with_its_session(on: On) {
    let (client, id) = (Client::new(on, extensions()), name("tasks"));
    let arguments = json!({ "session_id": id, "code": "import time; time.sleep(1); 1 / 0", "background": true });
    let task = client.call("run_python", arguments.clone()).await["taskId"].clone();
    let state = client.ended(&task).await;
    assert_eq!(state["status"], "completed", "an error of the program is a result");
    assert_eq!(state["result"]["structuredContent"]["exit_code"], 1);
    let mut arguments = arguments;
    arguments["code"] = WAITS.into();
    let running = client.call("run_python", arguments).await["taskId"].clone();
    assert_eq!(client.get(&running).await["result"]["status"], "working");
    client.call("close_session", json!({ "session_id": id })).await;
    for task in [task, running] {
        for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
            let answer = client.ask(method, json!({ "taskId": task, "inputResponses": {} })).await;
            assert_eq!(answer["error"]["code"], INVALID_PARAMS, "{method}: {answer}");
            assert!(text(&answer["error"]["message"]).contains("session"), "{method}: {answer}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_declare_the_extension_gets_no_task() {
    // The older generation cannot declare it, even if a client tries.
    let legacy = Server::launch(On::Local, &[]);
    let hello = json!({
        "protocolVersion": LEGACY, "capabilities": extensions(),
        "clientInfo": { "name": "tests", "version": "1" },
    });
    let hello = legacy.request("initialize", hello).await;
    assert!(hello["result"]["capabilities"]["extensions"].is_null(), "{hello}");
    let modern = Client::new(On::Local, json!({}));
    let long = json!({ "code": LONG });
    let (of_legacy, of_modern) =
        tokio::join!(legacy.call("run_python", long.clone()), modern.call("run_python", long));
    for result in [&of_legacy.raw, &of_modern] {
        assert_eq!(result["structuredContent"]["stdout"], "done\n", "{result}");
    }
    let task = &of_modern["structuredContent"]["run_id"];
    for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
        let params = json!({ "taskId": task, "inputResponses": {} });
        for answer in
            [modern.ask(method, params.clone()).await, legacy.request(method, params).await]
        {
            let error = &answer["error"];
            assert_eq!(error["code"], MISSING_CAPABILITY, "{method}: {answer}");
            assert_eq!(error["data"]["requiredCapabilities"], extensions(), "{method}: {answer}");
        }
    }
    let background = json!({ "code": "1", "background": true });
    assert_eq!(
        modern.call("run_python", background).await["structuredContent"]["status"],
        "running"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_may_not_go_on_after_its_answer_is_no_task() {
    let at_once = [("SANDBOX_BACKGROUND_TIMEOUT_S", "0")];
    let off = Client::with(On::Local, &at_once, extensions());
    let on = Client::new(On::Local, extensions());
    for (client, is_declared) in [(&on, true), (&off, false)] {
        let found = client.ask("server/discover", json!({})).await;
        let declared = found["result"]["capabilities"]["extensions"].get(EXTENSION);
        assert_eq!(declared.is_some(), is_declared, "{found}");
    }
    let stateless = json!({ "code": LONG, "session_id": "__stateless__" });
    let (of_off, of_stateless) = tokio::join!(
        off.call("execute_code", json!({ "code": LONG })),
        on.call("execute_code", stateless)
    );
    for result in [of_off, of_stateless] {
        assert_eq!(result["structuredContent"]["stdout"], "done\n", "{result}");
    }
    let answer = off.get(&json!("run_none")).await;
    assert_eq!(answer["error"]["code"], METHOD_NOT_FOUND, "{answer}");
    // A client needs no tool for the result of a task.
    let few = Client::with(On::Local, &[("SANDBOX_TOOLSETS", "run")], extensions());
    let task = few.call("run_python", json!({ "code": SHORT, "background": true })).await;
    let state = few.ended(&task["taskId"]).await;
    assert_eq!(state["result"]["structuredContent"]["stdout"], "done\n", "{state}");
}

/// A request over HTTP of a client that declares the extension.
async fn asked(caller: &Caller, method: &str, params: Value) -> Value {
    let (mut message, headers) = caller.modern(method, params);
    message["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] = extensions();
    let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, &**value)).collect();
    caller.post(&message, &headers).await.messages().remove(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_is_there_for_another_connection_of_its_caller_and_for_no_other_caller() {
    let (web, alice, bob) = Web::of_two(On::Local, &[]).await;
    let id = name("tasks");
    let arguments = json!({ "session_id": id, "code": WAITS, "background": true });
    let call = json!({ "name": "run_python", "arguments": arguments });
    let task = asked(&alice, "tools/call", call).await["result"]["taskId"].clone();
    let his = json!({ "taskId": task, "inputResponses": {} });
    let unknown = json!({ "taskId": "run_none", "inputResponses": {} });
    for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
        let [his, unknown] = [
            asked(&bob, method, his.clone()).await["error"].clone(),
            asked(&bob, method, unknown.clone()).await["error"].clone(),
        ];
        assert_eq!(
            (&his["code"], &unknown["code"]),
            (&json!(INVALID_PARAMS), &json!(INVALID_PARAMS))
        );
        let same = text(&unknown["message"]).replace("run_none", text(&task));
        assert_eq!(his["message"], same, "it does not reveal that there is one");
        let without_id = asked(&alice, method, json!({})).await;
        assert_eq!(without_id["error"]["code"], INVALID_PARAMS, "{method}: {without_id}");
    }
    let again = web.caller(Some("secret-a"));
    let state = asked(&again, "tasks/get", json!({ "taskId": task })).await;
    assert_eq!(state["result"]["status"], "working", "nobody else has cancelled it: {state}");
    again.upload(&id, "go", b"").await.ok();
    let mut state = Value::Null;
    until("the task ends", async || {
        state = asked(&again, "tasks/get", json!({ "taskId": task })).await["result"].clone();
        state["status"] == "completed"
    })
    .await;
    assert_eq!(state["result"]["structuredContent"]["stdout"], "begun\ndone\n");
}
