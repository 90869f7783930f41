//! `GET /sessions` and `GET /sessions/{session}`: the state and runs of sessions, as JSON for the page and
//! for scripts; and `DELETE /sessions/{session}`, and of a run in it.
//!
//! To wait for changes (long poll), a client sends the `ETag` that it knows (`If-None-Match`) and `Prefer:
//! wait=<seconds>` (RFC 7240): the answer comes when there is something new, or 304 after that time. Viewing
//! does not count as activity, so that an open page keeps no session alive; and it has a separate rate limit,
//! so that a viewer takes nothing from the model.

use std::sync::Arc;

use axum::{
    Json,
    extract::{
        Extension, Path, State,
        rejection::{JsonRejection, PathRejection},
    },
    http::{HeaderMap, StatusCode, Uri},
    response::{IntoResponse, Response},
};
use config::Right;
use jiff::Timestamp;
use model::{Artifact, Decision, SessionId, artifact::is_picture, text::printable};
use protocol::message::{RuntimeName, Variable};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    changes::{Tag, Update, Wanted, until_changed, update},
    operators::{self, OfOthers},
};
use crate::http::{
    access::Asked,
    audited,
    download::archived,
    error::{ApiError, Result, reply},
    list::with_artifacts,
    shared::Shared,
};
use crate::{
    error::Error,
    listing,
    sessions::{
        ArchivedSession, Inspected, Listing, SessionInfo, Sessions, Sleeper,
        shown::{add_runs, rfc3339},
    },
    signed_urls::{Base, Grant, NumberedSession, SignedUrls},
};

/// States of sessions that are not live.
pub(super) mod state {
    pub(in super::super) const ASLEEP: &str = "asleep";
    pub(in super::super) const ARCHIVED: &str = "archived";
}

/// Maximum number of images shown of each session.
const MAX_IMAGES: usize = 3;

/// `GET /sessions`: the caller's sessions; with `?all`, those of all callers, for operators.
pub(in crate::http) async fn list(
    State(shared): State<Shared>,
    Extension(base): Extension<Base>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response> {
    if OfOthers::of(&uri).is_some() {
        return Ok(reply(StatusCode::OK, &operators::list(&shared, &headers).await?));
    }
    let caller = shared.viewers.permitted(&headers, Right::OwnSessions)?;
    let can_list_all = caller.has(Right::AllSessions);
    let sessions = shared.sessions.seen_by(caller.principal);
    let (seen, tag) = match update(&headers, &shared.waiters, &sessions, Wanted::All).await {
        Update::Some(seen, tag) => (seen, tag),
        Update::None(tag) => return Ok(tag.not_modified()),
    };
    let urls = shared.urls.for_client(Some(&base));
    let awake = seen.looks.iter().map(|look| summary(&urls, look));
    let asleep = sessions.saved().map(|saved| saved.asleep()).unwrap_or_default();
    let asleep =
        asleep.iter().map(|Sleeper { id, since }| unknown(&urls, id, state::ASLEEP, *since));
    let archived = seen.archived.iter();
    let archived = archived.map(|it| unknown(&urls, &it.id, state::ARCHIVED, Some(it.saved)));
    let looks: Vec<_> = awake.chain(asleep).chain(archived).collect();
    Ok((
        tag.headers(),
        reply(StatusCode::OK, &json!({ "sessions": looks, "can_list_all": can_list_all })),
    )
        .into_response())
}

/// `GET /sessions/{session}`: a session's runs and files.
pub(in crate::http) async fn one(
    State(shared): State<Shared>,
    Extension(base): Extension<Base>,
    id: std::result::Result<Path<String>, PathRejection>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response> {
    let id = session(id, &shared, &headers)?;
    let asked = Asked { headers: &headers, uri: &uri, any: None };
    let sessions = shared.viewers.granted(&shared.sessions, asked, &id, &[Grant::Look]).await?;
    if let Some(archived) = archived(&sessions, &id).await {
        return of_archived((&shared, &base), &sessions, (id, archived), &headers).await;
    }
    sessions.awake(&id).await.map_err(ApiError::Gone)?;
    let (seen, tag) = match update(&headers, &shared.waiters, &sessions, Wanted::One(&id)).await {
        Update::Some(seen, tag) => (seen, tag),
        Update::None(tag) => return Ok(tag.not_modified()),
    };
    let look = seen.looks.first().ok_or(ApiError::NoSession)?;
    let memory = shared.memory_for_listing(sessions.caller()).await?;
    let sessions = sessions.only(look.number);
    let live = sessions.awake(&id).await.map_err(ApiError::Gone)?;
    let view = live.view().await.map_err(ApiError::Gone)?;
    let urls = shared.urls.for_client(Some(&base));
    let mut body = head(look);
    look.add_runs(&mut body, Some(&urls), &sessions);
    if let Some(seconds) = urls.expire_in_s() {
        body["urls_expire_in_s"] = seconds.into();
    }
    body["interpreters"] = view.interpreters.iter().map(interpreter).collect();
    body["notebook_url"] = urls.record(look.numbered(), "ipynb").into();
    body["script_url"] = urls.record(look.numbered(), "py").into();
    body["download_all_url"] = urls.download_all(look.numbered()).into();
    let links = (urls, id, Some(look.number));
    Ok((tag.headers(), with_artifacts(body, view.files.clone(), memory, links)).into_response())
}

/// The runs and files of an archived session.
async fn of_archived(
    (shared, base): (&Shared, &Base),
    sessions: &Sessions,
    (id, archived): (SessionId, ArchivedSession),
    asked: &HeaderMap,
) -> Result<Response> {
    let tag = Tag::of_archived(&archived);
    if tag.is_known(asked) {
        until_changed(asked, &shared.waiters, sessions).await;
        return Ok(tag.not_modified());
    }
    let memory = shared.memory_for_listing(sessions.caller()).await?;
    let urls = shared.urls.for_client(Some(base));
    let number = archived.number;
    let saved = Timestamp::from_second(archived.manifest.saved_at).unwrap_or_default();
    let mut body = json!({
        "session_id": id.as_str(),
        "state": state::ARCHIVED,
        "since": rfc3339(saved),
        "changed_at": rfc3339(saved),
        "interpreters": [],
    });
    let numbered = number.map(|number| NumberedSession { id: &id, number });
    let memory_of_runs = shared.memory_for(sessions.caller(), archived.history_bytes()).await?;
    let history = archived.history().await;
    add_runs(&mut body, &history, numbered.map(|it| (&urls, it)), sessions);
    if let Some(numbered) = numbered {
        body["download_all_url"] = urls.download_all(numbered).into();
        if history.runs().len() > 0 {
            body["notebook_url"] = urls.record(numbered, "ipynb").into();
            body["script_url"] = urls.record(numbered, "py").into();
        }
    }
    drop((history, memory_of_runs));
    let more = archived.manifest.more_files;
    let files = Arc::new(Listing { artifacts: archived.manifest.artifacts(), more });
    Ok((tag.headers(), with_artifacts(body, files, memory, (urls, id, number))).into_response())
}

/// `DELETE /sessions/{session}`: ends a session, for callers who may view it and, with `?caller=NAME`, for operators.
/// Its sandbox is removed when the answer comes.
pub(in crate::http) async fn end(
    State(shared): State<Shared>,
    id: std::result::Result<Path<String>, PathRejection>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<StatusCode> {
    let id = session(id, &shared, &headers)?;
    match OfOthers::of(&uri) {
        Some(OfOthers::Caller(caller)) => {
            operators::end(&shared, &headers, (&caller, &id)).await?;
            return Ok(StatusCode::NO_CONTENT);
        }
        Some(OfOthers::All) => {
            let why = "Say whose session it is: /sessions/{session}?caller=NAME.";
            return Err(ApiError::bad_request(why));
        }
        None => {}
    }
    let asked = Asked { headers: &headers, uri: &uri, any: None };
    let sessions = shared.access.granted(&shared.sessions, asked, &id, &[Grant::Look]).await?;
    let entry = audited::begin(&sessions, audited::END, Some(&id), None)?;
    let closed = sessions.close(&id).await;
    if let Some(entry) = entry {
        entry.end(closed.as_ref().map_or_else(Error::code, |()| "ok"));
    }
    closed.map_err(ApiError::Gone)?;
    Ok(StatusCode::NO_CONTENT)
}

/// `DELETE /sessions/{session}/runs/{run}`: cancels a run that is in progress, for callers who may end the session. The
/// run has ended when the answer comes, which says how.
pub(in crate::http) async fn cancel(
    State(shared): State<Shared>,
    path: std::result::Result<Path<(String, String)>, PathRejection>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response> {
    let (id, run_id) = path.map_or_else(|_| Default::default(), |Path(names)| names);
    let id = session(Ok(Path(id)), &shared, &headers)?;
    if OfOthers::of(&uri).is_some() {
        return Err(ApiError::bad_request("Only the session's own caller cancels its runs."));
    }
    let asked = Asked { headers: &headers, uri: &uri, any: None };
    let sessions = shared.access.granted(&shared.sessions, asked, &id, &[Grant::Look]).await?;
    let of_session = sessions.get(&id).map(|live| live.info().history);
    if of_session.is_none_or(|history| history.run(&run_id).is_none()) {
        return Err(ApiError::not_found("The session has no run of this name."));
    }
    let entry = audited::begin(&sessions, audited::CANCEL, Some(&id), None)?;
    let outcome = sessions.cancel(&run_id).await;
    if let Some(mut entry) = entry {
        entry.record.run_id = Some(run_id.clone());
        entry.end(outcome.as_str());
    }
    Ok(reply(StatusCode::OK, &json!({ "run_id": run_id, "status": outcome.as_str() })))
}

/// The body of a request that decides on a call.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::http) struct Decided {
    decision: Decision,
}

/// `POST /sessions/{session}/approvals/{approval}`: decides on a call that waits for a person, for callers with a token.
/// A signed URL suffices only if the server has no tokens: models get these URLs in results.
pub(in crate::http) async fn decide(
    State(shared): State<Shared>,
    path: std::result::Result<Path<(String, String)>, PathRejection>,
    uri: Uri,
    headers: HeaderMap,
    body: std::result::Result<Json<Decided>, JsonRejection>,
) -> Result<StatusCode> {
    let (id, approval) = path.map_or_else(|_| Default::default(), |Path(names)| names);
    let id = session(Ok(Path(id)), &shared, &headers)?;
    let sessions = if shared.access.takes_no_tokens() {
        let asked = Asked { headers: &headers, uri: &uri, any: None };
        shared.access.granted(&shared.sessions, asked, &id, &[Grant::Look]).await?
    } else {
        shared.sessions.seen_by(shared.access.principal(&headers)?)
    };
    let Ok(Json(Decided { decision })) = body else {
        let why = r#"Send {"decision": "once"}; or "run", "session" or "deny"."#;
        return Err(ApiError::bad_request(why));
    };
    if !sessions.decide(&id, &approval, decision, "page") {
        let why = "No call of this session waits for this decision: somebody has decided, or the run has ended.";
        return Err(ApiError::not_found(why));
    }
    Ok(StatusCode::NO_CONTENT)
}

/// The session that a URL names. For authenticated callers, an invalid name is answered like a missing session.
///
/// # Errors
/// If the name is invalid.
pub(in crate::http) fn session(
    id: std::result::Result<Path<String>, PathRejection>,
    shared: &Shared,
    headers: &HeaderMap,
) -> Result<SessionId> {
    if let Some(id) = id.ok().and_then(|Path(id)| id.parse().ok()) {
        return Ok(id);
    }
    // Unauthenticated callers get 401 before any detail.
    shared.access.principal(headers)?;
    Err(ApiError::NoSession)
}

fn head(look: &SessionInfo) -> Value {
    let mut shown = json!({
        "session_id": look.id.as_str(),
        "state": look.history.phase().as_str(),
        "since": rfc3339(look.since),
        "changed_at": rfc3339(look.history.changed().unwrap_or(look.since)),
        "expires_at": rfc3339(look.expires),
    });
    if let Some(client) = &look.client {
        shown["client"] = (**client).into();
    }
    if let Some(fields) = shown.as_object_mut() {
        fields.extend(look.resources());
    }
    shown
}

fn summary(urls: &SignedUrls, look: &SessionInfo) -> Value {
    let mut shown = head(look);
    let runs = look.history.runs();
    shown["runs"] = (runs.len() + look.history.forgotten()).into();
    let last = look.history.runs().rev().find_map(|run| run.end.as_ref());
    if let Some(end) = last {
        shown["last_outcome"] = end.outcome.as_str().into();
    }
    let ends = look.history.runs().rev().filter_map(|run| run.end.as_ref());
    let mut pictures: Vec<&Artifact> = vec![];
    for file in ends.flat_map(|end| &end.artifacts).filter(|file| is_picture(file.path.mime())) {
        if pictures.len() < MAX_IMAGES && pictures.iter().all(|known| known.path != file.path) {
            pictures.push(file);
        }
    }
    let links = Some((urls, look.numbered()));
    shown["pictures"] =
        pictures.into_iter().map(|file| listing::artifact_json_with_mtime(links, file)).collect();
    shown["page_url"] = urls.page(look.numbered()).into();
    shown
}

/// A session of which only the name is known: one that no caller has used since the server started, or an
/// archived one. Listing it does not wake it.
fn unknown(urls: &SignedUrls, id: &SessionId, state: &str, since: Option<Timestamp>) -> Value {
    let since = rfc3339(since.unwrap_or(Timestamp::UNIX_EPOCH));
    json!({
        "session_id": id.as_str(),
        "state": state,
        "since": since,
        "changed_at": since,
        "runs": 0,
        "pictures": [],
        "page_url": urls.page_by_token(id),
    })
}

/// An interpreter of a workspace, and its variables.
fn interpreter((language, found): &(RuntimeName, Inspected)) -> Value {
    let variable =
        |it: &Variable| json!({ "name": printable(&it.name), "summary": printable(&it.summary) });
    let variables: Vec<_> = found.contents.variables.iter().map(variable).collect();
    json!({
        "language": language.as_str(),
        "execution_count": found.interpreter.count,
        "can_undo": found.interpreter.can_undo,
        "variables": variables,
        "variables_omitted": found.contents.more,
    })
}
