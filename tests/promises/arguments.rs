//! What cannot be understood is answered all the same.

use crate::support::{On, Server, name, on_both, text};
use serde_json::json;

on_both! {
    a_message_far_too_large_is_answered_all_the_same,
    bad_arguments_are_refused_with_the_right_code,
    nonsense_does_not_end_the_server,
}

async fn a_message_far_too_large_is_answered_all_the_same(on: On) {
    let server = Server::start_with(on, &[("SANDBOX_MAX_UPLOAD_BYTES", "1MB")]).await;
    let refused = server.upload(&name("message"), "big.bin", &vec![7; 8_000_000]).await;
    assert_eq!(refused.error(), "upload_too_large");
    assert_eq!(server.run(&name("message"), "print('well')").await["stdout"], "well\n");
}

async fn bad_arguments_are_refused_with_the_right_code(on: On) {
    let server = Server::start(on).await;
    let id = name("bad");
    server.upload(&id, "a.csv", b"1").await.ok();
    let long = "x".repeat(10_000);
    let upload = |name: &str, content: &str| {
        ("upload_file", json!({ "session_id": id, "filename": name, "content_base64": content }))
    };
    let read = |path: &str| ("read_artifact", json!({ "session_id": id, "path": path }));
    let cases = [
        (upload("../a", "AA=="), "invalid_filename"),
        (upload("/etc/passwd", "AA=="), "invalid_filename"),
        (upload("/mnt/data/a", "AA=="), "invalid_filename"),
        (upload("", "AA=="), "invalid_filename"),
        (upload(".", "AA=="), "invalid_filename"),
        (upload("a\0b", "AA=="), "invalid_filename"),
        (upload("a\nb", "AA=="), "invalid_filename"),
        (upload("a\\b", "AA=="), "invalid_filename"),
        (upload(&long, "AA=="), "invalid_filename"),
        (upload("a.csv/below", "AA=="), "invalid_filename"),
        (upload("b", "not base64!"), "invalid_base64"),
        (upload("b", "AA"), "invalid_base64"),
        (upload("b", "AA==AA=="), "invalid_base64"),
        (upload("b", "-_-_"), "invalid_base64"),
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
        (("list_artifacts", json!({ "session_id": "" })), "invalid_session_id"),
        (("list_artifacts", json!({ "session_id": long })), "invalid_session_id"),
        (("list_artifacts", json!({})), "invalid_argument"),
        (("list_artifacts", json!({ "session_id": id, "extra": 1 })), "invalid_argument"),
        (("run_python", json!({ "session_id": id, "code": ["print(1)"] })), "invalid_argument"),
        (
            ("run_python", json!({ "session_id": id, "code": "1", "timeout_s": 0 })),
            "invalid_argument",
        ),
        (
            ("run_python", json!({ "session_id": id, "code": "1", "timeout_s": 61 })),
            "invalid_argument",
        ),
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
