//! The built-in tools: one file each, and one list from which dispatch, listing, toolsets and the labels of metrics are
//! made.
//!
//! # How to add a tool
//!
//! A tool that needs nothing new from the sandbox is a file here, four lines in this one and two in [`super`]; for
//! others, see "How to add a verb" in `crates/protocol`. This is the whole file `count_files.rs` of a tool that counts
//! the files of a session; `read_artifact.rs` is an example of one that reads a file (`Open`, then `results::read`; the
//! crate `model` has `text::encoding`). `super::call` has the parts that tools share, such as `existing`, `success` and
//! `whole`:
//!
//! ```ignore
//! //! `count_files`.
//!
//! use config::Toolset;
//! use rmcp::model::CallToolResponse;
//! use serde_json::json;
//!
//! use super::schema::{object, required_session, session_of_result};
//! use crate::{
//!     error::Result,
//!     mcp::{
//!         audited::Log,
//!         call::{Call, OfSession, existing, success},
//!         tool::{Description, Hints, Tool, ToolFacts},
//!     },
//!     sessions::List,
//! };
//!
//! pub(in crate::mcp) struct CountFiles;
//!
//! impl Tool for CountFiles {
//!     const NAME: &'static str = "count_files";
//!     const TOOLSET: Toolset = Toolset::Run;
//!     type Arguments = OfSession;
//!
//!     fn describe(_: &ToolFacts) -> Description {
//!         Description {
//!             title: "Count files",
//!             text: "Counts the files of a session. list_artifacts lists them.".into(),
//!             input: object(json!({ "session_id": required_session() }), &["session_id"]),
//!             output: object(
//!                 json!({
//!                     "session_id": session_of_result(),
//!                     "files": { "type": "integer", "minimum": 0 },
//!                     "more": { "type": "boolean", "description": "There are more than these." },
//!                 }),
//!                 &["session_id", "files", "more"],
//!             ),
//!             hints: Hints::ReadOnly,
//!         }
//!     }
//!
//!     async fn call(call: &Call, arguments: OfSession, log: &mut Log) -> Result<CallToolResponse> {
//!         let id = existing(&arguments.session_id, log)?;
//!         // If there are very many files, only the first are listed.
//!         let listing = call.services.sessions.perform(&id, List).await?;
//!         let files = listing.artifacts.len();
//!         Ok(success(json!({ "session_id": id.as_str(), "files": files, "more": listing.more }))
//!             .into())
//!     }
//! }
//! ```
//!
//! 1. Here, in alphabetical order: the line `mod count_files;`, a `pub(super) use` of `CountFiles`, its name in
//!    [`BuiltIn`] and its row in [`TOOLS`]. In [`super`]: its import, and its arm in
//!    [`call_built_in`](super::call_built_in). `cargo test --lib every_file_of_a_tool` asks for the row, and the
//!    compiler for the rest.
//! 2. A test: a function in a file of `tests/promises/`, such as `artifacts.rs`, and its name in that file's `on_all!`,
//!    which makes a test on each engine. Without Docker, run `cargo build --workspace --all-features`, then `cargo
//!    nextest run -p llm-sandbox-tests -E 'test(NAME) and test(::local::)'`. To try the tool by hand, start
//!    `SANDBOX_ENGINE=local llm-sandbox` and write JSON-RPC to its standard input, one message per line: `initialize`,
//!    `notifications/initialized`, `tools/call`.
//! 3. A row in README's table, its name in the table of toolsets in `docs/tools.md`, and a line in the changelog.
//!    README may have at most 150 lines, which it has: shorten its last sections.
//! 4. The tests that know all tools: `tools` in `tests/clients/job.json`; a call in `tests/clients/inspector.mjs`;
//!    `RUN` or `CODE` in `tests/promises/cells.rs`; a call in `every_result_has_what_its_schema_says` of
//!    `tests/promises/protocol.rs`; and `STARTS_SESSIONS` in `tests/adversarial/hostile_arguments.rs`, if it starts a
//!    session. If the list of tools becomes longer than `MAX_SHOWN_BYTES` of `protocol.rs`, shorten texts: every model
//!    pays for it.
//! 5. Generated texts: `UPDATE_DOCS=1 cargo test --all-features --test reference` writes `docs/tools.md`, and
//!    `INSTA_UPDATE=always cargo test --package llm-sandbox-tests --test promises described_exactly` the snapshots of
//!    the schemas. Read them, because models will read them.
//!
//! Rules:
//!
//! - **Arguments** of its own are a struct with `#[derive(Deserialize)]` and `#[serde(deny_unknown_fields)]`, whose
//!   fields are those of the input schema; `read_output.rs` is an example. A number is an `f64`, which
//!   [`whole`](super::call::whole) reads. `ALIASES` lists other names that models use.
//! - **Checks**: [`arguments`](super::arguments) first checks each call against that schema, so unknown and missing
//!   names, types, bounds and choices need no code in the tool. Clients see the schema without its bounds.
//!   `tests/adversarial/hostile_arguments.rs` makes bad values from the schemas: state the effect of a bad value of a
//!   new argument in its functions `expected` and `good_arguments`.
//! - **Errors** are those of `src/error.rs`; `InvalidArgument` fits an argument that names something of the wrong
//!   kind. A new kind needs a code there, a sentence that says what to do, and a row in `docs/tools.md`.
//! - **Schemas** stay plain: several clients understand neither `$ref` nor `oneOf`, nor a bare `true`.
//! - **The description** says what the tool does, when to use it, and what to do when it fails, in 40 to 2000 bytes.
//! - **Notes** on the call are added with `call.note`; every result may have them, so its schema does not mention them.

mod cancel_execution;
mod close_session;
mod create_session;
mod destroy_session;
mod execute_code;
pub(super) mod get_execution_result;
mod get_workspace_info;
mod install_package;
mod list_artifacts;
mod list_runtimes;
mod read_artifact;
mod read_output;
mod reset_workspace;
mod run_python;
pub(super) mod schema;
mod upload_file;

use std::sync::{Arc, Weak};

use backend::Template;
use config::{Config, Toolset, Toolsets};
use model::{Dataset, FilePath, text::nearest};
use parking_lot::Mutex;
use serde_json::{Value, json};

pub(super) use self::{
    cancel_execution::CancelExecution, close_session::CloseSession, create_session::CreateSession,
    destroy_session::DestroySession, execute_code::ExecuteCode,
    get_execution_result::GetExecutionResult, get_workspace_info::GetWorkspaceInfo,
    install_package::InstallPackage, list_artifacts::ListArtifacts, list_runtimes::ListRuntimes,
    read_artifact::ReadArtifact, read_output::ReadOutput, reset_workspace::ResetWorkspace,
    run_python::RunPython, upload_file::UploadFile,
};
use super::{
    arguments::Arguments,
    own, running,
    services::Services,
    tool::{AnyTool, Client, ToolFacts},
};
use crate::{
    error::Error,
    own_tools::{OwnTool, OwnTools},
};

/// A built-in tool. Each has a row in [`TOOLS`], and an arm where it is [called](super::call_built_in).
#[derive(Debug, Clone, Copy)]
pub(super) enum BuiltIn {
    CancelExecution,
    CloseSession,
    CreateSession,
    DestroySession,
    ExecuteCode,
    GetExecutionResult,
    GetWorkspaceInfo,
    InstallPackage,
    ListArtifacts,
    ListRuntimes,
    ReadArtifact,
    ReadOutput,
    ResetWorkspace,
    RunPython,
    UploadFile,
}

/// All tools, by name.
const TOOLS: &[AnyTool] = &[
    AnyTool::of::<CancelExecution>(BuiltIn::CancelExecution),
    AnyTool::of::<CloseSession>(BuiltIn::CloseSession),
    AnyTool::of::<CreateSession>(BuiltIn::CreateSession),
    AnyTool::of::<DestroySession>(BuiltIn::DestroySession),
    AnyTool::of::<ExecuteCode>(BuiltIn::ExecuteCode),
    AnyTool::of::<GetExecutionResult>(BuiltIn::GetExecutionResult),
    AnyTool::of::<GetWorkspaceInfo>(BuiltIn::GetWorkspaceInfo),
    AnyTool::of::<InstallPackage>(BuiltIn::InstallPackage),
    AnyTool::of::<ListArtifacts>(BuiltIn::ListArtifacts),
    AnyTool::of::<ListRuntimes>(BuiltIn::ListRuntimes),
    AnyTool::of::<ReadArtifact>(BuiltIn::ReadArtifact),
    AnyTool::of::<ReadOutput>(BuiltIn::ReadOutput),
    AnyTool::of::<ResetWorkspace>(BuiltIn::ResetWorkspace),
    AnyTool::of::<RunPython>(BuiltIn::RunPython),
    AnyTool::of::<UploadFile>(BuiltIn::UploadFile),
];

/// The tools that a server offers. Clones share them.
#[derive(Clone)]
pub(super) struct Tools {
    built_in: Arc<[Arc<Checked>]>,
    /// The operator's own tools, which may change at any time.
    own: Option<OwnTools>,
}

/// A built-in tool that is offered, with the arguments that it has by the server's settings.
pub(super) struct Checked {
    pub(super) tool: &'static AnyTool,
    arguments: Arc<Arguments>,
    /// The arguments that the tool has by the settings of policies.
    of_policies: Mutex<Vec<(Weak<Config>, Arc<Arguments>)>>,
    /// The tool as it is listed if nothing is known of the client or of sandboxes.
    listed: rmcp::model::Tool,
}

/// The facts that the texts of tools depend on, for sandboxes of this template.
pub(super) fn facts<'a>(
    Services { sessions, transport, .. }: &'a Services,
    template: &'a Template,
    toolsets: Toolsets,
    client: Client,
) -> ToolFacts<'a> {
    let packages = running::packages(sessions, toolsets);
    let (config, transport) = (sessions.config(), *transport);
    let (datasets, upstreams) = (sessions.datasets(), sessions.upstreams());
    ToolFacts { config, transport, toolsets, template, client, datasets, upstreams, packages }
}

impl Checked {
    /// The arguments that the tool has for the caller of these services.
    pub(super) fn arguments(&self, services: &Services) -> Arc<Arguments> {
        let Some(policy) = services.sessions.policy() else { return self.arguments.clone() };
        let mut known = self.of_policies.lock();
        if let Some((_, arguments)) =
            known.iter().find(|(it, _)| it.as_ptr() == Arc::as_ptr(policy))
        {
            return arguments.clone();
        }
        let template = Template::built_in("");
        let arguments =
            self.tool.arguments(&facts(services, &template, policy.toolsets, Client::default()));
        let arguments = Arc::new(arguments);
        // The policies of settings that were read again have taken the place of earlier ones.
        known.retain(|(policy, _)| policy.strong_count() > 0);
        known.push((Arc::downgrade(policy), arguments.clone()));
        arguments
    }
}

/// A tool that a client is offered.
pub(super) enum Offered {
    BuiltIn(Arc<Checked>),
    Own(Arc<OwnTool>),
}

impl Offered {
    pub(super) fn name(&self) -> &str {
        match self {
            Self::BuiltIn(checked) => checked.tool.name,
            Self::Own(tool) => tool.name(),
        }
    }

    /// Whether the tool's call takes the message's long string, and releases the message itself.
    pub(super) fn reads_long_text(&self) -> bool {
        match self {
            Self::BuiltIn(checked) => checked.tool.reads_long_text,
            Self::Own(_) => true,
        }
    }

    /// The tool as it is listed, independent of the client and of sandboxes.
    pub(super) fn listed(&self) -> rmcp::model::Tool {
        match self {
            Self::BuiltIn(checked) => checked.listed.clone(),
            Self::Own(tool) => own::listed(tool),
        }
    }
}

impl Tools {
    /// The tools of some toolsets, with the arguments that they have by these facts.
    pub(super) fn new(toolsets: Toolsets, facts: &ToolFacts, own: Option<OwnTools>) -> Self {
        let checked = |tool: &'static AnyTool| {
            let (arguments, listed) = (Arc::new(tool.arguments(facts)), tool.listed(facts));
            Arc::new(Checked { tool, arguments, of_policies: Mutex::default(), listed })
        };
        let chosen = TOOLS.iter().filter(|tool| toolsets.has(tool.toolset));
        let own = own.filter(|_| toolsets.has(Toolset::Own));
        Self { built_in: chosen.map(checked).collect(), own }
    }

    /// The names of the built-in tools, which no other tool may have.
    pub(super) fn reserved() -> Vec<&'static str> {
        TOOLS.iter().map(|tool| tool.name).collect()
    }

    /// The operator's own tools, if they are enabled.
    pub(super) fn own(&self) -> Option<&OwnTools> {
        self.own.as_ref()
    }

    /// The tools that a client is offered, as they are listed.
    pub(super) fn list(&self, facts: &ToolFacts) -> Vec<rmcp::model::Tool> {
        let built_in = self.of(facts.toolsets).map(|checked| checked.tool);
        let listed = built_in.filter(|tool| (tool.is_listed)(facts)).map(|tool| tool.listed(facts));
        listed.chain(self.own_of(facts.toolsets).iter().map(|own| own::listed(own))).collect()
    }

    /// The tool of that name, if it is in one of these sets.
    pub(super) fn find(&self, name: &str, toolsets: Toolsets) -> Option<Offered> {
        let built_in = self.of(toolsets).find(|checked| checked.tool.name == name);
        built_in.cloned().map(Offered::BuiltIn).or_else(|| {
            let own = self.own_of(toolsets);
            Some(Offered::Own(own.iter().find(|own| own.name() == name)?.clone()))
        })
    }

    /// The names of the tools in these sets.
    pub(super) fn names(&self, toolsets: Toolsets) -> Vec<String> {
        let built_in = self.of(toolsets).map(|checked| checked.tool.name.to_owned());
        let own = self.own_of(toolsets);
        built_in.chain(own.iter().map(|own| own.name().to_owned())).collect()
    }

    fn of(&self, toolsets: Toolsets) -> impl Iterator<Item = &Arc<Checked>> {
        self.built_in.iter().filter(move |checked| toolsets.has(checked.tool.toolset))
    }

    fn own_of(&self, toolsets: Toolsets) -> Arc<[Arc<OwnTool>]> {
        let own = self.own.as_ref().filter(|_| toolsets.has(Toolset::Own));
        own.map_or_else(|| Arc::new([]) as _, OwnTools::all)
    }
}

impl std::fmt::Debug for Tools {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.names(Toolsets::ALL)).finish()
    }
}

/// Maximum number of characters about datasets in a description: a model reads them before each conversation.
const MAX_DATASETS_CHARS: usize = 300;

/// A sentence on the datasets for descriptions, after a blank; empty without datasets.
pub(super) fn datasets(facts: &ToolFacts) -> String {
    let Some((first, rest)) = facts.datasets.split_first() else { return String::new() };
    let mut text = shown(first);
    let mut left = rest.len();
    for dataset in rest {
        let next = shown(dataset);
        if text.len() + next.len() > MAX_DATASETS_CHARS {
            break;
        }
        text.push_str(", ");
        text.push_str(&next);
        left -= 1;
    }
    let more = if left > 0 { format!(" and {left} more in /data") } else { String::new() };
    format!(" Data to read: {text}{more}; list_artifacts with path lists their files.")
}

/// The sentence about the tools that code can call, or an empty one.
pub(super) fn calls(facts: &ToolFacts) -> String {
    let names = &facts.upstreams;
    let Some(first) = names.first() else { return String::new() };
    let shown = names.iter().take(MAX_UPSTREAMS).map(String::as_str).collect::<Vec<_>>().join(", ");
    let more = match names.len().saturating_sub(MAX_UPSTREAMS) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!(
        " Code can call tools of {shown}{more}: import tools; tools.search('words') finds them, \
         help(tools.{first}.NAME) describes one."
    )
}

/// A dataset with its description.
fn shown(dataset: &Dataset) -> String {
    match &*dataset.description {
        "" => dataset.folder(),
        description => format!("{} ({description})", dataset.folder()),
    }
}

/// Maximum number of upstreams that a description names.
const MAX_UPSTREAMS: usize = 8;

/// Maximum number of datasets in a result.
pub(super) const MAX_DATASETS: usize = 20;

/// Maximum number of datasets in the error for a path that is in none.
const MAX_NEAREST: usize = 5;

/// The error of a call for a file, with the datasets that there are if the path is in none of them.
pub(super) fn near_datasets(error: Error, path: &FilePath, datasets: &[Arc<Dataset>]) -> Error {
    let Some(wanted) = path.dataset().map(|it| it.to_text()) else { return error };
    let folders: Vec<_> = datasets.iter().map(|it| it.folder()).collect();
    if !matches!(error, Error::NotFound(_)) || folders.is_empty() || folders.contains(&wanted) {
        return error;
    }
    let near: Vec<_> = nearest(&wanted, folders.iter().map(String::as_str), MAX_NEAREST)
        .map(str::to_owned)
        .collect();
    let near = if near.is_empty() { folders.into_iter().take(MAX_NEAREST).collect() } else { near };
    Error::NotFoundNear { path: path.to_text(), near }
}

/// The datasets for a result; `None` without datasets.
pub(super) fn listed_datasets(datasets: &[Arc<Dataset>]) -> Option<Value> {
    let listed = datasets.iter().take(MAX_DATASETS).map(|dataset| {
        let mut listed = json!({ "path": dataset.folder() });
        if !dataset.description.is_empty() {
            listed["description"] = dataset.description.as_str().into();
        }
        listed
    });
    let listed: Vec<_> = listed.collect();
    (!listed.is_empty()).then(|| listed.into())
}

/// The instructions that every client reads before the first call: facts that the list of tools does not contain.
pub(super) fn instructions(config: &Config, toolsets: Toolsets) -> String {
    if toolsets.is_only(Toolset::Own) {
        return "Each call runs a program anew in a sandbox without a network. Results are JSON, with the \
                files that it made."
            .into();
    }
    let charts = if config.inline_images > 0 { ", and charts come as pictures" } else { "" };
    let use_of = match (toolsets.has(Toolset::Run), toolsets.has(Toolset::Code)) {
        (true, false) => "Typical use: upload_file a data set, run_python to analyse it, then",
        (true, true) => {
            "Typical use: execute_code for work in steps, whose variables stay from call to call; \
             run_python for a program by itself in a fresh process; upload_file brings data in. Then"
        }
        (false, true) => "Typical use: execute_code, whose variables stay from call to call. Then",
        (false, false) => "Where there are results,",
    };
    format!(
        "Runs code in an isolated sandbox. {use_of} give the person the download_url of each chart \
         or report. Results are JSON{charts}; what is in notes is meant for you."
    )
}

#[cfg(test)]
mod tests {
    use backend::Template;
    use config::Transport;
    use model::{World, package::Ecosystem};

    use super::*;

    fn facts<'a>(config: &'a Config, template: &'a Template) -> ToolFacts<'a> {
        let (transport, toolsets) = (Transport::Stdio, Toolsets::ALL);
        let packages = &[Ecosystem::PyPi, Ecosystem::Npm];
        let (datasets, upstreams) = (vec![], vec![]);
        let client = Client { local_files: true, shows_apps: false };
        ToolFacts { config, transport, toolsets, template, client, datasets, upstreams, packages }
    }

    #[test]
    fn every_file_of_a_tool_is_in_the_list_under_its_name() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/mcp/tools");
        let files = std::fs::read_dir(folder).expect("the folder of this file");
        let files = files.map(|file| file.expect("listed").file_name().into_string());
        let files = files.map(|name| name.expect("UTF-8"));
        let mut files: Vec<_> =
            files.filter_map(|n| Some(n.strip_suffix(".rs")?.to_owned())).collect();
        files.retain(|name| !["mod", "schema"].contains(&&**name));
        files.sort();
        let names: Vec<_> = TOOLS.iter().map(|tool| tool.name).collect();
        assert_eq!(files, names);
    }

    #[test]
    fn texts_of_tools_name_only_tools_that_are_listed() {
        let (config, template) = (Config::default(), Template::built_in(""));
        for chosen in ["run", "code", "sessions", "run,code", "run,sessions", "code,sessions"] {
            let toolsets: Toolsets = chosen.parse().expect("toolsets");
            let all: &[_] = &[Ecosystem::PyPi];
            for packages in [all, &[]] {
                let packages = if toolsets.has(Toolset::Code) { packages } else { &[] };
                let facts = ToolFacts { toolsets, packages, ..facts(&config, &template) };
                let listed = Tools::new(Toolsets::ALL, &facts, None).list(&facts);
                let texts = serde_json::to_string(&listed).expect("JSON");
                let mut others = Tools::reserved();
                others.retain(|name| !listed.iter().any(|tool| tool.name == *name));
                let named: Vec<_> = others.iter().filter(|name| texts.contains(**name)).collect();
                assert!(named.is_empty(), "{chosen}: {named:?}");
            }
        }
    }

    #[test]
    fn processors_are_a_limit_only_of_a_system() {
        let config = Config::default();
        for world in [World::System, World::Interpreter] {
            let template = Template { world, ..Template::built_in("") };
            for toolsets in ["run", "code"] {
                let toolsets = toolsets.parse().expect("a toolset");
                let facts = ToolFacts { toolsets, ..facts(&config, &template) };
                let listed = Tools::new(Toolsets::ALL, &facts, None).list(&facts);
                let texts = serde_json::to_string(&listed).expect("JSON");
                assert_eq!(texts.contains(" CPU"), world == World::System, "{toolsets}");
            }
        }
    }

    #[test]
    fn only_tools_of_the_chosen_sets_are_offered() {
        let (config, template) = (Config::default(), Template::built_in(""));
        let facts = facts(&config, &template);
        let run = "run".parse().expect("a toolset");
        let all = Tools::new(Toolsets::ALL, &facts, None);
        assert_eq!(all.names(Toolsets::ALL), Tools::reserved());
        assert!(all.find("run_python", run).is_some());
        for tools in [&all, &Tools::new(run, &facts, None)] {
            let others = TOOLS.iter().filter(|tool| tool.toolset != Toolset::Run);
            for other in others {
                assert!(tools.find(other.name, run).is_none(), "{}", other.name);
            }
        }
    }
}
