//! `list_runtimes`.

use backend::{Runtime, Template};
use config::{Config, Toolset};
use model::World;
use rmcp::model::CallToolResponse;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    listed_datasets,
    schema::{self, object},
};
use crate::{
    error::Result,
    mcp::{
        audited::Log,
        call::{Call, success},
        languages::Language,
        tool::{Description, Hints, Tool, ToolFacts},
    },
};

pub(in crate::mcp) struct ListRuntimes;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::mcp) struct Arguments {}

impl Tool for ListRuntimes {
    const NAME: &'static str = "list_runtimes";
    const TOOLSET: Toolset = Toolset::Sessions;
    type Arguments = Arguments;

    fn describe(_: &ToolFacts) -> Description {
        let package = object(
            json!({ "name": { "type": "string" }, "version": { "type": "string" } }),
            &["name"],
        );
        let runtime = object(
            json!({
                "language": { "type": "string" },
                "version": { "type": "string" },
                "wasm_module": { "type": "string", "description": "What interprets it, on the embedded engine." },
                "engine": { "type": "string", "description": "What its sandboxes are." },
                "features": {
                    "type": "array",
                    "description": "state: variables stay between cells; rollback: they are put back when a \
                                    cell is stopped; undo: cells can be taken back; packages: \
                                    more can be installed.",
                    "items": { "type": "string" },
                },
                "packages": {
                    "type": "array",
                    "description": "What is preinstalled.",
                    "items": package,
                },
            }),
            &["language", "engine", "features", "packages"],
        );
        Description {
            title: "List languages",
            text: "Lists the languages, with version, features and preinstalled packages.".into(),
            input: object(json!({}), &[]),
            output: object(
                json!({
                    "runtimes": { "type": "array", "items": runtime },
                    "datasets": schema::datasets(),
                }),
                &["runtimes"],
            ),
            hints: Hints::ReadOnly,
        }
    }

    async fn call(call: &Call, _: Arguments, _: &mut Log) -> Result<CallToolResponse> {
        let sessions = &call.services.sessions;
        let template = sessions.template().await;
        let mut runtimes = runtimes(&template, sessions.config());
        for (language, rendered) in Language::of(&template).zip(&mut runtimes) {
            let has_packages = language
                .ecosystem()
                .is_some_and(|it| sessions.packages().ecosystems().contains(&it));
            if let Some(features) = rendered["features"].as_array_mut().filter(|_| has_packages) {
                features.push("packages".into());
            }
        }
        let mut result = json!({ "runtimes": runtimes });
        if let Some(datasets) = listed_datasets(&sessions.datasets()) {
            result["datasets"] = datasets;
        }
        Ok(success(result).into())
    }
}

fn runtimes(template: &Template, config: &Config) -> Vec<Value> {
    let named = |language: &Language| {
        template.runtimes.iter().find(|runtime| runtime.name == language.name())
    };
    Language::of(template)
        .filter_map(|language| Some(rendered(&language, named(&language)?, config, template.world)))
        .collect()
}

fn rendered(language: &Language, runtime: &Runtime, config: &Config, world: World) -> Value {
    let packages = runtime.libraries.iter().map(|library| {
        let mut package = json!({ "name": library.name });
        if let Some(version) = &library.version {
            package["version"] = version.as_str().into();
        }
        package
    });
    let mut result = json!({
        "language": language.name(),
        "engine": config.engine.as_str(),
        "features": language.features(config.undo, world),
        "packages": packages.collect::<Vec<_>>(),
    });
    if let Some(version) = &runtime.version {
        result["version"] = version.as_str().into();
    }
    if let Some(module) = &runtime.module {
        result["wasm_module"] = module.as_str().into();
    }
    result
}
