//! Calls out of the sandbox: a program asks the server to call a tool. These are the only frames that begin with the
//! agent.
//!
//! ```text
//! program --> agent --Ask--> server --> upstream
//!     ^         ^               |
//!     |         '---Answer------'        the program went away: Withdraw
//!     '- stopped until a person decides: Pause
//! ```

use serde::{Deserialize, Serialize};

use super::is_false;

/// The maximum size of a question, and of its answer, in bytes.
pub const MAX_ASK: usize = 1_000_000;

/// The maximum number of questions that are open at a time.
pub const MAX_ASKS: usize = 32;

/// A question of a program. It is a frame of the agent; its call id is the question's number, which the agent chooses
/// and uses once. An [`Answer`] answers it.
///
/// Body: the program's bytes, at most [`MAX_ASK`], which the agent does not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ask {
    /// Call id of the run whose program asks.
    pub run: u32,
    /// Whether it is sent once more, to another server than the one that has received it or may have.
    #[serde(default, skip_serializing_if = "is_false")]
    pub again: bool,
    /// Whether the run is paused for it, so that the previous server has not carried it out.
    #[serde(default, skip_serializing_if = "is_false")]
    pub paused: bool,
}

/// Says that nobody waits for the answer to a question any more. It is a frame of the agent, with the question's number
/// as its call id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Withdraw {}

/// Answers a question. It is no error if nobody waits for it any more.
///
/// Body: the bytes for the program, at most [`MAX_ASK`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// The question's number.
    pub ask: u32,
}

/// Stops the processes of the run in progress until each question for which it was sent is answered, or its pause is
/// over. The time counts neither as processor time nor against the run's deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    /// The number of a question, whose [`Answer`] ends it.
    pub ask: u32,
    /// Ends the pause for this question before its answer. An agent that does not know this waits for the answer.
    #[serde(default, skip_serializing_if = "is_false")]
    pub over: bool,
}
