//! Messages: the heads of frames, each request tied to its reply by type.

mod ask;
mod call;
mod facts;
mod files;
mod run;
mod sandbox;
mod summary;
mod workspace;

use std::io;

use serde::{Deserialize, Serialize, de::DeserializeOwned};

pub use self::{
    ask::{Answer, Ask, MAX_ASK, MAX_ASKS, Pause, Withdraw},
    call::{Call, CallInput, Forget},
    facts::{Facts, MissingFile, Names, Position, Shape},
    files::{
        Abandon, FileEntry, Get, GetDone, Install, List, ListDone, PackagePiece, Put, PutDone,
        Stamp,
    },
    run::{
        Captured, CellDone, CellState, End, Kill, Output, OutputDone, Peek, PeekDone, Run, RunDone,
        Start, Stream,
    },
    sandbox::{
        AgentHello, CommandRuntime, Empty, Hibernate, HibernateDone, PeerVersion, Ping, Pong,
        RuntimeName, ServerHello, Warm, WarmDone, WentOn,
    },
    summary::{
        Column, ColumnKind, Document, PageProblem, Sheet, Summarize, SummarizeDone, Summary,
        SummaryKind,
    },
    workspace::{
        Carried, CarryLimits, Contents, Export, ExportDone, Import, ImportDone, Inspect,
        InspectDone, LostVariable, Reset, ResetDone, Variable,
    },
};
use crate::{
    frame::Kind,
    resume::{Remember, Resume, Resumed},
};

/// A request and the reply that answers it.
pub trait Request: Serialize + DeserializeOwned {
    /// The kind of frame that carries the request.
    const KIND: Kind;
    /// The head of the reply.
    type Reply: Serialize + DeserializeOwned;
}

/// Ties each request to its reply. The kind of its frame has its name.
macro_rules! requests {
    ($($request:ident => $reply:ident,)*) => {
        $(impl Request for $request {
            const KIND: Kind = Kind::$request;
            type Reply = $reply;
        })*
    };
}

requests! {
    Run => RunDone,
    Inspect => InspectDone,
    Reset => ResetDone,
    Export => ExportDone,
    Import => ImportDone,
    Call => RunDone,
    Forget => Empty,
    Kill => Empty,
    Output => OutputDone,
    Peek => PeekDone,
    Put => PutDone,
    Abandon => Empty,
    Install => Empty,
    Get => GetDone,
    List => ListDone,
    Summarize => SummarizeDone,
    Warm => WarmDone,
    Hibernate => HibernateDone,
    Ping => Pong,
    Resume => Resumed,
    Remember => Empty,
    Answer => Empty,
    Pause => Empty,
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

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_zero(number: &usize) -> bool {
    *number == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_false(is: &bool) -> bool {
    !is
}
