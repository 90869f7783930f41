//! The path of a call: its frame goes out, its answer comes back, and the pump moves both over the stream.
//!
//! ```text
//! begin --frame--> queue --> pump --> stream
//! Awaited <--answer by call number-- pump <--'
//!
//! pump: moving --lost--> reopening (`resume`) --what was missed is sent again--> moving
//!          |                '-- for too long: the end of the link
//!          '-- broken rules, or no hold: the end of the link
//! ```

use std::{
    collections::HashMap,
    fmt, io, mem,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use model::text::printable;
use parking_lot::{Mutex, MutexGuard};
use protocol::{
    frame::{FrameError, Kind, PREFIX_LEN, Prefix},
    message::{Failure, Request},
};
use serde::{Serialize, de::DeserializeOwned};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    sync::{mpsc, oneshot},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    Link, LinkError, Timing,
    asks::Incoming,
    resume::{Holding, reopened},
};

/// An answer that will arrive unless the link ends first.
#[derive(Debug)]
pub(super) struct Awaited {
    pub(super) answer: oneshot::Receiver<Answer>,
    pub(super) closed: CancellationToken,
}

impl Awaited {
    pub(super) async fn decode<R: Request>(&mut self) -> Result<(R::Reply, Bytes), LinkError> {
        let answer = tokio::select! {
            biased;
            answer = &mut self.answer => answer,
            () = self.closed.cancelled() => return Err(LinkError::Closed),
        };
        match answer {
            Ok(Ok((head, body))) => Ok((parse(&self.closed, &head)?, body)),
            Ok(Err(failure)) => Err(LinkError::Refused(failure)),
            Err(_) => Err(LinkError::Closed),
        }
    }
}

impl Link {
    /// Makes a call and waits for its answer.
    pub(super) async fn call<R: Request>(
        &self,
        request: &R,
        body: Bytes,
    ) -> Result<(R::Reply, Bytes), LinkError> {
        self.call_within(self.silence, request, body).await
    }

    /// Makes a call that may take this time.
    pub(super) async fn call_within<R: Request>(
        &self,
        limit: Duration,
        request: &R,
        body: Bytes,
    ) -> Result<(R::Reply, Bytes), LinkError> {
        let answer = async { self.begin(request, body).await?.1.decode::<R>().await };
        within(limit, &self.closed, answer).await
    }

    /// Sends a request. Returns the number of its call, and its answer.
    pub(super) async fn begin<R: Request>(
        &self,
        request: &R,
        body: Bytes,
    ) -> Result<(u32, Awaited), LinkError> {
        let (call, answer) = self.calls.begin();
        self.send(call, request, body).await?;
        Ok((call, Awaited { answer, closed: self.closed.clone() }))
    }

    /// Sends the request of a call that has begun.
    pub(super) async fn send<R: Request>(
        &self,
        call: u32,
        request: &R,
        body: Bytes,
    ) -> Result<(), LinkError> {
        let head = encoded(request)?;
        if self.frames.send(Outgoing { call, kind: R::KIND, head, body }).await.is_err() {
            self.calls.end(call);
            return Err(LinkError::Closed);
        }
        Ok(())
    }

    pub(super) fn broken(&self, why: &str) -> LinkError {
        broken(&self.closed, why)
    }
}

/// Ends the link of an agent that violated the protocol.
pub(super) fn broken(closed: &CancellationToken, why: &str) -> LinkError {
    closed.cancel();
    LinkError::Broken(why.into())
}

fn encoded(head: &impl Serialize) -> Result<Vec<u8>, LinkError> {
    serde_json::to_vec(head).map_err(|error| LinkError::Broken(error.to_string()))
}

/// Parses JSON; ends the link if it is invalid.
pub(super) fn parse<T: DeserializeOwned>(
    closed: &CancellationToken,
    json: &[u8],
) -> Result<T, LinkError> {
    read_json(json).inspect_err(|_| closed.cancel())
}

/// Parses JSON. The error is shortened: it may be of any length and quote whatever was sent.
pub(super) fn read_json<T: DeserializeOwned>(json: &[u8]) -> Result<T, LinkError> {
    serde_json::from_slice(json).map_err(|error| LinkError::Broken(printable(&error.to_string())))
}

/// Limits the wait for an answer; ends the link after that.
pub(super) async fn within<T>(
    limit: Duration,
    closed: &CancellationToken,
    answer: impl Future<Output = Result<T, LinkError>>,
) -> Result<T, LinkError> {
    timeout(limit, answer).await.unwrap_or_else(|_| Err(broken(closed, "no answer to a call")))
}

/// A frame to be written.
#[derive(Debug, Clone)]
pub(super) struct Outgoing {
    pub(super) call: u32,
    pub(super) kind: Kind,
    pub(super) head: Vec<u8>,
    pub(super) body: Bytes,
}

/// Head and body of a reply, or the failure that arrived instead.
pub(super) type Answer = Result<(Bytes, Bytes), Failure>;

/// The calls that wait for an answer, and the numbers of frames sent and received.
#[derive(Debug)]
pub(super) struct Calls {
    waiting: Mutex<HashMap<u32, Waiting>>,
    last: AtomicU32,
    /// Calls up to this id were made by another server.
    others: AtomicU32,
    /// Whether requests are stored until they are answered, to be written again if the stream is lost.
    keeps: bool,
    /// Requests that were written, or count as written.
    sent: AtomicU64,
    /// Frames that were read completely.
    received: AtomicU64,
}

/// A call that waits for its answer.
#[derive(Debug)]
struct Waiting {
    sender: oneshot::Sender<Answer>,
    /// The call's request, and the number of requests that were written before it; `None` until the request is written,
    /// or if requests are not stored.
    written: Option<(u64, Outgoing)>,
}

/// Why a stream no longer moves frames.
#[derive(Debug)]
pub(super) enum Ended {
    /// The stream has ended or broken off.
    Lost(String),
    /// The other side violated the protocol.
    Broken(String),
    /// There is nothing more to write.
    Done,
}

impl From<io::Error> for Ended {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::InvalidData => Self::Broken(error.to_string()),
            _ => Self::Lost(error.to_string()),
        }
    }
}

impl From<Ended> for LinkError {
    fn from(ended: Ended) -> Self {
        match ended {
            Ended::Broken(why) => Self::Broken(why),
            Ended::Lost(_) | Ended::Done => Self::Closed,
        }
    }
}

impl Calls {
    /// Starts without calls.
    pub(super) fn new(keeps: bool) -> Self {
        Self {
            waiting: Mutex::default(),
            last: AtomicU32::new(0),
            others: AtomicU32::new(0),
            keeps,
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
        }
    }

    pub(super) fn begin(&self) -> (u32, oneshot::Receiver<Answer>) {
        // 0 is the hello's id. After four billion calls an id is used again; it is free long before.
        let call = self.number().wrapping_add(1).max(1);
        (call, self.expect(call))
    }

    /// Waits for the answer to a call that another server has made.
    pub(super) fn expect(&self, call: u32) -> oneshot::Receiver<Answer> {
        let (sender, receiver) = oneshot::channel();
        self.lock().insert(call, Waiting { sender, written: None });
        receiver
    }

    pub(super) fn end(&self, call: u32) -> Option<oneshot::Sender<Answer>> {
        Some(self.lock().remove(&call)?.sender)
    }

    /// A number that nothing else on this link has used lately.
    pub(super) fn number(&self) -> u32 {
        self.last.fetch_add(1, Ordering::Relaxed)
    }

    /// Continues after the calls of another server.
    pub(super) fn go_on_after(&self, last_call: u32, sent: u64, received: u64) {
        self.last.store(last_call, Ordering::Relaxed);
        self.others.store(last_call, Ordering::Relaxed);
        self.sent.store(sent, Ordering::Relaxed);
        self.received.store(received, Ordering::Relaxed);
    }

    /// The number of frames that were read completely.
    pub(super) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Records a request that is about to be written.
    fn note(&self, frame: &Outgoing) {
        let before = self.sent.fetch_add(1, Ordering::Relaxed);
        if self.keeps
            && let Some(waiting) = self.lock().get_mut(&frame.call)
        {
            waiting.written = Some((before, frame.clone()));
        }
    }

    /// Returns the requests that the agent did not receive, the oldest first, and marks them as written. `received` is
    /// the number of requests that it has received.
    pub(super) fn unreceived(&self, received: u64) -> Vec<Outgoing> {
        let mut waiting = self.lock();
        let written = waiting.values_mut().filter_map(|waiting| waiting.written.as_mut());
        let mut again: Vec<_> = written.filter(|(before, _)| *before >= received).collect();
        again.sort_unstable_by_key(|(before, _)| *before);
        for (number, (before, _)) in (received..).zip(&mut again) {
            *before = number;
        }
        self.sent.store(received + again.len() as u64, Ordering::Relaxed);
        again.into_iter().map(|(_, frame)| frame.clone()).collect()
    }

    /// Whether another server made this call, so that its answer may arrive unexpectedly.
    fn is_of_another(&self, call: u32) -> bool {
        call <= self.others.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u32, Waiting>> {
        self.waiting.lock()
    }
}

/// Both directions of a stream to an agent.
pub struct Stream {
    /// From the agent.
    pub reader: Box<dyn AsyncRead + Send + Unpin>,
    /// To the agent.
    pub writer: Box<dyn AsyncWrite + Send + Unpin>,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").finish_non_exhaustive()
    }
}

/// Moves frames until the link ends. Returns why it ended, or `Ok` if there is nothing left to write.
pub(super) async fn pump(
    mut stream: Stream,
    mut queue: mpsc::Receiver<Outgoing>,
    calls: Arc<Calls>,
    timing: Timing,
    holding: Option<Holding>,
    incoming: Incoming,
) -> Result<(), String> {
    loop {
        let Stream { reader, writer } = &mut stream;
        let ended = tokio::select! {
            ended = write_frames(writer, &mut queue, &calls) => ended,
            ended = read_frames(reader, &calls, &incoming) => ended,
            ended = silent(&calls, timing), if holding.is_some() => ended,
        };
        let why = match ended {
            Ended::Done => return Ok(()),
            Ended::Broken(why) => return Err(why),
            Ended::Lost(why) => why,
        };
        let Some(holding) = &holding else { return Err(why) };
        tracing::info!(why, "stream lost, reconnecting");
        drop(stream);
        stream = reopened(&calls, timing, holding).await?;
        tracing::info!("stream resumed");
    }
}

/// Resolves when nothing was received for `timing.silence`, although pings were sent.
async fn silent(calls: &Calls, timing: Timing) -> Ended {
    loop {
        let before = calls.received();
        sleep(timing.silence).await;
        if calls.received() == before {
            return Ended::Lost("silence".into());
        }
    }
}

/// Writes the first frame on a new stream, and reads the answer to it.
pub(super) async fn exchange(
    stream: &mut Stream,
    kind: Kind,
    head: &impl Serialize,
) -> Result<(Prefix, Bytes, Bytes), LinkError> {
    let frame = Outgoing { call: 0, kind, head: encoded(head)?, body: Bytes::new() };
    write_frame(&mut stream.writer, &frame).await?;
    Ok(read_frame(&mut stream.reader).await.map_err(Ended::from)?)
}

/// Writes the requests in the queue, until it is closed. Each counts as written as soon as its writing begins.
async fn write_frames(
    writer: &mut (impl AsyncWrite + Unpin),
    queue: &mut mpsc::Receiver<Outgoing>,
    calls: &Calls,
) -> Ended {
    while let Some(frame) = queue.recv().await {
        calls.note(&frame);
        if let Err(ended) = write_frame(writer, &frame).await {
            return ended;
        }
    }
    Ended::Done
}

/// Writes a frame.
pub(super) async fn write_frame(
    writer: &mut (impl AsyncWrite + Unpin),
    Outgoing { call, kind, head, body }: &Outgoing,
) -> Result<(), Ended> {
    let prefix = Prefix { call: *call, kind: *kind, head_len: head.len(), body_len: body.len() };
    let prefix = prefix.encode().map_err(|error| Ended::Broken(error.to_string()))?;
    writer.write_all(&[&prefix, &head[..]].concat()).await?;
    writer.write_all(body).await?;
    Ok(writer.flush().await?)
}

/// Passes each answer to the call that waits for it, and each question to the session, until the stream ends or violates the protocol.
async fn read_frames(
    reader: &mut (impl AsyncRead + Unpin),
    calls: &Calls,
    incoming: &Incoming,
) -> Ended {
    loop {
        let (prefix, head, body) = match read_frame(reader).await {
            Ok(frame) => frame,
            Err(error) => return error.into(),
        };
        if matches!(prefix.kind, Kind::Ask | Kind::Withdraw) {
            match incoming.take(prefix.kind, prefix.call, &head, body).await {
                Ok(()) => continue,
                Err(why) => return Ended::Broken(why),
            }
        }
        calls.received.fetch_add(1, Ordering::Relaxed);
        let answer = match prefix.kind {
            Kind::Reply => Ok((head, body)),
            Kind::Failure => match read_failure(&head) {
                Ok(failure) => Err(failure),
                Err(why) => return Ended::Broken(why),
            },
            other => return Ended::Broken(format!("a {other:?} frame from the agent")),
        };
        match calls.end(prefix.call) {
            // The caller may no longer wait for the answer.
            Some(waiting) => drop(waiting.send(answer)),
            None if calls.is_of_another(prefix.call) => {}
            None => return Ended::Broken("an answer to no call".into()),
        }
    }
}

/// Reads a failure. Its detail goes to the log, where it must neither fill pages nor look like the server's own lines.
fn read_failure(head: &[u8]) -> Result<Failure, String> {
    let Failure { code, detail } =
        serde_json::from_slice(head).map_err(|error| printable(&error.to_string()))?;
    Ok(Failure { code, detail: printable(&detail) })
}

/// Frames of at least this length are read into buffers that are used again. Otherwise they would be mapped one by one
/// (`src/heap.rs`), and the kernel clears what it maps: a third of the server's time for a download.
const LARGE: usize = 256 << 10;

/// Maximum number of free buffers for the next large frames, of any session.
const SPARE_BUFFERS: usize = 4;

static SPARE: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());

/// A large frame, whose buffer is used again after it is dropped.
struct LargeFrame(Vec<u8>);

impl LargeFrame {
    /// Reads a frame of this length.
    async fn read(reader: &mut (impl AsyncRead + Unpin), len: usize) -> io::Result<Bytes> {
        let buffer = SPARE.lock().pop().unwrap_or_default();
        let mut frame = Self(buffer);
        if frame.0.len() < len {
            frame.0.resize(len, 0);
        }
        reader.read_exact(&mut frame.0[..len]).await?;
        Ok(Bytes::from_owner(frame).slice(..len))
    }
}

impl AsRef<[u8]> for LargeFrame {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for LargeFrame {
    fn drop(&mut self) {
        let mut spare = SPARE.lock();
        if spare.len() < SPARE_BUFFERS {
            spare.push(mem::take(&mut self.0));
        }
    }
}

/// Reads one frame; its caps are checked before anything is allocated.
async fn read_frame(reader: &mut (impl AsyncRead + Unpin)) -> io::Result<(Prefix, Bytes, Bytes)> {
    let mut prefix = [0; PREFIX_LEN];
    reader.read_exact(&mut prefix).await?;
    let prefix = Prefix::decode(prefix)
        .map_err(|error: FrameError| io::Error::new(io::ErrorKind::InvalidData, error))?;
    let len = prefix.head_len + prefix.body_len;
    let mut rest = if len < LARGE {
        let mut rest = BytesMut::zeroed(len);
        reader.read_exact(&mut rest).await?;
        rest.freeze()
    } else {
        LargeFrame::read(reader, len).await?
    };
    let head = rest.split_to(prefix.head_len);
    Ok((prefix, head, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_large_frame_holds_what_was_sent_and_not_what_its_buffer_had() {
        let frame = |head: &[u8], len: usize, byte: u8| {
            let mut wire = vec![];
            let body = vec![byte; len];
            protocol::frame::write(&mut wire, 1, Kind::Reply, head, &[&body]).expect("within caps");
            wire
        };
        let mut before = None;
        for (head, len, byte) in [(&b"{}"[..], 1 << 20, 1), (b"{ }", LARGE, 2), (b"{}", 700_000, 3)]
        {
            let wire = frame(head, len, byte);
            let (_, read, body) = read_frame(&mut &wire[..]).await.expect("whole");
            assert_eq!((&read[..], body.len()), (head, len));
            assert!(body.iter().all(|&it| it == byte));
            if let Some((body, byte)) = before.replace((body, byte)) {
                let body: Bytes = body;
                assert!(body.iter().all(|it| *it == byte), "a buffer in use is nobody else's");
            }
        }
        let cut = frame(b"{}", 1 << 20, 4);
        assert!(read_frame(&mut &cut[..1 << 19]).await.is_err());
        assert!(SPARE.lock().len() <= SPARE_BUFFERS);
    }

    fn request(call: u32) -> Outgoing {
        Outgoing { call, kind: Kind::Ping, head: b"{}".to_vec(), body: Bytes::new() }
    }

    #[test]
    fn what_was_not_received_is_written_again_in_its_order_however_often_streams_break() {
        let calls = Calls::new(true);
        let waiting: Vec<_> = (0..5).map(|_| calls.begin()).collect();
        for (call, _) in &waiting {
            calls.note(&request(*call));
        }
        let numbers: Vec<_> = waiting.iter().map(|(call, _)| *call).collect();
        // The first request was answered, and the second was received.
        calls.end(numbers[0]);
        let again = |received| {
            calls.unreceived(received).iter().map(|frame| frame.call).collect::<Vec<_>>()
        };
        assert_eq!(again(2), numbers[2..]);
        // The agent has received no further request, then one more.
        assert_eq!(again(2), numbers[2..]);
        assert_eq!(again(3), numbers[3..]);
        let (next, _waiting) = calls.begin();
        calls.note(&request(next));
        assert_eq!(again(4), [numbers[4], next]);
        assert!(again(6).is_empty());
    }

    #[test]
    fn nothing_is_kept_where_nothing_can_be_resumed() {
        let calls = Calls::new(false);
        let (call, _waiting) = calls.begin();
        calls.note(&request(call));
        assert!(calls.unreceived(0).is_empty());
    }
}
