//! `GET|HEAD /files/{session}/{path}`: a file, streamed from its sandbox as fast as it is taken.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::{
    body::Body,
    extract::{Path, State},
    http::{HeaderValue, Method, StatusCode, header},
    response::{IntoResponse, Response},
};

use super::{not_found, reply};
use crate::{
    artifact::{DataPath, content_disposition},
    error::Error,
    session::SessionId,
    sessions::Sessions,
};

pub(super) async fn download(
    State(sessions): State<Sessions>,
    Path((session, path)): Path<(String, String)>,
    method: Method,
) -> Response {
    // A name that cannot be is the name of nothing.
    let (Ok(session), Ok(path)) = (session.parse::<SessionId>(), DataPath::relative(&path)) else {
        return not_found("There is no such file.");
    };
    let file = match sessions.open(&session, path).await {
        Ok(file) => file,
        Err(error @ Error::Internal(_)) => {
            return reply(StatusCode::INTERNAL_SERVER_ERROR, &error.to_json());
        }
        Err(Error::SessionNotFound(_) | Error::SandboxDied(_)) => {
            return not_found("There is no such session.");
        }
        Err(_) => return not_found("There is no such file."),
    };

    let mime = file.path().mime();
    // Text is UTF-8 here unless a program went out of its way.
    let charset = if mime.starts_with("text/") { "; charset=utf-8" } else { "" };
    let stamp = file.stamp();
    let etag =
        format!("\"{:x}-{:x}-{:x}-{:x}\"", stamp.ino, stamp.size, stamp.mtime_ns, stamp.ctime_ns);
    let modified = u64::try_from(stamp.mtime_ns).unwrap_or(0);
    let modified = httpdate::fmt_http_date(clamp(UNIX_EPOCH + Duration::from_nanos(modified)));
    let headers = [
        (header::CONTENT_TYPE, format!("{mime}{charset}")),
        (header::CONTENT_LENGTH, stamp.size.to_string()),
        (header::CONTENT_DISPOSITION, content_disposition(file.path().name(), mime)),
        (header::LAST_MODIFIED, modified),
        (header::ETAG, etag),
    ];
    // A hostile page or SVG can do nothing in the reader's browser.
    let fixed = [
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox; default-src 'none'")),
    ];
    let body =
        if method == Method::HEAD { Body::empty() } else { Body::from_stream(file.stream()) };
    (headers, fixed, body).into_response()
}

/// HTTP dates end with the year 9999.
fn clamp(time: SystemTime) -> SystemTime {
    time.min(UNIX_EPOCH + Duration::from_secs(253_402_300_799))
}
