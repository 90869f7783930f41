//! How runs and cells end, and what they print.

use std::ops::Range;

use bytes::Bytes;

/// Why a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Exit code 0.
    Ok,
    /// Another exit code.
    Error,
    /// Killed at its deadline.
    Timeout,
    /// Killed for want of memory.
    OutOfMemory,
    /// Killed as it had used all the instructions that it may.
    OutOfFuel,
    /// A signal of its own doing ended it.
    Killed,
    /// Killed because the caller no longer wanted it, or the session was closed.
    Cancelled,
}

impl Outcome {
    /// All there are, in the order of the documentation.
    pub const ALL: [Self; 7] = [
        Self::Ok,
        Self::Error,
        Self::Timeout,
        Self::OutOfMemory,
        Self::OutOfFuel,
        Self::Killed,
        Self::Cancelled,
    ];

    /// What it is called of a cell, and in the history of a workspace.
    pub fn status(self) -> CellStatus {
        match self {
            Self::Ok => CellStatus::Success,
            Self::Error | Self::Killed => CellStatus::ExecutionError,
            Self::Timeout => CellStatus::Timeout,
            Self::OutOfMemory => CellStatus::OutOfMemory,
            Self::OutOfFuel => CellStatus::OutOfFuel,
            Self::Cancelled => CellStatus::Cancelled,
        }
    }

    /// The documented word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Error => "error",
            Self::Timeout => "timeout",
            Self::OutOfMemory => "out_of_memory",
            Self::OutOfFuel => "out_of_fuel",
            Self::Killed => "killed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// How a cell ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CellStatus {
    /// By itself, without an error.
    Success,
    /// With an error, or its interpreter did.
    ExecutionError,
    /// Stopped at its deadline.
    Timeout,
    /// Stopped because the caller no longer wanted it, or the session was closed.
    Cancelled,
    /// Stopped for want of memory.
    OutOfMemory,
    /// Stopped as it had used all the instructions that it may.
    OutOfFuel,
    /// It never began.
    SetupError,
}

impl CellStatus {
    /// All there are, in the order of the documentation.
    pub const ALL: [Self; 7] = [
        Self::Success,
        Self::ExecutionError,
        Self::Timeout,
        Self::Cancelled,
        Self::OutOfMemory,
        Self::OutOfFuel,
        Self::SetupError,
    ];

    /// The documented word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::ExecutionError => "execution_error",
            Self::Timeout => "timeout",
            Self::Cancelled => "cancelled",
            Self::OutOfMemory => "out_of_memory",
            Self::OutOfFuel => "out_of_fuel",
            Self::SetupError => "setup_error",
        }
    }
}

/// One output of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Output {
    /// Valid UTF-8; where something was left out, a line between says how much.
    pub text: String,
    /// Something was left out.
    pub truncated: bool,
    /// Where that line is in the text.
    pub gap: Option<Range<usize>>,
    /// Bytes that the program wrote.
    pub total: u64,
    /// How many of them come before the cut; all, if there is none.
    pub head: u64,
    /// All that was captured, where the text has tracebacks that were shortened.
    pub whole: Option<Bytes>,
    /// All of it is kept, if it can be.
    pub is_kept: bool,
}
