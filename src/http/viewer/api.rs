//! `GET /sessions` and `GET /sessions/{session}`: the state and runs of sessions, as JSON for the page and
//! for scripts; and `DELETE /sessions/{session}`.
//!
//! To wait for changes (long poll), a client sends the `ETag` that it knows (`If-None-Match`) and `Prefer:
//! wait=<seconds>` (RFC 7240): the answer comes when there is something new, or 304 after that time. Viewing
//! does not count as activity, so that an open page keeps no session alive; and it has a separate rate limit,
//! so that a viewer takes nothing from the model.

use std::{
    borrow::Cow,
    sync::{Arc, LazyLock},
    time::Duration,
};

use axum::{
    extract::{Extension, Path, State, rejection::PathRejection},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use jiff::Timestamp;
use model::{
    Artifact, SessionId,
    artifact::is_picture,
    text::{printable, utf8, whole_ms},
};
use protocol::message::{RuntimeName, Variable};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::time::sleep;

use super::waiters::Waiters;
use crate::http::download::archived;
use crate::http::{
    access::Asked,
    audited,
    error::{ApiError, Result, reply},
    list::with_artifacts,
    shared::Shared,
};
use crate::{
    archive::Listed,
    error::Error,
    listing,
    notes::Notes,
    session::{PastRun, RunEnd},
    sessions::{ArchivedSession, Inspected, Listing, SessionInfo, Sessions, Sleeper},
    signed_urls::{Base, Grant, SessionKey, SignedUrls},
};

/// Longest wait for changes: less than the timeout of any proxy on the way.
const MAX_WAIT: Duration = Duration::from_secs(30);

/// Images shown of each session.
const MAX_IMAGES: usize = 3;

/// Most runs of a session that are shown, the newest, and most bytes of their texts. The
/// [notebook](crate::http::notebook) has all remembered runs.
const MAX_RUNS: usize = 50;
const MAX_BYTES: usize = 256 << 10;

/// Bytes of a program that are shown, from its start.
const MAX_CODE_BYTES: usize = 16 << 10;

/// Bytes of each output that are shown: the start of standard output, and the end of standard error, where a
/// traceback names the error.
const MAX_OUTPUT_BYTES: usize = 4 << 10;

/// Artifacts of a run that are shown.
const MAX_ARTIFACTS: usize = 20;

/// `GET /sessions`: the caller's sessions.
pub(in crate::http) async fn list(
    State(shared): State<Shared>,
    Extension(base): Extension<Base>,
    headers: HeaderMap,
) -> Result<Response> {
    let sessions = shared.sessions.seen_by(shared.viewers.principal(&headers)?);
    let (seen, tag) = match news(&headers, &shared.waiters, &sessions, Wanted::All).await {
        News::Some(seen, tag) => (seen, tag),
        News::None(tag) => return Ok(tag.not_modified()),
    };
    let urls = shared.urls.for_client(Some(&base));
    let awake = seen.looks.iter().map(|look| summary(&urls, look));
    let asleep = sessions.saved().map(|saved| saved.asleep()).unwrap_or_default();
    let asleep = asleep.iter().map(|Sleeper { id, since }| unknown(&urls, id, "asleep", *since));
    let archived = seen.archived.iter();
    let archived = archived.map(|it| unknown(&urls, &it.id, "archived", Some(it.saved)));
    let looks: Vec<_> = awake.chain(asleep).chain(archived).collect();
    Ok((tag.headers(), reply(StatusCode::OK, &json!({ "sessions": looks }))).into_response())
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
    let (seen, tag) = match news(&headers, &shared.waiters, &sessions, Wanted::One(&id)).await {
        News::Some(seen, tag) => (seen, tag),
        News::None(tag) => return Ok(tag.not_modified()),
    };
    let look = seen.looks.first().ok_or(ApiError::NoSession)?;
    let memory = shared.memory_for_listing(sessions.caller()).await?;
    let view = sessions.only(look.number).view(&id).await.map_err(ApiError::Gone)?;
    let urls = shared.urls.for_client(Some(&base));
    let mut left = MAX_BYTES;
    let newest = look.history.runs().rev().take(MAX_RUNS);
    // A run that cannot be read is shown without its texts.
    let whole = newest.map(|run| run.whole().unwrap_or(Cow::Borrowed(run)));
    let shown = whole.take_while(|run| {
        let is_newest = left == MAX_BYTES;
        left = left.saturating_sub(shown_bytes(run));
        left > 0 || is_newest
    });
    let (ecosystems, allowed) = (sessions.host().ecosystems(), &sessions.config().packages);
    let notes = |end: &RunEnd| end.notes.clone().where_packages_are(ecosystems, allowed);
    let runs: Vec<_> = shown.map(|run| past_run(&urls, look, &run, notes)).collect();
    let mut body = head(look);
    body["runs_omitted"] =
        (look.history.forgotten() + look.history.runs().len() - runs.len()).into();
    body["runs"] = runs.into();
    if let Some(seconds) = urls.expire_in_s() {
        body["urls_expire_in_s"] = seconds.into();
    }
    body["interpreters"] = view.interpreters.iter().map(interpreter).collect();
    body["notebook_url"] = urls.record(look.session_key(), "ipynb").into();
    body["script_url"] = urls.record(look.session_key(), "py").into();
    body["download_all_url"] = urls.download_all(look.session_key()).into();
    let Value::Object(body) = body else { unreachable!("it was made as an object") };
    let look = look.clone();
    let render = move |listing: &Listing, n: usize| {
        listing::artifact_json_with_mtime(Some((&urls, look.session_key())), &listing.artifacts[n])
    };
    Ok((tag.headers(), with_artifacts(body, view.files.clone(), memory, render)).into_response())
}

/// The same for an archived session: its files.
async fn of_archived(
    (shared, base): (&Shared, &Base),
    sessions: &Sessions,
    (id, archived): (SessionId, ArchivedSession),
    asked: &HeaderMap,
) -> Result<Response> {
    let tag = Tag::of_archived(&archived);
    if tag.is_known(asked) {
        let mut changes = sessions.host().changes();
        let place = shared.waiters.take(sessions.caller());
        let wait = if place.is_some() { wait(asked) } else { Duration::ZERO };
        tokio::select! {
            () = sleep(wait) => {}
            _ = changes.changed() => {}
            () = sessions.host().ending() => {}
        }
        return Ok(tag.not_modified());
    }
    let memory = shared.memory_for_listing(sessions.caller()).await?;
    let urls = shared.urls.for_client(Some(base));
    let number = archived.number;
    let saved = Timestamp::from_second(archived.manifest.saved_at).unwrap_or_default();
    let mut body = json!({
        "session_id": id.as_str(),
        "state": "archived",
        "since": time(saved),
        "changed_at": time(saved),
        "runs": [],
        "runs_omitted": 0,
        "interpreters": [],
    });
    if let Some(number) = number {
        body["download_all_url"] = urls.download_all(SessionKey { id: &id, number }).into();
    }
    let more = archived.manifest.more_files;
    let files = Arc::new(Listing { artifacts: archived.manifest.artifacts(), more });
    let Value::Object(body) = body else { unreachable!("it was made as an object") };
    let render = move |listing: &Listing, n: usize| {
        let links = number.map(|number| (&urls, SessionKey { id: &id, number }));
        listing::artifact_json_with_mtime(links, &listing.artifacts[n])
    };
    Ok((tag.headers(), with_artifacts(body, files, memory, render)).into_response())
}

/// `DELETE /sessions/{session}`: ends a session, for callers who may view it. Its sandbox is removed when the
/// answer comes.
pub(in crate::http) async fn end(
    State(shared): State<Shared>,
    id: std::result::Result<Path<String>, PathRejection>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<StatusCode> {
    let id = session(id, &shared, &headers)?;
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

/// The sessions that a request asks for.
#[derive(Debug, Clone, Copy)]
enum Wanted<'a> {
    /// All sessions of the caller.
    All,
    /// The session of this name.
    One(&'a SessionId),
}

/// The sessions that were found.
#[derive(Debug, Default)]
struct Seen {
    looks: Vec<SessionInfo>,
    archived: Vec<Listed>,
}

impl Wanted<'_> {
    async fn seen(self, sessions: &Sessions) -> Seen {
        match self {
            Self::All => {
                // A session that ends between the two is in neither list. Its end is a change, so the client
                // learns of it.
                let archived = match sessions.archived() {
                    Some(archived) => archived.list().await,
                    None => vec![],
                };
                let names = sessions.names();
                let looks = names.iter().filter_map(|id| Some(sessions.get(id)?.info()));
                Seen { looks: looks.collect(), archived }
            }
            Self::One(id) => {
                let looks = sessions.get(id).map(|live| live.info()).into_iter().collect();
                Seen { looks, archived: vec![] }
            }
        }
    }
}

/// The result of waiting for changes.
#[derive(Debug)]
enum News {
    Some(Seen, Tag),
    /// The client knows the current state, which has this tag.
    None(Tag),
}

/// Waits until there is something that the client does not know, for as long as it asked.
async fn news(
    asked: &HeaderMap,
    waiters: &Waiters,
    sessions: &Sessions,
    wanted: Wanted<'_>,
) -> News {
    let mut changes = sessions.host().changes();
    let place = waiters.take(sessions.caller());
    let wait = if place.is_some() { wait(asked) } else { Duration::ZERO };
    let enough = async {
        // A server that ends does not wait.
        tokio::select! { () = sleep(wait) => {}, () = sessions.host().ending() => {} }
    };
    tokio::pin!(enough);
    loop {
        changes.mark_unchanged();
        let seen = wanted.seen(sessions).await;
        let tag = Tag::of(&seen);
        if !tag.is_known(asked) {
            return News::Some(seen, tag);
        }
        tokio::select! {
            Ok(()) = changes.changed() => {}
            () = &mut enough => {
                return News::None(tag);
            }
        }
    }
}

/// The seconds of `Prefer: wait=<seconds>`, within bounds; 0 if it cannot be parsed.
fn wait(headers: &HeaderMap) -> Duration {
    let preferences = headers.get_all("prefer").iter().filter_map(|value| value.to_str().ok());
    let mut each = preferences.flat_map(|value| value.split([',', ';']));
    let seconds = each.find_map(|preference| {
        let (name, value) = preference.split_once('=')?;
        let is_wait = name.trim().eq_ignore_ascii_case("wait");
        is_wait.then(|| value.trim().parse::<u32>().ok()).flatten()
    });
    Duration::from_secs(seconds.unwrap_or(0).into()).min(MAX_WAIT)
}

/// Distinguishes this server process from the previous one.
static PROCESS: LazyLock<uuid::Uuid> = LazyLock::new(uuid::Uuid::new_v4);

/// The tag of a state of sessions. It is not a hash of the answer, because the URLs in it change with every answer.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Tag(String);

impl Tag {
    fn of(seen: &Seen) -> Self {
        let mut hash = Sha256::new();
        // Numbers and versions start again with each server.
        hash.update(*PROCESS);
        for look in &seen.looks {
            hash.update(look.number.to_le_bytes());
            hash.update(look.history.version().to_le_bytes());
        }
        for Listed { id, saved } in &seen.archived {
            hash.update(id.as_str());
            hash.update(saved.as_second().to_le_bytes());
        }
        Self(format!("W/\"{}\"", hex::encode(&hash.finalize()[..8])))
    }

    /// The tag of an archived session, which does not change.
    fn of_archived(archived: &ArchivedSession) -> Self {
        let hash = Sha256::digest(archived.manifest.generation());
        Self(format!("W/\"{}\"", hex::encode(&hash[..8])))
    }

    fn is_known(&self, asked: &HeaderMap) -> bool {
        let known = asked.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok());
        known.is_some_and(|known| known.split(',').any(|tag| tag.trim() == self.0))
    }

    fn not_modified(&self) -> Response {
        (StatusCode::NOT_MODIFIED, self.headers()).into_response()
    }

    fn headers(&self) -> [(HeaderName, HeaderValue); 1] {
        [(
            header::ETAG,
            HeaderValue::from_str(&self.0).expect("hexadecimal digits are valid in a header"),
        )]
    }
}

impl SessionInfo {
    fn session_key(&self) -> SessionKey<'_> {
        SessionKey { id: &self.id, number: self.number }
    }
}

fn head(look: &SessionInfo) -> Value {
    json!({
        "session_id": look.id.as_str(),
        "state": look.history.phase().as_str(),
        "since": time(look.since),
        "changed_at": time(look.history.changed().unwrap_or(look.since)),
    })
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
    let links = Some((urls, look.session_key()));
    shown["pictures"] =
        pictures.into_iter().map(|file| listing::artifact_json_with_mtime(links, file)).collect();
    shown["page_url"] = urls.page(look.session_key()).into();
    shown
}

/// A session of which only the name is known: one that no caller has used since the server started, or an
/// archived one. Listing it does not wake it.
fn unknown(urls: &SignedUrls, id: &SessionId, state: &str, since: Option<Timestamp>) -> Value {
    let since = time(since.unwrap_or(Timestamp::UNIX_EPOCH));
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

/// Bytes of a run's texts that are shown, at most.
fn shown_bytes(run: &PastRun) -> usize {
    let outputs = run.end.iter().flat_map(|end| [&end.stdout, &end.stderr]);
    let outputs: usize = outputs.map(|text| text.len().min(MAX_OUTPUT_BYTES)).sum();
    run.code.len().min(MAX_CODE_BYTES) + outputs
}

fn past_run(
    urls: &SignedUrls,
    look: &SessionInfo,
    run: &PastRun,
    notes: impl Fn(&RunEnd) -> Notes,
) -> Value {
    let code = utf8::start(&run.code, MAX_CODE_BYTES);
    let mut shown = json!({
        "run_id": run.run_id.as_str(),
        "begun_at": time(run.begun),
        "language": run.language.as_str(),
        "is_cell": run.is_cell,
        "code": code,
        "code_truncated": code.len() < run.code.len(),
    });
    if let Some(end) = &run.end {
        let links = Some((urls, look.session_key()));
        let artifacts = end.artifacts.iter().take(MAX_ARTIFACTS);
        let artifacts: Vec<_> =
            artifacts.map(|file| listing::artifact_json_with_mtime(links, file)).collect();
        let (stdout, stderr) =
            (utf8::start(&end.stdout, MAX_OUTPUT_BYTES), utf8::end(&end.stderr, MAX_OUTPUT_BYTES));
        let omitted = end.artifacts_omitted + end.artifacts.len() - artifacts.len();
        shown["outcome"] = end.outcome.as_str().into();
        shown["exit_code"] = end.exit_code.into();
        if let Some(cell) = &end.cell {
            if let Some(number) = cell.number() {
                shown["execution_count"] = number.into();
            }
            if cell.is_undone {
                shown["is_undone"] = true.into();
            }
            shown["state"] = cell.state.as_str().into();
            if let Some(message) = &cell.error_message {
                shown["error_message"] = message.as_str().into();
            }
            if let Some(result) = &cell.result {
                let start = utf8::start(result, MAX_OUTPUT_BYTES);
                shown["result"] = start.into();
                shown["result_truncated"] = (start.len() < result.len()).into();
            }
        }
        notes(end).add_to(&mut shown);
        shown["duration_ms"] = whole_ms(end.elapsed).into();
        shown["stdout"] = stdout.into();
        shown["stdout_truncated"] = (stdout.len() < end.stdout.len()).into();
        shown["stderr"] = stderr.into();
        shown["stderr_truncated"] = (stderr.len() < end.stderr.len()).into();
        shown["artifacts"] = artifacts.into();
        shown["artifacts_omitted"] = omitted.into();
    }
    shown
}

fn time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S.%3fZ").to_string()
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;
    use crate::{auth::Tokens, backend::local::Local, config::Config, sessions::Options};

    /// No sessions, and a request that knows that there are none and would wait for some.
    fn nothing_new() -> (Sessions, HeaderMap) {
        let backend = Arc::new(Local::new().expect("a backend"));
        let mut asked = HeaderMap::new();
        let tag = Tag::of(&Seen::default()).headers()[0].1.clone();
        asked.insert(header::IF_NONE_MATCH, tag);
        asked.insert("prefer", HeaderValue::from_static("wait=30"));
        (Sessions::new(Config::default(), backend, Options::default()), asked)
    }

    #[tokio::test]
    async fn those_who_wait_leave_room_for_those_who_ask() {
        let (sessions, asked) = nothing_new();
        let waiters = Waiters::new(1);
        let first = news(&asked, &waiters, &sessions, Wanted::All);
        tokio::pin!(first);
        assert!(first.as_mut().now_or_never().is_none(), "it waits");
        let nothing = tokio::select! {
            biased;
            _ = &mut first => panic!("the first has waited to its end"),
            next = news(&asked, &waiters, &sessions, Wanted::All) => next,
        };
        assert!(matches!(nothing, News::None(_)), "there is nothing new");
    }

    #[tokio::test]
    async fn a_caller_who_waits_as_often_as_it_may_leaves_places_for_others_to_wait() {
        let (sessions, asked) = nothing_new();
        let tokens = Tokens::parse("ann:a,bob:b").expect("valid");
        let [ann, bob] =
            ["a", "b"].map(|token| sessions.seen_by(tokens.principal(token).expect("known")));
        let waiters = Waiters::new(2);
        let first = news(&asked, &waiters, &ann, Wanted::All);
        tokio::pin!(first);
        assert!(first.as_mut().now_or_never().is_none(), "she waits");
        let second = news(&asked, &waiters, &ann, Wanted::All).await;
        assert!(matches!(second, News::None(_)), "she has her half, and there is nothing new");
        let his = news(&asked, &waiters, &bob, Wanted::All);
        assert!(his.now_or_never().is_none(), "he waits");
    }

    #[test]
    fn a_wait_is_what_was_asked_for_within_bounds() {
        let wait = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("prefer", HeaderValue::from_str(value).expect("a value"));
            wait(&headers).as_secs()
        };
        assert_eq!(wait("wait=20"), 20);
        assert_eq!(wait("respond-async, Wait = 5"), 5);
        assert_eq!(wait("wait=4000000000"), 30);
        for unclear in ["wait", "wait=-1", "wait=soon", "", "return=minimal"] {
            assert_eq!(wait(unclear), 0, "{unclear}");
        }
        assert_eq!(super::wait(&HeaderMap::new()), Duration::ZERO);
    }
}
