//! Interpreters that keep their variables between cells.

use serde::{Deserialize, Serialize};

#[cfg(doc)]
use super::{CellDone, FailureCode};
use super::{RuntimeName, is_zero};

/// Lists the contents of a workspace's interpreter between cells. Fails with [`FailureCode::Busy`] during a run, and
/// with [`FailureCode::NoRuntime`] for a runtime that keeps no state, or that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inspect {
    /// The interpreter's runtime.
    pub runtime: RuntimeName,
}

/// Answers [`Inspect`]. Body: [`Contents`] as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InspectDone {
    /// Whether there is an interpreter. If not, the other fields have no meaning.
    pub live: bool,
    /// As in [`CellDone`].
    pub count: u64,
    /// As in [`CellDone`].
    pub can_undo: u32,
    /// As in [`CellDone`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
}

/// The contents of an interpreter. The user's code can influence all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Contents {
    /// The user's variables, in the order in which they were created, at most
    /// [`MAX_VARIABLES`](crate::limits::MAX_VARIABLES); no modules, and nothing whose name begins with `_`.
    pub variables: Vec<Variable>,
    /// The number of further variables.
    #[serde(skip_serializing_if = "is_zero")]
    pub more: usize,
    /// Full names of the modules that variables are, or that their functions and classes were imported from:
    /// sorted, each once.
    pub imports: Vec<String>,
}

/// A variable.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Variable {
    /// The first [`MAX_VARIABLE_CHARS`](crate::limits::MAX_VARIABLE_CHARS) characters of the
    /// variable's name.
    pub name: String,
    /// Type and size of its value, as `DataFrame 1000x5`, `list 3` or `int`; cut in the same way.
    pub summary: String,
}

/// Undoes cells of a workspace, or ends its interpreter. Fails with [`FailureCode::Busy`] during a run, and with
/// [`FailureCode::NothingToUndo`] if fewer cells can be undone than asked for; then nothing has changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reset {
    /// The interpreter's runtime. A runtime that keeps no state has nothing to reset.
    pub runtime: RuntimeName,
    /// The number of cells to undo; `None` ends the interpreter, and the next cell gets a new one.
    pub undo: Option<u32>,
    /// Whether to delete all files of the data area as well.
    pub files: bool,
}

/// Answers [`Reset`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResetDone {
    /// As in [`CellDone`].
    pub count: u64,
    /// As in [`CellDone`].
    pub can_undo: u32,
    /// As in [`CellDone`].
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lost_threads: usize,
}

/// Exports the variables of a workspace's interpreter, for another to [import](Import); or reads a piece of the
/// exported data. Between the pieces no other request may concern interpreters. Fails with [`FailureCode::Busy`] during
/// a run, and with [`FailureCode::NoRuntime`] for a runtime that cannot export.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Export {
    /// The interpreter's runtime.
    pub runtime: RuntimeName,
    /// The limits of an export that is made now; `None` reads a piece instead.
    pub begin: Option<CarryLimits>,
    /// First byte wanted of the exported data, if `begin` is `None`.
    pub offset: u64,
    /// The maximum number of bytes wanted.
    pub len: usize,
}

/// Limits for exporting or importing variables. Variables beyond the limits are left behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CarryLimits {
    /// Bytes of one variable.
    pub each_bytes: u64,
    /// Maximum number of bytes of all variables.
    pub total_bytes: u64,
    /// Time for one variable, in milliseconds.
    pub each_ms: u64,
    /// Time for all variables, in milliseconds.
    pub total_ms: u64,
}

/// Answers [`Export`]. Body: [`Carried`] as JSON if the export was made now, else the bytes, fewer than asked for only
/// at the end. The bytes have a meaning only for the interpreter, and may be anything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportDone {
    /// Whether there is an interpreter. If not, the other fields have no meaning.
    pub live: bool,
    /// As in [`CellDone`].
    pub count: u64,
    /// The number of exported bytes.
    pub total: u64,
}

/// The variables of an interpreter that were carried over or lost. The user's code can influence all of this.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Carried {
    /// Names of the variables that were carried over, without modules; limited and cut as [`Contents::variables`].
    pub variables: Vec<String>,
    /// The number of further variables that were carried over.
    #[serde(skip_serializing_if = "is_zero")]
    pub more: usize,
    /// Full names of the modules that are values of variables and were carried over.
    pub imports: Vec<String>,
    /// The variables that were lost.
    pub lost: Vec<LostVariable>,
    /// The number of further variables that were lost.
    #[serde(skip_serializing_if = "is_zero")]
    pub more_lost: usize,
}

/// A variable that was lost.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostVariable {
    /// The first [`MAX_VARIABLE_CHARS`](crate::limits::MAX_VARIABLE_CHARS) characters of the
    /// variable's name.
    pub name: String,
    /// The reason, cut in the same way.
    pub why: String,
}

/// Imports variables from an [`Export`] into a new interpreter. Fails with [`FailureCode::BadRequest`] if there is an
/// interpreter already. The data comes in pieces, in order.
///
/// Body: the bytes of this piece.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Import {
    /// The interpreter's runtime.
    pub runtime: RuntimeName,
    /// Offset of this piece; a piece at 0 begins anew.
    pub offset: u64,
    /// Limits of the import, if this is the last piece: the interpreter is started now.
    pub last: Option<CarryLimits>,
    /// The number of cells that the interpreter counts as run.
    pub count: u64,
}

/// Answers [`Import`]. Body: [`Carried`] as JSON after the last piece, else nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportDone {
    /// As in [`CellDone`].
    pub count: u64,
}
