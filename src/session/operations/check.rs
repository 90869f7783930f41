//! Checks whether a sandbox answers.

use super::{Done, Operation, OperationContext, OperationError};

/// Pings the agent. Takes no turn, because its caller does not wait for long.
#[derive(Debug, Clone, Copy)]
pub(in crate::session) struct Check;

impl Operation for Check {
    type Output = ();

    async fn perform(self, context: OperationContext) -> Result<Done<()>, OperationError> {
        let answered = context.link.ping().await;
        answered.map_err(|error| OperationError::Link(error, "the sandbox".into()))?;
        Ok(Done::unchanged(()))
    }
}
