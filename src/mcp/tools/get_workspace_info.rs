//! `get_workspace_info`.

use config::Toolset;
use model::text::without_controls;
use protocol::message::{Contents, InspectDone};
use rmcp::model::CallToolResponse;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    create_session::time,
    listed_datasets,
    schema::{
        datasets, language, new_workspace, no_workspace, notes, object, optional_session,
        session_of_result, string,
    },
};
use crate::{
    error::Result,
    mcp::{
        audited::Log,
        call::{Call, say_what_is_new, success},
        languages::Language,
        running,
        tool::{Description, Hints, Tool, ToolFacts},
    },
    notes::WorkspaceNote,
    session::{History, PastRun},
    sessions::{Inspect, Inspected, List, Listing},
};

/// Maximum number of runs in a result.
const MAX_RUNS: usize = 20;

/// Maximum number of variables in a result: the newest.
const MAX_VARIABLES: usize = 100;

pub(in crate::mcp) struct GetWorkspaceInfo;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::mcp) struct Arguments {
    session_id: Option<String>,
    language: Option<String>,
}

impl Tool for GetWorkspaceInfo {
    const NAME: &'static str = "get_workspace_info";
    const TOOLSET: Toolset = Toolset::Code;
    const ALIASES: &'static [(&'static str, &'static str)] =
        &[("lang", "language"), ("workspace_id", "session_id")];
    type Arguments = Arguments;

    fn describe(facts: &ToolFacts) -> Description {
        Description {
            title: "Look at the workspace",
            text: "Tells what the workspace holds: variables and their types, imports, memory, files, how \
                   many cells can be undone, and the last runs, also the one in progress."
                .into(),
            input: object(
                json!({
                    "session_id": optional_session(),
                    "language": language(facts.template),
                }),
                &[],
            ),
            output: output(),
            hints: Hints::ReadOnly,
        }
    }

    async fn call(call: &Call, arguments: Arguments, log: &mut Log) -> Result<CallToolResponse> {
        let Arguments { session_id, language } = arguments;
        let sessions = &call.services.sessions;
        let language =
            Language::meant(language.as_deref(), session_id.as_deref(), sessions).await?;
        let Some(opened) = call.existing_workspace(session_id.as_deref(), log).await? else {
            let mut nothing = json!({
                "workspace": null,
                "language": language.name(),
                "variables": [],
                "imports": [],
                "execution_count": 0,
            });
            if let Some(datasets) = listed_datasets(&sessions.datasets()) {
                nothing["datasets"] = datasets;
            }
            return Ok(success(nothing).into());
        };
        let gone = || sessions.gone(&opened.id);
        // A session that hibernates on disk is not registered before its first operation.
        let there = sessions.get(&opened.id);
        let is_running = there.is_some_and(|it| it.info().history.running().is_some());
        let inspected = if is_running {
            None
        } else {
            sessions.perform(&opened.id, Inspect { language: language.runtime() }).await?
        };
        let listing = sessions.perform(&opened.id, List).await?;
        let look = sessions.get(&opened.id).ok_or_else(gone)?.info();
        look.history.renew_resources().await;
        let mut result = json!({
            "session_id": opened.id.as_str(),
            "language": language.name(),
            "created_at": time(look.since),
            "expires_at": time(look.expires),
            "history": history(&look.history),
            "files": files(&listing),
            "resources": look.resources(),
        });
        if let Some(datasets) = listed_datasets(&look.datasets) {
            result["datasets"] = datasets;
        }
        say_what_is_new(&opened, &mut result);
        call.note_lost(&opened);
        if let Some(inspected) = inspected {
            if inspected.is_forgotten {
                call.note(WorkspaceNote::Gone.into());
            }
            add_contents(&mut result, inspected);
        } else {
            call.note(WorkspaceNote::Running.into());
            let run = look.history.running();
            if let Some(approval) = run.and_then(|run| run.approvals.first()) {
                call.note(WorkspaceNote::Waiting(running::waiting(call, approval)).into());
            }
        }
        Ok(success(result).into())
    }
}

/// Adds the contents of the interpreter. They are not trusted: the names and types of variables may be untrue, and any
/// text.
fn add_contents(result: &mut Value, inspected: Inspected) {
    let Inspected { interpreter, contents, .. } = inspected;
    let InspectDone { count, can_undo, memory_bytes, .. } = interpreter;
    let Contents { variables, more, imports } = contents;
    let older = variables.len().saturating_sub(MAX_VARIABLES);
    let shown = variables.iter().skip(older);
    let names: Vec<_> = shown.clone().map(|variable| clean(&variable.name)).collect();
    let types = shown.map(|it| (clean(&it.name), clean(&it.summary).into()));
    result["types"] = types.collect::<Map<_, _>>().into();
    result["variables"] = names.into();
    let imports: Vec<_> = imports.iter().take(MAX_VARIABLES).map(|it| clean(it)).collect();
    result["imports"] = imports.into();
    result["execution_count"] = count.into();
    result["can_undo"] = can_undo.into();
    let omitted = older.saturating_add(more);
    if omitted > 0 {
        result["variables_omitted"] = omitted.into();
    }
    if let Some(bytes) = memory_bytes {
        result["memory_used_bytes"] = bytes.into();
    }
}

/// A text that may be anything, without control characters.
fn clean(text: &str) -> String {
    without_controls(text.chars())
}

fn files(listing: &Listing) -> Value {
    let bytes = listing.artifacts.iter().fold(0u64, |sum, it| sum.saturating_add(it.size_bytes));
    json!({ "count": listing.artifacts.len(), "bytes": bytes })
}

/// The last runs, oldest first.
fn history(history: &History) -> Vec<Value> {
    let older = history.runs().len().saturating_sub(MAX_RUNS);
    history.runs().skip(older).map(past_run).collect()
}

fn past_run(run: &PastRun) -> Value {
    let status = run.end.as_ref().map_or("running", |end| end.outcome.status().as_str());
    json!({
        "run_id": run.run_id.to_string(),
        "language": run.language.as_str(),
        "status": status,
        "code": run.first_line,
    })
}

fn output() -> Value {
    let number = || json!({ "type": "integer", "minimum": 0 });
    let names = || json!({ "type": "array", "items": { "type": "string" } });
    let run = object(
        json!({
            "run_id": { "type": "string" },
            "language": { "type": "string" },
            "status": { "type": "string", "description": "As of execute_code, or running." },
            "code": { "type": "string", "description": "Its first line." },
        }),
        &["run_id", "language", "status", "code"],
    );
    let resources = object(
        json!({
            "memory_bytes": number(),
            "memory_peak_bytes": number(),
            "memory_limit_bytes": number(),
            "cpu_seconds": { "type": "number", "minimum": 0 },
            "disk_bytes": number(),
            "disk_limit_bytes": number(),
        }),
        &["memory_limit_bytes", "disk_limit_bytes"],
    );
    object(
        json!({
            "session_id": session_of_result(),
            "workspace": no_workspace(),
            "new_workspace": new_workspace(),
            "language": { "type": "string" },
            "variables": names(),
            "variables_omitted": {
                "type": "integer",
                "minimum": 1,
                "description": "How many older ones there are.",
            },
            "types": {
                "type": "object",
                "description": "Type and size of each variable's value.",
                "additionalProperties": { "type": "string" },
            },
            "imports": names(),
            "execution_count": number(),
            "can_undo": {
                "type": "integer",
                "minimum": 0,
                "description": "Cells that reset_workspace can take back.",
            },
            "memory_used_bytes": number(),
            "created_at": string("RFC 3339, UTC."),
            "expires_at": string("If it is not used before."),
            "history": {
                "type": "array",
                "description": "The last 20 runs, oldest first.",
                "items": run,
            },
            "resources": resources,
            "files": object(json!({ "count": number(), "bytes": number() }), &["count", "bytes"]),
            "datasets": datasets(),
            "notes": notes(),
        }),
        &["language"],
    )
}
