//! The link: typed calls over the byte stream to an agent.
//!
//! ```text
//! call() --frame--> carrying task --> stream --> agent
//!    ^                                             |
//!    '---- reply by call id ---- carrying task <---'
//! ```
//!
//! Many calls may be under way at once; replies come in any order. Whatever breaks the rules of
//! the protocol, or an agent that falls silent, ends the link and with it all its calls: the
//! agent's side is not trusted, and a stream that is out of step cannot be set right. Only one that breaks off can be
//! replaced, where the sandbox holds.
//!
//! `wire` has the frames, `carry` the stream that they go over and what becomes of it, `runs` what a run's reply
//! looks like.

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
const QUEUED_FRAMES: usize = 4;

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
    silence: Duration,
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

/// A file on its way. It appears with its last piece or not at all.
#[derive(Debug)]
pub struct Upload {
    link: Link,
    number: u32,
    path: String,
    existing: Existing,
    offset: u64,
}

impl Upload {
    /// Sends the next piece, at most [`MAX_BODY`] bytes. More may be sent before its answer comes: the agent takes them
    /// in their order, and none after one that it refuses.
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
    /// As of [`send`](Self::send) and [`Sent::written`].
    pub async fn put(&mut self, piece: Bytes, last: bool) -> Result<PutDone, LinkError> {
        self.send(piece, last).await?.written().await
    }

    /// Bytes that were sent so far.
    pub fn sent(&self) -> u64 {
        self.offset
    }

    /// There will be no last piece. The agent keeps nothing of it.
    ///
    /// # Errors
    ///
    /// As of every call, see [`Link::kill`].
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
    /// Waits until it is written.
    ///
    /// # Errors
    ///
    /// As of every call, see [`Link::kill`]; [`FailureCode::Full`], [`FailureCode::Exists`] and
    /// [`FailureCode::BadPath`] say what is wrong with the file. The upload is then forgotten.
    pub async fn written(&mut self) -> Result<PutDone, LinkError> {
        let closed = self.answer.closed.clone();
        Ok(within(self.silence, &closed, self.answer.decode::<Put>()).await?.0)
    }
}

/// An answer that will come, unless the link ends first.
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

/// What an agent is told with the hello.
#[derive(Debug, Clone, Default)]
pub struct Opening {
    /// Modules that it begins at once to load; `None` loads nothing.
    pub preload: Option<Vec<String>>,
    /// Cells that can be taken back; `None` if there will be no cells.
    pub undo: Option<u32>,
    /// How the sandbox outlives its stream; `None` ends it with that.
    pub holding: Option<Holding>,
    /// The time zone of programs; `None` is UTC.
    pub timezone: Option<String>,
}

/// A run that began with another server, whose result is nobody's.
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

/// How a sandbox was found that another server has left.
#[derive(Debug)]
pub struct Found {
    /// What that had it [remember](Link::remember), which may be anything.
    pub note: Bytes,
    /// What still runs.
    pub leftover: Option<Leftover>,
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
        // Of another version nothing else is known, and it may not even have waited for ours.
        let PeerVersion { version } = serde_json::from_slice(&head).map_err(unreadable)?;
        if version != PROTOCOL_VERSION {
            return Err(LinkError::Version(version));
        }
        let _: AgentHello = serde_json::from_slice(&head).map_err(unreadable)?;
        let calls = Calls::new(holding.is_some());
        Ok(Self::over(stream, timing, calls, holding))
    }

    /// Goes on with a sandbox that another server has left and that holds.
    ///
    /// # Errors
    ///
    /// As with [`connect`](Self::connect); [`LinkError::Closed`] also if the agent does not take us in, as when it
    /// has a stream.
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

    /// A link over a stream on which both sides have said hello.
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
            // An answer may come after the stream was lost for as long as that may be.
            silence: timing.silence + hold,
        };
        let mut tasks = JoinSet::new();
        let carrying = carry(stream, queue, calls, timing, holding);
        tasks.spawn(until_closed(link.closed.clone(), carrying));
        tasks.spawn(until_closed(link.closed.clone(), heartbeat(link.clone(), timing)));
        let owner = LinkOwner { tasks, closed: link.closed.clone() };
        (link, owner)
    }

    /// Has the agent keep a note for whoever resumes, at most [`MAX_NOTE`](protocol::limits::MAX_NOTE) bytes.
    ///
    /// # Errors
    ///
    /// As of every call, see [`kill`](Self::kill).
    pub async fn remember(&self, note: Bytes) -> Result<(), LinkError> {
        self.call(&Remember {}, note).await.map(drop)
    }

    /// Kills a run; no error if it has ended.
    ///
    /// # Errors
    ///
    /// As of every call: [`LinkError::Refused`] with the agent's reason, [`LinkError::Broken`] if no
    /// answer comes in time or it cannot be true, [`LinkError::Closed`] if the link ends before.
    pub async fn kill(&self, run: u32) -> Result<(), LinkError> {
        self.call(&Kill { run }, Bytes::new()).await.map(drop)
    }

    /// Waits until the next run starts warm, or it is known that it will not. However long that takes:
    /// it is loading, and not an answer, that is waited for.
    ///
    /// # Errors
    ///
    /// As of every call, see [`kill`](Self::kill), but for the time.
    pub async fn warm(&self) -> Result<WarmDone, LinkError> {
        let (_, mut answer) = self.begin(&Warm {}, Bytes::new()).await?;
        Ok(answer.decode::<Warm>().await?.0)
    }

    /// Looks at what the interpreter of the workspace holds; nothing of it if there is none. What is said of
    /// variables may be anything within its limits.
    ///
    /// # Errors
    ///
    /// As of every call, see [`kill`](Self::kill); [`FailureCode::Busy`] during a run.
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

    /// Takes cells back, or ends the interpreter of the workspace; deletes all files, too, if that is wanted.
    ///
    /// # Errors
    ///
    /// As of every call, see [`kill`](Self::kill); [`FailureCode::Busy`] during a run,
    /// [`FailureCode::NothingToUndo`] if so many cells cannot be taken back.
    pub async fn reset(&self, reset: &Reset) -> Result<ResetDone, LinkError> {
        let (done, _) = self.call(reset, Bytes::new()).await?;
        Ok(ResetDone { can_undo: done.can_undo.min(MAX_UNDO), ..done })
    }

    /// Has the interpreter of the workspace write its variables down, within these bounds. What is said of them may
    /// be anything within its limits.
    ///
    /// # Errors
    ///
    /// As of every call, see [`kill`](Self::kill), but for the time, of which it may take more;
    /// [`FailureCode::Busy`] during a run, [`FailureCode::NoRuntime`] if it cannot.
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

    /// Reads a piece of what was written down so.
    ///
    /// # Errors
    ///
    /// As of every call, see [`kill`](Self::kill); [`FailureCode::NotFound`] if nothing is written down.
    pub async fn exported(&self, runtime: RuntimeName, offset: u64) -> Result<Bytes, LinkError> {
        let request = Export { runtime, begin: None, offset, len: MAX_BODY };
        let (done, bytes) = self.call(&request, Bytes::new()).await?;
        let there = done.total.saturating_sub(offset).min(MAX_BODY as u64);
        if bytes.len() as u64 != there || bytes.is_empty() {
            return Err(self.broken("another number of bytes than it says it has"));
        }
        Ok(bytes)
    }

    /// Has an interpreter made of what was written down so.
    ///
    /// # Errors
    ///
    /// As of [`export`](Self::export); [`FailureCode::BadRequest`] if there is an interpreter already.
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

    /// A call that may take the time of these limits.
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

    /// Gives up what makes runs warm, for its memory. With `keep` the sandbox is kept as well, if it can be, however
    /// long that takes; whether it is, is what is returned.
    ///
    /// # Errors
    ///
    /// As of every call, see [`kill`](Self::kill).
    pub async fn hibernate(&self, keep: bool) -> Result<bool, LinkError> {
        let hibernate = Hibernate { keep };
        if !keep {
            return self.call(&hibernate, Bytes::new()).await.map(|_| false);
        }
        let (_, mut answer) = self.begin(&hibernate, Bytes::new()).await?;
        Ok(answer.decode::<Hibernate>().await?.0.kept)
    }

    /// Asks for a sign of life.
    ///
    /// # Errors
    ///
    /// As of every call, see [`kill`](Self::kill).
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
    pub fn upload(&self, path: &DataPath, existing: Existing) -> Upload {
        let number = self.calls.number();
        let path = path.as_str().to_owned();
        Upload { link: self.clone(), number, path, existing, offset: 0 }
    }

    /// Writes pieces of files of packages, [`MAX_BODY`] bytes at most. Each file has a number of its own.
    ///
    /// # Errors
    ///
    /// As of every call, see [`kill`](Self::kill); [`FailureCode::Full`] and [`FailureCode::BadPath`] as of an upload,
    /// [`FailureCode::NoRuntime`] where there is no place for packages.
    pub async fn install(&self, pieces: Vec<PackagePiece>, body: Bytes) -> Result<(), LinkError> {
        self.call(&Install { pieces }, body).await.map(drop)
    }

    /// Numbers a file of a package.
    pub fn file_number(&self) -> u32 {
        self.calls.number()
    }

    /// Reads a piece of an output that was cut, at most [`MAX_BODY`] bytes. The run is named by its
    /// call.
    ///
    /// # Errors
    ///
    /// As of every call, see [`kill`](Self::kill); [`FailureCode::NotFound`] if it is not kept.
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
    ///
    /// # Errors
    ///
    /// As of every call, see [`kill`](Self::kill); [`FailureCode::NotFound`] if the run is over.
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
    /// As of every call, see [`kill`](Self::kill); [`FailureCode::NotFound`] and
    /// [`FailureCode::BadPath`] where there is no such file.
    pub async fn get(
        &self,
        path: &DataPath,
        offset: u64,
        len: usize,
    ) -> Result<(GetDone, Bytes), LinkError> {
        let (path, len) = (path.as_str().to_owned(), len.min(MAX_BODY));
        self.piece(Get { path, offset, len, of: None }).await
    }

    /// The same of a file that a call of a tool has left.
    ///
    /// # Errors
    ///
    /// As with [`get`](Self::get).
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

    /// Has the files forgotten that a call of a tool has left.
    ///
    /// # Errors
    ///
    /// As of every call, see [`kill`](Self::kill).
    pub async fn forget(&self, call: u32) -> Result<(), LinkError> {
        self.call(&Forget { call }, Bytes::new()).await.map(drop)
    }

    /// Lists files, by path, as many as there are on [`MAX_PAGES`]; the second value says whether
    /// there are more.
    ///
    /// # Errors
    ///
    /// As of every call, see [`kill`](Self::kill).
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
    serde_json::from_slice(json).map_err(|error| broken(closed, &printable(&error.to_string())))
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

async fn heartbeat(link: Link, timing: Timing) -> Result<(), String> {
    loop {
        tokio::time::sleep(timing.ping).await;
        link.ping().await.map_err(|error| error.to_string())?;
    }
}
