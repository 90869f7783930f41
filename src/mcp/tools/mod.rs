//! The tools there are: one file each, and one list that dispatch, listing, toolsets and the labels of
//! metrics are made from.
//!
//! A tool that needs nothing new of a session is one file here, with its `mod` line and its line in
//! [`TOOLS`]; a file without them fails the tests, and a tool without its line does not compile without
//! a warning.

mod close_session;
mod list_artifacts;
mod read_artifact;
mod read_output;
mod run_python;
mod schema;
mod upload_file;

use std::sync::Arc;

use super::tool::{AnyTool, Facts, Offered, Toolset};
use crate::config::Config;

/// All tools, by name.
const TOOLS: &[&dyn AnyTool] = &[
    &close_session::CloseSession,
    &list_artifacts::ListArtifacts,
    &read_artifact::ReadArtifact,
    &read_output::ReadOutput,
    &run_python::RunPython,
    &upload_file::UploadFile,
];

/// The tools that a server offers. Clones share them.
#[derive(Clone)]
pub(super) struct Tools(Arc<[Offered]>);

impl Tools {
    /// Those of some toolsets. Of the facts, those count that what they take depends on.
    pub(super) fn new(toolsets: &[Toolset], facts: &Facts) -> Self {
        let chosen = TOOLS.iter().copied().filter(|tool| toolsets.contains(&tool.toolset()));
        Self(chosen.map(|tool| Offered { tool, arguments: tool.arguments(facts) }).collect())
    }

    /// What clients are told about them.
    pub(super) fn list(&self, facts: &Facts) -> Vec<rmcp::model::Tool> {
        self.0.iter().map(|offered| offered.tool.listed(facts)).collect()
    }

    /// The tool of that name.
    pub(super) fn find(&self, name: &str) -> Option<&Offered> {
        self.0.iter().find(|offered| offered.tool.name() == name)
    }

    /// Their names.
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().map(|offered| offered.tool.name())
    }
}

impl std::fmt::Debug for Tools {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

/// What every client gets to read before the first call: what the list of tools does not say.
pub(super) fn instructions(config: &Config) -> String {
    let charts = if config.inline_images > 0 { ", and charts come as pictures" } else { "" };
    format!(
        "Runs Python in an isolated container. Typical use: upload_file a data set, run_python to \
         analyse it, then give the person the download_url of each chart or report. Results are \
         JSON{charts}; what is in notes is meant for you."
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{backend::Template, config::Transport};

    fn facts<'a>(config: &'a Config, template: &'a Template) -> Facts<'a> {
        Facts { config, transport: Transport::Stdio, template, local_files: true }
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
        assert_eq!(Tools::new(Toolset::ALL, &facts).names().count(), TOOLS.len());
        let none = Tools::new(&[], &facts);
        assert!(none.find("run_python").is_none());
        assert_eq!(none.names().count(), 0);
    }
}
