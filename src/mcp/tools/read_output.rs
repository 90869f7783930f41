//! `read_output`.

use config::Toolset;
use model::text::encoding::Encoding;
use protocol::limits::MAX_KEPT_RUNS;
use rmcp::model::CallToolResponse;
use serde::Deserialize;
use serde_json::json;

use super::schema::{next_offset, object, required_session, session_of_result};
use crate::{
    error::Result,
    mcp::{
        audited::Log,
        call::{Call, existing, success, whole},
        results::{budget, text},
        tool::{Description, Hints, Tool, ToolFacts},
    },
    sessions::Stream,
};

pub(in crate::mcp) struct ReadOutput;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::mcp) struct Arguments {
    session_id: String,
    run_id: String,
    stream: Option<Stream>,
    offset: Option<f64>,
    length: Option<f64>,
}

impl Tool for ReadOutput {
    const NAME: &'static str = "read_output";
    const TOOLSET: Toolset = Toolset::Run;
    type Arguments = Arguments;

    fn describe(_: &ToolFacts) -> Description {
        Description {
            title: "Read the rest of the output",
            text: format!(
                "Reads on where a run's stdout or stderr was cut. Kept for the last {MAX_KEPT_RUNS} such \
                 runs.",
            ),
            input: object(
                json!({
                    "session_id": required_session(),
                    "run_id": { "type": "string" },
                    "stream": { "type": "string", "enum": ["stdout", "stderr"], "default": "stdout" },
                    "offset": {
                        "type": "integer",
                        "minimum": 0,
                        "description": "next_offset; leave it out to start at the cut.",
                    },
                    "length": {
                        "type": "integer",
                        "minimum": 1,
                        "maximum": text::MAX_PAGE,
                        "description": "Bytes.",
                    },
                }),
                &["session_id", "run_id"],
            ),
            output: object(
                json!({
                    "session_id": session_of_result(),
                    "run_id": { "type": "string" },
                    "stream": { "type": "string", "enum": ["stdout", "stderr"] },
                    "text": { "type": "string" },
                    "offset": {
                        "type": "integer",
                        "minimum": 0,
                        "description": "Offset of the first byte of text.",
                    },
                    "next_offset": next_offset(),
                    "total_bytes": {
                        "type": "integer",
                        "minimum": 0,
                        "description": "How many bytes the program wrote.",
                    },
                    "kept_bytes": {
                        "type": "integer",
                        "minimum": 0,
                        "description": "How many of them, from the start, can be read.",
                    },
                }),
                &["session_id", "run_id", "stream", "text", "offset", "total_bytes", "kept_bytes"],
            ),
            hints: Hints::ReadOnly,
        }
    }

    async fn call(call: &Call, arguments: Arguments, log: &mut Log) -> Result<CallToolResponse> {
        let Arguments { session_id, run_id, stream, offset, length } = arguments;
        let id = existing(&session_id, log)?;
        let sessions = &call.services.sessions;
        let offset = whole("offset", offset, 0..=text::MAX_OFFSET)?;
        let length = whole("length", length, 1..=text::MAX_PAGE)?.unwrap_or(text::PAGE);
        let stream = stream.unwrap_or(Stream::Stdout);
        let len = usize::try_from(length).unwrap_or(usize::MAX);
        let part = sessions
            .perform(
                &id,
                crate::sessions::ReadOutput { run_id: run_id.clone(), stream, offset, len },
            )
            .await?;
        log.run = Some(run_id.clone());
        log.bytes = Some(part.bytes.len() as u64);
        let page = text::page(Encoding::UTF_8, &part.bytes, part.offset, part.kept, budget::PAGE);
        let mut result = json!({
            "session_id": id.as_str(),
            "run_id": run_id,
            "stream": stream,
            "text": page.content.text,
            "offset": part.offset,
            "total_bytes": part.total,
            "kept_bytes": part.kept,
        });
        if let Some(next) = page.next_offset {
            result["next_offset"] = next.into();
        }
        Ok(success(result).into())
    }
}
