//! `GET|HEAD /files/{session}/{path}`: a file, streamed from its sandbox as fast as the client reads it; and
//! all files of a session.

use std::ops::Range;

use axum::{
    BoxError,
    body::{Body, Bytes},
    extract::{Extension, Path, State, rejection::PathRejection},
    http::{HeaderMap, Method, StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use futures::{StreamExt, TryStreamExt, stream::BoxStream};
use headers::{AcceptRanges, ContentLength, ContentRange, HeaderMapExt, LastModified};
use model::{
    DataPath, FilePath, SessionId,
    artifact::content_disposition,
    text::encoding::{Encoding, SNIFFED, is_text},
};
use protocol::message::Stamp;
use serde_json::json;

use super::{
    access::{Asked, Query},
    archive::{self, FilesOf},
    audited,
    body::holding,
    conditions::{Answer, Version},
    error::{ApiError, Result},
    list::with_artifacts,
    notebook,
    shared::Shared,
    upload, viewer,
};
use crate::{
    archive::ArchivedFile,
    session::{FileReader, PieceSizes},
    sessions::{ArchivedSession, List, Listing, Open, Sessions},
    signed_urls::{Base, Grant, session_and_signature},
};

/// Memory of a download, in bytes: a piece of the file.
const DOWNLOAD_BYTES: usize = 64 << 10;

/// Memory of an archive besides the names of its files, in bytes: pieces of a file before and after
/// deflating, and the state of the compressor.
const ARCHIVE_BYTES: usize = 512 << 10;

/// Memory of a notebook or script, in bytes: a run, and a piece of a picture. The session holds the memory of
/// the runs.
const RECORD_BYTES: usize = 512 << 10;

/// `GET /files/{session}/{path}`: one file; for an upload URL, the form that uploads the file.
pub(super) async fn one(
    State(shared): State<Shared>,
    path: std::result::Result<Path<(String, String)>, PathRejection>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response> {
    // An invalid name is answered like a missing file.
    let path = path.ok();
    let named = path.as_ref().and_then(|Path((session, path))| {
        let (session, any) = session_and_signature(session);
        Some((session.parse::<SessionId>().ok()?, any, DataPath::relative(path).ok()?))
    });
    let Some((id, any, path)) = named else {
        // Unauthenticated callers get 401 before any detail.
        shared.access.principal(&headers)?;
        return Err(ApiError::NoFile);
    };
    let query = Query::of(&uri);
    let is_for_upload = any.is_none() && query.is_for_upload();
    let grant = if is_for_upload {
        Grant::Write { path: &path, existing: query.existing() }
    } else {
        Grant::Read(Some(&path))
    };
    let asked = Asked { headers: &headers, uri: &uri, any };
    let sessions = shared.access.granted(&shared.sessions, asked, &id, &[grant]).await?;
    if is_for_upload {
        return Ok(upload::page(&id, &path, sessions.config().max_upload));
    }
    let memory = shared.memory_for(sessions.caller(), DOWNLOAD_BYTES).await?;
    let file = match archived(&sessions, &id).await {
        Some(archived) => Source::Archived(archived.file(&path).ok_or(ApiError::NoFile)?),
        None => Source::Live(
            sessions.perform(&id, Open { path: path.into() }).await.map_err(ApiError::Gone)?,
        ),
    };
    let of = file.path().to_text();
    let answer = answer(file, &method, &headers, shared).await?;
    let answer = audited::download(&sessions, (&id, &of), &method, answer)?;
    Ok(answer.map(|body| holding(body, memory)))
}

/// `GET /files/{session}/`: all files, as an archive or, without a format, as a list; for a browser, the page
/// that shows them.
pub(super) async fn all(
    State(shared): State<Shared>,
    Extension(base): Extension<Base>,
    id: std::result::Result<Path<String>, PathRejection>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response> {
    let query = Query::of(&uri);
    if query.format.is_none() && viewer::is_wanted(&headers) {
        return Ok(viewer::page().await);
    }
    let id = viewer::session(id, &shared, &headers)?;
    let format = Format::named(query.format.as_deref());
    // The page's URL (`Look`) also allows the list and the runs, because the page shows them.
    let grants = match format {
        Some(Format::List) => &[Grant::Read(None), Grant::Look][..],
        Some(Format::Record(_)) => &[Grant::Look],
        Some(Format::Archive(_)) | None => &[Grant::Read(None)],
    };
    let asked = Asked { headers: &headers, uri: &uri, any: None };
    let sessions = shared.access.granted(&shared.sessions, asked, &id, grants).await?;
    let Some(format) = format else {
        let why = "The format is one of zip, tar, ipynb, py and json.";
        return Err(ApiError::refused(StatusCode::BAD_REQUEST, "invalid_argument", why));
    };
    let answer = Box::pin(all_as(format, (&shared, &base), &sessions, id.clone())).await?;
    // A list has only names and sizes, so it is not audited as a download.
    match query.format.as_deref().filter(|_| !matches!(format, Format::List)) {
        Some(of) => Ok(audited::download(&sessions, (&id, of), &method, answer)?),
        None => Ok(answer),
    }
}

/// The caller's session of this name, if it is archived and not live.
pub(super) async fn archived(sessions: &Sessions, id: &SessionId) -> Option<ArchivedSession> {
    sessions.archived()?.find(id).await
}

/// All of a session's files or runs, in this format.
async fn all_as(
    format: Format,
    (shared, base): (&Shared, &Base),
    sessions: &Sessions,
    id: SessionId,
) -> Result<Response> {
    if let Some(archived) = archived(sessions, &id).await {
        return all_archived((shared, base), sessions, (id, archived), format).await;
    }
    let look = sessions.awake(&id).await.map_err(ApiError::Gone)?.info();
    let number = look.number;
    let sessions = sessions.only(number);
    if let Format::Record(kind) = format {
        let memory = shared.memory_for(sessions.caller(), RECORD_BYTES).await?;
        let named = named(&id, kind.mime(), kind.extension());
        let files = FilesOf::Live(sessions, id.clone());
        let body = Body::from_stream(notebook::stream(kind, files, id, look.history));
        return Ok((named, holding(body, memory)).into_response());
    }
    let mut memory = shared.memory_for_listing(sessions.caller()).await?;
    let listing = sessions.perform(&id, List).await.map_err(ApiError::Gone)?;
    let Format::Archive(kind) = format else {
        let urls = shared.urls.for_client(Some(base));
        let object = json!({ "session_id": id.as_str() });
        let answer = with_artifacts(object, listing.into(), memory, (urls, id, Some(number)));
        return Ok(([(header::VARY, "Accept")], answer).into_response());
    };
    if listing.more {
        let why = "There are too many files for one archive. Create an archive with run_python \
                   instead.";
        return Err(ApiError::refused(StatusCode::PAYLOAD_TOO_LARGE, "artifact_too_large", why));
    }
    let named = named(&id, kind.mime(), kind.extension());
    memory.shrink_to(listing.bytes() + ARCHIVE_BYTES);
    memory.keep();
    let body = archive::stream(kind, FilesOf::Live(sessions, id), listing.artifacts);
    Ok((named, Body::from_stream(body)).into_response())
}

/// All files or runs of an archived session, which this does not restore.
async fn all_archived(
    (shared, base): (&Shared, &Base),
    sessions: &Sessions,
    (id, archived): (SessionId, ArchivedSession),
    format: Format,
) -> Result<Response> {
    let mut memory = shared.memory_for_listing(sessions.caller()).await?;
    let more = archived.manifest.more_files;
    let listing = Listing { artifacts: archived.manifest.artifacts(), more };
    match format {
        Format::Record(kind) => {
            let bytes = RECORD_BYTES + archived.history_bytes();
            let memory = shared.memory_for(sessions.caller(), bytes).await?;
            let history = archived.history().await;
            if history.runs().len() == 0 {
                let why = "The session is archived without runs. Its files are there.";
                return Err(ApiError::not_found(why));
            }
            let named = named(&id, kind.mime(), kind.extension());
            let files = FilesOf::Archived(Box::new(archived));
            let body = Body::from_stream(notebook::stream(kind, files, id, history));
            Ok((named, holding(body, memory)).into_response())
        }
        Format::List => {
            let urls = shared.urls.for_client(Some(base));
            let object = json!({ "session_id": id.as_str(), "archived": true });
            let links = (urls, id, archived.number);
            let answer = with_artifacts(object, listing.into(), memory, links);
            Ok(([(header::VARY, "Accept")], answer).into_response())
        }
        Format::Archive(kind) => {
            let named = named(&id, kind.mime(), kind.extension());
            memory.shrink_to(listing.bytes() + ARCHIVE_BYTES);
            memory.keep();
            let session = FilesOf::Archived(Box::new(archived));
            let body = archive::stream(kind, session, listing.artifacts);
            Ok((named, Body::from_stream(body)).into_response())
        }
    }
}

/// An open file, of a live session or in the archive.
enum Source {
    Live(FileReader),
    Archived(ArchivedFile),
}

impl Source {
    fn path(&self) -> FilePath {
        match self {
            Self::Live(file) => file.path().clone(),
            Self::Archived(file) => file.path().clone().into(),
        }
    }

    fn stamp(&self) -> Stamp {
        match self {
            Self::Live(file) => file.stamp(),
            Self::Archived(file) => file.stamp(),
        }
    }

    fn pieces(
        self,
        range: Range<u64>,
        pieces: PieceSizes,
    ) -> BoxStream<'static, std::result::Result<Bytes, BoxError>> {
        match self {
            Self::Live(file) => file.range(range, pieces).map_err(BoxError::from).boxed(),
            Self::Archived(file) => file.range(range).map_err(BoxError::from).boxed(),
        }
    }
}

/// The format of a session's files or runs.
#[derive(Debug, Clone, Copy)]
enum Format {
    List,
    Archive(archive::Kind),
    Record(notebook::Kind),
}

impl Format {
    fn named(name: Option<&str>) -> Option<Self> {
        Some(match name {
            None | Some("json") => Self::List,
            Some("zip") => Self::Archive(archive::Kind::Zip),
            Some("tar") => Self::Archive(archive::Kind::Tar),
            Some("ipynb") => Self::Record(notebook::Kind::Notebook),
            Some("py") => Self::Record(notebook::Kind::Script),
            Some(_) => return None,
        })
    }
}

/// Headers of an archive, a notebook or a script.
fn named(id: &SessionId, mime: &str, extension: &str) -> [(header::HeaderName, String); 2] {
    let name = format!("{id}.{extension}");
    [
        (header::CONTENT_TYPE, mime.to_owned()),
        (header::CONTENT_DISPOSITION, content_disposition(&name, mime)),
    ]
}

async fn answer(
    file: Source,
    method: &Method,
    asked: &HeaderMap,
    shared: Shared,
) -> Result<Response> {
    let version = Version::of(&file.stamp());
    let size = version.size;
    let answer = version.answer(method, asked);
    let mut headers = HeaderMap::new();
    headers.typed_insert(version.etag);
    headers.typed_insert(LastModified::from(version.modified));
    headers.typed_insert(AcceptRanges::bytes());
    let (status, range) = match answer {
        Answer::NotModified => return Ok((StatusCode::NOT_MODIFIED, headers).into_response()),
        Answer::AnotherVersion => {
            let why = "The file is no longer the version that the request asks for.";
            let status = StatusCode::PRECONDITION_FAILED;
            return Err(ApiError::refused(status, "precondition_failed", why));
        }
        Answer::NoSuchBytes => {
            headers.typed_insert(ContentRange::unsatisfied_bytes(size));
            let why = format!("The file has {size} bytes.");
            let status = StatusCode::RANGE_NOT_SATISFIABLE;
            let refusal = ApiError::refused(status, "range_not_satisfiable", why);
            return Ok((headers, refusal).into_response());
        }
        Answer::Whole => (StatusCode::OK, 0..size),
        Answer::Part(range) => {
            let within = ContentRange::bytes(range.clone(), size)
                .expect("`Answer::Part` is within the file");
            headers.typed_insert(within);
            (StatusCode::PARTIAL_CONTENT, range)
        }
    };
    headers.typed_insert(ContentLength(range.end - range.start));
    let mime = file.path().mime();
    let disposition = content_disposition(file.path().name(), mime);
    let is_from_start = range.start == 0;
    // For HEAD, the router sends no body, and an unread stream requests no pieces.
    let mut pieces = file.pieces(range, shared.pieces);
    let mut content_type = mime.to_owned();
    let mut start = None;
    // Many texts have a type such as `application/json` or no known one.
    if (mime.starts_with("text/") || mime.starts_with("application/")) && is_from_start {
        start = pieces.next().await;
        let sniffed =
            start.iter().flatten().next().map_or(&[][..], |it| &it[..it.len().min(SNIFFED)]);
        let encoding = Encoding::of(sniffed);
        if mime.starts_with("text/") || (encoding.name().is_some() && is_text(sniffed)) {
            content_type = format!("{mime}; charset={}", encoding.charset());
        }
    }
    let named = [(header::CONTENT_TYPE, content_type), (header::CONTENT_DISPOSITION, disposition)];
    let body = Body::from_stream(futures::stream::iter(start).chain(pieces));
    Ok((status, headers, named, body).into_response())
}
