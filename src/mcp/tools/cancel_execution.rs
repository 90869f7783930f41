//! `cancel_execution`.

use config::Toolset;
use model::text::quoted_within;
use rmcp::model::CallToolResponse;
use serde::Deserialize;
use serde_json::json;

use super::schema::{object, string};
use crate::{
    error::Result,
    mcp::{
        audited::Log,
        call::{Call, success},
        tool::{Description, Hints, Tool, ToolFacts},
    },
    sessions::CancelOutcome,
};

pub(in crate::mcp) struct CancelExecution;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::mcp) struct Arguments {
    execution_id: String,
}

/// Longest name of a run that is returned, in characters. Real ones are shorter.
const MAX_ID_CHARS: usize = 64;

/// The name of a run as it is returned to the caller: an invalid name is quoted and cut, like all names that somebody
/// else chose.
pub(super) fn shown(id: &str) -> String {
    let may_be = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    if id.len() <= MAX_ID_CHARS && id.chars().all(may_be) {
        return id.into();
    }
    quoted_within(id, MAX_ID_CHARS)
}

impl Tool for CancelExecution {
    const NAME: &'static str = "cancel_execution";
    const TOOLSET: Toolset = Toolset::Sessions;
    const ALIASES: &'static [(&'static str, &'static str)] =
        &[("run_id", "execution_id"), ("id", "execution_id")];
    type Arguments = Arguments;

    fn describe(_: &ToolFacts) -> Description {
        let outcomes = CancelOutcome::ALL.map(CancelOutcome::as_str);
        Description {
            title: "Cancel an execution",
            text: "Stops a run in progress; its progress messages and the workspace's history have its \
                   run_id. Its own call is then answered as cancelled."
                .into(),
            input: object(json!({ "execution_id": string("Its run_id.") }), &["execution_id"]),
            output: object(
                json!({
                    "execution_id": { "type": "string" },
                    "status": { "type": "string", "enum": outcomes },
                }),
                &["execution_id", "status"],
            ),
            hints: Hints::Ending,
        }
    }

    async fn call(call: &Call, arguments: Arguments, log: &mut Log) -> Result<CallToolResponse> {
        let Arguments { execution_id } = arguments;
        let outcome = call.services.sessions.cancel(&execution_id).await;
        if outcome != CancelOutcome::NotFound {
            log.run = Some(execution_id.clone());
        }
        log.outcome = Some(outcome.as_str());
        let shown = shown(&execution_id);
        Ok(success(json!({ "execution_id": shown, "status": outcome.as_str() })).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_name_of_a_run_comes_back_quoted_and_cut() {
        let own = "run_20250101T000000Z_0000";
        assert_eq!(shown(own), own);
        assert_eq!(shown("a b\n\u{1b}[2J"), r#""a b\n\u001b[2J""#);
        let long = shown(&"x".repeat(500));
        assert!(long.starts_with("\"xxx") && long.ends_with("x...\"") && long.len() < 80, "{long}");
    }
}
