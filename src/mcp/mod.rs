//! The Model Context Protocol: the only place that names rmcp. Parses and renders, nothing else.
//!
//! - [`tool`]: what a tool is; [`tools`]: those that there are, one file each.
//! - [`call`]: one call of a tool; [`services`]: what it works with.
//! - [`results`]: text, images and files, within what a message can take.
//! - [`resources`]: files as resources; [`roots`]: files of the host that a client may upload.
//! - [`message`]: what a message would cost, before it is parsed; [`long_text`]: its one long string.
//! - [`stdio`], [`http`]: the transports.

mod call;
pub mod http;
mod long_text;
mod message;
mod resources;
mod results;
mod roots;
mod services;
pub mod stdio;
mod tool;
mod tools;

use std::panic::AssertUnwindSafe;

use futures::FutureExt;
use hyper::http::request::Parts;
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CacheScope, CallToolRequestParams, CallToolResponse, CompleteRequestMethod,
        CompleteRequestParams, CompleteResult, CustomRequest, CustomResult, ErrorCode,
        Implementation, ListPromptsRequestMethod, ListPromptsResult, ListResourceTemplatesResult,
        ListResourcesResult, ListToolsResult, PaginatedRequestParams, ReadResourceRequestParams,
        ReadResourceResponse, ServerCapabilities, ServerConfig, Tool,
    },
    service::RequestContext,
};

use self::{
    call::{Call, failure},
    services::Services,
    tool::{Facts, Toolset, perform},
    tools::Tools,
};
use crate::{
    backend::Template,
    config::Transport,
    error::Error,
    request::{ANSWER_BYTES, NO_MEMORY, REFUSED, RequestMemory},
    sessions::Sessions,
    signed_urls::SignedUrls,
};

/// The MCP server. Cheap to clone; nothing in it belongs to one client, as clients open a
/// connection per call, never close it, or have none at all.
#[derive(Debug, Clone)]
pub struct Server {
    services: Services,
    tools: Tools,
}

impl Server {
    /// A server for these sessions, whose files have these URLs if any.
    pub fn new(sessions: Sessions, urls: Option<SignedUrls>, transport: Transport) -> Self {
        let tools = Tools::new(Toolset::ALL);
        sessions.metrics().count_tools(tools.names());
        Self { services: Services::new(sessions, urls, transport), tools }
    }

    /// What the texts of tools depend on, for sandboxes that hold this.
    fn facts<'a>(&'a self, template: &'a Template) -> Facts<'a> {
        let Services { sessions, transport, .. } = &self.services;
        Facts { config: sessions.config(), transport: *transport, template }
    }

    /// Takes the memory of a call and its answer, before it is made. Over stdio there is one client, which
    /// waits for its own answers.
    async fn take_memory(&self, context: &RequestContext<RoleServer>) -> Result<(), ErrorData> {
        let head = context.extensions.get::<Parts>();
        let Some(memory) = head.and_then(|head| head.extensions.get::<RequestMemory>()) else {
            return Ok(());
        };
        let grown = memory.grow(ANSWER_BYTES).await;
        grown.map_err(|_| ErrorData::new(ErrorCode(REFUSED), NO_MEMORY, None))
    }
}

/// What the sender of a message that cannot be read is told.
const UNREADABLE_MESSAGE: &str = "The message is not JSON, or contains an unpaired surrogate \
                                  escape, a number out of range, or more than 120 levels of \
                                  nesting. Nothing was done.";

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_resources().enable_tools().build())
            .with_server_info(
                Implementation::new(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"))
                    .with_title("LLM sandbox"),
            )
            .with_instructions(tools::instructions(self.services.sessions.config()))
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let template = self.services.sessions.template().await;
        let listed = ListToolsResult::with_all_items(self.tools.list(&self.facts(&template)));
        Ok(listed.with_ttl_ms(TTL_MS).with_cache_scope(CacheScope::Public))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        let template = Template::built_in("");
        self.tools.find(name).map(|tool| tool.listed(&self.facts(&template)))
    }

    /// What is not one of the protocol's requests, or does not have their shape.
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

    // rmcp answers these two with nothing found; a client would take them for supported.
    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        Err(ErrorData::method_not_found::<ListPromptsRequestMethod>())
    }

    async fn complete(
        &self,
        _: CompleteRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        Err(ErrorData::method_not_found::<CompleteRequestMethod>())
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let Some(tool) = self.tools.find(&request.name) else {
            self.services.sessions.metrics().unknown_tool_called();
            return Err(ErrorData::invalid_params(format!("unknown tool {}", request.name), None));
        };
        self.take_memory(&context).await?;
        let services = self.services.seen_by(&context);
        let call = Call { services, context, answers: request.input_responses };
        let arguments = request.arguments.unwrap_or_default();
        // rmcp would never answer a call that panics, and its client would wait for ever.
        let result = AssertUnwindSafe(perform(tool, call, arguments)).catch_unwind().await;
        Ok(result.unwrap_or_else(|_| failure(&Error::internal(&"the tool panicked")).into()))
    }

    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        self.take_memory(&context).await?;
        let cursor = request.and_then(|request| request.cursor);
        let listed = resources::list(&self.services.seen_by(&context), cursor.as_deref()).await?;
        Ok(listed.with_ttl_ms(0).with_cache_scope(CacheScope::Private))
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(resources::templates().with_ttl_ms(TTL_MS).with_cache_scope(CacheScope::Public))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        self.take_memory(&context).await?;
        let read = resources::read(&self.services.seen_by(&context), &request.uri).await?;
        Ok(read.with_ttl_ms(0).with_cache_scope(CacheScope::Private).into())
    }
}

/// How long what depends on the settings alone may be kept, in milliseconds.
const TTL_MS: u64 = 60_000;
