//! MCP over standard input and output, one JSON-RPC message a line.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use rmcp::{
    ServiceExt,
    service::ServerInitializeError,
    transport::{async_rw::AsyncRwTransport, io::stdio_pipes},
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::CancellationToken;

use super::{Server, longest_message};

/// A tool name that no client can list. A line that is too long to be read is replaced by a call of
/// it, so that whoever sent it gets an answer instead of waiting for ever.
pub(super) const OVERSIZED: &str = "message too large";

/// The same for a line that is no JSON, of which rmcp says nothing. It need not be nonsense: half an
/// emoji, where a model's text was cut, is written as an escape that JSON has no character for.
pub(super) const UNREADABLE: &str = "message unreadable";

/// Longest line that is checked for being JSON. Longer ones are files, whose base64 is plain ASCII.
const CHECKED: usize = 1 << 20;

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
    let input = Lines::new(input, limit, ended.clone());
    let transport = AsyncRwTransport::new_server(input, output).with_max_line_length(limit);
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

/// Passes input on, notices its end, and adds to each line that rmcp will drop, for its length or
/// because it is no JSON, a short call that answers for it.
struct Lines<R> {
    input: R,
    limit: usize,
    ended: CancellationToken,
    line: Line,
    /// Bytes to be passed on before more input, and how many of them already were.
    ready: Vec<u8>,
    passed: usize,
}

/// What has been seen of the current line.
#[derive(Default)]
struct Line {
    len: usize,
    /// The first [`CHECKED`] bytes.
    start: Vec<u8>,
    /// The last [`EDGE`] bytes.
    end: Vec<u8>,
}

/// A request's id stands near the start or the end of its line: JSON objects are written in the
/// order of a handful of short fields around one long one.
const EDGE: usize = 512;

/// rmcp takes it for nothing, as RFC 8259 allows.
const BYTE_ORDER_MARK: &[u8] = "\u{FEFF}".as_bytes();

impl<R> Lines<R> {
    fn new(input: R, limit: usize, ended: CancellationToken) -> Self {
        Self { input, limit, ended, line: Line::default(), ready: vec![], passed: 0 }
    }

    /// Looks at new bytes; if a line that will be dropped ends among them, puts the answering call
    /// behind it.
    fn look_at(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        let mut with_answers: Option<Vec<u8>> = None;
        let mut copied = 0;
        let mut from = 0;
        while let Some(newline) = bytes[from..].iter().position(|byte| *byte == b'\n') {
            let to = from + newline + 1;
            self.line.add(&bytes[from..to]);
            let line = std::mem::take(&mut self.line);
            let stand_in = if line.len > self.limit {
                Some(OVERSIZED)
            } else {
                line.is_unreadable().then_some(UNREADABLE)
            };
            if let Some((tool, id)) = stand_in.zip(line.id()) {
                let all = with_answers.get_or_insert_default();
                all.extend_from_slice(&bytes[copied..to]);
                all.extend_from_slice(answering_call(tool, &id).as_bytes());
                copied = to;
            }
            from = to;
        }
        self.line.add(&bytes[from..]);
        if let Some(all) = &mut with_answers {
            all.extend_from_slice(&bytes[copied..]);
        }
        with_answers
    }
}

impl Line {
    fn add(&mut self, bytes: &[u8]) {
        self.len += bytes.len();
        let to_start = bytes.len().min(CHECKED - self.start.len());
        self.start.extend_from_slice(&bytes[..to_start]);
        let tail = &bytes[bytes.len().saturating_sub(EDGE)..];
        let keep = self.end.len().min(EDGE - tail.len().min(EDGE));
        self.end.drain(..self.end.len() - keep);
        self.end.extend_from_slice(tail);
    }

    fn is_unreadable(&self) -> bool {
        let text = self.start.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&self.start);
        self.len <= CHECKED && serde_json::from_slice::<serde_json::Value>(text).is_err()
    }

    /// The request's id as it was written, if it can be found.
    fn id(&self) -> Option<String> {
        let start = &self.start[..self.start.len().min(EDGE)];
        [start, &self.end].into_iter().find_map(|edge| id_in(&String::from_utf8_lossy(edge)))
    }
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

fn answering_call(tool: &str, id: &str) -> String {
    format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"tools/call\",\
         \"params\":{{\"name\":\"{tool}\",\"arguments\":{{}}}}}}\n"
    )
}

impl<R: AsyncRead + Unpin> AsyncRead for Lines<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.passed == this.ready.len() {
            let before = buffer.filled().len();
            std::task::ready!(Pin::new(&mut this.input).poll_read(context, buffer))?;
            let new = &buffer.filled()[before..];
            if new.is_empty() {
                this.ended.cancel();
                return Poll::Ready(Ok(()));
            }
            let Some(replaced) = this.look_at(new) else { return Poll::Ready(Ok(())) };
            buffer.set_filled(before);
            (this.ready, this.passed) = (replaced, 0);
        }
        let some = &this.ready[this.passed..];
        let n = some.len().min(buffer.remaining());
        buffer.put_slice(&some[..n]);
        this.passed += n;
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    async fn pass(input: &'static [u8], limit: usize) -> (String, bool) {
        let ended = CancellationToken::new();
        let mut lines = Lines::new(input, limit, ended.clone());
        let mut output = vec![];
        lines.read_to_end(&mut output).await.expect("reads");
        (String::from_utf8_lossy(&output).into_owned(), ended.is_cancelled())
    }

    #[tokio::test]
    async fn lines_within_the_limit_pass_unchanged() {
        let input = "{\"id\":1}\n\nshort\n\u{FEFF}{\"id\":2}\nunfinished";
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
            let answer = output.lines().nth(1).expect("a second line");
            let call: serde_json::Value = serde_json::from_str(answer).expect("JSON");
            assert_eq!(call["id"].to_string(), id);
            assert_eq!(call["params"]["name"], OVERSIZED);
        }
        let (output, _) =
            pass(b"{\"method\":\"notifications/x\",\"params\":{\"id\":3}}\n", 20).await;
        assert_eq!(output.lines().count(), 1, "a notification has no answer");
    }

    #[tokio::test]
    async fn a_line_that_is_no_json_is_answered_for() {
        for why in [&br#""\ud83d""#[..], b"1e999", b"\"\xFF\"", b"", &[b'['; 200]] {
            let line = [b"{\"jsonrpc\":\"2.0\",\"id\":7,\"params\":", why, b"}\n"].concat();
            let (output, _) = pass(line.leak(), 1000).await;
            let answer = output.lines().nth(1).expect("a second line");
            let call: serde_json::Value = serde_json::from_str(answer).expect("JSON");
            assert_eq!((&call["id"], &call["params"]["name"]), (&7.into(), &UNREADABLE.into()));
        }
    }

    #[test]
    fn the_longest_upload_fits_into_a_line() {
        let config = crate::config::Config::default();
        let base64 = config.max_upload.div_ceil(3) * 4;
        assert!(longest_message(&config) as u64 > base64 + 1000);
    }
}
