//! Where a request may write, and what it is answered.

use axum::{
    Json,
    extract::{Path, rejection::PathRejection},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use model::{DataPath, Existing, InvalidPath, SessionId};
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
    sessions::{Opened, Sessions, Upload, Uploaded},
    signed_urls::{Grant, SessionKey, SignedUrls},
    trace::TraceParent,
};

/// Where a request may write.
pub(super) struct Target {
    pub(super) sessions: Sessions,
    pub(super) id: SessionId,
    pub(super) path: DataPath,
    existing: Existing,
    condition: Condition,
    trace: Option<TraceParent>,
}

/// What the path of a request names.
pub(super) type NamedPath = std::result::Result<Path<(String, String)>, PathRejection>;

/// The file that a request may write.
///
/// # Errors
/// If its names are invalid, it is not allowed to, or it has only a part of a file.
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
    // What HTTP means by PUT, unless the URL says otherwise; with a signature, what that allows.
    let by_signature = query.has_signature() && !headers.contains_key(header::AUTHORIZATION);
    let existing = match condition {
        Condition::OnlyNew => Existing::Keep,
        Condition::None if !by_signature && query.overwrite.is_none() => Existing::Replace,
        Condition::None => query.existing(),
    };
    let trace = TraceParent::of(headers);
    Ok(Target { sessions, id, path, existing, condition, trace })
}

fn named(path: NamedPath) -> Result<(SessionId, DataPath)> {
    let Ok(Path((id, path))) = path else {
        return Err(Error::InvalidFilename("The filename is not UTF-8.".into()).into());
    };
    Ok((id.parse()?, DataPath::relative(&path).map_err(bad_name)?))
}

impl Target {
    /// Writes the file.
    ///
    /// # Errors
    /// If it could not be written; then there is what was there before.
    pub(super) async fn write(&self, content: Content) -> Result<Uploaded> {
        let (id, path) = (self.id.clone(), self.path.clone());
        let upload = Upload { path, content, existing: self.existing };
        let (_, done) = write(&self.sessions, Some(id), upload, self.trace.as_ref()).await?;
        done.map_err(|error| refused(error, self.condition))
    }
}

/// Writes a file into a session that is named or a new one, and leaves of it what a call of a tool would leave.
///
/// # Errors
/// If it cannot be written down, and so is not done. What came of it otherwise is returned.
pub(super) async fn write(
    sessions: &Sessions,
    id: Option<SessionId>,
    upload: Upload,
    trace: Option<&TraceParent>,
) -> crate::error::Result<(Opened, crate::error::Result<Uploaded>)> {
    let entry = audited::begin(sessions, audited::UPLOAD, id.as_ref(), Some(upload.path.as_str()))?;
    let (content, streamed) = match &entry {
        Some(_) => {
            let (content, streamed) = digested(upload.content);
            (content, Some(streamed))
        }
        None => (upload.content, None),
    };
    let (opened, done) = sessions.perform_or_create(id, Upload { content, ..upload }).await;
    log(sessions, &opened.id, &done, trace);
    if let Some(mut entry) = entry {
        entry.record.session_id = Some(opened.id.to_string());
        let bytes = done.as_ref().ok().map(|uploaded| uploaded.size_bytes);
        let digest = streamed.zip(bytes).and_then(|(streamed, bytes)| streamed.digest(bytes));
        entry.record.inputs.content = digest;
        entry.end(done.as_ref().map_or_else(Error::code, |_| "ok"));
    }
    Ok((opened, done))
}

/// What a call of a tool would leave in the log.
fn log(
    sessions: &Sessions,
    id: &SessionId,
    done: &crate::error::Result<Uploaded>,
    trace: Option<&TraceParent>,
) {
    tracing::info!(
        client = sessions.caller().name(),
        session_id = id.as_str(),
        outcome = done.as_ref().map_or_else(Error::code, |_| "ok"),
        bytes = done.as_ref().ok().map(|uploaded| uploaded.size_bytes),
        trace_id = trace.map(|trace| &*trace.trace_id),
        span_id = trace.map(|trace| &*trace.span_id),
        trace_flags = trace.map(|trace| &*trace.flags),
        "upload over HTTP"
    );
}

/// On what a request depends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Condition {
    None,
    /// That nothing is replaced.
    OnlyNew,
}

impl Condition {
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let only_new = headers.get(header::IF_NONE_MATCH).is_some_and(|value| value == "*");
        if only_new { Self::OnlyNew } else { Self::None }
    }
}

/// That a file is there is a failed condition if there was one.
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

/// Files that were written, as they are shown.
pub(super) fn rendered(
    urls: &SignedUrls,
    sessions: &Sessions,
    id: &SessionId,
    files: &[(DataPath, Uploaded)],
) -> Vec<Value> {
    let links = sessions.number(id).map(|number| (urls, SessionKey { id, number }));
    files.iter().map(|(path, uploaded)| listing::file(links, path, uploaded.size_bytes)).collect()
}

/// The answer to an upload of these files into this session.
pub(super) fn answer(id: &SessionId, files: &[(DataPath, Uploaded)], mut body: Value) -> Response {
    body["session_id"] = id.as_str().into();
    let all_replaced = files.iter().all(|(_, uploaded)| uploaded.replaced);
    let status = if all_replaced { StatusCode::OK } else { StatusCode::CREATED };
    (status, Json(body)).into_response()
}
