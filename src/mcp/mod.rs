//! The Model Context Protocol: the only place that names rmcp. Parses and renders, nothing else.
//!
//! - [`tools`]: what the tools are called, take and give, as clients are told.
//! - [`calls`]: one call, from its arguments to its result.
//! - [`resources`]: files as resources; [`read`]: their content; [`text`]: by the page;
//!   [`pictures`]: to look at.
//! - [`roots`]: files of the host that a client may upload.
//! - [`room`]: how much fits into one message.
//! - [`message`]: what a message would cost, before it is parsed; [`long_text`]: its one long string.
//! - [`stdio`], [`http`]: the transports.

mod calls;
pub mod http;
mod long_text;
mod message;
mod pictures;
mod read;
mod resources;
mod room;
mod roots;
pub mod stdio;
mod text;
mod tools;

use std::{panic::AssertUnwindSafe, sync::Arc};

use futures::FutureExt;
use hyper::http::request::Parts;
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CacheScope, CallToolRequestParams, CallToolResponse, CallToolResult, CompleteRequestMethod,
        CompleteRequestParams, CompleteResult, ContentBlock, CustomRequest, CustomResult,
        ErrorCode, Implementation, ListPromptsRequestMethod, ListPromptsResult,
        ListResourceTemplatesResult, ListResourcesResult, ListToolsResult, PaginatedRequestParams,
        ReadResourceRequestParams, ReadResourceResponse, ServerCapabilities, ServerConfig, Tool,
    },
    service::RequestContext,
};

use self::{calls::Call, http::RequestMemory, message::Refused, pictures::Pictures, room::Room};
use crate::{
    addresses::{Addresses, Base},
    auth::Principal,
    backend::Template,
    config::{Config, Transport},
    error::Error,
    export::Export,
    sessions::Sessions,
};

/// The MCP server. Cheap to clone; nothing in it belongs to one client, as clients open a
/// connection per call, never close it, or have none at all.
#[derive(Debug, Clone)]
pub struct Server {
    sessions: Sessions,
    /// Of files, if they are served.
    addresses: Option<Addresses>,
    transport: Transport,
    pictures: Pictures,
    tools: Arc<[Tool]>,
    /// Where artifacts are also written, for a client on this machine.
    export: Option<Arc<Export>>,
}

impl Server {
    /// A server for these sessions, whose files have these addresses if any.
    pub fn new(sessions: Sessions, addresses: Option<Addresses>, transport: Transport) -> Self {
        let tools = tools::all(sessions.config(), transport, &Template::built_in("")).into();
        let export = Export::new(sessions.config()).filter(|_| transport == Transport::Stdio);
        let (pictures, export) = (Pictures::default(), export.map(Arc::new));
        Self { sessions, addresses, transport, pictures, tools, export }
    }

    /// The same, for whoever sent this request.
    fn seen_by(&self, context: &RequestContext<RoleServer>) -> Self {
        let head = context.extensions.get::<Parts>();
        let principal = head.and_then(|head| head.extensions.get::<Principal>());
        let sessions = self.sessions.seen_by(principal.cloned().unwrap_or_else(Principal::local));
        let base = head.and_then(|head| head.extensions.get::<Base>());
        let addresses = self.addresses.as_ref().map(|addresses| addresses.for_client(base));
        Self { sessions, addresses, ..self.clone() }
    }

    /// Takes the memory of a call and its answer, before it is made. Over stdio there is one client, which
    /// waits for its own answers.
    async fn take_memory(&self, context: &RequestContext<RoleServer>) -> Result<(), ErrorData> {
        let head = context.extensions.get::<Parts>();
        let Some(memory) = head.and_then(|head| head.extensions.get::<RequestMemory>()) else {
            return Ok(());
        };
        let grown = memory.grow(ANSWER).await;
        grown.map_err(|_| ErrorData::new(http::REFUSED, http::NO_ROOM, None))
    }

    fn room(&self) -> Room {
        Room::new(self.transport)
    }

    /// Pictures in a result: as many as the call, the address that its client uses and the settings
    /// allow.
    fn inline_images(&self, context: &RequestContext<RoleServer>, asked: Option<u64>) -> usize {
        let head = context.extensions.get::<Parts>();
        let query = head.and_then(|head| head.uri.query()).unwrap_or_default();
        let mut pairs = form_urlencoded::parse(query.as_bytes());
        let by_address = pairs.find(|(name, _)| name == "inline_images");
        let by_address = by_address.and_then(|(_, value)| value.parse().ok());
        let most = self.sessions.config().inline_images;
        let asked = asked.map(|asked| usize::try_from(asked).unwrap_or(usize::MAX));
        [asked, by_address].into_iter().flatten().fold(most, usize::min)
    }
}

/// Why a message that cannot be read was not.
const UNREADABLE_MESSAGE: &str = "The message is not JSON, or holds an escape that stands for no character (half of a surrogate \
     pair), a number out of range, or more than 120 levels. Nothing was done.";

/// Memory that a call and its answer take at most, in bytes, beyond what came with it: over HTTP an answer
/// has at most 1 MB, and is there as a value and as text.
pub(crate) const ANSWER: usize = 1 << 20;

/// Longest message: a file in base64, wrapped as command-line tools do it, and its JSON, or code of
/// which every byte is escaped, and some room.
pub(crate) fn longest_message(config: &Config) -> usize {
    let upload = usize::try_from(config.max_upload / 3 * 4).unwrap_or(usize::MAX);
    (upload + upload / 16).max(config.max_code * 6).saturating_add(1 << 20)
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_resources().enable_tools().build())
            .with_server_info(
                Implementation::new(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"))
                    .with_title("LLM sandbox"),
            )
            .with_instructions(tools::instructions(self.sessions.config()))
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let template = self.sessions.template().await;
        let tools = tools::all(self.sessions.config(), self.transport, &template);
        let listed = ListToolsResult::with_all_items(tools);
        Ok(listed.with_ttl_ms(TTL_MS).with_cache_scope(CacheScope::Public))
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
        if request.name == stdio::UNREADABLE {
            return Err(ErrorData::parse_error(UNREADABLE_MESSAGE, None));
        }
        if request.name == stdio::COMPLEX {
            return Err(ErrorData::invalid_request(Refused::TooComplex.message(), None));
        }
        if self.get_tool(&request.name).is_none() && request.name != stdio::OVERSIZED {
            self.sessions.figures().unknown_tool_called();
            return Err(ErrorData::invalid_params(format!("unknown tool {}", request.name), None));
        }
        let answers = request.input_responses.clone();
        self.take_memory(&context).await?;
        let call = Call { server: self.seen_by(&context), context, answers };
        // rmcp would never answer a call that panics, and its client would wait for ever.
        let result = AssertUnwindSafe(calls::call(call, request)).catch_unwind().await;
        Ok(result.unwrap_or_else(|_| error(&Error::internal(&"the tool panicked")).into()))
    }

    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        self.take_memory(&context).await?;
        let cursor = request.and_then(|request| request.cursor);
        let listed = resources::list(&self.seen_by(&context), cursor.as_deref()).await?;
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
        let read = resources::read(&self.seen_by(&context), &request.uri).await?;
        Ok(read.with_ttl_ms(0).with_cache_scope(CacheScope::Private).into())
    }
}

/// How long what depends on the settings alone may be kept, in milliseconds.
const TTL_MS: u64 = 60_000;

/// An error as one text block. No structured content: clients check that against the tool's output
/// schema even when it is an error, and then lose our message.
fn error(error: &Error) -> CallToolResult {
    CallToolResult::error(vec![ContentBlock::text(error.to_json().to_string())])
}
