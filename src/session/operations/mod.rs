//! Operations on a session beside runs. Each is a value, and a file of its own with its request to the agent, the
//! meaning of its failures for a caller, and its effect on the session.
//!
//! ```text
//!   perform(operation) --> Command::Operate --> begin(context) --> Operated { effect, answer }
//!                                |                                   the driver applies the one,
//!                                '--> refuse(error)                  then sends the other
//! ```
//!
//! The driver knows none of them: a new operation is a new file here.

mod check;
mod inspect;
mod install;
mod list;
mod open;
mod output;
mod reset;
mod summarize;
mod upload;

use std::{collections::HashSet, fmt, sync::Arc};

use futures::future::{BoxFuture, FutureExt};
use link::{Link, LinkError};
use protocol::message::RuntimeName;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

pub(super) use self::{
    check::Check,
    inspect::inspect,
    list::{LISTING, list},
};
pub use self::{
    inspect::{Inspect, Inspected},
    install::Install,
    list::{Found, List, ListWithin, Listing},
    open::Open,
    output::{OutputPart, ReadOutput},
    reset::Reset,
    summarize::{Draw, Summarize},
    upload::{Upload, Uploaded},
};
use super::{
    events::ReadObserver,
    explain::{Effect, Explainer},
    reply::Reply,
    truncated::TruncatedRuns,
    usage::Usage,
};
use crate::error::{Error, Result};

/// Maximum number of operations of one session that may make a call at the same time; others wait for their turn.
const MAX_CALLS: usize = 8;

/// Maximum number of uploads of one session that the agent keeps open at the same time; others wait for their turn.
/// Half of the agent's limit, so that it never refuses one.
const MAX_OPEN_UPLOADS: usize = 16;

/// An operation over the link beside runs. It takes a turn for its calls, and counts as activity.
pub trait Operation: fmt::Debug + Send + 'static {
    /// The result for the caller.
    type Output: fmt::Debug + Send + 'static;

    /// Performs the operation.
    ///
    /// # Errors
    /// If the caller is at fault or the link fails; [`OperationError`] says which.
    fn perform(
        self,
        context: OperationContext,
    ) -> impl Future<Output = std::result::Result<Done<Self::Output>, OperationError>> + Send;
}

/// The parts of a session that an operation uses.
#[derive(Clone)]
pub struct OperationContext {
    pub(super) link: Link,
    pub(super) turns: Turns,
    /// Languages whose variables a caller may expect.
    pub(super) remembering: HashSet<RuntimeName>,
    /// Keeps the session in use for as long as an operation's result needs it.
    pub(super) usage: Usage,
    pub(super) truncated: TruncatedRuns,
    pub(super) reads: ReadObserver,
    pub(super) explainer: Explainer,
}

impl fmt::Debug for OperationContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OperationContext").finish_non_exhaustive()
    }
}

/// The order of concurrent operations of a session. Clones share the turns.
#[derive(Debug, Clone)]
pub(super) struct Turns {
    calls: Arc<Semaphore>,
    uploads: Arc<Semaphore>,
}

impl Default for Turns {
    fn default() -> Self {
        let turns = |count| Arc::new(Semaphore::new(count));
        Self { calls: turns(MAX_CALLS), uploads: turns(MAX_OPEN_UPLOADS) }
    }
}

impl Turns {
    /// A turn for a call in progress; `None` if the semaphore is closed.
    pub(super) async fn call(&self) -> Option<OwnedSemaphorePermit> {
        self.calls.clone().acquire_owned().await.ok()
    }

    /// A further turn for an operation that has one already, if one is free. It does not wait: operations that each
    /// have a turn could wait for each other forever.
    pub(super) fn another_call(&self) -> Option<OwnedSemaphorePermit> {
        self.calls.clone().try_acquire_owned().ok()
    }

    /// A turn for an upload that the agent keeps open.
    pub(super) async fn upload(&self) -> Option<OwnedSemaphorePermit> {
        self.uploads.clone().acquire_owned().await.ok()
    }
}

/// The result of an operation.
#[derive(Debug)]
pub struct Done<T> {
    pub(super) output: T,
    pub(super) effect: Effect,
}

impl<T> Done<T> {
    /// The result of an operation without an effect.
    pub(super) fn unchanged(output: T) -> Self {
        Self { output, effect: Effect::None }
    }
}

/// Why an operation failed.
#[derive(Debug)]
pub enum OperationError {
    /// The error for the caller.
    Answer(Error),
    /// A call failed in a way that means the same in every operation. The text names the subject of the call.
    Link(LinkError, String),
}

impl From<Error> for OperationError {
    fn from(error: Error) -> Self {
        Self::Answer(error)
    }
}

/// An operation with the channel for its answer.
pub(crate) trait ErasedOperation: fmt::Debug + Send {
    /// Performs the operation. The driver sends the answer after it has applied the effect.
    fn begin(self: Box<Self>, context: OperationContext) -> BoxFuture<'static, Operated>;

    /// Answers with an error instead.
    fn refuse(self: Box<Self>, error: Error);
}

/// A finished operation.
pub(crate) struct Operated {
    pub(super) effect: Effect,
    /// Sends the answer, if the caller still waits.
    pub(super) answer: Box<dyn FnOnce() + Send>,
}

#[derive(Debug)]
struct Pending<O: Operation> {
    operation: O,
    reply: Reply<O::Output>,
}

/// Combines an operation with the channel for its answer.
pub(crate) fn erased<O: Operation>(
    operation: O,
    reply: Reply<O::Output>,
) -> Box<dyn ErasedOperation> {
    Box::new(Pending { operation, reply })
}

impl<O: Operation> ErasedOperation for Pending<O> {
    fn begin(self: Box<Self>, context: OperationContext) -> BoxFuture<'static, Operated> {
        let Self { operation, reply } = *self;
        let explainer = context.explainer.clone();
        async move {
            let (effect, answer): (_, Result<O::Output>) = match operation.perform(context).await {
                Ok(Done { output, effect }) => (effect, Ok(output)),
                Err(OperationError::Answer(error)) => (Effect::None, Err(error)),
                Err(OperationError::Link(error, subject)) => {
                    let (error, effect) = explainer.explain(error, &subject);
                    (effect, Err(error))
                }
            };
            // The caller may no longer wait; that is no error.
            Operated { effect, answer: Box::new(move || drop(reply.send(answer))) }
        }
        .boxed()
    }

    fn refuse(self: Box<Self>, error: Error) {
        let _ = self.reply.send(Err(error));
    }
}
