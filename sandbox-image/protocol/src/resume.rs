//! Sandboxes that outlive their stream.
//!
//! ```text
//! stream ----- lost                  a new stream, from whoever has the token
//!                |                        |
//! agent  speaks  '-- holds: what runs ----'-- Resume, Resumed, then what the other side has missed, and goes on
//!                    goes on                        or, after the limit, ends as if there had been no hold
//! ```
//!
//! Each side counts the frames that it has received whole and says so; the other sends what came after. So no call
//! is lost, and none is carried out twice.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{
    frame::Kind,
    message::{Empty, Request},
};

/// How a sandbox outlives its stream: what runs goes on, and whoever proves to be its server may take it over with
/// a new stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    /// How long it waits for that, before it ends itself.
    pub limit_ms: u64,
    /// What proves it.
    pub token: HoldToken,
}

/// What proves to an agent that a new stream is its server's.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HoldToken(String);

impl HoldToken {
    /// Whether it is the other. The time that it takes tells nothing about where they differ.
    pub fn is(&self, other: &Self) -> bool {
        let pairs = self.0.bytes().zip(other.0.bytes());
        self.0.len() == other.0.len() && pairs.fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
    }
}

impl From<String> for HoldToken {
    fn from(token: String) -> Self {
        Self(token)
    }
}

/// It is no text for a log.
impl fmt::Debug for HoldToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HoldToken(..)")
    }
}

/// Goes on with a sandbox that has lost its stream: the first frame of a new one, with call 0. Whoever has not the
/// token is not answered.
///
/// Frames are counted from the first [`ServerHello`](crate::message::ServerHello) on, over all streams. Neither [`ServerHello`](crate::message::ServerHello) and [`AgentHello`](crate::message::AgentHello)
/// count, nor this and its reply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resume {
    /// [`PROTOCOL_VERSION`](crate::frame::PROTOCOL_VERSION) of the server.
    pub version: u32,
    /// As in [`ServerHello`](crate::message::ServerHello).
    pub silence_limit_ms: u64,
    /// As in [`ServerHello`](crate::message::ServerHello), from now on. The token is that of the stream before.
    pub hold: Hold,
    /// Frames of the agent's that this server has received whole: the agent sends again what came after. `None` if it
    /// is another server, which can make nothing of answers to the one before.
    pub received: Option<u64>,
}

/// Answers [`Resume`]. Body: the note that was to be [remembered](Remember).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resumed {
    /// Frames of the server's that the agent has received whole: the server sends again what came after.
    pub received: u64,
    /// Highest call id that it has seen. Another server begins after it.
    pub last_call: u32,
    /// Call id of the run that is in progress, if one is. Its [`RunDone`](crate::message::RunDone) follows.
    pub running: Option<u32>,
}

impl Request for Resume {
    const KIND: Kind = Kind::Resume;
    type Reply = Resumed;
}

/// Has the agent keep a note, instead of the one before, for whoever resumes. The agent makes nothing of it.
///
/// Body: the note, at most [`MAX_NOTE`](crate::limits::MAX_NOTE) bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remember {}

impl Request for Remember {
    const KIND: Kind = Kind::Remember;
    type Reply = Empty;
}
