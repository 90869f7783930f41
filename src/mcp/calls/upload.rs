//! `upload_file`.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use rmcp::model::CallToolResponse;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Call, Log, parse, say_if_new, session, success};
use crate::{
    artifact::DataPath,
    config::Transport,
    error::{Error, Result},
    mcp::{
        long_text::{invalid_base64, is_wrapping, within},
        roots::{self, Found},
    },
    session::SessionId,
    sessions::{Content, Opened},
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UploadFile {
    session_id: Option<String>,
    filename: String,
    content_base64: Option<String>,
    text: Option<String>,
    local_path: Option<String>,
    overwrite: Option<bool>,
}

pub(super) async fn upload_file(
    call: &Call,
    arguments: Value,
    log: &mut Log,
) -> Result<CallToolResponse> {
    let UploadFile { session_id, filename, content_base64, text, local_path, overwrite } =
        parse(arguments)?;
    let given = session(session_id.as_deref(), log)?;
    let path = DataPath::relative(&filename)
        .map_err(|why| Error::InvalidFilename(format!("The filename {why}.")))?;
    let overwrite = overwrite.unwrap_or(false);
    let limit = call.server.sessions.config().max_upload;
    let content = match (content_base64, text, local_path) {
        (None, None, None) => {
            return upload_url(call, given, &path, overwrite, log).await.map(Into::into);
        }
        (Some(base64), None, None) => match call.long_text(&base64) {
            Some(whole) => whole.base64(limit)?,
            None => decode(base64, limit)?.into(),
        },
        (None, Some(text), None) => match call.long_text(&text) {
            Some(whole) => whole.text(limit)?,
            None => within(text.len() as u64, limit).map(|()| text.into_bytes().into())?,
        },
        (None, None, Some(_)) if call.server.transport == Transport::Http => {
            return Err(Error::InvalidArgument(
                "local_path is for clients on this machine, over stdio. Leave out the content and \
                 put the file to the upload_url that is returned."
                    .into(),
            ));
        }
        (None, None, Some(local)) => match roots::open(call, &local).await? {
            Found::File(file) => {
                within(file.size, limit)?;
                Content::new(file.pieces(limit))
            }
            Found::AskClient(question) => return Ok(question.into()),
        },
        _ => {
            return Err(Error::InvalidArgument(
                "Give one of content_base64, text and local_path, or none of them for an \
                 upload_url."
                    .into(),
            ));
        }
    };

    let sessions = &call.server.sessions;
    let (opened, done) = sessions.upload(given.clone(), path.clone(), content, overwrite).await;
    let Opened { id, is_new } = opened;
    log.session = Some(id.clone());
    let uploaded = call.or_close(given.is_none(), &id, done).await?;
    log.bytes = Some(uploaded.size_bytes);
    let mut result = json!({
        "session_id": id.as_str(),
        "path": path.absolute(),
        "size_bytes": uploaded.size_bytes,
    });
    say_if_new(is_new && given.is_some(), &mut result);
    Ok(success(result).into())
}

/// An address for whoever has the file: a person, curl, a workflow.
async fn upload_url(
    call: &Call,
    given: Option<SessionId>,
    path: &DataPath,
    overwrite: bool,
    log: &mut Log,
) -> Result<rmcp::model::CallToolResult> {
    if call.server.addresses.is_none() {
        return Err(Error::InvalidArgument("Give content_base64 or text.".into()));
    }
    let (Opened { id, is_new }, there) = call.server.sessions.ensure(given.clone()).await;
    log.session = Some(id.clone());
    call.or_close(given.is_none(), &id, there).await?;
    let (addresses, session) = call.links(&id).ok_or_else(|| Error::SessionNotFound(id.clone()))?;
    let mut result = json!({
        "session_id": id.as_str(),
        "path": path.absolute(),
        "upload_url": addresses.upload(session, path, overwrite),
        "expires_in_s": addresses.ttl_s(),
    });
    say_if_new(is_new && given.is_some(), &mut result);
    Ok(success(result))
}

fn decode(base64: String, limit: u64) -> Result<bytes::Bytes> {
    let mut base64 = base64.into_bytes();
    base64.retain(|byte| !is_wrapping(*byte));
    within(decoded_len(&base64), limit)?;
    let bytes = STANDARD.decode(&base64).map_err(|error| invalid_base64(&error.to_string()))?;
    Ok(bytes.into())
}

/// Bytes that well-formed base64 stands for.
fn decoded_len(base64: &[u8]) -> u64 {
    let padding = base64.iter().rev().take(2).filter(|byte| **byte == b'=').count();
    (base64.len() as u64 / 4 * 3).saturating_sub(padding as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_decoded_length_is_known_before_decoding() {
        for len in 0..20 {
            let encoded = STANDARD.encode(vec![7; len]);
            assert_eq!(decoded_len(encoded.as_bytes()), len as u64);
        }
    }
}
