//! The contents of a workspace, as its interpreter reports them between two runs.

use link::{Link, LinkError};
use protocol::message::{Contents, FailureCode, InspectDone, RuntimeName};

use super::{Done, Operation, OperationContext, OperationError};
use crate::session::report::MAX_FIGURE;

/// Inspects the interpreter of a language.
#[derive(Debug, Clone)]
pub struct Inspect {
    /// The language.
    pub language: RuntimeName,
}

/// The contents of an interpreter. The texts about variables may be anything within its limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspected {
    /// Whether there is an interpreter, the number of its cells, and its memory.
    pub interpreter: InspectDone,
    /// The interpreter's variables and modules.
    pub contents: Contents,
    /// Whether the interpreter has none of the variables that its caller expects.
    pub is_forgotten: bool,
}

impl Inspected {
    /// The result without an interpreter, or with one that keeps no variables.
    pub(super) fn empty() -> Self {
        let interpreter = InspectDone { live: false, count: 0, can_undo: 0, memory_bytes: None };
        Self { interpreter, contents: Contents::default(), is_forgotten: false }
    }
}

/// Asks the agent; `None` while a run is in progress. `is_remembered`: a caller may expect variables of this language.
pub(in crate::session) async fn inspect(
    link: &Link,
    language: RuntimeName,
    is_remembered: bool,
) -> Result<Option<Inspected>, LinkError> {
    match link.inspect(language).await {
        Ok((interpreter, contents)) => {
            let memory_bytes = interpreter.memory_bytes.map(|bytes| bytes.min(MAX_FIGURE));
            let count = interpreter.count.min(MAX_FIGURE);
            let interpreter = InspectDone { count, memory_bytes, ..interpreter };
            // Without memory there is no process, whatever the number of its cells.
            let is_there = interpreter.live && count > 0 && memory_bytes.is_some();
            let is_forgotten = is_remembered && !is_there;
            Ok(Some(Inspected { interpreter, contents, is_forgotten }))
        }
        Err(error) if error.code() == Some(FailureCode::Busy) => Ok(None),
        // The language exists and keeps no variables, like a shell.
        Err(error) if error.code() == Some(FailureCode::NoRuntime) => Ok(Some(Inspected::empty())),
        Err(error) => Err(error),
    }
}

impl Operation for Inspect {
    /// `None` while a run is in progress.
    type Output = Option<Inspected>;

    async fn perform(
        self,
        context: OperationContext,
    ) -> Result<Done<Option<Inspected>>, OperationError> {
        let _turn = context.turns.call().await;
        let is_remembered = context.remembering.contains(&self.language);
        let found = inspect(&context.link, self.language, is_remembered).await;
        let found = found.map_err(|error| OperationError::Link(error, "the workspace".into()))?;
        Ok(Done::unchanged(found))
    }
}
