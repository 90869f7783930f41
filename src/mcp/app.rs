//! The view of a session for clients that show MCP Apps: one HTML document, which the tools that run code or list files
//! name in their `_meta`.
//!
//! The document shows a result's charts, output and tables, and the runs of the result's session. It loads nothing from
//! any address: the client passes the result to it, and it reads [`resources`](super::resources) through the client.

use rmcp::model::{
    ClientCapabilities, JsonObject, MetaObject, ReadResourceResult, Resource, ResourceContents,
    ServerCapabilities,
};
use serde_json::{Value, json};

/// The name of the extension.
const EXTENSION: &str = "io.modelcontextprotocol/ui";

pub(super) const URI: &str = "ui://llm-sandbox/session";

const MIME: &str = "text/html;profile=mcp-app";

const DOCUMENT: &str = concat!(
    include_str!("app/index.html"),
    "<style>\n",
    include_str!("app/style.css"),
    "</style>\n</head>\n<body>\n<header></header>\n<main></main>\n<script type=\"module\">\n",
    include_str!("app/script.js"),
    "</script>\n</body>\n</html>\n",
);

/// Whether a client with these capabilities shows MCP Apps.
pub(super) fn is_shown(client: Option<&ClientCapabilities>) -> bool {
    let extensions = client.and_then(|client| client.extensions.as_ref());
    let Some(apps) = extensions.and_then(|all| all.get(EXTENSION)) else { return false };
    // A client that lists no types is taken to show the only one.
    let types = apps.get("mimeTypes").and_then(Value::as_array);
    types.is_none_or(|types| types.contains(&MIME.into()))
}

/// Declares the extension to a client that has it. No other client needs to know of it.
pub(super) fn declare(server: &mut ServerCapabilities, client: Option<&ClientCapabilities>) {
    if is_shown(client) {
        let all = server.extensions.get_or_insert_default();
        all.insert(EXTENSION.into(), JsonObject::new());
    }
}

/// The `_meta` of a tool whose results the document shows.
pub(super) fn of_tool() -> MetaObject {
    meta(json!({ "resourceUri": URI }))
}

/// The document in a list of resources.
pub(super) fn listed() -> Resource {
    Resource::new(URI, "session view").with_title("Charts, tables and runs").with_mime_type(MIME)
}

/// The document, with the domains that it declares: none.
pub(super) fn contents() -> ReadResourceResult {
    let document = ResourceContents::text(DOCUMENT, URI).with_mime_type(MIME);
    ReadResourceResult::new(vec![
        document.with_meta(meta(json!({ "csp": {}, "prefersBorder": true }))),
    ])
}

fn meta(ui: Value) -> MetaObject {
    MetaObject(JsonObject::from_iter([("ui".to_owned(), ui)]))
}
