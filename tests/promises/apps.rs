//! The view of a session for clients that show MCP Apps. `tests/browser` shows it in a real browser.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use serde_json::{Value, json};
use support::{On, Server, web::*};

const URI: &str = "ui://llm-sandbox/session";
const MIME: &str = "text/html;profile=mcp-app";
const EXTENSION: &str = "io.modelcontextprotocol/ui";

/// A server over standard input, and its answer to a client with these extensions.
async fn introduced(extensions: Value) -> (Server, Value) {
    let server = Server::launch(On::Local, &[]);
    let hello = json!({
        "protocolVersion": LEGACY, "capabilities": { "extensions": extensions },
        "clientInfo": { "name": "host", "version": "1" },
    });
    let hello = server.request("initialize", hello).await;
    (server, hello)
}

/// The tools of a list whose results are shown.
fn with_view(listed: &Value) -> Vec<&str> {
    let tools = listed["result"]["tools"].as_array().unwrap();
    let shown = tools.iter().filter(|tool| tool["_meta"]["ui"]["resourceUri"] == URI);
    shown.map(|tool| tool["name"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_shows_apps_is_offered_the_view_of_a_session() {
    let (server, hello) = introduced(json!({ EXTENSION: { "mimeTypes": [MIME] } })).await;
    assert!(hello["result"]["capabilities"]["extensions"][EXTENSION].is_object(), "{hello}");
    let listed = server.request("tools/list", json!({})).await;
    assert_eq!(with_view(&listed), ["execute_code", "list_artifacts", "run_python"]);
    let resources = server.request("resources/list", json!({})).await;
    assert_eq!(resources["result"]["resources"][0]["uri"], URI);
    let read = server.request("resources/read", json!({ "uri": URI })).await;
    let document = &read["result"]["contents"][0];
    assert_eq!((&document["mimeType"], &document["uri"]), (&MIME.into(), &URI.into()));
    // A host lets the document load nothing from domains that it does not declare.
    assert_eq!(document["_meta"]["ui"]["csp"], json!({}));
    let text = document["text"].as_str().unwrap();
    assert!(text.starts_with("<!doctype html>"), "{text}");
    assert!(
        !text.contains("http:") && !text.contains("https:") && !text.contains("src=\""),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_over_http_that_shows_apps_is_offered_the_view_without_a_session_of_mcp() {
    let (_web, caller) = Web::open(On::Local, &[]).await;
    let capabilities = json!({ "extensions": { EXTENSION: { "mimeTypes": [MIME] } } });
    let (mut message, headers) = caller.modern("tools/list", json!({}));
    message["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] = capabilities;
    let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, &**value)).collect();
    let listed = caller.post(&message, &headers).await.messages().remove(0);
    assert!(with_view(&listed).contains(&"run_python"), "{listed}");
    // A cache between client and server must not give this list to other clients.
    assert_eq!(listed["result"]["cacheScope"], "private", "{listed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_shows_no_apps_of_this_kind_sees_nothing_of_them() {
    for extensions in [json!({}), json!({ EXTENSION: { "mimeTypes": ["text/html+other"] } })] {
        let (server, hello) = introduced(extensions).await;
        assert!(hello["result"]["capabilities"]["extensions"].is_null(), "{hello}");
        let listed = server.request("tools/list", json!({})).await;
        assert_eq!(with_view(&listed), <[&str; 0]>::default());
        let resources = server.request("resources/list", json!({})).await;
        assert_eq!(resources["result"]["resources"], json!([]));
    }
}
