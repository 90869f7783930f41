//! One line of input, up to a limit, and its meaning once it is complete. Pure.

use bytes::{Buf, Bytes, BytesMut};
use rmcp::{
    RoleServer,
    model::{ErrorData, GetExtensions, JsonRpcMessage, RequestId, ServerResult},
    service::{RxJsonRpcMessage, TxJsonRpcMessage},
    transport::async_rw::JsonRpcMessageCodec,
};
use tokio_util::codec::Decoder;

use crate::{
    error::Error,
    mcp::{
        UNREADABLE_MESSAGE,
        call::failure,
        long_text::CutOut,
        message::{Message, Refused},
    },
};

/// Length in bytes above which room for the longest line is reserved at once: growing by doubling would hold a long
/// line twice. Memory that nothing is written to costs nothing.
const GROWS_TO: usize = 1 << 20;

/// Bytes at the start and at the end of a line in which a request's id is searched: JSON objects are written in the
/// order of a handful of short fields around one long one.
const EDGE_BYTES: usize = 512;

/// The current line, up to its newline.
pub(super) enum Line {
    /// The whole line.
    Whole(BytesMut),
    /// A line that is longer than any valid message; only its edges are stored.
    TooLong { start: Bytes, end: BytesMut },
}

/// The meaning of a line.
pub(super) enum Received {
    /// A message for rmcp.
    Message(Box<RxJsonRpcMessage<RoleServer>>),
    /// A message that is not passed on. Its sender gets this answer instead of waiting for ever.
    Answered(Box<TxJsonRpcMessage<RoleServer>>),
    /// A line that needs no answer.
    Ignored,
}

/// Why a line is not passed on.
enum Fault {
    TooLong,
    TooComplex,
    /// It is not JSON. The message may still be sensible: if a model's text was cut within an emoji, its half is
    /// written as an escape that stands for no character.
    Unreadable,
}

impl Default for Line {
    fn default() -> Self {
        Self::Whole(BytesMut::new())
    }
}

impl Line {
    /// Adds bytes up to and including the newline, keeping at most `limit` of the line.
    pub(super) fn add(&mut self, bytes: &[u8], limit: usize) {
        match self {
            Self::Whole(line) if line.len() + bytes.len() <= limit => {
                if line.len() + bytes.len() > GROWS_TO && line.capacity() < limit {
                    line.reserve(limit - line.len());
                }
                line.extend_from_slice(bytes);
            }
            Self::Whole(line) => {
                let start = Bytes::copy_from_slice(&line[..line.len().min(EDGE_BYTES)]);
                let end = BytesMut::from(&line[line.len().saturating_sub(EDGE_BYTES)..]);
                *self = Self::TooLong { start, end };
                self.add(bytes, limit);
            }
            Self::TooLong { end, .. } => {
                end.extend_from_slice(&bytes[bytes.len().saturating_sub(EDGE_BYTES)..]);
                end.advance(end.len().saturating_sub(EDGE_BYTES));
            }
        }
    }

    /// The meaning of the line, which is complete. Files may have at most `max_upload` bytes.
    pub(super) fn finish(self, max_upload: u64) -> Received {
        let line = match self {
            Self::TooLong { start, end } => {
                return answered(Fault::TooLong, [&start, &end], max_upload);
            }
            Self::Whole(line) => line.freeze(),
        };
        let edges =
            [&line[..line.len().min(EDGE_BYTES)], &line[line.len().saturating_sub(EDGE_BYTES)..]];
        if line.trim_ascii().is_empty() {
            return Received::Ignored;
        }
        match Message::read(line.clone()) {
            Err(Refused::TooComplex) => answered(Fault::TooComplex, edges, max_upload),
            Err(Refused::TooLong) => answered(Fault::TooLong, edges, max_upload),
            Ok(message) => match decode(&message.json) {
                Decoded::Unreadable => answered(Fault::Unreadable, edges, max_upload),
                Decoded::NoMessage => {
                    let error = ErrorData::invalid_request("Invalid request", None);
                    Received::Answered(Box::new(JsonRpcMessage::error(error, None)))
                }
                Decoded::Ignored => Received::Ignored,
                Decoded::Message(mut parsed) => {
                    if let Some(long) = message.long
                        && let JsonRpcMessage::Request(request) = &mut *parsed
                    {
                        request.request.extensions_mut().insert(CutOut::new(long));
                    }
                    Received::Message(parsed)
                }
            },
        }
    }
}

enum Decoded {
    Message(Box<RxJsonRpcMessage<RoleServer>>),
    /// It is JSON, but not a message.
    NoMessage,
    /// A notification that rmcp does not know.
    Ignored,
    Unreadable,
}

/// Parses a line as rmcp does.
fn decode(line: &[u8]) -> Decoded {
    let mut codec = JsonRpcMessageCodec::<RxJsonRpcMessage<RoleServer>>::default();
    match codec.decode(&mut BytesMut::from(line)) {
        Ok(Some(message)) => Decoded::Message(Box::new(message)),
        Ok(None) => Decoded::Ignored,
        Err(_) if is_json(line) => Decoded::NoMessage,
        Err(_) => Decoded::Unreadable,
    }
}

fn is_json(line: &[u8]) -> bool {
    // rmcp ignores a byte order mark, as RFC 8259 allows.
    let text = line.strip_prefix("\u{FEFF}".as_bytes()).unwrap_or(line);
    serde_json::from_slice::<serde_json::Value>(text).is_ok()
}

/// The answer to the request whose line has these edges. A line without an id counts as a notification, which has no
/// answer; if the line cannot be read, it gets an answer without an id.
fn answered(fault: Fault, edges: [&[u8]; 2], max_upload: u64) -> Received {
    let id = edges.into_iter().find_map(|edge| id_in(&String::from_utf8_lossy(edge)));
    let error = match (fault, &id) {
        (Fault::TooLong | Fault::TooComplex, None) => return Received::Ignored,
        (Fault::TooLong, Some(id)) => {
            // Only an upload can be that long, and clients show a model the error of a tool best.
            let error = Error::MessageTooLarge { limit: max_upload };
            tracing::info!(outcome = error.code(), "message refused");
            let result = ServerResult::CallToolResult(failure(&error));
            return Received::Answered(Box::new(JsonRpcMessage::response(result, id.clone())));
        }
        (Fault::TooComplex, _) => ErrorData::invalid_request(Refused::TooComplex.message(), None),
        (Fault::Unreadable, _) => ErrorData::parse_error(UNREADABLE_MESSAGE, None),
    };
    Received::Answered(Box::new(JsonRpcMessage::error(error, id)))
}

/// Finds `"id": <number or string>` at the outermost level: at the start before any other object
/// opens, at the end after the last one has closed.
fn id_in(text: &str) -> Option<RequestId> {
    let (_, after) = text.match_indices("\"id\"").find_map(|(at, _)| {
        let before = &text[..at];
        let outermost = before.trim_start() == "{"
            || (before.trim_start().starts_with("{\"jsonrpc\"")
                && before.matches('{').count() == 1)
            || (text.trim_end().ends_with('}')
                && !text[at..].contains('{')
                && text[at..].matches('}').count() == 1);
        outermost.then(|| (at, &text[at + 4..]))
    })?;
    let value = after.trim_start().strip_prefix(':')?.trim_start();
    serde_json::Deserializer::from_str(value).into_iter::<RequestId>().next()?.ok()
}
