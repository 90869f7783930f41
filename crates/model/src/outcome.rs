//! How runs and cells end, and what they print.

use std::ops::Range;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// Why a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Exit code 0.
    Ok,
    /// Another exit code.
    Error,
    /// Killed at its deadline.
    Timeout,
    /// Killed because it needed more memory than allowed.
    OutOfMemory,
    /// Killed because it needed more instructions than allowed.
    OutOfFuel,
    /// Ended by a signal that it caused itself.
    Killed,
    /// Killed because the caller no longer wanted it, or the session was closed.
    Cancelled,
}

impl Outcome {
    /// All outcomes, in the order of the documentation.
    pub const ALL: [Self; 7] = [
        Self::Ok,
        Self::Error,
        Self::Timeout,
        Self::OutOfMemory,
        Self::OutOfFuel,
        Self::Killed,
        Self::Cancelled,
    ];

    /// The status of a cell with this outcome, also in the history of a workspace.
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
    /// Stopped because it needed more memory than allowed.
    OutOfMemory,
    /// Stopped because it needed more instructions than allowed.
    OutOfFuel,
    /// The cell never began.
    SetupError,
}

impl CellStatus {
    /// All statuses, in the order of the documentation.
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
    /// The text, in valid UTF-8. If a part was left out, a line in its place says how much.
    pub text: String,
    /// Whether a part of the output was left out.
    pub truncated: bool,
    /// The range of that line in the text.
    pub gap: Option<Range<usize>>,
    /// Bytes that the program wrote.
    pub total: u64,
    /// The number of those bytes before the cut; all of them if there is no cut.
    pub head: u64,
    /// The whole captured output, if tracebacks in the text were shortened.
    pub whole: Option<Bytes>,
    /// Whether the whole output is stored to be read later, if that is possible.
    pub is_kept: bool,
}
