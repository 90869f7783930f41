//! Answers of rmcp in the form that the client accepts.
//!
//! Up to 2025-11-25 rmcp answers each request with a stream of events; in 2026-07-28 with JSON, or with a stream if a
//! message comes before the answer.
//!
//! ```text
//! Form::Json    waits for the answer, and takes it out of the stream
//! Form::Either  waits for the first message: the answer alone is JSON, with any other the stream goes on
//! Form::Events  waits for the head
//! ```
//!
//! An answer that takes too long begins without its content ([`begin`]).

use std::{convert::Infallible, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{FutureExt, Stream, StreamExt, future::BoxFuture, stream::BoxStream};
use http_body_util::{BodyExt, BodyStream, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    Response, StatusCode,
    body::{Body, Frame},
    header::{CONTENT_TYPE, HeaderMap, HeaderValue},
};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::form::Form;
use crate::request::{Answer, REFUSED};

/// Time between signs of life of an answer that has begun.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);

const EVENT_STREAM: &str = "text/event-stream";

pub(super) const JSON: &str = "application/json";

/// Message for a call that ends without an answer.
const NO_ANSWER: &str =
    "The call has no result: it was cancelled, or the server or the MCP session ended.";

pub(super) type Answering = BoxFuture<'static, Answer>;
type Events = BoxStream<'static, Bytes>;

/// Whether a body is of this type.
fn has_type(headers: &HeaderMap, wanted: &str) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| kind.starts_with(wanted))
}

/// Whether a body is JSON.
pub(super) fn is_json(headers: &HeaderMap) -> bool {
    has_type(headers, JSON)
}

fn is_stream(response: &Answer) -> bool {
    has_type(response.headers(), EVENT_STREAM)
}

/// Converts an answer of rmcp to this form. `id` is the request's id.
pub(super) fn formed(answering: Answering, form: Form, id: Value) -> Answering {
    async move {
        let response = answering.await;
        match form {
            Form::Json if is_stream(&response) => finished(response, id).await,
            Form::Either if is_stream(&response) => unless_finished(response).await,
            Form::Events if response.status() == StatusCode::OK && is_json(response.headers()) => {
                let (head, body) = response.into_parts();
                let event = event(&whole(body).await);
                typed(Response::from_parts(head, Full::from(event).boxed_unsync()), EVENT_STREAM)
            }
            _ => response,
        }
    }
    .boxed()
}

/// The answer in a stream, as JSON; an error if there is none.
async fn finished(response: Answer, id: Value) -> Answer {
    let (head, body) = response.into_parts();
    let mut events = data(body);
    let mut answer = None;
    while answer.is_none()
        && let Some(event) = events.next().await
    {
        answer = json_of(&event).filter(|json| is_answer(json));
    }
    let json = answer.unwrap_or_else(|| message(Some(id), REFUSED, NO_ANSWER));
    typed(Response::from_parts(head, Full::from(json).boxed_unsync()), JSON)
}

/// The first message of a stream as JSON if it is the answer, otherwise the stream.
async fn unless_finished(response: Answer) -> Answer {
    let (head, body) = response.into_parts();
    let (mut events, mut begun) = (data(body), vec![]);
    while let Some(event) = events.next().await {
        match json_of(&event) {
            Some(json) if is_answer(&json) => {
                return typed(Response::from_parts(head, Full::from(json).boxed_unsync()), JSON);
            }
            // The first event has no message: it names the stream for clients that resume it.
            json => {
                let is_first_message = json.is_some();
                begun.push(event);
                if is_first_message {
                    break;
                }
            }
        }
    }
    let all = futures::stream::iter(begun).chain(events);
    Response::from_parts(head, streamed(all))
}

/// Begins an answer that is not ready: its head, and as its body signs of life until it is ready. Spaces mean nothing
/// in JSON. If there are no MCP sessions, dropping the answer cancels the call.
pub(super) fn begin(answering: Answering, form: Form) -> Answer {
    enum State {
        Waiting(Answering),
        Sending(Events),
    }
    let (kind, keep_alive) = match form {
        Form::Json => (JSON, Bytes::from_static(b" ")),
        Form::Either | Form::Events => (EVENT_STREAM, Bytes::from_static(b": working\n\n")),
    };
    let first = keep_alive.clone();
    let later = futures::stream::unfold(State::Waiting(answering), move |state| {
        let keep_alive = keep_alive.clone();
        async move {
            let mut rest = match state {
                State::Waiting(mut answering) => {
                    match timeout(KEEP_ALIVE_INTERVAL, &mut answering).await {
                        Ok(response) if form == Form::Json => data(response.into_body()),
                        Ok(response) => events(response).await,
                        Err(_) => return Some((keep_alive, State::Waiting(answering))),
                    }
                }
                State::Sending(rest) => rest,
            };
            Some((rest.next().await?, State::Sending(rest)))
        }
    });
    let body = streamed(futures::stream::once(async { first }).chain(later));
    let mut response = typed(Response::new(body), kind);
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// Keeps the MCP session of an answer in use until the answer is complete.
pub(super) fn guarded(response: Answer, in_use: Option<Arc<()>>) -> Answer {
    if response.body().size_hint().exact().is_some() {
        return response;
    }
    response.map(|body| {
        let events = data(body).inspect(move |_| {
            let _ = &in_use;
        });
        streamed(events)
    })
}

/// The events of an answer; an answer in JSON is one event.
async fn events(response: Answer) -> Events {
    let is_stream = is_stream(&response);
    let body = response.into_body();
    if is_stream {
        return data(body);
    }
    let json = whole(body).await;
    let is_json = serde_json::from_slice::<IgnoredAny>(&json).is_ok();
    futures::stream::iter(is_json.then(|| event(&json))).boxed()
}

/// The whole of a body.
pub(super) async fn whole(body: UnsyncBoxBody<Bytes, Infallible>) -> Bytes {
    body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default()
}

fn event(json: &[u8]) -> Bytes {
    [b"data: ", json, b"\n\n"].concat().into()
}

/// The message of an event, if it has one. Each frame of rmcp's streams is one event, and each message one line.
fn json_of(event: &Bytes) -> Option<Bytes> {
    let data = event.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"data:"))?;
    let json = data.trim_ascii();
    (!json.is_empty()).then(|| event.slice_ref(json))
}

/// An error as a message.
pub(super) fn message(id: Option<Value>, code: i32, text: &str) -> Bytes {
    let error = json!({ "code": code, "message": text });
    json!({ "jsonrpc": "2.0", "id": id, "error": error }).to_string().into()
}

/// Whether a message of the server answers a request.
fn is_answer(json: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Asking {
        #[expect(dead_code, reason = "only whether it is there matters")]
        method: IgnoredAny,
    }
    serde_json::from_slice::<Asking>(json).is_err()
}

fn data(body: UnsyncBoxBody<Bytes, Infallible>) -> Events {
    BodyStream::new(body).filter_map(async |frame| frame.ok()?.into_data().ok()).boxed()
}

fn streamed(
    events: impl Stream<Item = Bytes> + Send + 'static,
) -> UnsyncBoxBody<Bytes, Infallible> {
    StreamBody::new(events.map(|event| Ok(Frame::data(event)))).boxed_unsync()
}

/// The same answer, with a body of this type.
pub(super) fn typed(mut response: Answer, kind: &'static str) -> Answer {
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests {
    use futures::{future::ready, stream::iter};

    use super::*;

    const PRIMING: &str = "data: \nid: 0/3\nretry: 3000\n\n";
    const NEWS: &str = "data: {\"method\":\"notifications/progress\"}\nid: 1/3\n\n";
    const RESULT: &str = "data: {\"id\":7,\"result\":{}}\nid: 2/3\n\n";

    /// Type, MCP session and body of the answer that a stream of these events becomes.
    async fn formed_of(all: &[&'static str], form: Form) -> (String, String, String) {
        let all: Vec<_> = all.iter().map(|event| Bytes::from_static(event.as_bytes())).collect();
        let mut response = typed(Response::new(streamed(iter(all))), EVENT_STREAM);
        response.headers_mut().insert("mcp-session-id", HeaderValue::from_static("a"));
        let response = formed(ready(response).boxed(), form, 7.into()).await;
        let header =
            |name: &str| String::from_utf8_lossy(response.headers()[name].as_bytes()).into_owned();
        let (kind, name) = (header("content-type"), header("mcp-session-id"));
        let body = whole(response.into_body()).await;
        (kind, name, String::from_utf8(body.to_vec()).expect("UTF-8"))
    }

    #[tokio::test]
    async fn a_stream_takes_the_form_that_its_client_accepts() {
        let json = r#"{"id":7,"result":{}}"#;
        let all = [PRIMING, NEWS, RESULT].concat();
        let short = [PRIMING, RESULT].concat();
        for (events, form, kind, body) in [
            (&[PRIMING, RESULT][..], Form::Json, JSON, json),
            (&[PRIMING, ":\n\n", NEWS, RESULT], Form::Json, JSON, json),
            (&[PRIMING, RESULT], Form::Either, JSON, json),
            (&[PRIMING, NEWS, RESULT], Form::Either, EVENT_STREAM, &all),
            (&[PRIMING, RESULT], Form::Events, EVENT_STREAM, &short),
        ] {
            let formed = formed_of(events, form).await;
            assert_eq!(formed, (kind.to_owned(), "a".to_owned(), body.to_owned()), "{events:?}");
        }
    }

    #[tokio::test]
    async fn a_stream_without_an_answer_is_an_error_where_json_is_expected() {
        let (kind, _, body) = formed_of(&[PRIMING, NEWS], Form::Json).await;
        assert_eq!(kind, JSON);
        let message: Value = serde_json::from_str(&body).expect("JSON");
        assert_eq!((&message["id"], &message["error"]["message"]), (&7.into(), &NO_ANSWER.into()));
    }

    #[tokio::test]
    async fn json_is_one_event_for_those_who_accept_nothing_else() {
        let response = |status: StatusCode| {
            let mut response = typed(Response::new(Full::from("{}").boxed_unsync()), JSON);
            *response.status_mut() = status;
            formed(ready(response).boxed(), Form::Events, Value::Null)
        };
        let answer = response(StatusCode::OK).await;
        assert_eq!(answer.headers()[CONTENT_TYPE], EVENT_STREAM);
        assert_eq!(whole(answer.into_body()).await, "data: {}\n\n");
        let refused = response(StatusCode::BAD_REQUEST).await;
        assert_eq!(refused.headers()[CONTENT_TYPE], JSON);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_takes_long_shows_signs_of_life_in_its_form() {
        for (form, kind, body) in [
            (Form::Json, JSON, "   {\"id\":7}"),
            (
                Form::Events,
                EVENT_STREAM,
                ": working\n\n: working\n\n: working\n\ndata: {\"id\":7}\n\n",
            ),
        ] {
            let answering = async {
                tokio::time::sleep(KEEP_ALIVE_INTERVAL.mul_f64(2.5)).await;
                typed(Response::new(Full::from("{\"id\":7}").boxed_unsync()), JSON)
            };
            let begun = begin(answering.boxed(), form);
            assert_eq!(begun.headers()[CONTENT_TYPE], kind);
            assert_eq!(whole(begun.into_body()).await, body);
        }
    }
}
