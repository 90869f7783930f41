//! `destroy_session`.

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

pub(super) struct DestroySession;

impl Tool for DestroySession {
    const NAME: &'static str = "destroy_session";
    const TOOLSET: Toolset = Toolset::Sessions;
    type Arguments = OfSession;

    fn describe(_: &Facts) -> Description {
        Description {
            title: "Destroy a session",
            text: "Ends a session with its variables, files and URLs, like close_session.".into(),
            input: object(json!({ "session_id": required_session() }), &["session_id"]),
            output: object(
                json!({
                    "session_id": session_of_result(),
                    "status": { "type": "string", "enum": ["destroyed"] },
                }),
                &["session_id", "status"],
            ),
            hints: Hints::Ending,
        }
    }

    async fn call(call: &Call, arguments: OfSession, log: &mut Log) -> Result<CallToolResponse> {
        let id = existing(&arguments.session_id, log)?;
        call.services.sessions.close(&id).await?;
        Ok(success(json!({ "session_id": id.as_str(), "status": "destroyed" })).into())
    }
}
