//! Sandboxes that outlive their stream.
//!
//! ```text
//! stream ----- lost                  a new stream, from a server with the token
//!                |                        |
//! agent  speaks  '-- holds: the run ------'-- Resume, Resumed, then the frames that the other side missed
//!                    continues                      or, after the limit, ends as if there had been no hold
//! ```
//!
//! Each side counts the frames that it has received whole, and reports the number; the other sends the later ones
//! again. So no call is lost, and none is carried out twice.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The terms on which a sandbox outlives its stream: the run continues, and a server that proves to be the sandbox's
/// own may resume with a new stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    /// Time for which the agent waits for a new stream before it ends itself.
    pub limit_ms: u64,
    /// The proof that a new stream is the server's.
    pub token: HoldToken,
}

/// The secret by which an agent knows that a new stream is its server's.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HoldToken(String);

impl HoldToken {
    /// Whether two tokens are equal. The comparison takes the same time wherever they differ.
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

/// Hides the token from logs.
impl fmt::Debug for HoldToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HoldToken(..)")
    }
}

/// Resumes a sandbox that has lost its stream: the first frame of a new stream, with call 0. The agent does not answer
/// a wrong token.
///
/// Frames are counted from the first [`ServerHello`](crate::message::ServerHello) on, over all streams. Not counted are
/// [`ServerHello`](crate::message::ServerHello), [`AgentHello`](crate::message::AgentHello), this frame and its reply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resume {
    /// [`PROTOCOL_VERSION`](crate::frame::PROTOCOL_VERSION) of the server.
    pub version: u32,
    /// As in [`ServerHello`](crate::message::ServerHello).
    pub silence_limit_ms: u64,
    /// As in [`ServerHello`](crate::message::ServerHello), from now on. The token is that of the previous stream.
    pub hold: Hold,
    /// The number of the agent's frames that this server has received whole: the agent sends the later ones again.
    /// `None` from another server, which cannot use answers to the previous one.
    pub received: Option<u64>,
}

/// Answers [`Resume`]. Body: the note of the last [`Remember`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resumed {
    /// The number of the server's frames that the agent has received whole: the server sends the later ones again.
    pub received: u64,
    /// The highest call id that the agent has seen. Another server continues after it.
    pub last_call: u32,
    /// The call id of the run whose [`RunDone`](crate::message::RunDone) follows: the one in progress, or else the last
    /// one if the agent still has its reply. Only another server reads it.
    pub running: Option<u32>,
    /// The number of the agent's frames before those that follow. Another server counts from there.
    pub missed: u64,
}

/// Has the agent keep a note for a server that resumes, in place of the previous one. The agent does not read it.
///
/// Body: the note, at most [`MAX_NOTE`](crate::limits::MAX_NOTE) bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remember {}
