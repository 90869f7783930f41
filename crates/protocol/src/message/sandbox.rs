//! The sandbox itself: hello, warming, hibernation, and whether it is alive.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::is_false;

use crate::resume::Hold;

/// The part of a hello that every version has, from either side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerVersion {
    /// The version that the peer speaks.
    pub version: u32,
}

/// The first frame of all, from the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerHello {
    /// [`PROTOCOL_VERSION`](crate::frame::PROTOCOL_VERSION) of the server.
    pub version: u32,
    /// The agent ends itself, and so the sandbox, after this long without a frame. It covers the
    /// deaths that the engine does not turn into an end of the stream: a restarted engine, a
    /// frozen server, a lost network.
    pub silence_limit_ms: u64,
    /// Modules that the fork server loads, in this order; `None` starts no fork server, and every run gets a new
    /// interpreter.
    pub preload: Option<Vec<String>>,
    /// The number of cells that can be undone in each workspace, [`MAX_UNDO`](crate::limits::MAX_UNDO) at most; `None`
    /// if there will be no cells, so that the agent prepares nothing for them.
    pub undo: Option<u32>,
    /// How the sandbox outlives its stream; `None` ends it with the stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold: Option<Hold>,
    /// The time zone of programs, by its IANA name; `None` is UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    /// Whether programs may [ask](super::Ask) for calls of tools.
    #[serde(default, skip_serializing_if = "is_false")]
    pub asks: bool,
    /// The languages of the image that only need a command.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub commands: Vec<CommandRuntime>,
}

/// A language without state: a command runs each program and each cell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandRuntime {
    /// The name of the language.
    pub name: RuntimeName,
    /// The command and its arguments. `{file}` in them stands for the path of the file with the code, and `{result}` for
    /// the path of a file whose content becomes the result of the cell.
    pub command: Vec<String>,
    /// The name of the file with the code.
    pub file: String,
}

/// Answers [`ServerHello`], and is the first frame from the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentHello {
    /// [`PROTOCOL_VERSION`](crate::frame::PROTOCOL_VERSION) of the agent.
    pub version: u32,
    /// The size of the largest frame body that the agent accepts and sends, in bytes.
    pub max_body: usize,
    /// The maximum number of open uploads.
    pub max_uploads: usize,
}

/// The name of a runtime, which interprets programs. The image determines which runtimes exist, not the protocol.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RuntimeName(Cow<'static, str>);

impl RuntimeName {
    /// Python 3.
    pub const PYTHON: Self = Self(Cow::Borrowed("python"));
    /// JavaScript, by Node.
    pub const JAVASCRIPT: Self = Self(Cow::Borrowed("javascript"));
    /// The shell.
    pub const BASH: Self = Self(Cow::Borrowed("bash"));

    /// Whether the interpreter lives on between cells, with its variables. All other languages keep only files.
    pub fn keeps_variables(&self) -> bool {
        [Self::PYTHON, Self::JAVASCRIPT].contains(self)
    }

    /// The name as on the wire, which may be anything.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for RuntimeName {
    fn from(name: String) -> Self {
        Self(name.into())
    }
}

/// Waits until a spare interpreter is waiting, or until it is known that there will be none. Wakes an agent that
/// hibernates.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warm {}

/// Answers [`Warm`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WarmDone {
    /// Whether the next run starts warm.
    pub ready: bool,
    /// The problems on the way: modules that could not be loaded, or why there is no fork server.
    pub problems: Vec<String>,
    /// The result of resuming a saved sandbox; `None` if sandboxes are not saved. Until it is known, only this request
    /// and [`Ping`] are allowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub went_on: Option<WentOn>,
}

/// The result of resuming a saved sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WentOn {
    /// There was no saved sandbox.
    Nothing,
    /// The sandbox continues in its last state.
    Last,
    /// The sandbox continues in an earlier state: the last one could not be saved.
    Older,
    /// The saved state cannot be used. There are no files and no variables.
    Unusable,
    /// Another process has the sandbox. There are no files and no variables, and nothing will be saved.
    Taken,
}

/// Ends the fork server and its spare interpreter, which are most of an idle sandbox's memory. The next run starts them
/// again, and so does the next upload, because a run is likely to follow it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hibernate {
    /// Whether to save the sandbox's present state as well, so that its process can end.
    #[serde(default, skip_serializing_if = "is_false")]
    pub keep: bool,
}

/// Answers [`Hibernate`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HibernateDone {
    /// Whether the sandbox is saved, and its process may end.
    #[serde(default, skip_serializing_if = "is_false")]
    pub kept: bool,
}

/// Asks for a sign of life.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ping {}

/// Answers [`Ping`]: the resources that the sandbox uses, each `None` if it is not known. A peer that does not know the
/// fields reads it as an [`Empty`], and the other way round.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pong {
    /// Memory of the sandbox in bytes, files in tmpfs included, without memory that the kernel could reclaim at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// The most memory in bytes that the sandbox has used so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_peak_bytes: Option<u64>,
    /// Processor time of all its processes so far, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_ms: Option<u64>,
    /// Bytes of files in the data area.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_bytes: Option<u64>,
}

/// A reply that says only that the request was carried out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Empty {}
