//! The stream to an agent: a process that runs in the pod, with its standard input and output on a websocket.
//!
//! Each message begins with the number of its channel. The subprotocol `v5.channel.k8s.io` can close a single channel;
//! with `v4` the whole connection has to be closed. Neither direction ever waits for the other.

use std::{io, time::Duration};

use bytes::Bytes;
use futures::{Sink, SinkExt, Stream, StreamExt};
use kube::{
    Client,
    api::AttachParams,
    client::Connection,
    core::{Request, Status},
};
use model::text::printable;
use tokio::{
    io::{AsyncRead, AsyncReadExt, DuplexStream},
    time::{sleep, timeout},
};
use tokio_tungstenite::tungstenite::{Error as WsError, Message};
use tokio_util::io::StreamReader;

use super::pod::CONTAINER;

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
/// The outcome of the process: a [`Status`] as JSON.
const ERROR: u8 = 3;
/// A channel is closed; its number follows.
const CLOSE: u8 = 255;

/// Maximum number of bytes that wait to be sent.
const BUFFER: usize = 256 << 10;

/// Maximum number of bytes in a message that is sent, without the channel's number.
const PIECE_BYTES: usize = 64 << 10;

/// Maximum number of messages of standard error that are logged. An agent prints few lines, and must not fill the log.
const MAX_STDERR_LINES: usize = 5;

/// Longest wait for the stream to close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum number of attempts to run the process: the kubelet may not know yet that the container runs.
const ATTEMPTS: u32 = 4;

/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(250);

/// A stream to an agent.
pub(super) struct Wire {
    pub(super) reader: Box<dyn AsyncRead + Send + Unpin>,
    /// Dropping it ends the stream.
    pub(super) writer: DuplexStream,
}

/// Runs the process in a pod. `ended` runs when the stream has ended.
pub(super) async fn open(
    client: &Client,
    namespace: &str,
    pod: &str,
    program: [&str; 2],
    ended: impl Future<Output = ()> + Send + 'static,
) -> Result<Wire, kube::Error> {
    let mut attempts = 1;
    let connection = loop {
        match connect(client, namespace, pod, program).await {
            Ok(connection) => break connection,
            Err(error) if attempts < ATTEMPTS && is_early(&error) => {
                attempts += 1;
                sleep(PAUSE).await;
            }
            Err(error) => return Err(error),
        }
    };
    let can_half_close = connection.supports_stream_close();
    let (sink, stream) = connection.into_stream().split();
    let (writer, input) = tokio::io::duplex(BUFFER);
    tokio::spawn(async move {
        send(input, sink, can_half_close).await;
        ended.await;
    });
    Ok(Wire { reader: Box::new(StreamReader::new(Box::pin(output(stream)))), writer })
}

async fn connect(
    client: &Client,
    namespace: &str,
    pod: &str,
    program: [&str; 2],
) -> Result<Connection, kube::Error> {
    let path = format!("/api/v1/namespaces/{namespace}/pods");
    let asked = AttachParams::default()
        .container(CONTAINER)
        .stdin(true)
        .stdout(true)
        .stderr(true)
        .tty(false);
    let request = Request::new(path).exec(pod, program, &asked);
    client.connect(request.map_err(kube::Error::BuildRequest)?).await
}

/// Whether a retry may succeed: the answer is that of a kubelet that does not know the container yet.
fn is_early(error: &kube::Error) -> bool {
    use kube::client::UpgradeConnectionError::ProtocolSwitch;
    let status = match error {
        kube::Error::Api(status) => status.code,
        kube::Error::UpgradeConnection(ProtocolSwitch(status)) => status.as_u16(),
        _ => return false,
    };
    matches!(status, 400 | 404 | 500..)
}

/// Sends all input until its writer is dropped, and then closes the stream.
async fn send(
    mut input: DuplexStream,
    mut sink: impl Sink<Message, Error = WsError> + Unpin,
    can_half_close: bool,
) {
    let mut buffer = vec![0; PIECE_BYTES + 1];
    buffer[0] = STDIN;
    loop {
        match input.read(&mut buffer[1..]).await {
            Ok(0) | Err(_) => break,
            Ok(count) => {
                let message = Message::binary(Bytes::copy_from_slice(&buffer[..=count]));
                if sink.send(message).await.is_err() {
                    return;
                }
            }
        }
    }
    let closed = async {
        if can_half_close {
            sink.send(Message::binary(vec![CLOSE, STDIN])).await?;
        }
        sink.close().await
    };
    let _ = timeout(CLOSE_TIMEOUT, closed).await;
}

/// The standard output of the process. Its standard error carries no frames, only messages for the log.
fn output(
    stream: impl Stream<Item = Result<Message, WsError>> + Unpin,
) -> impl Stream<Item = io::Result<Bytes>> {
    futures::stream::unfold((stream, 0), |(mut stream, mut lines)| async move {
        loop {
            let bytes = match stream.next().await? {
                Ok(Message::Binary(bytes)) => bytes,
                Ok(Message::Close(_)) => return None,
                Ok(_) => continue,
                Err(error) => return Some((Err(io::Error::other(error)), (stream, lines))),
            };
            let Some((&channel, rest)) = bytes.split_first() else { continue };
            match channel {
                STDOUT if !rest.is_empty() => return Some((Ok(bytes.slice(1..)), (stream, lines))),
                STDERR if !rest.is_empty() && lines < MAX_STDERR_LINES => {
                    lines += 1;
                    let text = printable(&String::from_utf8_lossy(rest));
                    tracing::warn!(text, "message from the agent");
                }
                ERROR if !rest.is_empty() => {
                    let why = failure(rest)?;
                    tracing::debug!(%why, "the process of a stream failed");
                    return Some((Err(why), (stream, lines)));
                }
                CLOSE if rest == [STDOUT] => return None,
                _ => {}
            }
        }
    })
}

/// The error of the process; `None` if it succeeded.
fn failure(status: &[u8]) -> Option<io::Error> {
    let why = match serde_json::from_slice::<Status>(status) {
        Ok(status) if status.is_success() => return None,
        Ok(status) => format!("{} ({})", status.message, status.reason),
        Err(_) => String::from_utf8_lossy(status).into_owned(),
    };
    Some(io::Error::other(printable(&why)))
}

#[cfg(test)]
mod tests {
    use futures::{channel::mpsc, stream};
    use tokio::io::AsyncWriteExt;

    use super::*;

    async fn read(messages: Vec<Result<Message, WsError>>) -> (Vec<u8>, Option<String>) {
        let mut reader = StreamReader::new(Box::pin(output(stream::iter(messages))));
        let mut all = vec![];
        let error = reader.read_to_end(&mut all).await.err();
        (all, error.map(|error| error.to_string()))
    }

    #[expect(clippy::unnecessary_wraps, reason = "as a connection yields it")]
    fn message(channel: u8, rest: &[u8]) -> Result<Message, WsError> {
        Ok(Message::binary([&[channel], rest].concat()))
    }

    #[tokio::test]
    async fn only_standard_output_is_the_agents_stream() {
        let mut messages = vec![
            message(STDOUT, b""),
            message(STDERR, b""),
            message(STDOUT, b"a\x00"),
            Ok(Message::Text("no channel".into())),
            message(STDERR, b"last words"),
            Ok(Message::binary(vec![])),
            message(STDOUT, b"b"),
            message(77, b"x"),
        ];
        messages.extend((0..10).map(|_| message(STDERR, b"more")));
        messages.push(message(ERROR, br#"{"metadata":{},"status":"Success"}"#));
        messages.push(message(STDOUT, b"after the end"));
        assert_eq!(read(messages).await, (b"a\x00b".to_vec(), None));
    }

    #[tokio::test]
    async fn the_stream_ends_with_its_channel_its_connection_or_its_process() {
        for last in [Ok(Message::binary(vec![CLOSE, STDOUT])), Ok(Message::Close(None))] {
            assert_eq!(read(vec![message(STDOUT, b"a"), last]).await, (b"a".to_vec(), None));
        }
        let status =
            br#"{"status":"Failure","reason":"NonZeroExitCode","message":"exit code 137"}"#;
        for (last, said) in [
            (message(ERROR, status), "exit code 137 (NonZeroExitCode)"),
            (message(ERROR, b"not JSON"), "not JSON"),
            (Err(WsError::ConnectionClosed), "closed"),
        ] {
            let (bytes, error) = read(vec![message(STDOUT, b"a"), last]).await;
            assert_eq!(bytes, b"a");
            assert!(error.as_ref().is_some_and(|error| error.contains(said)), "{error:?}");
        }
    }

    #[tokio::test]
    async fn dropping_the_writer_closes_the_channel_or_else_the_connection() {
        for can_half_close in [true, false] {
            let (sender, sent) = mpsc::unbounded();
            let sink = Box::pin(sender.sink_map_err(|_| WsError::AlreadyClosed));
            let (mut writer, input) = tokio::io::duplex(BUFFER);
            let sending = tokio::spawn(send(input, sink, can_half_close));
            let big = vec![7; 3 * PIECE_BYTES / 2];
            writer.write_all(&big).await.expect("taken");
            drop(writer);
            sending.await.expect("ended");
            let sent: Vec<Message> = sent.collect().await;
            let (close, stdin): (Vec<_>, Vec<_>) =
                sent.into_iter().map(Message::into_data).partition(|bytes| bytes[0] == CLOSE);
            assert_eq!(close.len(), usize::from(can_half_close));
            let bytes: Vec<u8> = stdin.iter().flat_map(|bytes| &bytes[1..]).copied().collect();
            assert!(bytes == big && stdin.iter().all(|bytes| bytes[0] == STDIN));
        }
    }

    #[tokio::test]
    async fn a_connection_that_breaks_is_heard_of_by_whoever_writes() {
        // The receiver of the messages is dropped at once.
        let broken = mpsc::unbounded::<Message>().0.sink_map_err(|_| WsError::ConnectionClosed);
        let (mut writer, input) = tokio::io::duplex(BUFFER);
        let sending = tokio::spawn(send(input, Box::pin(broken), true));
        writer.write_all(b"x").await.expect("taken");
        sending.await.expect("ended");
        assert!(writer.write_all(b"y").await.is_err());
    }
}
