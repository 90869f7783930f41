//! Calls out of a sandbox: code calls tools of the operator's upstreams through the server, though it has no network.

use std::{fs, path::Path};

use serde_json::{Value, json};
use support::{On, Server, name, on_all, text, until, web::*};

on_all! {
    code_calls_a_tool_and_gets_its_answer,
    a_search_shows_what_the_tools_take,
    a_failure_is_an_exception_in_the_words_of_the_upstream,
    a_picture_becomes_a_file_of_the_session,
    a_cell_calls_tools_as_a_program_does,
    a_call_that_a_person_must_allow_waits_until_the_page_decides,
    a_call_that_is_refused_is_an_exception,
    a_cell_whose_call_is_refused_is_told_not_to_repeat_it,
    the_time_of_a_call_counts_once_a_person_has_decided,
    more_calls_than_a_run_may_make_fail,
    a_run_that_ends_takes_its_calls_with_it,
    the_user_of_the_client_decides_if_the_client_has_forms;
    on docker alone:
    a_shell_calls_tools,
    javascript_calls_tools_in_a_container,
    no_secret_of_an_upstream_enters_a_container,
}

mod wasm_only {
    use support::On;

    support::tests! {
        javascript_calls_tools => super::javascript_calls_tools(On::Wasm);
        no_secret_of_an_upstream_enters_a_sandbox =>
            super::no_secret_of_an_upstream_enters_a_sandbox(On::Wasm);
    }
}

/// The program of the upstream.
const UPSTREAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/upstream/server.py");

/// Settings with an upstream `crm`, that notes its calls in a folder; `more` are lines of its entry.
fn settings(folder: &Path, more: &str) -> String {
    let notes = folder.join("notes");
    fs::create_dir_all(&notes).expect("made");
    let file = folder.join("config.yaml");
    let text = format!(
        "upstreams:\n  crm:\n    command: python3\n    args: [\"{UPSTREAM}\", old, \"{}\"]\n{more}",
        notes.display()
    );
    fs::write(&file, text).expect("written");
    file.to_str().expect("UTF-8").to_owned()
}

/// The number of notes of this kind.
pub(super) fn noted(folder: &Path, kind: &str) -> usize {
    let names = fs::read_dir(folder.join("notes")).expect("a folder");
    names
        .filter(|name| name.as_ref().expect("read").file_name().to_string_lossy().starts_with(kind))
        .count()
}

pub(super) async fn server(on: On, folder: &Path, more: &str, others: &[(&str, &str)]) -> Server {
    let file = settings(folder, more);
    Server::start_with(on, &[&[("SANDBOX_CONFIG_FILE", &*file)], others].concat()).await
}

/// A server over HTTP with the same settings, and two callers.
pub(super) async fn web(on: On, folder: &Path, more: &str) -> (Web, Caller, Caller) {
    let file = settings(folder, more);
    Web::of_two(on, &[("SANDBOX_CONFIG_FILE", &file)]).await
}

async fn code_calls_a_tool_and_gets_its_answer(on: On) {
    let folder = tempfile::tempdir().expect("a folder");
    let server = server(on, folder.path(), "", &[]).await;
    let code = "import tools\nprint(tools.crm.echo(text='hello'), tools.crm.structured()['rows'])";
    let ran = server.call("run_python", json!({ "code": code })).await.ok();
    assert_eq!(ran["stdout"], "hello [1, 2]\n", "{ran}");
}

async fn a_search_shows_what_the_tools_take(on: On) {
    let folder = tempfile::tempdir().expect("a folder");
    let server = server(on, folder.path(), "", &[]).await;
    let code = "import tools\nprint(tools.search('echo'), tools.list(), sep='\\n')\nprint(tools.crm.echo(text='x'))";
    let ran = server.call("run_python", json!({ "code": code })).await.ok();
    let stdout = text(&ran["stdout"]);
    let lines: Vec<_> = stdout.lines().collect();
    assert!(lines[0].starts_with("tools.crm.echo(text: str)  "), "{stdout}");
    assert!(lines[1].starts_with("tools.crm (") && lines[2] == "x", "{stdout}");
}

async fn a_failure_is_an_exception_in_the_words_of_the_upstream(on: On) {
    let folder = tempfile::tempdir().expect("a folder");
    let server = server(on, folder.path(), "", &[]).await;
    let code = "import tools\ntry: tools.crm.fail()\nexcept tools.ToolError as error: print(error.kind, error)\n\
                try: tools.crm.create_contact(text='x')\n\
                except tools.ToolError as error: print(error.kind)";
    let ran = server.call("run_python", json!({ "code": code })).await.ok();
    let stdout = text(&ran["stdout"]);
    assert!(stdout.starts_with("upstream ") && stdout.contains("no such contact"), "{ran}");
    assert!(stdout.ends_with("not_allowed\n"), "{stdout}");
    assert_eq!(noted(folder.path(), "create_contact"), 0);
}

async fn a_picture_becomes_a_file_of_the_session(on: On) {
    let folder = tempfile::tempdir().expect("a folder");
    let server = server(on, folder.path(), "", &[]).await;
    let code = "import tools\nit = tools.crm.image()\nprint(it.mime_type, open(it.path.removeprefix('/mnt/data/'), 'rb').read()[1:4])";
    let ran = server.call("run_python", json!({ "code": code })).await.ok();
    assert_eq!(ran["stdout"], "image/png b'PNG'\n", "{ran}");
    let name = text(&ran["artifacts"][0]["filename"]);
    assert_eq!(
        name.strip_suffix("_0.png").map(|it| it.starts_with("calls/crm_image_")),
        Some(true),
        "{name}"
    );
}

async fn a_cell_calls_tools_as_a_program_does(on: On) {
    let folder = tempfile::tempdir().expect("a folder");
    let server = server(on, folder.path(), "", &[]).await;
    for code in ["import tools\ntools.crm.echo(text='a')", "tools.crm.echo(text='b')"] {
        let ran = server.call("execute_code", json!({ "code": code })).await.ok();
        assert!(["'a'", "'b'"].contains(&text(&ran["result"])), "{ran}");
    }
}

async fn javascript_calls_tools(on: On) {
    let folder = tempfile::tempdir().expect("a folder");
    let server = server(on, folder.path(), "", &[]).await;
    let code = "const found = await tools.crm.structured(); console.log(found.rows.length, await tools.crm.echo({ text: 'é' }));
console.log(await tools.list()); console.log((await tools.search('echo'))[0]);";
    for _ in 0..2 {
        let arguments = json!({ "code": code, "language": "javascript" });
        let ran = server.call("execute_code", arguments).await.ok();
        let lines: Vec<_> = text(&ran["stdout"]).lines().collect();
        let starts = ["2 é", "tools.crm (", "tools.crm.echo({ text: string })"];
        let is_shown = lines.iter().zip(starts).all(|(line, start)| line.starts_with(start));
        assert!(lines.len() == 3 && is_shown, "{ran}");
    }
}

async fn javascript_calls_tools_in_a_container() {
    javascript_calls_tools(On::Docker).await;
}

async fn no_secret_of_an_upstream_enters_a_container() {
    no_secret_of_an_upstream_enters_a_sandbox(On::Docker).await;
}

async fn a_shell_calls_tools() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = server(On::Docker, folder.path(), "", &[]).await;
    let code = r#"!tool crm echo '{"text": "from a shell"}'; tool crm fail; echo $?"#;
    let ran = server.call("execute_code", json!({ "code": code })).await.ok();
    let stdout = text(&ran["stdout"]);
    assert!(stdout.contains("from a shell") && stdout.ends_with("1\n"), "{ran}");
}

async fn the_user_of_the_client_decides_if_the_client_has_forms(on: On) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = settings(folder.path(), ASKS);
    let server = Server::launch(on, &[("SANDBOX_CONFIG_FILE", &file)]);
    let hello = json!({
        "protocolVersion": "2025-11-25",
        "capabilities": { "elicitation": {} },
        "clientInfo": { "name": "tests", "version": "1" },
    });
    server.request("initialize", hello).await;
    server.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
    let asked = || -> Vec<Value> {
        let heard = server.notifications();
        let heard = heard.lock().expect("not poisoned");
        heard.iter().filter(|it| it["method"] == "elicitation/create").cloned().collect()
    };
    let answers = [
        (json!({ "action": "accept", "content": { "decision": "once" } }), "done\n"),
        (json!({ "action": "decline" }), "denied\n"),
    ];
    for (at, (answer, printed)) in answers.into_iter().enumerate() {
        let code = "import tools\ntry: print(tools.crm.create_contact(text='x'))\n\
                    except tools.ToolError as error: print(error.kind)";
        let run = server.call("run_python", json!({ "code": code }));
        let user = async {
            until("the user is asked", async || asked().len() > at).await;
            let asked = asked()[at].clone();
            let shown = text(&asked["params"]["message"]).to_owned();
            assert!(shown.contains("crm.create_contact") && shown.contains("\"x\""), "{shown}");
            assert_eq!(asked["params"]["requestedSchema"]["required"], json!(["decision"]));
            server.send(&json!({ "jsonrpc": "2.0", "id": asked["id"], "result": answer }));
        };
        let (ran, ()) = tokio::join!(run, user);
        assert_eq!(ran.ok()["stdout"], printed);
    }
    assert_eq!(noted(folder.path(), "create_contact"), 1);
}

async fn no_secret_of_an_upstream_enters_a_sandbox(on: On) {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("secret"), "s3cret-of-the-crm").expect("written");
    let more =
        format!("    env: {{ TOKEN: \"file:{}\" }}\n", folder.path().join("secret").display());
    let server = server(on, folder.path(), &more, &[]).await;
    let code = "import tools
given = tools.crm.environment()
print(given['TOKEN'])
import os, pathlib
found, needle = [], 's3cret' + '-of-the-crm'
for top in ('/tmp', '/mnt/data', '/opt', '/etc', '/proc/self/environ', '/proc/1/environ'):
    for place in [top, *(os.path.join(at, name) for at, _, names in os.walk(top) for name in names)]:
        try: content = pathlib.Path(place).read_bytes()
        except OSError: continue
        if needle.encode() in content: found.append(place)
print(found)";
    let ran = server.call("run_python", json!({ "code": code, "timeout_s": 60 })).await.ok();
    assert_eq!(ran["stdout"], "[secret]\n[]\n", "{ran}");
}

/// The lines of an upstream of which a person must allow each new contact.
pub(super) const ASKS: &str = "    ask: [create_*]\n";

/// A program that makes a contact, and then another.
const TWO: &str = "import tools
print(tools.crm.create_contact(text='<b>1</b>'))
print(tools.crm.create_contact(text='2'))";

/// Waits until a call of a session's last run waits for a person.
pub(super) async fn waiting(caller: &Caller, session: &str) -> Value {
    let mut found = Value::Null;
    until("a call waits", async || {
        let seen = caller.send("GET", &format!("/sessions/{session}"), &[], &[]).await;
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

/// Decides on a call. Returns the status of the answer.
pub(super) async fn decide(
    caller: &Caller,
    session: &str,
    approval: &Value,
    decision: &str,
) -> u16 {
    let target = format!("/sessions/{session}/approvals/{}", text(&approval["approval_id"]));
    let body = json!({ "decision": decision }).to_string();
    let headers = [("Content-Type", "application/json")];
    caller.send("POST", &target, &headers, body.as_bytes()).await.status
}

async fn a_call_that_a_person_must_allow_waits_until_the_page_decides(on: On) {
    let folder = tempfile::tempdir().expect("a folder");
    let (_server, alice, bob) = web(on, folder.path(), ASKS).await;
    let id = name("approval");
    let arguments = json!({ "session_id": id, "code": TWO, "timeout_s": 20 });
    let run = alice.call("run_python", arguments);
    let person = async {
        let approval = waiting(&alice, &id).await;
        assert_eq!(
            (&approval["upstream"], &approval["tool"]),
            (&json!("crm"), &json!("create_contact"))
        );
        assert_eq!(approval["arguments"], "{\n  \"text\": \"<b>1</b>\"\n}");
        assert_eq!(noted(folder.path(), "create_contact"), 0, "nothing is called before");
        assert_eq!(decide(&bob, &id, &approval, "once").await, 404, "it is not bob's");
        assert_eq!(decide(&alice, &id, &approval, "perhaps").await, 400);
        assert_eq!(decide(&alice, &id, &approval, "run").await, 204);
        assert_eq!(decide(&alice, &id, &approval, "deny").await, 404, "it is decided");
    };
    let (ran, ()) = tokio::join!(run, person);
    let ran = ran.ok();
    assert_eq!(ran["stdout"], "done\ndone\n", "{ran}");
    assert_eq!(noted(folder.path(), "create_contact"), 2);
    let seen = alice.send("GET", &format!("/sessions/{id}"), &[], &[]).await.json();
    let decisions: Vec<_> = seen["runs"][0]["calls"]
        .as_array()
        .expect("calls")
        .iter()
        .map(|call| text(&call["decision"]))
        .collect();
    assert_eq!(decisions, ["run", "allowed for the run"]);
}

async fn a_call_that_is_refused_is_an_exception(on: On) {
    let folder = tempfile::tempdir().expect("a folder");
    let (_server, alice, _) = web(on, folder.path(), ASKS).await;
    let id = name("refused");
    let code = "import tools\ntry: tools.crm.create_contact(text='x')\nexcept tools.ToolError as error: print(error.kind)";
    let run = alice.call("run_python", json!({ "session_id": id, "code": code }));
    let person = async {
        let approval = waiting(&alice, &id).await;
        assert_eq!(decide(&alice, &id, &approval, "deny").await, 204);
    };
    let (ran, ()) = tokio::join!(run, person);
    assert_eq!(ran.ok()["stdout"], "denied\n");
    assert_eq!(noted(folder.path(), "create_contact"), 0);
    let seen = alice.send("GET", &format!("/sessions/{id}"), &[], &[]).await.json();
    let call = &seen["runs"][0]["calls"][0];
    assert_eq!((&call["outcome"], &call["decision"]), (&json!("denied"), &json!("deny")), "{seen}");
}

async fn the_time_of_a_call_counts_once_a_person_has_decided(on: On) {
    let folder = tempfile::tempdir().expect("a folder");
    let (_server, alice, _) = web(on, folder.path(), "    ask: [slow]\n").await;
    let id = name("slow");
    let code = "import tools\ntools.crm.slow()";
    let arguments = json!({ "session_id": id, "code": code, "timeout_s": 10 });
    let run = alice.call("run_python", arguments);
    let person = async {
        let approval = waiting(&alice, &id).await;
        assert_eq!(decide(&alice, &id, &approval, "once").await, 204);
    };
    let (ran, ()) = tokio::join!(run, person);
    let ran = ran.ok();
    assert_eq!(ran["outcome"], "timeout", "{ran}");
    until("the call is cancelled", async || noted(folder.path(), "cancelled") == 1).await;
}

async fn a_cell_whose_call_is_refused_is_told_not_to_repeat_it(on: On) {
    let folder = tempfile::tempdir().expect("a folder");
    let (_server, alice, _) = web(on, folder.path(), ASKS).await;
    for (tool, language, code) in [
        ("execute_code", "python", "import tools\ntools.crm.create_contact(text='x')"),
        ("execute_code", "javascript", "await tools.crm.createContact({ text: 'x' })"),
        ("run_python", "python", "import tools\ntools.crm.create_contact(text='x')"),
    ] {
        // Node 20, which this machine may have, fills up the name of the agent's socket with zeros, and so finds none.
        if matches!(on, On::Local | On::Kubernetes) && language == "javascript" {
            continue;
        }
        let id = name("told");
        let mut arguments = json!({ "session_id": id, "code": code });
        if tool == "execute_code" {
            arguments["language"] = language.into();
        }
        let person = async {
            let approval = waiting(&alice, &id).await;
            assert_eq!(decide(&alice, &id, &approval, "deny").await, 204);
        };
        let (ran, ()) = tokio::join!(alice.call(tool, arguments), person);
        let ran = ran.ok();
        let told = format!("{}{}", ran["error_message"], ran["notes"]);
        assert!(told.contains("Do not repeat the call: ask the user"), "{ran}");
        assert!(!told.contains("run it again"), "{ran}");
    }
    assert_eq!(noted(folder.path(), "create_contact"), 0);
}

async fn more_calls_than_a_run_may_make_fail(on: On) {
    let folder = tempfile::tempdir().expect("a folder");
    let server = server(on, folder.path(), "", &[("SANDBOX_CALLS_PER_RUN", "3")]).await;
    let code = "import tools\ndone = 0\ntry:\n  while True: tools.crm.echo(text='x'); done += 1\n\
                except tools.ToolError as error: print(done, error.kind)";
    for _ in 0..2 {
        let ran = server.call("run_python", json!({ "code": code })).await.ok();
        assert_eq!(ran["stdout"], "3 limit\n", "{ran}");
    }
}

async fn a_run_that_ends_takes_its_calls_with_it(on: On) {
    let folder = tempfile::tempdir().expect("a folder");
    let server = server(on, folder.path(), "", &[]).await;
    let arguments = json!({ "code": "import tools\ntools.crm.slow()", "background": true });
    let begun = server.call("run_python", arguments).await.ok();
    until("the call is made", async || noted(folder.path(), "slow") == 1).await;
    let cancel = json!({ "execution_id": begun["run_id"] });
    assert_eq!(server.call("cancel_execution", cancel).await.ok()["status"], "cancelled");
    until("the call is cancelled", async || noted(folder.path(), "cancelled") == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_its_run_gives_up_is_recorded() {
    let folder = tempfile::tempdir().expect("a folder");
    let (file, audit) = (settings(folder.path(), ""), folder.path().join("audit.jsonl"));
    let audit_file = audit.to_str().expect("UTF-8");
    let given = [("SANDBOX_CONFIG_FILE", &*file), ("SANDBOX_AUDIT_FILE", audit_file)];
    let (_server, alice, _) = Web::of_two(On::Local, &given).await;
    let id = name("given_up");
    let code = "import tools\ntools.crm.slow()";
    let arguments = json!({ "session_id": id, "code": code, "background": true });
    let run = alice.call("run_python", arguments).await.ok()["run_id"].clone();
    until("the call is made", async || noted(folder.path(), "slow") == 1).await;
    alice.call("cancel_execution", json!({ "execution_id": run })).await.ok();
    until("it is counted", async || {
        let metrics = alice.send("GET", "/metrics", &[], &[]).await.body;
        let metrics = String::from_utf8_lossy(&metrics).into_owned();
        let counts = |line: &&str| line.contains("calls_out_total") && line.ends_with(" 1");
        let mut counts = metrics.lines().filter(counts);
        counts.any(|line| line.contains("\"crm\"") && line.contains("\"abandoned\""))
    })
    .await;
    let seen = alice.send("GET", &format!("/sessions/{id}"), &[], &[]).await.json();
    assert_eq!(seen["runs"][0]["calls"][0]["outcome"], "abandoned", "{seen}");
    let lines = fs::read_to_string(audit).expect("the audit file");
    let is_its = |line: &&str| line.contains("crm.slow") && line.contains("\"abandoned\"");
    assert_eq!(lines.lines().filter(is_its).count(), 1, "{lines}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_calls_have_used_their_bytes_learns_the_limit_and_its_setting() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = server(On::Local, folder.path(), "", &[("SANDBOX_CALLS_BYTES", "1000000")]).await;
    let code = "import tools\ntry:\n  for _ in range(9): tools.crm.huge(bytes=400_000)\n\
                except tools.ToolError as error: print(error.kind, error)";
    let ran = server.call("run_python", json!({ "code": code })).await.ok();
    let stdout = text(&ran["stdout"]);
    assert!(
        stdout.starts_with("limit crm.huge: ") && stdout.contains("SANDBOX_CALLS_BYTES"),
        "{ran}"
    );
    assert!(stdout.contains("1MB") && stdout.contains("smaller pages"), "{ran}");
}

/// Two callers, of whom one has a policy.
const TEAM: &str = "policies:
  few: { calls: { max_per_run: 2 } }
callers:
  - { name: ann, token: secret-ann }
  - { name: ben, token: secret-ben, policy: few }
";

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_narrows_the_calls_of_its_callers() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = settings(folder.path(), TEAM);
    let server = Web::start(On::Local, &[("SANDBOX_CONFIG_FILE", &file)]).await;
    let code = "import tools\ndone = 0\ntry:\n  for _ in range(5): tools.crm.echo(text='x'); done += 1\n\
                except tools.ToolError as error: print(error.kind)\nprint(done)";
    for (token, printed) in [("secret-ann", "5\n"), ("secret-ben", "limit\n2\n")] {
        let ran = server.caller(Some(token)).call("run_python", json!({ "code": code })).await.ok();
        assert_eq!(ran["stdout"], printed, "{ran}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn patterns_find_a_tool_however_its_name_is_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let (_server, alice, _) = web(On::Local, folder.path(), "    ask: [Create-Contact]\n").await;
    let id = name("pattern");
    let arguments = json!({ "session_id": id, "code": TWO, "background": true });
    let run = alice.call("run_python", arguments).await.ok()["run_id"].clone();
    waiting(&alice, &id).await;
    let wanted = json!({ "execution_id": run, "wait_s": 0 });
    let seen = alice.call("get_execution_result", wanted).await.ok();
    let note = text(&seen["notes"][0]);
    assert!(note.contains("waiting for a person to allow crm.create_contact: http"), "{seen}");
    alice.call("cancel_execution", json!({ "execution_id": run })).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn other_calls_are_told_for_whom_the_run_waits() {
    let folder = tempfile::tempdir().expect("a folder");
    let (_server, alice, _) = web(On::Local, folder.path(), ASKS).await;
    let id = name("busy");
    let arguments = json!({ "session_id": id, "code": TWO, "background": true });
    let run = alice.call("run_python", arguments).await.ok()["run_id"].clone();
    waiting(&alice, &id).await;
    let busy = alice.call("run_python", json!({ "session_id": id, "code": "1" })).await;
    assert_eq!(busy.error(), "session_busy");
    let words =
        format!("{} waits for a person to allow crm.create_contact: ask the user", text(&run));
    assert!(text(&busy.json["message"]).contains(&words), "{}", busy.json);
    assert!(text(&busy.json["page_url"]).contains(&id), "{}", busy.json);
    let look = alice.call("get_workspace_info", json!({ "session_id": id })).await.ok();
    let notes = look["notes"].to_string();
    assert!(notes.contains("waiting for a person to allow crm.create_contact: http"), "{look}");
    alice.call("cancel_execution", json!({ "execution_id": run })).await.ok();
}

/// Whether a process with this number exists.
fn lives(pid: &Value) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_processes_of_upstreams_end_with_the_server() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut server = server(On::Local, folder.path(), "", &[]).await;
    let code = "import json, tools\nprint(json.dumps(tools.crm.child()))";
    let ran = server.call("run_python", json!({ "code": code })).await.ok();
    let pids: Value = serde_json::from_str(text(&ran["stdout"])).expect("JSON");
    assert!(lives(&pids[0]) && lives(&pids[1]), "{pids}");
    server.close_input();
    until("they end", async || !lives(&pids[0]) && !lives(&pids[1])).await;
}
