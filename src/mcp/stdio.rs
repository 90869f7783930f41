//! MCP over standard input and output, one JSON-RPC message a line.

use std::{
    io,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf, Bytes, BytesMut};
use rmcp::{
    RoleServer, ServiceExt,
    model::{GetExtensions, JsonRpcMessage},
    service::{RxJsonRpcMessage, ServerInitializeError, TxJsonRpcMessage},
    transport::{Transport, async_rw::AsyncRwTransport, io::stdio_pipes},
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::CancellationToken;

use super::{
    Server,
    long_text::{CutOut, LongText},
    longest_message,
    message::{Message, Refused},
};

/// A tool name that no client can list. A line that is too long to be read is replaced by a call of
/// it, so that whoever sent it gets an answer instead of waiting for ever.
pub(super) const OVERSIZED: &str = "message too large";

/// The same for a line with more structure than any valid call.
pub(super) const COMPLEX: &str = "message too complex";

/// The same for a line that is no JSON, of which rmcp says nothing. It need not be nonsense: half an
/// emoji, where a model's text was cut, is written as an escape that JSON has no character for.
pub(super) const UNREADABLE: &str = "message unreadable";

/// Time that calls under way at the end of input have to be answered: enough for a reply that is
/// being written, not for a program to go on.
const LAST_ANSWERS: Duration = Duration::from_millis(400);

/// Serves this process's standard input and output until input ends or `stop` is cancelled.
pub async fn serve(server: Server, stop: CancellationToken) -> io::Result<()> {
    let (input, output) = stdio_pipes();
    serve_on(server, input, output, stop).await
}

/// The same on any pair of streams.
pub async fn serve_on(
    server: Server,
    input: impl AsyncRead + Send + Unpin + 'static,
    output: impl AsyncWrite + Send + Unpin + 'static,
    stop: CancellationToken,
) -> io::Result<()> {
    let limit = longest_message(server.sessions.config());
    let ended = CancellationToken::new();
    let long = Slot::default();
    let input = Lines::new(input, limit, ended.clone(), long.clone());
    let inner = AsyncRwTransport::new_server(input, output).with_max_line_length(limit);
    let transport = WithLongText { inner, long };
    // Ours alone: rmcp waits up to five seconds for calls under way when input has ended.
    let quit = CancellationToken::new();
    let _guard = quit.clone().drop_guard();
    let serving = async {
        match server.serve_with_ct(transport, quit.clone()).await {
            Ok(service) => service.waiting().await.map(drop).map_err(io::Error::other),
            // A client that leaves before it has said anything has done nothing wrong.
            Err(ServerInitializeError::ConnectionClosed(_) | ServerInitializeError::Cancelled) => {
                Ok(())
            }
            Err(error) => Err(io::Error::other(error)),
        }
    };
    let last_answers = async {
        ended.cancelled().await;
        tokio::time::sleep(LAST_ANSWERS).await;
    };
    tokio::select! {
        result = serving => result,
        () = last_answers => Ok(()),
        () = stop.cancelled() => Ok(()),
    }
}

/// The long string of the line that was passed on last.
type Slot = Arc<Mutex<Option<LongText>>>;

fn put(slot: &Slot, long: Option<LongText>) -> Option<LongText> {
    std::mem::replace(&mut *slot.lock().unwrap_or_else(PoisonError::into_inner), long)
}

/// Gives each request the long string that was cut out of its line. The two are never of different
/// lines: [`Lines`] passes one on at a time, and rmcp parses it before it reads the next.
struct WithLongText<T> {
    inner: T,
    long: Slot,
}

impl<T: Transport<RoleServer>> Transport<RoleServer> for WithLongText<T> {
    type Error = T::Error;

    fn send(
        &mut self,
        item: TxJsonRpcMessage<RoleServer>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        self.inner.send(item)
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        let mut message = self.inner.receive().await;
        if let Some(long) = put(&self.long, None)
            && let Some(JsonRpcMessage::Request(request)) = &mut message
        {
            request.request.extensions_mut().insert(CutOut::new(long));
        }
        message
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        self.inner.close().await
    }
}

/// Passes input on a line at a time, without its long string, and notices its end. A line that must not
/// be parsed, or that rmcp would drop because it is no JSON, is replaced by a short call that answers for
/// it.
struct Lines<R> {
    input: R,
    limit: usize,
    ended: CancellationToken,
    long: Slot,
    /// What was read and is not yet part of a line.
    read: BytesMut,
    line: Line,
    /// What is passed on before more is read.
    passing: Bytes,
}

/// Bytes that are read at a time.
const READ: usize = 64 << 10;

/// Bytes from which on room for the longest line is made at once: growing by doubling would hold a long
/// line twice. Memory that nothing is written to costs nothing.
const GROWS_TO: usize = 1 << 20;

/// A request's id stands near the start or the end of its line: JSON objects are written in the
/// order of a handful of short fields around one long one.
const EDGE: usize = 512;

/// rmcp takes it for nothing, as RFC 8259 allows.
const BYTE_ORDER_MARK: &[u8] = "\u{FEFF}".as_bytes();

/// The current line, up to its newline.
enum Line {
    /// All of it.
    Whole(BytesMut),
    /// It is longer than any valid message; only its edges are kept.
    TooLong { start: Bytes, end: BytesMut },
}

impl Default for Line {
    fn default() -> Self {
        Self::Whole(BytesMut::new())
    }
}

impl Line {
    fn add(&mut self, bytes: &[u8], limit: usize) {
        match self {
            Self::Whole(line) if line.len() + bytes.len() <= limit => {
                if line.len() + bytes.len() > GROWS_TO && line.capacity() < limit {
                    line.reserve(limit - line.len());
                }
                line.extend_from_slice(bytes);
            }
            Self::Whole(line) => {
                let start = Bytes::copy_from_slice(&line[..line.len().min(EDGE)]);
                let end = BytesMut::from(&line[line.len().saturating_sub(EDGE)..]);
                *self = Self::TooLong { start, end };
                self.add(bytes, limit);
            }
            Self::TooLong { end, .. } => {
                end.extend_from_slice(&bytes[bytes.len().saturating_sub(EDGE)..]);
                end.advance(end.len().saturating_sub(EDGE));
            }
        }
    }

    /// What is passed on for it, and its long string.
    fn finish(self) -> (Bytes, Option<LongText>) {
        let line = match self {
            Self::TooLong { start, end } => {
                return (answering_call(OVERSIZED, [&start, &end]), None);
            }
            Self::Whole(line) => line.freeze(),
        };
        let edges = [&line[..line.len().min(EDGE)], &line[line.len().saturating_sub(EDGE)..]];
        match Message::read(line.clone()) {
            Err(Refused::TooComplex) => (answering_call(COMPLEX, edges), None),
            Err(Refused::TooLong) => (answering_call(OVERSIZED, edges), None),
            Ok(message) if is_unreadable(&message.json) => {
                (answering_call(UNREADABLE, edges), None)
            }
            Ok(message) => (message.json, message.long),
        }
    }
}

fn is_unreadable(line: &[u8]) -> bool {
    let text = line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line);
    serde_json::from_slice::<serde_json::Value>(text).is_err()
}

/// A call of this tool that has the id of the line with these edges; nothing if no id can be found.
fn answering_call(tool: &str, edges: [&[u8]; 2]) -> Bytes {
    let id = edges.into_iter().find_map(|edge| id_in(&String::from_utf8_lossy(edge)));
    let call = id.map(|id| {
        format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"tools/call\",\
             \"params\":{{\"name\":\"{tool}\",\"arguments\":{{}}}}}}\n"
        )
    });
    call.unwrap_or_default().into()
}

/// Finds `"id": <number or string>` at the outermost level: at the start before any other object
/// opens, at the end after the last one has closed.
fn id_in(text: &str) -> Option<String> {
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
    let mut values = serde_json::Deserializer::from_str(value).into_iter::<serde_json::Value>();
    let id = values.next()?.ok()?;
    (id.is_u64() || id.is_i64() || id.is_string()).then(|| id.to_string())
}

impl<R> Lines<R> {
    fn new(input: R, limit: usize, ended: CancellationToken, long: Slot) -> Self {
        let (read, line, passing) = Default::default();
        Self { input, limit, ended, long, read, line, passing }
    }

    /// Takes what was read up to the end of a line; true if there was one.
    fn take_line(&mut self) -> bool {
        let newline = memchr::memchr(b'\n', &self.read);
        let bytes = self.read.split_to(newline.map_or(self.read.len(), |at| at + 1));
        self.line.add(&bytes, self.limit);
        if newline.is_some() {
            let (passing, long) = std::mem::take(&mut self.line).finish();
            self.passing = passing;
            put(&self.long, long);
        }
        newline.is_some()
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for Lines<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        while this.passing.is_empty() {
            if !this.read.is_empty() {
                this.take_line();
                continue;
            }
            this.read.reserve(READ);
            let reading =
                tokio_util::io::poll_read_buf(Pin::new(&mut this.input), context, &mut this.read);
            if ready!(reading)? == 0 {
                // What has no newline is no message.
                this.ended.cancel();
                return Poll::Ready(Ok(()));
            }
        }
        let n = this.passing.len().min(buffer.remaining());
        buffer.put_slice(&this.passing.split_to(n));
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    async fn pass(input: &'static [u8], limit: usize) -> (String, bool) {
        let ended = CancellationToken::new();
        let mut lines = Lines::new(input, limit, ended.clone(), Slot::default());
        let mut output = vec![];
        lines.read_to_end(&mut output).await.expect("reads");
        (String::from_utf8_lossy(&output).into_owned(), ended.is_cancelled())
    }

    #[tokio::test]
    async fn lines_within_the_limit_pass_unchanged() {
        let input = "{\"id\":1}\n[]\n\u{FEFF}{\"id\":2}\n";
        let (output, ended) = pass(input.as_bytes(), 20).await;
        assert_eq!(output, input);
        assert!(ended);
    }

    #[tokio::test]
    async fn a_line_that_is_too_long_is_answered_for() {
        for (line, id) in [
            (&b"{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"tools/call\",\"params\":{\"id\":9,\"x\":\"long\"}}\n"[..], "7"),
            (b"{\"id\":\"a\",\"params\":{\"x\":\"long\"}}\n", "\"a\""),
            (b"{\"method\":\"tools/call\",\"params\":{\"id\":9,\"x\":\"{long\"},\"jsonrpc\":\"2.0\",\"id\":8}\n", "8"),
        ] {
            let (output, _) = pass(line, 20).await;
            let call: serde_json::Value = serde_json::from_str(&output).expect("JSON");
            assert_eq!(call["id"].to_string(), id);
            assert_eq!(call["params"]["name"], OVERSIZED);
        }
        let (output, _) =
            pass(b"{\"method\":\"notifications/x\",\"params\":{\"id\":3}}\n", 20).await;
        assert_eq!(output, "", "a notification has no answer");
    }

    #[tokio::test]
    async fn a_line_that_is_no_json_is_answered_for() {
        for why in [&br#""\ud83d""#[..], b"1e999", b"\"\xFF\"", b"", &[b'['; 200]] {
            let line = [b"{\"jsonrpc\":\"2.0\",\"id\":7,\"params\":", why, b"}\n"].concat();
            let (output, _) = pass(line.leak(), 1000).await;
            let call: serde_json::Value = serde_json::from_str(&output).expect("JSON");
            assert_eq!((&call["id"], &call["params"]["name"]), (&7.into(), &UNREADABLE.into()));
        }
    }

    #[tokio::test]
    async fn a_line_with_too_much_structure_is_answered_for() {
        let bomb = r#"{"":0},"#.repeat(5000);
        let line = format!("{{\"jsonrpc\":\"2.0\",\"id\":7,\"params\":[{bomb}0]}}\n{{\"id\":8}}\n");
        let (output, _) = pass(line.leak().as_bytes(), 1 << 20).await;
        let (answer, next) = output.split_once('\n').expect("two lines");
        let call: serde_json::Value = serde_json::from_str(answer).expect("JSON");
        assert_eq!((&call["id"], &call["params"]["name"]), (&7.into(), &COMPLEX.into()));
        assert_eq!(next, "{\"id\":8}\n");
    }

    #[tokio::test]
    async fn each_line_has_the_long_string_that_was_cut_out_of_it() {
        let long = "QUJD".repeat(100_000);
        let input = format!("{{\"a\":\"{long}\"}}\n{{\"b\":1}}\n");
        let slot = Slot::default();
        let ended = CancellationToken::new();
        let mut lines = Lines::new(input.as_bytes(), 1 << 20, ended, slot.clone());
        let mut buffer = [0; 100];
        let n = lines.read(&mut buffer).await.expect("reads");
        assert_eq!(&buffer[..n], b"{\"a\":\"\\u0000long\"}\n");
        let cut = put(&slot, None).expect("cut out");
        assert_eq!(cut.into_string(usize::MAX).expect("a string"), long);
        let n = lines.read(&mut buffer).await.expect("reads");
        assert_eq!((&buffer[..n], put(&slot, None).is_none()), (&b"{\"b\":1}\n"[..], true));
    }

    #[test]
    fn the_longest_upload_fits_into_a_line() {
        let config = crate::config::Config::default();
        let base64 = config.max_upload.div_ceil(3) * 4;
        assert!(longest_message(&config) as u64 > base64 + 1000);
    }
}
