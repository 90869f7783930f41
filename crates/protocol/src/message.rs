//! Messages: the heads of frames, each request tied to its reply by type.

use std::{borrow::Cow, collections::BTreeMap, io};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{frame::Kind, resume::Hold};

/// A request and the reply that answers it.
pub trait Request: Serialize + DeserializeOwned {
    /// The kind of frame that carries the request.
    const KIND: Kind;
    /// The head of the reply.
    type Reply: Serialize + DeserializeOwned;
}

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
    /// The rest of the body is the program's standard input; otherwise that is `/dev/null`.
    pub has_stdin: bool,
    /// Wall time after which the run is killed.
    pub timeout_ms: u64,
    /// The maximum number of bytes kept of each of stdout and stderr: the start and, with two fifths of them, the end.
    pub output_cap: usize,
    /// The code is a cell of the workspace. The interpreter is started if there is none.
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

/// The state of a workspace after a cell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CellDone {
    /// Whether the variables are still there.
    pub state: CellState,
    /// The interpreter was started for this cell: it had no variables.
    pub fresh: bool,
    /// The number of cells that the interpreter has run; cells that were rolled back or undone do not count.
    pub count: u64,
    /// Text form of the last expression's value, cut to [`MAX_RESULT`](crate::limits::MAX_RESULT) bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Captured>,
    /// Memory of the interpreter after the cell, in bytes, including memory that it shares with others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// The number of cells that can be undone now.
    pub can_undo: u32,
    /// The number of threads that ran before the cell and were not restored with the variables.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lost_threads: usize,
    /// The memory does not suffice to protect the variables: they may be lost if the next cell is stopped.
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
    /// The word for it, as on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::RolledBack => "rolled_back",
            Self::Lost => "lost",
        }
    }
}

/// Facts about a run that its outputs do not contain. They are hints: a fact may be missing, and a program can forge
/// all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Facts {
    /// Type of the last statement's value, if the program did not use it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dropped_value: Option<String>,
    /// The number of charts that were neither shown nor saved.
    #[serde(skip_serializing_if = "is_zero")]
    pub unsaved_figures: usize,
    /// Columns of the table in which the program did not find a column.
    #[serde(skip_serializing_if = "Names::is_empty")]
    pub columns: Names,
    /// Row of that table, counted from 0, that has the name of the missing column: the header may be there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header: Option<u32>,
    /// The places of the tables in a file that a library could not read as one table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shape: Option<Shape>,
    /// Sheets of the workbook in which the program did not find a sheet.
    #[serde(skip_serializing_if = "Names::is_empty")]
    pub sheets: Names,
    /// The file that the program did not find.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing_file: Option<MissingFile>,
    /// Absolute paths of files that were created or changed outside the data area.
    #[serde(skip_serializing_if = "Names::is_empty")]
    pub elsewhere: Names,
    /// The line that the program had reached at its deadline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<Position>,
    /// Lines for a notebook that were left out, so that the rest could run.
    #[serde(skip_serializing_if = "Names::is_empty")]
    pub left_out: Names,
    /// The user's file, below the data area, that may hide a library's module in which the program did not find
    /// something.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hidden_module: Option<String>,
}

impl Facts {
    /// Whether there are no facts.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Some names, the most important first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Names {
    /// The names that are listed.
    pub names: Vec<String>,
    /// The number of further names.
    #[serde(skip_serializing_if = "is_zero")]
    pub more: usize,
}

impl Names {
    /// Whether there are no names.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty() && self.more == 0
    }
}

/// The probable places of the tables in a text file. Lines are counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// First line of the longest table: its header.
    pub line: u32,
    /// The separator of its fields.
    pub separator: char,
    /// First line of the next table; 0 if there is none.
    #[serde(default)]
    pub next: u32,
}

/// A file that does not exist.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MissingFile {
    /// The name that the program used.
    pub name: String,
    /// Files of the data area, those with the most similar names first.
    pub there: Names,
}

/// A line of a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// The file: the program's own or a module of its user's.
    pub file: String,
    /// The line's number, counted from 1.
    pub line: u32,
    /// The function, or `<module>`.
    pub function: String,
    /// The line's text, if it is the program's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_zero(number: &usize) -> bool {
    *number == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_false(is: &bool) -> bool {
    !is
}

/// Why a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "why")]
pub enum End {
    /// The program ended by itself.
    Exited {
        /// Its exit code.
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
    /// The word for it, as on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Warm => "warm",
            Self::Fork => "fork",
            Self::Cold => "cold",
        }
    }
}

/// The sizes of the kept parts of an output stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Captured {
    /// Bytes kept from the start.
    pub head: usize,
    /// Bytes kept from the end. Nothing lies between head and tail if they add up to `total`.
    pub tail: usize,
    /// Bytes that the program wrote.
    pub total: u64,
}

impl Request for Run {
    const KIND: Kind = Kind::Run;
    type Reply = RunDone;
}

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
    /// There is an interpreter. If not, the other fields have no meaning.
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
    /// Its name, at most [`MAX_VARIABLE_CHARS`](crate::limits::MAX_VARIABLE_CHARS) characters of it.
    pub name: String,
    /// Type and size of its value, as `DataFrame 1000x5`, `list 3` or `int`; cut in the same way.
    pub summary: String,
}

impl Request for Inspect {
    const KIND: Kind = Kind::Inspect;
    type Reply = InspectDone;
}

/// Undoes cells of a workspace, or ends its interpreter. Fails with [`FailureCode::Busy`] during a run, and with
/// [`FailureCode::NothingToUndo`] if fewer cells can be undone than asked for; then nothing has changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reset {
    /// The interpreter's runtime. A runtime that keeps no state has nothing to reset.
    pub runtime: RuntimeName,
    /// The number of cells to undo; `None` ends the interpreter, and the next cell gets a new one.
    pub undo: Option<u32>,
    /// Also deletes all files of the data area.
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

impl Request for Reset {
    const KIND: Kind = Kind::Reset;
    type Reply = ResetDone;
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
    /// Bytes of all of them.
    pub total_bytes: u64,
    /// Time for one variable, in milliseconds.
    pub each_ms: u64,
    /// Time for all of them, in milliseconds.
    pub total_ms: u64,
}

/// Answers [`Export`]. Body: [`Carried`] as JSON if the export was made now, else the bytes, fewer than asked for only
/// at the end. The bytes have a meaning only for the interpreter, and may be anything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportDone {
    /// There is an interpreter. If not, the other fields have no meaning.
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
    /// Its name, at most [`MAX_VARIABLE_CHARS`](crate::limits::MAX_VARIABLE_CHARS) characters of it.
    pub name: String,
    /// The reason, cut in the same way.
    pub why: String,
}

impl Request for Export {
    const KIND: Kind = Kind::Export;
    type Reply = ExportDone;
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

impl Request for Import {
    const KIND: Kind = Kind::Import;
    type Reply = ImportDone;
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
    /// The word for it, as on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

/// Runs the program of a tool once, in a fresh instance with files of its own. Only agents that serve a tool do this,
/// and any number of calls at once. The files can be read ([`Get::of`]) until they are removed ([`Forget`]).
///
/// Body: a [`CallInput`] as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// Wall time after which it is killed.
    pub timeout_ms: u64,
    /// The maximum number of instructions; `None` for no limit.
    pub fuel: Option<u64>,
    /// The maximum number of bytes kept of each of stdout and stderr: the start and, with two fifths of them, the end.
    pub output_cap: usize,
}

/// The input of a tool's program.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallInput {
    /// Its arguments, its own name the first of them.
    pub args: Vec<String>,
    /// Its environment variables, as `NAME=value`.
    pub env: Vec<String>,
    /// Files by path, relative to the tool's folder.
    pub files: BTreeMap<String, String>,
    /// Its standard input.
    pub stdin: String,
}

impl Request for Call {
    const KIND: Kind = Kind::Call;
    type Reply = RunDone;
}

/// Removes the files of a [`Call`]. It is no error if there are none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forget {
    /// Call id of the [`Call`].
    pub call: u32,
}

impl Request for Forget {
    const KIND: Kind = Kind::Forget;
    type Reply = Empty;
}

/// Ends the run that has the given call id; its [`RunDone`] follows. It is no error if it has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kill {
    /// Call id of the [`Run`] or [`Call`].
    pub run: u32,
}

impl Request for Kill {
    const KIND: Kind = Kind::Kill;
    type Reply = Empty;
}

/// Reads a piece of a long output. Fails with [`FailureCode::NotFound`] if the output is not long
/// ([`KEPT_FROM`](crate::limits::KEPT_FROM)), or no longer kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Output {
    /// Call id of the [`Run`].
    pub run: u32,
    /// One of the run's outputs.
    pub stream: Stream,
    /// First byte wanted; at or past the end of what is kept the body is empty.
    pub offset: u64,
    /// The maximum number of bytes wanted.
    pub len: usize,
}

/// Answers [`Output`]. Body: the bytes, fewer than asked for only at the end of what is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputDone {
    /// Bytes that the program wrote.
    pub total: u64,
    /// Bytes from the start that can be read.
    pub kept: u64,
}

impl Request for Output {
    const KIND: Kind = Kind::Output;
    type Reply = OutputDone;
}

/// Reads the newest line of a run in progress. Fails with [`FailureCode::NotFound`] if the run is not in progress.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peek {
    /// Call id of the [`Run`].
    pub run: u32,
}

/// Answers [`Peek`]. Body: the newest whole line that is not blank, of the output that was written to last; a carriage
/// return ends a line too. A line that has not ended counts if it follows a carriage return, or if there is no other.
/// Empty if there is none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeekDone {
    /// Bytes written to standard output so far.
    pub stdout_total: u64,
    /// Bytes written to standard error so far.
    pub stderr_total: u64,
    /// The interpreter is still being started: none of the code has run.
    #[serde(default, skip_serializing_if = "is_false")]
    pub loading: bool,
}

impl Request for Peek {
    const KIND: Kind = Kind::Peek;
    type Reply = PeekDone;
}

/// Writes a piece of a file. The pieces of one upload come in order; the file appears, whole, with
/// the last. Until then it is not visible (under gVisor, a file called `.upload-<number>` is), and if no last piece
/// comes nothing remains.
///
/// Body: the bytes of this piece.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Put {
    /// The number that the server chose for the upload. It can be used again after the last piece.
    pub upload: u32,
    /// The path relative to `/mnt/data`. Folders are created as needed.
    pub path: String,
    /// Offset of this piece; a piece at 0 opens the upload.
    pub offset: u64,
    /// This is the last piece.
    pub last: bool,
    /// Replaces an existing file of this name; otherwise that fails with [`FailureCode::Exists`].
    pub overwrite: bool,
}

/// Answers [`Put`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PutDone {
    /// A file of that name existed. Only valid after the last piece.
    pub replaced: bool,
}

impl Request for Put {
    const KIND: Kind = Kind::Put;
    type Reply = PutDone;
}

/// Discards an upload whose last piece will not come. It is no error if there is none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Abandon {
    /// As in [`Put`].
    pub upload: u32,
}

impl Request for Abandon {
    const KIND: Kind = Kind::Abandon;
    type Reply = Empty;
}

/// Writes pieces of the files of packages into the folder in which interpreters look for packages last. The pieces of
/// one file come in order, in one request or several; a file appears, whole, with its last piece. Fails with
/// [`FailureCode::NoRuntime`] if there is no folder for packages.
///
/// Body: the bytes of all pieces, one after another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Install {
    /// The pieces, in the order in which they are written. Writing ends at the first failure.
    pub pieces: Vec<PackagePiece>,
}

/// A piece of a file of a package.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackagePiece {
    /// As in [`Put`], with a number that no [`Put`] uses.
    pub upload: u32,
    /// The path relative to the folder of packages. Folders are created as needed, and an existing file is replaced.
    pub path: String,
    /// As in [`Put`].
    pub offset: u64,
    /// The number of its bytes in the body.
    pub len: usize,
    /// As in [`Put`].
    pub last: bool,
}

impl Request for Install {
    const KIND: Kind = Kind::Install;
    type Reply = Empty;
}

/// Reads a piece of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Get {
    /// Relative to `/mnt/data`.
    pub path: String,
    /// First byte wanted; at or past the end of the file the body is empty.
    pub offset: u64,
    /// The maximum number of bytes wanted, 0 to ask for the stamp alone.
    pub len: usize,
    /// The id of the [`Call`] whose file is read; `None` reads a file of the data area.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<u32>,
}

/// Answers [`Get`]. Body: the bytes, fewer than asked for only at the end of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GetDone {
    /// The file as it was when the bytes were read.
    pub stamp: Stamp,
}

impl Request for Get {
    const KIND: Kind = Kind::Get;
    type Reply = GetDone;
}

/// Lists regular files, sub-folders included, by path. Names that are not UTF-8 are left out, as
/// no caller could ask for them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct List {
    /// Start after this path; `None` starts at the beginning.
    pub after: Option<String>,
}

/// Answers [`List`]. Body: a JSON array of [`FileEntry`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListDone {
    /// There are more files after the last one.
    pub more: bool,
}

impl Request for List {
    const KIND: Kind = Kind::List;
    type Reply = ListDone;
}

/// Waits until a spare interpreter is waiting, or until it is known that there will be none. Wakes an agent that
/// hibernates.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warm {}

/// Answers [`Warm`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WarmDone {
    /// The next run starts warm.
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

impl Request for Warm {
    const KIND: Kind = Kind::Warm;
    type Reply = WarmDone;
}

/// Ends the fork server and its spare interpreter, which are most of an idle sandbox's memory. The next run starts them
/// again, and so does the next upload, because a run is likely to follow it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hibernate {
    /// Also saves the sandbox's present state, so that its process can end.
    #[serde(default, skip_serializing_if = "is_false")]
    pub keep: bool,
}

/// Answers [`Hibernate`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HibernateDone {
    /// The sandbox is saved, and its process may end.
    #[serde(default, skip_serializing_if = "is_false")]
    pub kept: bool,
}

impl Request for Hibernate {
    const KIND: Kind = Kind::Hibernate;
    type Reply = HibernateDone;
}

/// Asks for a sign of life.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ping {}

/// Answers [`Ping`]. A peer that does not know its field reads it as an [`Empty`], and the other way round.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pong {
    /// Memory of the sandbox in bytes, files in tmpfs included, without memory that the kernel could reclaim at once.
    /// `None` if it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
}

impl Request for Ping {
    const KIND: Kind = Kind::Ping;
    type Reply = Pong;
}

/// A reply that says only that the request was carried out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Empty {}

/// A regular file beneath `/mnt/data`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// The path relative to `/mnt/data`.
    pub path: String,
    /// The file's present stamp.
    pub stamp: Stamp,
}

/// Distinguishes two states of a file. The change time is included because a program can set the modification time, but
/// not the change time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Stamp {
    /// Inode number.
    pub ino: u64,
    /// Size in bytes.
    pub size: u64,
    /// Modification time, nanoseconds since the epoch.
    pub mtime_ns: i64,
    /// Change time, nanoseconds since the epoch.
    pub ctime_ns: i64,
}

/// Why a request could not be carried out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The kind of failure, on which a caller can act.
    pub code: FailureCode,
    /// The reason, for the log.
    pub detail: String,
}

impl Failure {
    /// Creates a failure. The detail names no path: the caller knows it, and the server's log must not contain it.
    pub fn new(code: FailureCode, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into() }
    }

    /// Creates the failure of a request that makes no sense, for this reason.
    pub fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(FailureCode::BadRequest, detail)
    }

    /// Creates a failure from an error of the system; `what` is the action that failed.
    pub fn io(what: &str, error: &io::Error) -> Self {
        let code = match error.kind() {
            io::ErrorKind::StorageFull => FailureCode::Full,
            _ => FailureCode::System,
        };
        Self::new(code, format!("{what}: {error}"))
    }
}

/// The kinds of [`Failure`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureCode {
    /// No such file, or not a regular one; no such run or output.
    NotFound,
    /// A file or folder of that name exists.
    Exists,
    /// The path cannot be used: it leads out, through a file or a link, or is not allowed.
    BadPath,
    /// There is no room, or there are no inodes left.
    Full,
    /// Another run is in progress, or too many uploads are open.
    Busy,
    /// The request makes no sense.
    BadRequest,
    /// The sandbox does not have this runtime, or the runtime cannot do this.
    NoRuntime,
    /// Fewer cells can be undone than asked for.
    NothingToUndo,
    /// Any other error of the system.
    System,
}
