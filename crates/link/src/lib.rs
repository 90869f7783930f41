//! The link: typed calls over the byte stream to an agent.
//!
//! ```text
//! call() --frame--> pump --> stream --> agent
//!    ^                                    |
//!    '----- reply by call number ---- pump <---'
//! ```
//!
//! Many calls may be in progress at once; replies arrive in any order. A violation of the protocol, or a silent agent,
//! ends the link and all its calls: the agent's side is not trusted, and a stream that is out of step cannot be
//! repaired. Only a stream that breaks off can be replaced, if the sandbox holds.
//!
//! A program may put a question to the server: the only frames that begin with the agent, see `asks`.
//!
//! `wire` has the path of each call: frames, calls, and the pump that moves them; `resume` replaces a stream. `runs` has
//! the format of a run's reply; `files` and `workspace` have the calls for files and for interpreters that keep their
//! variables; `vitals` are the resources that the sandbox uses, which each ping reports.

mod asks;
mod files;
mod resume;
mod runs;
mod vitals;
mod wire;
mod workspace;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use protocol::{
    frame::{Kind, MAX_BODY, PROTOCOL_VERSION},
    limits::MAX_LIVE,
    message::{
        AgentHello, CommandRuntime, Failure, FailureCode, Hibernate, Kill, Output, OutputDone,
        Peek, PeekDone, PeerVersion, Ping, ServerHello, Warm, WarmDone,
    },
};
use thiserror::Error;
use tokio::{sync::mpsc, task::JoinSet, time::timeout};
use tokio_util::sync::CancellationToken;

use self::asks::Asks;
use self::wire::{Calls, Outgoing, exchange, pump, read_json};
pub use self::{
    asks::{Asked, Question},
    files::{Sent, Upload},
    resume::{Holding, Leftover, Reconnect, ResumedState},
    runs::{CapturedOutput, CellReply, RunReply, RunRequest, Running},
    vitals::Vitals,
    wire::Stream,
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

/// Maximum number of frames that wait to be written. Each is at most 1 MiB, so this limits memory as well.
const QUEUED_FRAMES: usize = 4;

/// A handle to the link; clones share it.
#[derive(Debug, Clone)]
pub struct Link {
    frames: mpsc::Sender<Outgoing>,
    calls: Arc<Calls>,
    closed: CancellationToken,
    vitals: Vitals,
    asks: Asks,
    /// Longest time for an answer: [`Timing::silence`], and the time that the sandbox holds.
    silence: Duration,
}

/// Owns the link's tasks: dropping it ends them and the stream, and so the sandbox unless that holds.
#[derive(Debug)]
pub struct LinkOwner {
    tasks: JoinSet<()>,
    closed: CancellationToken,
    asked: Option<mpsc::Receiver<Asked>>,
}

impl LinkOwner {
    /// The questions of programs; only the first call returns them.
    pub fn take_asked(&mut self) -> Option<mpsc::Receiver<Asked>> {
        self.asked.take()
    }

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
    /// Whether programs may ask for calls of tools. Somebody must then answer what [`LinkOwner::take_asked`] returns.
    pub asks: bool,
    /// The languages that only need a command.
    pub commands: Vec<CommandRuntime>,
}

impl Link {
    /// Exchanges hellos with an agent; then calls may be made. The agent begins to load the modules at once.
    ///
    /// # Errors
    /// [`LinkError::Version`] for an agent of another version, [`LinkError::Closed`] if the stream ends before a hello,
    /// [`LinkError::Broken`] if anything else arrives, or nothing in time.
    pub async fn connect(
        mut stream: Stream,
        timing: Timing,
        opening: Opening,
    ) -> Result<(Self, LinkOwner), LinkError> {
        let Opening { preload, undo, holding, timezone, asks, commands } = opening;
        let hello = ServerHello {
            version: PROTOCOL_VERSION,
            silence_limit_ms: millis(timing.silence),
            preload,
            undo,
            hold: holding.as_ref().map(Holding::hold),
            timezone,
            asks,
            commands,
        };
        let greeted = timeout(timing.hello, exchange(&mut stream, Kind::Hello, &hello)).await;
        let (prefix, head, _) =
            greeted.unwrap_or_else(|_| Err(LinkError::Broken("no hello".into())))?;
        if prefix.kind != Kind::Hello {
            return Err(LinkError::Broken("something before its hello".into()));
        }
        // The rest of another version's hello is unknown; its agent may not even have waited for the server's hello.
        let PeerVersion { version } = read_json(&head)?;
        if version != PROTOCOL_VERSION {
            return Err(LinkError::Version(version));
        }
        let _: AgentHello = read_json(&head)?;
        let calls = Calls::new(holding.is_some());
        Ok(Self::over(stream, timing, calls, holding))
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
            vitals: Vitals::default(),
            asks: Asks::default(),
            // The stream may be lost for as long as the sandbox holds, and an answer may arrive after that.
            silence: timing.silence + hold,
        };
        let mut tasks = JoinSet::new();
        let (incoming, asked) = link.asks.receiver();
        let pumping = pump(stream, queue, calls, timing, holding, incoming);
        tasks.spawn(until_closed(link.closed.clone(), pumping));
        tasks.spawn(until_closed(link.closed.clone(), heartbeat(link.clone(), timing)));
        let owner = LinkOwner { tasks, closed: link.closed.clone(), asked: Some(asked) };
        (link, owner)
    }

    /// Kills a run; no error if it has ended.
    ///
    /// # Errors
    /// The errors of every call: [`LinkError::Refused`] with the agent's reason, [`LinkError::Broken`] if no answer
    /// arrives in time or it is invalid, [`LinkError::Closed`] if the link ends first.
    pub async fn kill(&self, run: u32) -> Result<(), LinkError> {
        self.call(&Kill { run }, Bytes::new()).await.map(drop)
    }

    /// Waits until the next run starts warm, or will not. There is no timeout, because loading modules may take any
    /// time.
    ///
    /// # Errors
    /// The errors of every call except the timeout, see [`kill`](Self::kill).
    pub async fn warm(&self) -> Result<WarmDone, LinkError> {
        let (_, mut answer) = self.begin(&Warm {}, Bytes::new()).await?;
        Ok(answer.decode::<Warm>().await?.0)
    }

    /// Gives up what makes runs warm, to free its memory. With `keep`, the sandbox is saved as well if possible,
    /// without a timeout; returns whether it was.
    ///
    /// # Errors
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
    /// The errors of every call, see [`kill`](Self::kill).
    pub async fn ping(&self) -> Result<(), LinkError> {
        let (pong, _) = self.call(&Ping {}, Bytes::new()).await?;
        self.vitals.set(pong);
        Ok(())
    }

    /// The resources that the sandbox uses, as its agent reported them with its last ping.
    pub fn vitals(&self) -> Vitals {
        self.vitals.clone()
    }

    /// Reads a piece of a truncated output, at most [`MAX_BODY`] bytes. The run is identified by its call.
    ///
    /// # Errors
    /// The errors of every call, see [`kill`](Self::kill); [`FailureCode::NotFound`] if it is not stored.
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

    /// Reads what a run has written to standard output and standard error since the last look.
    ///
    /// # Errors
    /// The errors of every call, see [`kill`](Self::kill); [`FailureCode::NotFound`] if the run is over.
    pub async fn peek(&self, peek: &Peek) -> Result<(PeekDone, [Bytes; 2]), LinkError> {
        let (done, mut body) = self.call(peek, Bytes::new()).await?;
        if done.stdout > body.len() {
            return Err(self.broken("less output than it says"));
        }
        let stdout = body.split_to(done.stdout);
        let outputs =
            [(peek.stdout, done.stdout_total, stdout), (peek.stderr, done.stderr_total, body)];
        for (seen, total, new) in &outputs {
            let most = total.saturating_sub(*seen).min(MAX_LIVE as u64);
            if total < seen || new.len() as u64 > most {
                return Err(self.broken("more output than there is"));
            }
        }
        Ok((done, outputs.map(|(_, _, new)| new)))
    }

    /// Resolves when the link has ended.
    pub async fn closed(&self) {
        self.closed.cancelled().await;
    }

    /// Whether the link has ended.
    pub fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    /// Ends the link; every call in progress gets [`LinkError::Closed`].
    pub fn close(&self) {
        self.closed.cancel();
    }
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
        // Whether it is in time or not does not matter.
        let _ = timeout(timing.ping, link.vitals.wanted()).await;
        link.ping().await.map_err(|error| error.to_string())?;
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
