//! Calls out of a sandbox of which the user of a client of 2026-07-28 decides: its call is answered with a form, and the
//! client repeats the call with the user's answer.

use std::{fs, path::Path, time::Duration};

use serde_json::{Value, json};
use support::{Answer, On, Server, name, on_all, text, until, web::*};
use tokio::time::timeout;

use super::calls::{ASKS, decide, noted, server, waiting, web};

on_all! {
    a_repeated_call_has_the_users_decision_and_the_answer_of_the_first,
    the_page_decides_if_the_form_is_closed_and_the_repeated_call_is_answered,
    a_call_that_is_repeated_after_its_run_has_ended_is_answered_all_the_same,
    a_session_that_ends_with_its_call_outlives_the_question,
    a_cell_asks_as_a_program_does,
    a_run_whose_client_never_returns_ends_by_itself_and_its_result_is_stored,
    a_client_that_leaves_the_repeated_call_cancels_the_run,
    a_client_that_closes_the_connection_of_the_repeated_call_cancels_the_run;
    not on wasm: two_calls_that_wait_at_once_are_both_asked
}

mod local_only {
    use support::On;

    support::tests! {
        nobody_else_can_repeat_a_call => super::nobody_else_can_repeat_a_call(On::Local);
        a_state_that_the_server_did_not_send_runs_nothing =>
            super::a_state_that_the_server_did_not_send_runs_nothing(On::Local);
        a_task_asks_the_user_of_its_client =>
            super::a_task_asks_the_user_of_its_client(On::Local);
        a_client_without_forms_gets_none => super::a_client_without_forms_gets_none(On::Local);
        a_repeated_call_is_one_call_in_the_audit_file =>
            super::a_repeated_call_is_one_call_in_the_audit_file(On::Local);
    }
}

/// A program that makes two contacts, and notes that it was begun.
const TWO: &str = "import tools
open('begun', 'a').write('x')
for number in '12':
    try: print(tools.crm.create_contact(text=number))
    except tools.ToolError as error: print(error.kind)
";

/// Time for which a client waits that does not wait for an answer.
const BRIEF: Duration = Duration::from_millis(300);

/// The user's answers to a form.
fn once() -> Value {
    json!({ "action": "accept", "content": { "decision": "once" } })
}

fn declined() -> Value {
    json!({ "action": "decline" })
}

fn closed() -> Value {
    json!({ "action": "cancel" })
}

/// The parameters of a call by a client that has forms.
fn call(tool: &str, arguments: &Value) -> Value {
    let capabilities = json!({ "elicitation": { "form": {} } });
    json!({
        "name": tool,
        "arguments": arguments,
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": MODERN,
            "io.modelcontextprotocol/clientCapabilities": capabilities,
        },
    })
}

fn run(arguments: &Value) -> Value {
    call("run_python", arguments)
}

/// The same call with the user's answer to each question.
fn repeated(params: &Value, asked: &Value, answer: &Value) -> Value {
    let mut params = params.clone();
    let answers = forms(asked).into_iter().map(|(id, _)| (id, answer.clone()));
    params["inputResponses"] = Value::Object(answers.collect());
    params["requestState"] = asked["requestState"].clone();
    params
}

/// The forms in an answer, which must have some, by their names.
#[track_caller]
fn forms(asked: &Value) -> Vec<(String, Value)> {
    assert_eq!(asked["resultType"], "input_required", "{asked}");
    let forms = asked["inputRequests"].as_object().expect("questions").clone();
    forms.into_iter().collect()
}

/// The message of the only form.
#[track_caller]
fn question(asked: &Value) -> String {
    let forms = forms(asked);
    let [(_, form)] = &forms[..] else { panic!("{asked}") };
    assert_eq!(form["method"], "elicitation/create");
    assert_eq!(form["params"]["requestedSchema"]["required"], json!(["decision"]));
    text(&form["params"]["message"]).to_owned()
}

/// The result of a call over standard input.
async fn over_stdio(server: &Server, params: Value) -> Value {
    server.request("tools/call", params).await["result"].clone()
}

/// The result of a call over HTTP.
async fn over_http(caller: &Caller, params: Value) -> Value {
    caller.ask("tools/call", params).await.last().expect("an answer")["result"].clone()
}

/// The program's own note of how often it was begun.
async fn begun(caller: &Caller, session: &str) -> String {
    let code = "print(open('begun').read())";
    text(&caller.run(session, code).await["stdout"]).trim().to_owned()
}

async fn a_repeated_call_has_the_users_decision_and_the_answer_of_the_first(on: On) {
    let folder = tempfile::tempdir().expect("a folder");
    let server = server(on, folder.path(), ASKS, &[]).await;
    let id = name("repeated");
    let params = run(&json!({ "session_id": id, "code": TWO }));
    let first = over_stdio(&server, params.clone()).await;
    let shown = question(&first);
    assert!(shown.contains("crm.create_contact") && shown.contains("\"1\""), "{shown}");
    assert_eq!(noted(folder.path(), "create_contact"), 0, "nothing is called before");
    let second = over_stdio(&server, repeated(&params, &first, &once())).await;
    assert!(question(&second).contains("\"2\""), "{second}");
    assert_eq!(noted(folder.path(), "create_contact"), 1);
    // Progress is reported as for any other call.
    let mut last = repeated(&params, &second, &declined());
    last["_meta"]["progressToken"] = "last".into();
    let done = Answer::new(over_stdio(&server, last).await).ok();
    assert_eq!((&done["stdout"], &done["session_id"]), (&json!("done\ndenied\n"), &json!(id)));
    assert_eq!((&done["new_session"], &done["exit_code"]), (&json!(true), &json!(0)), "{done}");
    assert_eq!(done["artifacts"][0]["size_bytes"], 1, "the code has begun once: {done}");
    assert_eq!(noted(folder.path(), "create_contact"), 1);
}

async fn the_page_decides_if_the_form_is_closed_and_the_repeated_call_is_answered(on: On) {
    let folder = tempfile::tempdir().expect("a folder");
    let (_server, alice, _) = web(on, folder.path(), ASKS).await;
    let id = name("closed");
    let params = run(&json!({ "session_id": id, "code": TWO }));
    let first = over_http(&alice, params.clone()).await;
    question(&first);
    let again = over_http(&alice, repeated(&params, &first, &closed()));
    let person = async {
        let approval = waiting(&alice, &id).await;
        assert_eq!(decide(&alice, &id, &approval, "once").await, 204);
    };
    // The closed form is not shown again; the next question is another one.
    let (second, ()) = tokio::join!(again, person);
    assert!(question(&second).contains("\"2\""), "{second}");
    let done = over_http(&alice, repeated(&params, &second, &once())).await;
    assert_eq!(Answer::new(done).ok()["stdout"], "done\ndone\n");
    assert_eq!(begun(&alice, &id).await, "x");
}

async fn a_call_that_is_repeated_after_its_run_has_ended_is_answered_all_the_same(on: On) {
    let folder = tempfile::tempdir().expect("a folder");
    let (_server, alice, _) = web(on, folder.path(), ASKS).await;
    let id = name("late");
    let params = run(&json!({ "session_id": id, "code": TWO }));
    let first = over_http(&alice, params.clone()).await;
    let approval = waiting(&alice, &id).await;
    assert_eq!(decide(&alice, &id, &approval, "run").await, 204);
    until("the run ends", async || noted(folder.path(), "create_contact") == 2).await;
    for _ in 0..2 {
        // Also if the answer got lost and the client repeats its call once more.
        let done = over_http(&alice, repeated(&params, &first, &declined())).await;
        assert_eq!(Answer::new(done).ok()["stdout"], "done\ndone\n");
    }
    assert_eq!(begun(&alice, &id).await, "x");
}

async fn a_session_that_ends_with_its_call_outlives_the_question(on: On) {
    let folder = tempfile::tempdir().expect("a folder");
    let (_server, alice, _) = web(on, folder.path(), ASKS).await;
    let params = call("execute_code", &json!({ "session_id": "__stateless__", "code": TWO }));
    let first = over_http(&alice, params.clone()).await;
    let second = over_http(&alice, repeated(&params, &first, &once())).await;
    let done = over_http(&alice, repeated(&params, &second, &once())).await;
    assert_eq!(Answer::new(done).ok()["stdout"], "done\ndone\n");
    let listed = async || alice.send("GET", "/sessions", &[], &[]).await.json();
    until("the session has ended", async || listed().await["sessions"] == json!([])).await;
}

async fn a_cell_asks_as_a_program_does(on: On) {
    let folder = tempfile::tempdir().expect("a folder");
    let server = server(on, folder.path(), ASKS, &[]).await;
    let code = "import tools\nmade = tools.crm.create_contact(text='x')";
    let params = call("execute_code", &json!({ "code": code }));
    let first = over_stdio(&server, params.clone()).await;
    let done = Answer::new(over_stdio(&server, repeated(&params, &first, &once())).await).ok();
    assert_eq!((&done["status"], &done["new_workspace"]), (&json!("success"), &json!(true)));
    let next = server.call("execute_code", json!({ "code": "made" })).await.ok();
    assert_eq!((&next["result"], &next["execution_count"]), (&json!("'done'"), &json!(2)));
}

async fn two_calls_that_wait_at_once_are_both_asked(on: On) {
    let folder = tempfile::tempdir().expect("a folder");
    let server = server(on, folder.path(), ASKS, &[]).await;
    let code = "import tools
from concurrent.futures import ThreadPoolExecutor
print(*ThreadPoolExecutor(2).map(lambda it: tools.crm.create_contact(text=it), 'ab'))";
    let params = run(&json!({ "code": code }));
    let mut answer = over_stdio(&server, params.clone()).await;
    let mut asked = vec![];
    while answer["resultType"] == "input_required" {
        asked.extend(forms(&answer).into_iter().map(|(id, _)| id));
        answer = over_stdio(&server, repeated(&params, &answer, &once())).await;
    }
    assert_eq!(Answer::new(answer).ok()["stdout"], "done done\n");
    asked.dedup();
    assert_eq!(asked.len(), 2, "each is asked once: {asked:?}");
}

async fn a_run_whose_client_never_returns_ends_by_itself_and_its_result_is_stored(on: On) {
    let folder = tempfile::tempdir().expect("a folder");
    let settings = [("SANDBOX_CALL_ASK_TIMEOUT_S", "1")];
    let server = server(on, folder.path(), ASKS, &settings).await;
    let code = "import tools\ntry: tools.crm.create_contact(text='x')\n\
                except tools.ToolError as error: print(error.kind)";
    let params = run(&json!({ "code": code }));
    let first = over_stdio(&server, params.clone()).await;
    question(&first);
    let run_id = text(&first["requestState"]).split('.').next().expect("the run's name");
    let wanted = json!({ "execution_id": run_id, "wait_s": 50 });
    let done = server.call("get_execution_result", wanted).await.ok();
    assert_eq!(done["stdout"], "unanswered\n", "{done}");
    let late = over_stdio(&server, repeated(&params, &first, &once())).await;
    assert_eq!(Answer::new(late).ok(), done, "the late decision changes nothing");
    assert_eq!(noted(folder.path(), "create_contact"), 0);
}

async fn a_client_that_leaves_the_repeated_call_cancels_the_run(on: On) {
    let folder = tempfile::tempdir().expect("a folder");
    let server = server(on, folder.path(), ASKS, &[]).await;
    let params = run(&json!({ "code": TWO }));
    let first = over_stdio(&server, params.clone()).await;
    let run_id = text(&first["requestState"]).split('.').next().expect("the run's name");
    let mut again = repeated(&params, &first, &closed());
    again["_meta"]["progressToken"] = "again".into();
    let (request, _answer) = server.begin_request("tools/call", again);
    let heard = server.notifications();
    until("the call waits", async || {
        let heard = heard.lock().expect("not poisoned");
        heard.iter().any(|it| it["params"]["progressToken"] == "again")
    })
    .await;
    server.cancel(request);
    let wanted = json!({ "execution_id": run_id, "wait_s": 50 });
    let done = server.call("get_execution_result", wanted).await.ok();
    assert_eq!(done["outcome"], "cancelled", "{done}");
    assert_eq!(noted(folder.path(), "create_contact"), 0);
}

async fn a_client_that_closes_the_connection_of_the_repeated_call_cancels_the_run(on: On) {
    let folder = tempfile::tempdir().expect("a folder");
    let (_server, alice, _) = web(on, folder.path(), ASKS).await;
    let id = name("gone");
    let params = run(&json!({ "session_id": id, "code": TWO }));
    let first = over_http(&alice, params.clone()).await;
    until("the run is cancelled", async || {
        let again = repeated(&params, &first, &closed());
        // The call waits for the page, until this drops its connection.
        let _ = timeout(BRIEF, over_http(&alice, again)).await;
        let seen = alice.send("GET", &format!("/sessions/{id}"), &[], &[]).await.json();
        seen["runs"][0]["outcome"] == "cancelled"
    })
    .await;
    assert_eq!(noted(folder.path(), "create_contact"), 0);
}

async fn nobody_else_can_repeat_a_call(on: On) {
    let folder = tempfile::tempdir().expect("a folder");
    let (_server, alice, bob) = web(on, folder.path(), ASKS).await;
    let id = name("foreign");
    let params = run(&json!({ "session_id": id, "code": TWO }));
    let first = over_http(&alice, params.clone()).await;
    let refused = Answer::new(over_http(&bob, repeated(&params, &first, &once())).await);
    assert_eq!(refused.error(), "invalid_argument");
    let listed = bob.send("GET", "/sessions", &[], &[]).await.json();
    assert_eq!(listed["sessions"], json!([]), "nothing was run for bob");
    assert_eq!(noted(folder.path(), "create_contact"), 0);
    let second = over_http(&alice, repeated(&params, &first, &declined())).await;
    let done = over_http(&alice, repeated(&params, &second, &declined())).await;
    assert_eq!(Answer::new(done).ok()["stdout"], "denied\ndenied\n");
}

async fn a_state_that_the_server_did_not_send_runs_nothing(on: On) {
    let folder = tempfile::tempdir().expect("a folder");
    let server = server(on, folder.path(), ASKS, &[]).await;
    let params = run(&json!({ "session_id": name("hostile"), "code": TWO }));
    for state in [
        String::new(),
        ".".into(),
        "..".into(),
        "run_20261128T000000Z_0000".into(),
        "run_20261128T000000Z_0000.".to_owned() + &"0".repeat(32),
        "\0\u{202e}\u{1b}[2J".into(),
        "x".repeat(1 << 20),
        ".".repeat(1 << 18),
    ] {
        let mut repeated = params.clone();
        repeated["requestState"] = state.into();
        repeated["inputResponses"] = json!({ "": once(), "x": 7, "roots": null });
        let refused = Answer::new(over_stdio(&server, repeated).await);
        assert_eq!(refused.error(), "invalid_argument");
        let message = text(&refused.json["message"]);
        assert!(message.contains("Nothing was run") && message.len() < 500, "{message}");
        assert!(!message.chars().any(char::is_control), "{message}");
    }
    for state in [json!(7), json!([]), json!({})] {
        let mut repeated = params.clone();
        repeated["requestState"] = state;
        let answer = server.request("tools/call", repeated).await;
        assert_eq!(answer["error"]["code"], -32602, "{answer}");
    }
    // Answers of another shape decide nothing.
    let mut asked = over_stdio(&server, params.clone()).await;
    let names: Vec<_> = forms(&asked).into_iter().map(|(id, _)| id).collect();
    for wrong in [json!(7), json!({}), json!({ "action": "accept" }), json!({ "action": "burn" })] {
        let (_, mut answer) = server.begin_request("tools/call", repeated(&params, &asked, &wrong));
        let seen =
            json!({ "execution_id": text(&asked["requestState"]).split('.').next(), "wait_s": 0 });
        let seen = server.call("get_execution_result", seen).await.ok();
        assert_eq!(seen["status"], "running", "{seen}");
        assert!(answer.try_recv().is_err(), "it waits");
    }
    assert_eq!(noted(folder.path(), "create_contact"), 0);
    asked = over_stdio(&server, repeated(&params, &asked, &once())).await;
    assert!(forms(&asked).iter().all(|(id, _)| !names.contains(id)), "{asked}");
    let done = over_stdio(&server, repeated(&params, &asked, &declined())).await;
    assert_eq!(Answer::new(done).ok()["stdout"], "done\ndenied\n");
}

async fn a_task_asks_the_user_of_its_client(on: On) {
    let folder = tempfile::tempdir().expect("a folder");
    let (_server, alice, _) = web(on, folder.path(), ASKS).await;
    let id = name("task");
    let mut params = run(&json!({ "session_id": id, "code": TWO }));
    let capabilities = &mut params["_meta"]["io.modelcontextprotocol/clientCapabilities"];
    capabilities["extensions"] = json!({ "io.modelcontextprotocol/tasks": {} });
    let first = over_http(&alice, params.clone()).await;
    question(&first);
    let task = over_http(&alice, repeated(&params, &first, &closed())).await;
    assert_eq!((&task["resultType"], &task["status"]), (&json!("task"), &json!("working")));
    let get = json!({ "taskId": task["taskId"], "_meta": params["_meta"] });
    let state = async |status: &str| {
        let mut state = Value::Null;
        until(status, async || {
            let answer = alice.ask("tasks/get", get.clone()).await;
            state = answer.last().expect("an answer")["result"].clone();
            state["status"] == *status
        })
        .await;
        state
    };
    let update = async |state: &Value, answer: Value| {
        let forms = state["inputRequests"].as_object().expect("questions");
        let [id] = &forms.keys().collect::<Vec<_>>()[..] else { panic!("{state}") };
        let mut update = get.clone();
        update["inputResponses"] = json!({ *id: answer });
        alice.ask("tasks/update", update).await;
    };
    let asks = state("input_required").await;
    assert_eq!(asks["inputRequests"], first["inputRequests"], "it is the same question");
    update(&asks, closed()).await;
    assert_eq!(state("input_required").await["inputRequests"], first["inputRequests"]);
    update(&asks, json!({ "action": "accept", "content": { "decision": "run" } })).await;
    let done = state("completed").await;
    assert_eq!(done["result"]["structuredContent"]["stdout"], "done\ndone\n", "{done}");
}

async fn a_client_without_forms_gets_none(on: On) {
    let folder = tempfile::tempdir().expect("a folder");
    let (_server, alice, _) = web(on, folder.path(), ASKS).await;
    for capabilities in [json!({}), json!({ "elicitation": { "url": {} } })] {
        let id = name("no-forms");
        let mut params = run(&json!({ "session_id": id, "code": TWO }));
        params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = capabilities;
        let person = async {
            let approval = waiting(&alice, &id).await;
            assert_eq!(decide(&alice, &id, &approval, "run").await, 204);
        };
        let (ran, ()) = tokio::join!(over_http(&alice, params), person);
        assert_eq!(Answer::new(ran).ok()["stdout"], "done\ndone\n");
    }
}

async fn a_repeated_call_is_one_call_in_the_audit_file(on: On) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("audit.jsonl");
    let settings = [("SANDBOX_AUDIT_FILE", file.to_str().expect("UTF-8"))];
    let server = server(on, folder.path(), ASKS, &settings).await;
    let params = run(&json!({ "code": TWO }));
    let first = over_stdio(&server, params.clone()).await;
    let second = over_stdio(&server, repeated(&params, &first, &once())).await;
    let done = over_stdio(&server, repeated(&params, &second, &declined())).await;
    let done = Answer::new(done).ok();
    let mut unknown = params.clone();
    unknown["requestState"] = "nonsense".into();
    Answer::new(over_stdio(&server, unknown).await).error();
    // The result of a run that has ended is read, as by get_execution_result.
    let late = Answer::new(over_stdio(&server, repeated(&params, &second, &declined())).await).ok();
    assert_eq!(late, done);
    until("the lines are written", async || lines(&file).len() == 5).await;
    let lines = lines(&file);
    let of = |tool: &str| -> Vec<&Value> { lines.iter().filter(|it| it["tool"] == tool).collect() };
    let outcomes: Vec<_> = of("run_python").into_iter().map(|it| &it["outcome"]).collect();
    assert_eq!(outcomes, ["ok", "invalid_argument", "ok"], "{lines:?}");
    for line in [0, 2] {
        assert_eq!(of("run_python")[line]["run_id"], done["run_id"]);
    }
    assert_eq!(of("run_python")[1]["run_id"], Value::Null, "the text of a client");
    for (line, decision) in of("crm.create_contact").into_iter().zip(["once", "deny"]) {
        assert_eq!(
            (&line["decision"], &line["decided_by"]),
            (&json!(decision), &json!("elicitation"))
        );
    }
}

/// The lines of calls in an audit file.
fn lines(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|line| line.get("event").is_none()).collect()
}
