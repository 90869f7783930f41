//! The Model Context Protocol as clients of both generations speak it, and what they are told of
//! the tools.

mod support;

use serde_json::{Value, json};
use support::{On, Server};

#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_the_initialize_generation_is_served() {
    let server = Server::launch(On::Local, &[]);
    for (asked, given) in
        [("2024-11-05", "2024-11-05"), ("2025-11-25", "2025-11-25"), ("1999-01-01", "2025-11-25")]
    {
        let server = if asked == "2024-11-05" { &server } else { &Server::launch(On::Local, &[]) };
        let hello = json!({
            "protocolVersion": asked,
            "capabilities": {},
            "clientInfo": { "name": "old", "version": "1" },
        });
        let answer = server.request("initialize", hello).await;
        assert_eq!(answer["result"]["protocolVersion"], given);
        assert_eq!(answer["result"]["serverInfo"]["name"], "llm-sandbox");
        assert!(answer["result"]["capabilities"]["tools"].is_object());
        assert!(answer["result"]["instructions"].as_str().is_some_and(|text| text.len() < 2000));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_the_stateless_generation_is_served() {
    let server = Server::launch(On::Local, &[]);
    let with_meta = |mut params: Value| {
        params["_meta"] = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        params
    };
    let found = server.request("server/discover", with_meta(json!({}))).await;
    let versions = found["result"]["supportedVersions"].as_array().cloned().unwrap_or_default();
    assert!(versions.contains(&json!("2026-07-28")), "{found}");
    let call = json!({ "name": "run_python", "arguments": { "code": "print(2+2)" } });
    let answer = server.request("tools/call", with_meta(call)).await;
    assert_eq!(answer["result"]["structuredContent"]["stdout"], "4\n", "{answer}");
    assert_eq!(answer["result"]["resultType"], "complete");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_without_a_word_is_no_error() {
    let mut server = Server::launch(On::Local, &[]);
    server.close_input();
    assert_eq!(server.exit_code().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tools_are_described_exactly_so() {
    let server = Server::start(On::Local).await;
    let listed = server.request("tools/list", json!({})).await;
    insta::assert_json_snapshot!(listed["result"]["tools"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_descriptions_tell_the_limits_that_are_set() {
    let settings = [
        ("SANDBOX_EXEC_TIMEOUT_S", "7"),
        ("SANDBOX_MAX_UPLOAD_BYTES", "3MB"),
        ("SANDBOX_MEMORY_LIMIT", "1GiB"),
    ];
    let server = Server::start_with(On::Local, &settings).await;
    let listed = server.request("tools/list", json!({})).await;
    let tool = |name: &str| {
        let tools = listed["result"]["tools"].as_array().expect("tools");
        tools.iter().find(|tool| tool["name"] == name).expect("the tool").clone()
    };
    let run = tool("run_python");
    assert_eq!(run["inputSchema"]["properties"]["timeout_s"]["maximum"], 7);
    let text = run["description"].as_str().expect("text");
    assert!(text.contains("7 s") && text.contains("1GiB memory"), "{text}");
    assert!(tool("upload_file")["description"].as_str().expect("text").contains("At most 3MB"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_schemas_are_plain_enough_for_every_client() {
    let server = Server::start(On::Local).await;
    let listed = server.request("tools/list", json!({})).await;
    for tool in listed["result"]["tools"].as_array().expect("tools") {
        let name = tool["name"].as_str().expect("a name");
        // Some clients cut descriptions at 2 KB.
        assert!(tool["description"].as_str().is_some_and(|text| text.len() < 2000), "{name}");
        assert!(tool["title"].is_string() && tool["annotations"]["title"].is_string(), "{name}");
        for schema in [&tool["inputSchema"], &tool["outputSchema"]] {
            assert_eq!(schema["type"], "object", "{name}");
            check_plain(name, schema);
        }
        for (argument, schema) in tool["inputSchema"]["properties"].as_object().expect("some") {
            assert!(schema["description"].is_string(), "{name}: {argument}");
        }
    }
}

/// No `$ref`, no combinations, no boolean schemas: what some clients drop or choke on.
fn check_plain(tool: &str, schema: &Value) {
    let schema = schema.as_object().unwrap_or_else(|| panic!("{tool}: {schema} is no object"));
    for keyword in schema.keys() {
        let known = [
            "type",
            "properties",
            "required",
            "additionalProperties",
            "description",
            "items",
            "enum",
            "default",
            "minimum",
            "maximum",
            "minLength",
            "maxLength",
            "pattern",
        ];
        assert!(known.contains(&keyword.as_str()), "{tool}: {keyword}");
    }
    assert!(schema["type"].is_string(), "{tool}");
    for property in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        check_plain(tool, property.1);
    }
    if let Some(items) = schema.get("items") {
        check_plain(tool, items);
    }
}
