//! What clients are told about the tools. Written out rather than derived: the texts and bounds
//! depend on the settings, and several clients understand only the plainest of JSON Schema (no
//! `$ref`, no bare `true`, no `oneOf`).

mod files;
mod run;

use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use serde_json::{Value, json};

use crate::{
    backend::Template,
    config::{Config, Transport},
};

/// What every client gets to read before the first call.
pub(super) fn instructions(config: &Config) -> String {
    let charts = if config.inline_images > 0 {
        "Charts come back with the run that makes them; read_artifact shows any other file."
    } else {
        "read_artifact shows charts and other files."
    };
    format!(
        "Runs Python in an isolated container without a network. Typical use: upload_file a data \
         set, run_python to analyse it and save charts or reports under /mnt/data, download_url \
         for the person. {charts} Leave session_id out of the first call and pass the one that it \
         returns to all later calls: files live as long as the session, variables do not outlive a \
         run."
    )
}

/// The tools under these settings, of sandboxes that hold this.
pub(super) fn all(config: &Config, transport: Transport, template: &Template) -> Vec<Tool> {
    vec![
        close_session(),
        files::list_artifacts(),
        files::read_artifact(config, transport),
        run::read_output(),
        run::run_python(config, transport, template),
        files::upload_file(config, transport),
    ]
}

fn close_session() -> Tool {
    tool(
        "close_session",
        "Close a session",
        "Ends a session: its container, its files and their download URLs are gone when this \
         returns. A session that is not used ends by itself after a while.",
        &object(json!({ "session_id": session_id_in(false) }), &["session_id"]),
        &object(
            json!({
                "session_id": session_id_out(),
                "status": { "type": "string", "enum": ["closed"] },
            }),
            &["session_id", "status"],
        ),
        Hints { read_only: false, destructive: true, idempotent: false },
    )
}

#[derive(Clone, Copy)]
struct Hints {
    read_only: bool,
    destructive: bool,
    idempotent: bool,
}

fn tool(
    name: &'static str,
    title: &str,
    description: &str,
    input: &Value,
    output: &Value,
    hints: Hints,
) -> Tool {
    let schema =
        |value: &Value| -> JsonObject { value.as_object().cloned().expect("schemas are objects") };
    Tool::new(name, description.to_owned(), schema(input))
        .with_title(title)
        .with_raw_output_schema(schema(output).into())
        .with_annotations(
            ToolAnnotations::with_title(title)
                .read_only(hints.read_only)
                .destructive(hints.destructive)
                .idempotent(hints.idempotent)
                // Nothing reaches beyond the container.
                .open_world(false),
        )
}

fn object(properties: Value, required: &[&str]) -> Value {
    json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    })
}

fn artifact(more: Value, required: &[&str]) -> Value {
    let mut properties = json!({
        "path": { "type": "string", "description": "Absolute." },
        "filename": { "type": "string", "description": "Relative to /mnt/data." },
        "size_bytes": { "type": "integer", "minimum": 0 },
        "mime_type": { "type": "string" },
        "download_url": { "type": "string", "description": "For a person to open or download." },
    });
    let all = properties.as_object_mut().expect("written as one above");
    if let Value::Object(more) = more {
        all.extend(more);
    }
    let basic = ["path", "filename", "size_bytes", "mime_type"];
    object(properties, &[&basic, required].concat())
}

fn session_id_in(optional: bool) -> Value {
    let description = if optional {
        "The session to use, as returned by an earlier call. Leave it out to start a new one."
    } else {
        "The session, as returned by upload_file or run_python."
    };
    json!({ "type": "string", "description": description, "pattern": "^[A-Za-z0-9_-]{1,64}$" })
}

fn session_id_out() -> Value {
    json!({ "type": "string", "description": "Pass this to all later calls." })
}

fn new_session() -> Value {
    json!({
        "type": "boolean",
        "description": "True if there was no session of that name: one was started, without files.",
    })
}

fn next_offset() -> Value {
    json!({ "type": "integer", "minimum": 0, "description": "Where to read on; absent at the end." })
}
