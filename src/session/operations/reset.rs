//! Taking cells back, and beginning anew.

use protocol::message::{self, FailureCode, ResetDone, RuntimeName};

use super::{Done, Operation, OperationContext, OperationError};
use crate::{
    error::Error,
    session::{explain::Effect, report::MAX_FIGURE},
};

/// Takes cells of a workspace back, or ends the interpreter of a language.
#[derive(Debug, Clone)]
pub struct Reset {
    /// Whose interpreter.
    pub language: RuntimeName,
    /// So many cells are taken back; if there is no number, the next cell meets a new interpreter.
    pub undo: Option<u32>,
    /// All files are deleted, too.
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
                // Whoever asked for too many wants to know how many there are.
                let there = context.link.inspect(language).await;
                let can_undo = there.map_or(0, |(interpreter, _)| interpreter.can_undo);
                let wanted = undo.unwrap_or_default();
                Err(Error::NothingToUndo { wanted, can_undo }.into())
            }
            // What keeps nothing has nothing to end.
            Err(error)
                if error.code() == Some(FailureCode::NoRuntime) && undo.is_none() && !files =>
            {
                Ok(Done::unchanged(ResetDone { count: 0, can_undo: 0, lost_threads: 0 }))
            }
            Err(error) => Err(OperationError::Link(error, "the workspace".into())),
        }
    }
}
