//! The link: typed calls over the byte stream to an agent.
//!
//! ```text
//! call() --frame--> writer task --> stream --> agent
//!    ^                                           |
//!    '---- reply by call id ---- reader task <---'
//! ```
//!
//! Many calls may be under way at once; replies come in any order. Whatever breaks the rules of
//! the protocol, or an agent that falls silent, ends the link and with it all its calls: the
//! agent's side is not trusted, and a stream that is out of step cannot be mended.

use std::{
    collections::HashMap,
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use protocol::{
    frame::{FrameError, Kind, MAX_BODY, PREFIX_LEN, PROTOCOL_VERSION, Prefix},
    limits::MAX_LINE,
    message::{
        Abandon, AgentHello, Failure, FailureCode, FileEntry, Get, GetDone, Hibernate, Kill, List,
        Output, OutputDone, Peek, PeekDone, PeerVersion, Ping, Put, PutDone, Request, Run, RunDone,
        ServerHello, Warm, WarmDone,
    },
};
use thiserror::Error;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    sync::{mpsc, oneshot},
    task::JoinSet,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use crate::{
    artifact::{self, DataPath},
    figures::Memory,
};

/// Why a call came to nothing.
#[derive(Debug, Clone, Error)]
pub enum LinkError {
    /// The agent says why.
    #[error("the agent refused: {:?}: {}", .0.code, .0.detail)]
    Refused(Failure),
    /// The stream has ended or was ended.
    #[error("the link is closed")]
    Closed,
    /// The agent does not keep to the protocol.
    #[error("the agent does not keep to the protocol: {0}")]
    Broken(String),
    /// The agent is of another version.
    #[error("the agent speaks protocol {0}, this server {PROTOCOL_VERSION}")]
    Version(u32),
}

impl LinkError {
    /// The agent's reason, if it gave one.
    pub fn code(&self) -> Option<FailureCode> {
        match self {
            Self::Refused(failure) => Some(failure.code),
            _ => None,
        }
    }
}

/// How the link keeps watch over the other side.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// Most time that the agent takes to say hello.
    pub hello: Duration,
    /// Time between pings.
    pub ping: Duration,
    /// Silence after which each side takes the other for dead. It is also the most time that an
    /// answer takes: an agent that still answers pings but not a call is not one of ours. A run has
    /// this long from its own deadline.
    pub silence: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            // A busy machine starts a container in a second or two; gVisor takes longer.
            hello: Duration::from_secs(20),
            ping: Duration::from_secs(10),
            silence: Duration::from_secs(45),
        }
    }
}

/// Frames that wait to be written. Each is at most a mebibyte, so this bounds memory as well.
const QUEUE: usize = 4;

/// Pages of listing that are asked for, each a mebibyte unless it is the last: all files of a data
/// area with names of ordinary length. A hostile agent could go on for ever.
const MAX_PAGES: usize = 4;

/// A handle to the link; clones share it.
#[derive(Debug, Clone)]
pub struct Link {
    frames: mpsc::Sender<Outgoing>,
    calls: Arc<Calls>,
    closed: CancellationToken,
    memory: Memory,
    /// [`Timing::silence`].
    patience: Duration,
}

/// Owns the link's tasks: dropping it ends them, the stream, and so the sandbox.
#[derive(Debug)]
pub struct LinkOwner {
    tasks: JoinSet<()>,
    closed: CancellationToken,
}

impl LinkOwner {
    /// Resolves when the link has ended.
    pub async fn closed(&self) {
        self.closed.cancelled().await;
    }
}

impl Drop for LinkOwner {
    fn drop(&mut self) {
        self.closed.cancel();
        self.tasks.abort_all();
    }
}

#[derive(Debug)]
struct Outgoing {
    call: u32,
    kind: Kind,
    head: Vec<u8>,
    body: Bytes,
}

type Answer = Result<(Bytes, Bytes), Failure>;

/// The calls that wait for an answer.
#[derive(Debug, Default)]
struct Calls {
    waiting: Mutex<HashMap<u32, oneshot::Sender<Answer>>>,
    last: AtomicU32,
}

impl Calls {
    fn begin(&self) -> (u32, oneshot::Receiver<Answer>) {
        // 0 is the hello's. After four thousand million calls an id comes again; it is long free.
        let call = self.last.fetch_add(1, Ordering::Relaxed).wrapping_add(1).max(1);
        let (sender, receiver) = oneshot::channel();
        self.lock().insert(call, sender);
        (call, receiver)
    }

    fn end(&self, call: u32) -> Option<oneshot::Sender<Answer>> {
        self.lock().remove(&call)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u32, oneshot::Sender<Answer>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A run under way: wait for [`finish`](Self::finish), or kill it by its number meanwhile.
#[derive(Debug)]
pub struct Running {
    /// Names the run to [`Link::kill`].
    pub call: u32,
    answer: Awaited,
    /// Longest that it may take.
    limit: Duration,
}

impl Running {
    /// Waits for the end. The bytes are those described at [`RunDone`].
    pub async fn finish(self) -> Result<(RunDone, Bytes), LinkError> {
        let closed = self.answer.closed.clone();
        within(self.limit, &closed, self.answer.decode::<Run>()).await
    }
}

/// A file on its way. It appears with its last piece or not at all.
#[derive(Debug)]
pub struct Upload {
    link: Link,
    number: u32,
    path: String,
    overwrite: bool,
    offset: u64,
}

impl Upload {
    /// Writes the next piece, at most [`MAX_BODY`] bytes.
    pub async fn put(&mut self, piece: Bytes, last: bool) -> Result<PutDone, LinkError> {
        let &mut Self { number: upload, overwrite, offset, .. } = self;
        let put = Put { upload, path: self.path.clone(), offset, last, overwrite };
        self.offset += piece.len() as u64;
        Ok(self.link.call(&put, piece).await?.0)
    }

    /// Bytes that were sent so far.
    pub fn sent(&self) -> u64 {
        self.offset
    }

    /// There will be no last piece. The agent keeps nothing of it.
    pub async fn abandon(self) -> Result<(), LinkError> {
        self.link.call(&Abandon { upload: self.number }, Bytes::new()).await.map(drop)
    }
}

/// An answer that will come, unless the link ends first.
#[derive(Debug)]
struct Awaited {
    answer: oneshot::Receiver<Answer>,
    closed: CancellationToken,
}

impl Awaited {
    async fn decode<R: Request>(self) -> Result<(R::Reply, Bytes), LinkError> {
        let answer = tokio::select! {
            biased;
            answer = self.answer => answer,
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
    /// Speaks to an agent: it answers a hello, then calls may be made. It begins at once to load the
    /// modules.
    ///
    /// # Errors
    ///
    /// [`LinkError::Version`] for an agent of another version, [`LinkError::Closed`] if the stream ends
    /// before a hello, [`LinkError::Broken`] for anything else that comes, or if nothing does in time.
    pub async fn connect(
        mut reader: impl AsyncRead + Send + Unpin + 'static,
        writer: impl AsyncWrite + Send + Unpin + 'static,
        timing: Timing,
        preload: Option<Vec<String>>,
    ) -> Result<(Self, LinkOwner), LinkError> {
        let (frames, queue) = mpsc::channel(QUEUE);
        let closed = CancellationToken::new();
        let link = Self {
            frames,
            calls: Arc::default(),
            closed,
            memory: Memory::default(),
            patience: timing.silence,
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(until_closed(link.closed.clone(), write_frames(writer, queue)));
        let owner = LinkOwner { tasks, closed: link.closed.clone() };

        let hello = ServerHello {
            version: PROTOCOL_VERSION,
            silence_limit_ms: u64::try_from(timing.silence.as_millis()).unwrap_or(u64::MAX),
            preload,
        };
        link.send(0, Kind::Hello, &hello, Bytes::new()).await?;
        let (prefix, head, _) = match timeout(timing.hello, read_frame(&mut reader)).await {
            Ok(Ok(frame)) => frame,
            Ok(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(LinkError::Closed);
            }
            Ok(Err(error)) => return Err(LinkError::Broken(error.to_string())),
            Err(_) => return Err(LinkError::Broken("no hello".into())),
        };
        if prefix.kind != Kind::Hello {
            return Err(LinkError::Broken("something before its hello".into()));
        }
        // Of another version nothing else is known, and it may not even have waited for ours.
        let PeerVersion { version } = parse(&link.closed, &head)?;
        if version != PROTOCOL_VERSION {
            return Err(LinkError::Version(version));
        }
        let _: AgentHello = parse(&link.closed, &head)?;

        let mut owner = owner;
        let calls = link.calls.clone();
        owner.tasks.spawn(until_closed(link.closed.clone(), read_frames(reader, calls)));
        owner.tasks.spawn(until_closed(link.closed.clone(), heartbeat(link.clone(), timing)));
        Ok((link, owner))
    }

    /// Starts a program. Resolves when it has been sent.
    pub async fn run(&self, run: &Run, body: Bytes) -> Result<Running, LinkError> {
        let (call, answer) = self.begin(run, body).await?;
        let limit = Duration::from_millis(run.timeout_ms).saturating_add(self.patience);
        Ok(Running { call, answer, limit })
    }

    /// Kills a run; no error if it has ended.
    pub async fn kill(&self, run: u32) -> Result<(), LinkError> {
        self.call(&Kill { run }, Bytes::new()).await.map(drop)
    }

    /// Waits until the next run starts warm, or it is known that it will not. However long that takes:
    /// it is loading, and not an answer, that is waited for.
    pub async fn warm(&self) -> Result<WarmDone, LinkError> {
        let (_, answer) = self.begin(&Warm {}, Bytes::new()).await?;
        Ok(answer.decode::<Warm>().await?.0)
    }

    /// Gives up what makes runs warm, for its memory.
    pub async fn hibernate(&self) -> Result<(), LinkError> {
        self.call(&Hibernate {}, Bytes::new()).await.map(drop)
    }

    /// Asks for a sign of life.
    pub async fn ping(&self) -> Result<(), LinkError> {
        let (pong, _) = self.call(&Ping {}, Bytes::new()).await?;
        if let Some(bytes) = pong.memory_bytes {
            self.memory.set(bytes);
        }
        Ok(())
    }

    /// The sandbox's memory, as its agent said with its last sign of life.
    pub(crate) fn memory(&self) -> Memory {
        self.memory.clone()
    }

    /// Begins to write a file; nothing is sent before its first piece.
    pub fn upload(&self, path: &DataPath, overwrite: bool) -> Upload {
        let number = self.calls.last.fetch_add(1, Ordering::Relaxed);
        let path = path.as_str().to_owned();
        Upload { link: self.clone(), number, path, overwrite, offset: 0 }
    }

    /// Reads a piece of an output that was cut, at most [`MAX_BODY`] bytes. The run is named by its
    /// call.
    pub async fn output(&self, wanted: &Output) -> Result<(OutputDone, Bytes), LinkError> {
        let wanted = Output { len: wanted.len.min(MAX_BODY), ..*wanted };
        let (done, bytes) = self.call(&wanted, Bytes::new()).await?;
        if done.kept > done.total {
            return Err(self.broken("more output kept than there was"));
        }
        let there = done.kept.saturating_sub(wanted.offset).min(wanted.len as u64);
        if bytes.len() as u64 != there {
            return Err(self.broken("another number of bytes than it says it has"));
        }
        Ok((done, bytes))
    }

    /// Looks at a run in progress: how much it has written, and its newest line.
    pub async fn peek(&self, run: u32) -> Result<(PeekDone, Bytes), LinkError> {
        let (done, line) = self.call(&Peek { run }, Bytes::new()).await?;
        if line.len() > MAX_LINE {
            return Err(self.broken("a line longer than a line may be"));
        }
        Ok((done, line))
    }

    /// Reads a piece of a file, at most [`MAX_BODY`] bytes.
    pub async fn get(
        &self,
        path: &DataPath,
        offset: u64,
        len: usize,
    ) -> Result<(GetDone, Bytes), LinkError> {
        let len = len.min(MAX_BODY);
        let get = Get { path: path.as_str().to_owned(), offset, len };
        let (done, bytes) = self.call(&get, Bytes::new()).await?;
        if bytes.len() > len {
            return Err(self.broken("more bytes than were asked for"));
        }
        Ok((done, bytes))
    }

    /// Lists files, by path, as many as there are on [`MAX_PAGES`]; the second value says whether
    /// there are more.
    pub async fn list(&self) -> Result<(Vec<FileEntry>, bool), LinkError> {
        let mut all: Vec<FileEntry> = vec![];
        for _ in 0..MAX_PAGES {
            let after = all.last().map(|entry| entry.path.clone());
            let (done, body) = self.call(&List { after }, Bytes::new()).await?;
            let page: Vec<FileEntry> = parse(&self.closed, &body)?;
            if done.more && page.is_empty() {
                return Err(self.broken("an empty page that is not the last"));
            }
            all.extend(page);
            if !done.more {
                return Ok((all, false));
            }
        }
        Ok((all, true))
    }

    async fn call<R: Request>(
        &self,
        request: &R,
        body: Bytes,
    ) -> Result<(R::Reply, Bytes), LinkError> {
        let answer = async { self.begin(request, body).await?.1.decode::<R>().await };
        within(self.patience, &self.closed, answer).await
    }

    async fn begin<R: Request>(
        &self,
        request: &R,
        body: Bytes,
    ) -> Result<(u32, Awaited), LinkError> {
        let (call, answer) = self.calls.begin();
        if let Err(error) = self.send(call, R::KIND, request, body).await {
            self.calls.end(call);
            return Err(error);
        }
        Ok((call, Awaited { answer, closed: self.closed.clone() }))
    }

    async fn send(
        &self,
        call: u32,
        kind: Kind,
        head: &impl serde::Serialize,
        body: Bytes,
    ) -> Result<(), LinkError> {
        let head =
            serde_json::to_vec(head).map_err(|error| LinkError::Broken(error.to_string()))?;
        let frame = Outgoing { call, kind, head, body };
        self.frames.send(frame).await.map_err(|_| LinkError::Closed)
    }

    /// Resolves when the link has ended.
    pub async fn closed(&self) {
        self.closed.cancelled().await;
    }

    /// Ends the link; every call under way is answered [`LinkError::Closed`].
    pub fn close(&self) {
        self.closed.cancel();
    }

    fn broken(&self, why: &str) -> LinkError {
        broken(&self.closed, why)
    }
}

/// Ends the link of an agent that does not keep to the protocol.
fn broken(closed: &CancellationToken, why: &str) -> LinkError {
    closed.cancel();
    LinkError::Broken(why.into())
}

/// What cannot be read is shown in part: it may be of any length and quote whatever was sent.
fn parse<T: serde::de::DeserializeOwned>(
    closed: &CancellationToken,
    json: &[u8],
) -> Result<T, LinkError> {
    serde_json::from_slice(json)
        .map_err(|error| broken(closed, &artifact::printable(&error.to_string())))
}

/// Bounds the wait for an answer.
async fn within<T>(
    limit: Duration,
    closed: &CancellationToken,
    answer: impl Future<Output = Result<T, LinkError>>,
) -> Result<T, LinkError> {
    timeout(limit, answer).await.unwrap_or_else(|_| Err(broken(closed, "no answer to a call")))
}

/// Runs a task of the link; when one ends, so does the link.
async fn until_closed(closed: CancellationToken, task: impl Future<Output = Result<(), String>>) {
    let ended = closed.run_until_cancelled(task).await;
    if let Some(Err(why)) = ended {
        tracing::debug!(why, "link ended");
    }
    closed.cancel();
}

async fn write_frames(
    mut writer: impl AsyncWrite + Unpin,
    mut queue: mpsc::Receiver<Outgoing>,
) -> Result<(), String> {
    let mut start = Vec::new();
    while let Some(Outgoing { call, kind, head, body }) = queue.recv().await {
        let prefix = Prefix { call, kind, head_len: head.len(), body_len: body.len() };
        start.clear();
        start.extend_from_slice(&prefix.encode().map_err(|error| error.to_string())?);
        start.extend_from_slice(&head);
        let written = async {
            writer.write_all(&start).await?;
            writer.write_all(&body).await?;
            writer.flush().await
        };
        written.await.map_err(|error| error.to_string())?;
    }
    Ok(())
}

async fn read_frames(mut reader: impl AsyncRead + Unpin, calls: Arc<Calls>) -> Result<(), String> {
    loop {
        let (prefix, head, body) =
            read_frame(&mut reader).await.map_err(|error| error.to_string())?;
        let answer = match prefix.kind {
            Kind::Reply => Ok((head, body)),
            Kind::Failure => Err(read_failure(&head)?),
            other => return Err(format!("a {other:?} frame from the agent")),
        };
        let waiting = calls.end(prefix.call).ok_or("an answer to no call")?;
        // A caller that has gone away no longer wants it.
        let _ = waiting.send(answer);
    }
}

/// The detail is for the log, where it shall neither fill pages nor pass for lines of ours.
fn read_failure(head: &[u8]) -> Result<Failure, String> {
    let Failure { code, detail } =
        serde_json::from_slice(head).map_err(|error| artifact::printable(&error.to_string()))?;
    Ok(Failure { code, detail: artifact::printable(&detail) })
}

async fn read_frame(reader: &mut (impl AsyncRead + Unpin)) -> io::Result<(Prefix, Bytes, Bytes)> {
    let mut prefix = [0; PREFIX_LEN];
    reader.read_exact(&mut prefix).await?;
    let prefix = Prefix::decode(prefix)
        .map_err(|error: FrameError| io::Error::new(io::ErrorKind::InvalidData, error))?;
    let mut rest = BytesMut::zeroed(prefix.head_len + prefix.body_len);
    reader.read_exact(&mut rest).await?;
    let head = rest.split_to(prefix.head_len).freeze();
    Ok((prefix, head, rest.freeze()))
}

async fn heartbeat(link: Link, timing: Timing) -> Result<(), String> {
    loop {
        tokio::time::sleep(timing.ping).await;
        link.ping().await.map_err(|error| error.to_string())?;
    }
}
