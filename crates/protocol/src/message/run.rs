//! Runs: programs and cells, their outputs, and how they end.

use serde::{Deserialize, Serialize};

#[cfg(doc)]
use super::{Call, FailureCode, FileEntry};
use super::{Facts, RuntimeName, is_false, is_zero};

/// Runs a program in a new interpreter, with `/mnt/data` as its working directory; or a cell, in the interpreter of
/// this runtime that persists in the sandbox's workspace. One at a time: a second run fails with [`FailureCode::Busy`],
/// and one whose runtime does not exist with [`FailureCode::NoRuntime`].
///
/// Body: the code, then its standard input if `has_stdin`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// The runtime that interprets the code.
    pub runtime: RuntimeName,
    /// Bytes of code at the start of the body.
    pub code_len: usize,
    /// Whether the rest of the body is the program's standard input; otherwise that is `/dev/null`.
    pub has_stdin: bool,
    /// Wall time after which the run is killed.
    pub timeout_ms: u64,
    /// The maximum number of bytes returned of each of stdout and stderr: the start and, with two
    /// fifths of them, the end.
    pub output_cap: usize,
    /// Whether the code is a cell of the workspace. The interpreter is started if there is none.
    pub cell: bool,
}

/// Answers [`Run`] and [`Call`].
///
/// Body: head and tail of stdout, head and tail of stderr, head and tail of a cell's result if it has one,
/// then `changed_len` bytes of JSON, an array of [`FileEntry`]: the files created or changed, by path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunDone {
    /// Why the run ended.
    pub end: End,
    /// How the run got its interpreter.
    pub start: Start,
    /// Wall time from the start of the program to its end, in microseconds.
    pub elapsed_us: u64,
    /// Wall time from the request to this reply, in microseconds: the difference is the agent's share.
    pub agent_us: u64,
    /// Processor time of all its processes, in microseconds.
    pub cpu_us: u64,
    /// The number of processes that the kernel killed for lack of memory during the run.
    pub oom_kills: u64,
    /// Standard output.
    pub stdout: Captured,
    /// Standard error.
    pub stderr: Captured,
    /// Bytes of JSON at the end of the body.
    pub changed_len: usize,
    /// The number of changed files that did not fit.
    pub changed_omitted: usize,
    /// Further facts about the run.
    #[serde(default, skip_serializing_if = "Facts::is_empty")]
    pub facts: Facts,
    /// The state of the workspace, if the run was a cell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cell: Option<CellDone>,
}

/// The state of a workspace after a cell. `R` is the form of the value: its lengths in a message, or its bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CellDone<R = Captured> {
    /// Whether the variables are still there.
    pub state: CellState,
    /// Whether the interpreter was started for this cell: it had no variables.
    pub fresh: bool,
    /// The number of cells that the interpreter has run; cells that were rolled back or undone do not count.
    pub count: u64,
    /// Text form of the last expression's value, cut to [`MAX_RESULT`](crate::limits::MAX_RESULT) bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<R>,
    /// Memory of the interpreter after the cell, in bytes, including memory that it shares with others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// The number of cells that can be undone now.
    pub can_undo: u32,
    /// The number of threads that ran before the cell and were not restored with the variables.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lost_threads: usize,
    /// Whether the memory does not suffice to protect the variables: they may be lost if the next cell is stopped.
    #[serde(default, skip_serializing_if = "is_false")]
    pub at_risk: bool,
}

/// The state of a workspace's variables after a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CellState {
    /// The variables are as the cell left them.
    Kept,
    /// The variables are exactly as before the cell.
    RolledBack,
    /// The variables are lost; the next cell gets a new interpreter.
    Lost,
}

impl CellState {
    /// The state's name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::RolledBack => "rolled_back",
            Self::Lost => "lost",
        }
    }
}

/// Why a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "why")]
pub enum End {
    /// The program ended by itself.
    Exited {
        /// The program's exit code.
        code: i32,
    },
    /// A signal ended the program that neither the agent sent, nor the kernel for lack of memory.
    Signaled {
        /// The signal's number.
        signal: i32,
    },
    /// The kernel killed it because the sandbox was out of memory.
    OutOfMemory,
    /// Killed at its deadline.
    TimedOut,
    /// Killed by [`Kill`].
    Killed,
    /// The program used the maximum number of instructions. Only if instructions are counted.
    OutOfFuel,
}

/// How a run got its interpreter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Start {
    /// A spare interpreter was waiting.
    Warm,
    /// A spare interpreter had to be forked first.
    Fork,
    /// A new interpreter was started.
    Cold,
}

impl Start {
    /// The start's name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Warm => "warm",
            Self::Fork => "fork",
            Self::Cold => "cold",
        }
    }
}

/// The sizes of the returned parts of an output stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Captured {
    /// Bytes from the start.
    pub head: usize,
    /// Bytes from the end. Nothing lies between head and tail if they add up to `total`.
    pub tail: usize,
    /// Bytes that the program wrote.
    pub total: u64,
}

/// One of a program's two outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

impl Stream {
    /// The stream's name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

/// Ends the run that has the given call id; its [`RunDone`] follows. It is no error if it has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kill {
    /// Call id of the [`Run`] or [`Call`].
    pub run: u32,
}

/// Reads a piece of a long output. Fails with [`FailureCode::NotFound`] if the output is not long
/// ([`KEPT_FROM`](crate::limits::KEPT_FROM)), or no longer stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Output {
    /// Call id of the [`Run`].
    pub run: u32,
    /// One of the run's outputs.
    pub stream: Stream,
    /// First byte wanted; at or past the end of the stored bytes the body is empty.
    pub offset: u64,
    /// The maximum number of bytes wanted.
    pub len: usize,
}

/// Answers [`Output`]. Body: the bytes, fewer than requested only at the end of the stored bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputDone {
    /// Bytes that the program wrote.
    pub total: u64,
    /// Bytes from the start that can be read.
    pub kept: u64,
}

/// Reads what a run in progress has written since the last look. Fails with [`FailureCode::NotFound`] if the run is not
/// in progress.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peek {
    /// Call id of the [`Run`].
    pub run: u32,
    /// Bytes of standard output before the first one that is wanted.
    pub stdout: u64,
    /// Bytes of standard error before the first one that is wanted.
    pub stderr: u64,
}

/// Answers [`Peek`]. Body: the bytes of standard output that were asked for, then those of standard error, as the
/// program has written them. If there are more than [`MAX_LIVE`](crate::limits::MAX_LIVE) of an output, only its newest
/// ones.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeekDone {
    /// Bytes written to standard output so far.
    pub stdout_total: u64,
    /// Bytes written to standard error so far.
    pub stderr_total: u64,
    /// Bytes of standard output in the body; the rest of it is standard error.
    pub stdout: usize,
    /// Whether the interpreter is still being started: none of the code has run.
    #[serde(default, skip_serializing_if = "is_false")]
    pub loading: bool,
}
