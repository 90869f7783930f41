//! `list_artifacts`.

use config::Toolset;
use futures::future::join_all;
use model::{FilePath, FoundFile, InvalidPath, SessionId, text::quoted};
use rmcp::model::CallToolResponse;
use serde::Deserialize;
use serde_json::{Value, json};

use super::schema::{
    artifact, next_offset, object, required_session, session_of_result, string, summary,
};
use crate::{
    error::{Error, Result},
    listing,
    mcp::{
        audited::Log,
        call::{Call, existing, success, whole},
        results::{
            budget::{MAX_CHARS, chars},
            text::MAX_OFFSET,
        },
        tool::{Description, Hints, Tool, ToolFacts},
    },
    sessions::{Found, List, ListWithin, Sessions},
    summary::rendered,
};

/// Maximum number of files of one page.
const PAGE: usize = 50;

/// Maximum number of files that each have a URL of their own. If there are more, one template of URLs stands for all,
/// as a URL is most of what a file costs.
const MAX_WITH_URLS: usize = 5;

/// Maximum number of files of a folder whose summaries are looked for.
const MAX_SUMMARIES: usize = 3;

/// Number of characters that a page needs besides its files.
const ENVELOPE: usize = 2_000;

pub(in crate::mcp) struct ListArtifacts;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::mcp) struct Arguments {
    session_id: String,
    path: Option<String>,
    offset: Option<f64>,
}

impl Tool for ListArtifacts {
    const NAME: &'static str = "list_artifacts";
    const TOOLSET: Toolset = Toolset::Run;
    const HAS_VIEW: bool = true;
    type Arguments = Arguments;

    fn describe(_: &ToolFacts) -> Description {
        Description {
            title: "List files",
            text: format!("Lists the files in /mnt/data, {PAGE} a page, with URLs for the person."),
            input: object(
                json!({
                    "session_id": required_session(),
                    "path": string("Only this folder or file, with summaries of the first tables; /data/NAME for a dataset."),
                    "offset": {
                        "type": "integer",
                        "minimum": 0,
                        "description": "next_offset of the last page.",
                    },
                }),
                &["session_id"],
            ),
            output: object(
                json!({
                    "session_id": session_of_result(),
                    "artifacts": {
                        "type": "array",
                        "description": "By path.",
                        "items": artifact(
                            json!({
                                "modified_at": string("RFC 3339, UTC."),
                                "summary": summary(),
                            }),
                            &["modified_at"],
                        ),
                    },
                    "total": {
                        "type": "integer",
                        "minimum": 0,
                        "description": "How many files there are.",
                    },
                    "incomplete": {
                        "type": "boolean",
                        "description": "True if there are still more files than can be listed.",
                    },
                    "next_offset": next_offset(),
                    "download_url_template": {
                        "type": "string",
                        "description": format!(
                            "Where more than {MAX_WITH_URLS} files are: the download_url of each, \
                             with its filename, percent-encoded, in place of {{filename}}."
                        ),
                    },
                    "download_all_url": {
                        "type": "string",
                        "description": "All of them as one ZIP file, for a person to download.",
                    },
                    "page_url": {
                        "type": "string",
                        "description": "A page that shows the session to a person: files, charts, runs.",
                    },
                }),
                &["session_id", "artifacts", "total"],
            ),
            hints: Hints::ReadOnly,
        }
    }

    async fn call(call: &Call, arguments: Arguments, log: &mut Log) -> Result<CallToolResponse> {
        let Arguments { session_id, path, offset } = arguments;
        let id = existing(&session_id, log)?;
        let offset = whole("offset", offset, 0..=MAX_OFFSET)?.unwrap_or(0);
        let services = &call.services;
        let place = path.as_deref().map(place).transpose()?.flatten();
        let is_all = place.is_none();
        let Found { files, more } = match place {
            Some(path) => services.sessions.perform(&id, ListWithin { path }).await?,
            None => services.sessions.perform(&id, List).await?.into(),
        };
        let links = services.links(&id);
        let total = files.len();
        let own_links = links.filter(|_| total <= MAX_WITH_URLS);
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(total);
        let (mut artifacts, mut size) = (vec![], ENVELOPE);
        for file in files[start..].iter().take(PAGE) {
            let entry = listing::entry(own_links, file);
            size += chars(&entry);
            // At least one file, as otherwise no client would get to the next page.
            if size > MAX_CHARS && !artifacts.is_empty() {
                break;
            }
            artifacts.push(entry);
        }
        let next = start + artifacts.len();
        if !is_all && start == 0 {
            add_summaries(&services.sessions, &id, &files, &mut artifacts).await;
        }
        let mut result =
            json!({ "session_id": id.as_str(), "artifacts": artifacts, "total": total });
        if more {
            result["incomplete"] = true.into();
        }
        if next < total {
            result["next_offset"] = next.into();
        }
        let has_own = files.iter().any(|file| file.path.own().is_some());
        if let Some((urls, session)) = links.filter(|_| has_own || is_all) {
            if own_links.is_none() {
                result["download_url_template"] = urls.download_any(session).into();
            }
            // The first page is enough.
            if start == 0 && is_all {
                result["download_all_url"] = urls.download_all(session).into();
                result["page_url"] = urls.page(session).into();
            }
        }
        log.bytes = Some(result.to_string().len() as u64);
        Ok(success(result).into())
    }
}

/// Adds the summaries of the first tables that are listed, all of them in the time of one.
async fn add_summaries(
    sessions: &Sessions,
    id: &SessionId,
    files: &[FoundFile],
    artifacts: &mut [Value],
) {
    let first = files.iter().take(artifacts.len().min(MAX_SUMMARIES));
    let summaries = first.map(async |file| sessions.summary(id, &file.path.to_text()).await);
    for (artifact, found) in artifacts.iter_mut().zip(join_all(summaries).await) {
        if let Some(found) = found {
            artifact["summary"] = rendered(&found);
        }
    }
}

/// The folder or file that is listed; `None` for the data area.
fn place(path: &str) -> Result<Option<FilePath>> {
    let folder = path.strip_suffix('/').filter(|folder| !folder.is_empty());
    match FilePath::anywhere(folder.unwrap_or(path)) {
        Ok(path) => Ok(Some(path)),
        Err(InvalidPath::Folder | InvalidPath::Empty) => Ok(None),
        Err(why) => Err(Error::InvalidPath(format!("path {} {why}.", quoted(path)))),
    }
}
