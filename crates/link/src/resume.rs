//! Sandboxes that outlive their stream: another stream replaces one that broke off, also from another server.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::future::BoxFuture;
use protocol::{
    frame::{Kind, PROTOCOL_VERSION},
    limits::MAX_NOTE,
    message::PeerVersion,
    resume::{Hold, HoldToken, Remember, Resume, Resumed},
};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::{
    Link, LinkError, LinkOwner, Timing,
    asks::Asks,
    millis,
    runs::{Asked, Running},
    wire::{Awaited, Calls, Stream, exchange, read_json, write_frame},
};

/// Opens another stream to the agent with each call; an error says why that fails now.
pub type Reconnect = Arc<dyn Fn() -> BoxFuture<'static, Result<Stream, String>> + Send + Sync>;

/// How a sandbox outlives its stream.
#[derive(Clone)]
pub struct Holding {
    /// Time that the sandbox waits for another stream.
    pub limit: Duration,
    /// The token that proves to its agent that a stream is from its server.
    pub token: HoldToken,
    /// Opens another stream.
    pub reconnect: Reconnect,
}

impl fmt::Debug for Holding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Holding").field("limit", &self.limit).finish_non_exhaustive()
    }
}

impl Holding {
    /// The settings that are sent to the agent.
    pub(super) fn hold(&self) -> Hold {
        Hold { limit_ms: millis(self.limit), token: self.token.clone() }
    }
}

/// Pauses between attempts to reconnect: the first, which doubles with each attempt, and the longest.
const RETRY_PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// A run that began with another server: the one in progress, or the last one.
#[derive(Debug)]
pub struct Leftover {
    /// The number of the run.
    pub call: u32,
    answer: Awaited,
    silence: Duration,
    asks: Asks,
}

impl Leftover {
    /// Waits for its end.
    ///
    /// # Errors
    /// [`LinkError::Closed`] if the link ends before.
    pub async fn over(self) -> Result<(), LinkError> {
        tokio::select! {
            _ = self.answer.answer => Ok(()),
            () = self.answer.closed.cancelled() => Err(LinkError::Closed),
        }
    }

    /// The run, which the other server requested so long ago, with these values of a
    /// [`RunRequest`](super::RunRequest).
    pub fn into_running(
        self,
        age: Duration,
        timeout: Duration,
        output_cap: usize,
        cell: bool,
    ) -> Running {
        let Self { call, answer, silence, asks } = self;
        asks.begin(call);
        let begun = Instant::now().checked_sub(age).unwrap_or_else(Instant::now);
        // The run may have been paused for most of that time.
        let limit = age.saturating_add(timeout).saturating_add(silence);
        let asked = Asked { output_cap, cell };
        let paused_before = Duration::ZERO;
        Running { call, answer, begun, limit, asked, asks, paused_before }
    }
}

/// The state of a sandbox that another server has left.
#[derive(Debug)]
pub struct ResumedState {
    /// The note that the other server had it [remember](Link::remember), which may be anything.
    pub note: Bytes,
    /// The run whose result this server gets.
    pub leftover: Option<Leftover>,
}

impl Link {
    /// Resumes a sandbox that another server has left and that holds.
    ///
    /// # Errors
    /// The errors of [`connect`](Self::connect); [`LinkError::Closed`] also if the agent refuses this server, for
    /// example because it has a stream.
    pub async fn resume(
        mut stream: Stream,
        timing: Timing,
        holding: Holding,
    ) -> Result<(Self, LinkOwner, ResumedState), LinkError> {
        let (resumed, note) = introduce(&mut stream, timing, &holding, None).await?;
        let calls = Calls::new(true);
        calls.go_on_after(resumed.last_call, resumed.received, resumed.missed);
        let running = resumed.running.map(|call| (call, calls.expect(call)));
        let (link, owner) = Self::over(stream, timing, calls, Some(holding));
        let leftover = running.map(|(call, answer)| {
            let answer = Awaited { answer, closed: link.closed.clone() };
            Leftover { call, answer, silence: timing.silence, asks: link.asks.clone() }
        });
        Ok((link, owner, ResumedState { note, leftover }))
    }

    /// Makes the agent store a note for the server that resumes, at most [`MAX_NOTE`]
    /// bytes.
    ///
    /// # Errors
    /// The errors of every call, see [`kill`](Self::kill).
    pub async fn remember(&self, note: Bytes) -> Result<(), LinkError> {
        self.call(&Remember {}, note).await.map(drop)
    }
}

/// Opens another stream, on which both sides continue where they were.
pub(super) async fn reopened(
    calls: &Calls,
    timing: Timing,
    holding: &Holding,
) -> Result<Stream, String> {
    let until = Instant::now() + holding.limit;
    let mut pause = RETRY_PAUSES.0;
    loop {
        let again = async {
            let mut stream = (holding.reconnect)().await?;
            let received = Some(calls.received());
            match introduce(&mut stream, timing, holding, received).await {
                Ok((Resumed { received, .. }, _)) => {
                    for frame in calls.unreceived(received) {
                        let written = write_frame(&mut stream.writer, &frame).await;
                        written.map_err(|ended| format!("{ended:?}"))?;
                    }
                    Ok(stream)
                }
                Err(error) => Err(error.to_string()),
            }
        };
        let why = match timeout_at(until, again).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(why)) => why,
            Err(_) => "no answer".to_owned(),
        };
        tracing::debug!(why, "stream not resumed yet");
        if Instant::now() + pause >= until {
            return Err(format!("the stream was lost, and not resumed: {why}"));
        }
        sleep(pause).await;
        pause = (pause * 2).min(RETRY_PAUSES.1);
    }
}

/// Introduces this server on a new stream. Returns the agent's progress and its note.
///
/// # Errors
/// [`LinkError::Version`] if the agent has another version, [`LinkError::Closed`] if it refuses this server,
/// [`LinkError::Broken`] if its answer is invalid.
async fn introduce(
    stream: &mut Stream,
    timing: Timing,
    holding: &Holding,
    received: Option<u64>,
) -> Result<(Resumed, Bytes), LinkError> {
    let resume = Resume {
        version: PROTOCOL_VERSION,
        silence_limit_ms: millis(timing.silence),
        hold: holding.hold(),
        received,
    };
    let answer = timeout(timing.hello, exchange(stream, Kind::Resume, &resume)).await;
    let (prefix, head, note) = answer.unwrap_or(Err(LinkError::Closed))?;
    match prefix.kind {
        Kind::Reply if note.len() <= MAX_NOTE => Ok((read_json(&head)?, note)),
        Kind::Hello => {
            let PeerVersion { version } = read_json(&head)?;
            Err(LinkError::Version(version))
        }
        other => Err(LinkError::Broken(format!("a {other:?} frame instead of an answer"))),
    }
}
