//! Explains failed calls over the link to callers, if the kind of call makes no difference.

use link::LinkError;
use model::SessionId;
use protocol::message::{FailureCode, RuntimeName};
use tokio_util::sync::CancellationToken;

use crate::error::Error;

/// A change of the session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Effect {
    /// No change.
    None,
    /// A file of this size was added, or has a new version.
    FileAdded {
        /// The file's size.
        bytes: u64,
    },
    /// The interpreter of a language was rolled back or restarted.
    Reset {
        /// The interpreter's language.
        language: RuntimeName,
        /// The number of cells that were undone, if it was rolled back.
        undone: Option<u32>,
        /// Whether the interpreter has no cell left that lasted.
        is_empty: bool,
        /// Whether files were removed.
        files: bool,
    },
    /// The sandbox has ended or cannot be trusted any more: the session ends.
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
    /// Cancelled when the session is left to the next server.
    pub(super) left: CancellationToken,
}

/// The error of a caller whose session the next server takes over.
pub(crate) fn left() -> Error {
    let why = "The server is being replaced. The session goes on with the next one, and so does what runs in it: \
               call again in a moment, and look at what is there.";
    Error::SandboxUnavailable(why.into())
}

impl Explainer {
    /// The error that a caller gets, and the effect on the session. `subject` names what the call was about.
    pub(super) fn explain(&self, error: LinkError, subject: &str) -> (Error, Effect) {
        match error {
            LinkError::Refused(failure) => {
                let error = match failure.code {
                    FailureCode::NotFound => Error::NotFound(subject.into()),
                    FailureCode::Full => Error::QuotaExceeded(self.data_limit),
                    FailureCode::Busy => Error::SessionBusy { run: None },
                    FailureCode::NoRuntime => {
                        let why = "The sandbox of this session has no interpreter for that language. Use \
                                   another language, or leave session_id out.";
                        Error::UnsupportedLanguage(why.into())
                    }
                    // Without the path, which belongs to the user and not into the log.
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

    /// The agent violated the protocol. Its session ends, and only that one.
    fn broken(&self, why: &str) -> (Error, Effect) {
        tracing::warn!(session_id = %self.id, why, "the sandbox broke the protocol");
        self.died()
    }

    fn died(&self) -> (Error, Effect) {
        (Error::SandboxDied(self.id.clone()), Effect::SandboxGone)
    }
}
