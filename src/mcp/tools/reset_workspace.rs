//! `reset_workspace`.

use config::Toolset;
use protocol::limits::MAX_UNDO;
use rmcp::model::CallToolResponse;
use serde::Deserialize;
use serde_json::json;

use super::schema::{language, no_workspace, notes, object, optional_session, session_of_result};
use crate::{
    error::{Error, Result},
    mcp::{
        audited::Log,
        call::{Call, success, whole},
        languages::Language,
        tool::{Description, Hints, Tool, ToolFacts},
    },
    notes::WorkspaceNote,
    sessions::Reset,
};

pub(in crate::mcp) struct ResetWorkspace;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::mcp) struct Arguments {
    session_id: Option<String>,
    language: Option<String>,
    undo: Option<f64>,
    files: Option<bool>,
}

impl Tool for ResetWorkspace {
    const NAME: &'static str = "reset_workspace";
    const TOOLSET: Toolset = Toolset::Code;
    const ALIASES: &'static [(&'static str, &'static str)] = &[
        ("lang", "language"),
        ("workspace_id", "session_id"),
        ("cells", "undo"),
        ("delete_files", "files"),
    ];
    type Arguments = Arguments;

    fn describe(facts: &ToolFacts) -> Description {
        Description {
            title: "Reset the workspace",
            text: "Ends an interpreter of the workspace: its variables are gone. With undo, takes back that \
                   many of the last cells instead, but not what they did to files."
                .into(),
            input: object(
                json!({
                    "session_id": optional_session(),
                    "language": language(facts.template),
                    "undo": { "type": "integer", "minimum": 0, "maximum": MAX_UNDO },
                    "files": { "type": "boolean", "description": "Delete all files, too." },
                }),
                &[],
            ),
            output: object(
                json!({
                    "session_id": session_of_result(),
                    "workspace": no_workspace(),
                    "language": { "type": "string" },
                    "status": { "type": "string", "enum": ["reset", "undone"] },
                    "execution_count": {
                        "type": "integer",
                        "minimum": 0,
                        "description": "Cells that the interpreter now has behind it.",
                    },
                    "notes": notes(),
                }),
                &["language", "status", "execution_count"],
            ),
            hints: Hints::Ending,
        }
    }

    async fn call(call: &Call, arguments: Arguments, log: &mut Log) -> Result<CallToolResponse> {
        let Arguments { session_id, language, undo, files } = arguments;
        let sessions = &call.services.sessions;
        let language =
            Language::meant(language.as_deref(), session_id.as_deref(), sessions).await?;
        let undo = match whole("undo", undo, 0..=u64::from(MAX_UNDO))? {
            // A reset instead would do more than was asked for.
            Some(0) => {
                let why = "undo is the number of cells to take back, 1 at least. Leave it out to begin anew.";
                return Err(Error::InvalidArgument(why.into()));
            }
            undo => undo.and_then(|cells| u32::try_from(cells).ok()),
        };
        let Some(opened) = call.existing_workspace(session_id.as_deref(), log).await? else {
            if undo.is_some() {
                return Err(Error::NothingToUndo(0));
            }
            let nothing = json!({
                "workspace": null,
                "language": language.name(),
                "status": "reset",
                "execution_count": 0,
            });
            return Ok(success(nothing).into());
        };
        let files = files.unwrap_or(false);
        let reset = Reset { language: language.runtime(), undo, files };
        let done = sessions.perform(&opened.id, reset).await?;
        if done.lost_threads > 0 {
            call.note(WorkspaceNote::LostThreads(done.lost_threads).into());
        }
        let result = json!({
            "session_id": opened.id.as_str(),
            "language": language.name(),
            "status": if undo.is_some() { "undone" } else { "reset" },
            "execution_count": done.count,
        });
        Ok(success(result).into())
    }
}
