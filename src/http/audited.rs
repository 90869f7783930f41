//! Audits uploads, downloads and ends of sessions over HTTP, if there is an audit file; and `GET /audit`.

use axum::{
    body::{Body, Bytes},
    extract::State,
    http::{HeaderMap, Method, StatusCode, header},
    response::{IntoResponse, Response},
};
use config::Right;
use headers::{ContentLength, HeaderMapExt};
use model::SessionId;

use super::{
    body::{observed, written},
    error::{self, ApiError},
    shared::Shared,
};
use crate::{
    audit::{self, CannotWrite, Digest, Entry, Hashing},
    error::{Error, Result},
    sessions::Sessions,
};

/// The names of actions in the audit file.
pub(super) const UPLOAD: &str = "upload";
pub(super) const END: &str = "end_session";
pub(super) const CANCEL: &str = "cancel_run";
const DOWNLOAD: &str = "download";

/// The outcome of a download that was not read to its end.
const CUT_OFF: &str = "cut_off";

/// Begins the audit line of an action on a session, and on `of` in it. `None` without an audit file.
///
/// # Errors
/// If the line cannot be written: the action must not be carried out.
pub(super) fn begin(
    sessions: &Sessions,
    what: &str,
    id: Option<&SessionId>,
    of: Option<&str>,
) -> Result<Option<Entry>> {
    let Some(audit) = sessions.host().audit() else { return Ok(None) };
    let begun = Entry::begin(audit, sessions.caller(), what);
    let mut entry = begun.map_err(|CannotWrite| {
        sessions.host().metrics().audit_refused();
        Error::audit_unavailable()
    })?;
    entry.record.session_id = id.map(ToString::to_string);
    entry.record.inputs.arguments = of.map(|of| Digest::of_json(&of));
    Ok(Some(entry))
}

/// Audits an answer if it sends content of a session.
///
/// # Errors
/// If the line cannot be written: nothing is sent.
pub(super) fn download(
    sessions: &Sessions,
    (id, of): (&SessionId, &str),
    method: &Method,
    response: Response,
) -> Result<Response> {
    let sends = matches!(response.status(), StatusCode::OK | StatusCode::PARTIAL_CONTENT);
    if !sends || method == Method::HEAD {
        return Ok(response);
    }
    let Some(entry) = begin(sessions, DOWNLOAD, Some(id), Some(of))? else { return Ok(response) };
    let whole = response.headers().typed_get().map(|ContentLength(bytes)| bytes);
    let is_over = whole == Some(0);
    let mut sent = SentBody { entry: Some(entry), digest: Hashing::default(), whole, is_over };
    Ok(response.map(|body| observed(body, move |piece| sent.add(piece))))
}

/// All lines of the audit file, the oldest first, for callers who may read it.
pub(super) async fn file(
    State(shared): State<Shared>,
    headers: HeaderMap,
) -> error::Result<Response> {
    shared.access.permitted(&headers, Right::Audit)?;
    let Some(path) = &shared.sessions.config().audit_file else {
        return Err(ApiError::not_found("This server writes no audit file."));
    };
    let files = audit::files(path).map_err(|error| {
        tracing::warn!(%error, "audit file cannot be read");
        ApiError::not_found("The audit file cannot be read.")
    })?;
    let lines = written(async move |mut writer| {
        for file in files {
            tokio::io::copy(&mut tokio::fs::File::from_std(file), &mut writer).await?;
        }
        Ok(())
    });
    Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(lines)).into_response())
}

/// The part of a download that was sent. The audit line is written when this is dropped, with the body.
struct SentBody {
    entry: Option<Entry>,
    digest: Hashing,
    /// Length in bytes, if known.
    whole: Option<u64>,
    is_over: bool,
}

impl SentBody {
    fn add(&mut self, piece: Option<&Bytes>) {
        let Some(piece) = piece else {
            self.is_over = true;
            return;
        };
        self.digest.add(piece);
        // A reader that knows the length may stop polling after the last byte.
        self.is_over = self.whole.is_some_and(|whole| self.digest.bytes() >= whole);
    }
}

impl Drop for SentBody {
    fn drop(&mut self) {
        if let Some(mut entry) = self.entry.take() {
            entry.record.outputs.content = Some(std::mem::take(&mut self.digest).end());
            entry.end(if self.is_over { "ok" } else { CUT_OFF });
        }
    }
}
