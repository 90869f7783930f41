//! `close_session`.

use rmcp::model::CallToolResponse;
use serde_json::json;

use super::schema::{object, required_session, session_of_result};
use crate::{
    config::Toolset,
    error::Result,
    mcp::{
        call::{Call, Log, OfSession, existing, success},
        tool::{Description, Facts, Hints, Tool},
    },
};

pub(super) struct CloseSession;

impl Tool for CloseSession {
    const NAME: &'static str = "close_session";
    const TOOLSET: Toolset = Toolset::Run;
    type Arguments = OfSession;

    fn describe(_: &Facts) -> Description {
        Description {
            title: "Close a session",
            text: "Ends a session: its container, files and URLs are gone.".into(),
            input: object(json!({ "session_id": required_session() }), &["session_id"]),
            output: object(
                json!({
                    "session_id": session_of_result(),
                    "status": { "type": "string", "enum": ["closed"] },
                }),
                &["session_id", "status"],
            ),
            hints: Hints::Ending,
        }
    }

    async fn call(call: &Call, arguments: OfSession, log: &mut Log) -> Result<CallToolResponse> {
        let id = existing(&arguments.session_id, log)?;
        call.services.sessions.close(&id).await?;
        Ok(success(json!({ "session_id": id.as_str(), "status": "closed" })).into())
    }
}
