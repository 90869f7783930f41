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

/// What may be relied upon in a hello of whatever version, from either side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerVersion {
    /// The version that the peer speaks.
    pub version: u32,
}

/// First frame of all, from the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerHello {
    /// [`PROTOCOL_VERSION`](crate::frame::PROTOCOL_VERSION) of the server.
    pub version: u32,
    /// The agent ends itself, and so the sandbox, after this long without a frame. It covers the
    /// deaths that the engine does not turn into an end of the stream: a restarted engine, a
    /// frozen server, a lost network.
    pub silence_limit_ms: u64,
    /// Modules that the fork server loads, in this order; `None` starts none, and every run is a new
    /// interpreter.
    pub preload: Option<Vec<String>>,
    /// Cells that can be taken back in each workspace, [`MAX_UNDO`](crate::limits::MAX_UNDO) at most; `None`
    /// if there will be no cells, and nothing is to be prepared for them.
    pub undo: Option<u32>,
    /// What becomes of the sandbox when its stream ends; `None` ends it with the stream.
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
    /// Largest frame body that the agent takes and sends, in bytes.
    pub max_body: usize,
    /// Most uploads that may be open at once.
    pub max_uploads: usize,
}

/// Names what interprets a program. What there is depends on the image, and not on the protocol.
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

/// Runs a program: a fresh interpreter on the code, with `/mnt/data` as its working directory; or a cell, in
/// the interpreter of this runtime that lives on in the sandbox's workspace. One at a time; a second is answered [`FailureCode::Busy`], and one that no runtime here can run
/// [`FailureCode::NoRuntime`].
///
/// Body: the code, then its standard input if `has_stdin`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// What interprets it.
    pub runtime: RuntimeName,
    /// Bytes of code at the start of the body.
    pub code_len: usize,
    /// The rest of the body is the program's standard input; otherwise that is `/dev/null`.
    pub has_stdin: bool,
    /// Wall time after which the run is killed.
    pub timeout_ms: u64,
    /// Most bytes kept of each of stdout and stderr: the start and, of two fifths of them, the end.
    pub output_cap: usize,
    /// It is a cell of the workspace. The interpreter is made if there is none.
    pub cell: bool,
}

/// What came of a [`Run`].
///
/// Body: head and tail of stdout, head and tail of stderr, head and tail of a cell's result if it has one,
/// then `changed_len` bytes of JSON, an array of [`FileEntry`]: the files made or changed, by path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunDone {
    /// Why it ended.
    pub end: End,
    /// How it came to its interpreter.
    pub start: Start,
    /// Wall time from the start of the program to its end, in microseconds.
    pub elapsed_us: u64,
    /// The same from the request to this reply, in microseconds: what the agent adds is the difference.
    pub agent_us: u64,
    /// Processor time of all its processes, in microseconds.
    pub cpu_us: u64,
    /// How many processes the kernel killed for memory while it ran.
    pub oom_kills: u64,
    /// Standard output.
    pub stdout: Captured,
    /// Standard error.
    pub stderr: Captured,
    /// Bytes of JSON at the end of the body.
    pub changed_len: usize,
    /// Changed files that did not fit.
    pub changed_omitted: usize,
    /// What else is known of it.
    #[serde(default, skip_serializing_if = "Facts::is_empty")]
    pub facts: Facts,
    /// What became of the workspace, if it was a cell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cell: Option<CellDone>,
}

/// What a cell has left of its workspace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CellDone {
    /// Whether the variables are still there.
    pub state: CellState,
    /// The interpreter was made for this cell: it had no variables.
    pub fresh: bool,
    /// Cells that the interpreter has run so far; those that were rolled back or taken back do not count.
    pub count: u64,
    /// Text form of the last expression's value, at most [`MAX_RESULT`](crate::limits::MAX_RESULT) bytes of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Captured>,
    /// Memory of the interpreter after it, in bytes, what it shares with others included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Cells that can be taken back now.
    pub can_undo: u32,
    /// Threads that were alive before the cell and did not come back with the variables.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lost_threads: usize,
    /// There is not the memory to keep the variables safe: a stop of the next cell may lose them.
    #[serde(default, skip_serializing_if = "is_false")]
    pub at_risk: bool,
}

/// What became of the variables of a workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CellState {
    /// They are as the cell has left them.
    Kept,
    /// They are exactly as before the cell.
    RolledBack,
    /// They are gone; the next cell meets a new interpreter.
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

/// What the sandbox knows of a run that its outputs do not say. Hints: there may be none where there is
/// something to say, and a program can forge them all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Facts {
    /// Type of the value that the last statement had and nobody took.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dropped_value: Option<String>,
    /// Charts that were neither shown nor saved.
    #[serde(skip_serializing_if = "is_zero")]
    pub unsaved_figures: usize,
    /// Columns of the table in which the program looked for one in vain.
    #[serde(skip_serializing_if = "Names::is_empty")]
    pub columns: Names,
    /// Row of that table, counted from 0, that has the name of the missing column: the header may be there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header: Option<u32>,
    /// The places of the tables in a file that a library could not read as one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shape: Option<Shape>,
    /// Sheets of the workbook in which the program looked for one in vain.
    #[serde(skip_serializing_if = "Names::is_empty")]
    pub sheets: Names,
    /// The file that the program looked for in vain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing_file: Option<MissingFile>,
    /// Files made or changed outside the data area, absolute.
    #[serde(skip_serializing_if = "Names::is_empty")]
    pub elsewhere: Names,
    /// Where the program stood at its deadline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<Position>,
    /// Lines for a notebook that were left out, so that the rest could run.
    #[serde(skip_serializing_if = "Names::is_empty")]
    pub left_out: Names,
    /// The user's file, below the data area, that may have stood for a library's module in which the program
    /// looked for something in vain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hidden_module: Option<String>,
}

impl Facts {
    /// There are none.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Some names, the most important first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Names {
    /// Those that are told.
    pub names: Vec<String>,
    /// How many there are besides.
    #[serde(skip_serializing_if = "is_zero")]
    pub more: usize,
}

impl Names {
    /// There are none.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty() && self.more == 0
    }
}

/// The places at which the tables of a text file seem to be. Lines are counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// First line of the longest table: its header.
    pub line: u32,
    /// The separator of its fields.
    pub separator: char,
    /// First line of the table after it; 0 if there is none.
    #[serde(default)]
    pub next: u32,
}

/// A file that is not there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MissingFile {
    /// As the program named it.
    pub name: String,
    /// Files of the data area, those with the most similar names first.
    pub there: Names,
}

/// A line of a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// The file: the program's own or a module of its user's.
    pub file: String,
    /// Counted from 1.
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
    /// A signal ended it that was neither ours nor the kernel's for want of memory.
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
    /// It has used all the instructions that it may. Only where they are counted.
    OutOfFuel,
}

/// How a run came to its interpreter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Start {
    /// A spare was waiting.
    Warm,
    /// A spare had to be forked first.
    Fork,
    /// It was a new interpreter.
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

/// What was kept of one output stream.
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

/// Looks at the interpreter of a workspace between cells; [`FailureCode::Busy`] during a run,
/// [`FailureCode::NoRuntime`] for a runtime that keeps no state, or that is not there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inspect {
    /// Whose interpreter.
    pub runtime: RuntimeName,
}

/// Answers [`Inspect`]. Body: [`Contents`] as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InspectDone {
    /// There is an interpreter. If not, nothing else is known either.
    pub live: bool,
    /// As in [`CellDone`].
    pub count: u64,
    /// As in [`CellDone`].
    pub can_undo: u32,
    /// As in [`CellDone`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
}

/// What an interpreter holds. Code of the user's has a say in all of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Contents {
    /// The user's variables, in the order in which they were made, at most
    /// [`MAX_VARIABLES`](crate::limits::MAX_VARIABLES); no modules, and nothing whose name begins with `_`.
    pub variables: Vec<Variable>,
    /// Variables besides.
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

/// Takes cells of a workspace back, or begins anew. [`FailureCode::Busy`] during a run,
/// [`FailureCode::NothingToUndo`] if so many cells cannot be taken back, and then nothing has changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reset {
    /// Whose interpreter. Of a runtime that keeps no state there is nothing to reset.
    pub runtime: RuntimeName,
    /// So many cells are taken back; `None` ends the interpreter, and the next cell meets a new one.
    pub undo: Option<u32>,
    /// All files of the data area are deleted, too.
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

/// Writes down the variables of a workspace's interpreter, for another to take over ([`Import`]); or reads a piece
/// of what was written. Between the pieces nothing else may be asked for that concerns interpreters.
/// [`FailureCode::Busy`] during a run, [`FailureCode::NoRuntime`] for a runtime that cannot do it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Export {
    /// Whose interpreter.
    pub runtime: RuntimeName,
    /// Within what bounds it is written down now; `None` reads a piece instead.
    pub begin: Option<CarryLimits>,
    /// First byte wanted of what was written, if nothing is written.
    pub offset: u64,
    /// Most bytes wanted.
    pub len: usize,
}

/// What writing variables down, or taking them over, may take. What would take more is left behind.
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

/// Answers [`Export`]. Body: [`Carried`] as JSON if it was written now, else the bytes, fewer than asked for only at
/// the end. They are the interpreter's own business, and may be anything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportDone {
    /// There is an interpreter. If not, there is nothing else either.
    pub live: bool,
    /// As in [`CellDone`].
    pub count: u64,
    /// Bytes that were written.
    pub total: u64,
}

/// What has become of the variables of an interpreter. Code of the user's has a say in all of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Carried {
    /// Names of those that came along, modules not among them; as [`Contents::variables`] are cut.
    pub variables: Vec<String>,
    /// Variables that came along besides.
    #[serde(skip_serializing_if = "is_zero")]
    pub more: usize,
    /// Modules that variables name and that came along, by their full names.
    pub imports: Vec<String>,
    /// Those that did not come along.
    pub lost: Vec<LostVariable>,
    /// Variables that did not come along besides.
    #[serde(skip_serializing_if = "is_zero")]
    pub more_lost: usize,
}

/// A variable that did not come along.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostVariable {
    /// Its name, at most [`MAX_VARIABLE_CHARS`](crate::limits::MAX_VARIABLE_CHARS) characters of it.
    pub name: String,
    /// Why, cut in the same way.
    pub why: String,
}

impl Request for Export {
    const KIND: Kind = Kind::Export;
    type Reply = ExportDone;
}

/// Takes over variables that were written down by [`Export`], in an interpreter that is made for them: there must be
/// none yet, or this is [`FailureCode::BadRequest`]. They come in pieces, in order.
///
/// Body: the bytes of this piece.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Import {
    /// Whose interpreter.
    pub runtime: RuntimeName,
    /// Where this piece starts; a piece at 0 begins anew.
    pub offset: u64,
    /// This is the last piece, and the interpreter is made, within these bounds.
    pub last: Option<CarryLimits>,
    /// Cells that it counts as having run.
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

/// Which of a program's two outputs.
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

/// Runs the program of a tool once, in a fresh instance with files of its own. Of agents that serve a tool, and as
/// many at once as are asked for. Its files can be read ([`Get::of`]) until they are forgotten ([`Forget`]).
///
/// Body: a [`CallInput`] as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// Wall time after which it is killed.
    pub timeout_ms: u64,
    /// Instructions that it may use, if they are bounded.
    pub fuel: Option<u64>,
    /// Most bytes kept of each of stdout and stderr: the start and, of two fifths of them, the end.
    pub output_cap: usize,
}

/// What the program of a tool is given.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallInput {
    /// Its arguments, its own name the first of them.
    pub args: Vec<String>,
    /// Its variables, as `NAME=value`.
    pub env: Vec<String>,
    /// Files by path, relative to the tool's folder.
    pub files: BTreeMap<String, String>,
    /// What it reads on its standard input.
    pub stdin: String,
}

impl Request for Call {
    const KIND: Kind = Kind::Call;
    type Reply = RunDone;
}

/// Forgets the files that a [`Call`] has left. No error if there are none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forget {
    /// Call id of the [`Call`].
    pub call: u32,
}

impl Request for Forget {
    const KIND: Kind = Kind::Forget;
    type Reply = Empty;
}

/// Ends the run that has the given call id; its [`RunDone`] follows. No error if it has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kill {
    /// Call id of the [`Run`] or [`Call`].
    pub run: u32,
}

impl Request for Kill {
    const KIND: Kind = Kind::Kill;
    type Reply = Empty;
}

/// Reads a piece of a long output. [`FailureCode::NotFound`] if it is not long ([`KEPT_FROM`](crate::limits::KEPT_FROM)), or no
/// longer kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Output {
    /// Call id of the [`Run`].
    pub run: u32,
    /// Which of its outputs.
    pub stream: Stream,
    /// First byte wanted; at or past the end of what is kept the body is empty.
    pub offset: u64,
    /// Most bytes wanted.
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

/// Looks at a run that is in progress; [`FailureCode::NotFound`] if it is not.
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
/// the last. Until then nothing can be seen of it (under gVisor a file called `.upload-<number>`),
/// and if no last piece comes nothing remains.
///
/// Body: the bytes of this piece.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Put {
    /// Chosen by the server; names the upload until its last piece.
    pub upload: u32,
    /// Relative to `/mnt/data`. Folders are made as needed.
    pub path: String,
    /// Where this piece starts; a piece at 0 opens the upload.
    pub offset: u64,
    /// This is the last piece.
    pub last: bool,
    /// Replace what has this name; otherwise that is [`FailureCode::Exists`].
    pub overwrite: bool,
}

/// Answers [`Put`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PutDone {
    /// There was a file of that name. Says nothing before the last piece.
    pub replaced: bool,
}

impl Request for Put {
    const KIND: Kind = Kind::Put;
    type Reply = PutDone;
}

/// Forgets an upload whose last piece will not come, and frees what it holds. No error if there is
/// none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Abandon {
    /// As in [`Put`].
    pub upload: u32,
}

impl Request for Abandon {
    const KIND: Kind = Kind::Abandon;
    type Reply = Empty;
}

/// Writes pieces of the files of packages, where interpreters look for packages after all else. The pieces of one file
/// come in order, in one request or several; a file appears, whole, with its last. [`FailureCode::NoRuntime`] where
/// there is no place for packages.
///
/// Body: the bytes of all pieces, one after another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Install {
    /// In the order in which they are written. The first that cannot be is the last.
    pub pieces: Vec<PackagePiece>,
}

/// A piece of a file of a package.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackagePiece {
    /// As in [`Put`], and none of its numbers.
    pub upload: u32,
    /// Relative to the folder of packages. Folders are made as needed, and what has this name is replaced.
    pub path: String,
    /// As in [`Put`].
    pub offset: u64,
    /// Its bytes in the body.
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
    /// Most bytes wanted, 0 to ask for the stamp alone.
    pub len: usize,
    /// Of the files that the [`Call`] with this id has left.
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
    /// There are more after the last one.
    pub more: bool,
}

impl Request for List {
    const KIND: Kind = Kind::List;
    type Reply = ListDone;
}

/// Waits until a spare is waiting, or until it is known that there will be none. Wakes an agent that
/// hibernates.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warm {}

/// Answers [`Warm`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WarmDone {
    /// The next run starts warm.
    pub ready: bool,
    /// What went wrong on the way, if anything did: modules that could not be loaded, or why there
    /// is no fork server.
    pub problems: Vec<String>,
    /// What became of the sandbox that this one was to go on from; `None` where sandboxes are not kept. Nothing may
    /// be asked for before it is known but this and signs of life.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub went_on: Option<WentOn>,
}

/// What became of the sandbox that another was to go on from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WentOn {
    /// There was none.
    Nothing,
    /// It goes on as it was last.
    Last,
    /// It goes on as it was before that: how it was last could not be written.
    Older,
    /// What was kept of it cannot be used. There are no files and no variables.
    Unusable,
    /// Another process has it. There are no files and no variables, and nothing will be kept.
    Taken,
}

impl Request for Warm {
    const KIND: Kind = Kind::Warm;
    type Reply = WarmDone;
}

/// Ends the fork server and its spare, which are most of an idle sandbox's memory. The next run, or
/// the next upload, which is a sign of one, starts them again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hibernate {
    /// The sandbox is also to be kept as it is now, so that its process can end.
    #[serde(default, skip_serializing_if = "is_false")]
    pub keep: bool,
}

/// Answers [`Hibernate`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HibernateDone {
    /// The sandbox is kept, and its process may end.
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

/// Answers [`Ping`]. To a peer that knows nothing of what it may hold it is an [`Empty`], and the
/// other way round.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pong {
    /// Memory of the sandbox in bytes, files in tmpfs included, without what the kernel could take
    /// back at once. None where it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
}

impl Request for Ping {
    const KIND: Kind = Kind::Ping;
    type Reply = Pong;
}

/// A reply that says only that it is done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Empty {}

/// A regular file beneath `/mnt/data`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Relative to `/mnt/data`.
    pub path: String,
    /// What it is now.
    pub stamp: Stamp,
}

/// Tells two states of a file apart. The change time is among them because a program can set the
/// modification time, but not that one.
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
    /// What a caller can act on.
    pub code: FailureCode,
    /// For the log.
    pub detail: String,
}

impl Failure {
    /// A failure with its detail, which names no path: the caller knows it, and the server's log must
    /// not.
    pub fn new(code: FailureCode, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into() }
    }

    /// The request makes no sense, for this reason.
    pub fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(FailureCode::BadRequest, detail)
    }

    /// What the system said when this was to be done.
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
    /// There is something of that name.
    Exists,
    /// The path cannot be used: it leads out, through a file or a link, or is not allowed.
    BadPath,
    /// No room or no inodes left.
    Full,
    /// Another run is in progress, or too many uploads are open.
    Busy,
    /// The request makes no sense.
    BadRequest,
    /// The program's runtime is not among those that this sandbox has, or it cannot do that.
    NoRuntime,
    /// So many cells cannot be taken back.
    NothingToUndo,
    /// Anything else that the system said.
    System,
}
