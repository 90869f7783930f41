//! What a workspace holds, as its interpreter says between two runs.

use protocol::message::{Contents, FailureCode, InspectDone, RuntimeName};

use super::{Done, Operation, OperationContext, OperationError};
use crate::{
    link::{Link, LinkError},
    session::report::MAX_FIGURE,
};

/// Looks at the interpreter of a language.
#[derive(Debug, Clone)]
pub struct Inspect {
    /// Which language.
    pub language: RuntimeName,
}

/// What an interpreter holds. All that is said of variables may be anything within its limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspected {
    /// Whether there is an interpreter, its cells, its memory.
    pub interpreter: InspectDone,
    /// Its variables and modules.
    pub contents: Contents,
    /// It has nothing of what its caller believes to be there.
    pub is_forgotten: bool,
}

impl Inspected {
    /// One without an interpreter, or whose interpreter keeps nothing.
    pub(super) fn empty() -> Self {
        let interpreter = InspectDone { live: false, count: 0, can_undo: 0, memory_bytes: None };
        Self { interpreter, contents: Contents::default(), is_forgotten: false }
    }
}

/// Asks the agent; nothing while a run is in progress. A caller may remember variables of this language.
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
            // Without memory there is no process, whatever its cells were.
            let is_there = interpreter.live && count > 0 && memory_bytes.is_some();
            let is_forgotten = is_remembered && !is_there;
            Ok(Some(Inspected { interpreter, contents, is_forgotten }))
        }
        Err(error) if error.code() == Some(FailureCode::Busy) => Ok(None),
        // It is there and keeps no variables, as a shell does.
        Err(error) if error.code() == Some(FailureCode::NoRuntime) => Ok(Some(Inspected::empty())),
        Err(error) => Err(error),
    }
}

impl Operation for Inspect {
    /// Nothing while a run is in progress.
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
