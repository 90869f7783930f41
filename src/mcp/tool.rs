//! The trait of tools, and one call of a tool from its arguments to its result.
//!
//! ```text
//! Tool (typed: its own arguments) --> AnyTool --> Offered (with what it takes) --> perform (log, metrics)
//! ```

use std::sync::Arc;

use futures::{FutureExt, future::BoxFuture};
use model::package::Ecosystem;
use rmcp::model::{CallToolResponse, JsonObject, ToolAnnotations};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    arguments::{Arguments, shown},
    audited::{self, WithoutLongTexts},
    call::{Call, Log, add_notes, failure, parse},
    own::Own,
};
use crate::{
    backend::Template,
    config::{Config, Toolset, Toolsets, Transport},
    error::{Error, Result},
};

/// A tool: everything about it except how calls are logged and counted.
pub(super) trait Tool: Send + Sync + 'static {
    /// The name by which clients call it.
    const NAME: &'static str;

    /// The set that it is offered with.
    const TOOLSET: Toolset;

    /// Whether the call takes the message's long string, if there is one, and releases the message itself (see
    /// [`Call::release_message`]). For all other tools the message is released before the call.
    const READS_LONG_TEXT: bool = false;

    /// Other names of arguments that models use, each with its name in the schema.
    const ALIASES: &'static [(&'static str, &'static str)] = &[];

    /// Whether clients are told of it. If they are not, it can still be called, and says why it does nothing.
    fn is_listed(_: &Facts) -> bool {
        true
    }

    /// Adds arguments that follow from others.
    fn imply(_: &mut JsonObject) {}

    /// The arguments of a call, which were checked against the input schema. The type must refuse unknown fields.
    type Arguments: DeserializeOwned + Send;

    /// The description of the tool for clients.
    fn describe(facts: &Facts) -> Description;

    /// Carries out a call and renders its result.
    fn call(
        call: &Call,
        arguments: Self::Arguments,
        log: &mut Log,
    ) -> impl Future<Output = Result<CallToolResponse>> + Send;
}

/// The facts that the texts of tools depend on.
#[derive(Debug)]
pub(super) struct Facts<'a> {
    pub(super) config: &'a Config,
    pub(super) transport: Transport,
    /// The toolsets that the client is offered.
    pub(super) toolsets: Toolsets,
    /// The contents of new sandboxes.
    pub(super) template: &'a Template,
    /// Whether the client can upload files of the host by their path.
    pub(super) local_files: bool,
    /// The sources of packages that can be installed.
    pub(super) packages: &'static [Ecosystem],
}

/// The description of a tool for clients.
pub(super) struct Description {
    pub(super) title: &'static str,
    pub(super) text: String,
    /// JSON Schema of an object, against which calls are checked. Clients see less of it.
    pub(super) input: Value,
    /// JSON Schema of an object, without the notes that every result may have.
    pub(super) output: Value,
    pub(super) hints: Hints,
}

/// The possible effects of calling a tool. No tool reaches beyond its sandbox.
#[derive(Debug, Clone, Copy)]
pub(super) enum Hints {
    /// It changes nothing.
    ReadOnly,
    /// It adds something, and nothing more if it is called again.
    Adding,
    /// It adds something each time it is called.
    Making,
    /// It may change or delete what is there, each time it is called.
    Destructive,
    /// It deletes or stops what is there. A second call has nothing left to do.
    Ending,
}

impl Hints {
    /// Adds the hints to a tool's annotations.
    pub(super) fn annotate(self, annotations: ToolAnnotations) -> ToolAnnotations {
        annotations
            .read_only(matches!(self, Self::ReadOnly))
            .destructive(matches!(self, Self::Destructive | Self::Ending))
            .idempotent(matches!(self, Self::ReadOnly | Self::Adding | Self::Ending))
            .open_world(false)
    }
}

/// A tool with arguments of any type.
pub(super) trait AnyTool: Send + Sync {
    fn name(&self) -> &str;

    fn toolset(&self) -> Toolset;

    fn reads_long_text(&self) -> bool;

    /// Whether clients are told of it.
    fn is_listed(&self, _: &Facts) -> bool {
        true
    }

    /// The arguments of the tool; `None` if it checks them itself.
    fn arguments(&self, facts: &Facts) -> Option<Arguments>;

    /// The tool as it is listed.
    fn listed(&self, facts: &Facts) -> rmcp::model::Tool;

    fn call<'a>(
        &'a self,
        call: &'a Call,
        arguments: Value,
        log: &'a mut Log,
    ) -> BoxFuture<'a, Result<CallToolResponse>>;
}

impl<T: Tool> AnyTool for T {
    fn name(&self) -> &str {
        T::NAME
    }

    fn toolset(&self) -> Toolset {
        T::TOOLSET
    }

    fn reads_long_text(&self) -> bool {
        T::READS_LONG_TEXT
    }

    fn is_listed(&self, facts: &Facts) -> bool {
        T::is_listed(facts)
    }

    fn arguments(&self, facts: &Facts) -> Option<Arguments> {
        Some(Arguments {
            tool: T::NAME,
            schema: T::describe(facts).input,
            aliases: T::ALIASES,
            imply: T::imply,
        })
    }

    fn listed(&self, facts: &Facts) -> rmcp::model::Tool {
        let Description { title, text, input, output, hints } = T::describe(facts);
        rmcp::model::Tool::new(T::NAME, text, shown(&input))
            .with_title(title)
            .with_raw_output_schema(output_schema(output))
            .with_annotations(hints.annotate(ToolAnnotations::with_title(title)))
    }

    fn call<'a>(
        &'a self,
        call: &'a Call,
        arguments: Value,
        log: &'a mut Log,
    ) -> BoxFuture<'a, Result<CallToolResponse>> {
        async move { T::call(call, parse(arguments)?, log).await }.boxed()
    }
}

/// The schema of a result. Every result may have notes.
pub(super) fn output_schema(mut output: Value) -> Arc<JsonObject> {
    if output["properties"].get("notes").is_none() {
        output["properties"]["notes"] = json!({ "type": "array", "items": { "type": "string" } });
    }
    let Value::Object(output) = output else { unreachable!("schemas are objects") };
    output.into()
}

/// A tool that is offered, with its arguments.
pub(super) struct Offered {
    tool: Held,
    arguments: Option<Arguments>,
    /// The tool as it is listed if nothing is known of the client or of sandboxes.
    listed: Option<rmcp::model::Tool>,
}

enum Held {
    BuiltIn(&'static dyn AnyTool),
    Own(Own),
}

impl Offered {
    pub(super) fn built_in(tool: &'static dyn AnyTool, facts: &Facts) -> Self {
        let (arguments, listed) = (tool.arguments(facts), Some(tool.listed(facts)));
        Self { tool: Held::BuiltIn(tool), arguments, listed }
    }

    pub(super) fn own(tool: Own) -> Self {
        Self { tool: Held::Own(tool), arguments: None, listed: None }
    }

    /// The tool as it is listed, independent of the client and of sandboxes.
    pub(super) fn listed(&self, facts: &Facts) -> rmcp::model::Tool {
        self.listed.clone().unwrap_or_else(|| self.tool().listed(facts))
    }

    pub(super) fn tool(&self) -> &dyn AnyTool {
        self.tool.any()
    }

    async fn call(
        &self,
        call: &Call,
        arguments: JsonObject,
        log: &mut Log,
    ) -> Result<CallToolResponse> {
        let arguments = match &self.arguments {
            Some(known) => {
                let (arguments, notes) = known.read(arguments)?;
                call.note_all(notes);
                arguments
            }
            None => arguments,
        };
        let mut response = self.tool().call(call, Value::Object(arguments), log).await?;
        if let Some(id) = &log.session {
            call.note_restored(id);
        }
        if let CallToolResponse::Complete(result) = &mut response {
            add_notes(&call.notes(), result);
        }
        Ok(response)
    }
}

impl Held {
    fn any(&self) -> &dyn AnyTool {
        match self {
            Self::BuiltIn(tool) => *tool,
            Self::Own(tool) => tool,
        }
    }
}

/// Carries out a call, logs and counts it, and renders its result. If there is an audit file that cannot be written,
/// the call is refused.
pub(super) async fn perform(
    offered: &Offered,
    call: Call,
    arguments: JsonObject,
) -> CallToolResponse {
    let started = Instant::now();
    let mut log = Log::default();
    let tool = offered.tool();
    if !tool.reads_long_text() {
        call.release_message().await;
    }
    let result = match audited::begin(&call.services, tool.name(), &WithoutLongTexts(&arguments)) {
        Ok(entry) => {
            log.audit = entry;
            offered.call(&call, arguments, &mut log).await
        }
        Err(refused) => Err(refused),
    };
    audited::complete(&call, &mut log, &result);
    call.end(result.is_ok()).await;
    call.release_message().await;
    let code = result.as_ref().map_or_else(Error::code, |_| "ok");
    let elapsed = started.elapsed();
    call.services.sessions.host().metrics().tool_called(tool.name(), code, elapsed);
    log.write(&call, tool.name(), code, elapsed);
    result.unwrap_or_else(|error| failure(&error).into())
}
