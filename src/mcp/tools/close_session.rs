//! `close_session`.

use config::Toolset;
use rmcp::model::CallToolResponse;
use serde_json::json;

use super::schema::{object, required_session, session_of_result};
use crate::{
    error::Result,
    mcp::{
        audited::Log,
        call::{Call, OfSession, existing, success},
        tool::{Description, Hints, Tool, ToolFacts},
    },
};

pub(in crate::mcp) struct CloseSession;

impl Tool for CloseSession {
    const NAME: &'static str = "close_session";
    const TOOLSET: Toolset = Toolset::Run;
    type Arguments = OfSession;

    fn describe(_: &ToolFacts) -> Description {
        let text = "Ends a session: its sandbox, files and URLs are gone.";
        described("Close a session", text, "closed")
    }

    async fn call(call: &Call, arguments: OfSession, log: &mut Log) -> Result<CallToolResponse> {
        close(call, &arguments, "closed", log).await
    }
}

/// The description of a tool that ends a session.
pub(super) fn described(title: &'static str, text: &str, status: &str) -> Description {
    Description {
        title,
        text: text.into(),
        input: object(json!({ "session_id": required_session() }), &["session_id"]),
        output: object(
            json!({
                "session_id": session_of_result(),
                "status": { "type": "string", "enum": [status] },
            }),
            &["session_id", "status"],
        ),
        hints: Hints::Ending,
    }
}

pub(super) async fn close(
    call: &Call,
    arguments: &OfSession,
    status: &str,
    log: &mut Log,
) -> Result<CallToolResponse> {
    let id = existing(&arguments.session_id, log)?;
    call.services.sessions.close(&id).await?;
    Ok(success(json!({ "session_id": id.as_str(), "status": status })).into())
}
