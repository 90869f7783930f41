//! `read_artifact`.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use config::Toolset;
use model::{
    FilePath, SessionId, World,
    artifact::is_picture,
    text::{
        encoding::{Encoding, SNIFFED},
        human_size,
    },
};
use protocol::message::{Document, PageProblem};
use rmcp::model::{CallToolResponse, CallToolResult, ContentBlock};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    near_datasets,
    schema::{next_offset, object, required_session, session_of_result},
};
use crate::sessions::Open;
use crate::{
    error::{Error, Result},
    listing,
    mcp::{
        audited::Log,
        call::{Call, existing, success, whole},
        results::{
            budget,
            images::{self, Fitted},
            kind, read, text,
        },
        tool::{Description, Hints, Tool, ToolFacts},
    },
    session::FileReader,
};

pub(in crate::mcp) struct ReadArtifact;

/// Largest number of a page.
const MAX_PAGES: u64 = 100_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::mcp) struct Arguments {
    session_id: String,
    path: String,
    format: Option<Format>,
    offset: Option<f64>,
    length: Option<f64>,
    page: Option<f64>,
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

    fn describe(_: &ToolFacts) -> Description {
        Description {
            title: "Read a file",
            text: format!(
                "Shows a file of /mnt/data or /data: a picture or a page of a PDF as a picture, text by pages \
                 of {}. Open other files (XLSX) in run_python, or give the person the download_url.",
                human_size(text::PAGE),
            ),
            input: input(),
            output: output(),
            hints: Hints::ReadOnly,
        }
    }

    async fn call(call: &Call, arguments: Arguments, log: &mut Log) -> Result<CallToolResponse> {
        let Arguments { session_id, path, format, offset, length, page } = arguments;
        let id = existing(&session_id, log)?;
        let path = FilePath::anywhere(&path)
            .map_err(|why| Error::InvalidPath(format!("The path {why}.")))?;
        let offset = whole("offset", offset, 0..=text::MAX_OFFSET)?.unwrap_or(0);
        let length = whole("length", length, 1..=budget::BASE64)?;
        let page = whole("page", page, 1..=MAX_PAGES)?;
        let sessions = &call.services.sessions;
        let reader = sessions.perform(&id, Open { path: path.clone() }).await.map_err(|error| {
            let datasets = sessions.get(&id).map(|live| live.info().datasets);
            near_datasets(error, &path, &datasets.unwrap_or_default())
        })?;
        let size_bytes = reader.stamp().size;
        let mut result = listing::readable(None, &path, size_bytes);
        result["session_id"] = id.as_str().into();
        log.bytes = Some(size_bytes);
        let file = File { call, id: &id, reader, result };

        if let Some(page) = page {
            return Ok(file.page(page).await?.into());
        }
        let length = length.unwrap_or(text::PAGE);
        let format = format.unwrap_or(Format::Auto);
        if format == Format::Base64 {
            return Ok(file.part(offset, length).await?.into());
        }
        let start = file.bytes(0, SNIFFED as u64).await?;
        if format == Format::Auto
            && (is_picture(path.mime()) || kind::starts_as_picture(&start))
            && let Some(image) = file.image().await?
        {
            return Ok(image.into());
        }
        if format == Format::Text || text::reads_as_text(path.mime(), &start) {
            return Ok(file.text(offset, length, &start).await?.into());
        }
        Ok(file.kind(&start).await?.into())
    }
}

fn input() -> Value {
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
                "maximum": budget::BASE64,
                "description": "Bytes.",
            },
            "page": {
                "type": "integer",
                "minimum": 1,
                "maximum": MAX_PAGES,
                "description": "Of a PDF, from 1.",
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
                "description": "The page, with format base64.",
            },
            "offset": {
                "type": "integer",
                "minimum": 0,
                "description": "Offset of the page's first byte.",
            },
            "next_offset": next_offset(),
            "not_utf8": {
                "type": "boolean",
                "description": "The text has bytes that are no characters, shown as U+FFFD.",
            },
            "encoding": {
                "type": "string",
                "description": "Of a text that is not plain UTF-8, as Python calls it.",
            },
            "encoding_is_guess": {
                "type": "boolean",
                "description": "No byte order mark says so.",
            },
            "kind": {
                "type": "string",
                "description": "What the file is, if it is neither text nor an image that can be shown.",
            },
            "advice": { "type": "string", "description": "What to do with such a file." },
            "download_url": {
                "type": "string",
                "description": "Of such a file, for a person to open or download.",
            },
            "page": { "type": "integer", "minimum": 1, "description": "The page that is shown, from 1." },
            "pages": { "type": "integer", "minimum": 0, "description": "Of a document." },
            "scaled_to": {
                "type": "string",
                "description": "Width and height of the image, if it was scaled down.",
            },
        }),
        &["session_id", "path", "filename", "mime_type", "size_bytes"],
    )
}

/// The message on a page in a sandbox that has only interpreters.
const NOT_HERE: &str = "pages of a PDF cannot be shown with the embedded engine. Read its text with pypdf, or give the \
                        person the download_url.";

/// The message on a page of an Office document without LibreOffice.
const NOT_CONVERTED: &str = "pages of Office documents cannot be shown here, as LibreOffice is not installed. Read its \
                             text with python-docx, python-pptx or openpyxl. The operator of the server adds \
                             LibreOffice with `llm-sandbox image build --with documents`.";

/// The message on a page without the library that draws it.
const NOT_INSTALLED: &str = "pages of a PDF cannot be shown here, as pypdfium2 is not installed. Read its text with \
                             pypdf.";

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

    /// The file as an image to look at; `None` if it is no image.
    async fn image(&self) -> Result<Option<CallToolResult>> {
        let services = &self.call.services;
        // An image is scaled down to fit, but its file must be within the limit of the settings.
        read::check_size(services, self.id, &self.reader, u64::MAX)?;
        let content = read::whole(&self.reader, self.id).await?;
        let shown = match images::fit(&services.images, content, budget::IMAGE).await {
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

    /// A page of a PDF or Office document as an image to look at, which the sandbox has drawn.
    async fn page(self, page: u64) -> Result<CallToolResult> {
        let services = &self.call.services;
        let is_office = kind::may_be_office(&self.bytes(0, kind::START).await?);
        let document = if is_office { "document" } else { "PDF" };
        let path = self.reader.path();
        let refused = |why: String| Error::InvalidArgument(format!("{path}: {why}"));
        if services.sessions.template().await.world == World::Interpreter {
            return Err(refused(NOT_HERE.into()));
        }
        let number = u32::try_from(page).unwrap_or(u32::MAX);
        let drawn = services.sessions.page(self.id, &path.to_text(), number).await?;
        let (Document { pages, problem }, image) = drawn
            .ok_or_else(|| refused("the page could not be drawn in time. Try again.".into()))?;
        if let Some(problem) = problem {
            return Err(refused(match problem {
                PageProblem::Broken => {
                    "no page can be shown: this is no PDF or Office document, or a broken one."
                        .into()
                }
                PageProblem::Encrypted => {
                    "this PDF is encrypted. Ask the person for a copy without a password, or for \
                    the password, and open it with pypdf."
                        .into()
                }
                PageProblem::NoSuchPage if pages == 1 => format!("this {document} has 1 page."),
                PageProblem::NoSuchPage => format!("this {document} has {pages} pages."),
                PageProblem::TooLarge if is_office => {
                    "this document takes too much memory or time. Read its text by code.".into()
                }
                PageProblem::TooLarge => {
                    "this page takes too much memory or time. Read its text with pypdf.".into()
                }
                PageProblem::NoLibrary if is_office => NOT_CONVERTED.into(),
                PageProblem::NoLibrary => NOT_INSTALLED.into(),
            }));
        }
        let Fitted::Image(shown) = images::fit(&services.images, image, budget::IMAGE).await else {
            return Err(refused("the page could not be drawn.".into()));
        };
        let mut result = self.result;
        result["page"] = page.into();
        result["pages"] = pages.into();
        let mut image = success(result);
        let block = ContentBlock::image(STANDARD.encode(&shown.bytes), shown.mime);
        image.content.insert(0, block);
        Ok(image)
    }

    async fn text(self, offset: u64, length: u64, start: &[u8]) -> Result<CallToolResult> {
        let encoding = Encoding::of(start);
        let offset = encoding.start(offset);
        let bytes = self.bytes(offset, length.min(text::MAX_PAGE)).await?;
        let encoding = encoding.of_part(&bytes);
        let page = text::page(encoding, &bytes, offset, self.size(), budget::PAGE);
        let mut result = self.result;
        result["text"] = page.content.text.into();
        result["offset"] = offset.into();
        if let Some(next) = page.next_offset {
            result["next_offset"] = next.into();
        }
        if let Some(name) = encoding.name() {
            result["encoding"] = name.into();
        }
        if encoding.is_guess {
            result["encoding_is_guess"] = true.into();
        }
        if page.content.is_lossy {
            result["not_utf8"] = true.into();
        }
        Ok(success(result))
    }

    async fn part(self, offset: u64, length: u64) -> Result<CallToolResult> {
        let length = length.min(self.call.services.sessions.config().max_artifact_read);
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

    /// The kind of a file that cannot be shown.
    async fn kind(self, start: &[u8]) -> Result<CallToolResult> {
        let end = self.bytes(self.size().saturating_sub(kind::END), kind::END).await?;
        let world = self.call.services.sessions.template().await.world;
        let path = self.reader.path();
        let kind = kind::of(&path.to_text(), self.size(), (start, &end), world);
        let url = self.call.services.links(self.id).zip(path.own());
        let url = url.map(|((urls, session), path)| urls.download(session, path));
        let kind = if url.is_some() { kind } else { kind.without_url() };
        let mut result = self.result;
        result["kind"] = kind.name.into();
        result["advice"] = kind.advice.into();
        let is_document = start.starts_with(kind::PDF) || kind::is_office(&result["kind"]);
        if is_document && world == World::System {
            let counted = self.call.services.sessions.page(self.id, &path.to_text(), 0).await;
            if let Ok(Some((Document { pages, problem: None }, _))) = counted {
                // The pages of an Office document are counted when the first is shown.
                if pages > 0 {
                    result["pages"] = pages.into();
                }
                let advice = format!(
                    "page shows one of its pages. {}",
                    result["advice"].as_str().unwrap_or_default()
                );
                result["advice"] = advice.into();
            }
        }
        if let Some(url) = url {
            result["download_url"] = url.into();
        }
        Ok(success(result))
    }

    async fn bytes(&self, offset: u64, length: u64) -> Result<Bytes> {
        read::part(&self.reader, self.id, offset, length).await
    }
}
