//! Multipart `POST`: writes a form's files into a named session or a new one, or to the path that a URL names.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use axum::{
    body::Body,
    extract::{Extension, Path, State, rejection::PathRejection},
    http::{HeaderMap, StatusCode, Uri, header},
    response::Response,
};
use futures::{StreamExt, TryStreamExt};
use model::{DataPath, Existing, SessionId};
use serde_json::json;
use tokio::sync::oneshot;

use super::{
    MAX_BETWEEN, UPLOAD_BYTES,
    drain::UnreadBody,
    pages,
    put::limited,
    target::{Condition, NamedPath, answer, bad_name, refused, rendered, target, write},
};
use crate::{
    content::Content,
    error::Error,
    http::{
        access::Asked,
        error::{ApiError, Result},
        shared::Shared,
    },
    sessions::{Opened, Sessions, Upload, Uploaded, session_name},
    signed_urls::Base,
};

/// Writes a form's files into a named session or a new one.
pub(in crate::http) async fn post(
    State(shared): State<Shared>,
    Extension(base): Extension<Base>,
    path: std::result::Result<Path<HashMap<String, String>>, PathRejection>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response> {
    let body = UnreadBody::new(&headers, body);
    let urls = shared.urls.for_client(Some(&base));
    let begun = || {
        let sessions = shared.sessions.seen_by(shared.access.principal(&headers)?);
        let Ok(Path(path)) = path else { return Err(Error::InvalidSessionId.into()) };
        let id = path.get("session").map(|id| session_name(id)).transpose()?;
        Ok((sessions, id, form(&headers, &body)?))
    };
    let (sessions, id, form) = match begun() {
        Ok(begun) => begun,
        Err(refused) => return body.finish(Err(refused)).await,
    };
    // A separate task: if the client disconnects while the session starts, the session would leak.
    let (sender, done) = oneshot::channel();
    let is_new = id.is_none();
    let task = (shared.clone(), sessions.clone());
    tokio::spawn(async move {
        let (shared, sessions) = task;
        let stored = store(&shared, &sessions, id, form).await;
        if let Err(Ok(Stored { id, .. })) = sender.send(stored)
            && is_new
        {
            let _ = sessions.close(&id).await;
        }
    });
    let done = match done.await {
        Ok(stored) => stored,
        Err(_) => Err(Error::internal(&"a form's task ended early").into()),
    };
    let done = match done {
        Ok(Stored { id, files, then }) => {
            let shown = rendered(&urls, &sessions, &id, &files).await;
            match then {
                Some(error) => Err(ApiError::AfterFiles(Box::new(error), shown)),
                None => Ok(answer(&id, &files, json!({ "files": shown }))),
            }
        }
        Err(error) => Err(error),
    };
    body.finish(done).await
}

/// The files of a form that were written.
struct Stored {
    id: SessionId,
    files: Vec<(DataPath, Uploaded)>,
    /// The error that stopped the form after these files.
    then: Option<ApiError>,
}

/// Writes a form's files, each completely or not at all. Closes a new session if the client would not learn its name.
async fn store(
    shared: &Shared,
    sessions: &Sessions,
    id: Option<SessionId>,
    mut form: Form,
) -> Result<Stored> {
    let (is_new, mut used, mut done) = (id.is_none(), id, vec![]);
    let storing = async {
        let _memory = shared.memory_for(sessions.caller(), UPLOAD_BYTES).await?;
        while let Some((name, content)) = form.next_file(sessions).await? {
            let path = DataPath::relative(&name).map_err(bad_name)?;
            let existing = Existing::overwritten_if(form.condition != Condition::OnlyNew);
            let upload = Upload { path: path.clone(), content, existing };
            let (Opened { id, .. }, uploaded) = write(sessions, used.clone(), upload).await?;
            used = Some(id);
            done.push((path, uploaded.map_err(|error| refused(error, form.condition))?));
        }
        if done.is_empty() { Err(no_file().into()) } else { Ok(()) }
    };
    let stored: Result<()> = storing.await;
    match (stored, used) {
        (Ok(()), Some(id)) => Ok(Stored { id, files: done, then: None }),
        (Err(error), Some(id)) if !is_new && !done.is_empty() => {
            Ok(Stored { id, files: done, then: Some(error) })
        }
        (stored, used) => {
            if let Some(id) = used.filter(|_| is_new) {
                let _ = sessions.close(&id).await;
            }
            Err(stored.err().unwrap_or_else(|| no_file().into()))
        }
    }
}

/// Writes a form's file to the path that a URL names.
pub(in crate::http) async fn post_to(
    State(shared): State<Shared>,
    path: NamedPath,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Result<Response> {
    let body = UnreadBody::new(&headers, body);
    let done = async {
        let target =
            target(&shared, path, Asked { headers: &headers, uri: &uri, any: None }).await?;
        let _memory = shared.memory_for(target.sessions.caller(), UPLOAD_BYTES).await?;
        let mut form = form(&headers, &body)?;
        let (_, content) = form.next_file(&target.sessions).await?.ok_or_else(no_file)?;
        target.write(content).await?;
        Ok(pages::uploaded(&target.id, &target.path))
    };
    body.finish(done.await).await
}

fn no_file() -> Error {
    Error::InvalidArgument("The form has no file.".into())
}

/// A form while it is read.
struct Form {
    parts: multer::Multipart<'static>,
    /// Bytes since the last piece of a file. The reader buffers them, and searches all of them again with each piece.
    between: Arc<AtomicUsize>,
    condition: Condition,
}

fn form(headers: &HeaderMap, body: &UnreadBody) -> Result<Form> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let boundary = multer::parse_boundary(kind.unwrap_or_default()).map_err(|_| {
        let why = "Send the files as multipart/form-data, or one file as the body of a PUT.";
        ApiError::refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", why)
    })?;
    let between = Arc::<AtomicUsize>::default();
    let count = between.clone();
    let pieces = body.pieces().map(move |piece| {
        let piece = piece.map_err(|_| "it ended early")?;
        let before = count.fetch_add(piece.len(), Ordering::Relaxed);
        if before > MAX_BETWEEN { Err("too much of it is not a file") } else { Ok(piece) }
    });
    Ok(Form {
        parts: multer::Multipart::new(pieces, boundary),
        between,
        condition: Condition::of(headers),
    })
}

impl Form {
    /// The next part that is a file: its name and its content.
    async fn next_file(
        &mut self,
        sessions: &Sessions,
    ) -> crate::error::Result<Option<(String, Content)>> {
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
            let limit = sessions.config().max_upload;
            return Ok(Some((name, limited(pieces, limit))));
        }
        Ok(None)
    }
}

fn bad_form(error: multer::Error) -> Error {
    Error::InvalidArgument(format!("The form cannot be read: {error}."))
}
