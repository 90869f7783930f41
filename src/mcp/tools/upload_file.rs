//! `upload_file`.

use std::path::Path;

use config::{Toolset, Transport};
use model::{DataPath, Existing, InvalidPath, SessionId, text::human_size};
use rmcp::model::{CallToolResponse, JsonObject};
use serde::Deserialize;
use serde_json::{Value, json};

use super::schema::{boolean, new_session, object, session_of_result, string, summary};
use crate::{
    audit::digested,
    content::Content,
    error::{Error, Result},
    mcp::{
        arguments::hidden,
        audited::Log,
        base64_text::decode_whole,
        call::{Call, say_if_new, session, success},
        long_text::within,
        roots::{self, Found, LocalFile},
        tool::{Description, Hints, Tool, ToolFacts},
    },
    notes::{Advice, Note},
    sessions::{Opened, Upload},
    summary::rendered,
};

pub(in crate::mcp) struct UploadFile;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::mcp) struct Arguments {
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
    const ALIASES: &'static [(&'static str, &'static str)] =
        &[("content", "text"), ("file_name", "filename"), ("path", "filename")];
    type Arguments = Arguments;

    fn imply(arguments: &mut JsonObject) {
        // A file of the host has a name already.
        let own = arguments.get("local_path").and_then(|path| own_name(path.as_str()?));
        if let Some(name) = own.map(str::to_owned) {
            arguments.entry("filename").or_insert(name.into());
        }
    }

    fn describe(facts: &ToolFacts) -> Description {
        let give = if facts.client.local_files {
            "Best is local_path, for a file on the client's machine; else give"
        } else {
            "Give"
        };
        Description {
            title: "Upload a file",
            text: format!(
                "Puts a file into /mnt/data, where run_python finds it. {give} small content as text \
                 or content_base64, or none of them: then whoever has the file sends it to the \
                 returned upload_url (curl -T sales.csv '<upload_url>', or a person in a browser). At \
                 most {} a file, {} a session.",
                human_size(facts.config.max_upload),
                human_size(facts.config.data_limit)
            ),
            input: input(facts),
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
                    "summary": summary(),
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
        let path = named(&filename)?;
        let existing = Existing::overwritten_if(overwrite.unwrap_or(false));
        let target = Target { given, path, existing };
        let config = call.services.sessions.config();
        let (limit, most) = (config.max_message_upload(), config.max_upload);
        let in_message = |error| match error {
            Error::UploadTooLarge { limit, .. } if limit < most => {
                Error::MessageTooLarge { limit, most }
            }
            error => error,
        };
        let content = match (content_base64, text, local_path) {
            (None, None, None) => return target.upload_url(call, log).await,
            (Some(base64), None, None) => {
                if let Some(whole) = call.long_text(&base64) {
                    whole.base64(limit).map_err(in_message)?
                } else {
                    let bytes = decode_whole(&base64)?;
                    within(bytes.len() as u64, limit).map_err(in_message)?;
                    bytes.into()
                }
            }
            (None, Some(text), None) => {
                if let Some(whole) = call.long_text(&text) {
                    whole.text(limit).map_err(in_message)?
                } else {
                    within(text.len() as u64, limit).map_err(in_message)?;
                    text.into_bytes().into()
                }
            }
            (None, None, Some(_)) if call.services.transport == Transport::Http => {
                return Err(Error::InvalidArgument(
                    "local_path works over stdio only. Leave it out and send the file to the \
                     upload_url that is returned."
                        .into(),
                ));
            }
            (None, None, Some(local)) => match roots::open(call, &local).await? {
                Found::File(file) => {
                    if let Some(there) = target.in_dataset(&file, call, log).await? {
                        return Ok(there);
                    }
                    within(file.size, most)?;
                    Content::new(file.pieces(most))
                }
                Found::AskClient(question) => return Ok(question.into()),
            },
            _ => {
                return Err(Error::InvalidArgument(
                    "Give only one of text, content_base64 and local_path, or none of them to get \
                     an upload_url."
                        .into(),
                ));
            }
        };
        target.write(content, call, log).await
    }
}

fn input(facts: &ToolFacts) -> Value {
    let local_path = string("Absolute, within an allowed folder.");
    let properties = json!({
        "local_path": if facts.client.local_files { local_path } else { hidden(local_path) },
        "filename": string("Such as raw/sales.csv."),
        "text": { "type": "string" },
        "content_base64": { "type": "string" },
        "overwrite": boolean("Replace a file of that name."),
        "session_id": { "type": "string" },
    });
    object(properties, if facts.client.local_files { &[] } else { &["filename"] })
}

/// The name of a file on the host.
fn own_name(local_path: &str) -> Option<&str> {
    Path::new(local_path).file_name()?.to_str()
}

/// Reads the path that a file is to have in the data area.
fn named(filename: &str) -> Result<DataPath> {
    DataPath::anywhere(filename).map_err(|why| {
        Error::InvalidFilename(match why {
            InvalidPath::Outside => {
                "The filename must be relative to /mnt/data, such as raw/sales.csv.".to_owned()
            }
            InvalidPath::Folder => {
                "The filename is that of a folder. Name a file in it, such as sales.csv.".to_owned()
            }
            why => format!("The filename {why}."),
        })
    })
}

/// The place of a file that is to be written.
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
        let (content, streamed) = match &log.audit {
            Some(_) => {
                let (content, streamed) = digested(content);
                (content, Some(streamed))
            }
            None => (content, None),
        };
        let (opened, done) = sessions
            .perform_or_create(given.clone(), Upload { path: path.clone(), content, existing })
            .await;
        let Opened { id, is_new, .. } = opened;
        log.session = Some(id.clone());
        let uploaded = call.or_close(given.is_none(), &id, done).await?;
        log.bytes = Some(uploaded.size_bytes);
        let digest = streamed.and_then(|streamed| streamed.digest(uploaded.size_bytes));
        log.audit(|record| record.inputs.content = digest);
        let mut result = json!({
            "session_id": id.as_str(),
            "path": path.absolute(),
            "size_bytes": uploaded.size_bytes,
        });
        if let Some(found) = sessions.summary(&id, path.as_str()).await {
            result["summary"] = rendered(&found);
        }
        say_if_new(is_new && given.is_some(), &mut result);
        Ok(success(result).into())
    }

    /// The answer if a dataset of the session has the file already.
    async fn in_dataset(
        &self,
        file: &LocalFile,
        call: &Call,
        log: &mut Log,
    ) -> Result<Option<CallToolResponse>> {
        let sessions = &call.services.sessions;
        if file.in_datasets(&sessions.datasets()).is_none() {
            return Ok(None);
        }
        let (Opened { id, is_new, .. }, there) = sessions.ensure(self.given.clone()).await;
        log.session = Some(id.clone());
        call.or_close(self.given.is_none(), &id, there).await?;
        // A session may be older than the datasets.
        let datasets = sessions.get(&id).map(|live| live.info().datasets).unwrap_or_default();
        let Some(path) = file.in_datasets(&datasets) else { return Ok(None) };
        call.note(Note::Advice(Advice::InDataset));
        let mut result =
            json!({ "session_id": id.as_str(), "path": path, "size_bytes": file.size });
        say_if_new(is_new && self.given.is_some(), &mut result);
        Ok(Some(success(result).into()))
    }

    /// Returns a URL with which a person, curl or a workflow that has the file uploads it.
    async fn upload_url(self, call: &Call, log: &mut Log) -> Result<CallToolResponse> {
        let Self { given, path, existing } = self;
        let services = &call.services;
        if services.urls.is_none() {
            return Err(Error::InvalidArgument("Give content_base64 or text.".into()));
        }
        let (Opened { id, is_new, .. }, there) = services.sessions.ensure(given.clone()).await;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_the_name_that_is_given_or_its_own() {
        for (filename, local_path, path) in [
            (Some("a.csv"), None, "a.csv"),
            (Some("/mnt/data/raw/a.csv"), None, "raw/a.csv"),
            (Some("sandbox:/mnt/data/a.csv"), None, "a.csv"),
            (Some("b.csv"), Some("/home/ann/a.csv"), "b.csv"),
            (None, Some("/home/ann/a.csv"), "a.csv"),
        ] {
            let mut given = JsonObject::new();
            given.extend(filename.map(|name| ("filename".to_owned(), name.into())));
            given.extend(local_path.map(|path| ("local_path".to_owned(), path.into())));
            UploadFile::imply(&mut given);
            let name = given["filename"].as_str().expect("a name");
            assert_eq!(named(name).expect(path).as_str(), path);
        }
        assert_eq!(own_name("/"), None);
        for name in ["", "/home/ann/a.csv", "/mnt/data", "/mnt/data/"] {
            assert_eq!(named(name).expect_err(name).code(), "invalid_filename");
        }
    }
}
