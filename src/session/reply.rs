//! The channel for the answers of a session's task.

use tokio::sync::oneshot;

use crate::error::{Error, Result};

/// The channel for one answer.
pub(crate) type Reply<T> = oneshot::Sender<Result<T>>;

/// Waits for the answer of a session's task.
///
/// # Errors
/// If the command has failed, or the task ended without an answer, which is a defect.
pub(crate) async fn received<T>(answer: oneshot::Receiver<Result<T>>) -> Result<T> {
    answer.await.unwrap_or_else(|_| Err(Error::internal(&"a session's task ended early")))
}
