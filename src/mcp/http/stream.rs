//! Answers as streams of events, some of which begin before there is an answer.

use std::{convert::Infallible, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{Stream, StreamExt, future::BoxFuture, stream::BoxStream};
use http_body_util::{BodyExt, BodyStream, StreamBody, combinators::BoxBody};
use hyper::{
    Response,
    body::Frame,
    header::{CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderValue},
};
use tokio::time::timeout;

use crate::request::Answer;

/// Time between comments that keep an answer alive that has begun.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);

const EVENT_STREAM: &str = "text/event-stream";

pub(super) type Answering = BoxFuture<'static, Response<BoxBody<Bytes, Infallible>>>;
pub(super) type Events = BoxStream<'static, Bytes>;

/// Whether a body is of this type.
pub(super) fn has_type(headers: &HeaderMap, wanted: &str) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| kind.starts_with(wanted))
}

/// An answer of rmcp's as it goes back.
pub(super) fn answered(
    response: Response<BoxBody<Bytes, Infallible>>,
    in_use: Option<Arc<()>>,
) -> Answer {
    if !has_type(response.headers(), EVENT_STREAM) {
        return response.map(BodyExt::boxed_unsync);
    }
    let (head, body) = response.into_parts();
    let mut answer = begun(guarded(data(body), in_use));
    *answer.headers_mut() = head.headers;
    answer
}

/// The head of a stream, and its events.
pub(super) fn begun(events: Events) -> Answer {
    let frames = events.map(|event| Ok(Frame::data(event)));
    let mut response = Response::new(StreamBody::new(frames).boxed_unsync());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(EVENT_STREAM));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

/// Comments that keep the stream alive until there is an answer, and then that. Dropping it cancels the
/// call.
pub(super) fn begin(answering: Answering) -> Events {
    enum State {
        Waiting(Answering),
        Sending(Events),
    }
    let later = futures::stream::unfold(State::Waiting(answering), |state| async {
        let mut events = match state {
            State::Waiting(mut answering) => {
                match timeout(KEEP_ALIVE_INTERVAL, &mut answering).await {
                    Ok(response) => events(response).await,
                    Err(_) => return Some((keep_alive(), State::Waiting(answering))),
                }
            }
            State::Sending(events) => events,
        };
        Some((events.next().await?, State::Sending(events)))
    });
    futures::stream::once(async { keep_alive() }).chain(later).boxed()
}

fn keep_alive() -> Bytes {
    Bytes::from_static(b": working\n\n")
}

/// An answer's events; one that is JSON is one event.
async fn events(response: Response<BoxBody<Bytes, Infallible>>) -> Events {
    let is_stream = has_type(response.headers(), EVENT_STREAM);
    let body = response.into_body();
    if is_stream {
        return data(body);
    }
    let json = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let event = [b"data: ", &json[..], b"\n\n"].concat();
    let is_json = serde_json::from_slice::<serde::de::IgnoredAny>(&json).is_ok();
    futures::stream::iter(is_json.then(|| Bytes::from(event))).boxed()
}

fn data(body: BoxBody<Bytes, Infallible>) -> Events {
    BodyStream::new(body).filter_map(async |frame| frame.ok()?.into_data().ok()).boxed()
}

/// While the stream is open, its MCP session is in use.
pub(super) fn guarded(
    events: impl Stream<Item = Bytes> + Send + 'static,
    in_use: Option<Arc<()>>,
) -> Events {
    events
        .inspect(move |_| {
            let _ = &in_use;
        })
        .boxed()
}
