//! MCP over standard input and output, one JSON-RPC message a line.
//!
//! ```text
//! input --> Line (bounded) --> message --> rmcp
//!              | too long, too complex, not JSON
//! output <-----'------------------------- answers
//! ```

use std::{io, sync::Arc, time::Duration};

use bytes::{Buf, Bytes, BytesMut};
use config::Config;
use futures::{FutureExt, SinkExt, future::BoxFuture};
use rmcp::{
    RoleServer, ServiceExt,
    model::{
        ClientRequest, ErrorData, GetExtensions, JsonRpcError, JsonRpcMessage, JsonRpcVersion2_0,
        RequestId, ServerResult,
    },
    service::{RxJsonRpcMessage, ServerInitializeError, TxJsonRpcMessage},
    transport::{Transport, async_rw::JsonRpcMessageCodec, io::stdio_pipes},
};
use rustix::pipe::fcntl_setpipe_size;
use serde::Serialize;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite},
    sync::Mutex,
    time::timeout,
};
use tokio_util::{
    codec::{Decoder, FramedWrite},
    sync::CancellationToken,
};

use super::{
    Server,
    call::failure,
    counted,
    long_text::CutOut,
    message::{Message, Refused, UNREADABLE_MESSAGE},
};
use crate::{error::Error, metrics::Metrics, request::longest_message};

/// Time for answers to calls that are in progress at the end of input: enough for a reply that is being written, not
/// for a program to finish.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(400);

/// Serves this process's standard input and output until input ends or `stop` is cancelled.
///
/// # Errors
/// If a client's first messages are not those of the protocol.
pub async fn serve(server: Server, stop: CancellationToken) -> io::Result<()> {
    let (input, output) = stdio_pipes();
    // This fails if standard input is no pipe.
    let _ = fcntl_setpipe_size(io::stdin(), PIPE_BYTES);
    serve_on(server, input, output, stop).await
}

/// Serves MCP on any pair of streams.
///
/// # Errors
/// If a client's first messages are not those of the protocol.
pub async fn serve_on(
    server: Server,
    input: impl AsyncRead + Send + Unpin + 'static,
    output: impl AsyncWrite + Send + Unpin + 'static,
    stop: CancellationToken,
) -> io::Result<()> {
    let ended = CancellationToken::new();
    let sessions = &server.services.sessions;
    let (config, metrics) = (sessions.config(), sessions.host().metrics().clone());
    let transport = Stdio::new((input, output), config, metrics, ended.clone());
    // A token of its own, cancelled when this returns: rmcp would wait up to five seconds for calls in progress after
    // the end of input.
    let quit = CancellationToken::new();
    let _guard = quit.clone().drop_guard();
    let serving = async {
        match server.serve_with_ct(transport, quit.clone()).await {
            Ok(service) => service.waiting().await.map(drop).map_err(io::Error::other),
            // A client that disconnects before it has sent anything has made no error.
            Err(ServerInitializeError::ConnectionClosed(_) | ServerInitializeError::Cancelled) => {
                Ok(())
            }
            Err(error) => Err(io::Error::other(error)),
        }
    };
    let last_answers = async {
        ended.cancelled().await;
        tokio::time::sleep(DRAIN_TIMEOUT).await;
    };
    tokio::select! {
        result = serving => result,
        () = last_answers => Ok(()),
        () = stop.cancelled() => Ok(()),
    }
}

/// Bytes that are read at a time.
const READ_BYTES: usize = 256 << 10;

/// Bytes that the pipe of standard input holds, the most that the kernel allows everybody: at the usual 64 KiB, client
/// and server wait for each other all the time during a long message.
const PIPE_BYTES: usize = 1 << 20;

/// Time within which a client has to read an answer that the transport gives itself, before it counts as disconnected.
const UNREAD_TIMEOUT: Duration = Duration::from_secs(10);

/// Reads lines and writes messages. A line that must not be parsed, or that is not JSON, is answered here:
/// rmcp would drop it, and its sender would wait for ever.
struct Stdio<R, W> {
    input: R,
    output: Output<W>,
    limit: usize,
    max_upload: (u64, u64),
    /// Cancelled at the end of input.
    ended: CancellationToken,
    /// Bytes that were read and are not yet part of a line.
    read: BytesMut,
    line: Line,
    /// The transport's own answer to a line, until it is written. It is stored here, as rmcp may drop `receive` at any
    /// time.
    answering: Option<BoxFuture<'static, io::Result<()>>>,
    metrics: Metrics,
    /// Whether the client speaks a protocol version with `initialize`, whose results have no type.
    is_legacy: bool,
}

/// Standard output; `None` once it is closed.
type Output<W> = Arc<Mutex<Option<FramedWrite<W, Codec>>>>;
type Codec = JsonRpcMessageCodec<Sent>;

/// A message as it is written.
#[derive(Serialize)]
#[serde(untagged)]
enum Sent {
    Message(Box<TxJsonRpcMessage<RoleServer>>),
    /// An error whose request is not known. JSON-RPC has null as its id, which rmcp leaves out.
    Unaddressed {
        jsonrpc: JsonRpcVersion2_0,
        id: (),
        error: ErrorData,
    },
}

impl From<TxJsonRpcMessage<RoleServer>> for Sent {
    fn from(message: TxJsonRpcMessage<RoleServer>) -> Self {
        match message {
            JsonRpcMessage::Error(JsonRpcError { jsonrpc, id: None, error }) => {
                Self::Unaddressed { jsonrpc, id: (), error }
            }
            message => Self::Message(Box::new(message)),
        }
    }
}

impl<R, W> Stdio<R, W>
where
    R: AsyncRead + Send + Unpin,
    W: AsyncWrite + Send + Unpin + 'static,
{
    fn new(
        (input, output): (R, W),
        config: &Config,
        metrics: Metrics,
        ended: CancellationToken,
    ) -> Self {
        Self {
            input,
            output: Arc::new(Mutex::new(Some(FramedWrite::new(output, Codec::default())))),
            limit: longest_message(config),
            max_upload: (config.max_message_upload(), config.max_upload),
            ended,
            read: BytesMut::new(),
            line: Line::default(),
            answering: None,
            metrics,
            is_legacy: false,
        }
    }

    /// The next line. Nothing is lost if this is dropped. Input without a newline at its end is not a line.
    async fn line(&mut self) -> io::Result<Option<Line>> {
        loop {
            if let Some(line) = self.take_line() {
                return Ok(Some(line));
            }
            self.read.reserve(READ_BYTES);
            if self.input.read_buf(&mut self.read).await? == 0 {
                return Ok(None);
            }
        }
    }

    /// Adds the received bytes to the line, up to its end; returns the line if it is complete.
    fn take_line(&mut self) -> Option<Line> {
        let newline = memchr::memchr(b'\n', &self.read);
        let end = newline.map_or(self.read.len(), |at| at + 1);
        self.line.add(&self.read[..end], self.limit);
        // The memory stays for the next bytes.
        self.read.advance(end);
        newline.map(|_| std::mem::take(&mut self.line))
    }
}

impl<R, W> Transport<RoleServer> for Stdio<R, W>
where
    R: AsyncRead + Send + Unpin,
    W: AsyncWrite + Send + Unpin + 'static,
{
    type Error = io::Error;

    fn send(
        &mut self,
        message: TxJsonRpcMessage<RoleServer>,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let output = self.output.clone();
        async move {
            match &mut *output.lock().await {
                Some(output) => Ok(output.send(message.into()).await?),
                None => Err(io::Error::new(io::ErrorKind::NotConnected, "output is closed")),
            }
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        loop {
            if let Some(answering) = &mut self.answering {
                // Waiting for a client that does not read would hide that it has disconnected.
                let Ok(written) = timeout(UNREAD_TIMEOUT, answering).await else {
                    tracing::warn!("the client does not read its answers");
                    self.ended.cancel();
                    return None;
                };
                self.answering = None;
                written.ok()?;
            }
            let line = self.line().await.unwrap_or_else(|error| {
                tracing::error!(%error, "failed to read standard input");
                None
            });
            let Some(line) = line else {
                self.ended.cancel();
                return None;
            };
            match line.finish(self.max_upload) {
                Received::Message(message) => {
                    if let JsonRpcMessage::Request(request) = &*message {
                        self.metrics.mcp_requested(counted::known(request.request.method()));
                        self.is_legacy |=
                            matches!(request.request, ClientRequest::InitializeRequest(_));
                    }
                    return Some(*message);
                }
                Received::Answered(mut answer) => {
                    if self.is_legacy
                        && let JsonRpcMessage::Response(response) = &mut *answer
                    {
                        response.result.strip_result_type_for_legacy_peer();
                    }
                    self.answering = Some(self.send(*answer).boxed());
                }
                Received::Ignored => {}
            }
        }
    }

    async fn close(&mut self) -> io::Result<()> {
        drop(self.output.lock().await.take());
        Ok(())
    }
}

/// Length in bytes above which room for the longest line is reserved at once: growing by doubling would hold a long
/// line twice. Memory that nothing is written to costs nothing.
const GROWS_TO: usize = 1 << 20;

/// Bytes at the start and at the end of a line in which a request's id is searched: JSON objects are written in the
/// order of a handful of short fields around one long one.
const EDGE_BYTES: usize = 512;

/// The current line, up to its newline.
enum Line {
    /// The whole line.
    Whole(BytesMut),
    /// A line that is longer than any valid message; only its edges are stored.
    TooLong { start: Bytes, end: BytesMut },
}

/// The meaning of a line.
enum Received {
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
    /// The line is not JSON. The message may still be sensible: if a model's text was cut within an emoji, half of the
    /// emoji is written as an escape that stands for no character.
    Unreadable,
}

impl Default for Line {
    fn default() -> Self {
        Self::Whole(BytesMut::new())
    }
}

impl Line {
    /// Adds bytes up to and including the newline, keeping at most `limit` of the line.
    fn add(&mut self, bytes: &[u8], limit: usize) {
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

    /// The meaning of the line, which is complete. `max_upload` are the limits of a file in a message and of any file.
    fn finish(self, max_upload: (u64, u64)) -> Received {
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
            Ok(Message { json, long, .. }) => match as_rmcp(&json) {
                Ok(Some(mut parsed)) => {
                    if let Some(long) = long
                        && let JsonRpcMessage::Request(request) = &mut parsed
                    {
                        request.request.extensions_mut().insert(CutOut::new(long));
                    }
                    Received::Message(Box::new(parsed))
                }
                // A notification that rmcp does not know.
                Ok(None) => Received::Ignored,
                Err(_) if is_json(&json) => {
                    let error = ErrorData::invalid_request("Invalid request", None);
                    Received::Answered(Box::new(JsonRpcMessage::error(error, None)))
                }
                Err(_) => answered(Fault::Unreadable, edges, max_upload),
            },
        }
    }
}

fn as_rmcp(line: &[u8]) -> io::Result<Option<RxJsonRpcMessage<RoleServer>>> {
    JsonRpcMessageCodec::default().decode(&mut line.into()).map_err(Into::into)
}

fn is_json(line: &[u8]) -> bool {
    // rmcp ignores a byte order mark, as RFC 8259 allows.
    let text = line.strip_prefix("\u{FEFF}".as_bytes()).unwrap_or(line);
    serde_json::from_slice::<serde_json::Value>(text).is_ok()
}

/// The answer to the request whose line has these edges. A line without an id counts as a notification, which has no
/// answer; if the line cannot be read, it gets an answer without an id.
fn answered(fault: Fault, edges: [&[u8]; 2], max_upload: (u64, u64)) -> Received {
    let id = edges.into_iter().find_map(|edge| id_in(&String::from_utf8_lossy(edge)));
    let error = match (fault, &id) {
        (Fault::TooLong | Fault::TooComplex, None) => return Received::Ignored,
        (Fault::TooLong, Some(id)) => {
            // Only an upload can be that long, and clients show a model the error of a tool best.
            let (limit, most) = max_upload;
            let error = Error::MessageTooLarge { limit, most };
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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// The messages that rmcp gets of an input, and the transport's own answers to it.
    struct Passed {
        messages: Vec<RxJsonRpcMessage<RoleServer>>,
        answers: Vec<Value>,
        ended: bool,
    }

    async fn pass(input: &[u8], limit: usize) -> Passed {
        let (output, mut answered) = tokio::io::duplex(1 << 20);
        let ended = CancellationToken::new();
        let mut stdio =
            Stdio::new((input, output), &Config::default(), Metrics::new(1, 1), ended.clone());
        stdio.limit = limit;
        let mut messages = vec![];
        while let Some(message) = stdio.receive().await {
            messages.push(message);
        }
        drop(stdio);
        let mut text = String::new();
        answered.read_to_string(&mut text).await.expect("reads");
        let answers = text.lines().map(|line| serde_json::from_str(line).expect("JSON"));
        Passed { messages, answers: answers.collect(), ended: ended.is_cancelled() }
    }

    /// The answer to an input of one line.
    async fn answer(line: &[u8], limit: usize) -> Value {
        let passed = pass(line, limit).await;
        assert!(passed.messages.is_empty());
        passed.answers.into_iter().next().expect("an answer")
    }

    const PING: &str = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}";

    #[tokio::test]
    async fn lines_within_the_limit_pass_unchanged() {
        let input = format!("{PING}\n\u{FEFF}{PING}\r\n\n{PING}");
        let passed = pass(input.as_bytes(), 50).await;
        let messages = passed.messages.iter().map(|message| json!(message).to_string());
        let ping: Value = serde_json::from_str(PING).expect("JSON");
        assert_eq!(messages.collect::<Vec<_>>(), [ping.to_string(), ping.to_string()]);
        assert!(passed.ended && passed.answers.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_no_answers_does_not_hide_that_it_has_gone() {
        let (output, _unread) = tokio::io::duplex(16);
        let ended = CancellationToken::new();
        let line = b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"x\",\"params\":\"\\ud83d\"}\n";
        let mut stdio =
            Stdio::new((&line[..], output), &Config::default(), Metrics::new(1, 1), ended.clone());
        assert!(stdio.receive().await.is_none());
        assert!(ended.is_cancelled());
    }

    #[tokio::test]
    async fn a_line_that_is_too_long_is_answered_for() {
        for (line, id) in [
            (&b"{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"tools/call\",\"params\":{\"id\":9,\"x\":\"long\"}}\n"[..], "7"),
            (b"{\"id\":\"a\",\"params\":{\"x\":\"long\"}}\n", "\"a\""),
            (b"{\"method\":\"tools/call\",\"params\":{\"id\":9,\"x\":\"{long\"},\"jsonrpc\":\"2.0\",\"id\":8}\n", "8"),
        ] {
            let answer = answer(line, 20).await;
            assert_eq!(answer["id"].to_string(), id);
            let text = answer["result"]["content"][0]["text"].as_str().expect("text");
            assert!(text.contains("upload_too_large"), "{text}");
            assert_eq!(answer["result"]["isError"], true);
        }
        let passed = pass(b"{\"method\":\"notifications/x\",\"params\":{\"id\":3}}\n", 20).await;
        assert!(passed.messages.is_empty());
        assert!(passed.answers.is_empty(), "a notification has no answer");
    }

    #[tokio::test]
    async fn a_line_that_is_no_json_is_answered_for() {
        for why in [&br#""\ud83d""#[..], b"1e999", b"\"\xFF\"", b"", &[b'['; 200]] {
            let line = [b"{\"jsonrpc\":\"2.0\",\"id\":7,\"params\":", why, b"}\n"].concat();
            let answer = answer(&line, 1000).await;
            assert_eq!((&answer["id"], &answer["error"]["code"]), (&7.into(), &(-32700).into()));
        }
    }

    #[tokio::test]
    async fn a_line_that_is_json_but_no_message_is_answered_for() {
        let answer = answer(b"{\"id\":7}\n", 1000).await;
        assert_eq!(
            (answer.get("id"), &answer["error"]["code"]),
            (Some(&Value::Null), &(-32600).into())
        );
    }

    #[tokio::test]
    async fn a_line_without_an_id_that_can_be_read_is_answered_with_none() {
        for line in ["no JSON", "{\"method\":\"x\"", "{\"id\":{},\"x\":1e999}"] {
            let answer = answer(format!("{line}\n").as_bytes(), 1000).await;
            let told = (answer.get("id"), &answer["error"]["code"], &answer["jsonrpc"]);
            assert_eq!(told, (Some(&Value::Null), &(-32700).into(), &"2.0".into()), "{line}");
        }
        let blank = pass(b"\n  \n\r\n\t\n", 1000).await;
        assert!(blank.messages.is_empty() && blank.answers.is_empty());
    }

    #[tokio::test]
    async fn a_line_with_too_much_structure_is_answered_for() {
        let bomb = r#"{"":0},"#.repeat(5000);
        let line = format!("{{\"jsonrpc\":\"2.0\",\"id\":7,\"params\":[{bomb}0]}}\n{PING}\n");
        let passed = pass(line.as_bytes(), 1 << 20).await;
        let answer = &passed.answers[0];
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&7.into(), &(-32600).into()));
        assert_eq!((passed.messages.len(), passed.answers.len()), (1, 1));
    }

    #[tokio::test]
    async fn an_answer_of_our_own_has_the_shape_of_the_clients_protocol() {
        let initialize = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "a", "version": "1" },
        }});
        let long = format!("{{\"id\":2,\"params\":\"{}\"}}", "x".repeat(400));
        let modern = answer(format!("{long}\n").as_bytes(), 300).await;
        assert_eq!(modern["result"]["resultType"], "complete");
        let passed = pass(format!("{initialize}\n{long}\n").as_bytes(), 300).await;
        assert_eq!(passed.messages.len(), 1);
        assert!(passed.answers[0]["result"].get("resultType").is_none());
    }

    #[tokio::test]
    async fn each_line_has_the_long_string_that_was_cut_out_of_it() {
        use crate::mcp::message::PLACEHOLDER;

        let long = "QUJD".repeat(100_000);
        let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
            "name": "upload_file", "arguments": { "content_base64": long },
        }});
        let passed = pass(format!("{call}\n{PING}\n").as_bytes(), 1 << 20).await;
        let [JsonRpcMessage::Request(call), JsonRpcMessage::Request(ping)] = &passed.messages[..]
        else {
            panic!("two requests");
        };
        assert_eq!(json!(call)["params"]["arguments"]["content_base64"], PLACEHOLDER);
        let cut = call.request.extensions().get::<CutOut>().and_then(CutOut::take);
        assert_eq!(cut.and_then(|cut| cut.into_string(usize::MAX)).expect("a string"), long);
        assert!(ping.request.extensions().get::<CutOut>().is_none());
    }

    #[test]
    fn the_longest_upload_fits_into_a_line() {
        let config = Config::default();
        let base64 = config.max_upload.div_ceil(3) * 4;
        assert!(longest_message(&config) as u64 > base64 + 1000);
    }
}
