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
//! `wire` has the frames, `carry` the stream that they go over and its replacement, `runs` the format of a run's reply;
//! `files` and `workspace` have the calls for files and for interpreters that keep their variables.

mod carry;
mod files;
mod runs;
mod vitals;
mod wire;
mod workspace;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use model::text::printable;
use protocol::{
    frame::{Kind, MAX_BODY, PROTOCOL_VERSION},
    limits::MAX_LINE,
    message::{
        AgentHello, Failure, FailureCode, Hibernate, Kill, Output, OutputDone, Peek, PeekDone,
        PeerVersion, Ping, Request, ServerHello, Warm, WarmDone,
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
    files::{Sent, Upload},
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
