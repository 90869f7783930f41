//! What can be asked of a session, and where the answer goes.

use std::{sync::Arc, time::Duration};

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
use crate::{backend::CallerKey, error::Error, progress::Progress};

/// A request to a session's task. Each carries where its answer goes.
#[derive(Debug)]
pub(crate) enum Command {
    Run {
        program: Program,
        reply: Reply<RunReport>,
    },
    /// Does something beside runs.
    Operate(Box<dyn ErasedOperation>),
    /// What viewers see, as it was after the last run or upload. Does not count as activity.
    View {
        reply: Reply<Arc<View>>,
    },
    /// Counts as activity, and does nothing else.
    Touch {
        reply: Reply<()>,
    },
    /// Does the sandbox answer? Does not count as activity.
    Check {
        reply: Reply<()>,
    },
    /// Kills the run of this name, if it is in progress; its end is told as any other's.
    Cancel {
        run_id: RunId,
        reply: Reply<()>,
    },
    /// Has the sandbox keep a note for the next server.
    Remember {
        note: Bytes,
        /// Whose it is, if several servers share their callers.
        caller: Option<CallerKey>,
    },
    Close {
        reply: Reply<()>,
    },
    /// Ends the session if nobody has used it for so long, and gives its permit to whoever asks; nothing
    /// happens, and there is no permit, if somebody has.
    Evict {
        idle: Duration,
        reply: Reply<Option<OwnedSemaphorePermit>>,
    },
    /// Has the session hibernate at once if nobody uses it, and gives its permit to whoever asks; there is none if
    /// somebody does, or if it holds much memory even so.
    Rest {
        reply: Reply<Option<OwnedSemaphorePermit>>,
    },
    /// The permit of a session that has rested, which is used again.
    Wake {
        permit: OwnedSemaphorePermit,
    },
}

/// A program to run.
#[derive(Debug, Clone)]
pub struct Program {
    /// What interprets it.
    pub language: RuntimeName,
    /// It is a cell of the session's workspace, whose interpreter remembers what earlier cells did.
    pub cell: bool,
    /// Its text.
    pub code: Bytes,
    /// Standard input; nothing to read if there is none.
    pub stdin: Option<Bytes>,
    /// When it is killed.
    pub timeout: Duration,
    /// Kills it when cancelled.
    pub cancel: CancellationToken,
    /// Where it is told, a few times a second, how the run goes.
    pub progress: Option<watch::Sender<Progress>>,
}

impl Command {
    /// Asks for an operation.
    pub(crate) fn operate<O: Operation>(operation: O, reply: Reply<O::Output>) -> Self {
        Self::Operate(erased(operation, reply))
    }

    /// Answers with an error, whatever was asked.
    pub(crate) fn refuse(self, error: Error) {
        // A caller that no longer waits is no error.
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
