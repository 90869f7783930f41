//! What can be done with a session beside runs: each operation is a value, and a file of its own that
//! holds what it asks of the agent, what its failures mean to a caller, and what changes with it.
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
mod upload;

use std::{collections::HashSet, fmt, sync::Arc};

use futures::future::{BoxFuture, FutureExt};
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
    list::{List, Listing},
    open::Open,
    output::{OutputPart, ReadOutput},
    reset::Reset,
    upload::{Upload, Uploaded},
};
use super::{
    events::ReadObserver,
    explain::{Effect, Explainer},
    reply::Reply,
    truncated::TruncatedRuns,
    usage::Usage,
};
use crate::{
    error::{Error, Result},
    link::{Link, LinkError},
};

/// Operations of one session that make a call at the same time; more wait their turn.
const MAX_CALLS: usize = 8;

/// Uploads of one session that the agent holds open at once; more wait their turn. Half of what it
/// bears, so that none is ever refused.
const MAX_OPEN_UPLOADS: usize = 16;

/// Something done over the link beside runs. It takes a turn for its calls, and counts as activity.
pub trait Operation: fmt::Debug + Send + 'static {
    /// What the caller gets.
    type Output: fmt::Debug + Send + 'static;

    /// Does it.
    ///
    /// # Errors
    /// The caller is at fault or the link failed; [`OperationError`] says which.
    fn perform(
        self,
        context: OperationContext,
    ) -> impl Future<Output = std::result::Result<Done<Self::Output>, OperationError>> + Send;
}

/// What an operation works with.
#[derive(Clone)]
pub struct OperationContext {
    pub(super) link: Link,
    pub(super) turns: Turns,
    /// Languages whose variables a caller may believe to be there.
    pub(super) remembering: HashSet<RuntimeName>,
    /// Holds the session in use for as long as an operation's result needs it.
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

/// Who goes first, where many operations of a session meet. Clones share the turns.
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
    /// One for each call that is under way; `None` if there are no more turns, ever.
    pub(super) async fn call(&self) -> Option<OwnedSemaphorePermit> {
        self.calls.clone().acquire_owned().await.ok()
    }

    /// One more for who has one already, if nobody waits for it: who waited with one in hand could wait for ever.
    pub(super) fn another_call(&self) -> Option<OwnedSemaphorePermit> {
        self.calls.clone().try_acquire_owned().ok()
    }

    /// One for each upload that the agent holds open.
    pub(super) async fn upload(&self) -> Option<OwnedSemaphorePermit> {
        self.uploads.clone().acquire_owned().await.ok()
    }
}

/// What came of an operation.
#[derive(Debug)]
pub struct Done<T> {
    pub(super) output: T,
    pub(super) effect: Effect,
}

impl<T> Done<T> {
    /// Nothing is different now.
    pub(super) fn unchanged(output: T) -> Self {
        Self { output, effect: Effect::None }
    }
}

/// Why an operation came to nothing.
#[derive(Debug)]
pub enum OperationError {
    /// The caller is told this.
    Answer(Error),
    /// A call failed in a way that means the same in every operation. The text names what the call was
    /// about.
    Link(LinkError, String),
}

impl From<Error> for OperationError {
    fn from(error: Error) -> Self {
        Self::Answer(error)
    }
}

/// An operation together with where its answer goes.
pub(crate) trait ErasedOperation: fmt::Debug + Send {
    /// Does it. The answer is sent by whoever has applied the effect.
    fn begin(self: Box<Self>, context: OperationContext) -> BoxFuture<'static, Operated>;

    /// Answers with an error instead.
    fn refuse(self: Box<Self>, error: Error);
}

/// An operation that is over.
pub(crate) struct Operated {
    pub(super) effect: Effect,
    /// Answers whoever asked, if anybody still waits.
    pub(super) answer: Box<dyn FnOnce() + Send>,
}

#[derive(Debug)]
struct Pending<O: Operation> {
    operation: O,
    reply: Reply<O::Output>,
}

/// An operation whose answer goes there.
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
            // A caller that no longer waits is no error.
            Operated { effect, answer: Box::new(move || drop(reply.send(answer))) }
        }
        .boxed()
    }

    fn refuse(self: Box<Self>, error: Error) {
        let _ = self.reply.send(Err(error));
    }
}
