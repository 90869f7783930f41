//! What a failed call over the link means to a caller, where the kind of call makes no difference.

use model::SessionId;
use protocol::message::{FailureCode, RuntimeName};
use tokio_util::sync::CancellationToken;

use crate::{error::Error, link::LinkError};

/// What is different in the session now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Nothing.
    None,
    /// There is a new file, or a new version of one, of so many bytes.
    FileAdded {
        /// Its size.
        bytes: u64,
    },
    /// The interpreter of a language has gone back or begun anew.
    Reset {
        /// Whose interpreter.
        language: RuntimeName,
        /// So many cells were taken back, if it has gone back.
        undone: Option<u32>,
        /// No cell that has lasted is left in it.
        is_empty: bool,
        /// Files are gone.
        files: bool,
    },
    /// The sandbox is gone or cannot be trusted any more: the session ends.
    SandboxGone,
}

/// Explains the failures of one session. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Explainer {
    pub(super) id: SessionId,
    /// Size of the data area in bytes.
    pub(super) data_limit: u64,
    /// Cancelled when the session is closed.
    pub(super) stop: CancellationToken,
    /// Cancelled when it is left to the next server.
    pub(super) left: CancellationToken,
}

/// What a caller is told whose session goes on with the next server.
pub(crate) fn left() -> Error {
    let why = "The server is being replaced. The session goes on with the next one, and so does what runs in it: \
               call again in a moment, and look at what is there.";
    Error::SandboxUnavailable(why.into())
}

impl Explainer {
    /// The error that a caller gets, and what has become of the sandbox. The text names what the call
    /// was about.
    pub(super) fn explain(&self, error: LinkError, subject: &str) -> (Error, Effect) {
        match error {
            LinkError::Refused(failure) => {
                let error = match failure.code {
                    FailureCode::NotFound => Error::NotFound(subject.into()),
                    FailureCode::Full => Error::QuotaExceeded(self.data_limit),
                    FailureCode::Busy => Error::SessionBusy { at_most: None },
                    FailureCode::NoRuntime => {
                        let why = "The sandbox of this session has no interpreter for that language. Use \
                                   another language, or leave session_id out.";
                        Error::UnsupportedLanguage(why.into())
                    }
                    // Without the path, which is the user's and not the log's.
                    _ => Error::internal(&format!("{:?}: {}", failure.code, failure.detail)),
                };
                (error, Effect::None)
            }
            LinkError::Closed if self.left.is_cancelled() => (left(), Effect::None),
            LinkError::Closed if self.stop.is_cancelled() => {
                (Error::SessionNotFound(self.id.clone()), Effect::None)
            }
            LinkError::Closed => self.died(),
            LinkError::Broken(why) => self.broken(&why),
            LinkError::Version(_) => self.broken("a second hello"),
        }
    }

    /// The agent's side did what an agent does not do. Its session ends, and only that.
    fn broken(&self, why: &str) -> (Error, Effect) {
        tracing::warn!(session_id = %self.id, why, "the sandbox broke the protocol");
        self.died()
    }

    fn died(&self) -> (Error, Effect) {
        (Error::SandboxDied(self.id.clone()), Effect::SandboxGone)
    }
}
