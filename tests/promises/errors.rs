//! The messages of every error that an argument of a call can cause, in one place to be read: the snapshot beside this
//! file. Each says what to do next, in the words of its readers.

use std::fmt::Write as _;

use serde_json::{Value, json};
use support::{On, Server};

/// Calls that are refused, in a session `own` with the files `sales.csv` and `raw/2025.csv`.
fn calls() -> Vec<(&'static str, Value)> {
    let run = |arguments: Value| ("run_python", arguments);
    let upload = |mut arguments: Value| {
        arguments["session_id"] = json!("own");
        ("upload_file", arguments)
    };
    let base64 = |content: &str| upload(json!({ "filename": "b", "content_base64": content }));
    let local = |path: &str| upload(json!({ "local_path": path }));
    let read = |path: &str| ("read_artifact", json!({ "session_id": "own", "path": path }));
    let long = "x".repeat(300);
    vec![
        // Names and types of arguments.
        run(json!({})),
        run(json!({ "session_id": "own", "cod": "1" })),
        run(json!({ "code": "1", "files": [], "packages": [], "colour": 1 })),
        run(json!({ "code": "1", "script": "2" })),
        run(json!({ "code": ["print(1)"] })),
        run(json!({ "code": "1", "timeout_s": "soon" })),
        run(json!({ "code": "1", "timeout_s": 1.5 })),
        run(json!({ "code": "1", "timeout_s": true })),
        run(json!({ "code": " \n" })),
        run(json!({ "code": "ls", "language": "bash" })),
        run(json!({ "code": "#".repeat(100_001) })),
        ("read_artifact", json!({})),
        ("read_artifact", json!({ "session_id": "own", "path": "a", "format": "hex" })),
        ("read_output", json!({})),
        ("list_artifacts", json!({})),
        upload(json!({})),
        upload(json!({ "filename": "b", "text": { "a": 1 } })),
        upload(json!({ "filename": "b", "text": "1", "overwrite": "maybe" })),
        upload(json!({ "filename": "b", "text": "1", "content_base64": "AA==" })),
        // Cells and workspaces.
        ("execute_code", json!({ "code": "1", "language": "cobol" })),
        ("execute_code", json!({ "code": "1", "session_id": "sess_0123456789ab" })),
        ("execute_code", json!({ "code": "1", "timeout": "soon" })),
        ("reset_workspace", json!({ "session_id": "reports" })),
        ("reset_workspace", json!({ "session_id": "own", "undo": 0 })),
        ("reset_workspace", json!({ "session_id": "own", "undo": 2 })),
        // Names of sessions.
        run(json!({ "code": "1", "session_id": "my session" })),
        run(json!({ "code": "1", "session_id": "sess_0123456789ab" })),
        ("list_artifacts", json!({ "session_id": "sess_0123456789ab" })),
        ("list_artifacts", json!({ "session_id": "reports" })),
        // Names of files.
        upload(json!({ "filename": "", "text": "1" })),
        upload(json!({ "filename": "../b", "text": "1" })),
        upload(json!({ "filename": "/home/ann/b", "text": "1" })),
        upload(json!({ "filename": "/mnt/data/", "text": "1" })),
        upload(json!({ "filename": "a\\b", "text": "1" })),
        upload(json!({ "filename": "a\nb", "text": "1" })),
        upload(json!({ "filename": "raw/", "text": "1" })),
        upload(json!({ "filename": long, "text": "1" })),
        upload(json!({ "filename": "raw", "text": "1" })),
        upload(json!({ "filename": "sales.csv/b", "text": "1" })),
        upload(json!({ "filename": "sales.csv", "text": "1" })),
        read("sale.csv"),
        read("2025.csv"),
        read("weather.parquet"),
        read("raw"),
        read("/mnt/data"),
        read("/tmp/chart.png"),
        read("../sales.csv"),
        read("sales.csv/b"),
        ("read_output", json!({ "session_id": "own", "run_id": "run_1" })),
        // Contents.
        base64("hello world"),
        base64("A"),
        base64("AA==AA=="),
        base64("data:text/plain,hello"),
        upload(json!({ "filename": "b", "text": "x".repeat(1_000_001) })),
        local("sales.csv"),
        local("/elsewhere/sales.csv"),
        local("/etc"),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn every_error_says_what_to_do_next() {
    let root = tempfile::tempdir().expect("a folder");
    let root = root.path().canonicalize().expect("there");
    std::fs::write(root.join("sales.csv"), "1").expect("written");
    let settings = [
        ("SANDBOX_UPLOAD_ROOTS", root.to_str().expect("UTF-8")),
        ("SANDBOX_MAX_UPLOAD_BYTES", "1MB"),
        ("SANDBOX_MAX_SESSIONS", "1"),
        ("SANDBOX_MAX_HIBERNATED", "0"),
    ];
    let server = Server::start_with(On::Local, &settings).await;
    for file in ["sales.csv", "raw/2025.csv"] {
        server.upload("own", file, b"1").await.ok();
    }
    let mut calls = calls();
    for name in ["Sales.csv", "weather.csv", ""] {
        let path = root.join(name);
        let arguments = json!({ "session_id": "own", "filename": "b", "local_path": path });
        calls.push(("upload_file", arguments));
    }
    let mut said = String::new();
    for (tool, arguments) in calls {
        let answer = server.call(tool, arguments.clone()).await;
        let shown: String = arguments.to_string().chars().take(100).collect();
        let (code, message) = (answer.error(), answer.json["message"].as_str().expect("a text"));
        for of_rust in ["f64", "u64", "usize", "invalid type", "unknown variant", "unknown field"] {
            assert!(!message.contains(of_rust), "{message}");
        }
        assert!(message.ends_with('.') && message.len() < 600, "{message}");
        writeln!(said, "{tool} {shown}\n    {code}: {message}\n").expect("to memory");
    }
    let full = server.call("run_python", json!({ "code": "1" })).await;
    assert_eq!(full.error(), "max_sessions");
    let message = full.json["message"].as_str().expect("a text");
    assert!(
        message.contains("Close an existing session")
            && message.contains("Your sessions: own (idle"),
        "{message}"
    );
    let root = root.to_str().expect("UTF-8");
    insta::assert_snapshot!(said.replace(root, "/client"));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_roots_local_path_says_what_to_do_instead() {
    let server = Server::start(On::Local).await;
    let arguments = json!({ "filename": "b", "local_path": "/home/ann/sales.csv" });
    let refused = server.call("upload_file", arguments).await;
    assert_eq!(refused.error(), "invalid_path");
    insta::assert_snapshot!(refused.json["message"].as_str().expect("a text"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_busy_says_for_how_long_at_most() {
    let server = Server::start(On::Local).await;
    let code =
        "import os, time\nopen('started', 'w')\nwhile not os.path.exists('go'): time.sleep(0.01)";
    let arguments = json!({ "session_id": "busy", "code": code, "timeout_s": 50 });
    let (_, running) = server.begin("run_python", arguments);
    support::until("it runs", async || !server.files_if_any("busy").await.is_empty()).await;
    let busy = json!({ "session_id": "busy", "code": "1" });
    let refused = server.call("run_python", busy).await;
    assert_eq!(refused.error(), "session_busy");
    let message = refused.json["message"].as_str().expect("a text");
    let seconds = message.strip_suffix(" s more.").and_then(|text| text.rsplit(' ').next());
    let seconds: u64 =
        seconds.and_then(|it| it.parse().ok()).unwrap_or_else(|| panic!("{message}"));
    assert!((1..=50).contains(&seconds), "{message}");
    server.upload("busy", "go", b"").await.ok();
    tokio::time::timeout(support::PATIENCE, running).await.expect("ends").expect("answered");
}
