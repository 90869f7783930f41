//! The Model Context Protocol: the only place that names rmcp. It parses and renders; the sessions do the work. It
//! sends nothing to an agent, and uses only limits and values of the agents' protocol. Of a client it stores only MCP
//! sessions and roots.
//!
//! ```text
//! stdio -----------------------> message: limits --> rmcp --> Server::call_tool --> perform --> a tool --> sessions
//! http --> counted --> respond ---^                                                   |
//!                                           log line, audit line, metrics, notes <----'
//! ```
//!
//! - [`tool`]: the trait of tools; [`tools`]: the built-in tools, one file each; [`own`]: the operator's own tools.
//! - [`call`]: one call of a tool; [`arguments`]: its arguments; [`services`]: the sessions and files of its caller.
//! - [`observed`]: one request, its span and time; [`audited`]: the lines of a call in the log and in the audit file.
//! - [`running`]: progress and results of tools that run code; [`background`]: runs that go on after the answer;
//!   [`tasks`]: such runs for clients that poll for results; [`approval`]: asks the client's user about a run's calls;
//!   [`repeat`]: calls that are repeated with the user's answer; [`languages`]: the languages of code.
//! - [`results`]: text, images and files, within the limits of a message.
//! - [`app`]: the view of a session for clients that show MCP Apps.
//! - [`resources`]: files as resources; [`roots`]: files of the host that a client may upload.
//! - [`message`]: the cost of a message before it is parsed; [`long_text`]: its one long string; [`base64_text`]:
//!   base64 as models and programs write it.
//! - [`stdio`], [`http`]: the transports; [`counted`]: counts their requests.

mod app;
mod approval;
mod arguments;
mod audited;
mod background;
mod base64_text;
mod call;
mod counted;
pub mod http;
mod languages;
mod long_text;
mod message;
mod observed;
mod own;
mod repeat;
mod resources;
mod results;
mod roots;
mod running;
mod services;
pub mod stdio;
mod tasks;
mod tool;
mod tools;

use std::panic::AssertUnwindSafe;

use backend::Template;
use config::{Config, Toolset, Toolsets, Transport};
use futures::FutureExt;
use model::text::quoted;
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CacheScope, CallToolRequestParams, CallToolResponse, CancelTaskParams,
        CompleteRequestMethod, CompleteRequestParams, CompleteResult, CustomRequest, CustomResult,
        DiscoverResult, ErrorCode, GetTaskParams, GetTaskResult, Implementation,
        InitializeRequestParams, InitializeResult, JsonObject, ListPromptsRequestMethod,
        ListPromptsResult, ListResourceTemplatesResult, ListResourcesResult, ListToolsResult,
        PaginatedRequestParams, ReadResourceRequestParams, ReadResourceResponse,
        ServerCapabilities, ServerConfig, SubscriptionFilter, UpdateTaskParams,
    },
    service::{NotificationContext, RequestContext, SubscriptionContext},
};
use serde_json::Value;
use tokio::time::Instant;

pub use self::counted::Counted;
use self::{
    audited::{Log, OK, WithoutLongTexts},
    call::{Call, add_notes, failure, parse, take_memory},
    observed::Observed,
    services::{KNOWN_IN_URL, Services, by_url, misspelt_in_url},
    tool::{Client, Tool as _},
    tools::{
        BuiltIn, CancelExecution, CloseSession, CreateSession, DestroySession, ExecuteCode,
        GetExecutionResult, GetWorkspaceInfo, InstallPackage, ListArtifacts, ListRuntimes, Offered,
        ReadArtifact, ReadOutput, ResetWorkspace, RunPython, Tools, UploadFile, facts,
    },
};
use crate::{error::Error, own_tools::OwnTools, sessions::Sessions, signed_urls::SignedUrls};

/// The MCP server. Cheap to clone. Over HTTP nothing in it belongs to one client, because clients open a connection per
/// call, never close it, or have none at all.
#[derive(Debug, Clone)]
pub struct Server {
    services: Services,
    tools: Tools,
}

impl Server {
    /// Names that no tool of the operator's own may have.
    pub fn reserved_names() -> Vec<&'static str> {
        Tools::reserved()
    }

    /// Makes a server for these sessions. `urls` makes the URLs of their files, if files are served; `own` are the
    /// operator's own tools.
    pub fn new(
        sessions: Sessions,
        urls: Option<SignedUrls>,
        transport: Transport,
        own: Option<OwnTools>,
    ) -> Self {
        let services = Services::new(sessions, urls, transport);
        let (sessions, template) = (&services.sessions, Template::built_in(""));
        let toolsets = sessions.config().toolsets;
        let tools =
            Tools::new(toolsets, &facts(&services, &template, toolsets, Client::default()), own);
        sessions.host().metrics().count_tools(tools.names(toolsets).iter().map(|name| &**name));
        sessions.host().metrics().count_methods(counted::all());
        Self { services, tools }
    }

    /// The toolsets that the client is offered: those of its URL, `/mcp?toolsets=run,code`, or all.
    ///
    /// # Errors
    /// If the URL names an unknown toolset, or has a misspelt parameter.
    fn toolsets(&self, context: &RequestContext<RoleServer>) -> Result<Toolsets, ErrorData> {
        let all = self.services.seen_by(context).sessions.config().toolsets;
        if let Some(name) = misspelt_in_url(context) {
            // A misspelt parameter `workspace` would silently select another workspace.
            let known = KNOWN_IN_URL.join(", ");
            let why = format!("/mcp takes no {} in its URL; it takes {known}.", quoted(&name));
            return Err(ErrorData::invalid_params(why, None));
        }
        let Some(names) = by_url(context, "toolsets") else { return Ok(all) };
        let refused = |why| ErrorData::invalid_params(format!("In /mcp?toolsets= {why}."), None);
        all.choose(&names).map_err(refused)
    }

    /// The tools of these toolsets, as `tools/list` lists them for the client.
    async fn listed(
        &self,
        context: &RequestContext<RoleServer>,
        toolsets: Toolsets,
    ) -> Vec<rmcp::model::Tool> {
        let services = self.services.seen_by(context);
        let template = services.sessions.template().await;
        let local_files = roots::are_offered(&services, context);
        let client = Client {
            local_files,
            shows_apps: app::is_shown(context.client_capabilities().as_ref()),
        };
        self.tools.list(&facts(&services, &template, toolsets, client))
    }

    /// The operator's own tools, which change for every client alike, if this client is offered them.
    fn changing(&self, toolsets: Toolsets) -> Option<&OwnTools> {
        self.tools.own().filter(|_| toolsets.has(Toolset::Own))
    }

    /// The server's answer to a new client whose caller has these settings.
    fn info(&self, config: &Config, toolsets: Toolsets) -> ServerConfig {
        let mut can = ServerCapabilities::builder().enable_resources().enable_tools().build();
        if let Some(tools) = can.tools.as_mut().filter(|_| self.changing(toolsets).is_some()) {
            tools.list_changed = Some(true);
        }
        ServerConfig::new(can)
            .with_server_info(
                Implementation::new(&*config.server_name, env!("CARGO_PKG_VERSION"))
                    .with_title("LLM sandbox"),
            )
            .with_instructions(tools::instructions(config, toolsets))
    }

    /// Carries out a call of a tool.
    async fn called(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
        observed: &Observed<'_>,
    ) -> Result<CallToolResponse, ErrorData> {
        let toolsets = self.toolsets(&context)?;
        let Some(tool) = self.tools.find(&request.name, toolsets) else {
            let sessions = self.services.seen_by(&context).sessions;
            let label = sessions.host().label(sessions.caller());
            sessions.host().metrics().unknown_tool_called(label);
            let why = Error::InvalidArgument(String::new()).code();
            self.audit_refused(&context, (UNKNOWN_TOOL, request.arguments), why);
            let listed = self.listed(&context, toolsets).await;
            let names: Vec<_> = listed.iter().map(|tool| &*tool.name).collect();
            let why = format!(
                "There is no tool {} here. The tools are {}.",
                quoted(&request.name),
                names.join(", ")
            );
            return Err(ErrorData::invalid_params(why, None));
        };
        observed.of_tool(tool.name());
        if let Err(refused) = take_memory(&context).await {
            self.audit_refused(&context, (tool.name(), request.arguments), NO_ROOM);
            return Err(refused);
        }
        let services = self.services.seen_by(&context);
        let sessions = services.sessions.clone();
        let (call, early) = Call::new(services, toolsets, context, request.input_responses);
        let arguments = request.arguments.unwrap_or_default();
        // rmcp would never answer a call that panics, and its client would wait for ever.
        let panicked = |_| failure(&Error::internal(&"the tool panicked")).into();
        let work = async move {
            match request.request_state {
                Some(state) => repeat::repeated(tool.name(), &call, &arguments, &state).await,
                None => perform(tool, call, arguments).await,
            }
        };
        let work = AssertUnwindSafe(work).catch_unwind();
        let work = work.map(move |result| result.unwrap_or_else(panicked)).boxed();
        let response = background::answered(work, early, &sessions).await;
        observed.result(&response);
        Ok(response)
    }
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let config = self.services.sessions.config();
        let mut info = self.info(config, config.toolsets);
        // rmcp looks here whether there are requests about tasks.
        tasks::declare(&mut info.capabilities, config);
        info
    }

    async fn discover(
        &self,
        context: RequestContext<RoleServer>,
    ) -> Result<DiscoverResult, ErrorData> {
        let work = async {
            let versions = self.supported_protocol_versions().into_owned();
            let (services, toolsets) = (self.services.seen_by(&context), self.toolsets(&context)?);
            let mut info = self.info(services.sessions.config(), toolsets);
            tasks::declare(&mut info.capabilities, services.sessions.config());
            app::declare(&mut info.capabilities, context.client_capabilities().as_ref());
            Ok(DiscoverResult::from_server_info(versions, info))
        };
        self.observed("server/discover", &context).answer(work.boxed()).await
    }

    /// Tells a client if the list of tools may change: over stdio with the client's roots, and with the operator's own
    /// tools.
    async fn initialize(
        &self,
        request: InitializeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<InitializeResult, ErrorData> {
        let observed = self.observed("initialize", &context);
        let work = async {
            let toolsets = self.toolsets(&context)?;
            let mut hello = self.negotiate_initialize(&request)?;
            let services = self.services.seen_by(&context);
            let info = self.info(services.sessions.config(), toolsets);
            (hello.instructions, hello.capabilities) = (info.instructions, info.capabilities);
            app::declare(&mut hello.capabilities, Some(&request.capabilities));
            if roots::may_come_and_go(&self.services, &request.capabilities)
                && let Some(tools) = &mut hello.capabilities.tools
            {
                tools.list_changed = Some(true);
            }
            if let Some(own) = self.changing(toolsets) {
                own::tell_of_changes(own, context.peer.clone());
                if let Some(tools) = &mut hello.capabilities.tools {
                    tools.list_changed = Some(true);
                }
            }
            context.peer.set_peer_info(request);
            Ok(hello)
        };
        observed.answer(work.boxed()).await
    }

    fn accepted_subscription_filter(
        &self,
        requested: &SubscriptionFilter,
    ) -> Option<SubscriptionFilter> {
        self.tools.own()?;
        let mut accepted = SubscriptionFilter::new();
        accepted.tools_list_changed = requested.tools_list_changed;
        Some(accepted)
    }

    async fn listen(&self, subscription: SubscriptionContext) -> Result<(), ErrorData> {
        let Some(own) = self.tools.own() else { return Ok(()) };
        let mut changes = own.changes();
        loop {
            tokio::select! {
                () = subscription.cancelled() => return Ok(()),
                news = changes.changed() => {
                    let told = subscription.sink().notify_tool_list_changed().await;
                    if news.is_err() || told.is_err() {
                        return Ok(());
                    }
                }
            }
        }
    }

    async fn on_initialized(&self, context: NotificationContext<RoleServer>) {
        roots::initialized(&self.services, &context.peer).await;
    }

    async fn on_roots_list_changed(&self, context: NotificationContext<RoleServer>) {
        roots::changed(&self.services, &context.peer).await;
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let work = async {
            let toolsets = self.toolsets(&context)?;
            let listed = ListToolsResult::with_all_items(self.listed(&context, toolsets).await);
            // Over stdio the list is the client's own; with policies, each caller's; and clients that show apps have more
            // in it.
            let is_own = self.services.transport == Transport::Stdio
                || app::is_shown(context.client_capabilities().as_ref())
                || self.services.sessions.host().permissions().differ();
            let scope = if is_own { CacheScope::Private } else { CacheScope::Public };
            // The operator's own tools change while the server runs.
            let ttl = if self.services.sessions.config().tools_file.is_some() { 0 } else { TTL_MS };
            Ok(listed.with_ttl_ms(ttl).with_cache_scope(scope))
        };
        self.observed("tools/list", &context).answer(work.boxed()).await
    }

    fn get_tool(&self, name: &str) -> Option<rmcp::model::Tool> {
        let toolsets = self.services.sessions.config().toolsets;
        Some(self.tools.find(name, toolsets)?.listed())
    }

    /// Answers requests that the protocol does not have, or that have another shape.
    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        if request.method == "tools/call" {
            let why = "tools/call needs params with a name and, if there are any, arguments as an \
                       object.";
            return Err(ErrorData::invalid_params(why, None));
        }
        if [tasks::GET, tasks::UPDATE, tasks::CANCEL].contains(&&*request.method) {
            let why = format!("{} needs params with a taskId.", request.method);
            return Err(ErrorData::invalid_params(why, None));
        }
        Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, request.method, None))
    }

    // rmcp would answer these two with empty results, which a client would take for support.
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
        let observed = self.observed("tools/call", &context);
        observed.answer(self.called(request, context, &observed).boxed()).await
    }

    async fn get_task(
        &self,
        request: GetTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetTaskResult, ErrorData> {
        self.task(tasks::GET, &request.task_id, None, &context).await.map(GetTaskResult::new)
    }

    async fn update_task(
        &self,
        request: UpdateTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.task(tasks::UPDATE, &request.task_id, Some(request.input_responses), &context)
            .await
            .map(drop)
    }

    async fn cancel_task(
        &self,
        request: CancelTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.task(tasks::CANCEL, &request.task_id, None, &context).await.map(drop)
    }

    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let work = async {
            take_memory(&context).await?;
            let cursor = request.and_then(|request| request.cursor);
            let services = self.services.seen_by(&context);
            let mut listed = resources::list(&services, cursor.as_deref()).await?;
            if cursor.is_none() && app::is_shown(context.client_capabilities().as_ref()) {
                listed.resources.insert(0, app::listed());
            }
            Ok(listed.with_ttl_ms(0).with_cache_scope(CacheScope::Private))
        };
        self.observed("resources/list", &context).answer(work.boxed()).await
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        let listed = resources::templates().with_ttl_ms(TTL_MS);
        let work = async { Ok(listed.with_cache_scope(CacheScope::Public)) };
        self.observed("resources/templates/list", &context).answer(work.boxed()).await
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let work = async {
            take_memory(&context).await?;
            let services = self.services.seen_by(&context);
            let entry = audited::begin(&services, READ_RESOURCE, &request.uri);
            let entry = entry.map_err(|error| resources::failed(&error))?;
            let read = resources::read(&services, &request.uri).await;
            if let Some(mut entry) = entry {
                entry.record.session_id = resources::session_of(&request.uri);
                let contents = read.as_ref().map(|read| &read.contents[..]).unwrap_or_default();
                entry.record.outputs.attached = contents.iter().map(audited::of_resource).collect();
                entry.end(if read.is_ok() { OK } else { NOT_READ });
            }
            let read = read?;
            Ok(read.with_ttl_ms(0).with_cache_scope(CacheScope::Private).into())
        };
        self.observed(READ_RESOURCE, &context).answer(work.boxed()).await
    }
}

/// The name of an unknown tool in the audit file. The name in the call may be any text.
const UNKNOWN_TOOL: &str = "unknown";

/// The name of reading a resource in the audit file.
const READ_RESOURCE: &str = "resources/read";

/// The outcome, in the audit file, of a resource that was not read: it does not exist, or does not fit into a message.
const NOT_READ: &str = "not_read";

/// The outcome, in the audit file, of a call for which there is no memory.
const NO_ROOM: &str = "server_busy";

/// How long a client may cache an answer that depends on the settings alone, in milliseconds.
const TTL_MS: u64 = 60_000;

/// Carries out a call, logs and counts it, and renders its result. If there is an audit file that cannot be written,
/// the call is refused.
async fn perform(tool: Offered, call: Call, arguments: JsonObject) -> CallToolResponse {
    let (tool, call) = (&tool, &call);
    let started = Instant::now();
    let mut log = Log::default();
    if !tool.reads_long_text() {
        call.release_message().await;
    }
    let result = match audited::begin(&call.services, tool.name(), &WithoutLongTexts(&arguments)) {
        Ok(entry) => {
            log.audit = entry;
            answer(tool, call, arguments, &mut log).await
        }
        Err(refused) => Err(refused),
    };
    audited::complete(call, &mut log, &result);
    call.end(result.is_ok()).await;
    call.release_message().await;
    let code = result.as_ref().map_or_else(Error::code, |_| OK);
    let (sessions, elapsed) = (&call.services.sessions, started.elapsed());
    let metrics = sessions.host().metrics();
    metrics.tool_called(tool.name(), code, elapsed);
    metrics.tool_called_by(sessions.host().label(sessions.caller()), tool.name(), code);
    log.write(call, tool.name(), code, elapsed);
    let response = result.unwrap_or_else(|error| failure(&error).into());
    call.run.keep(&response);
    response
}

/// Checks the arguments of a call, makes it, and adds the call's notes to its result.
async fn answer(
    tool: &Offered,
    call: &Call,
    arguments: JsonObject,
    log: &mut Log,
) -> Result<CallToolResponse, Error> {
    if let Some(question) = roots::mount(call).await {
        return Ok(question.into());
    }
    let mut response = match tool {
        Offered::BuiltIn(checked) => {
            let (arguments, notes) = checked.arguments(&call.services).read(arguments)?;
            call.note_all(notes);
            // Boxed: it has room for the call of the largest tool.
            call_built_in(checked.tool.tool, call, arguments.into(), log).boxed().await?
        }
        Offered::Own(tool) => own::perform(tool, call, arguments.into(), log).boxed().await?,
    };
    if let Some(id) = &log.session {
        call.note_restored(id);
    }
    if let CallToolResponse::Complete(result) = &mut response {
        add_notes(&call.notes(), result);
    }
    Ok(response)
}

async fn call_built_in(
    tool: BuiltIn,
    call: &Call,
    arguments: Value,
    log: &mut Log,
) -> Result<CallToolResponse, Error> {
    match tool {
        BuiltIn::CancelExecution => CancelExecution::call(call, parse(arguments)?, log).await,
        BuiltIn::CloseSession => CloseSession::call(call, parse(arguments)?, log).await,
        BuiltIn::CreateSession => CreateSession::call(call, parse(arguments)?, log).await,
        BuiltIn::DestroySession => DestroySession::call(call, parse(arguments)?, log).await,
        BuiltIn::ExecuteCode => ExecuteCode::call(call, parse(arguments)?, log).await,
        BuiltIn::GetExecutionResult => GetExecutionResult::call(call, parse(arguments)?, log).await,
        BuiltIn::GetWorkspaceInfo => GetWorkspaceInfo::call(call, parse(arguments)?, log).await,
        BuiltIn::InstallPackage => InstallPackage::call(call, parse(arguments)?, log).await,
        BuiltIn::ListArtifacts => ListArtifacts::call(call, parse(arguments)?, log).await,
        BuiltIn::ListRuntimes => ListRuntimes::call(call, parse(arguments)?, log).await,
        BuiltIn::ReadArtifact => ReadArtifact::call(call, parse(arguments)?, log).await,
        BuiltIn::ReadOutput => ReadOutput::call(call, parse(arguments)?, log).await,
        BuiltIn::ResetWorkspace => ResetWorkspace::call(call, parse(arguments)?, log).await,
        BuiltIn::RunPython => RunPython::call(call, parse(arguments)?, log).await,
        BuiltIn::UploadFile => UploadFile::call(call, parse(arguments)?, log).await,
    }
}
