//! The Model Context Protocol as clients of both generations speak it, and the descriptions of the tools.

use serde_json::{Value, json};
use support::{On, Server, http_with, name, web::*};

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
        assert!(answer["result"]["capabilities"]["resources"].is_object());
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

/// Requests for capabilities that the server does not declare, each with valid parameters.
fn undeclared() -> Vec<(&'static str, Value)> {
    let template = json!({ "type": "ref/resource", "uri": "sandbox:///{session_id}/{path}" });
    vec![
        ("prompts/list", json!({})),
        ("prompts/get", json!({ "name": "a" })),
        (
            "completion/complete",
            json!({ "ref": template, "argument": { "name": "path", "value": "a" } }),
        ),
        ("logging/setLevel", json!({ "level": "info" })),
        ("resources/subscribe", json!({ "uri": "sandbox:///a/b" })),
        ("resources/unsubscribe", json!({ "uri": "sandbox:///a/b" })),
        ("subscriptions/listen", json!({ "notifications": { "toolsListChanged": true } })),
        ("tasks/list", json!({})),
        ("tasks/result", json!({ "taskId": "a" })),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_for_what_is_not_declared_is_answered_that_there_is_no_such_method() {
    const METHOD_NOT_FOUND: i64 = -32601;
    let server = Server::start(On::Local).await;
    let (_web, caller) = Web::open(On::Local, &[]).await;
    let session = caller.open().await;
    let hello = json!({
        "protocolVersion": LEGACY, "capabilities": {},
        "clientInfo": { "name": "old", "version": "1" },
    });
    let hello = Server::launch(On::Local, &[]).request("initialize", hello).await;
    let declared: Vec<_> =
        hello["result"]["capabilities"].as_object().expect("an object").keys().cloned().collect();
    assert_eq!(declared, ["resources", "tools"]);
    for (method, params) in undeclared() {
        let over_stdio = server.request(method, params.clone()).await;
        let over_http = session.ask(method, params.clone()).await.remove(0);
        let (message, headers) = caller.modern(method, params);
        let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, &**value)).collect();
        let stateless = caller.post(&message, &headers).await.messages().remove(0);
        for answer in [over_stdio, over_http, stateless] {
            assert_eq!(answer["error"]["code"], METHOD_NOT_FOUND, "{method}: {answer}");
        }
    }
    let pong = server.request("ping", json!({})).await;
    assert!(pong["result"].is_object(), "{pong}");
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
async fn over_http_the_tools_are_described_exactly_so() {
    let (_web, caller) = Web::open(On::Local, &[]).await;
    let modern = caller.ask("tools/list", json!({})).await[0]["result"]["tools"].clone();
    let legacy = caller.open().await.ask("tools/list", json!({})).await;
    assert_eq!(legacy[0]["result"]["tools"], modern, "whatever the generation");
    insta::assert_json_snapshot!(modern);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_descriptions_tell_the_limits_that_are_set() {
    let settings = [
        ("SANDBOX_EXEC_TIMEOUT_S", "7"),
        ("SANDBOX_MAX_UPLOAD_BYTES", "3MB"),
        ("SANDBOX_MEMORY_LIMIT", "1GiB"),
        ("SANDBOX_SESSION_TTL_M", "90"),
    ];
    let server = Server::start_with(On::Local, &settings).await;
    let listed = server.request("tools/list", json!({})).await;
    let tool = |name: &str| {
        let tools = listed["result"]["tools"].as_array().expect("tools");
        tools.iter().find(|tool| tool["name"] == name).expect("the tool").clone()
    };
    let run = tool("run_python");
    assert_eq!(
        run["inputSchema"]["properties"]["timeout_s"]["description"],
        "Default and limit: 7."
    );
    let text = run["description"].as_str().expect("text");
    assert!(text.contains("7 s") && text.contains("1GiB memory"), "{text}");
    assert!(text.contains("unused for 90 min"), "{text}");
    assert!(tool("upload_file")["description"].as_str().expect("text").contains("At most 3MB"));
}

/// All settings that change the descriptions of the tools.
const ALL_SETTINGS: &[(&str, &str)] = &[
    ("SANDBOX_EXPORT_DIR", "exported"),
    ("SANDBOX_INLINE_IMAGES", "20"),
    ("SANDBOX_EXEC_TIMEOUT_S", "3600"),
    ("SANDBOX_MEMORY_LIMIT", "1234567KiB"),
    ("SANDBOX_MAX_UPLOAD_BYTES", "123456789"),
    ("SANDBOX_DATA_LIMIT", "234567890"),
];

/// The listed tools, over stdio and HTTP and with all settings.
async fn all_tools() -> Vec<Value> {
    let mut all = vec![];
    for settings in [&[][..], ALL_SETTINGS, &[("SANDBOX_INLINE_IMAGES", "0")]] {
        let server = Server::start_with(On::Local, settings).await;
        let listed = server.request("tools/list", json!({})).await;
        let tools = listed["result"]["tools"].as_array().expect("tools").clone();
        let web = Web::start(On::Local, settings).await;
        let listed = web.caller(None).ask("tools/list", json!({})).await;
        let over_http = listed[0]["result"]["tools"].as_array().expect("tools").clone();
        assert_eq!(tools.len(), over_http.len());
        all.extend([tools, over_http].concat());
    }
    assert!(!all.is_empty());
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn the_schemas_are_plain_enough_for_every_client() {
    for tool in all_tools().await {
        let name = tool["name"].as_str().expect("a name");
        // Some clients cut descriptions off at 2 KB.
        let len = tool["description"].as_str().expect("a text").len();
        assert!((40..2000).contains(&len), "{name}: {len}");
        assert!(tool["title"].is_string() && tool["annotations"]["title"].is_string(), "{name}");
        for schema in [&tool["inputSchema"], &tool["outputSchema"]] {
            assert_eq!(schema["type"], "object", "{name}");
            check_plain(name, schema);
        }
        for hint in ["readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"] {
            assert!(tool["annotations"][hint].is_boolean(), "{name}: {hint}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_are_told_which_tools_destroy_and_which_can_be_called_again() {
    // Clients ask a person before they call a destructive tool, and may repeat idempotent calls.
    let expected = [
        // (tool, reads only, destroys, idempotent)
        ("execute_code", false, false, false),
        ("create_session", false, false, false),
        ("install_package", false, false, true),
        ("list_runtimes", true, false, true),
        ("get_workspace_info", true, false, true),
        ("reset_workspace", false, true, true),
        ("close_session", false, true, true),
        ("destroy_session", false, true, true),
        ("cancel_execution", false, true, true),
        ("get_execution_result", true, false, true),
    ];
    let server = Server::start_with(On::Local, ALL_SETTINGS).await;
    let listed = server.request("tools/list", json!({})).await;
    let tools = listed["result"]["tools"].as_array().expect("tools").clone();
    for (name, reads_only, destroys, idempotent) in expected {
        let Some(tool) = tools.iter().find(|tool| tool["name"] == name) else {
            assert_eq!(name, "install_package", "listed only where packages are allowed");
            continue;
        };
        let told = ["readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"]
            .map(|hint| tool["annotations"][hint].as_bool().expect("a boolean"));
        assert_eq!(told, [reads_only, destroys, idempotent, false], "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_takes_the_languages_that_cells_do() {
    let server = Server::start(On::Local).await;
    let listed = server.request("tools/list", json!({})).await;
    let of = |tool: &str, path: &str| {
        let tools = listed["result"]["tools"].as_array().expect("tools");
        let tool = tools.iter().find(|it| it["name"] == tool).expect("the tool");
        tool.pointer(path).cloned().unwrap_or_default()
    };
    let languages = "/inputSchema/properties/language/enum";
    let of_cells = of("execute_code", languages);
    assert!(of_cells.as_array().is_some_and(|names| names.contains(&json!("python"))));
    assert_eq!(of("create_session", languages), of_cells);
}

#[tokio::test(flavor = "multi_thread")]
async fn charts_are_promised_only_where_they_are_shown() {
    let told = async |settings: &[(&str, &str)]| {
        let server = Server::start_with(On::Local, settings).await;
        let listed = server.request("tools/list", json!({})).await;
        let tools = listed["result"]["tools"].as_array().expect("tools").clone();
        tools.into_iter().find(|tool| tool["name"] == "run_python").expect("the tool")
    };
    let run = told(&[]).await;
    let images = "/inputSchema/properties/inline_images/description";
    assert_eq!(run.pointer(images), Some(&json!("Charts to show; default 3.")));
    assert!(run["description"].as_str().expect("text").contains("you see the first 3 of a run"));
    let run = told(&[("SANDBOX_INLINE_IMAGES", "7")]).await;
    assert!(run["description"].as_str().expect("text").contains("you see the first 7 of a run"));
    let run = told(&[("SANDBOX_INLINE_IMAGES", "0")]).await;
    assert_eq!(run["inputSchema"]["properties"].get("inline_images"), None);
    assert!(!run["description"].as_str().expect("text").contains("you see the first"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_instructions_promise_no_charts_where_none_are_shown() {
    let server = Server::launch(On::Local, &[("SANDBOX_INLINE_IMAGES", "0")]);
    let hello = json!({
        "protocolVersion": LEGACY, "capabilities": {},
        "clientInfo": { "name": "old", "version": "1" },
    });
    let answer = server.request("initialize", hello).await;
    let text = answer["result"]["instructions"].as_str().expect("text");
    assert!(!text.contains("charts come as pictures"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_result_has_what_its_schema_says_and_nothing_else() {
    let server = Server::start_with(On::Local, ALL_SETTINGS).await;
    let listed = server.request("tools/list", json!({})).await;
    let tools = listed["result"]["tools"].as_array().expect("tools").clone();
    let id = name("schema");
    let call = async |tool: &str, mut arguments: Value| {
        arguments["session_id"] = json!(id);
        let result = server.call(tool, arguments).await.ok();
        let schema = tools.iter().find(|listed| listed["name"] == tool).expect("listed");
        conforms(&schema["outputSchema"], &result, tool);
        result
    };
    call("upload_file", json!({ "filename": "a.csv", "text": "a,b\n" })).await;
    let asked = call("upload_file", json!({ "filename": "b.png" })).await;
    http_with("PUT", asked["upload_url"].as_str().expect("an address"), &[], b"no picture").await;
    let chart = "import base64\nopen('c.png', 'wb').write(base64.b64decode('iVBORw0KGgoAAAANSUhEUgAA\
                 AAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=='))";
    let run = call("run_python", json!({ "code": chart })).await;
    assert!(run["artifacts"][0]["local_path"].is_string());
    call("run_python", json!({ "code": "for n in range(300): open(f'{n}', 'w')" })).await;
    call("run_python", json!({ "code": "1/0" })).await;
    call("run_python", json!({ "code": "import os; os.abort()" })).await;
    let cut = call("run_python", json!({ "code": "print('x' * 200_000)" })).await;
    call("read_output", json!({ "run_id": cut["run_id"] })).await;
    call("read_output", json!({ "run_id": cut["run_id"], "offset": 200_000 })).await;
    call("list_artifacts", json!({})).await;
    for path in ["a.csv", "b.png", "c.png"] {
        call("read_artifact", json!({ "path": path })).await;
        for format in ["text", "base64"] {
            call("read_artifact", json!({ "path": path, "format": format })).await;
            let part = json!({ "path": path, "format": format, "offset": 1, "length": 2 });
            call("read_artifact", part).await;
        }
    }
    let noted = call("run_python", json!({ "code": "pass", "timeout_s": 10_000 })).await;
    assert!(noted["notes"][0].is_string());
    let noted = json!({ "run_id": cut["run_id"], "length": 10_000_000 });
    assert!(call("read_output", noted).await["notes"][0].is_string());
    call("close_session", json!({})).await;
}

/// The maximum size of the tools as a model sees them, by the offered toolsets: names, descriptions and input schemas,
/// in JSON, in bytes. A tokenizer counts the current lists in `tests/tokens`; they have more than 4 bytes per token,
/// and at that rate these sizes are within the limits of 1,000, 1,500 and 2,000 tokens, including the libraries of the
/// image.
const MAX_SHOWN_BYTES: [(&str, usize); 3] =
    [("run", 3_900), ("run,code", 6_000), ("run,code,sessions", 8_000)];

#[tokio::test(flavor = "multi_thread")]
async fn the_list_of_tools_is_short() {
    let roots = json!({ "roots": { "listChanged": true } });
    for (toolsets, most) in MAX_SHOWN_BYTES {
        let settings = [("SANDBOX_TOOLSETS", toolsets)];
        let server = Server::launch(On::Local, &settings);
        let hello = json!({
            "protocolVersion": LEGACY, "capabilities": roots,
            "clientInfo": { "name": "old", "version": "1" },
        });
        server.request("initialize", hello).await;
        let listed = server.request("tools/list", json!({})).await;
        let web = Web::start(On::Local, &settings).await;
        let over_http = web.caller(None).ask("tools/list", json!({})).await.remove(0);
        for listed in [listed, over_http] {
            let tools = listed["result"]["tools"].as_array().expect("tools");
            let shown = tools.iter().map(|tool| {
                let [name, text, input] =
                    ["name", "description", "inputSchema"].map(|key| &tool[key]);
                json!({ "name": name, "description": text, "inputSchema": input }).to_string().len()
            });
            let bytes: usize = shown.sum();
            assert!((most / 2..most).contains(&bytes), "{toolsets}: {bytes} bytes");
        }
    }
}

/// Checks a value against a schema with the few keywords that the tools use. Clients also check results, and drop those
/// that do not conform.
#[track_caller]
fn conforms(schema: &Value, value: &Value, at: &str) {
    let fits = match schema["type"].as_str().expect("a type") {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("{at}: {other}"),
    };
    assert!(fits, "{at}: {value}");
    if let Some(allowed) = schema["enum"].as_array() {
        assert!(allowed.contains(value), "{at}: {value}");
    }
    if let Some(least) = schema["minimum"].as_f64() {
        assert!(value.as_f64() >= Some(least), "{at}: {value}");
    }
    for item in value.as_array().into_iter().flatten() {
        conforms(&schema["items"], item, at);
    }
    let Some(object) = value.as_object() else { return };
    for name in schema["required"].as_array().into_iter().flatten() {
        assert!(object.contains_key(name.as_str().expect("a name")), "{at}: no {name}");
    }
    for (name, value) in object {
        let at = format!("{at}.{name}");
        let property = schema["properties"].get(name);
        let property = property.or(schema.get("additionalProperties").filter(|it| it.is_object()));
        conforms(property.unwrap_or_else(|| panic!("{at} is in no schema")), value, &at);
    }
}

/// Checks that a schema has no `$ref`, combinations or boolean schemas, which some clients drop or fail on.
fn check_plain(tool: &str, schema: &Value) {
    let schema = schema.as_object().unwrap_or_else(|| panic!("{tool}: {schema} is no object"));
    for keyword in schema.keys() {
        let known = "type properties required additionalProperties description items enum default \
                     minimum maximum minLength maxLength pattern format";
        assert!(known.split(' ').any(|word| word == keyword), "{tool}: {keyword}");
    }
    assert!(schema["type"].is_string(), "{tool}");
    for property in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        check_plain(tool, property.1);
    }
    if let Some(items) = schema.get("items") {
        check_plain(tool, items);
    }
}
