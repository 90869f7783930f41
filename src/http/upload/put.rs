//! `PUT /files/{session}/{path}`: the body is the file.

use axum::{
    body::{Body, Bytes},
    extract::{Extension, State},
    http::{HeaderMap, Uri},
    response::Response,
};
use futures::{Stream, StreamExt, TryStreamExt};
use headers::{ContentLength, HeaderMapExt};

use super::{
    UPLOAD_BYTES,
    drain::UnreadBody,
    target::{NamedPath, answer, rendered, target},
};
use crate::{
    content::Content,
    error::{Error, Result},
    http::{access::Asked, error, shared::Shared},
    signed_urls::Base,
};

/// Writes the body as a file.
pub(in crate::http) async fn put(
    State(shared): State<Shared>,
    Extension(base): Extension<Base>,
    path: NamedPath,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> error::Result<Response> {
    let body = UnreadBody::new(&headers, body);
    let urls = shared.urls.for_client(Some(&base));
    let done = async {
        let target =
            target(&shared, path, Asked { headers: &headers, uri: &uri, any: None }).await?;
        let _memory = shared.memory_for(target.sessions.caller(), UPLOAD_BYTES).await?;
        let limit = target.sessions.config().max_upload;
        check_length(&headers, limit)?;
        let content = limited(body.pieces().map_err(|_| broken_off()), limit);
        let uploaded = target.write(content).await?;
        let files = [(target.path, uploaded)];
        let shown = rendered(&urls, &target.sessions, &target.id, &files).await.remove(0);
        Ok(answer(&target.id, &files, shown))
    };
    body.finish(done.await).await
}

fn broken_off() -> Error {
    Error::InvalidArgument("The upload ended early. Nothing was written.".into())
}

/// Checks the length that the client declares, before a byte is read.
fn check_length(headers: &HeaderMap, limit: u64) -> Result<()> {
    match headers.typed_get::<ContentLength>() {
        Some(ContentLength(size_bytes)) if size_bytes > limit => {
            Err(Error::UploadTooLarge { size_bytes, limit })
        }
        _ => Ok(()),
    }
}

/// Ends with an error if the body is longer than the limit.
pub(super) fn limited(
    body: impl Stream<Item = Result<Bytes>> + Send + 'static,
    limit: u64,
) -> Content {
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
