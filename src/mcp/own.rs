//! The operator's own tools, as clients see them.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use config::Config;
use model::{
    Artifact, DataPath, Outcome, RunId, World,
    artifact::{encoded, is_picture},
    text::{human_size, whole_ms},
};
use rmcp::{
    Peer, RoleServer,
    model::{CallToolResponse, CallToolResult, ContentBlock, ResourceContents, ToolAnnotations},
};
use serde_json::{Value, json};
use tokio::{sync::watch, time::timeout};

use super::{
    audited::{self, Log},
    call::{Call, success},
    message::PLACEHOLDER,
    results::{
        budget::{self, encoded_size},
        fit::{Room, fit},
        images::Inline,
    },
    running,
    tool::{Hints, output_schema},
    tools::schema,
};
use crate::{
    audit::Digest,
    error::{Error, Result},
    notes::Notes,
    own_tools::{Called, LeftFiles, OwnTool, OwnTools},
    progress::Progress,
    session::{RunReport, report},
};

/// Largest picture that is read, in bytes; the other files of a call are returned up to [`budget::RESOURCE`] together.
const MAX_FILE: u64 = 5_000_000;

/// Longest text of a file that is in the result itself, in bytes.
const MAX_TEXT: usize = 8_000;

/// Maximum number of bytes of all such texts together.
const MAX_TEXTS: usize = 20_000;

/// Maximum number of bytes of the arguments' long text as it was received, escapes included.
const MAX_LONG_TEXT: usize = 6 << 20;

/// A tool of the operator's as it is listed.
pub(super) fn listed(tool: &OwnTool) -> rmcp::model::Tool {
    let Value::Object(input) = tool.schema().clone() else {
        unreachable!("it was checked when it was read")
    };
    rmcp::model::Tool::new(tool.name().to_owned(), tool.description().to_owned(), input)
        .with_raw_output_schema(output_schema(output()))
        // Nothing of a call remains when the next one begins.
        .with_annotations(Hints::ReadOnly.annotate(ToolAnnotations::default()))
}

fn output() -> Value {
    let outcomes: Vec<_> = Outcome::ALL.iter().map(|outcome| outcome.as_str()).collect();
    schema::object(
        json!({
            "exit_code": { "type": "integer", "description": "The program's own; -1 on timeout." },
            "outcome": { "type": "string", "enum": outcomes, "description": "Why the program ended." },
            "stdout": { "type": "string" },
            "stderr": { "type": "string" },
            "stdout_truncated": { "type": "boolean" },
            "stderr_truncated": { "type": "boolean" },
            "artifacts": {
                "type": "array",
                "description": "New and changed files, if exit_code is 0. Their contents come with the \
                                result.",
                "items": schema::object(
                    json!({
                        "filename": { "type": "string" },
                        "size_bytes": { "type": "integer", "minimum": 0 },
                        "mime_type": { "type": "string" },
                        "text": { "type": "string", "description": "What it holds, if that is a short text." },
                        "not_returned": { "type": "string", "description": "Why its contents do not come." },
                    }),
                    &["filename", "size_bytes", "mime_type"],
                ),
            },
            "artifacts_omitted": { "type": "integer", "minimum": 1 },
            "duration_ms": { "type": "integer", "minimum": 0 },
            "notes": schema::notes(),
        }),
        &["exit_code", "outcome", "stdout", "stderr", "artifacts", "duration_ms"],
    )
}

/// Carries out a call and renders its result. The schema may be any, and is checked after long texts are back in the
/// arguments.
pub(super) async fn perform(
    tool: &OwnTool,
    call: &Call,
    mut arguments: Value,
    log: &mut Log,
) -> Result<CallToolResponse> {
    put_back(call, &mut arguments)?;
    call.release_message().await;
    log.audit(|record| {
        // No other field has a digest of the long texts in the arguments.
        record.inputs.arguments = Some(Digest::of_json(&arguments));
        record.limits = Some(audited::limits(tool.memory(), tool.deadline()));
    });
    let sessions = &call.services.sessions;
    let (config, cancel) = (sessions.config(), call.context.ct.clone());
    let calling = tool.call(sessions.caller(), arguments, config.max_output, cancel);
    let started = Progress { started: true, ..Progress::default() };
    let (_sender, heard) = watch::channel(started);
    let Called { reply, files } = running::reporting(call, heard, calling).await?;
    let limits = report::Limits {
        timeout: tool.deadline(),
        max_timeout: tool.deadline(),
        is_wanted: false,
        memory: tool.memory(),
        processors: 1,
        tracebacks: config.tracebacks,
        world: World::Interpreter,
    };
    let report = report::report(RunId::mint(), limits, None, reply);
    log.audit(|record| audited::report(record, &report));
    log.ran(&report);
    Ok(render(call, config, &report, &files).await.into())
}

/// Puts the long text of the message back to where it was cut out.
fn put_back(call: &Call, value: &mut Value) -> Result<()> {
    match value {
        Value::String(text) if text == PLACEHOLDER => {
            if let Some(long) = call.long_text(text) {
                let size = human_size(long.len() as u64);
                *text = long.into_string(MAX_LONG_TEXT).ok_or_else(|| {
                    let why = format!("An argument of {size} is too long, or is not UTF-8.");
                    Error::InvalidArgument(why)
                })?;
            }
            Ok(())
        }
        Value::Array(values) => values.iter_mut().try_for_each(|value| put_back(call, value)),
        Value::Object(fields) => fields.values_mut().try_for_each(|value| put_back(call, value)),
        _ => Ok(()),
    }
}

async fn render(
    call: &Call,
    config: &Config,
    report: &RunReport,
    files: &LeftFiles,
) -> CallToolResult {
    let mut contents = Contents::new(call, files);
    let mut artifacts = vec![];
    for artifact in &report.artifacts {
        artifacts.push(contents.add(artifact).await);
    }
    let mut rendered = json!({
        "exit_code": report.exit_code,
        "outcome": report.outcome.as_str(),
        "stdout": report.stdout.text,
        "stderr": report.stderr.text,
        "artifacts": artifacts,
        "duration_ms": whole_ms(report.elapsed),
    });
    let marks = ["stdout_truncated", "stderr_truncated"];
    let texts = running::text_fields(report, marks, false, &mut rendered);
    // Notes on the run are left out: a model that has not written the program cannot use them.
    let notes: Notes = call.notes();
    notes.add_to(&mut rendered);
    fit(&mut rendered, &texts, Room::new(config, budget::MESSAGE));
    let used = encoded_size(&rendered);
    let mut result = success(rendered);
    result.content.extend(contents.blocks(used).await);
    result
}

/// The contents of those files of a call that are returned.
struct Contents<'a> {
    call: &'a Call,
    files: &'a LeftFiles,
    texts: usize,
    pictures: Vec<File>,
    others: Vec<File>,
    left: u64,
}

struct File {
    path: DataPath,
    bytes: Bytes,
}

impl File {
    fn resource(&self) -> ContentBlock {
        let blob = STANDARD.encode(&self.bytes);
        let uri = format!("file:///{}", encoded(&self.path));
        ContentBlock::resource(ResourceContents::blob(blob, uri).with_mime_type(self.path.mime()))
    }
}

impl<'a> Contents<'a> {
    fn new(call: &'a Call, files: &'a LeftFiles) -> Self {
        let left = budget::RESOURCE.min(MAX_FILE);
        Self { call, files, texts: MAX_TEXTS, pictures: vec![], others: vec![], left }
    }

    /// Reads a file, and renders its entry in the result.
    async fn add(&mut self, artifact: &Artifact) -> Value {
        let mut shown = json!({
            "filename": artifact.path.as_str(),
            "size_bytes": artifact.size_bytes,
            "mime_type": artifact.path.mime(),
        });
        let picture = is_picture(artifact.path.mime()) && self.call.inline_images(None) > 0;
        let most = if picture { MAX_FILE } else { self.left };
        let Some(bytes) = self.files.read(&artifact.path, most).await else {
            let limit = human_size(most);
            shown["not_returned"] =
                format!("The files of a call are returned up to {limit}.").into();
            return shown;
        };
        let text = std::str::from_utf8(&bytes).ok().filter(|text| !text.contains('\0'));
        let text = text.filter(|text| !picture && text.len() <= MAX_TEXT.min(self.texts));
        if let Some(text) = text {
            self.texts -= text.len();
            shown["text"] = text.into();
            return shown;
        }
        let file = File { path: artifact.path.clone(), bytes };
        if picture {
            self.pictures.push(file);
        } else {
            self.left -= file.bytes.len() as u64;
            self.others.push(file);
        }
        shown
    }

    /// Pictures to look at, as many as are allowed, and other files as resources, beside a result that takes `used`
    /// bytes.
    async fn blocks(self, used: usize) -> Vec<ContentBlock> {
        let Self { call, pictures, others, mut left, .. } = self;
        let mut resources: Vec<_> = others.iter().map(File::resource).collect();
        let taken: usize = others.iter().map(|file| file.bytes.len() / 3 * 4 + 1000).sum();
        let mut inline = Inline::new(&call.services, used + taken, call.inline_images(None));
        let mut blocks = vec![];
        for picture in pictures {
            if let Ok(Some(block)) = inline.fitted(picture.bytes.clone()).await {
                blocks.push(block);
            } else if let Some(rest) = left.checked_sub(picture.bytes.len() as u64) {
                left = rest;
                resources.push(picture.resource());
            }
        }
        blocks.append(&mut resources);
        blocks
    }
}

/// Time between two checks whether a client is still connected.
const PRESENCE: Duration = Duration::from_secs(60);

/// Tells a client of each change of the tools, until it disconnects.
pub(super) fn tell_of_changes(own: &OwnTools, peer: Peer<RoleServer>) {
    let mut changes = own.changes();
    tokio::spawn(async move {
        loop {
            match timeout(PRESENCE, changes.changed()).await {
                Ok(Ok(())) if peer.notify_tool_list_changed().await.is_ok() => {}
                Err(_) if !peer.is_transport_closed() => {}
                _ => return,
            }
        }
    });
}
