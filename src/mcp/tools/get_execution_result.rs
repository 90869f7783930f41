//! `get_execution_result`.

use std::time::Duration;

use config::Toolset;
use jiff::Timestamp;
use model::SessionId;
use rmcp::model::{CallToolResponse, CallToolResult, JsonObject};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    ExecuteCode, RunPython,
    cancel_execution::shown,
    execute_code, run_python,
    schema::{object, string},
};
use crate::{
    error::{Error, Result},
    mcp::{
        audited::Log,
        background::RUNNING,
        call::{Call, success, whole},
        running,
        tool::{Description, Hints, Tool, ToolFacts},
    },
    notes::WorkspaceNote,
    session::PastRun,
    sessions::Execution,
};

pub(in crate::mcp) struct GetExecutionResult;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::mcp) struct Arguments {
    execution_id: String,
    wait_s: Option<f64>,
}

/// Seconds for which a call waits for the end of the run, if its caller names none, and at most: less than the usual
/// timeout of clients.
const WAIT_S: (u64, u64) = (20, 50);

impl Tool for GetExecutionResult {
    const NAME: &'static str = "get_execution_result";
    const TOOLSET: Toolset = Toolset::Sessions;
    const ALIASES: &'static [(&'static str, &'static str)] =
        &[("run_id", "execution_id"), ("id", "execution_id"), ("wait", "wait_s")];
    type Arguments = Arguments;

    fn describe(facts: &ToolFacts) -> Description {
        let (usual, most) = WAIT_S;
        Description {
            title: "Get a run's result",
            text:
                "Returns the result of a run as its call would have, once it has ended; until then \
                   status running and the newest output. For runs with background, and calls whose \
                   answer was lost."
                    .into(),
            input: object(
                json!({
                    "execution_id": string("Its run_id."),
                    "wait_s": {
                        "type": "integer",
                        "description": format!("Wait for the end; default {usual}, limit {most}."),
                        "minimum": 0,
                        "maximum": most,
                    },
                }),
                &["execution_id"],
            ),
            output: output(facts),
            hints: Hints::ReadOnly,
        }
    }

    async fn call(call: &Call, arguments: Arguments, log: &mut Log) -> Result<CallToolResponse> {
        let Arguments { execution_id, wait_s } = arguments;
        let (usual, most) = WAIT_S;
        let wait = whole("wait_s", wait_s, 0..=most)?.unwrap_or(usual);
        let looking = call.services.sessions.execution(&execution_id, Duration::from_secs(wait));
        let found = tokio::select! {
            found = looking => found,
            // The client gets no answer.
            () = call.context.ct.cancelled() => Execution::NotFound,
        };
        if let Execution::Running(id, _) | Execution::Ended(id, ..) | Execution::Recorded(id, _) =
            &found
        {
            log.session = Some(id.clone());
            log.run = Some(execution_id.clone());
        }
        let without_run = |status: &str, why: &str| json!({ "run_id": shown(&execution_id), "status": status, "notes": [why] });
        let result = match found {
            Execution::Ended(_, _, result) => {
                let result: CallToolResult =
                    serde_json::from_slice(&result).map_err(|error| Error::internal(&error))?;
                return Ok(result.into());
            }
            Execution::Unbegun(id) => unbegun(id.as_ref(), &execution_id),
            Execution::Running(id, run) => in_progress(call, id.as_str(), &run),
            Execution::Recorded(id, run) => return Ok(recorded(call, &id, &run).await.into()),
            Execution::SessionEnded => without_run(
                "session_ended",
                "The session of this run has ended. If it is archived, a call that names it brings its \
                 results back.",
            ),
            Execution::NotFound => without_run("not_found", "You have no run of this name here."),
        };
        Ok(success(result).into())
    }
}

/// The schema of a result, which has the fields of the tool that began the run.
fn output(facts: &ToolFacts) -> Value {
    let mut fields = JsonObject::new();
    for mut described in [RunPython::describe(facts), ExecuteCode::describe(facts)] {
        if let Value::Object(own) = described.output["properties"].take() {
            fields.extend(own);
        }
    }
    let more = json!({
        "status": { "type": "string", "description": "running until the run has ended." },
        "running_s": { "type": "integer", "minimum": 0 },
    });
    fields.extend(more.as_object().cloned().unwrap_or_default());
    object(Value::Object(fields), &["run_id"])
}

fn unbegun(session: Option<&SessionId>, run_id: &str) -> Value {
    let note = "The run has not begun: its sandbox is being started.";
    let mut result =
        json!({ "run_id": run_id, "status": RUNNING, "running_s": 0, "notes": [note] });
    if let Some(session) = session {
        result["session_id"] = session.as_str().into();
    }
    result
}

fn in_progress(call: &Call, session: &str, run: &PastRun) -> Value {
    let [stdout, stderr] = &run.newest;
    let mut shown = json!({
        "session_id": session,
        "run_id": run.run_id.as_str(),
        "status": RUNNING,
        "running_s": Timestamp::now().duration_since(run.begun).as_secs().max(0),
        "stdout": stdout,
        "stderr": stderr,
    });
    if let Some(approval) = run.approvals.first() {
        let note = WorkspaceNote::Waiting(running::waiting(call, approval));
        shown["notes"] = json!([note.to_string()]);
    }
    shown
}

/// The result of a run of which only the record is stored: as the call would have had it, without notes on the session.
pub(in crate::mcp) async fn recorded(call: &Call, id: &SessionId, run: &PastRun) -> CallToolResult {
    let Some(report) = &run.report() else {
        let note = "The outputs of this run can no longer be read.";
        let (session_id, run_id) = (id.as_str(), run.run_id.as_str());
        return success(json!({ "session_id": session_id, "run_id": run_id, "notes": [note] }));
    };
    let (rendered, marks) = match &report.cell {
        Some(of_cell) => {
            (execute_code::render(call, id, report, of_cell).await, execute_code::MARKS)
        }
        None => (run_python::render(call, id, report).await, run_python::MARKS),
    };
    running::completed(call, id, report, rendered, marks, None).await
}
