//! `/mcp`: reads a message of the protocol into leased memory, and passes it to the service.

use axum::{
    body::{Body, Bytes},
    extract::{Request, State},
    response::Response,
};
use bytes::BytesMut;
use futures::StreamExt;
use headers::{ContentLength, HeaderMapExt};

use super::{
    body::holding,
    error::{ApiError, Result},
    shared::Shared,
    upload::UnreadBody,
};
use crate::{
    budget::{Exhausted, Lease},
    error::Error,
    request::RequestMemory,
};

/// Answers one MCP request.
///
/// The body is read here, because whether it is complete is a question of HTTP.
pub(super) async fn mcp(State(shared): State<Shared>, request: Request) -> Result<Response> {
    let Some(service) = &shared.mcp else {
        let why = "This server speaks MCP over standard input and output.";
        return Err(ApiError::not_found(why));
    };
    let principal = shared.access.principal(request.headers())?;
    let max = service.longest_request();
    let too_large = || {
        let config = shared.sessions.config();
        let (limit, most) = (config.max_message_upload(), config.max_upload);
        ApiError::Failed(Error::MessageTooLarge { limit, most })
    };
    let length = request.headers().typed_get::<ContentLength>();
    let length = length.map(|ContentLength(length)| usize::try_from(length).unwrap_or(usize::MAX));
    let (head, body) = request.into_parts();
    if length.is_some_and(|length| length > max) {
        UnreadBody::new(&head.headers, body).drain().await;
        return Err(too_large());
    }
    let mut lease = shared.memory.lease(&principal);
    let body = receive(body, length, max, &mut lease).await.map_err(|error| match error {
        NotReceived::TooLong => too_large(),
        NotReceived::NoMemory => ApiError::NoMemory,
        NotReceived::BrokenOff => ApiError::bad_request("The message ended early."),
    })?;
    lease.keep();
    let memory = RequestMemory::new(lease);
    let request = Request::from_parts(head, body);
    let answer = service.answer(principal, memory.clone(), request).await;
    // The answer holds the memory until it has been sent.
    Ok(answer.map_err(|Exhausted| ApiError::NoMemory)?.map(|body| holding(Body::new(body), memory)))
}

/// The reason why a message is not complete.
enum NotReceived {
    TooLong,
    NoMemory,
    BrokenOff,
}

impl From<Exhausted> for NotReceived {
    fn from(_: Exhausted) -> Self {
        Self::NoMemory
    }
}

/// Reads a body. Its memory is leased before it arrives: all of it if its length is known, otherwise step by step.
async fn receive(
    body: Body,
    length: Option<usize>,
    max: usize,
    lease: &mut Lease,
) -> std::result::Result<Bytes, NotReceived> {
    const STEP: usize = 64 << 10;
    const DOUBLES_TO: usize = 1 << 20;
    let mut leased = length.unwrap_or(0);
    lease.grow(leased).await?;
    let mut whole = BytesMut::with_capacity(leased);
    let mut pieces = body.into_data_stream();
    loop {
        let piece = tokio::select! {
            piece = pieces.next() => piece,
            () = lease.revoked() => return Err(NotReceived::NoMemory),
        };
        let Some(piece) = piece else { return Ok(whole.freeze()) };
        let piece = piece.map_err(|_| NotReceived::BrokenOff)?;
        let len = whole.len() + piece.len();
        if len > max {
            return Err(NotReceived::TooLong);
        }
        // Without a known length the buffer grows by doubling: the lease includes its spare room, at most 1 MiB.
        let takes = if length.is_some() { len } else { len + len.min(DOUBLES_TO) };
        if takes > leased {
            let step = (takes - leased).max(STEP);
            lease.grow(step).await?;
            leased += step;
        }
        if len > whole.capacity() && len > DOUBLES_TO {
            // Doubling would hold a long message twice; reserved memory costs nothing until it is written.
            whole.reserve(max - whole.len());
        }
        lease.moved(piece.len());
        whole.extend_from_slice(&piece);
    }
}
