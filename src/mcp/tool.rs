//! What a tool is, and one call of it from its arguments to its result.
//!
//! ```text
//! Tool (typed: its own arguments) --> AnyTool (as the list holds it) --> perform (log, metrics)
//! ```

use futures::{FutureExt, future::BoxFuture};
use rmcp::model::{CallToolResponse, JsonObject, ToolAnnotations};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::Instant;

use super::call::{Call, Log, failure, parse};
use crate::{
    backend::Template,
    config::{Config, Transport},
    error::{Error, Result},
};

/// A tool: everything about it but how calls are logged and counted.
pub(super) trait Tool: Send + Sync + 'static {
    /// What clients call it by.
    const NAME: &'static str;

    /// The set that it is offered with.
    const TOOLSET: Toolset;

    /// The call takes the message's long string, if there is one, and releases the message itself
    /// (see [`Call::release_message`]). For all other tools the message is released before the call.
    const READS_LONG_TEXT: bool = false;

    /// What a call takes. Unknown fields are to be refused.
    type Arguments: DeserializeOwned + Send;

    /// What clients are told about it.
    fn describe(facts: &Facts) -> Description;

    /// Carries a call out and renders what came of it.
    fn call(
        call: &Call,
        arguments: Self::Arguments,
        log: &mut Log,
    ) -> impl Future<Output = Result<CallToolResponse>> + Send;
}

/// Tools that are offered together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Toolset {
    /// Programs, and files in and out.
    Run,
}

impl Toolset {
    pub(super) const ALL: &[Self] = &[Self::Run];
}

/// What the texts of tools depend on.
#[derive(Debug)]
pub(super) struct Facts<'a> {
    pub(super) config: &'a Config,
    pub(super) transport: Transport,
    /// What sandboxes hold.
    pub(super) template: &'a Template,
}

/// What clients are told about a tool.
pub(super) struct Description {
    pub(super) title: &'static str,
    pub(super) text: String,
    /// JSON Schemas, both of objects.
    pub(super) input: Value,
    pub(super) output: Value,
    pub(super) hints: Hints,
}

/// What calling a tool may do. No tool reaches beyond its sandbox.
#[derive(Debug, Clone, Copy)]
pub(super) enum Hints {
    /// It changes nothing.
    ReadOnly,
    /// It may change or delete what is there, each time it is called.
    Destructive,
}

/// A tool of any kind of arguments.
pub(super) trait AnyTool: Send + Sync {
    fn name(&self) -> &'static str;

    fn toolset(&self) -> Toolset;

    fn reads_long_text(&self) -> bool;

    /// As it is listed.
    fn listed(&self, facts: &Facts) -> rmcp::model::Tool;

    fn call<'a>(
        &self,
        call: &'a Call,
        arguments: Value,
        log: &'a mut Log,
    ) -> BoxFuture<'a, Result<CallToolResponse>>;
}

impl<T: Tool> AnyTool for T {
    fn name(&self) -> &'static str {
        T::NAME
    }

    fn toolset(&self) -> Toolset {
        T::TOOLSET
    }

    fn reads_long_text(&self) -> bool {
        T::READS_LONG_TEXT
    }

    fn listed(&self, facts: &Facts) -> rmcp::model::Tool {
        let Description { title, text, input, output, hints } = T::describe(facts);
        let schema = |value: Value| -> JsonObject {
            let Value::Object(object) = value else { unreachable!("schemas are objects") };
            object
        };
        let is_read_only = matches!(hints, Hints::ReadOnly);
        rmcp::model::Tool::new(T::NAME, text, schema(input))
            .with_title(title)
            .with_raw_output_schema(schema(output).into())
            .with_annotations(
                ToolAnnotations::with_title(title)
                    .read_only(is_read_only)
                    .destructive(!is_read_only)
                    .idempotent(is_read_only)
                    .open_world(false),
            )
    }

    fn call<'a>(
        &self,
        call: &'a Call,
        arguments: Value,
        log: &'a mut Log,
    ) -> BoxFuture<'a, Result<CallToolResponse>> {
        async move { T::call(call, parse(arguments)?, log).await }.boxed()
    }
}

/// Carries a call out, logs and counts it, and renders what came of it.
pub(super) async fn perform(
    tool: &dyn AnyTool,
    call: Call,
    arguments: JsonObject,
) -> CallToolResponse {
    let started = Instant::now();
    let mut log = Log::default();
    if !tool.reads_long_text() {
        call.release_message().await;
    }
    let result = tool.call(&call, Value::Object(arguments), &mut log).await;
    call.release_message().await;
    let code = result.as_ref().map_or_else(Error::code, |_| "ok");
    let elapsed = started.elapsed();
    call.services.sessions.metrics().tool_called(tool.name(), code, elapsed);
    log.write(&call, tool.name(), code, elapsed);
    result.unwrap_or_else(|error| failure(&error).into())
}
