//! `PUT /files/{session}/{path}` and multipart `POST`: files into a sandbox, streamed.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    Json,
    body::{Body, BodyDataStream, Bytes},
    extract::{Extension, Path, State, rejection::PathRejection},
    http::{HeaderMap, StatusCode, Uri, header},
    response::{Html, IntoResponse, Response},
};
use futures::{Stream, StreamExt, TryStreamExt};
use headers::{ContentLength, HeaderMapExt};
use serde_json::{Value, json};
use tokio::{
    sync::{Mutex, oneshot},
    time::timeout,
};

use super::{Shared, access::Query, failure, refuse};
use crate::{
    addresses::{Addresses, Base, Grant, Incarnation},
    artifact::DataPath,
    error::{Error, Result},
    session::SessionId,
    sessions::{Content, Opened, Sessions, Uploaded},
    trace::TraceParent,
};

/// Memory that an upload holds, in bytes: pieces on their way in and out, and what is between the files of
/// a form.
const UPLOAD: usize = MAX_BETWEEN + (256 << 10);

type PathOf<T> = std::result::Result<Path<T>, PathRejection>;

/// The body is the file.
pub(super) async fn put(
    State(shared): State<Shared>,
    Extension(base): Extension<Base>,
    path: PathOf<(String, String)>,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let rest = Rest::new(&headers, body);
    let addresses = shared.addresses.for_client(Some(&base));
    let done = async {
        let place = place(&shared, path, &uri, &headers)?;
        let _memory = shared.memory_for(place.sessions.caller(), UPLOAD).await?;
        let limit = shared.sessions.config().max_upload;
        check_length(&headers, limit)?;
        let content = limited(rest.pieces().map_err(|_| broken_off()), limit);
        let uploaded = place.write(content).await?;
        let files = [(place.path, uploaded)];
        Ok(answer(&addresses, &place.sessions, &place.id, &files, |files| files[0].clone()))
    };
    rest.finish(done.await).await
}

/// A form's files, into a session that is named or a new one.
pub(super) async fn post(
    State(shared): State<Shared>,
    Extension(base): Extension<Base>,
    path: PathOf<HashMap<String, String>>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let rest = Rest::new(&headers, body);
    let addresses = shared.addresses.for_client(Some(&base));
    let begun = || {
        let sessions = shared.sessions.seen_by(shared.access.principal(&headers)?);
        let Ok(Path(path)) = path else { return Err(Error::InvalidSessionId.into()) };
        let id = path
            .get("session")
            .map(|id| id.parse::<SessionId>())
            .transpose()
            .map_err(Error::from)?;
        Ok((sessions, id, form(&headers, &rest)?))
    };
    let (sessions, id, form) = match begun() {
        Ok(begun) => begun,
        Err(refused) => return rest.finish(Err(refused)).await,
    };
    // A task of its own: whoever leaves while the session starts would leave it behind.
    let (sender, done) = oneshot::channel();
    let is_new = id.is_none();
    let only_new = only_new(&headers);
    let task = (shared.clone(), sessions.clone());
    tokio::spawn(async move {
        let (shared, sessions) = task;
        let stored = store(&shared, &sessions, id, form, only_new).await;
        if let Err(Ok((id, _))) = sender.send(stored)
            && is_new
        {
            let _ = sessions.close(&id).await;
        }
    });
    let done = match done.await {
        Ok(stored) => stored,
        Err(_) => Err(Error::internal(&"a form's task ended early").into()),
    };
    let done = done.map(|(id, files)| {
        answer(&addresses, &sessions, &id, &files, |files| json!({ "files": files }))
    });
    rest.finish(done).await
}

/// Writes a form's files, each by itself whole or not at all. A new session whose name nobody would
/// hear is closed.
async fn store(
    shared: &Shared,
    sessions: &Sessions,
    id: Option<SessionId>,
    mut form: Form,
    only_new: bool,
) -> std::result::Result<(SessionId, Vec<(DataPath, Uploaded)>), Refused> {
    let (is_new, mut used, mut done) = (id.is_none(), id, vec![]);
    let storing = async {
        let _memory = shared.memory_for(sessions.caller(), UPLOAD).await?;
        while let Some((name, content)) = form.next_file(shared).await? {
            let path = DataPath::relative(&name).map_err(bad_name)?;
            let (Opened { id, .. }, uploaded) =
                sessions.upload(used.clone(), path.clone(), content, !only_new).await;
            log(sessions, &id, &uploaded, form.trace.as_ref());
            used = Some(id);
            done.push((path, uploaded.map_err(|error| refused(error, only_new))?));
        }
        if done.is_empty() { Err(no_file().into()) } else { Ok(()) }
    };
    let stored: std::result::Result<(), Refused> = storing.await;
    match (stored, used) {
        (Ok(()), Some(id)) => Ok((id, done)),
        (stored, used) => {
            if let Some(id) = used.filter(|_| is_new) {
                let _ = sessions.close(&id).await;
            }
            Err(stored.err().unwrap_or_else(|| no_file().into()))
        }
    }
}

/// A form's file, to where an address says.
pub(super) async fn post_to(
    State(shared): State<Shared>,
    path: PathOf<(String, String)>,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let rest = Rest::new(&headers, body);
    let done = async {
        let place = place(&shared, path, &uri, &headers)?;
        let _memory = shared.memory_for(place.sessions.caller(), UPLOAD).await?;
        let mut form = form(&headers, &rest)?;
        let (_, content) = form.next_file(&shared).await?.ok_or_else(no_file)?;
        place.write(content).await?;
        Ok(ours(include_str!("uploaded.html")))
    };
    rest.finish(done.await).await
}

/// Where a request may write.
struct Place {
    sessions: Sessions,
    id: SessionId,
    path: DataPath,
    overwrite: bool,
    only_new: bool,
    trace: Option<TraceParent>,
}

fn place(
    shared: &Shared,
    path: PathOf<(String, String)>,
    uri: &Uri,
    headers: &HeaderMap,
) -> std::result::Result<Place, Refused> {
    let named = named(path).or_else(|refused| {
        // Nor need anybody hear that who may not come in.
        shared.access.principal(headers)?;
        Err(refused)
    });
    let (id, path) = named?;
    let query = Query::of(uri);
    let signed_for = query.overwrite.as_deref() == Some("true");
    let grant = Grant::Write { path: &path, overwrite: signed_for };
    let sessions = shared.access.granted(&shared.sessions, headers, uri, &id, &[grant])?;
    if headers.contains_key(header::CONTENT_RANGE) {
        // RFC 9110, section 14.5: a part must never be taken for the whole.
        let why = "Send the whole file: a part of it cannot be written.";
        return Err(Error::InvalidArgument(why.into()).into());
    }
    let only_new = only_new(headers);
    // What HTTP means by PUT, unless the URL says otherwise; with a signature, what that is good for.
    let by_signature = query.has_signature() && !headers.contains_key(header::AUTHORIZATION);
    let replaces = !by_signature && query.overwrite.is_none() || signed_for;
    let overwrite = !only_new && replaces;
    let trace = TraceParent::of(headers);
    Ok(Place { sessions, id, path, overwrite, only_new, trace })
}

fn named(path: PathOf<(String, String)>) -> std::result::Result<(SessionId, DataPath), Refused> {
    let Ok(Path((id, path))) = path else {
        return Err(Error::InvalidFilename("The filename is not UTF-8.".into()).into());
    };
    Ok((id.parse().map_err(Error::from)?, DataPath::relative(&path).map_err(bad_name)?))
}

impl Place {
    async fn write(&self, content: Content) -> std::result::Result<Uploaded, Refused> {
        let (id, path) = (self.id.clone(), self.path.clone());
        let (opened, done) = self.sessions.upload(Some(id), path, content, self.overwrite).await;
        log(&self.sessions, &opened.id, &done, self.trace.as_ref());
        done.map_err(|error| refused(error, self.only_new))
    }
}

/// What a call of a tool would leave in the log.
fn log(sessions: &Sessions, id: &SessionId, done: &Result<Uploaded>, trace: Option<&TraceParent>) {
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

fn only_new(headers: &HeaderMap) -> bool {
    headers.get(header::IF_NONE_MATCH).is_some_and(|value| value == "*")
}

/// That a file is there is a failed condition if there was one.
fn refused(error: Error, only_new: bool) -> Refused {
    match error {
        Error::FileExists(name) if only_new => {
            let why = format!("{name} already exists.");
            refuse(StatusCode::PRECONDITION_FAILED, "file_exists", &why).into()
        }
        Error::FileExists(name) => {
            let why = format!(
                "{name} already exists, and this URL does not replace files. upload_file with \
                 overwrite=true gives one that does."
            );
            refuse(StatusCode::CONFLICT, "file_exists", &why).into()
        }
        error => error.into(),
    }
}

fn no_file() -> Error {
    Error::InvalidArgument("The form has no file.".into())
}

/// What a person sees who opens the address of an upload: a form that puts a file there.
pub(super) fn page() -> Response {
    ours(include_str!("upload.html"))
}

/// A page of our own, which may do no more than it has to.
fn ours(page: &'static str) -> Response {
    const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; \
                          frame-ancestors 'none'; base-uri 'none'";
    // Without a referrer, browsers would send the form as from nowhere.
    let headers =
        [(header::CONTENT_SECURITY_POLICY, POLICY), (header::REFERRER_POLICY, "same-origin")];
    (headers, Html(page)).into_response()
}

fn bad_name(why: &str) -> Error {
    Error::InvalidFilename(format!("The filename {why}."))
}

fn broken_off() -> Error {
    Error::InvalidArgument("The upload broke off. Nothing was written.".into())
}

/// Before a byte is read, if the client says how many there are.
fn check_length(headers: &HeaderMap, limit: u64) -> Result<()> {
    match headers.typed_get::<ContentLength>() {
        Some(ContentLength(size_bytes)) if size_bytes > limit => {
            Err(Error::UploadTooLarge { size_bytes, limit })
        }
        _ => Ok(()),
    }
}

/// Ends with an error where there is more than may be.
fn limited(body: impl Stream<Item = Result<Bytes>> + Send + 'static, limit: u64) -> Content {
    let mut size_bytes = 0;
    Content::new(body.map(move |piece| {
        let piece = piece?;
        size_bytes += piece.len() as u64;
        if size_bytes > limit {
            Err(Error::UploadTooLarge { size_bytes, limit })
        } else {
            Ok(piece)
        }
    }))
}

/// Most bytes of a form that are neither a file's nor the start of one.
const MAX_BETWEEN: usize = 256 << 10;

/// A form that is read.
struct Form {
    parts: multer::Multipart<'static>,
    /// Bytes since a file was last heard of. The reader holds them, and looks through all of them
    /// again with each piece.
    between: Arc<AtomicUsize>,
    trace: Option<TraceParent>,
}

fn form(headers: &HeaderMap, rest: &Rest) -> std::result::Result<Form, Refused> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let boundary = multer::parse_boundary(kind.unwrap_or_default()).map_err(|_| {
        let why = "Send the files as multipart/form-data, or one file as the body of a PUT.";
        Refused::from(refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", why))
    })?;
    let between = Arc::<AtomicUsize>::default();
    let count = between.clone();
    let pieces = rest.pieces().map(move |piece| {
        let piece = piece.map_err(|_| "it broke off")?;
        let before = count.fetch_add(piece.len(), Ordering::Relaxed);
        if before > MAX_BETWEEN { Err("too much of it is no file") } else { Ok(piece) }
    });
    Ok(Form {
        parts: multer::Multipart::new(pieces, boundary),
        between,
        trace: TraceParent::of(headers),
    })
}

impl Form {
    /// The next part that is a file: its name and its content.
    async fn next_file(&mut self, shared: &Shared) -> Result<Option<(String, Content)>> {
        while let Some(field) = self.parts.next_field().await.map_err(bad_form)? {
            let name = field.file_name().filter(|name| !name.is_empty()).map(str::to_owned);
            let between = self.between.clone();
            let mut pieces = field.map_err(bad_form).inspect(move |_| {
                between.store(0, Ordering::Relaxed);
            });
            let Some(name) = name else {
                while pieces.try_next().await?.is_some() {}
                continue;
            };
            let limit = shared.sessions.config().max_upload;
            return Ok(Some((name, limited(pieces, limit))));
        }
        Ok(None)
    }
}

fn bad_form(error: multer::Error) -> Error {
    Error::InvalidArgument(format!("The form cannot be read: {error}."))
}

fn answer(
    addresses: &Addresses,
    sessions: &Sessions,
    id: &SessionId,
    files: &[(DataPath, Uploaded)],
    shape: impl FnOnce(&[Value]) -> Value,
) -> Response {
    let number = sessions.number(id);
    let rendered: Vec<_> = files
        .iter()
        .map(|(path, uploaded)| {
            let mut file = json!({
                "path": path.absolute(),
                "filename": path.as_str(),
                "size_bytes": uploaded.size_bytes,
                "mime_type": path.mime(),
            });
            if let Some(number) = number {
                let session = Incarnation { id, number };
                file["download_url"] = addresses.download(session, path).into();
            }
            file
        })
        .collect();
    let mut body = shape(&rendered);
    body["session_id"] = id.as_str().into();
    let all_replaced = files.iter().all(|(_, uploaded)| uploaded.replaced);
    let status = if all_replaced { StatusCode::OK } else { StatusCode::CREATED };
    (status, Json(body)).into_response()
}

/// Why nothing was written.
struct Refused(Box<Response>);

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self(Box::new(failure(&error)))
    }
}

impl From<Response> for Refused {
    fn from(response: Response) -> Self {
        Self(Box::new(response))
    }
}

impl From<Box<Response>> for Refused {
    fn from(response: Box<Response>) -> Self {
        Self(response)
    }
}

/// A body, and what of it has not been read when it is refused.
#[derive(Clone)]
pub(super) struct Rest {
    body: Arc<Mutex<BodyDataStream>>,
    /// Nothing more is sent unless we ask for it, which is what reading does.
    waits: Arc<AtomicBool>,
}

impl Rest {
    pub(super) fn new(headers: &HeaderMap, body: Body) -> Self {
        Self {
            body: Arc::new(Mutex::new(body.into_data_stream())),
            waits: Arc::new(AtomicBool::new(headers.contains_key(header::EXPECT))),
        }
    }

    fn pieces(&self) -> impl Stream<Item = std::result::Result<Bytes, axum::Error>> + use<> {
        futures::stream::unfold(self.clone(), |rest| async {
            rest.waits.store(false, Ordering::Relaxed);
            // A form's reader takes all that is ready, and the end, before it looks at any of it.
            tokio::task::yield_now().await;
            let piece = rest.body.lock().await.next().await?;
            Some((piece, rest))
        })
    }

    async fn finish(&self, done: std::result::Result<Response, Refused>) -> Response {
        match done {
            Ok(response) => response,
            Err(Refused(response)) => {
                self.linger().await;
                *response
            }
        }
    }

    /// Takes some of what is still sent. A client that is cut off while it writes often does not read
    /// why.
    pub(super) async fn linger(&self) {
        const PATIENCE: Duration = Duration::from_secs(2);
        const MOST: usize = 64 << 20;
        if self.waits.load(Ordering::Relaxed) {
            return;
        }
        let mut taken = 0;
        let _ = timeout(PATIENCE, async {
            while let Some(Ok(piece)) = self.body.lock().await.next().await {
                taken += piece.len();
                if taken > MOST {
                    return;
                }
            }
        })
        .await;
    }
}
