//! `list_artifacts`.

use std::sync::Arc;

use config::Toolset;
use futures::future::join_all;
use model::{DATASETS_DIR, Dataset, FilePath, FoundFile, InvalidPath, SessionId, text::quoted};
use rmcp::model::CallToolResponse;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    MAX_DATASETS, listed_datasets, near_datasets,
    schema::{
        artifact, datasets, new_session, next_offset, object, optional_session, session_of_result,
        string, summary,
    },
};
use crate::{
    error::{Error, Result},
    listing,
    mcp::{
        audited::Log,
        call::{Call, existing, say_if_new, success, whole},
        results::{
            budget::{MAX_CHARS, chars},
            groups::{Group, groups},
            text::MAX_OFFSET,
        },
        tool::{Description, Hints, Tool, ToolFacts},
    },
    sessions::{Found, List, ListWithin, Opened, Sessions, is_table},
    signed_urls::{NumberedSession, SignedUrls},
    summary::rendered,
};

/// Maximum number of files of one page.
const PAGE: usize = 50;

/// Maximum number of files that each have a URL of their own. If there are more, one template of URLs stands for all,
/// as a URL is most of what a file costs.
const MAX_WITH_URLS: usize = 5;

/// Maximum number of files of a folder whose summaries are looked for.
const MAX_SUMMARIES: usize = 3;

/// Maximum number of groups of files of which the summary of one file is looked for.
const MAX_GROUP_SUMMARIES: usize = 10;

/// Number of characters that a page needs besides its files.
const ENVELOPE: usize = 2_000;

pub(in crate::mcp) struct ListArtifacts;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::mcp) struct Arguments {
    session_id: Option<String>,
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
                    "session_id": optional_session(),
                    "path": string("Only this folder or file, with summaries of tables; /data for all datasets, /data/NAME for one."),
                    "offset": {
                        "type": "integer",
                        "minimum": 0,
                        "description": "next_offset of the last page.",
                    },
                }),
                &[],
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
                    "groups": {
                        "type": "array",
                        "description": "Of a folder with more files than a page has: files whose names have a pattern in common. \
                                        artifacts then has the other files; offset 0 lists all.",
                        "items": group(),
                    },
                    "datasets": datasets(),
                    "new_session": new_session(),
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
        let place = path.as_deref().map_or(Ok(Place::DataArea), place)?;
        let given = offset;
        let offset = whole("offset", offset, 0..=MAX_OFFSET)?.unwrap_or(0);
        let (id, is_new) = opened(call, session_id.as_deref(), &place, log).await?;
        let services = &call.services;
        let is_all = matches!(place, Place::DataArea);
        let datasets = services.sessions.get(&id).map(|live| live.info().datasets);
        let datasets = datasets.unwrap_or_else(|| services.sessions.datasets());
        let shown = matches!(place, Place::Datasets).then(|| listed_datasets(&datasets)).flatten();
        let Found { files, more } = match place {
            Place::DataArea => services.sessions.perform(&id, List).await?.into(),
            Place::Datasets => of_all(&services.sessions, &id, &datasets).await?,
            Place::Within(path) => {
                let found = services.sessions.perform(&id, ListWithin { path: path.clone() }).await;
                found.map_err(|error| near_datasets(error, &path, &datasets))?
            }
        };
        let links = services.links(&id);
        let total = files.len();
        let own_links = links.filter(|_| total <= MAX_WITH_URLS);
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(total);
        let mut artifacts = page(&files[start..], own_links);
        let mut next = start + artifacts.len();
        let mut grouped = None;
        if is_new && start == 0 {
            let mut tables = files.iter().map(|file| file.path.to_text());
            if let Some(table) = tables.find(|path| is_table(path)) {
                // The process that makes summaries starts after the session.
                services.sessions.summary_soon(&id, &table).await;
            }
        }
        if !is_all && given.is_none() && next < total {
            let (groups, others) = groups(&files);
            artifacts = others.iter().map(|file| listing::entry(own_links, file)).collect();
            grouped = Some(rendered_groups(&services.sessions, &id, &files, &groups).await);
            next = 0;
        } else if !is_all && start == 0 {
            add_summaries(&services.sessions, &id, &files, &mut artifacts).await;
        }
        let mut result =
            json!({ "session_id": id.as_str(), "artifacts": artifacts, "total": total });
        if more {
            result["incomplete"] = true.into();
        }
        if let Some(groups) = grouped {
            result["groups"] = groups.into();
        }
        if let Some(datasets) = shown {
            result["datasets"] = datasets;
        }
        say_if_new(is_new, &mut result);
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

/// The session whose files are listed, and whether it is new. Only files of its own need a session before.
async fn opened(
    call: &Call,
    session_id: Option<&str>,
    place: &Place,
    log: &mut Log,
) -> Result<(SessionId, bool)> {
    let is_data = matches!(place, Place::Datasets | Place::Within(FilePath::OfDataset(_)));
    if !is_data {
        let missing = "session_id is missing. Only a path beneath /data needs none.";
        let id = session_id.ok_or_else(|| Error::InvalidArgument(missing.into()))?;
        return Ok((existing(id, log)?, false));
    }
    let which = call.workspace(session_id, log)?;
    let (Opened { id, is_new, .. }, there) = call.services.sessions.ensure(which).await;
    log.session = Some(id.clone());
    there.map(|()| (id, is_new))
}

/// The files of all datasets that can be read.
async fn of_all(sessions: &Sessions, id: &SessionId, datasets: &[Arc<Dataset>]) -> Result<Found> {
    let mut all = Found::default();
    for dataset in datasets.iter().take(MAX_DATASETS) {
        let Ok(path) = FilePath::anywhere(&dataset.folder()) else { continue };
        match sessions.perform(id, ListWithin { path }).await {
            Ok(Found { files, more }) => {
                all.files.extend(files);
                all.more |= more;
            }
            Err(Error::NotFound(_) | Error::NotFoundNear { .. } | Error::InvalidPath(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}

/// The first files, as far as they fit into a page.
fn page(files: &[FoundFile], links: Option<(&SignedUrls, NumberedSession)>) -> Vec<Value> {
    let (mut artifacts, mut size) = (vec![], ENVELOPE);
    for file in files.iter().take(PAGE) {
        let entry = listing::entry(links, file);
        size += chars(&entry);
        // At least one file, as otherwise no client would get to the next page.
        if size > MAX_CHARS && !artifacts.is_empty() {
            break;
        }
        artifacts.push(entry);
    }
    artifacts
}

/// Renders groups, with the summary of the first file of each group of tables.
async fn rendered_groups(
    sessions: &Sessions,
    id: &SessionId,
    files: &[FoundFile],
    groups: &[Group<'_>],
) -> Vec<Value> {
    let mut left = MAX_GROUP_SUMMARIES;
    let summaries = groups.iter().map(|group| {
        let path = group.files[0].path.to_text();
        let is_wanted = left > 0 && is_table(&path);
        left -= usize::from(is_wanted);
        async move { if is_wanted { sessions.summary(id, &path).await } else { None } }
    });
    let (mut shown, mut size) = (vec![], ENVELOPE);
    for (group, found) in groups.iter().zip(join_all(summaries).await) {
        let mut group = group.rendered(files);
        if let Some(found) = found {
            group["summary"] = rendered(&found);
        }
        size += chars(&group);
        if size > MAX_CHARS {
            break;
        }
        shown.push(group);
    }
    shown
}

fn group() -> Value {
    let number = || json!({ "type": "integer", "minimum": 0 });
    let properties = json!({
        "pattern": string("Finds these files and no others of the listing."),
        "first": { "type": "string" },
        "last": { "type": "string" },
        "count": number(),
        "size_bytes": number(),
        "summary": summary(),
    });
    object(properties, &["first", "last", "count", "size_bytes"])
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

/// A place whose files are listed.
enum Place {
    DataArea,
    /// All datasets.
    Datasets,
    /// A folder or file.
    Within(FilePath),
}

fn place(path: &str) -> Result<Place> {
    let folder = path.strip_suffix('/').filter(|folder| !folder.is_empty()).unwrap_or(path);
    if folder == DATASETS_DIR {
        return Ok(Place::Datasets);
    }
    match FilePath::anywhere(folder) {
        Ok(path) => Ok(Place::Within(path)),
        Err(InvalidPath::Folder | InvalidPath::Empty) => Ok(Place::DataArea),
        Err(why) => Err(Error::InvalidPath(format!("path {} {why}.", quoted(path)))),
    }
}
