//! A JSON object with a long list, rendered while it is sent: a listing of 16,000 files takes 40 MB with all
//! URLs, and its reader may be slow.

use std::{io, sync::Arc};

use axum::{
    body::{Body, Bytes},
    http::header,
    response::{IntoResponse, Response},
};
use model::{Artifact, SessionId};
use serde_json::Value;

use crate::{
    budget::Lease,
    listing::artifact_json_with_mtime,
    sessions::Listing,
    signed_urls::{NumberedSession, SignedUrls},
};

/// Bytes that are rendered at a time.
const PIECE_BYTES: usize = 32 << 10;

/// The object with a listing's files in its field `artifacts`. The files of a session that has a number have URLs. The
/// answer holds only the listing's memory until it has been sent.
pub(super) fn with_artifacts(
    mut object: Value,
    listing: Arc<Listing>,
    mut lease: Lease,
    (urls, id, number): (SignedUrls, SessionId, Option<u64>),
) -> Response {
    if listing.more {
        object["artifacts_omitted"] = 1.into();
    }
    let head = object.to_string();
    lease.shrink_to(listing.bytes() + head.len() + PIECE_BYTES);
    // The closing brace follows the list.
    let mut piece = head[..head.len() - 1].to_owned();
    if piece.len() > 1 {
        piece.push(',');
    }
    piece.push_str("\"artifacts\":[");
    let render = move |file: &Artifact| {
        let links = number.map(|number| (&urls, NumberedSession { id: &id, number }));
        artifact_json_with_mtime(links, file).to_string()
    };
    let state = (listing, lease, render, Some(piece), 0);
    let pieces = futures::stream::unfold(state, async |(listing, lease, render, piece, next)| {
        let mut next: usize = next;
        let mut piece = piece?;
        while next < listing.artifacts.len() && piece.len() < PIECE_BYTES {
            if next > 0 {
                piece.push(',');
            }
            piece.push_str(&render(&listing.artifacts[next]));
            next += 1;
        }
        let is_last = next == listing.artifacts.len();
        if is_last {
            piece.push_str("]}");
        }
        lease.moved(piece.len());
        let more = (!is_last).then(String::new);
        Some((io::Result::Ok(Bytes::from(piece)), (listing, lease, render, more, next)))
    });
    ([(header::CONTENT_TYPE, "application/json")], Body::from_stream(pieces)).into_response()
}
