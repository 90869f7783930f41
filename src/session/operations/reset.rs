//! Undoes cells, and ends interpreters.

use protocol::message::{self, FailureCode, ResetDone, RuntimeName};

use super::{Done, Operation, OperationContext, OperationError};
use crate::{
    error::Error,
    session::{explain::Effect, report::MAX_FIGURE},
};

/// Undoes cells of a workspace, or ends the interpreter of a language.
#[derive(Debug, Clone)]
pub struct Reset {
    /// The interpreter's language.
    pub language: RuntimeName,
    /// The number of cells to undo; if `None`, the next cell gets a new interpreter.
    pub undo: Option<u32>,
    /// Whether to delete all files as well.
    pub files: bool,
}

impl Operation for Reset {
    type Output = ResetDone;

    async fn perform(self, context: OperationContext) -> Result<Done<ResetDone>, OperationError> {
        let Self { language, undo, files } = self;
        let _turn = context.turns.call().await;
        let reset = message::Reset { runtime: language.clone(), undo, files };
        match context.link.reset(&reset).await {
            Ok(done) => {
                let output = ResetDone { count: done.count.min(MAX_FIGURE), ..done };
                let is_empty = undo.is_none() || output.count == 0;
                let effect = Effect::Reset { language, undone: undo, is_empty, files };
                Ok(Done { output, effect })
            }
            Err(error)
                if error.code() == Some(FailureCode::NothingToUndo)
                    || (error.code() == Some(FailureCode::NoRuntime) && undo.is_some()) =>
            {
                // The error says how many cells can be undone.
                let there = context.link.inspect(language).await;
                let can_undo = there.map_or(0, |(interpreter, _)| interpreter.can_undo);
                Err(Error::NothingToUndo(can_undo).into())
            }
            // A language that keeps no variables has no interpreter to end.
            Err(error)
                if error.code() == Some(FailureCode::NoRuntime) && undo.is_none() && !files =>
            {
                Ok(Done::unchanged(ResetDone { count: 0, can_undo: 0, lost_threads: 0 }))
            }
            Err(error) => Err(OperationError::Link(error, "the workspace".into())),
        }
    }
}
