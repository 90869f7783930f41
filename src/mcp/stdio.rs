//! MCP over standard input and output, one JSON-RPC message a line.
//!
//! ```text
//! input --> Line (bounded) --> message --> rmcp
//!              | too long, too complex, not JSON
//! output <-----'------------------------- answers
//! ```

mod line;

use std::{io, sync::Arc, time::Duration};

use bytes::{Buf, BytesMut};
use futures::{FutureExt, SinkExt, future::BoxFuture};
use rmcp::{
    RoleServer, ServiceExt,
    model::{ClientRequest, ErrorData, JsonRpcError, JsonRpcMessage, JsonRpcVersion2_0},
    service::{RxJsonRpcMessage, ServerInitializeError, TxJsonRpcMessage},
    transport::{Transport, async_rw::JsonRpcMessageCodec, io::stdio_pipes},
};
use rustix::pipe::fcntl_setpipe_size;
use serde::Serialize;
use tokio::time::timeout;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite},
    sync::Mutex,
};
use tokio_util::{codec::FramedWrite, sync::CancellationToken};

use self::line::{Line, Received};
use super::{Server, counted};
use crate::{config::Config, metrics::Metrics, request::longest_message};

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

/// The same on any pair of streams.
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
    max_upload: u64,
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

/// `None` once it is closed.
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
            max_upload: config.max_upload,
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
        use crate::mcp::{long_text::CutOut, message::PLACEHOLDER};
        use rmcp::model::GetExtensions;

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
