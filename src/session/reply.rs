//! Where the answers of a session's task go.

use tokio::sync::oneshot;

use crate::error::{Error, Result};

/// Where one answer goes.
pub(crate) type Reply<T> = oneshot::Sender<Result<T>>;

/// Waits for what a session's task answers.
///
/// # Errors
/// What was asked for has failed, or the task ended without an answer, which it never should.
pub(crate) async fn received<T>(answer: oneshot::Receiver<Result<T>>) -> Result<T> {
    answer.await.unwrap_or_else(|_| Err(Error::internal(&"a session's task ended early")))
}
