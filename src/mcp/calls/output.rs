//! `read_output`.

use rmcp::model::CallToolResult;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Call, Log, existing, parse, success, whole};
use crate::{error::Result, mcp::text, sessions::Stream};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReadOutput {
    session_id: String,
    run_id: String,
    stream: Option<Stream>,
    offset: Option<f64>,
    length: Option<f64>,
}

pub(super) async fn read_output(
    call: &Call,
    arguments: Value,
    log: &mut Log,
) -> Result<CallToolResult> {
    let ReadOutput { session_id, run_id, stream, offset, length } = parse(arguments)?;
    let id = existing(&session_id, log)?;
    let sessions = &call.server.sessions;
    let offset = whole("offset", offset, 0..=text::MOST_OFFSET)?;
    let length = whole("length", length, 1..=text::MOST)?.unwrap_or(text::PAGE);
    let stream = stream.unwrap_or(Stream::Stdout);
    let len = usize::try_from(length).unwrap_or(usize::MAX);
    let part = sessions.read_output(&id, &run_id, stream, offset, len).await?;
    log.run = Some(run_id.clone());
    log.bytes = Some(part.bytes.len() as u64);
    let page = text::page(&part.bytes, part.offset, part.kept, call.server.room().page());
    let mut result = json!({
        "session_id": id.as_str(),
        "run_id": run_id,
        "stream": stream,
        "text": page.text,
        "offset": part.offset,
        "total_bytes": part.total,
        "kept_bytes": part.kept,
    });
    if let Some(next) = page.next_offset {
        result["next_offset"] = next.into();
    }
    Ok(success(result))
}
