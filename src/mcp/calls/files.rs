//! `list_artifacts` and `read_artifact`.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use rmcp::model::{CallToolResult, ContentBlock};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Call, Log, OfSession, existing, parse, success, whole};
use crate::{
    artifact::{DataPath, is_picture},
    error::{Error, Result},
    listing,
    mcp::{pictures::Look, read, room, text},
    session::FileReader,
};

pub(super) async fn list_artifacts(
    call: &Call,
    arguments: Value,
    log: &mut Log,
) -> Result<CallToolResult> {
    let id = existing(&parse::<OfSession>(arguments)?.session_id, log)?;
    let listing = call.server.sessions.list(&id).await?;
    let links = call.links(&id);
    let mut artifacts = vec![];
    let mut size = 0;
    for artifact in &listing.artifacts {
        let rendered = listing::dated(links, artifact);
        size += room::twice(&rendered);
        if size > call.server.room().listing {
            break;
        }
        artifacts.push(rendered);
    }
    log.bytes = Some(size as u64);
    let omitted = listing.artifacts.len() - artifacts.len() + usize::from(listing.more);
    let mut result = json!({ "session_id": id.as_str(), "artifacts": artifacts });
    if omitted > 0 {
        result["artifacts_omitted"] = omitted.into();
    }
    if let Some((addresses, session)) = links {
        result["download_all_url"] = addresses.download_all(session).into();
        result["page_url"] = addresses.page(session).into();
    }
    Ok(success(result))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReadArtifact {
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

pub(super) async fn read_artifact(
    call: &Call,
    arguments: Value,
    log: &mut Log,
) -> Result<CallToolResult> {
    let ReadArtifact { session_id, path, format, offset, length } = parse(arguments)?;
    let id = existing(&session_id, log)?;
    let path =
        DataPath::anywhere(&path).map_err(|why| Error::InvalidPath(format!("The path {why}.")))?;
    let offset = whole("offset", offset, 0..=text::MOST_OFFSET)?;
    let length = whole("length", length, 1..=call.server.room().base64)?;
    let reader = call.server.sessions.open(&id, path.clone()).await?;
    let size_bytes = reader.stamp().size;
    let result = json!({
        "session_id": id.as_str(),
        "path": path.absolute(),
        "filename": path.as_str(),
        "mime_type": path.mime(),
        "size_bytes": size_bytes,
    });
    log.bytes = Some(size_bytes);
    let file = File { call, id: &id, reader, result };

    let format = format.unwrap_or(Format::Auto);
    let in_part = offset.is_some() || length.is_some();
    if format == Format::Auto
        && !in_part
        && is_picture(path.mime())
        && let Some(picture) = file.picture().await?
    {
        return Ok(picture);
    }
    if format == Format::Text || (format == Format::Auto && file.reads_as_text().await?) {
        return file.text(offset.unwrap_or(0), length.unwrap_or(text::PAGE)).await;
    }
    if in_part {
        return file.part(offset.unwrap_or(0), length.unwrap_or(text::PAGE)).await;
    }
    file.base64().await
}

/// The file that is to be read, and the fields that every result about it has.
struct File<'a> {
    call: &'a Call,
    id: &'a crate::session::SessionId,
    reader: FileReader,
    result: Value,
}

impl File<'_> {
    fn size(&self) -> u64 {
        self.reader.stamp().size
    }

    /// The setting, or what fits into a message if that is less.
    fn check_size(&self, fits: u64) -> Result<()> {
        let limit = self.call.server.sessions.config().max_artifact_read.min(fits);
        let size_bytes = self.size();
        if size_bytes <= limit { Ok(()) } else { Err(self.too_large(Some(limit))) }
    }

    fn too_large(&self, limit: Option<u64>) -> Error {
        let path = self.reader.path();
        let links = self.call.links(self.id);
        let download_url = links.map(|(addresses, session)| addresses.download(session, path));
        Error::ArtifactTooLarge {
            path: path.as_str().to_owned(),
            size_bytes: self.size(),
            limit,
            download_url,
        }
    }

    /// As a picture to look at, if that is what its content is.
    async fn picture(&self) -> Result<Option<CallToolResult>> {
        let room = self.call.server.room();
        // Beyond what fits a picture can be made smaller, but not beyond all measure.
        self.check_size(if room.scales { u64::MAX } else { room.picture })?;
        let content = read::whole(&self.reader, self.id).await?;
        let shown = match self.call.server.pictures.whole(content, room.picture).await {
            Look::Shown(shown) => shown,
            Look::TooLarge => return Err(self.too_large(None)),
            Look::NoPicture => return Ok(None),
        };
        let mut result = self.result.clone();
        if shown.scaled {
            result["scaled_to"] = format!("{}x{}", shown.width, shown.height).into();
        }
        let mut picture = success(result);
        let block = ContentBlock::image(STANDARD.encode(&shown.bytes), shown.mime);
        picture.content.insert(0, block);
        Ok(Some(picture))
    }

    async fn reads_as_text(&self) -> Result<bool> {
        let start = self.bytes(0, text::START as u64).await?;
        Ok(text::reads_as_text(self.reader.path().mime(), &start))
    }

    async fn text(self, offset: u64, length: u64) -> Result<CallToolResult> {
        let bytes = self.bytes(offset, length.min(text::MOST)).await?;
        let room = self.call.server.room().page();
        let page = text::page(&bytes, offset, self.size(), room);
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
        self.check_size(self.call.server.room().base64)?;
        let mut result = self.result;
        result["content_base64"] =
            STANDARD.encode(read::whole(&self.reader, self.id).await?).into();
        Ok(success(result))
    }

    async fn bytes(&self, offset: u64, length: u64) -> Result<Bytes> {
        read::part(&self.reader, self.id, offset, length).await
    }
}
