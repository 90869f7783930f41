//! The Model Context Protocol: the only place that names rmcp. Parses and renders, nothing else.
//!
//! - [`tools`]: what the five tools are called, take and give, as clients are told.
//! - [`calls`]: one call, from its arguments to its result.
//! - [`stdio`]: the transport over standard input and output.

mod calls;
pub mod stdio;
mod tools;

use std::{panic::AssertUnwindSafe, sync::Arc};

use futures::FutureExt;
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, CustomRequest,
        CustomResult, ErrorCode, Implementation, ListToolsResult, PaginatedRequestParams,
        ServerCapabilities, ServerConfig, Tool,
    },
    service::RequestContext,
};
use serde_json::Value;

use crate::{error::Error, sessions::Sessions};

/// The MCP server. Cheap to clone; nothing in it belongs to one client, as clients open a
/// connection per call, never close it, or have none at all.
#[derive(Debug, Clone)]
pub struct Server {
    sessions: Sessions,
    /// Base of the download addresses, if files are served.
    files: Option<Arc<str>>,
    tools: Arc<[Tool]>,
}

impl Server {
    /// A server for these sessions, whose files are at this address if at any.
    pub fn new(sessions: Sessions, files: Option<String>) -> Self {
        let tools = tools::all(sessions.config()).into();
        Self { sessions, files: files.map(Into::into), tools }
    }
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(
                Implementation::new(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"))
                    .with_title("LLM sandbox"),
            )
            .with_instructions(tools::INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(self.tools.to_vec()))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        self.tools.iter().find(|tool| tool.name == name).cloned()
    }

    /// What is none of the protocol's requests, or has not their shape.
    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        if request.method == "tools/call" {
            let why = "tools/call needs params with a name and, if any, arguments as an object";
            return Err(ErrorData::invalid_params(why, None));
        }
        Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, request.method, None))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        if request.name == stdio::UNREADABLE {
            return Err(ErrorData::parse_error(
                "The message is not JSON, or holds an escape that stands for no character (half of \
                 a surrogate pair), a number out of range, or more than 120 levels. Nothing was done.",
                None,
            ));
        }
        if self.get_tool(&request.name).is_none() && request.name != stdio::OVERSIZED {
            return Err(ErrorData::invalid_params(format!("unknown tool {}", request.name), None));
        }
        let arguments = Value::Object(request.arguments.unwrap_or_default());
        let call = calls::call(self, &request.name, arguments, context.ct);
        // rmcp would never answer a call that panics, and its client would wait for ever.
        let result = AssertUnwindSafe(call).catch_unwind().await;
        Ok(result.unwrap_or_else(|_| error(&Error::internal(&"the tool panicked"))).into())
    }
}

/// An error as one text block. No structured content: clients check that against the tool's output
/// schema even when it is an error, and then lose our message.
fn error(error: &Error) -> CallToolResult {
    CallToolResult::error(vec![ContentBlock::text(error.to_json().to_string())])
}
