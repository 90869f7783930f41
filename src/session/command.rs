//! What can be asked of a session, and where the answer goes.

use std::time::Duration;

use bytes::Bytes;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::{Artifact, FileReader, RunReport};
use crate::{
    artifact::DataPath,
    error::{Error, Result},
};

/// A request to a session's task. Each carries where its answer goes.
#[derive(Debug)]
pub(crate) enum Command {
    Run {
        program: Program,
        reply: Reply<RunReport>,
    },
    Upload {
        path: DataPath,
        bytes: Bytes,
        overwrite: bool,
        reply: Reply<()>,
    },
    List {
        reply: Reply<Listing>,
    },
    Open {
        path: DataPath,
        reply: Reply<FileReader>,
    },
    /// Does the sandbox answer? Does not count as use.
    Check {
        reply: Reply<()>,
    },
    Close {
        reply: Reply<()>,
    },
}

pub(crate) type Reply<T> = oneshot::Sender<Result<T>>;

/// A program to run.
#[derive(Debug, Clone)]
pub struct Program {
    /// Python source.
    pub code: Bytes,
    /// Standard input; nothing to read if there is none.
    pub stdin: Option<Bytes>,
    /// When it is killed.
    pub timeout: Duration,
    /// Kills it when cancelled.
    pub cancel: CancellationToken,
}

/// The files of a session.
#[derive(Debug, Clone, Default)]
pub struct Listing {
    /// By path.
    pub artifacts: Vec<Artifact>,
    /// There are more than are listed.
    pub more: bool,
}

impl Command {
    /// Answers with an error, whatever was asked.
    pub(crate) fn refuse(self, error: Error) {
        // A caller that no longer waits is no error.
        match self {
            Self::Run { reply, .. } => drop(reply.send(Err(error))),
            Self::Upload { reply, .. } | Self::Check { reply } | Self::Close { reply } => {
                drop(reply.send(Err(error)));
            }
            Self::List { reply } => drop(reply.send(Err(error))),
            Self::Open { reply, .. } => drop(reply.send(Err(error))),
        }
    }
}
