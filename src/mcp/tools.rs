//! What clients are told about the tools. Written out rather than derived: the texts and bounds
//! depend on the settings, and several clients understand only the plainest of JSON Schema (no
//! `$ref`, no bare `true`, no `oneOf`).

use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use serde_json::{Value, json};

use crate::{artifact::human_size, config::Config, session::Outcome};

/// What every client gets to read before the first call.
pub(super) const INSTRUCTIONS: &str = "\
Runs Python in an isolated container without a network. Typical use: upload_file a data set, \
run_python to analyse it and save charts or reports under /mnt/data, read_artifact to look at a \
picture, download_url for the person. Leave session_id out of the first call and pass the one that \
it returns to all later calls: files live as long as the session, variables do not outlive a run.";

/// Libraries of the image, from the list that it is built from.
fn libraries() -> String {
    let lines = include_str!("../../sandbox-image/requirements.in").lines().map(str::trim);
    let names = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    names
        .filter_map(|line| line.split(['=', '<', '>', '~', ' ', ';', '[']).next())
        .collect::<Vec<_>>()
        .join(", ")
}

/// The five tools under these settings.
pub(super) fn all(config: &Config) -> Vec<Tool> {
    vec![
        close_session(),
        list_artifacts(),
        read_artifact(config),
        run_python(config),
        upload_file(config),
    ]
}

fn upload_file(config: &Config) -> Tool {
    let max = human_size(config.max_upload);
    tool(
        "upload_file",
        "Upload a file",
        &format!(
            "Puts a file into /mnt/data of a session, where run_python finds it. At most {max} a \
             file; all files of a session together at most {}. Without session_id a new session is \
             started; pass the session_id that is returned to all later calls. Either the whole \
             file is there afterwards or none that was not there before.",
            human_size(config.data_limit)
        ),
        &object(
            json!({
                "session_id": session_id_in(true),
                "filename": {
                    "type": "string",
                    "description": "Name below /mnt/data, such as sales.csv or raw/sales.csv. \
                                    Folders are made as needed.",
                    "minLength": 1,
                    "maxLength": 1024,
                },
                "content_base64": {
                    "type": "string",
                    "description": format!("The file's bytes in standard base64, at most {max} decoded."),
                },
                "overwrite": {
                    "type": "boolean",
                    "description": "Replace a file of that name instead of failing with file_exists.",
                    "default": false,
                },
            }),
            &["filename", "content_base64"],
        ),
        &object(
            json!({
                "session_id": session_id_out(),
                "path": { "type": "string", "description": "Where the file is, for the code to open." },
                "size_bytes": { "type": "integer", "minimum": 0 },
            }),
            &["session_id", "path", "size_bytes"],
        ),
        Hints { read_only: false, destructive: true, idempotent: false },
    )
}

fn run_python(config: &Config) -> Tool {
    let max = config.exec_timeout.as_secs();
    let outcomes: Vec<_> = Outcome::ALL.iter().map(|outcome| outcome.as_str()).collect();
    tool(
        "run_python",
        "Run Python",
        &format!(
            "Runs a Python program in the session's container. Every call is a fresh process: \
             variables, imports and background processes do not carry over, files in /mnt/data do. \
             The working directory is /mnt/data, modules uploaded there can be imported; save charts (PNG) and reports (PDF, XLSX, CSV) \
             there and they come back as artifacts. Print what you want to see. There is no \
             network and no pip install. Libraries: {}; fonts cover Latin, CJK and emoji, and \
             matplotlib draws without a display. Limits: {max} s, {} memory with files, {} CPU, \
             code {}; of stdout and stderr the first and last part is kept, {} each. A Python \
             error is a normal result with exit_code 1 and the traceback in stderr: mend the code \
             and run again. Without session_id a new session is started; pass the session_id that \
             is returned to all later calls.",
            libraries(),
            human_size(config.memory_limit),
            config.cpu_limit,
            human_size(config.max_code as u64),
            human_size(config.max_output as u64),
        ),
        &object(
            json!({
                "session_id": session_id_in(true),
                "code": {
                    "type": "string",
                    "description": format!("Python source, at most {}.", human_size(config.max_code as u64)),
                    "minLength": 1,
                    "maxLength": config.max_code,
                },
                "timeout_s": {
                    "type": "integer",
                    "description": format!("Seconds after which the program is killed; {max} if left out."),
                    "minimum": 1,
                    "maximum": max,
                },
            }),
            &["code"],
        ),
        &object(
            json!({
                "session_id": session_id_out(),
                "run_id": { "type": "string" },
                "exit_code": {
                    "type": "integer",
                    "description": "The process's own; -1 on timeout; 128 + signal when killed by a signal.",
                },
                "outcome": { "type": "string", "enum": outcomes, "description": "Why the run ended." },
                "stdout": { "type": "string" },
                "stderr": { "type": "string" },
                "stdout_truncated": {
                    "type": "boolean",
                    "description": "Something is left out; a line in stdout says how much and where.",
                },
                "stderr_truncated": { "type": "boolean" },
                "artifacts": {
                    "type": "array",
                    "description": "New and changed files, if exit_code is 0.",
                    "items": artifact(json!({}), &[]),
                },
                "artifacts_omitted": {
                    "type": "integer",
                    "minimum": 1,
                    "description": "So many more new and changed files; list_artifacts has them.",
                },
                "duration_ms": { "type": "integer", "minimum": 0, "description": "Wall time of the code." },
            }),
            &[
                "session_id",
                "run_id",
                "exit_code",
                "outcome",
                "stdout",
                "stderr",
                "stdout_truncated",
                "stderr_truncated",
                "artifacts",
                "duration_ms",
            ],
        ),
        Hints { read_only: false, destructive: true, idempotent: false },
    )
}

fn list_artifacts() -> Tool {
    let modified_at = json!({
        "modified_at": { "type": "string", "description": "RFC 3339, UTC." },
    });
    tool(
        "list_artifacts",
        "List files",
        "Lists every file in /mnt/data of a session, sub-folders included, sorted by path.",
        &object(json!({ "session_id": session_id_in(false) }), &["session_id"]),
        &object(
            json!({
                "session_id": session_id_out(),
                "artifacts": { "type": "array", "items": artifact(modified_at, &["modified_at"]) },
                "artifacts_omitted": {
                    "type": "integer",
                    "minimum": 1,
                    "description": "At least so many more files, left out because the list is too long.",
                },
            }),
            &["session_id", "artifacts"],
        ),
        Hints { read_only: true, destructive: false, idempotent: true },
    )
}

fn read_artifact(config: &Config) -> Tool {
    tool(
        "read_artifact",
        "Read a file",
        &format!(
            "Returns a file of a session. PNG, JPEG, GIF and WebP come as a picture to look at; any \
             other file, and every file with format base64, as content_base64. Limits: {} a file, \
             and what fits into one message: 7.8MB as a picture, 3.9MB as base64. Larger files are \
             for the person to download by download_url. To work with a file's content, read it in \
             run_python instead.",
            human_size(config.max_artifact_read)
        ),
        &object(
            json!({
                "session_id": session_id_in(false),
                "path": {
                    "type": "string",
                    "description": "Absolute within /mnt/data, or relative to it.",
                    "minLength": 1,
                    "maxLength": 1100,
                },
                "format": {
                    "type": "string",
                    "enum": ["auto", "base64"],
                    "description": "auto: pictures as pictures, the rest as base64.",
                    "default": "auto",
                },
            }),
            &["session_id", "path"],
        ),
        &object(
            json!({
                "session_id": session_id_out(),
                "path": { "type": "string" },
                "filename": { "type": "string" },
                "mime_type": { "type": "string" },
                "size_bytes": { "type": "integer", "minimum": 0 },
                "content_base64": {
                    "type": "string",
                    "description": "Absent when the file comes as a picture.",
                },
            }),
            &["session_id", "path", "filename", "mime_type", "size_bytes"],
        ),
        Hints { read_only: true, destructive: false, idempotent: true },
    )
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
