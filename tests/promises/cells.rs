//! Cells: what stays between calls, how the answer tells each end, and what a model can ask about its workspace.

use serde_json::{Value, json};
use support::{Answer, On, PATIENCE, Server, assert_fields, name, on_all, text, web::Web};
use tokio::{join, time::timeout};

on_all! {
    a_language_that_is_not_there_is_named_with_those_that_are,
    code_of_nothing_and_code_that_is_too_long_are_refused,
    without_a_workspace_there_is_nothing_to_look_at_or_to_reset,
    a_workspace_is_told_of_during_a_run,
    the_languages_are_listed_with_what_they_can,
    tools_come_in_the_sets_that_a_server_offers,
    a_client_over_http_chooses_sets_by_its_url,
    ; on docker alone:
    variables_imports_and_functions_stay,
    the_value_of_the_last_expression_is_the_result,
    an_error_keeps_what_was_done_before_it_and_its_files,
    figures_come_in_order_and_to_look_at_also_after_an_error,
    an_exit_code_is_that_of_sys_exit_and_the_workspace_stays,
    a_timeout_takes_variables_back_and_says_so,
    an_interpreter_that_ends_takes_variables_back,
    without_a_cell_that_lasted_no_variables_are_missed,
    variables_whose_interpreter_was_killed_from_outside_are_told_to_be_lost,
    a_cell_that_takes_all_memory_is_told_and_taken_back,
    a_cancelled_cell_is_taken_back_and_the_next_one_runs,
    a_long_timeout_is_the_limit,
    code_in_fences_runs_in_the_language_that_they_name,
    a_cell_reads_what_it_is_given,
    a_second_cell_is_refused_while_one_runs,
    cells_are_taken_back_one_by_one,
    more_cells_than_there_are_cannot_be_taken_back,
    a_reset_leaves_files_unless_they_are_to_go,
    what_a_workspace_holds_is_told,
    a_long_value_and_a_long_output_fit_into_one_result,
    a_traceback_shows_the_frames_of_the_cell,
    a_stateless_cell_leaves_nothing,
    programs_and_cells_share_files_and_nothing_else,
    languages_have_an_interpreter_each,
    a_client_has_one_workspace_and_others_have_their_own,
}

/// A server over stdio, whose client has one workspace.
async fn containers() -> Server {
    Server::start(On::Docker).await
}

/// Runs a cell, which may end in any way, but must be answered with a result.
async fn cell(server: &Server, code: &str) -> Value {
    server.call("execute_code", json!({ "code": code })).await.ok()
}

async fn info(server: &Server) -> Value {
    server.call("get_workspace_info", json!({})).await.ok()
}

#[track_caller]
fn assert_success(ran: &Value) {
    assert_fields!(ran, { "status": "success", "exit_code": 0, "state": "kept" });
    assert_eq!(ran.get("error_message"), None, "{ran}");
}

#[track_caller]
fn notes(ran: &Value) -> String {
    let notes = ran["notes"].as_array().cloned().unwrap_or_default();
    notes.iter().map(text).collect::<Vec<_>>().join("\n")
}

async fn a_language_that_is_not_there_is_named_with_those_that_are(on: On) {
    let server = Server::start(on).await;
    for tool in ["execute_code", "get_workspace_info", "reset_workspace"] {
        let mut arguments = json!({ "language": "cobol" });
        if tool == "execute_code" {
            arguments["code"] = json!("DISPLAY 1");
        }
        let refused = server.call(tool, arguments).await;
        assert_eq!(refused.error(), "unsupported_language");
        let why = text(&refused.json["message"]);
        assert!(why.starts_with("\"cobol\" does not run here. The languages are python"), "{why}");
    }
}

async fn code_of_nothing_and_code_that_is_too_long_are_refused(on: On) {
    let server = Server::start(on).await;
    let refused = server.call("execute_code", json!({ "code": " \n" })).await;
    assert_eq!(refused.error(), "invalid_argument");
    let refused = server.call("execute_code", json!({ "code": "x".repeat(100_001) })).await;
    assert_eq!(refused.error(), "code_too_large");
}

async fn without_a_workspace_there_is_nothing_to_look_at_or_to_reset(on: On) {
    let server = Server::start(on).await;
    for (tool, expected) in [
        ("get_workspace_info", json!({ "variables": [], "imports": [], "execution_count": 0 })),
        ("reset_workspace", json!({ "status": "reset", "execution_count": 0 })),
    ] {
        let mut told = server.call(tool, json!({})).await.ok();
        assert!(
            notes(&told).contains("no workspace yet. The first execute_code starts one"),
            "{told}"
        );
        let told = told.as_object_mut().expect("an object");
        told.remove("notes");
        let mut expected = expected;
        expected["workspace"] = Value::Null;
        expected["language"] = json!("python");
        assert_eq!(Value::Object(told.clone()), expected);
        let unknown = server.call(tool, json!({ "session_id": "nowhere" })).await;
        assert_eq!(unknown.error(), "session_not_found");
    }
    let refused = server.call("reset_workspace", json!({ "undo": 2 })).await;
    assert_eq!(refused.error(), "nothing_to_undo");
    let refused = server.call("reset_workspace", json!({ "undo": 0 })).await;
    assert_eq!(refused.error(), "invalid_argument");
}

async fn a_workspace_is_told_of_during_a_run(on: On) {
    let (server, id) = (Server::start(on).await, name("busy-info"));
    server.run(&id, "open('a.csv', 'w').write('12345')").await;
    let code = "# waits for a file\nimport os, time\nopen('began', 'w')\n\
                while not os.path.exists('go'): time.sleep(0.01)";
    let look = async {
        loop {
            let told = server.call("get_workspace_info", json!({ "session_id": id })).await.ok();
            let last = told["history"].as_array().and_then(|runs| runs.last().cloned());
            let runs = last.is_some_and(|run| run["status"] == "running");
            // An answer from just before the run began contains variables.
            if runs && told["files"]["count"] == 2 && told.get("variables").is_none() {
                server.upload(&id, "go", b"x").await.ok();
                return told;
            }
        }
    };
    let (_, told) =
        timeout(PATIENCE, async { join!(server.run(&id, code), look) }).await.expect("in time");
    assert_fields!(told, { "session_id": id, "variables": null });
    assert!(notes(&told).contains("A run is in progress"), "{told}");
    let runs = told["history"].as_array().expect("an array");
    assert_eq!((runs.len(), &runs[0]["status"]), (2, &json!("success")));
    assert_eq!(runs[0]["code"], "open('a.csv', 'w').write('12345')");
    assert_eq!(runs[1]["code"], "# waits for a file");
    assert_eq!(
        (&runs[1]["language"], text(&runs[1]["run_id"]).starts_with("run_")),
        (&json!("python"), true)
    );
    assert!(text(&told["expires_at"]) > text(&told["created_at"]));
}

async fn the_languages_are_listed_with_what_they_can(on: On) {
    let server = Server::start(on).await;
    let listed = server.call("list_runtimes", json!({})).await.ok();
    let runtimes = listed["runtimes"].as_array().expect("an array");
    let python = &runtimes[0];
    assert_eq!(python["language"], "python");
    assert!(on.is_plain() || text(&python["version"]).starts_with("3."));
    assert_eq!(python["engine"], on.name());
    let module = if on == On::Wasm { json!("python.wasm") } else { Value::Null };
    assert_eq!(python["wasm_module"], module, "of containers there is none");
    let features = python["features"].as_array().expect("an array");
    for feature in ["state", "rollback", "undo", "top_level_await"] {
        assert!(features.contains(&json!(feature)), "{feature}: {features:?}");
    }
    let packages = python["packages"].as_array().expect("an array");
    assert!(packages.iter().any(|it| it["name"] == "pandas" && it["version"].is_string()));
}

/// The names of the tools in an answer to `tools/list`.
#[track_caller]
fn names(answer: &Value) -> Vec<String> {
    let tools = answer["result"]["tools"].as_array().unwrap_or_else(|| panic!("no list: {answer}"));
    tools.iter().map(|tool| text(&tool["name"]).to_owned()).collect()
}

const RUN: [&str; 6] = [
    "close_session",
    "list_artifacts",
    "read_artifact",
    "read_output",
    "run_python",
    "upload_file",
];
const CODE: [&str; 3] = ["execute_code", "get_workspace_info", "reset_workspace"];

async fn tools_come_in_the_sets_that_a_server_offers(on: On) {
    let listed = async |toolsets: &str| {
        let server = Server::start_with(on, &[("SANDBOX_TOOLSETS", toolsets)]).await;
        names(&server.request("tools/list", json!({})).await)
    };
    assert_eq!(listed("run").await, RUN);
    assert_eq!(listed("code").await, CODE);
    let mut both = [&RUN[..], &CODE[..]].concat();
    both.sort_unstable();
    assert_eq!(listed("code, run").await, both);
    let all = listed("").await;
    assert!(both.iter().all(|tool| all.contains(&(*tool).to_owned())));
    assert!(
        all.contains(&"list_runtimes".to_owned()) && !all.contains(&"install_package".to_owned())
    );

    let server = Server::start_with(on, &[("SANDBOX_TOOLSETS", "run")]).await;
    let call = json!({ "name": "execute_code", "arguments": { "code": "1" } });
    let refused = server.request("tools/call", call).await;
    let why = text(&refused["error"]["message"]);
    assert!(why.contains("no tool \"execute_code\" here") && why.contains("run_python"), "{why}");

    let server = Server::start_with(on, &[("SANDBOX_TOOLSETS", "code")]).await;
    let call = json!({ "name": "install_packages", "arguments": {} });
    let refused = server.request("tools/call", call).await;
    let why = text(&refused["error"]["message"]);
    assert!(why.ends_with(&format!("The tools are {}.", CODE.join(", "))), "as listed: {why}");
    let long = cell(&server, "print('\\x01' * 15_000)").await;
    let stdout = text(&long["stdout"]);
    assert!(
        stdout.contains("bytes left out; print what is needed of it"),
        "there is no read_output"
    );
}

async fn a_client_over_http_chooses_sets_by_its_url(on: On) {
    let web = Web::start(on, &[]).await;
    let ask = async |query: &str, method: &str, params: Value| {
        let caller = web.caller(None).at(query);
        let (message, headers) = caller.modern(method, params);
        let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, &**value)).collect();
        let response = caller.post(&message, &headers).await;
        response.messages().last().expect("an answer").clone()
    };
    let listed = async |query: &str| ask(query, "tools/list", json!({})).await;
    assert_eq!(names(&listed("?toolsets=run").await), RUN);
    assert_eq!(names(&listed("?toolsets=CODE").await), CODE);
    assert!(names(&listed("").await).len() > RUN.len() + CODE.len());
    let refused = listed("?toolsets=run&worspace=sales").await;
    let why = text(&refused["error"]["message"]);
    assert!(why.contains("no \"worspace\" in its URL; it takes workspace, toolsets"), "{why}");
    let refused = listed("?toolsets=run,files").await;
    let why = text(&refused["error"]["message"]);
    assert!(why.contains("no toolset \"files\"; the toolsets are run, code, sessions"), "{why}");

    let arguments = json!({ "name": "execute_code", "arguments": { "code": "1" } });
    let refused = ask("?toolsets=run", "tools/call", arguments).await;
    assert!(
        text(&refused["error"]["message"]).contains("no tool \"execute_code\" here"),
        "{refused}"
    );
}

async fn variables_imports_and_functions_stay() {
    let server = containers().await;
    let first = cell(&server, "import math\nx = 20\ndef double(n): return 2 * n").await;
    assert_success(&first);
    assert_eq!((&first["new_workspace"], &first["execution_count"]), (&json!(true), &json!(1)));
    assert_eq!((first.get("result"), first.get("notes")), (None, None), "{first}");
    let second = cell(&server, "print(double(x) + math.floor(2.5))").await;
    assert_success(&second);
    assert_eq!((&second["stdout"], second.get("new_workspace")), (&json!("42\n"), None));
    assert_eq!(second["session_id"], first["session_id"]);
    assert_eq!(second["execution_count"], 2);
    assert!(
        second["memory_used_bytes"].as_u64().is_some_and(|bytes| bytes > 1_000_000),
        "{second}"
    );
    assert!(second["execution_time_ms"].as_f64().is_some_and(|ms| ms > 0.0), "{second}");
}

async fn the_value_of_the_last_expression_is_the_result() {
    let server = containers().await;
    let ran = cell(&server, "print('seen')\n2 + 2").await;
    assert_eq!((&ran["stdout"], &ran["result"]), (&json!("seen\n"), &json!("4")), "{ran}");
    assert_eq!(
        cell(&server, "await __import__('asyncio').sleep(0, 'awaited')").await["result"],
        "'awaited'"
    );
    let table =
        cell(&server, "import pandas as pd\npd.DataFrame({'Region': ['N'], 'n': [1]})").await;
    assert!(text(&table["result"]).contains("Region"), "{table}");
    assert_eq!(cell(&server, "x = 1").await.get("result"), None);
    assert_eq!(cell(&server, "None").await.get("result"), None);
    assert_eq!(cell(&server, "2 + 2;").await.get("result"), None, "as in a notebook");
}

async fn an_error_keeps_what_was_done_before_it_and_its_files() {
    let server = containers().await;
    let ran = cell(&server, "kept = 1\nopen('half.csv', 'w').write('a')\n{}['gone']").await;
    assert_fields!(ran, { "status": "execution_error", "exit_code": 1, "state": "kept" });
    assert_eq!(ran["artifacts"][0]["filename"], "half.csv");
    assert_eq!(
        ran["error_message"],
        "The code failed with \"KeyError: 'gone'\": fix it and run it again."
    );
    assert_eq!(cell(&server, "kept").await["result"], "1");
}

async fn figures_come_in_order_and_to_look_at_also_after_an_error() {
    let server = containers().await;
    let code = "import matplotlib.pyplot as plt\n\
                plt.plot([1, 2])\nplt.show()\n\
                plt.bar([1], [2])\nplt.figure()\nplt.plot([3])\n1 / 0";
    let answer = server.call("execute_code", json!({ "code": code })).await;
    assert_eq!(answer.blocks("image").len(), 3);
    let ran = answer.ok();
    assert_eq!(ran["status"], "execution_error");
    let files = ran["artifacts"].as_array().expect("an array");
    let files: Vec<_> = files.iter().map(|file| text(&file["filename"])).collect();
    assert_eq!(files, ["figure_1.png", "figure_2.png", "figure_3.png"]);
    // The cell closed all figures: the next cell shows none of them again.
    let answer = server.call("execute_code", json!({ "code": "1", "inline_images": 0 })).await;
    assert_eq!(answer.ok()["artifacts"], json!([]));
}

async fn an_exit_code_is_that_of_sys_exit_and_the_workspace_stays() {
    let server = containers().await;
    let ran = cell(&server, "import sys\nx = 7\nsys.exit(3)").await;
    let ended = (&ran["status"], &ran["exit_code"], &ran["state"]);
    assert_eq!(ended, (&json!("execution_error"), &json!(3), &json!("kept")), "{ran}");
    assert_eq!(ran["error_message"], "The code ended with exit code 3.");
    assert_success(&cell(&server, "sys.exit(0)").await);
    assert_eq!(cell(&server, "x").await["result"], "7");
}

async fn a_timeout_takes_variables_back_and_says_so() {
    let server = containers().await;
    cell(&server, "x = [1, 2]").await;
    let code = "x.append(3)\nopen('half.csv', 'w').write('a')\nprint('began', flush=True)\nwhile True: pass";
    let ran = server.call("execute_code", json!({ "code": code, "timeout": 2 })).await.ok();
    assert_fields!(ran, { "status": "timeout", "exit_code": -1, "state": "rolled_back" });
    assert_eq!(ran["stdout"], "began\n");
    let message = text(&ran["error_message"]);
    assert!(message.starts_with("The code was stopped after 2 s"), "{message}");
    assert!(notes(&ran).contains(
        "exactly as before this call. Files that it wrote are still there: \"half.csv\"."
    ));
    assert_eq!(ran["artifacts"][0]["filename"], "half.csv");
    assert_eq!(cell(&server, "x").await["result"], "[1, 2]");
}

async fn an_interpreter_that_ends_takes_variables_back() {
    let server = containers().await;
    cell(&server, "x = 'before'").await;
    for (code, exit_code) in [
        ("x = 1; import os; os._exit(0)", 1),
        ("x = 1; import os; os._exit(4)", 4),
        ("x = 1; import os; os.kill(os.getpid(), 11)", 139),
        ("x = 1; import os; os.kill(os.getpid(), 9)", 137),
    ] {
        let ran = cell(&server, code).await;
        let ended = (&ran["status"], &ran["exit_code"], &ran["state"]);
        let wanted = (&json!("execution_error"), &json!(exit_code), &json!("rolled_back"));
        assert_eq!(ended, wanted, "{code}: {ran}");
        assert!(text(&ran["error_message"]).starts_with("The code ended its interpreter"), "{ran}");
        assert_eq!(cell(&server, "x").await["result"], "'before'", "{code}");
    }
}

async fn without_a_cell_that_lasted_no_variables_are_missed() {
    let server = containers().await;
    let stopped = json!({ "code": "while True: pass", "timeout": 1 });
    let first = server.call("execute_code", stopped).await.ok();
    assert_eq!((&first["state"], &first["execution_count"]), (&json!("rolled_back"), &json!(0)));
    let is_as_the_first = async || {
        let ran = cell(&server, "x = 1").await;
        assert_success(&ran);
        assert_eq!((ran.get("notes"), &ran["execution_count"]), (None, &json!(1)), "{ran}");
    };
    is_as_the_first().await;
    server.call("reset_workspace", json!({ "undo": 1 })).await.ok();
    is_as_the_first().await;
    server.call("reset_workspace", json!({})).await.ok();
    is_as_the_first().await;
}

async fn variables_whose_interpreter_was_killed_from_outside_are_told_to_be_lost() {
    let server = containers().await;
    for code in ["while True: pass", "import os; os._exit(0)", "y = 1"] {
        let made = cell(&server, "x = 1").await;
        let session = &made["session_id"];
        let kill = json!({ "code": "import os; os.kill(-1, 9)", "session_id": session });
        server.call("run_python", kill).await.ok();
        let seen = info(&server).await;
        assert_eq!(seen["variables"], json!([]), "{seen}");
        assert!(seen["notes"][0].as_str().is_some_and(|it| it.contains("are gone")), "{seen}");
        let ran = server.call("execute_code", json!({ "code": code, "timeout": 1 })).await.ok();
        assert_eq!(ran["state"], "lost", "{code}: {ran}");
        let notes = ran["notes"].to_string();
        assert!(notes.contains("of earlier cells are gone"), "{code}: {notes}");
        assert!(!notes.contains("exactly as before"), "{code}: {notes}");
    }
}

async fn a_cell_that_takes_all_memory_is_told_and_taken_back() {
    let server = containers().await;
    cell(&server, "x = 'before'").await;
    let ran = cell(&server, "x = bytearray()\nwhile True: x += bytes(10_000_000)").await;
    assert_fields!(ran, { "status": "out_of_memory", "exit_code": 137, "state": "rolled_back" });
    assert!(text(&ran["error_message"]).contains("memory limit of 512MB"), "{ran}");
    assert_eq!(cell(&server, "x").await["result"], "'before'");
}

async fn a_cancelled_cell_is_taken_back_and_the_next_one_runs() {
    let server = containers().await;
    cell(&server, "x = 'before'").await;
    let code = "x = 'changed'\nopen('began', 'w')\nwhile True: pass";
    let (id, answer) = server.begin("execute_code", json!({ "code": code }));
    let began = async { while info(&server).await["files"]["count"] != 1 {} };
    timeout(PATIENCE, began).await.expect("it begins");
    let cancel = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": id } });
    server.send(&cancel);
    drop(answer);
    assert_eq!(cell(&server, "x").await["result"], "'before'");
    let told = info(&server).await;
    assert_eq!(told["history"][1]["status"], "cancelled", "{told}");
}

async fn a_long_timeout_is_the_limit() {
    let settings = [("SANDBOX_EXEC_TIMEOUT_S", "40")];
    let server = Server::start_with(On::Docker, &settings).await;
    let ran = server.call("execute_code", json!({ "source": "1", "timeout_s": "120" })).await.ok();
    assert_success(&ran);
    assert_eq!(notes(&ran), "timeout 120 is more than the limit of 40; 40 was used.");
}

async fn code_in_fences_runs_in_the_language_that_they_name() {
    let server = containers().await;
    let ran = cell(&server, "```python\n1 + 1\n```").await;
    assert_eq!(ran["result"], "2");
    assert!(notes(&ran).contains("fences"), "{ran}");
}

async fn a_cell_reads_what_it_is_given() {
    let server = containers().await;
    let arguments = json!({ "code": "a = input()\n[a, input()]", "stdin": "one\ntwo\n" });
    assert_eq!(server.call("execute_code", arguments).await.ok()["result"], "['one', 'two']");
    let ran = cell(&server, "input()").await;
    assert_eq!(ran["status"], "execution_error");
    assert!(text(&ran["error_message"]).contains("EOFError"), "{ran}");
}

async fn a_second_cell_is_refused_while_one_runs() {
    let server = containers().await;
    cell(&server, "import os, time").await;
    let code = "open('began', 'w')\nwhile not os.path.exists('go'): time.sleep(0.01)";
    let other = async {
        while info(&server).await["files"]["count"] != 1 {}
        let refused = server.call("execute_code", json!({ "code": "1" })).await;
        assert_eq!(refused.error(), "session_busy");
        let refused = server.call("reset_workspace", json!({})).await;
        assert_eq!(refused.error(), "session_busy");
        let id = info(&server).await["session_id"].clone();
        server.upload(text(&id), "go", b"x").await.ok();
    };
    let (ran, ()) =
        timeout(PATIENCE, async { join!(cell(&server, code), other) }).await.expect("in time");
    assert_success(&ran);
}

async fn cells_are_taken_back_one_by_one() {
    let server = containers().await;
    for code in ["x = 1", "x = 2", "x = 3"] {
        assert_success(&cell(&server, code).await);
    }
    assert_eq!(info(&server).await["can_undo"], 3);
    let undone = server.call("reset_workspace", json!({ "undo": 2 })).await.ok();
    assert_eq!((&undone["status"], &undone["execution_count"]), (&json!("undone"), &json!(1)));
    assert_eq!(cell(&server, "x").await["result"], "1");
}

async fn more_cells_than_there_are_cannot_be_taken_back() {
    let server = containers().await;
    cell(&server, "x = 1").await;
    for undo in [2, 500] {
        let refused = server.call("reset_workspace", json!({ "undo": undo })).await;
        assert_eq!(refused.error(), "nothing_to_undo");
        let message = text(&refused.json["message"]);
        assert!(
            message.starts_with("So many cells") && message.contains("can_undo is 1"),
            "{message}"
        );
    }
    assert_eq!(cell(&server, "x").await["result"], "1", "nothing has changed");
}

async fn a_reset_leaves_files_unless_they_are_to_go() {
    let server = containers().await;
    cell(&server, "x = 1\nopen('a.csv', 'w').write('a')").await;
    let reset = server.call("reset_workspace", json!({})).await.ok();
    assert_eq!((&reset["status"], &reset["execution_count"]), (&json!("reset"), &json!(0)));
    let ran = cell(&server, "x").await;
    assert_eq!(ran["status"], "execution_error");
    assert!(notes(&ran).contains("first cell of a new interpreter: \"x\" has to be made"), "{ran}");
    assert_eq!(info(&server).await["files"], json!({ "count": 1, "bytes": 1 }));
    server.call("reset_workspace", json!({ "files": true })).await.ok();
    assert_eq!(info(&server).await["files"], json!({ "count": 0, "bytes": 0 }));
}

async fn what_a_workspace_holds_is_told() {
    let server = containers().await;
    let code = "import pandas as pd\nimport numpy as np, json, matplotlib.pyplot as plt\ntable = pd.DataFrame({'a': range(10)})\nwords = ['a', 'b', 'c']\n_hidden = 1";
    cell(&server, code).await;
    cell(&server, "1 / 0").await;
    let told = info(&server).await;
    let variables = told["variables"].as_array().expect("an array");
    assert!(variables.contains(&json!("table")) && variables.contains(&json!("words")), "{told}");
    assert!(!variables.contains(&json!("_hidden")) && !variables.contains(&json!("pd")), "{told}");
    assert_eq!(
        (&told["types"]["table"], &told["types"]["words"]),
        (&json!("DataFrame 10x1"), &json!("list 3"))
    );
    assert_eq!(told["imports"], json!(["json", "matplotlib.pyplot", "numpy", "pandas"]));
    assert_eq!((&told["language"], &told["execution_count"]), (&json!("python"), &json!(2)));
    assert!(told["memory_used_bytes"].as_u64().is_some_and(|bytes| bytes > 1_000_000));
    let runs = told["history"].as_array().expect("an array");
    let statuses: Vec<_> = runs.iter().map(|run| text(&run["status"])).collect();
    assert_eq!(statuses, ["success", "execution_error"]);
    assert_eq!(runs[0]["code"], "import pandas as pd");
}

async fn a_long_value_and_a_long_output_fit_into_one_result() {
    let server = containers().await;
    let code = "import sys\nprint('out ' * 50_000)\nprint('err ' * 50_000, file=sys.stderr)\n'x' * 200_000";
    let answer = server.call("execute_code", json!({ "code": code })).await;
    let ran = answer.ok();
    assert!(ran.to_string().len() < 40_000, "{}", ran.to_string().len());
    assert_eq!((&ran["status"], &ran["truncated"]), (&json!("success"), &json!(true)));
    for field in ["stdout", "stderr", "result"] {
        assert!(text(&ran[field]).contains(" bytes left out"), "{field}");
    }
    assert!(!text(&ran["result"]).contains("read_output"), "nothing is kept of a result");
    let alone = cell(&server, "'x' * 200_000").await;
    assert_eq!(alone["truncated"], true, "{alone}");
    let rest =
        json!({ "session_id": ran["session_id"], "run_id": ran["run_id"], "stream": "stdout" });
    assert!(text(&server.call("read_output", rest).await.ok()["text"]).starts_with("out "));
}

async fn a_traceback_shows_the_frames_of_the_cell() {
    let server = containers().await;
    cell(&server, "import pandas as pd\nt = pd.DataFrame({'a': [1]})").await;
    let ran = cell(&server, "t['missing']").await;
    let shown = text(&ran["stderr"]);
    assert!(shown.contains("Cell In[2], line 1\n----> 1 t['missing']"), "{shown}");
    assert!(shown.contains("library frame") && shown.ends_with("KeyError: 'missing'\n"), "{shown}");
    assert!(notes(&ran).contains("The columns are: \"a\"."), "{ran}");
    assert!(!shown.contains('\u{1b}'), "no colours: {shown}");

    let full = Server::start_with(On::Docker, &[("SANDBOX_TRACEBACKS", "full")]).await;
    let ran = cell(&full, "import pandas as pd\npd.DataFrame({'a': [1]})['missing']").await;
    assert!(!text(&ran["stderr"]).contains("library frame"), "{ran}");
}

async fn a_stateless_cell_leaves_nothing() {
    let server = containers().await;
    cell(&server, "x = 1").await;
    let stateless = json!({ "code": "'x' in globals()", "session_id": "__stateless__" });
    let ran = server.call("execute_code", stateless).await.ok();
    assert_eq!((&ran["result"], ran.get("new_workspace")), (&json!("False"), None), "{ran}");
    let gone = server.call("list_artifacts", json!({ "session_id": ran["session_id"] })).await;
    assert_eq!(gone.error(), "session_not_found");
    assert_eq!(cell(&server, "x").await["result"], "1");
}

async fn programs_and_cells_share_files_and_nothing_else() {
    let server = containers().await;
    let ran = cell(&server, "x = 1\nopen('a.txt', 'w').write('shared')").await;
    let id = text(&ran["session_id"]).to_owned();
    let run = server.run(&id, "print(open('a.txt').read(), 'x' in globals())").await;
    assert_eq!(run["stdout"], "shared False\n", "{run}");
    assert_eq!(cell(&server, "x").await["result"], "1");
}

async fn languages_have_an_interpreter_each() {
    let server = containers().await;
    let listed = server.call("list_runtimes", json!({})).await.ok();
    let has = |language: &str| {
        listed["runtimes"].as_array().expect("an array").iter().any(|it| it["language"] == language)
    };
    let run = async |language: &str, code: &str| {
        server.call("execute_code", json!({ "language": language, "code": code })).await.ok()
    };
    run("python", "x = 'of python'").await;
    if has("javascript") {
        assert_success(&run("javascript", "let x = 'of node'").await);
        let ran = run("js", "console.log(x); x.length").await;
        assert_fields!(ran, { "stdout": "of node\n", "result": "7", "execution_count": 2 });
    }
    if has("bash") {
        assert_eq!(run("bash", "mkdir -p sub; cd sub; echo here").await["stdout"], "here\n");
        assert_eq!(run("sh", "basename \"$PWD\"").await["stdout"], "sub\n");
        let ran = run("bash", "exit 3").await;
        assert_eq!((&ran["status"], &ran["exit_code"]), (&json!("execution_error"), &json!(3)));
    }
    assert_eq!(run("py", "x").await["result"], "'of python'");
}

/// The calls of section 10.2 of the first specification, about automatic workspaces: the first call makes one, the next
/// ones use it, clients have their own, its contents are listed, and a reset makes it new.
async fn a_client_has_one_workspace_and_others_have_their_own() {
    let (one, other) = join!(containers(), containers());
    let first = cell(&one, "import pandas as pd\nx = 42\nprint(x)").await;
    assert_eq!((&first["exit_code"], &first["stdout"]), (&json!(0), &json!("42\n")));
    let again = cell(&one, "x").await;
    assert_eq!((&again["session_id"], &again["result"]), (&first["session_id"], &json!("42")));
    let of_other = cell(&other, "'x' in globals()").await;
    assert_ne!(of_other["session_id"], first["session_id"]);
    assert_eq!((&of_other["result"], &of_other["new_workspace"]), (&json!("False"), &json!(true)));
    let told = info(&one).await;
    assert_eq!(told["imports"], json!(["pandas"]), "{told}");
    assert!(told["variables"].as_array().expect("an array").contains(&json!("x")), "{told}");
    assert_eq!(told["execution_count"], 2);
    one.call("reset_workspace", json!({})).await.ok();
    assert_eq!(info(&one).await["execution_count"], 0);

    // After the session has ended, the next call is told that the workspace is new and why.
    one.call("close_session", json!({ "session_id": first["session_id"] })).await.ok();
    let anew: Answer = one.call("execute_code", json!({ "code": "1" })).await;
    let anew = anew.ok();
    assert_eq!(anew["new_workspace"], true);
    assert!(notes(&anew).contains("the one before was closed"), "{anew}");
}
