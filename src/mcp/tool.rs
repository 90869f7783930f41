//! The trait of tools.

use std::sync::Arc;

use backend::Template;
use config::{Config, Toolset, Toolsets, Transport};
use model::{Dataset, package::Ecosystem};
use rmcp::model::{CallToolResponse, JsonObject, ToolAnnotations};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{
    app,
    arguments::{Arguments, shown},
    audited::Log,
    call::Call,
    tools::BuiltIn,
};
use crate::error::Result;

/// A tool: everything about it except how calls are logged and counted.
pub(super) trait Tool: Send + Sync + 'static {
    /// The name by which clients call it.
    const NAME: &'static str;

    /// The toolset that has the tool.
    const TOOLSET: Toolset;

    /// Whether the call takes the message's long string, if there is one, and releases the message itself (see
    /// [`Call::release_message`]). For all other tools the message is released before the call.
    const READS_LONG_TEXT: bool = false;

    /// Whether the [app] shows the tool's results.
    const HAS_VIEW: bool = false;

    /// Other names of arguments that models use, each with its name in the schema.
    const ALIASES: &'static [(&'static str, &'static str)] = &[];

    /// Whether the tool is listed. An unlisted tool can still be called, and its error says why it does nothing.
    fn is_listed(_: &ToolFacts) -> bool {
        true
    }

    /// Adds arguments that follow from others.
    fn imply(_: &mut JsonObject) {}

    /// The arguments of a call, which were checked against the input schema. The type must refuse unknown fields.
    type Arguments: DeserializeOwned + Send;

    /// The description of the tool for clients.
    fn describe(facts: &ToolFacts) -> Description;

    /// Carries out a call and renders its result.
    fn call(
        call: &Call,
        arguments: Self::Arguments,
        log: &mut Log,
    ) -> impl Future<Output = Result<CallToolResponse>> + Send;
}

/// The facts that the texts of tools depend on.
#[derive(Debug)]
pub(super) struct ToolFacts<'a> {
    pub(super) config: &'a Config,
    pub(super) transport: Transport,
    /// The toolsets that the client is offered.
    pub(super) toolsets: Toolsets,
    /// The contents of new sandboxes.
    pub(super) template: &'a Template,
    pub(super) client: Client,
    /// The datasets that new sandboxes can read.
    pub(super) datasets: Vec<Arc<Dataset>>,
    /// The names of the upstreams whose tools code can call.
    pub(super) upstreams: Vec<String>,
    /// The sources of packages that can be installed.
    pub(super) packages: &'static [Ecosystem],
}

/// The abilities of a client on which the list of tools depends.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Client {
    /// Whether the client can upload files of the host by their path.
    pub(super) local_files: bool,
    /// Whether the client shows MCP Apps.
    pub(super) shows_apps: bool,
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
    /// The tool changes nothing.
    ReadOnly,
    /// The tool adds data. A second call adds nothing more.
    Adding,
    /// The tool adds data each time it is called.
    Making,
    /// The tool may change or delete existing data, each time it is called.
    Destructive,
    /// The tool deletes data or stops runs. A second call has nothing left to do.
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

/// A tool without its types, for listing and checking.
pub(super) struct AnyTool {
    /// The tool's variant for calls.
    pub(super) tool: BuiltIn,
    pub(super) name: &'static str,
    pub(super) toolset: Toolset,
    pub(super) reads_long_text: bool,
    pub(super) is_listed: fn(&ToolFacts) -> bool,
    has_view: bool,
    aliases: &'static [(&'static str, &'static str)],
    imply: fn(&mut JsonObject),
    describe: fn(&ToolFacts) -> Description,
}

impl AnyTool {
    pub(super) const fn of<T: Tool>(tool: BuiltIn) -> Self {
        Self {
            tool,
            name: T::NAME,
            toolset: T::TOOLSET,
            reads_long_text: T::READS_LONG_TEXT,
            is_listed: T::is_listed,
            has_view: T::HAS_VIEW,
            aliases: T::ALIASES,
            imply: T::imply,
            describe: T::describe,
        }
    }

    /// The arguments of the tool.
    pub(super) fn arguments(&self, facts: &ToolFacts) -> Arguments {
        let &Self { name: tool, aliases, imply, describe, .. } = self;
        Arguments { tool, schema: describe(facts).input, aliases, imply }
    }

    /// The tool as it is listed.
    pub(super) fn listed(&self, facts: &ToolFacts) -> rmcp::model::Tool {
        let Description { title, text, input, output, hints } = (self.describe)(facts);
        let tool = rmcp::model::Tool::new(self.name, text, shown(&input))
            .with_title(title)
            .with_raw_output_schema(output_schema(output))
            .with_annotations(hints.annotate(ToolAnnotations::with_title(title)));
        if self.has_view && facts.client.shows_apps { tool.with_meta(app::of_tool()) } else { tool }
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
