//! Audits uploads, downloads and ends of sessions over HTTP, if there is an audit file.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use axum::{
    body::{Body, Bytes, HttpBody},
    http::{Method, StatusCode},
    response::Response,
};
use headers::{ContentLength, HeaderMapExt};
use hyper::body::{Frame, SizeHint};
use model::SessionId;

use crate::{
    audit::{CannotWrite, Digest, Entry, Hashing},
    error::{Error, Result},
    sessions::Sessions,
};

/// The names of actions in the audit file.
pub(super) const UPLOAD: &str = "upload";
pub(super) const END: &str = "end_session";
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
    Ok(response.map(|body| {
        Body::new(Audited { body, entry: Some(entry), sent: Hashing::default(), whole, is_over })
    }))
}

/// A body whose digest is recorded when it has been sent completely or is dropped.
struct Audited {
    body: Body,
    entry: Option<Entry>,
    sent: Hashing,
    /// Length in bytes, if known.
    whole: Option<u64>,
    is_over: bool,
}

impl HttpBody for Audited {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        match &polled {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(piece) = frame.data_ref() {
                    self.sent.add(piece);
                }
                // A reader that knows the length may stop polling after the last byte.
                self.is_over = self.whole.is_some_and(|whole| self.sent.bytes() >= whole);
            }
            Poll::Ready(None) => self.is_over = true,
            Poll::Ready(Some(Err(_))) | Poll::Pending => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Audited {
    fn drop(&mut self) {
        if let Some(mut entry) = self.entry.take() {
            entry.record.outputs.content = Some(std::mem::take(&mut self.sent).end());
            entry.end(if self.is_over { "ok" } else { CUT_OFF });
        }
    }
}
