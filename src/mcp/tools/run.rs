//! Programs, and what they print.

use rmcp::model::Tool;
use serde_json::{Value, json};

use super::{
    Hints, artifact, new_session, next_offset, object, session_id_in, session_id_out, tool,
};
use crate::{
    artifact::human_size,
    backend::Template,
    config::{Config, Transport},
    mcp::text,
    session::Outcome,
};

pub(super) fn run_python(config: &Config, transport: Transport, template: &Template) -> Tool {
    let max = config.exec_timeout.as_secs();
    let mut properties = json!({
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
    });
    let mut pictures = "Save charts (PNG)";
    if config.inline_images > 0 {
        pictures = "Save charts (PNG), which you then see,";
        properties["inline_images"] = json!({
            "type": "integer",
            "description": format!(
                "Charts of this run to be shown with its result, {} if left out; 0 for none.",
                config.inline_images
            ),
            "minimum": 0,
            "maximum": config.inline_images,
        });
    }
    let mut listed = json!({});
    if transport == Transport::Stdio && config.export_dir.is_some() {
        listed["local_path"] = json!({
            "type": "string",
            "description": "Where the file also is on the client's machine.",
        });
        listed["not_exported"] = json!({
            "type": "string",
            "description": "Why it is not there; download_url has it.",
        });
    }
    tool(
        "run_python",
        "Run Python",
        &format!(
            "Runs a Python program in the session's container. Every call is a fresh process: \
             variables, imports and background processes do not carry over, files in /mnt/data do. \
             The working directory is /mnt/data, modules uploaded there can be imported. {pictures} \
             and reports (PDF, XLSX, CSV) there: they come back as artifacts. Print what you want to see. There is no \
             network and no pip install. Libraries: {}; fonts cover Latin, CJK and emoji, and \
             matplotlib draws without a display. Limits: {max} s, {} memory with files, {} CPU, \
             code {}; of stdout and stderr the first and last part is shown, {} each, and read_output reads on. A Python \
             error is a normal result with exit_code 1 and the traceback in stderr: mend the code \
             and run again. Without session_id a new session is started; pass the session_id that \
             is returned to all later calls, and to close_session when you are done.{}",
            libraries(template),
            human_size(config.memory_limit),
            config.cpu_limit,
            human_size(config.max_code as u64),
            human_size(config.max_output as u64),
            patience(config),
        ),
        &object(properties, &["code"]),
        &result(listed),
        Hints { read_only: false, destructive: true, idempotent: false },
    )
}

/// What comes of a run; its files may be described by more than others are.
fn result(listed: Value) -> Value {
    let outcomes: Vec<_> = Outcome::ALL.iter().map(|outcome| outcome.as_str()).collect();
    object(
        json!({
            "session_id": session_id_out(),
            "new_session": new_session(),
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
                "description": "Something is left out; a line in stdout says how much and where. read_output has it.",
            },
            "stderr_truncated": { "type": "boolean" },
            "artifacts": {
                "type": "array",
                "description": "New and changed files, if exit_code is 0.",
                "items": artifact(listed, &[]),
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
    )
}

/// What clients that give up early have to be told; nothing else can be done for them.
fn patience(config: &Config) -> String {
    // The usual limit of those that have one.
    const USUAL: u64 = 60;
    if config.exec_timeout.as_secs() < USUAL {
        return String::new();
    }
    format!(
        " If the client itself gives up after {USUAL} s, set timeout_s lower or its own timeout \
         higher; a client that asks for progress is kept informed."
    )
}

/// Libraries of the sandboxes' Python.
fn libraries(template: &Template) -> String {
    let names = template.libraries("python");
    if names.is_empty() { "the standard library".into() } else { names.join(", ") }
}

pub(super) fn read_output() -> Tool {
    tool(
        "read_output",
        "Read on in an output",
        "Reads what was left out of stdout or stderr of a run that was cut (stdout_truncated, \
         stderr_truncated). The outputs of the last 4 such runs of a session are kept, 8MiB of each; \
         write what is longer to a file instead.",
        &object(
            json!({
                "session_id": session_id_in(false),
                "run_id": {
                    "type": "string",
                    "description": "The run, as returned by run_python.",
                    "minLength": 1,
                    "maxLength": 64,
                },
                "stream": {
                    "type": "string",
                    "enum": ["stdout", "stderr"],
                    "description": "Which of the two outputs.",
                    "default": "stdout",
                },
                "offset": {
                    "type": "integer",
                    "minimum": 0,
                    "description": "First byte; where the result was cut if left out.",
                },
                "length": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": text::MOST,
                    "description": format!("Most bytes; {} if left out.", text::PAGE),
                },
            }),
            &["session_id", "run_id"],
        ),
        &object(
            json!({
                "session_id": session_id_out(),
                "run_id": { "type": "string" },
                "stream": { "type": "string", "enum": ["stdout", "stderr"] },
                "text": { "type": "string" },
                "offset": { "type": "integer", "minimum": 0, "description": "Of the text's first byte." },
                "next_offset": next_offset(),
                "total_bytes": { "type": "integer", "minimum": 0, "description": "What the program wrote." },
                "kept_bytes": { "type": "integer", "minimum": 0, "description": "So many, from the start, can be read." },
            }),
            &["session_id", "run_id", "stream", "text", "offset", "total_bytes", "kept_bytes"],
        ),
        Hints { read_only: true, destructive: false, idempotent: true },
    )
}
