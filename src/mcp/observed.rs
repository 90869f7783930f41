//! One request of the protocol as operators see it: a span of its caller's trace, and the time until its answer.
//!
//! The names of attributes are those of OpenTelemetry's conventions for MCP.

use config::Transport;
use futures::future::BoxFuture;
use hyper::http::request::Parts;
use model::Principal;
use rmcp::{
    ErrorData, RoleServer,
    model::{CallToolResponse, JsonObject, NumberOrString},
    service::RequestContext,
};
use tokio::time::Instant;

use super::{Server, audited, audited::WithoutLongTexts, counted, services::OfMcpSession};
use crate::{
    metrics::Metrics,
    trace::{Kind, Parent, Span},
};

/// The value of `error.type` if a tool has answered with an error.
const TOOL_ERROR: &str = "tool_error";

/// Longest id of a request, in bytes, that a span has: clients choose them.
const MAX_ID: usize = 64;

/// A request that is being answered.
pub(super) struct Observed<'a> {
    metrics: &'a Metrics,
    method: &'static str,
    span: Span,
    since: Instant,
}

impl Server {
    /// Begins a request of this method.
    pub(super) fn observed(
        &self,
        method: &'static str,
        context: &RequestContext<RoleServer>,
    ) -> Observed<'_> {
        let head = context.extensions.get::<Parts>();
        // The message's own comes before that of the HTTP request, which may be from a proxy, or carry several calls.
        let meta = &context.meta;
        let parent = Parent::of_message(meta.get_traceparent(), meta.get_tracestate());
        let of_head = || head.map(|head| Parent::of_headers(&head.headers)).unwrap_or_default();
        let span = Span::begin(&parent.unwrap_or_else(of_head), Kind::Server, method);
        if span.is_exported() {
            describe(&span, method, self.services.transport, context);
        }
        let metrics = self.services.sessions.host().metrics();
        Observed { metrics, method: counted::known(method), span, since: Instant::now() }
    }

    /// Writes the line of a call that was refused before any of it was processed.
    pub(super) fn audit_refused(
        &self,
        context: &RequestContext<RoleServer>,
        (tool, arguments): (&str, Option<JsonObject>),
        why: &str,
    ) {
        let services = self.services.seen_by(context);
        // A call without a line was not carried out either.
        let arguments = arguments.unwrap_or_default();
        let begun = audited::begin(&services, tool, &WithoutLongTexts(&arguments));
        if let Ok(Some(entry)) = begun {
            entry.end(why);
        }
    }
}

/// Sets the attributes of a request.
fn describe(
    span: &Span,
    method: &'static str,
    transport: Transport,
    context: &RequestContext<RoleServer>,
) {
    span.set("mcp.method.name", method);
    match &context.id {
        NumberOrString::Number(id) => span.set("jsonrpc.request.id", id.to_string()),
        NumberOrString::String(id) if id.len() <= MAX_ID => {
            span.set("jsonrpc.request.id", id.to_string());
        }
        NumberOrString::String(_) => {}
    }
    if let Some(version) = context.protocol_version() {
        span.set("mcp.protocol.version", version.to_string());
    }
    match transport {
        Transport::Stdio => span.set("network.transport", "pipe"),
        Transport::Http => {
            span.set("network.transport", "tcp");
            span.set("network.protocol.name", "http");
        }
    }
    let extensions = context.extensions.get::<Parts>().map(|head| &head.extensions);
    if let Some(of) = extensions.and_then(|own| own.get::<OfMcpSession>()) {
        span.set("mcp.session.id", of.id.to_string());
    }
    let caller = extensions.and_then(|own| own.get::<Principal>().cloned());
    span.set("enduser.id", caller.unwrap_or_else(Principal::local).name().to_owned());
}

impl Observed<'_> {
    /// Names the tool of a call, which exists.
    pub(super) fn of_tool(&self, name: &str) {
        self.span.rename(format!("{} {name}", self.method));
        self.span.set("gen_ai.operation.name", "execute_tool");
        self.span.set("gen_ai.tool.name", name.to_owned());
    }

    /// Marks a call whose result is an error.
    pub(super) fn result(&self, response: &CallToolResponse) {
        if let CallToolResponse::Complete(result) = response
            && result.is_error == Some(true)
        {
            self.span.fail(TOOL_ERROR);
        }
    }

    /// Waits for the answer.
    pub(super) async fn answer<T>(
        &self,
        work: BoxFuture<'_, Result<T, ErrorData>>,
    ) -> Result<T, ErrorData> {
        let answer = self.span.around(work).await;
        if let Err(error) = &answer {
            let code = error.code.0.to_string();
            self.span.set("rpc.response.status_code", code.clone());
            self.span.fail(code);
        }
        self.metrics.mcp_answered(self.method, self.since.elapsed());
        answer
    }
}
