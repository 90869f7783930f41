//! Answers of upstreams as values of code, without the secrets of the settings. Pure.

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use memchr::memmem;
use rmcp::model::{CallToolResult, ContentBlock, ResourceContents};
use serde_json::Value;

use super::{CallError, CallErrorKind};

/// The text that stands in answers for a secret.
const REMOVED: &str = "[secret]";

/// Shortest text, in bytes, that is removed: a shorter one would also be found where it is no secret.
const MIN_SECRET: usize = 6;

/// The type of bytes whose upstream names none.
const UNKNOWN_TYPE: &str = "application/octet-stream";

/// A part of an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Item {
    /// A value.
    Value(Value),
    /// The content of a file.
    Bytes {
        /// The content.
        data: Bytes,
        /// Its type.
        mime_type: String,
        /// A name that the upstream suggests: untrusted, and perhaps no name of a file.
        name: Option<String>,
    },
}

impl Item {
    /// The size in bytes, of a value as JSON.
    pub fn size(&self) -> u64 {
        let size = match self {
            Self::Value(value) => serde_json::to_vec(value).map_or(usize::MAX, |json| json.len()),
            Self::Bytes { data, .. } => data.len(),
        };
        size as u64
    }

    pub(super) fn bytes(data: Bytes, mime_type: Option<String>, name: Option<String>) -> Self {
        let mime_type = mime_type.unwrap_or_else(|| UNKNOWN_TYPE.into());
        Self::Bytes { data, mime_type, name }
    }
}

/// The error about an answer that is too large.
pub(super) fn too_large(most: u64) -> CallError {
    let why = format!(
        "the answer has more than {most} bytes; ask for less of it, such as a page or a filter"
    );
    CallError::new(CallErrorKind::Limit, why)
}

/// The items of a tool's result.
///
/// # Errors
/// If the tool reports an error, or its answer cannot be decoded.
pub(super) fn of_tool(result: CallToolResult) -> Result<Vec<Item>, CallError> {
    if result.is_error == Some(true) {
        let texts = result.content.iter().filter_map(|block| match block {
            ContentBlock::Text(text) => Some(&*text.text),
            _ => None,
        });
        let told = texts.collect::<Vec<_>>().join("\n");
        let told = match result.structured_content {
            Some(value) if told.is_empty() => value.to_string(),
            _ if told.is_empty() => "an error without a message".into(),
            _ => told,
        };
        return Err(CallError::new(CallErrorKind::Upstream, told));
    }
    if let Some(value) = result.structured_content {
        return Ok(vec![Item::Value(value)]);
    }
    let invalid = || {
        let why = "the answer has data that is no base64";
        CallError::new(CallErrorKind::Unavailable, why)
    };
    let decoded = |data: &str| BASE64_STANDARD.decode(data).map(Bytes::from).map_err(|_| invalid());
    let items = result.content.into_iter().map(|block| {
        Ok(match block {
            ContentBlock::Text(text) => Item::Value(of_text(text.text)),
            ContentBlock::Image(image) => {
                Item::bytes(decoded(&image.data)?, Some(image.mime_type), None)
            }
            ContentBlock::Audio(audio) => {
                Item::bytes(decoded(&audio.data)?, Some(audio.mime_type), None)
            }
            ContentBlock::Resource(resource) => match resource.resource {
                ResourceContents::TextResourceContents { text, .. } => Item::Value(of_text(text)),
                ResourceContents::BlobResourceContents { blob, uri, mime_type, .. } => {
                    let name = uri.rsplit('/').next().filter(|name| !name.is_empty());
                    Item::bytes(decoded(&blob)?, mime_type, name.map(str::to_owned))
                }
                other => Item::Value(serde_json::to_value(other).map_err(|_| invalid())?),
            },
            // A link to a resource, and kinds that later versions of the protocol add.
            other => Item::Value(serde_json::to_value(other).map_err(|_| invalid())?),
        })
    });
    items.collect()
}

/// A text as a value: parsed if it is an object or an array.
pub(super) fn of_text(text: String) -> Value {
    if text.trim_start().starts_with(['{', '['])
        && let Ok(value) = serde_json::from_str(&text)
    {
        return value;
    }
    Value::String(text)
}

/// Removes secrets from items.
pub(super) fn remove(items: &mut [Item], secrets: &[&str]) {
    for item in items {
        match item {
            Item::Value(value) => remove_from_value(value, secrets),
            Item::Bytes { data, mime_type, name } => {
                for secret in long(secrets) {
                    if memmem::find(data, secret.as_bytes()).is_some() {
                        *data = replaced(data, secret.as_bytes());
                    }
                }
                remove_from(mime_type, secrets);
                if let Some(name) = name {
                    remove_from(name, secrets);
                }
            }
        }
    }
}

/// Removes secrets from the texts and names in a value.
pub(super) fn remove_from_value(value: &mut Value, secrets: &[&str]) {
    if long(secrets).next().is_none() {
        return;
    }
    match value {
        Value::String(text) => remove_from(text, secrets),
        Value::Array(values) => {
            for value in values {
                remove_from_value(value, secrets);
            }
        }
        Value::Object(fields) => {
            for value in fields.values_mut() {
                remove_from_value(value, secrets);
            }
            if fields.keys().any(|name| long(secrets).any(|secret| name.contains(secret))) {
                let all = std::mem::take(fields).into_iter().map(|(mut name, value)| {
                    remove_from(&mut name, secrets);
                    (name, value)
                });
                *fields = all.collect();
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Removes secrets from a text.
pub(super) fn remove_from(text: &mut String, secrets: &[&str]) {
    for secret in long(secrets) {
        if text.contains(secret) {
            *text = text.replace(secret, REMOVED);
        }
    }
}

fn long<'a>(secrets: &'a [&'a str]) -> impl Iterator<Item = &'a str> {
    secrets.iter().copied().filter(|secret| secret.len() >= MIN_SECRET)
}

fn replaced(data: &[u8], secret: &[u8]) -> Bytes {
    let mut all = Vec::with_capacity(data.len());
    let mut from = 0;
    for at in memmem::find_iter(data, secret) {
        all.extend_from_slice(&data[from..at]);
        all.extend_from_slice(REMOVED.as_bytes());
        from = at + secret.len();
    }
    all.extend_from_slice(&data[from..]);
    all.into()
}
