//! The tools there are: one file each, and one list that dispatch, listing, toolsets and the labels of
//! metrics are made from.
//!
//! A tool that needs nothing new of a session is one file here, with its `mod` line and its line in
//! [`TOOLS`]; a file without them fails the tests, and a tool without its line does not compile without
//! a warning.

mod cancel_execution;
mod close_session;
mod create_session;
mod destroy_session;
mod execute_code;
mod get_workspace_info;
mod list_artifacts;
mod list_runtimes;
mod read_artifact;
mod read_output;
mod reset_workspace;
mod run_python;
mod schema;
mod upload_file;

use std::sync::Arc;

use super::tool::{AnyTool, Facts, Offered};
use crate::config::{Config, Toolset, Toolsets};

/// All tools, by name.
const TOOLS: &[&dyn AnyTool] = &[
    &cancel_execution::CancelExecution,
    &close_session::CloseSession,
    &create_session::CreateSession,
    &destroy_session::DestroySession,
    &execute_code::ExecuteCode,
    &get_workspace_info::GetWorkspaceInfo,
    &list_artifacts::ListArtifacts,
    &list_runtimes::ListRuntimes,
    &read_artifact::ReadArtifact,
    &read_output::ReadOutput,
    &reset_workspace::ResetWorkspace,
    &run_python::RunPython,
    &upload_file::UploadFile,
];

/// The tools that a server offers. Clones share them.
#[derive(Clone)]
pub(super) struct Tools(Arc<[Offered]>);

impl Tools {
    /// Those of some toolsets. Of the facts, those count that what they take depends on.
    pub(super) fn new(toolsets: Toolsets, facts: &Facts) -> Self {
        let chosen = TOOLS.iter().copied().filter(|tool| toolsets.has(tool.toolset()));
        Self(chosen.map(|tool| Offered { tool, arguments: tool.arguments(facts) }).collect())
    }

    /// What a client is told about those that it is offered.
    pub(super) fn list(&self, facts: &Facts) -> Vec<rmcp::model::Tool> {
        self.of(facts.toolsets).map(|offered| offered.tool.listed(facts)).collect()
    }

    /// The tool of that name, if it is in one of these sets.
    pub(super) fn find(&self, name: &str, toolsets: Toolsets) -> Option<&Offered> {
        self.of(toolsets).find(|offered| offered.tool.name() == name)
    }

    /// The names of those in these sets.
    pub(super) fn names(&self, toolsets: Toolsets) -> impl Iterator<Item = &'static str> {
        self.of(toolsets).map(|offered| offered.tool.name())
    }

    fn of(&self, toolsets: Toolsets) -> impl Iterator<Item = &Offered> {
        self.0.iter().filter(move |offered| toolsets.has(offered.tool.toolset()))
    }
}

impl std::fmt::Debug for Tools {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.names(Toolsets::ALL)).finish()
    }
}

/// What every client gets to read before the first call: what the list of tools does not say.
pub(super) fn instructions(config: &Config, toolsets: Toolsets) -> String {
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
        "Runs code in an isolated container. {use_of} give the person the download_url of each chart \
         or report. Results are JSON{charts}; what is in notes is meant for you."
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{backend::Template, config::Transport};

    fn facts<'a>(config: &'a Config, template: &'a Template) -> Facts<'a> {
        let (transport, toolsets) = (Transport::Stdio, Toolsets::ALL);
        Facts { config, transport, toolsets, template, local_files: true }
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
        let names: Vec<_> = TOOLS.iter().map(|tool| tool.name()).collect();
        assert_eq!(files, names);
    }

    #[test]
    fn only_tools_of_the_chosen_sets_are_offered() {
        let (config, template) = (Config::default(), Template::built_in(""));
        let facts = facts(&config, &template);
        let run = "run".parse().expect("a toolset");
        let all = Tools::new(Toolsets::ALL, &facts);
        assert_eq!(all.names(Toolsets::ALL).count(), TOOLS.len());
        assert!(all.find("run_python", run).is_some());
        for tools in [&all, &Tools::new(run, &facts)] {
            let others = TOOLS.iter().filter(|tool| tool.toolset() != Toolset::Run);
            for other in others {
                assert!(tools.find(other.name(), run).is_none(), "{}", other.name());
            }
        }
    }
}
