//! `GET|HEAD /files/{session}/{path}`: a file, streamed from its sandbox as fast as it is taken.

use axum::{
    body::Body,
    extract::{Path, State, rejection::PathRejection},
    http::{HeaderMap, Method, StatusCode, header},
    response::{IntoResponse, Response},
};
use headers::{AcceptRanges, ContentLength, ContentRange, HeaderMapExt, LastModified};

use super::{
    Shared,
    conditions::{Answer, Version},
    not_found, refuse, reply,
};
use crate::{
    artifact::{DataPath, content_disposition},
    error::{Error, Result},
    session::{FileReader, SessionId},
    sessions::Sessions,
};

pub(super) async fn download(
    State(shared): State<Shared>,
    path: std::result::Result<Path<(String, String)>, PathRejection>,
    method: Method,
    headers: HeaderMap,
) -> Response {
    // A name that cannot be is the name of nothing.
    let Ok(Path((session, path))) = path else {
        return not_found("There is no such file.");
    };
    match open(&shared.sessions, &session, &path).await {
        Ok(file) => answer(file, &method, &headers, shared),
        Err(error @ Error::Internal(_)) => {
            reply(StatusCode::INTERNAL_SERVER_ERROR, &error.to_json())
        }
        Err(Error::SessionNotFound(_) | Error::SandboxDied(_)) => {
            not_found("There is no such session.")
        }
        Err(_) => not_found("There is no such file."),
    }
}

async fn open(sessions: &Sessions, session: &str, path: &str) -> Result<FileReader> {
    let id: SessionId = session.parse()?;
    let path = DataPath::relative(path).map_err(|why| Error::InvalidPath(why.into()))?;
    sessions.open(&id, path).await
}

fn answer(file: FileReader, method: &Method, asked: &HeaderMap, shared: Shared) -> Response {
    let version = Version::of(&file.stamp());
    let size = version.size;
    let answer = version.answer(method, asked);
    let mut headers = HeaderMap::new();
    headers.typed_insert(version.etag);
    headers.typed_insert(LastModified::from(version.modified));
    headers.typed_insert(AcceptRanges::bytes());
    let (status, range) = match answer {
        Answer::NotModified => return (StatusCode::NOT_MODIFIED, headers).into_response(),
        Answer::AnotherVersion => {
            let why = "The file is another than the request means.";
            return refuse(StatusCode::PRECONDITION_FAILED, "precondition_failed", why);
        }
        Answer::NoSuchBytes => {
            headers.typed_insert(ContentRange::unsatisfied_bytes(size));
            let why = format!("The file has {size} bytes.");
            let refusal = refuse(StatusCode::RANGE_NOT_SATISFIABLE, "range_not_satisfiable", &why);
            return (headers, refusal).into_response();
        }
        Answer::Whole => (StatusCode::OK, 0..size),
        Answer::Part(range) => {
            let within = ContentRange::bytes(range.clone(), size).expect("a range of the file");
            headers.typed_insert(within);
            (StatusCode::PARTIAL_CONTENT, range)
        }
    };
    headers.typed_insert(ContentLength(range.end - range.start));
    let mime = file.path().mime();
    // Text is UTF-8 here unless a program went out of its way.
    let charset = if mime.starts_with("text/") { "; charset=utf-8" } else { "" };
    let named = [
        (header::CONTENT_TYPE, format!("{mime}{charset}")),
        (header::CONTENT_DISPOSITION, content_disposition(file.path().name(), mime)),
    ];
    // Of HEAD's answer the router sends no body, and a stream that is not read asks for nothing.
    let body = Body::from_stream(file.range(range, shared.pieces));
    (status, headers, named, body).into_response()
}
