//! The answer to a program's question, as JSON, and the files that large and binary results become.

use bytes::Bytes;
use link::{Link, LinkError};
use model::{DataPath, Existing, RunId};
use protocol::{
    frame::MAX_BODY,
    message::{FailureCode, MAX_ASK},
};
use serde_json::{Value, json};

use crate::upstream::{CallError, CallErrorKind, Item};

/// Folder of the data area for results that are files.
const FOLDER: &str = "calls";

/// Bytes of a value from which it becomes a file.
const MAX_VALUE: usize = 900_000;

/// The answer with a value.
///
/// # Errors
/// If the value is too large.
pub(super) fn of_value(value: &Value) -> Result<Bytes, CallError> {
    bounded(&json!({ "value": value }), "the list is too long; use tools.search()")
}

/// The answer as bytes. A longer one would break the protocol, and so end the session.
fn bounded(answer: &Value, why: &str) -> Result<Bytes, CallError> {
    let answer = answer.to_string();
    if answer.len() > MAX_ASK {
        return Err(CallError::new(CallErrorKind::Limit, why));
    }
    Ok(answer.into())
}

/// The answer with an error.
pub(super) fn of_error(error: &CallError) -> Bytes {
    json!({ "error": error }).to_string().into()
}

/// The answer with a call's items. Those that are files are written to the data area before.
///
/// # Errors
/// If a file cannot be written, or there are too many items.
pub(super) async fn of_items(
    items: Vec<Item>,
    name: &str,
    (link, run_id, number): (&Link, &RunId, u32),
) -> Result<Bytes, CallError> {
    let mut rendered = vec![];
    let mut left = MAX_VALUE;
    for (at, item) in items.into_iter().enumerate() {
        let (data, mime_type, suggested) = match item {
            Item::Value(value) => {
                let text = value.to_string();
                if let Some(rest) = left.checked_sub(text.len()) {
                    left = rest;
                    rendered.push(json!({ "value": value }));
                    continue;
                }
                match value {
                    Value::String(text) => (text.into(), "text/plain".to_owned(), None),
                    _ => (Bytes::from(text), "application/json".to_owned(), None),
                }
            }
            Item::Bytes { data, mime_type, name } => (data, mime_type, name),
        };
        let path = file_name(name, run_id, (number, at), &mime_type, suggested.as_deref());
        let bytes = data.len();
        write(link, &path, data).await?;
        let file = json!({
            "path": format!("/mnt/data/{}", path.as_str()),
            "mime_type": mime_type,
            "bytes": bytes,
        });
        rendered.push(json!({ "file": file }));
    }
    bounded(&json!({ "items": rendered }), "the answer has too many parts; ask for less of it")
}

/// The path of a result's file: its tool, and what makes it unique.
fn file_name(
    tool: &str,
    run_id: &RunId,
    (number, at): (u32, usize),
    mime_type: &str,
    suggested: Option<&str>,
) -> DataPath {
    let of_name = |text: &str| -> String {
        let chars = text.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' });
        chars.take(60).collect()
    };
    let extension = suggested
        .and_then(|name| name.rsplit_once('.'))
        .map(|(_, extension)| of_name(extension))
        .filter(|extension| (1..=8).contains(&extension.len()))
        .or_else(|| {
            let essence = mime_type.split(';').next().unwrap_or_default().trim();
            let known = mime_guess::get_mime_extensions_str(essence)?;
            // The first of several is not always the usual one.
            let usual = ["png", "jpg", "json", "txt", "csv", "html", "xml", "pdf"];
            let usual = usual.into_iter().find(|usual| known.contains(usual));
            usual.or_else(|| known.first().copied()).map(str::to_owned)
        })
        .unwrap_or_else(|| "bin".into());
    // Its last part differs from that of the runs before.
    let run = run_id.as_str().rsplit('_').next().unwrap_or_default();
    let path = format!("{FOLDER}/{}_{run}_{number}_{at}.{extension}", of_name(tool));
    DataPath::relative(&path).expect("it has letters, digits and underscores")
}

/// Writes a file to the data area.
async fn write(link: &Link, path: &DataPath, data: Bytes) -> Result<(), CallError> {
    let failed = |error: LinkError| {
        let why = match error.code() {
            Some(FailureCode::Full) => "there is no room in /mnt/data for the result's file",
            _ => "the result's file could not be written to /mnt/data",
        };
        CallError::new(CallErrorKind::Limit, why)
    };
    let mut upload = link.upload(path, Existing::Replace);
    let mut rest = data;
    loop {
        let piece = rest.split_to(rest.len().min(MAX_BODY));
        let last = rest.is_empty();
        upload.put(piece, last).await.map_err(failed)?;
        if last {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_many_small_parts_is_refused_before_it_breaks_the_protocol() {
        let parts = |count| json!({ "items": vec![json!({ "value": "x" }); count] });
        let few = bounded(&parts(1000), "why").map(|answer| answer.len() < MAX_ASK);
        assert_eq!(few, Ok(true));
        let many = bounded(&parts(100_000), "why").map_err(|error| error.kind);
        assert_eq!(many, Err(CallErrorKind::Limit));
    }
}
