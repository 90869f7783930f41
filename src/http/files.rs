//! `GET|HEAD /files/{session}/{path}`: a file, streamed from its sandbox as fast as it is taken; and all
//! of them.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::{Extension, Path, State, rejection::PathRejection},
    http::{HeaderMap, Method, StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use headers::{AcceptRanges, ContentLength, ContentRange, HeaderMapExt, LastModified};

use serde_json::Map;

use super::{
    Shared,
    access::Query,
    archive,
    conditions::{Answer, Version},
    connections::holding,
    failure,
    list::with_artifacts,
    not_found, page, refuse, uploads,
};
use crate::{
    addresses::{Base, Grant, Incarnation},
    artifact::{DataPath, content_disposition},
    error::Error,
    listing,
    session::{FileReader, SessionId},
    sessions::Listing,
};

/// Memory that a download holds, in bytes: a piece of the file.
const DOWNLOAD: usize = 64 << 10;

/// Memory that an archive holds besides the names of its files, in bytes: pieces of a file before and
/// after they are deflated, and what deflating takes.
const ARCHIVE: usize = 512 << 10;

/// Of a session that is not there, to whoever knows no more than its name.
pub(super) const NO_SESSION: &str =
    "There is no such session. If there was one, it has ended and its files are gone.";

pub(super) async fn download(
    State(shared): State<Shared>,
    path: std::result::Result<Path<(String, String)>, PathRejection>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    // A name that cannot be is the name of nothing.
    let named = path.ok().and_then(|Path((session, path))| {
        Some((session.parse::<SessionId>().ok()?, DataPath::relative(&path).ok()?))
    });
    let Some((id, path)) = named else {
        // Nor need anybody hear more who may not come in.
        return match shared.access.principal(&headers) {
            Ok(_) => not_found("There is no such file."),
            Err(refusal) => *refusal,
        };
    };
    let query = Query::of(&uri);
    let grant = if query.is_for_upload() {
        let overwrite = query.overwrite.as_deref() == Some("true");
        Grant::Write { path: &path, overwrite }
    } else {
        Grant::Read(Some(&path))
    };
    let granted = shared.access.granted(&shared.sessions, &headers, &uri, &id, &[grant]);
    let sessions = match granted {
        Ok(sessions) => sessions,
        Err(refusal) => return *refusal,
    };
    if query.is_for_upload() {
        return uploads::page();
    }
    let memory = match shared.memory_for(sessions.caller(), DOWNLOAD).await {
        Ok(memory) => memory,
        Err(refusal) => return *refusal,
    };
    match sessions.open(&id, path).await {
        Ok(file) => answer(file, &method, &headers, shared).map(|body| holding(body, memory)),
        Err(error) => gone(&error),
    }
}

/// `GET /files/{session}/`: all files, as an archive or, if none is asked for, a list; for a browser, the
/// page that shows them.
pub(super) async fn all(
    State(shared): State<Shared>,
    Extension(base): Extension<Base>,
    id: std::result::Result<Path<String>, PathRejection>,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    let query = Query::of(&uri);
    if query.format.is_none() && page::is_wanted(&headers) {
        return page::page().await;
    }
    let id = match session(id, &shared, &headers) {
        Ok(id) => id,
        Err(refusal) => return *refusal,
    };
    // The list is what the page shows, too.
    let is_list = matches!(query.format.as_deref(), None | Some("json"));
    let grants = &[Grant::Read(None), Grant::Look][..if is_list { 2 } else { 1 }];
    let granted = shared.access.granted(&shared.sessions, &headers, &uri, &id, grants);
    let sessions = match granted {
        Ok(sessions) => sessions,
        Err(refusal) => return *refusal,
    };
    let kind = match query.format.as_deref() {
        None | Some("json") => None,
        Some("zip") => Some(archive::Kind::Zip),
        Some("tar") => Some(archive::Kind::Tar),
        Some(_) => {
            let why = "The format is one of zip, tar and json.";
            return refuse(StatusCode::BAD_REQUEST, "invalid_argument", why);
        }
    };
    let Some(number) = sessions.number(&id) else { return not_found(NO_SESSION) };
    let sessions = sessions.only(number);
    let mut memory = match shared.memory_for_listing(sessions.caller()).await {
        Ok(memory) => memory,
        Err(refusal) => return *refusal,
    };
    let listing = match sessions.list(&id).await {
        Ok(listing) => listing,
        Err(error) => return gone(&error),
    };
    let Some(kind) = kind else {
        let addresses = shared.addresses.for_client(Some(&base));
        let object = Map::from_iter([("session_id".to_owned(), id.as_str().into())]);
        let render = move |listing: &Listing, n: usize| {
            let links = Some((&addresses, Incarnation { id: &id, number }));
            listing::dated(links, &listing.artifacts[n])
        };
        let answer = with_artifacts(object, Arc::new(listing), memory, render);
        return ([(header::VARY, "Accept")], answer).into_response();
    };
    if listing.more {
        let why = "There are too many files for one archive. Make one in the session instead.";
        return refuse(StatusCode::PAYLOAD_TOO_LARGE, "artifact_too_large", why);
    }
    let name = format!("{id}.{}", kind.extension());
    let named = [
        (header::CONTENT_TYPE, kind.mime().to_owned()),
        (header::CONTENT_DISPOSITION, content_disposition(&name, kind.mime())),
    ];
    memory.shrink_to(listing.bytes() + ARCHIVE);
    memory.keep();
    let body = archive::stream(kind, sessions, id, listing.artifacts);
    (named, Body::from_stream(body)).into_response()
}

/// The session that an address names. One that cannot be is none, for those who may come in.
pub(super) fn session(
    id: std::result::Result<Path<String>, PathRejection>,
    shared: &Shared,
    headers: &HeaderMap,
) -> std::result::Result<SessionId, Box<Response>> {
    let id = id.ok().and_then(|Path(id)| id.parse().ok());
    id.ok_or_else(|| match shared.access.principal(headers) {
        Ok(_) => Box::new(not_found(NO_SESSION)),
        Err(refusal) => refusal,
    })
}

/// There is no file, whatever the reason.
pub(super) fn gone(error: &Error) -> Response {
    match error {
        Error::Internal(_) => failure(error),
        Error::SessionNotFound(_) | Error::SessionEvicted(_) | Error::SandboxDied(_) => {
            not_found(NO_SESSION)
        }
        _ => not_found("There is no such file."),
    }
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
