//! What can be asked of a session, and where the answer goes.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use protocol::message::{FileEntry, Stream};
use tokio::sync::{OwnedSemaphorePermit, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::{
    Artifact, FileReader, RunReport,
    upload::{Content, Uploaded},
};
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
        content: Content,
        overwrite: bool,
        reply: Reply<Uploaded>,
    },
    List {
        reply: Reply<Listing>,
    },
    /// The files as they were after the last run or upload. Does not count as use.
    Look {
        reply: Reply<Arc<Listing>>,
    },
    Open {
        path: DataPath,
        reply: Reply<FileReader>,
    },
    /// Reads on in an output that was cut.
    ReadOutput {
        wanted: Wanted,
        reply: Reply<OutputPart>,
    },
    /// Counts as use.
    Touch {
        reply: Reply<()>,
    },
    /// Does the sandbox answer? Does not count as use.
    Check {
        reply: Reply<()>,
    },
    Close {
        reply: Reply<()>,
    },
    /// Ends the session if nobody has used it for so long, and gives its place to whoever asks; nothing
    /// happens, and there is no place, if somebody has.
    Evict {
        idle: Duration,
        reply: Reply<Option<OwnedSemaphorePermit>>,
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
    /// Where it is told, a few times a second, how the run goes.
    pub progress: Option<watch::Sender<Progress>>,
}

/// How a run goes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress {
    /// The sandbox is there and has the program. Until then it is being started.
    pub started: bool,
    /// The newest line of its output that is not blank, as printable text of at most 200 characters;
    /// empty if there is none.
    pub line: String,
    /// Bytes written to both outputs.
    pub written: u64,
}

/// A piece of an output.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    /// Names the run, in a caller's words.
    pub(crate) run_id: String,
    pub(crate) stream: Stream,
    /// First byte; where the report's cut begins if there is none.
    pub(crate) offset: Option<u64>,
    /// Most bytes.
    pub(crate) len: usize,
}

/// A piece of an output that was cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputPart {
    /// Where it starts.
    pub offset: u64,
    /// As the program wrote them; fewer than asked for at the end of what is kept.
    pub bytes: Bytes,
    /// Bytes that the program wrote.
    pub total: u64,
    /// Bytes from the start that can be read.
    pub kept: u64,
}

/// The files of a session.
#[derive(Debug, Clone, Default)]
pub struct Listing {
    /// By path.
    pub artifacts: Vec<Artifact>,
    /// There are more than are listed.
    pub more: bool,
}

impl Listing {
    pub(crate) fn new(entries: Vec<FileEntry>, more: bool) -> Self {
        let artifacts = entries.into_iter().filter_map(Artifact::from_entry);
        Self { artifacts: artifacts.collect(), more }
    }

    /// Memory that it takes, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let paths = self.artifacts.iter().map(|file| file.path.as_str().len());
        paths.sum::<usize>() + self.artifacts.len() * size_of::<Artifact>()
    }
}

impl Command {
    /// Answers with an error, whatever was asked.
    pub(crate) fn refuse(self, error: Error) {
        // A caller that no longer waits is no error.
        match self {
            Self::Run { reply, .. } => drop(reply.send(Err(error))),
            Self::Upload { reply, .. } => drop(reply.send(Err(error))),
            Self::ReadOutput { reply, .. } => drop(reply.send(Err(error))),
            Self::Touch { reply } | Self::Check { reply } | Self::Close { reply } => {
                drop(reply.send(Err(error)));
            }
            Self::List { reply } => drop(reply.send(Err(error))),
            Self::Look { reply } => drop(reply.send(Err(error))),
            Self::Open { reply, .. } => drop(reply.send(Err(error))),
            Self::Evict { reply, .. } => drop(reply.send(Err(error))),
        }
    }
}
