//! The module `tools` of code in a sandbox, on each engine, without anything that it could call. `tests/calls` has its
//! tests against a server of calls.

use serde_json::json;
use support::{On, Server, assert_fields, name, on_all, text};

on_all! {
    code_is_told_that_calls_are_not_enabled_when_it_calls,
    a_module_of_the_users_comes_before_that_of_calls,
    ; not on wasm: the_command_tool_is_told_that_calls_are_not_enabled,
}

const NOT_ENABLED: &str = "calls out of this sandbox are not enabled";

async fn code_is_told_that_calls_are_not_enabled_when_it_calls(on: On) {
    let server = Server::start(on).await;
    let session = name("not_enabled");
    let code = "import tools, asyncio\nprint(tools.crm)\n\
        async def call():\n    await tools.aio.crm.search(query='x')\n\
        try:\n    asyncio.run(call())\nexcept tools.ToolError as error:\n    print(error.kind)\n\
        tools.crm.search(query='x')";
    let ran = server.run(&session, code).await;
    assert_fields!(ran, { "exit_code": 1, "stdout": "<upstream crm>\nnot_enabled\n" });
    let said = text(&ran["stderr"]);
    assert!(said.contains(&format!("tools.NotEnabled: {NOT_ENABLED}")), "{said}");
    assert_eq!(said.matches("tools.py").count(), 1, "{said}");
    let code = "tools.crm.search({ query: 'x' }).catch((error) => console.log(error.name, error.kind, error.message))";
    let script = json!({ "session_id": session, "language": "javascript", "code": code });
    let ran = server.call("execute_code", script).await.ok();
    let said = text(&ran["stdout"]);
    assert!(said.starts_with(&format!("NotEnabled not_enabled {NOT_ENABLED}")), "{ran}");
}

async fn a_module_of_the_users_comes_before_that_of_calls(on: On) {
    let server = Server::start(on).await;
    let session = name("own_tools_module");
    server.upload(&session, "tools.py", b"mine = 7").await.ok();
    let ran = server.run(&session, "import tools\nprint(tools.mine)").await;
    assert_fields!(ran, { "stdout": "7\n", "exit_code": 0 });
}

async fn the_command_tool_is_told_that_calls_are_not_enabled(on: On) {
    let server = Server::start(on).await;
    let script =
        json!({ "session_id": name("command"), "language": "bash", "code": "tool --list" });
    let ran = server.call("execute_code", script).await.ok();
    assert_fields!(ran, { "exit_code": 1, "stdout": "" });
    let said = text(&ran["stderr"]);
    assert!(said.starts_with(&format!("tool: {NOT_ENABLED}")), "{said}");
}
