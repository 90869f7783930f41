//! Calls that cannot be understood: the server answers all of them, and corrects arguments if the intent is clear.

use serde_json::{Value, json};
use support::{On, Server, name, on_all, text};

on_all! {
    a_message_far_too_large_is_answered_all_the_same,
    bad_arguments_are_refused_with_the_right_code,
    arguments_are_read_as_they_are_meant,
    nonsense_does_not_end_the_server,
}

async fn a_message_far_too_large_is_answered_all_the_same(on: On) {
    let server = Server::start_with(on, &[("SANDBOX_MAX_UPLOAD_BYTES", "1MB")]).await;
    let refused = server.upload(&name("message"), "big.bin", &vec![7; 8_000_000]).await;
    assert_eq!(refused.error(), "upload_too_large");
    assert_eq!(server.run(&name("message"), "print('well')").await["stdout"], "well\n");
}

async fn bad_arguments_are_refused_with_the_right_code(on: On) {
    let (server, id) = (Server::start(on).await, name("bad"));
    server.upload(&id, "a.csv", b"1").await.ok();
    let long = "x".repeat(10_000);
    let upload = |name: &str, content: &str| {
        ("upload_file", json!({ "session_id": id, "filename": name, "content_base64": content }))
    };
    let read = |path: &str| ("read_artifact", json!({ "session_id": id, "path": path }));
    let cases = [
        (upload("../a", "AA=="), "invalid_filename"),
        (upload("/etc/passwd", "AA=="), "invalid_filename"),
        (upload("/mnt/data", "AA=="), "invalid_filename"),
        (upload("/mnt/data/", "AA=="), "invalid_filename"),
        (upload("/mnt/data/../a", "AA=="), "invalid_filename"),
        (upload("", "AA=="), "invalid_filename"),
        (upload(".", "AA=="), "invalid_filename"),
        (upload("a\0b", "AA=="), "invalid_filename"),
        (upload("a\nb", "AA=="), "invalid_filename"),
        (upload("a\\b", "AA=="), "invalid_filename"),
        (upload(&long, "AA=="), "invalid_filename"),
        (upload("a.csv/below", "AA=="), "invalid_filename"),
        (upload("b", "not base64!"), "invalid_base64"),
        (upload("b", "A"), "invalid_base64"),
        (upload("b", "AA==AA=="), "invalid_base64"),
        (upload("b", "data:text/plain,hello"), "invalid_base64"),
        (read("../a.csv"), "invalid_path"),
        (read("/etc/passwd"), "invalid_path"),
        (read("/mnt/data/../../etc/passwd"), "invalid_path"),
        (read("a\0b"), "invalid_path"),
        (read(""), "invalid_path"),
        (read(&long), "invalid_path"),
        (read("missing"), "not_found"),
        (("read_artifact", json!({ "session_id": id, "path": 7 })), "invalid_argument"),
        (("read_artifact", json!({ "session_id": id })), "invalid_argument"),
        (
            ("read_artifact", json!({ "session_id": id, "path": "a.csv", "format": "hex" })),
            "invalid_argument",
        ),
        (("list_artifacts", json!({ "session_id": "no/such" })), "invalid_session_id"),
        (("list_artifacts", json!({ "session_id": "" })), "invalid_argument"),
        (("list_artifacts", json!({ "session_id": long })), "invalid_session_id"),
        (("list_artifacts", json!({})), "invalid_argument"),
        (("list_artifacts", json!({ "session_id": id, "extra": 1 })), "invalid_argument"),
        (("run_python", json!({ "session_id": id, "code": ["print(1)"] })), "invalid_argument"),
        (("run_python", json!({ "session_id": id, "code": "" })), "invalid_argument"),
        (("run_python", json!({ "session_id": id, "code": " \n\t" })), "invalid_argument"),
        (
            ("run_python", json!({ "session_id": id, "code": "```python\n\n```" })),
            "invalid_argument",
        ),
        (
            ("run_python", json!({ "session_id": id, "code": "ls", "language": "bash" })),
            "invalid_argument",
        ),
        (
            ("run_python", json!({ "session_id": id, "code": "1", "script": "2" })),
            "invalid_argument",
        ),
        (
            ("run_python", json!({ "session_id": id, "code": "1", "timeout_s": "soon" })),
            "invalid_argument",
        ),
        (
            ("upload_file", json!({ "session_id": id, "path": "b", "file_name": "c", "text": "" })),
            "invalid_argument",
        ),
        (read("/mnt/data"), "invalid_path"),
        (read("/tmp/chart.png"), "invalid_path"),
        (
            ("run_python", json!({ "session_id": id, "code": "1", "timeout_s": 1.5 })),
            "invalid_argument",
        ),
        (
            ("run_python", json!({ "session_id": id, "code": "#".repeat(100_001) })),
            "code_too_large",
        ),
        (("run_python", json!({ "session_id": "ü", "code": "1" })), "invalid_session_id"),
    ];
    for ((tool, arguments), code) in cases {
        let shown: String = arguments.to_string().chars().take(120).collect();
        let refused = server.call(tool, arguments).await;
        assert_eq!(refused.error(), code, "{tool} {shown}");
        assert!(text(&refused.json["message"]).len() < 600, "{tool} {shown}");
    }
    assert_eq!(server.files(&id).await, [("a.csv".to_owned(), 1)], "nothing was written");
    let unknown = server.request("tools/call", json!({ "name": "rm", "arguments": {} })).await;
    assert_eq!(unknown["error"]["code"], -32602);
    let message = unknown["error"]["message"].as_str().expect("text");
    assert!(message.contains("\"rm\"") && message.contains("run_python"), "{message}");
}

async fn arguments_are_read_as_they_are_meant(on: On) {
    let (server, id) = (Server::start(on).await, name("meant"));
    let call = async |tool: &str, mut arguments: Value| {
        arguments["session_id"] = json!(id);
        server.call(tool, arguments).await.ok()
    };
    let notes = |result: &Value| -> Vec<String> {
        let notes = result["notes"].as_array().cloned().unwrap_or_default();
        notes.iter().map(|note| text(note).to_owned()).collect()
    };

    for timeout in [json!(30), json!(30.0), json!("30"), json!("30.0"), json!(null)] {
        let run = call("run_python", json!({ "code": "print(1)", "timeout_s": timeout })).await;
        assert_eq!((&run["stdout"], run.get("notes")), (&json!("1\n"), None), "{timeout}");
    }
    let run = call("run_python", json!({ "code": "print(1)", "timeout_s": 120 })).await;
    assert_eq!(notes(&run), ["timeout_s 120 is more than the limit of 60; 60 was used."]);
    let run = call("run_python", json!({ "code": "print(1)", "timeout_s": "-1" })).await;
    assert_eq!(notes(&run), ["timeout_s \"-1\" is less than 1; 1 was used."]);
    let other_names =
        json!({ "script": "print(2)", "timeout": 5, "language": "Python", "code": null });
    assert_eq!(call("run_python", other_names).await["stdout"], "2\n");
    let fenced = call("run_python", json!({ "code": "```python\nprint(3)\n```" })).await;
    assert_eq!((&fenced["stdout"], notes(&fenced).len()), (&json!("3\n"), 1), "{fenced}");
    // Code that only resembles a mistake is not changed.
    let run = call("run_python", json!({ "code": "print(4)\\nprint(5)" })).await;
    assert_eq!(run["exit_code"], 1, "{run}");

    for (arguments, path, size) in [
        (json!({ "filename": "/mnt/data/a.csv", "content": "a,b" }), "a.csv", 3),
        (json!({ "path": "sandbox:/mnt/data/sub/b", "text": "é" }), "sub/b", 2),
        (json!({ "file_name": "c", "content_base64": "data:a/b;base64,-_-_\nQQ" }), "c", 4),
        (json!({ "filename": "a.csv", "text": "", "overwrite": "true" }), "a.csv", 0),
    ] {
        let done = call("upload_file", arguments.clone()).await;
        let told = (&done["path"], &done["size_bytes"]);
        assert_eq!(told, (&json!(format!("/mnt/data/{path}")), &json!(size)), "{arguments}");
    }
    let again = json!({ "session_id": id, "filename": "c", "text": "", "overwrite": "False" });
    assert_eq!(server.call("upload_file", again).await.error(), "file_exists");
    for path in ["sub/b", "/mnt/data/sub/b", "sandbox:/mnt/data/sub/b", "file:///mnt/data/sub/b"] {
        for argument in ["path", "filename", "file_name"] {
            let mut arguments = json!({ "format": "TEXT", "offset": "0" });
            arguments[argument] = json!(path);
            assert_eq!(call("read_artifact", arguments).await["text"], "é", "{path}");
        }
    }
    let read = call("read_artifact", json!({ "path": "sub/b", "length": 0 })).await;
    assert_eq!(notes(&read), ["length 0 is less than 1; 1 was used."]);
}

async fn nonsense_does_not_end_the_server(on: On) {
    let server = Server::start(on).await;
    for line in [
        "",
        "not json",
        "{",
        "[]",
        "{}",
        "null",
        "{\"jsonrpc\":\"1.0\",\"id\":1,\"method\":\"ping\"}",
        "{\"jsonrpc\":\"2.0\",\"id\":null,\"method\":\"ping\"}",
        "{\"jsonrpc\":\"2.0\",\"id\":90001,\"method\":\"tools/call\",\"params\":[]}",
        "{\"jsonrpc\":\"2.0\",\"id\":90002,\"method\":\"no/such\",\"params\":{}}",
        "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/no-such\"}",
    ] {
        server.send_line(line.to_owned());
    }
    server.send_line("[".repeat(100_000));
    assert_eq!(server.run(&name("nonsense"), "print('well')").await["stdout"], "well\n");
}
