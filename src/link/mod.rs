//! The link: typed calls over the byte stream to an agent.
//!
//! ```text
//! call() --frame--> carrying task --> stream --> agent
//!    ^                                             |
//!    '---- reply by call id ---- carrying task <---'
//! ```
//!
//! Many calls may be in progress at once; replies arrive in any order. A violation of the protocol, or a silent agent,
//! ends the link and all its calls: the agent's side is not trusted, and a stream that is out of step cannot be
//! repaired. Only a stream that breaks off can be replaced, if the sandbox holds.
//!
//! `wire` has the frames, `carry` the stream that they go over and its replacement, `runs` the format of a run's reply.

mod carry;
mod runs;
mod vitals;
mod wire;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use model::{DataPath, Existing, text::printable};
use protocol::{
    frame::{Kind, MAX_BODY, PROTOCOL_VERSION},
    limits::MAX_LINE,
    limits::{MAX_CARRIED, MAX_UNDO, MAX_VARIABLE_CHARS, MAX_VARIABLES},
    message::{
        Abandon, AgentHello, Carried, CarryLimits, Contents, Export, ExportDone, Failure,
        FailureCode, FileEntry, Forget, Get, GetDone, Hibernate, Import, Inspect, InspectDone,
        Install, Kill, List, Output, OutputDone, PackagePiece, Peek, PeekDone, PeerVersion, Ping,
        Put, PutDone, Request, Reset, ResetDone, RuntimeName, ServerHello, Warm, WarmDone,
    },
    resume::Remember,
};
use thiserror::Error;
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinSet,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

pub(crate) use self::vitals::Memory;

pub use self::{
    carry::{Holding, Reconnect, Stream},
    runs::{CapturedOutput, CellReply, RunReply, RunRequest, Running},
};
use self::{
    carry::{carry, introduce, millis},
    wire::{Answer, Calls, Ended, Outgoing, read_frame, write_frame},
};

/// Why a call failed.
#[derive(Debug, Clone, Error)]
pub enum LinkError {
    /// The agent refused, with this reason.
    #[error("the agent refused: {:?}: {}", .0.code, .0.detail)]
    Refused(Failure),
    /// The stream has ended or was ended.
    #[error("the link is closed")]
    Closed,
    /// The agent violated the protocol.
    #[error("the agent does not keep to the protocol: {0}")]
    Broken(String),
    /// The agent has another version of the protocol.
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

/// The times by which the link monitors the other side.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// Longest time until the agent's hello.
    pub hello: Duration,
    /// Time between pings.
    pub ping: Duration,
    /// Silence after which each side considers the other dead. It is also the longest time for an answer: an agent that
    /// answers pings but not a call is not trusted. A run has this long after its own deadline.
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

/// Frames that wait to be written. Each is at most 1 MiB, so this limits memory as well.
const QUEUED_FRAMES: usize = 4;

/// Pages of a listing that are requested, each 1 MiB except the last: enough for all files of a data area with names of
/// ordinary length. A hostile agent could send pages forever.
const MAX_PAGES: usize = 4;

/// A handle to the link; clones share it.
#[derive(Debug, Clone)]
pub struct Link {
    frames: mpsc::Sender<Outgoing>,
    calls: Arc<Calls>,
    closed: CancellationToken,
    memory: Memory,
    /// Longest time for an answer: [`Timing::silence`], and the time that the sandbox holds.
    silence: Duration,
}

/// Owns the link's tasks: dropping it ends them and the stream, and so the sandbox unless that holds.
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

/// An upload in progress. The file appears with its last piece or not at all.
#[derive(Debug)]
pub struct Upload {
    link: Link,
    number: u32,
    path: String,
    existing: Existing,
    offset: u64,
}

impl Upload {
    /// Sends the next piece, at most [`MAX_BODY`] bytes. More may be sent before its answer arrives: the agent takes
    /// them in their order, and none after one that it refuses.
    ///
    /// # Errors
    ///
    /// [`LinkError::Closed`] if the link ends before it is sent.
    pub async fn send(&mut self, piece: Bytes, last: bool) -> Result<Sent, LinkError> {
        let &mut Self { number: upload, existing, offset, .. } = self;
        let overwrite = existing.is_overwritten();
        let put = Put { upload, path: self.path.clone(), offset, last, overwrite };
        self.offset += piece.len() as u64;
        let (_, answer) = self.link.begin(&put, piece).await?;
        Ok(Sent { answer, silence: self.link.silence })
    }

    /// Sends the next piece and waits until it is written.
    ///
    /// # Errors
    ///
    /// The errors of [`send`](Self::send) and [`Sent::written`].
    pub async fn put(&mut self, piece: Bytes, last: bool) -> Result<PutDone, LinkError> {
        self.send(piece, last).await?.written().await
    }

    /// Bytes that were sent so far.
    pub fn sent(&self) -> u64 {
        self.offset
    }

    /// Gives up the upload. The agent keeps nothing of it.
    ///
    /// # Errors
    ///
    /// The errors of every call, see [`Link::kill`].
    pub async fn abandon(self) -> Result<(), LinkError> {
        self.link.call(&Abandon { upload: self.number }, Bytes::new()).await.map(drop)
    }
}

/// A piece of an upload that the agent has not answered yet.
#[derive(Debug)]
pub struct Sent {
    answer: Awaited,
    silence: Duration,
}

impl Sent {
    /// Waits until the piece is written.
    ///
    /// # Errors
    ///
    /// The errors of every call, see [`Link::kill`]; [`FailureCode::Full`], [`FailureCode::Exists`] and
    /// [`FailureCode::BadPath`] say what is wrong with the file. The agent has then dropped the upload.
    pub async fn written(&mut self) -> Result<PutDone, LinkError> {
        let closed = self.answer.closed.clone();
        Ok(within(self.silence, &closed, self.answer.decode::<Put>()).await?.0)
    }
}

/// An answer that will arrive unless the link ends first.
#[derive(Debug)]
struct Awaited {
    answer: oneshot::Receiver<Answer>,
    closed: CancellationToken,
}

impl Awaited {
    async fn decode<R: Request>(&mut self) -> Result<(R::Reply, Bytes), LinkError> {
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

/// The settings that an agent receives with the hello.
#[derive(Debug, Clone, Default)]
pub struct Opening {
    /// Modules that it begins to load at once; `None` loads nothing.
    pub preload: Option<Vec<String>>,
    /// Cells that can be undone; `None` if there will be no cells.
    pub undo: Option<u32>,
    /// How the sandbox outlives its stream; `None` if it ends with the stream.
    pub holding: Option<Holding>,
    /// The time zone of programs; `None` is UTC.
    pub timezone: Option<String>,
}

/// A run that began with another server. No caller waits for its result.
#[derive(Debug)]
pub struct Leftover(Awaited);

impl Leftover {
    /// Waits for its end.
    ///
    /// # Errors
    /// [`LinkError::Closed`] if the link ends before.
    pub async fn over(self) -> Result<(), LinkError> {
        tokio::select! {
            _ = self.0.answer => Ok(()),
            () = self.0.closed.cancelled() => Err(LinkError::Closed),
        }
    }
}

/// The state of a sandbox that another server has left.
#[derive(Debug)]
pub struct Found {
    /// The note that the other server had it [remember](Link::remember), which may be anything.
    pub note: Bytes,
    /// The run that is still in progress.
    pub leftover: Option<Leftover>,
}

impl Link {
    /// Exchanges hellos with an agent; then calls may be made. The agent begins to load the modules at once.
    ///
    /// # Errors
    ///
    /// [`LinkError::Version`] for an agent of another version, [`LinkError::Closed`] if the stream ends before a hello,
    /// [`LinkError::Broken`] if anything else arrives, or nothing in time.
    pub async fn connect(
        mut stream: Stream,
        timing: Timing,
        opening: Opening,
    ) -> Result<(Self, LinkOwner), LinkError> {
        let Opening { preload, undo, holding, timezone } = opening;
        let hello = ServerHello {
            version: PROTOCOL_VERSION,
            silence_limit_ms: millis(timing.silence),
            preload,
            undo,
            hold: holding.as_ref().map(Holding::hold),
            timezone,
        };
        let head =
            serde_json::to_vec(&hello).map_err(|error| LinkError::Broken(error.to_string()))?;
        let frame = Outgoing { call: 0, kind: Kind::Hello, head, body: Bytes::new() };
        let ended = |ended| match ended {
            Ended::Broken(why) => LinkError::Broken(why),
            Ended::Lost(_) | Ended::Done => LinkError::Closed,
        };
        let greeted = async {
            write_frame(&mut stream.writer, &frame).await.map_err(ended)?;
            read_frame(&mut stream.reader).await.map_err(|error| ended(error.into()))
        };
        let (prefix, head, _) = timeout(timing.hello, greeted)
            .await
            .unwrap_or_else(|_| Err(LinkError::Broken("no hello".into())))?;
        if prefix.kind != Kind::Hello {
            return Err(LinkError::Broken("something before its hello".into()));
        }
        let unreadable =
            |error: serde_json::Error| LinkError::Broken(printable(&error.to_string()));
        // The rest of another version's hello is unknown; its agent may not even have waited for the server's hello.
        let PeerVersion { version } = serde_json::from_slice(&head).map_err(unreadable)?;
        if version != PROTOCOL_VERSION {
            return Err(LinkError::Version(version));
        }
        let _: AgentHello = serde_json::from_slice(&head).map_err(unreadable)?;
        let calls = Calls::new(holding.is_some());
        Ok(Self::over(stream, timing, calls, holding))
    }

    /// Resumes a sandbox that another server has left and that holds.
    ///
    /// # Errors
    ///
    /// The errors of [`connect`](Self::connect); [`LinkError::Closed`] also if the agent refuses this server, for
    /// example because it has a stream.
    pub async fn resume(
        mut stream: Stream,
        timing: Timing,
        holding: Holding,
    ) -> Result<(Self, LinkOwner, Found), LinkError> {
        let (resumed, note) = introduce(&mut stream, timing, &holding, None).await?;
        let calls = Calls::new(true);
        calls.go_on_after(resumed.last_call, resumed.received);
        let running = resumed.running.map(|call| calls.expect(call));
        let (link, owner) = Self::over(stream, timing, calls, Some(holding));
        let leftover =
            running.map(|answer| Leftover(Awaited { answer, closed: link.closed.clone() }));
        Ok((link, owner, Found { note, leftover }))
    }

    /// Makes a link over a stream on which both sides have said hello.
    fn over(
        stream: Stream,
        timing: Timing,
        calls: Calls,
        holding: Option<Holding>,
    ) -> (Self, LinkOwner) {
        let (frames, queue) = mpsc::channel(QUEUED_FRAMES);
        let calls = Arc::new(calls);
        let hold = holding.as_ref().map(|holding| holding.limit).unwrap_or_default();
        let link = Self {
            frames,
            calls: calls.clone(),
            closed: CancellationToken::new(),
            memory: Memory::default(),
            // The stream may be lost for as long as the sandbox holds, and an answer may arrive after that.
            silence: timing.silence + hold,
        };
        let mut tasks = JoinSet::new();
        let carrying = carry(stream, queue, calls, timing, holding);
        tasks.spawn(until_closed(link.closed.clone(), carrying));
        tasks.spawn(until_closed(link.closed.clone(), heartbeat(link.clone(), timing)));
        let owner = LinkOwner { tasks, closed: link.closed.clone() };
        (link, owner)
    }

    /// Makes the agent store a note for the server that resumes, at most [`MAX_NOTE`](protocol::limits::MAX_NOTE)
    /// bytes.
    ///
    /// # Errors
    ///
    /// The errors of every call, see [`kill`](Self::kill).
    pub async fn remember(&self, note: Bytes) -> Result<(), LinkError> {
        self.call(&Remember {}, note).await.map(drop)
    }

    /// Kills a run; no error if it has ended.
    ///
    /// # Errors
    ///
    /// The errors of every call: [`LinkError::Refused`] with the agent's reason, [`LinkError::Broken`] if no answer
    /// arrives in time or it is invalid, [`LinkError::Closed`] if the link ends first.
    pub async fn kill(&self, run: u32) -> Result<(), LinkError> {
        self.call(&Kill { run }, Bytes::new()).await.map(drop)
    }

    /// Waits until the next run starts warm, or will not. There is no timeout, because loading modules may take any
    /// time.
    ///
    /// # Errors
    ///
    /// The errors of every call except the timeout, see [`kill`](Self::kill).
    pub async fn warm(&self) -> Result<WarmDone, LinkError> {
        let (_, mut answer) = self.begin(&Warm {}, Bytes::new()).await?;
        Ok(answer.decode::<Warm>().await?.0)
    }

    /// Inspects the interpreter of the workspace; the contents are empty if there is none. The texts about variables
    /// may be anything within its limits.
    ///
    /// # Errors
    ///
    /// The errors of every call, see [`kill`](Self::kill); [`FailureCode::Busy`] during a run.
    pub async fn inspect(
        &self,
        runtime: RuntimeName,
    ) -> Result<(InspectDone, Contents), LinkError> {
        let (mut done, body) = self.call(&Inspect { runtime }, Bytes::new()).await?;
        done.can_undo = done.can_undo.min(MAX_UNDO);
        let contents: Contents =
            if body.is_empty() { Contents::default() } else { parse(&self.closed, &body)? };
        let lengths = contents.variables.iter().flat_map(|it| [it.name.len(), it.summary.len()]);
        let longest = lengths.chain(contents.imports.iter().map(String::len)).max();
        if contents.variables.len().max(contents.imports.len()) > MAX_VARIABLES
            || longest > Some(MAX_VARIABLE_CHARS * char::MAX.len_utf8())
        {
            return Err(self.broken("more of variables than there may be"));
        }
        Ok((done, contents))
    }

    /// Undoes cells, or ends the interpreter of the workspace; deletes all files as well if requested.
    ///
    /// # Errors
    ///
    /// The errors of every call, see [`kill`](Self::kill); [`FailureCode::Busy`] during a run,
    /// [`FailureCode::NothingToUndo`] if fewer cells can be undone.
    pub async fn reset(&self, reset: &Reset) -> Result<ResetDone, LinkError> {
        let (done, _) = self.call(reset, Bytes::new()).await?;
        Ok(ResetDone { can_undo: done.can_undo.min(MAX_UNDO), ..done })
    }

    /// Makes the interpreter of the workspace export its variables, within these limits. The texts about them may be
    /// anything within its limits.
    ///
    /// # Errors
    ///
    /// The errors of every call, see [`kill`](Self::kill), with a longer timeout; [`FailureCode::Busy`] during a run,
    /// [`FailureCode::NoRuntime`] if the interpreter cannot export.
    pub async fn export(
        &self,
        runtime: RuntimeName,
        limits: CarryLimits,
    ) -> Result<(ExportDone, Carried), LinkError> {
        let request = Export { runtime, begin: Some(limits), offset: 0, len: 0 };
        let (done, body) = self.carry(&request, Bytes::new(), limits).await?;
        if done.total > limits.total_bytes.min(MAX_CARRIED) {
            return Err(self.broken("more of variables than was asked for"));
        }
        Ok((done, self.carried(&body)?))
    }

    /// Reads a piece of the exported variables.
    ///
    /// # Errors
    ///
    /// The errors of every call, see [`kill`](Self::kill); [`FailureCode::NotFound`] if nothing was exported.
    pub async fn exported(&self, runtime: RuntimeName, offset: u64) -> Result<Bytes, LinkError> {
        let request = Export { runtime, begin: None, offset, len: MAX_BODY };
        let (done, bytes) = self.call(&request, Bytes::new()).await?;
        let there = done.total.saturating_sub(offset).min(MAX_BODY as u64);
        if bytes.len() as u64 != there || bytes.is_empty() {
            return Err(self.broken("another number of bytes than it says it has"));
        }
        Ok(bytes)
    }

    /// Starts an interpreter with exported variables.
    ///
    /// # Errors
    ///
    /// The errors of [`export`](Self::export); [`FailureCode::BadRequest`] if there is an interpreter already.
    pub async fn import(
        &self,
        runtime: RuntimeName,
        mut bytes: Bytes,
        count: u64,
        limits: CarryLimits,
    ) -> Result<Carried, LinkError> {
        let mut offset = 0;
        loop {
            let piece = bytes.split_to(bytes.len().min(MAX_BODY));
            let last = bytes.is_empty().then_some(limits);
            let request = Import { runtime: runtime.clone(), offset, last, count };
            offset += piece.len() as u64;
            if last.is_none() {
                self.call(&request, piece).await?;
                continue;
            }
            let (_, body) = self.carry(&request, piece, limits).await?;
            return self.carried(&body);
        }
    }

    /// Makes a call that may take the time of these limits.
    async fn carry<R: Request>(
        &self,
        request: &R,
        body: Bytes,
        limits: CarryLimits,
    ) -> Result<(R::Reply, Bytes), LinkError> {
        let time = self.silence + Duration::from_millis(limits.total_ms) * 2;
        let answer = async { self.begin(request, body).await?.1.decode::<R>().await };
        within(time, &self.closed, answer).await
    }

    fn carried(&self, body: &[u8]) -> Result<Carried, LinkError> {
        let carried: Carried =
            if body.is_empty() { Carried::default() } else { parse(&self.closed, body)? };
        let lost = carried.lost.iter().flat_map(|it| [it.name.len(), it.why.len()]);
        let names = carried.variables.iter().chain(&carried.imports).map(String::len);
        let most = carried.variables.len().max(carried.imports.len()).max(carried.lost.len());
        if most > MAX_VARIABLES
            || lost.chain(names).max() > Some(MAX_VARIABLE_CHARS * char::MAX.len_utf8())
        {
            return Err(self.broken("more of variables than there may be"));
        }
        Ok(carried)
    }

    /// Gives up what makes runs warm, to free its memory. With `keep`, the sandbox is saved as well if possible,
    /// without a timeout; returns whether it was.
    ///
    /// # Errors
    ///
    /// The errors of every call, see [`kill`](Self::kill).
    pub async fn hibernate(&self, keep: bool) -> Result<bool, LinkError> {
        let hibernate = Hibernate { keep };
        if !keep {
            return self.call(&hibernate, Bytes::new()).await.map(|_| false);
        }
        let (_, mut answer) = self.begin(&hibernate, Bytes::new()).await?;
        Ok(answer.decode::<Hibernate>().await?.0.kept)
    }

    /// Pings the agent.
    ///
    /// # Errors
    ///
    /// The errors of every call, see [`kill`](Self::kill).
    pub async fn ping(&self) -> Result<(), LinkError> {
        let (pong, _) = self.call(&Ping {}, Bytes::new()).await?;
        if let Some(bytes) = pong.memory_bytes {
            self.memory.set(bytes);
        }
        Ok(())
    }

    /// The sandbox's memory, as its agent reported it with its last ping.
    pub(crate) fn memory(&self) -> Memory {
        self.memory.clone()
    }

    /// Begins an upload; nothing is sent before its first piece.
    pub fn upload(&self, path: &DataPath, existing: Existing) -> Upload {
        let number = self.calls.number();
        let path = path.as_str().to_owned();
        Upload { link: self.clone(), number, path, existing, offset: 0 }
    }

    /// Writes pieces of files of packages, [`MAX_BODY`] bytes at most. Each file has a number of its own.
    ///
    /// # Errors
    ///
    /// The errors of every call, see [`kill`](Self::kill); [`FailureCode::Full`] and [`FailureCode::BadPath`] as for an
    /// upload, [`FailureCode::NoRuntime`] if the sandbox has no place for packages.
    pub async fn install(&self, pieces: Vec<PackagePiece>, body: Bytes) -> Result<(), LinkError> {
        self.call(&Install { pieces }, body).await.map(drop)
    }

    /// A number for a file of a package.
    pub fn file_number(&self) -> u32 {
        self.calls.number()
    }

    /// Reads a piece of a truncated output, at most [`MAX_BODY`] bytes. The run is identified by its call.
    ///
    /// # Errors
    ///
    /// The errors of every call, see [`kill`](Self::kill); [`FailureCode::NotFound`] if it is not kept.
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

    /// Reads the progress of a run: how much it has written, and its newest line.
    ///
    /// # Errors
    ///
    /// The errors of every call, see [`kill`](Self::kill); [`FailureCode::NotFound`] if the run is over.
    pub async fn peek(&self, run: u32) -> Result<(PeekDone, Bytes), LinkError> {
        let (done, line) = self.call(&Peek { run }, Bytes::new()).await?;
        if line.len() > MAX_LINE {
            return Err(self.broken("a line longer than a line may be"));
        }
        Ok((done, line))
    }

    /// Reads a piece of a file, at most [`MAX_BODY`] bytes.
    ///
    /// # Errors
    ///
    /// The errors of every call, see [`kill`](Self::kill); [`FailureCode::NotFound`] and [`FailureCode::BadPath`] if
    /// there is no such file.
    pub async fn get(
        &self,
        path: &DataPath,
        offset: u64,
        len: usize,
    ) -> Result<(GetDone, Bytes), LinkError> {
        let (path, len) = (path.as_str().to_owned(), len.min(MAX_BODY));
        self.piece(Get { path, offset, len, of: None }).await
    }

    /// Reads a piece of a file that a tool call has left.
    ///
    /// # Errors
    ///
    /// The errors of [`get`](Self::get).
    pub async fn get_of(
        &self,
        call: u32,
        path: &DataPath,
        offset: u64,
    ) -> Result<(GetDone, Bytes), LinkError> {
        let path = path.as_str().to_owned();
        self.piece(Get { path, offset, len: MAX_BODY, of: Some(call) }).await
    }

    async fn piece(&self, get: Get) -> Result<(GetDone, Bytes), LinkError> {
        let (done, bytes) = self.call(&get, Bytes::new()).await?;
        if bytes.len() > get.len {
            return Err(self.broken("more bytes than were asked for"));
        }
        Ok((done, bytes))
    }

    /// Makes the agent delete the files that a tool call has left.
    ///
    /// # Errors
    ///
    /// The errors of every call, see [`kill`](Self::kill).
    pub async fn forget(&self, call: u32) -> Result<(), LinkError> {
        self.call(&Forget { call }, Bytes::new()).await.map(drop)
    }

    /// Lists files, by path, up to [`MAX_PAGES`] pages; the second value says whether there are more.
    ///
    /// # Errors
    ///
    /// The errors of every call, see [`kill`](Self::kill).
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
        within(self.silence, &self.closed, answer).await
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

    /// Whether it has ended.
    pub fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    /// Ends the link; every call in progress gets [`LinkError::Closed`].
    pub fn close(&self) {
        self.closed.cancel();
    }

    fn broken(&self, why: &str) -> LinkError {
        broken(&self.closed, why)
    }
}

/// Ends the link of an agent that violated the protocol.
fn broken(closed: &CancellationToken, why: &str) -> LinkError {
    closed.cancel();
    LinkError::Broken(why.into())
}

/// Parses JSON. The error is shortened: it may be of any length and quote whatever was sent.
fn parse<T: serde::de::DeserializeOwned>(
    closed: &CancellationToken,
    json: &[u8],
) -> Result<T, LinkError> {
    serde_json::from_slice(json).map_err(|error| broken(closed, &printable(&error.to_string())))
}

/// Limits the wait for an answer; ends the link after that.
async fn within<T>(
    limit: Duration,
    closed: &CancellationToken,
    answer: impl Future<Output = Result<T, LinkError>>,
) -> Result<T, LinkError> {
    timeout(limit, answer).await.unwrap_or_else(|_| Err(broken(closed, "no answer to a call")))
}

/// Runs a task of the link; the link ends when the task does.
async fn until_closed(closed: CancellationToken, task: impl Future<Output = Result<(), String>>) {
    let ended = closed.run_until_cancelled(task).await;
    if let Some(Err(why)) = ended {
        tracing::debug!(why, "link ended");
    }
    closed.cancel();
}

async fn heartbeat(link: Link, timing: Timing) -> Result<(), String> {
    loop {
        tokio::time::sleep(timing.ping).await;
        link.ping().await.map_err(|error| error.to_string())?;
    }
}
