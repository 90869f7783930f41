//! The commands of a session's task, with the channels for their answers.

use std::{fmt::Debug, sync::Arc, time::Duration};

use backend::CallerKey;
use bytes::Bytes;
use model::RunId;
use protocol::message::RuntimeName;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio_util::sync::CancellationToken;

use super::{
    RunReport,
    operations::{ErasedOperation, Operation, erased},
    reply::Reply,
    view::View,
};
use crate::{calls::RunCalls, error::Error, progress::Progress};

/// A command for a session's task, with the channel for its answer.
#[derive(Debug)]
pub(crate) enum Command {
    Run {
        program: Box<Program>,
        reply: Reply<RunReport>,
    },
    /// Performs an operation beside runs.
    Operate(Box<dyn ErasedOperation>),
    /// The viewers' view, as of the last run or upload. Does not count as activity.
    View {
        reply: Reply<Arc<View>>,
    },
    /// Counts as activity, and does nothing else.
    Touch {
        reply: Reply<()>,
    },
    /// Checks that the sandbox answers. Does not count as activity.
    Check {
        reply: Reply<()>,
    },
    /// Kills the run of this name if it is in progress. Its end is reported like any other.
    Cancel {
        run_id: RunId,
        reply: Reply<()>,
    },
    /// Stores a note in the sandbox for the next server, which says whose session it is.
    Remember {
        /// The key of the session's caller, if several servers share callers.
        caller: Option<CallerKey>,
    },
    Close {
        reply: Reply<()>,
    },
    /// Ends the session if it has been unused for this long, and returns its permit; otherwise does nothing and returns
    /// no permit.
    Evict {
        idle: Duration,
        reply: Reply<Option<OwnedSemaphorePermit>>,
    },
    /// Makes the session hibernate at once if it is unused, and returns its permit; returns none if it is in use, or
    /// would still use much memory.
    Rest {
        reply: Reply<Option<OwnedSemaphorePermit>>,
    },
    /// The permit of a session that hibernated without one and is used again.
    Wake {
        permit: OwnedSemaphorePermit,
    },
}

/// A program to run.
#[derive(Debug, Clone)]
pub struct Program {
    /// The name of its run.
    pub run_id: RunId,
    /// The language whose interpreter runs it.
    pub language: RuntimeName,
    /// Whether the program is a cell of the session's workspace, whose interpreter keeps the state of earlier cells.
    pub cell: bool,
    /// The program's text.
    pub code: Bytes,
    /// Standard input; empty if `None`.
    pub stdin: Option<Bytes>,
    /// The time after which it is killed.
    pub timeout: Duration,
    /// The longest such time that its caller could have asked for.
    pub max_timeout: Duration,
    /// Kills the program when cancelled.
    pub cancel: CancellationToken,
    /// Receives the run's progress a few times a second.
    pub progress: Option<watch::Sender<Progress>>,
    /// Answers the program's questions; `None` if it may call no tools.
    pub calls: Option<Arc<RunCalls>>,
    /// Dropped when the run begins, or will not.
    pub unbegun: Option<Arc<dyn Debug + Send + Sync>>,
}

impl Program {
    /// A program without input, which runs in a process of its own and whose run has a new name.
    pub fn new(language: RuntimeName, code: impl Into<Bytes>, timeout: Duration) -> Self {
        Self {
            run_id: RunId::mint(),
            language,
            cell: false,
            code: code.into(),
            stdin: None,
            timeout,
            max_timeout: timeout,
            cancel: CancellationToken::new(),
            progress: None,
            calls: None,
            unbegun: None,
        }
    }
}

impl Command {
    /// The command for an operation.
    pub(crate) fn operate<O: Operation>(operation: O, reply: Reply<O::Output>) -> Self {
        Self::Operate(erased(operation, reply))
    }

    /// Answers any command with an error.
    pub(crate) fn refuse(self, error: Error) {
        // The caller may no longer wait; that is no error.
        match self {
            Self::Run { reply, .. } => drop(reply.send(Err(error))),
            Self::Operate(operation) => operation.refuse(error),
            Self::View { reply } => drop(reply.send(Err(error))),
            Self::Remember { .. } | Self::Wake { .. } => {}
            Self::Touch { reply }
            | Self::Check { reply }
            | Self::Cancel { reply, .. }
            | Self::Close { reply } => drop(reply.send(Err(error))),
            Self::Evict { reply, .. } | Self::Rest { reply } => drop(reply.send(Err(error))),
        }
    }
}
