//! The log: one line for each call, which tells what happened without any content of the user.

use std::{
    fs::{self, File},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Stdio},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use support::{On, Server, http, http_with, name, on_docker, program, until, url_in, web::Web};

on_docker! {
    nothing_of_its_users_is_logged_with_containers,
    nothing_of_its_users_is_logged_where_files_are_exported_or_cannot_be,
}

/// A mark in everything that a user sends or makes. Its base64 contains the same text at every offset.
const MARK: &str = "zqMARKzqMARKzq";

/// A server that logs as JSON, to a file and to standard error, both in `folder`.
async fn start(on: On, folder: &Path, level: &str) -> Server {
    start_with(on, folder, level, None).await
}

/// Does the same, and exports artifacts to a folder.
async fn start_with(on: On, folder: &Path, level: &str, export: Option<&Path>) -> Server {
    let file = folder.join("server.log");
    let export = export.unwrap_or(Path::new(""));
    let settings = [
        ("SANDBOX_LOG_FILE", file.to_str().expect("UTF-8")),
        ("SANDBOX_LOG_FORMAT", "json"),
        ("SANDBOX_LOG_LEVEL", level),
        ("SANDBOX_MAX_UPLOAD_BYTES", "1MB"),
        ("SANDBOX_DATA_LIMIT", "10MB"),
        ("SANDBOX_MAX_SESSIONS", "2"),
        ("SANDBOX_MAX_HIBERNATED", "0"),
        ("SANDBOX_MAX_OUTPUT_BYTES", "1000"),
        ("SANDBOX_UPLOAD_ROOTS", folder.to_str().expect("UTF-8")),
        ("SANDBOX_EXPORT_DIR", export.to_str().expect("UTF-8")),
    ];
    let stderr = File::create(folder.join("stderr.log")).expect("created");
    Server::start_to(on, &settings, stderr.into()).await
}

/// Both logs as text, and the lines of the file.
fn logs(folder: &Path) -> ([String; 2], Vec<Value>) {
    let read = |name| fs::read_to_string(folder.join(name)).expect("UTF-8");
    let (file, stderr) = (read("server.log"), read("stderr.log"));
    let lines =
        file.lines().map(|line| serde_json::from_str(line).expect("one JSON object a line"));
    let lines = lines.collect();
    ([file, stderr], lines)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_call_is_one_line_in_the_file_and_on_standard_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut server = start(On::Local, folder.path(), "INFO").await;
    let id = name("log");
    server.upload(&id, "a.csv", b"1234").await.ok();
    let run = server.run(&id, "print(1)").await;
    let failed = server.run(&id, "raise SystemExit(3)").await;
    let late = server.run_for(&id, "while True: pass", 1).await;
    server.files(&id).await;
    server.call("read_artifact", json!({ "session_id": id, "path": "a.csv" })).await.ok();
    let missing = json!({ "session_id": id, "path": "b.csv" });
    assert_eq!(server.call("read_artifact", missing).await.error(), "not_found");
    server.call("run_python", json!({ "code": 7 })).await;
    let uncut = json!({ "session_id": id, "run_id": run["run_id"] });
    assert_eq!(server.call("read_output", uncut).await.error(), "not_found");
    server.call("close_session", json!({ "session_id": id })).await.ok();
    server.close_input();
    server.exit_code().await;

    let (written, lines) = logs(folder.path());
    let without_time = |text: &str| -> Vec<Value> {
        let lines = text.lines().map(|line| {
            let mut line: Value = serde_json::from_str(line).expect("one JSON object a line");
            let time = line.as_object_mut().and_then(|line| line.remove("timestamp"));
            assert!(time.is_some_and(|time| time.as_str().is_some_and(|time| time.ends_with('Z'))));
            line
        });
        lines.collect()
    };
    assert_eq!(without_time(&written[0]), without_time(&written[1]));

    let calls: Vec<_> = lines
        .into_iter()
        .filter(|line| line["message"] == "tool call")
        .map(|mut line| {
            let line = line.as_object_mut().expect("an object");
            assert!(line.remove("timestamp").is_some() && line["level"] == "INFO");
            assert!(line.remove("duration_ms").is_some_and(|ms| ms.is_u64()), "{line:?}");
            assert!(line.remove("call_us").is_some_and(|us| us.is_u64()), "{line:?}");
            if line.contains_key("run_id") {
                for figure in ["agent_us", "execution_ms", "cpu_ms"] {
                    assert!(line.remove(figure).is_some_and(|it| it.is_u64()), "{line:?}");
                }
                let start = line.remove("start");
                assert!(start.is_some_and(|how| how == "warm" || how == "fork" || how == "cold"));
            }
            assert_eq!(line.remove("client"), Some(json!("local")), "whose it is");
            for other in ["level", "message"] {
                line.remove(other);
            }
            json!(line)
        })
        .collect();
    let ran = |run: &Value, outcome: &str, exit_code: i32, bytes: usize| {
        let output = ["stdout", "stderr"].map(|stream| run[stream].as_str().map_or(0, str::len));
        json!({
            "tool": "run_python", "session_id": id, "run_id": run["run_id"], "language": "python",
            "outcome": outcome,
            "exit_code": exit_code, "bytes": bytes, "output_bytes": output.iter().sum::<usize>(),
        })
    };
    let listing = calls[4]["bytes"].clone();
    assert!(listing.as_u64() > Some(50), "{listing}");
    assert_eq!(
        calls,
        [
            json!({ "tool": "upload_file", "session_id": id, "outcome": "ok", "bytes": 4 }),
            ran(&run, "ok", 0, 8),
            ran(&failed, "error", 3, 19),
            ran(&late, "timeout", -1, 16),
            json!({ "tool": "list_artifacts", "session_id": id, "outcome": "ok", "bytes": listing }),
            json!({ "tool": "read_artifact", "session_id": id, "outcome": "ok", "bytes": 4 }),
            json!({ "tool": "read_artifact", "session_id": id, "outcome": "not_found" }),
            json!({ "tool": "run_python", "outcome": "invalid_argument" }),
            json!({ "tool": "read_output", "session_id": id, "outcome": "not_found" }),
            json!({ "tool": "close_session", "session_id": id, "outcome": "ok" }),
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_line_of_a_cell_has_the_memory_of_its_interpreter_and_its_language() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut server = start(On::Local, folder.path(), "INFO").await;
    let cell = json!({ "code": "data = bytearray(50_000_000)\nlen(data)", "language": "python" });
    let cell = server.call("execute_code", cell).await.ok();
    server.close_input();
    server.exit_code().await;
    let (_, lines) = logs(folder.path());
    let line = lines.iter().find(|line| line["tool"] == "execute_code").expect("a line");
    assert_eq!((&line["language"], &line["outcome"]), (&json!("python"), &json!("success")));
    assert_eq!(line["run_id"], cell["run_id"]);
    assert!(line["memory_bytes"].as_u64() > Some(50_000_000), "{line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_its_users_is_logged_with_processes() {
    nothing_of_its_users_is_logged(On::Local, false).await;
}

async fn nothing_of_its_users_is_logged_with_containers() {
    nothing_of_its_users_is_logged(On::Docker, false).await;
}

async fn nothing_of_its_users_is_logged_where_files_are_exported_or_cannot_be() {
    nothing_of_its_users_is_logged(On::Docker, true).await;
}

async fn nothing_of_its_users_is_logged(on: On, exported: bool) {
    let folder = tempfile::tempdir().expect("a folder");
    let export = folder.path().join("export");
    let mut server = start_with(on, folder.path(), "TRACE", exported.then_some(&*export)).await;
    let id = name("private");
    let signature = what_users_do(&server, folder.path(), &id).await;
    what_they_do_wrong(&server, &id).await;
    what_ends_badly(&server, on, &id).await;
    server.close_input();
    server.exit_code().await;

    let (written, lines) = logs(folder.path());
    assert!(lines.iter().filter(|line| line["message"] == "tool call").count() > 40);
    // The middle of the mark has one of three forms in base64, by its offset.
    let encoded = ["", "1", "12"].map(|shift| {
        let encoded = STANDARD.encode(format!("{shift}{MARK}"));
        encoded[4..encoded.len() - 4].to_owned()
    });
    for text in written {
        assert!(text.contains(&id), "something is logged");
        let leaks = text.lines().filter(|line| {
            let lower = line.to_lowercase();
            lower.contains(&MARK.to_lowercase())
                || lower.contains(&signature)
                || encoded.iter().any(|code| line.contains(code))
        });
        let leaks: Vec<_> = leaks.collect();
        assert!(leaks.is_empty(), "{leaks:#?}");
    }
}

/// The calls of a session, with the mark in all content of the user. Returns the signature of a URL.
async fn what_users_do(server: &Server, folder: &Path, id: &str) -> String {
    let content = format!("{MARK},{MARK}").repeat(10);
    let file = format!("{MARK}/{MARK}.csv");
    let picture = format!("{MARK}.png");
    server.upload(id, &file, content.as_bytes()).await.ok();
    server.upload(id, &picture, content.as_bytes()).await.ok();
    server.upload(id, &file, content.as_bytes()).await.error();
    for code in [
        format!("# {MARK}\nimport sys\nprint('{MARK}')\nprint('{MARK}', file=sys.stderr)"),
        format!("raise ValueError('{MARK}')"),
        format!("{MARK} is no Python"),
        format!("print('{MARK}', flush=True)\nimport os; os.abort()"),
        format!(
            "import os\nopen('{MARK}.csv', 'w').write('{MARK}'); os.symlink('/', '{MARK}link')"
        ),
        format!("import os\nopen('{MARK}shut', 'w'); os.chmod('{MARK}shut', 0)"),
        format!("open('{MARK}full', 'wb').write(b'{MARK}' * 10**6)"),
    ] {
        server.run(id, &code).await;
    }
    server.run_for(id, &format!("print('{MARK}')\nwhile True: pass"), 1).await;
    server.files(id).await;
    // The disk is full only in a container.
    let code = format!("import os\nos.remove('{MARK}full')\nprint('{MARK}' * 1000)");
    let cut = server.run(id, &code).await;
    let arguments = json!({ "session_id": id, "run_id": cut["run_id"], "offset": 0 });
    server.call("read_output", arguments).await.ok();
    let text = json!({ "session_id": id, "filename": format!("{MARK}text"), "text": MARK });
    server.call("upload_file", text).await.ok();
    let asked = json!({ "session_id": id, "filename": format!("{MARK}put") });
    let asked = server.call("upload_file", asked).await.ok();
    let url = asked["upload_url"].as_str().expect("an address");
    http_with("PUT", url, &[], MARK.as_bytes()).await;
    let signature = url.rsplit('=').next().expect("a signature").to_owned();
    http("GET", &format!("{url}{MARK}")).await;
    let local = folder.join(format!("{MARK}.local"));
    fs::write(&local, MARK).expect("written");
    for path in [&local, &folder.join(format!("{MARK}none")), Path::new(MARK)] {
        let arguments = json!({ "session_id": id, "filename": MARK.repeat(2), "local_path": path });
        server.call("upload_file", arguments).await;
    }
    server.request("resources/list", json!({})).await;
    server.request("resources/list", json!({ "cursor": MARK })).await;
    for path in [&file, &picture, &format!("{MARK}missing")] {
        let uri = format!("sandbox:///{id}/{path}");
        server.request("resources/read", json!({ "uri": uri })).await;
    }
    server.request("resources/read", json!({ "uri": MARK })).await;
    let base = server.base().await;
    for path in [
        &file,
        &picture,
        &format!("{MARK}missing"),
        &format!("{MARK}link/a"),
        &format!("{MARK}shut"),
        &format!("../{MARK}"),
    ] {
        server.call("read_artifact", json!({ "session_id": id, "path": path })).await;
        let url = format!("{base}/files/{id}/{path}");
        http("GET", &format!("{url}?{MARK}")).await;
        http(MARK, &url).await;
    }
    let listed = server.call("list_artifacts", json!({ "session_id": id })).await.ok();
    for file in listed["artifacts"].as_array().expect("a list") {
        let url = url_in(&listed, file["filename"].as_str().expect("a name"));
        http("GET", &format!("{url}&{MARK}")).await;
        http("GET", &format!("{url}?{MARK}")).await;
        http(MARK, &url).await;
    }
    signature
}

/// Calls and messages with every kind of mistake.
async fn what_they_do_wrong(server: &Server, id: &str) {
    let file = format!("{MARK}/{MARK}.csv");
    for (tool, arguments) in [
        (
            "upload_file",
            json!({ "session_id": id, "filename": "a", "content_base64": format!("{MARK}!") }),
        ),
        (
            "upload_file",
            json!({ "session_id": id, "filename": format!("{MARK}\n"), "content_base64": "" }),
        ),
        (
            "upload_file",
            json!({ "session_id": id, "filename": format!("{file}/below"), "content_base64": "" }),
        ),
        (
            "upload_file",
            json!({ "session_id": id, "filename": MARK, "content_base64": MARK.repeat(200_000) }),
        ),
        (
            "upload_file",
            json!({ "session_id": id, "filename": "big", "content_base64": STANDARD.encode(MARK.repeat(80_000)) }),
        ),
        ("run_python", json!({ "session_id": id, "code": [MARK] })),
        ("run_python", json!({ "session_id": id, "code": MARK.repeat(10_000) })),
        ("run_python", json!({ "session_id": format!("{MARK}!"), "code": "1" })),
        ("run_python", json!({ "session_id": id, "code": "1", (MARK): MARK })),
        ("run_python", json!({ "session_id": id, "code": "1", "timeout_s": MARK })),
        ("read_artifact", json!({ "session_id": id, "path": "a", "format": MARK })),
        ("list_artifacts", json!({ "session_id": [MARK] })),
    ] {
        server.call(tool, arguments).await.error();
    }
    server.request("tools/call", json!({ "name": MARK, "arguments": { (MARK): MARK } })).await;
    let meta = json!({ "traceparent": MARK, "tracestate": format!("a={MARK}"), "baggage": format!("b={MARK}") });
    let listed =
        json!({ "name": "list_artifacts", "arguments": { "session_id": id }, "_meta": meta });
    server.request("tools/call", listed).await;
    server.request(MARK, json!({ (MARK): MARK })).await;
    let (request, _) = server.expect_answer();
    server.send(
        &json!({ "jsonrpc": "2.0", "id": request, "method": "tools/call", "params": [MARK] }),
    );
    server.send_line(format!("{MARK} {{"));
    server.send_line(format!("{{\"jsonrpc\":\"2.0\",\"id\":\"{MARK}\",\"method\":\"{MARK}"));
    server.send(&json!({ "jsonrpc": "2.0", "method": format!("notifications/{MARK}"), "params": { (MARK): 1 } }));
    server.send(&json!({ "jsonrpc": "2.0", "id": MARK, "result": { (MARK): MARK } }));
}

/// A program that is cancelled, and one that loses its sandbox or its folder.
async fn what_ends_badly(server: &Server, on: On, id: &str) {
    let code = format!("open('{MARK}started', 'w')\nprint('{MARK}', flush=True)\nwhile True: pass");
    let (request, _answer) = server.begin("run_python", json!({ "session_id": id, "code": code }));
    let started = format!("{MARK}started");
    until("it runs", async || server.files(id).await.iter().any(|(name, _)| *name == started))
        .await;
    server.send(&json!({
        "jsonrpc": "2.0", "method": "notifications/cancelled",
        "params": { "requestId": request, "reason": MARK },
    }));
    if on == On::Docker {
        let kill =
            format!("import time\nopen('{MARK}again', 'w')\nprint('{MARK}')\ntime.sleep(60)");
        let again = format!("{MARK}again");
        let end = async {
            until("it runs", async || {
                server.files(id).await.iter().any(|(name, _)| *name == again)
            })
            .await;
            let killed =
                Command::new("docker").args(["kill", &support::containers(id)[0]]).output();
            assert!(killed.expect("the docker client runs").status.success());
        };
        let arguments = json!({ "session_id": id, "code": kill });
        let (answer, ()) = tokio::join!(server.call("run_python", arguments), end);
        assert_eq!(answer.error(), "sandbox_died");
    } else {
        let code = format!("import os, shutil\nshutil.rmtree(os.path.dirname(__file__))  # {MARK}");
        server.run(id, &code).await;
        let refused = server.call("run_python", json!({ "session_id": id, "code": MARK })).await;
        assert_eq!(refused.error(), "internal");
        server.call("close_session", json!({ "session_id": id })).await.ok();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_standard_error_does_not_stop_the_server() {
    let settings = [("SANDBOX_LOG_LEVEL", "INFO")];
    let server = Server::start_to(On::Local, &settings, Stdio::piped()).await;
    let id = name("unread");
    server.upload(&id, "a", b"").await.ok();
    // Far more lines than a pipe buffers.
    for _ in 0..3000 {
        server.files(&id).await;
    }
}

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SPAN: &str = "00f067aa0ba902b7";

/// The trace, span and flags of each line with this message.
fn traces(lines: &[Value], message: &str) -> Vec<Value> {
    let lines = lines.iter().filter(|line| line["message"] == message);
    lines.map(|line| json!([line["trace_id"], line["span_id"], line["trace_flags"]])).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_is_logged_with_the_trace_that_it_belongs_to() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut server = start(On::Local, folder.path(), "INFO").await;
    let id = name("trace");
    server.run(&id, "1").await;
    for parent in [
        json!(format!("00-{TRACE}-{SPAN}-01")),
        // An invalid trace is no reason to refuse a call.
        json!(format!("00-{TRACE}-{SPAN}-01-more")),
        json!(format!("00-{}-{SPAN}-01", "0".repeat(32))),
        json!(format!("00-{}-{SPAN}-01", TRACE.to_uppercase())),
        json!(7),
        json!(null),
    ] {
        let arguments = json!({ "session_id": id });
        let meta = json!({ "traceparent": parent, "tracestate": "a=b", "baggage": "c=d" });
        let params = json!({ "name": "list_artifacts", "arguments": arguments, "_meta": meta });
        let answer = server.request("tools/call", params).await;
        assert_eq!(answer["result"]["isError"], false, "{parent}: {answer}");
    }
    server.close_input();
    server.exit_code().await;
    let (_, lines) = logs(folder.path());
    let none = json!([null, null, null]);
    let mut expected = vec![none; 7];
    expected[1] = json!([TRACE, SPAN, "01"]);
    assert_eq!(traces(&lines, "tool call"), expected);
    let without = lines.iter().find(|line| line["tool"] == "run_python").expect("a run");
    assert_eq!(without.get("trace_id"), None, "not even an empty field");
}

#[tokio::test(flavor = "multi_thread")]
async fn over_http_the_trace_of_the_message_comes_before_that_of_the_request() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("server.log");
    let settings = [
        ("SANDBOX_LOG_FILE", file.to_str().expect("UTF-8")),
        ("SANDBOX_LOG_FORMAT", "json"),
        ("SANDBOX_LOG_LEVEL", "INFO"),
    ];
    let mut web = Web::start(On::Local, &settings).await;
    let (caller, id) = (web.caller(None), name("trace"));
    let in_head = format!("00-{}-{SPAN}-00", "a".repeat(32));
    let in_message = format!("00-{TRACE}-{SPAN}-01");
    let headers = [("traceparent", &*in_head)];
    let put = format!("/files/{id}/a");
    caller.send("PUT", &put, &headers, b"1").await;
    let mcp = caller.open().await;
    for (meta, headers) in [
        (json!({ "traceparent": in_message }), &headers[..]),
        (json!({}), &headers),
        (json!({ "traceparent": "none" }), &headers),
        (json!({}), &[headers[0], headers[0]]),
        (json!({ "traceparent": in_message }), &[]),
    ] {
        let params = json!({
            "name": "list_artifacts", "arguments": { "session_id": id }, "_meta": meta,
        });
        let (message, own) = caller.modern("tools/call", params.clone());
        let all: Vec<_> = own.iter().map(|(name, value)| (*name, &**value)).collect();
        let answer = caller.post(&message, &[&all, headers].concat()).await;
        assert_eq!(answer.status, 200);
        // The same in the generation with sessions.
        let message =
            json!({ "jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": params });
        let own = [("Mcp-Session-Id", &*mcp.id)];
        assert_eq!(caller.post(&message, &[&own, headers].concat()).await.status, 200);
    }
    web.signal("TERM");
    web.exit_code().await;
    let written = fs::read_to_string(&file).expect("UTF-8");
    let lines: Vec<Value> =
        written.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let head = json!(["a".repeat(32), SPAN, "00"]);
    let message = json!([TRACE, SPAN, "01"]);
    let none = json!([null, null, null]);
    assert_eq!(traces(&lines, "upload over HTTP"), std::slice::from_ref(&head));
    let expected = [&message, &head, &head, &none, &message].map(|trace| [trace, trace]).concat();
    assert_eq!(traces(&lines, "tool call").iter().collect::<Vec<_>>(), expected);
}

/// Runs a session in this folder, with the default place of the log, and waits for the end.
async fn session_in(project: &Path, settings: &[(&str, &str)]) {
    let mut command = program(project, settings);
    // The temporary folder is not the project's, as on a real machine: `program` would set it to that.
    let temporary = tempfile::tempdir().expect("a folder");
    command.env("TMPDIR", temporary.path()).env_remove("SANDBOX_LOG_FILE");
    let mut server = Server::start_as(On::Local, command).await;
    server.run(&name("log"), "open('a.csv', 'w').write('1')").await;
    server.close_input();
    assert_eq!(server.exit_code().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn over_stdio_the_log_is_among_the_users_own_files_and_the_project_stays_as_it_was() {
    let folder = tempfile::tempdir().expect("a folder");
    let (project, home) = (folder.path().join("project"), folder.path().join("home"));
    for folder in [&project, &home] {
        fs::create_dir(folder).expect("made");
    }
    let state = folder.path().join("state");
    let text = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    let level = ("SANDBOX_LOG_LEVEL", "INFO");
    let usual = if cfg!(target_os = "macos") { "Library/Logs" } else { ".local/state" };
    for (xdg, below) in [(text(&state), state), ("relative".into(), home.join(usual))] {
        let settings = [level, ("HOME", &text(&home)), ("XDG_STATE_HOME", &xdg)];
        // Twice: servers share the file, and each appends to it.
        for expected in [1, 2] {
            session_in(&project, &settings).await;
            let log = below.join("llm-sandbox/sandbox.log");
            let lines = fs::read_to_string(&log).expect("UTF-8");
            assert_eq!(lines.matches("serving MCP on stdio").count(), expected);
            assert_eq!(lines.matches("server ended").count(), expected);
            let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode();
            assert_eq!(mode(&log) & 0o777, 0o600, "names of sessions are for its user");
            assert_eq!(mode(&below.join("llm-sandbox")) & 0o777, 0o700);
        }
    }
    // Without a home folder, there is no log file, and the server creates no folder.
    session_in(&project, &[level, ("HOME", ""), ("XDG_STATE_HOME", "")]).await;
    let left: Vec<_> = fs::read_dir(&project).expect("listed").collect();
    assert!(left.is_empty(), "{left:?}");
}
