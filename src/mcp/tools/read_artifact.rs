//! `read_artifact`.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use rmcp::model::{CallToolResponse, CallToolResult, ContentBlock};
use serde::Deserialize;
use serde_json::{Value, json};

use super::schema::{next_offset, object, required_session, session_of_result};
use crate::sessions::Open;
use crate::{
    artifact::{DataPath, is_picture},
    error::{Error, Result},
    listing,
    mcp::{
        call::{Call, Log, existing, success, whole},
        results::{
            budget::MessageBudget,
            images::{self, Fitted},
            read, text,
        },
        tool::{Description, Facts, Hints, Tool, Toolset},
    },
    session::{FileReader, SessionId},
    text::human_size,
};

pub(super) struct ReadArtifact;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Arguments {
    session_id: String,
    path: String,
    format: Option<Format>,
    offset: Option<f64>,
    length: Option<f64>,
}

#[derive(Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Format {
    Auto,
    Text,
    Base64,
}

impl Tool for ReadArtifact {
    const NAME: &'static str = "read_artifact";
    const TOOLSET: Toolset = Toolset::Run;
    type Arguments = Arguments;

    fn describe(facts: &Facts) -> Description {
        let budget = MessageBudget::new(facts.transport);
        let [image, base64] = [budget.image, budget.base64].map(human_size);
        let large = if budget.scales { "are scaled down" } else { "can only be downloaded" };
        Description {
            title: "Read a file",
            text: format!(
                "Returns a file from a session. PNG, JPEG, GIF and WebP come as an image; text \
                 (CSV, JSON, Markdown, code) as text, one page of {} at a time; any other file, \
                 and every file with format base64, as content_base64. Limits: {} a file, and what \
                 fits into one message: images over {image} {large}, and base64 over {base64} must \
                 be read in parts with offset and length. Every file can be downloaded from its \
                 download_url. To work with a file's content (PDF, XLSX), read it in run_python \
                 instead.",
                human_size(text::PAGE),
                human_size(facts.config.max_artifact_read),
            ),
            input: input(budget),
            output: output(),
            hints: Hints::ReadOnly,
        }
    }

    async fn call(call: &Call, arguments: Arguments, log: &mut Log) -> Result<CallToolResponse> {
        let Arguments { session_id, path, format, offset, length } = arguments;
        let id = existing(&session_id, log)?;
        let path = DataPath::anywhere(&path)
            .map_err(|why| Error::InvalidPath(format!("The path {why}.")))?;
        let offset = whole("offset", offset, 0..=text::MAX_OFFSET)?;
        let length = whole("length", length, 1..=call.services.budget().base64)?;
        let reader = call.services.sessions.perform(&id, Open { path: path.clone() }).await?;
        let size_bytes = reader.stamp().size;
        let mut result = listing::file(None, &path, size_bytes);
        result["session_id"] = id.as_str().into();
        log.bytes = Some(size_bytes);
        let file = File { call, id: &id, reader, result };

        let format = format.unwrap_or(Format::Auto);
        let in_part = offset.is_some() || length.is_some();
        if format == Format::Auto
            && !in_part
            && is_picture(path.mime())
            && let Some(image) = file.image().await?
        {
            return Ok(image.into());
        }
        let (offset, page) = (offset.unwrap_or(0), length.unwrap_or(text::PAGE));
        let is_text =
            format == Format::Text || (format == Format::Auto && file.reads_as_text().await?);
        let result = if is_text {
            file.text(offset, page).await
        } else if in_part {
            file.part(offset, page).await
        } else {
            file.base64().await
        };
        result.map(Into::into)
    }
}

fn input(budget: MessageBudget) -> Value {
    object(
        json!({
            "session_id": required_session(),
            "path": {
                "type": "string",
                "description": "Absolute within /mnt/data, or relative to it.",
                "minLength": 1,
                "maxLength": 1100,
            },
            "format": {
                "type": "string",
                "enum": ["auto", "text", "base64"],
                "description": "auto: images as images, text as text, anything else as base64.",
                "default": "auto",
            },
            "offset": {
                "type": "integer",
                "minimum": 0,
                "description": "First byte to read; next_offset of the previous page.",
            },
            "length": {
                "type": "integer",
                "minimum": 1,
                "maximum": budget.base64,
                "description": format!(
                    "Maximum bytes to read; {} if omitted, at most {} of text.",
                    text::PAGE,
                    text::MAX_PAGE
                ),
            },
        }),
        &["session_id", "path"],
    )
}

fn output() -> Value {
    object(
        json!({
            "session_id": session_of_result(),
            "path": { "type": "string" },
            "filename": { "type": "string" },
            "mime_type": { "type": "string" },
            "size_bytes": { "type": "integer", "minimum": 0 },
            "text": { "type": "string", "description": "The page, when the file comes as text." },
            "content_base64": {
                "type": "string",
                "description": "Absent when the file comes as an image or as text.",
            },
            "offset": {
                "type": "integer",
                "minimum": 0,
                "description": "Offset of the page's first byte.",
            },
            "next_offset": next_offset(),
            "not_utf8": {
                "type": "boolean",
                "description": "The text has bytes that are not UTF-8, shown as U+FFFD.",
            },
            "scaled_to": {
                "type": "string",
                "description": "Width and height of the image, if it was scaled down.",
            },
        }),
        &["session_id", "path", "filename", "mime_type", "size_bytes"],
    )
}

/// The file that is to be read, and the fields that every result about it has.
struct File<'a> {
    call: &'a Call,
    id: &'a SessionId,
    reader: FileReader,
    result: Value,
}

impl File<'_> {
    fn size(&self) -> u64 {
        self.reader.stamp().size
    }

    fn check_size(&self, fits: u64) -> Result<()> {
        read::check_size(&self.call.services, self.id, &self.reader, fits)
    }

    /// As an image to look at, if that is what its content is.
    async fn image(&self) -> Result<Option<CallToolResult>> {
        let services = &self.call.services;
        let budget = services.budget();
        // A larger image can be scaled down to fit, but only up to the limit of the settings.
        self.check_size(if budget.scales { u64::MAX } else { budget.image })?;
        let content = read::whole(&self.reader, self.id).await?;
        let shown = match images::fit(&services.images, content, budget.image).await {
            Fitted::Image(shown) => shown,
            Fitted::TooLarge => {
                return Err(read::too_large(services, self.id, &self.reader, None));
            }
            Fitted::NotAnImage => return Ok(None),
        };
        let mut result = self.result.clone();
        if shown.scaled {
            result["scaled_to"] = format!("{}x{}", shown.width, shown.height).into();
        }
        let mut image = success(result);
        let block = ContentBlock::image(STANDARD.encode(&shown.bytes), shown.mime);
        image.content.insert(0, block);
        Ok(Some(image))
    }

    async fn reads_as_text(&self) -> Result<bool> {
        let start = self.bytes(0, text::SNIFFED as u64).await?;
        Ok(text::reads_as_text(self.reader.path().mime(), &start))
    }

    async fn text(self, offset: u64, length: u64) -> Result<CallToolResult> {
        let bytes = self.bytes(offset, length.min(text::MAX_PAGE)).await?;
        let budget = self.call.services.budget().page();
        let page = text::page(&bytes, offset, self.size(), budget);
        let mut result = self.result;
        result["text"] = page.text.into();
        result["offset"] = offset.into();
        if let Some(next) = page.next_offset {
            result["next_offset"] = next.into();
        }
        if !page.is_utf8 {
            result["not_utf8"] = true.into();
        }
        Ok(success(result))
    }

    async fn part(self, offset: u64, length: u64) -> Result<CallToolResult> {
        let bytes = self.bytes(offset, length).await?;
        let next = offset + bytes.len() as u64;
        let more = next < self.size();
        let mut result = self.result;
        result["content_base64"] = STANDARD.encode(bytes).into();
        result["offset"] = offset.into();
        if more {
            result["next_offset"] = next.into();
        }
        Ok(success(result))
    }

    async fn base64(self) -> Result<CallToolResult> {
        self.check_size(self.call.services.budget().base64)?;
        let mut result = self.result;
        result["content_base64"] =
            STANDARD.encode(read::whole(&self.reader, self.id).await?).into();
        Ok(success(result))
    }

    async fn bytes(&self, offset: u64, length: u64) -> Result<Bytes> {
        read::part(&self.reader, self.id, offset, length).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mcp::call::parse;

    #[test]
    fn a_bad_argument_is_named() {
        let message = |arguments| match parse::<Arguments>(arguments).map(drop) {
            Err(error) => error.to_string(),
            Ok(()) => "accepted".into(),
        };
        let path = |path| json!({ "session_id": "s", "path": path });
        assert_eq!(message(path(json!("a"))), "accepted");
        assert!(message(path(json!(7))).starts_with("path: invalid type: integer `7`"));
        assert_eq!(message(json!({ "session_id": "s" })), "missing field `path`.");
        let unknown = json!({ "session_id": "s", "path": "a", "colour": 1 });
        assert!(message(unknown).contains("unknown field `colour`"));
        let unknown = json!({ "session_id": "s", "path": "a", "x\u{1b}".repeat(9999): 1 });
        let message_of_long = message(unknown);
        assert!(message_of_long.len() < 1500 && !message_of_long.contains(char::is_control));
        let format = json!({ "session_id": "s", "path": "a", "format": "hex" });
        assert!(
            message(format)
                .contains("unknown variant `hex`, expected one of `auto`, `text`, `base64`")
        );
    }
}
