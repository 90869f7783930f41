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
    const ALIASES: &'static [(&'static str, &'static str)] =
        &[("filename", "path"), ("file_name", "path")];
    type Arguments = Arguments;

    fn describe(facts: &Facts) -> Description {
        let budget = MessageBudget::new(facts.transport);
        Description {
            title: "Read a file",
            text: format!(
                "Shows a file of /mnt/data: a picture as a picture, text by pages of {}. Open other \
                 files (XLSX, PDF) in run_python, or give the person the download_url.",
                human_size(text::PAGE),
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
            "path": { "type": "string" },
            "format": {
                "type": "string",
                "enum": ["auto", "text", "base64"],
                "description": "base64 costs many tokens.",
                "default": "auto",
            },
            "offset": {
                "type": "integer",
                "minimum": 0,
                "description": "next_offset of the last page.",
            },
            "length": {
                "type": "integer",
                "minimum": 1,
                "maximum": budget.base64,
                "description": "Bytes.",
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
