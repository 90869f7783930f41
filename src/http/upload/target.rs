//! The file that a request may write, and the answer to an upload.

use std::time::{Duration, Instant};

use axum::{
    Json,
    extract::{Path, rejection::PathRejection},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use futures::future::join_all;
use model::{DataPath, Existing, InvalidPath, SessionId};
use protocol::message::Summary;
use serde_json::Value;

use crate::{
    audit::digested,
    content::Content,
    error::Error,
    http::{
        access::{Asked, Query},
        audited,
        error::{ApiError, Result},
        shared::Shared,
    },
    listing,
    sessions::{Opened, Sessions, Upload, Uploaded, session_name},
    signed_urls::{Grant, NumberedSession, SignedUrls},
    summary, trace,
};

/// Maximum number of files of a form whose summaries are looked for.
const MAX_SUMMARIES: usize = 4;

/// The file that a request may write.
pub(super) struct Target {
    pub(super) sessions: Sessions,
    pub(super) id: SessionId,
    pub(super) path: DataPath,
    existing: Existing,
    condition: Condition,
}

/// The session and the path in a request's URL.
pub(super) type NamedPath = std::result::Result<Path<(String, String)>, PathRejection>;

/// Returns the file that a request may write.
///
/// # Errors
/// If its names are invalid, it is not allowed to write, or its body is only part of a file.
pub(super) async fn target(shared: &Shared, path: NamedPath, asked: Asked<'_>) -> Result<Target> {
    let Asked { headers, uri, .. } = asked;
    let named = named(path).or_else(|refused| {
        // Unauthenticated callers get 401 before any detail.
        shared.access.principal(headers)?;
        Err(refused)
    });
    let (id, path) = named?;
    let query = Query::of(uri);
    let grant = Grant::Write { path: &path, existing: query.existing() };
    let sessions = shared.access.granted(&shared.sessions, asked, &id, &[grant]).await?;
    if headers.contains_key(header::CONTENT_RANGE) {
        // RFC 9110, section 14.5: a part must never be taken for the whole.
        let why = "Send the whole file: part of a file cannot be written.";
        return Err(Error::InvalidArgument(why.into()).into());
    }
    let condition = Condition::of(headers);
    // `PUT` replaces files, as HTTP says, unless the URL says otherwise; with a signature, the signature decides.
    let by_signature = query.has_signature() && !headers.contains_key(header::AUTHORIZATION);
    let existing = match condition {
        Condition::OnlyNew => Existing::Keep,
        Condition::None if !by_signature && query.overwrite.is_none() => Existing::Replace,
        Condition::None => query.existing(),
    };
    Ok(Target { sessions, id, path, existing, condition })
}

fn named(path: NamedPath) -> Result<(SessionId, DataPath)> {
    let Ok(Path((id, path))) = path else {
        return Err(Error::InvalidFilename("The filename is not UTF-8.".into()).into());
    };
    Ok((session_name(&id)?, DataPath::relative(&path).map_err(bad_name)?))
}

impl Target {
    /// Writes the file.
    ///
    /// # Errors
    /// If it could not be written; then the previous file is unchanged.
    pub(super) async fn write(&self, content: Content) -> Result<Uploaded> {
        let (id, path) = (self.id.clone(), self.path.clone());
        let upload = Upload { path, content, existing: self.existing };
        let (_, done) = write(&self.sessions, Some(id), upload).await?;
        done.map_err(|error| refused(error, self.condition))
    }
}

/// Writes a file into a named session or a new one, with the same log and audit entries as a tool call.
///
/// # Errors
/// If the audit line cannot be written: nothing is done. The result of the upload itself is in the returned value.
pub(super) async fn write(
    sessions: &Sessions,
    id: Option<SessionId>,
    upload: Upload,
) -> crate::error::Result<(Opened, crate::error::Result<Uploaded>)> {
    let entry = audited::begin(sessions, audited::UPLOAD, id.as_ref(), Some(upload.path.as_str()))?;
    let (content, streamed) = match &entry {
        Some(_) => {
            let (content, streamed) = digested(upload.content);
            (content, Some(streamed))
        }
        None => (upload.content, None),
    };
    let begun = Instant::now();
    let (opened, done) = sessions.perform_or_create(id, Upload { content, ..upload }).await;
    log(sessions, &opened.id, &done, begun.elapsed());
    if let Some(mut entry) = entry {
        entry.record.session_id = Some(opened.id.to_string());
        let bytes = done.as_ref().ok().map(|uploaded| uploaded.size_bytes);
        let digest = streamed.zip(bytes).and_then(|(streamed, bytes)| streamed.digest(bytes));
        entry.record.inputs.content = digest;
        entry.end(done.as_ref().map_or_else(Error::code, |_| "ok"));
    }
    Ok((opened, done))
}

/// Writes the log line that a tool call would write.
fn log(
    sessions: &Sessions,
    id: &SessionId,
    done: &crate::error::Result<Uploaded>,
    elapsed: Duration,
) {
    let outcome = done.as_ref().map_or_else(Error::code, |_| "ok");
    trace::note([
        ("llm_sandbox.session_id", Some(id.to_string().into())),
        ("llm_sandbox.outcome", Some(outcome.into())),
    ]);
    let ids = trace::ids();
    let ids = ids.as_ref();
    tracing::info!(
        client = sessions.caller().name(),
        session_id = id.as_str(),
        outcome,
        duration_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX),
        bytes = done.as_ref().ok().map(|uploaded| uploaded.size_bytes),
        trace_id = ids.map(|ids| &*ids.trace_id),
        span_id = ids.map(|ids| &*ids.span_id),
        trace_flags = ids.map(|ids| &*ids.flags),
        "upload over HTTP"
    );
}

/// The condition of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Condition {
    None,
    /// No file may be replaced.
    OnlyNew,
}

impl Condition {
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let only_new = headers.get(header::IF_NONE_MATCH).is_some_and(|value| value == "*");
        if only_new { Self::OnlyNew } else { Self::None }
    }
}

/// If the request has a condition, an existing file is a failed precondition.
pub(super) fn refused(error: Error, condition: Condition) -> ApiError {
    match error {
        Error::FileExists(name) if condition == Condition::OnlyNew => {
            let why = format!("{name} already exists.");
            ApiError::refused(StatusCode::PRECONDITION_FAILED, "file_exists", why)
        }
        Error::FileExists(name) => {
            let why = format!(
                "{name} already exists, and this URL does not replace files. upload_file with \
                 overwrite=true returns one that does."
            );
            ApiError::refused(StatusCode::CONFLICT, "file_exists", why)
        }
        error => error.into(),
    }
}

pub(super) fn bad_name(why: InvalidPath) -> Error {
    Error::InvalidFilename(format!("The filename {why}."))
}

/// Written files, as answers show them, with the summaries of tables that are quickly found.
pub(super) async fn rendered(
    urls: &SignedUrls,
    sessions: &Sessions,
    id: &SessionId,
    files: &[(DataPath, Uploaded)],
) -> Vec<Value> {
    let links = sessions.get(id).map(|live| (urls, NumberedSession { id, number: live.number() }));
    // All files are written, and all summaries together have the time of one.
    let summaries = files.iter().enumerate().map(async |(at, (path, _))| {
        if at < MAX_SUMMARIES { sessions.summary(id, path.as_str()).await } else { None }
    });
    let shown = |((path, uploaded), found): (&(DataPath, Uploaded), Option<Summary>)| {
        let mut shown = listing::file(links, path, uploaded.size_bytes);
        if let Some(found) = found {
            shown["summary"] = summary::rendered(&found);
        }
        shown
    };
    files.iter().zip(join_all(summaries).await).map(shown).collect()
}

/// The answer to an upload of these files into this session.
pub(super) fn answer(id: &SessionId, files: &[(DataPath, Uploaded)], mut body: Value) -> Response {
    body["session_id"] = id.as_str().into();
    let all_replaced = files.iter().all(|(_, uploaded)| uploaded.replaced);
    let status = if all_replaced { StatusCode::OK } else { StatusCode::CREATED };
    (status, Json(body)).into_response()
}
