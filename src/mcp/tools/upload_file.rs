//! `upload_file`.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use protocol::limits::MAX_PATH;
use rmcp::model::CallToolResponse;
use serde::Deserialize;
use serde_json::{Value, json};

use super::schema::{new_session, object, optional_session, session_of_result};
use crate::{
    artifact::{DataPath, Existing},
    config::Transport,
    error::{Error, Result},
    mcp::{
        call::{Call, Log, say_if_new, session, success},
        long_text::{invalid_base64, is_wrapping, within},
        roots::{self, Found},
        tool::{Description, Facts, Hints, Tool, Toolset},
    },
    session::SessionId,
    sessions::{Content, Opened, Upload},
    text::human_size,
};

pub(super) struct UploadFile;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Arguments {
    session_id: Option<String>,
    filename: String,
    content_base64: Option<String>,
    text: Option<String>,
    local_path: Option<String>,
    overwrite: Option<bool>,
}

impl Tool for UploadFile {
    const NAME: &'static str = "upload_file";
    const TOOLSET: Toolset = Toolset::Run;
    // A long file is read from the message while it is written.
    const READS_LONG_TEXT: bool = true;
    type Arguments = Arguments;

    fn describe(facts: &Facts) -> Description {
        let max = human_size(facts.config.max_upload);
        let sources = match facts.transport {
            Transport::Stdio => "text, content_base64 or local_path",
            Transport::Http => "text or content_base64",
        };
        Description {
            title: "Upload a file",
            text: format!(
                "Puts a file into a session's /mnt/data, where run_python finds it. Give its \
                 content as {sources}, or omit it to get an upload_url to which whoever has the \
                 file can send it (curl -T sales.csv '<upload_url>', or a person in a browser). At \
                 most {max} per file, and {} for all files of a session together. Without \
                 session_id a new session is started; pass the returned session_id to all later \
                 calls. A failed upload writes nothing and leaves an existing file of that name \
                 unchanged.",
                human_size(facts.config.data_limit)
            ),
            input: input(facts.transport, &max),
            output: object(
                json!({
                    "session_id": session_of_result(),
                    "new_session": new_session(),
                    "path": {
                        "type": "string",
                        "description": "Path of the file for code to open, also before it is \
                                        uploaded.",
                    },
                    "size_bytes": {
                        "type": "integer",
                        "minimum": 0,
                        "description": "Absent until the file is there.",
                    },
                    "upload_url": {
                        "type": "string",
                        "description": "Where to send the file, if no content was given.",
                    },
                    "expires_in_s": {
                        "type": "integer",
                        "minimum": 0,
                        "description": "How long upload_url is valid, in seconds.",
                    },
                }),
                &["session_id", "path"],
            ),
            hints: Hints::Destructive,
        }
    }

    async fn call(call: &Call, arguments: Arguments, log: &mut Log) -> Result<CallToolResponse> {
        let Arguments { session_id, filename, content_base64, text, local_path, overwrite } =
            arguments;
        let given = session(session_id.as_deref(), log)?;
        let path = DataPath::relative(&filename)
            .map_err(|why| Error::InvalidFilename(format!("The filename {why}.")))?;
        let existing = Existing::overwritten_if(overwrite.unwrap_or(false));
        let target = Target { given, path, existing };
        let limit = call.services.sessions.config().max_upload;
        let content = match (content_base64, text, local_path) {
            (None, None, None) => return target.upload_url(call, log).await,
            (Some(base64), None, None) => match call.long_text(&base64) {
                Some(whole) => whole.base64(limit)?,
                None => decode(base64, limit)?.into(),
            },
            (None, Some(text), None) => match call.long_text(&text) {
                Some(whole) => whole.text(limit)?,
                None => within(text.len() as u64, limit).map(|()| text.into_bytes().into())?,
            },
            (None, None, Some(_)) if call.services.transport == Transport::Http => {
                return Err(Error::InvalidArgument(
                    "local_path works over stdio only. Omit the content and send the file to the \
                     returned upload_url."
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
                    "Give only one of content_base64, text and local_path, or none of them to get \
                     an upload_url."
                        .into(),
                ));
            }
        };
        target.write(content, call, log).await
    }
}

/// Arguments, for uploads of at most `max`.
fn input(transport: Transport, max: &str) -> Value {
    let mut properties = json!({
        "session_id": optional_session(),
        "filename": {
            "type": "string",
            "description": "Path relative to /mnt/data, such as sales.csv or raw/sales.csv. \
                            Folders are created as needed.",
            "minLength": 1,
            "maxLength": MAX_PATH,
        },
        "content_base64": {
            "type": "string",
            "description": format!("The file's bytes in standard base64, at most {max} decoded."),
        },
        "text": {
            "type": "string",
            "description": "The file's content, if it is text; it is written as UTF-8.",
        },
        "overwrite": {
            "type": "boolean",
            "description": "Replace a file of that name instead of failing with file_exists.",
            "default": false,
        },
    });
    if transport == Transport::Stdio {
        properties["local_path"] = json!({
            "type": "string",
            "description": "Absolute path of a file on the client's machine, within its roots or \
                            the folders named in the server's settings. The best way to upload a \
                            file that is already there.",
        });
    }
    object(properties, &["filename"])
}

/// Where a file is to be.
struct Target {
    /// The session that the call names.
    given: Option<SessionId>,
    path: DataPath,
    existing: Existing,
}

impl Target {
    async fn write(self, content: Content, call: &Call, log: &mut Log) -> Result<CallToolResponse> {
        let Self { given, path, existing } = self;
        let sessions = &call.services.sessions;
        let (opened, done) = sessions
            .perform_or_create(given.clone(), Upload { path: path.clone(), content, existing })
            .await;
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

    /// A URL for whoever has the file: a person, curl, a workflow.
    async fn upload_url(self, call: &Call, log: &mut Log) -> Result<CallToolResponse> {
        let Self { given, path, existing } = self;
        let services = &call.services;
        if services.urls.is_none() {
            return Err(Error::InvalidArgument("Give content_base64 or text.".into()));
        }
        let (Opened { id, is_new }, there) = services.sessions.ensure(given.clone()).await;
        log.session = Some(id.clone());
        call.or_close(given.is_none(), &id, there).await?;
        let (urls, session) =
            services.links(&id).ok_or_else(|| Error::SessionNotFound(id.clone()))?;
        let mut result = json!({
            "session_id": id.as_str(),
            "path": path.absolute(),
            "upload_url": urls.upload(session, &path, existing),
            "expires_in_s": urls.ttl_s(),
        });
        say_if_new(is_new && given.is_some(), &mut result);
        Ok(success(result).into())
    }
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
