//! The stream under a link: frames go over it while it lasts, and over another after it if the sandbox holds.
//!
//! ```text
//! carrying --lost--> reconnecting --Resume, Resumed--> what was missed is sent again --> carrying
//!     |                   '-- for too long: the end of the link
//!     '-- broken rules, or no hold: the end of the link
//! ```

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::future::BoxFuture;
use model::text::printable;
use protocol::{
    frame::{Kind, PROTOCOL_VERSION},
    limits::MAX_NOTE,
    message::PeerVersion,
    resume::{Hold, HoldToken, Resume, Resumed},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::mpsc,
    time::{Instant, sleep, timeout, timeout_at},
};

use super::{
    LinkError, Timing,
    wire::{Calls, Ended, Outgoing, read_frame, read_frames, write_frame, write_frames},
};

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

/// Opens another stream to the agent with each call; an error says why that fails now.
pub type Reconnect = Arc<dyn Fn() -> BoxFuture<'static, Result<Stream, String>> + Send + Sync>;

/// How a sandbox outlives its stream.
#[derive(Clone)]
pub struct Holding {
    /// How long it waits for another stream.
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

/// Carries frames until the link ends. Returns why it ended, or `Ok` if there is nothing left to carry.
pub(super) async fn carry(
    mut stream: Stream,
    mut queue: mpsc::Receiver<Outgoing>,
    calls: Arc<Calls>,
    timing: Timing,
    holding: Option<Holding>,
) -> Result<(), String> {
    loop {
        let Stream { reader, writer } = &mut stream;
        let ended = tokio::select! {
            ended = write_frames(writer, &mut queue, &calls) => ended,
            ended = read_frames(reader, &calls) => ended,
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
        stream = resume(&calls, timing, holding).await?;
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

/// Opens another stream, on which both sides continue where they were.
async fn resume(calls: &Calls, timing: Timing, holding: &Holding) -> Result<Stream, String> {
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
pub(super) async fn introduce(
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
    let head = serde_json::to_vec(&resume).map_err(|error| LinkError::Broken(error.to_string()))?;
    let frame = Outgoing { call: 0, kind: Kind::Resume, head, body: Bytes::new() };
    write_frame(&mut stream.writer, &frame).await.map_err(|_| LinkError::Closed)?;
    let answer = timeout(timing.hello, read_frame(&mut stream.reader)).await;
    let (prefix, head, note) =
        answer.map_err(|_| LinkError::Closed)?.map_err(|error| match Ended::from(error) {
            Ended::Broken(why) => LinkError::Broken(why),
            _ => LinkError::Closed,
        })?;
    let unreadable = |error: serde_json::Error| LinkError::Broken(printable(&error.to_string()));
    match prefix.kind {
        Kind::Reply if note.len() <= MAX_NOTE => {
            Ok((serde_json::from_slice(&head).map_err(unreadable)?, note))
        }
        Kind::Hello => {
            let PeerVersion { version } = serde_json::from_slice(&head).map_err(unreadable)?;
            Err(LinkError::Version(version))
        }
        other => Err(LinkError::Broken(format!("a {other:?} frame instead of an answer"))),
    }
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
