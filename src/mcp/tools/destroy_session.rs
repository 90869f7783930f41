//! `destroy_session`: `close_session` under another name.

use config::Toolset;
use rmcp::model::CallToolResponse;

use super::close_session::{close, described};
use crate::{
    error::Result,
    mcp::{
        audited::Log,
        call::{Call, OfSession},
        tool::{Description, Tool, ToolFacts},
    },
};

pub(in crate::mcp) struct DestroySession;

impl Tool for DestroySession {
    const NAME: &'static str = "destroy_session";
    const TOOLSET: Toolset = Toolset::Sessions;
    type Arguments = OfSession;

    fn describe(_: &ToolFacts) -> Description {
        let text = "Ends a session with its variables, files and URLs.";
        described("Destroy a session", text, "destroyed")
    }

    async fn call(call: &Call, arguments: OfSession, log: &mut Log) -> Result<CallToolResponse> {
        close(call, &arguments, "destroyed", log).await
    }
}
