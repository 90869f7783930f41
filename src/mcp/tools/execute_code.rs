//! `execute_code`.

use backend::Template;
use config::{Config, Toolset};
use model::{
    CellStatus, OwnSettings, SessionId, World,
    text::{fine_ms, human_size},
};
use rmcp::model::CallToolResponse;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    calls, datasets,
    run_python::{client_timeout, cpus, lacking, libraries, no_pip, python},
    schema::{
        artifact, language, new_session, new_workspace, notes, object, session_of_result, string,
    },
};
use crate::{
    error::{Error, Result},
    mcp::{
        audited::Log,
        background,
        call::{Call, say_if_new, say_what_is_new, whole},
        languages::Language,
        running,
        tool::{Description, Hints, Tool, ToolFacts},
    },
    session::{CellReport, RunReport},
    sessions::{Program, Which},
};

/// Timeout of a cell in seconds, if its caller names none.
const DEFAULT_TIMEOUT_S: u64 = 30;

/// The field that says that an output was truncated, for each of them.
pub(super) const MARKS: [&str; 2] = ["truncated"; 2];

/// Longest timeout of a cell in seconds, whatever the settings allow.
const MAX_TIMEOUT_S: u64 = 300;

pub(in crate::mcp) struct ExecuteCode;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::mcp) struct Arguments {
    code: String,
    language: Option<String>,
    session_id: Option<String>,
    timeout: Option<f64>,
    stdin: Option<String>,
    inline_images: Option<f64>,
    background: Option<bool>,
}

impl Tool for ExecuteCode {
    const NAME: &'static str = "execute_code";
    const TOOLSET: Toolset = Toolset::Code;
    const HAS_VIEW: bool = true;
    // Code in which every byte is escaped is a long text.
    const READS_LONG_TEXT: bool = true;
    const ALIASES: &'static [(&'static str, &'static str)] = &[
        ("source", "code"),
        ("script", "code"),
        ("lang", "language"),
        ("timeout_s", "timeout"),
        ("timeout_seconds", "timeout"),
        ("input", "stdin"),
        ("workspace_id", "session_id"),
    ];
    type Arguments = Arguments;

    fn describe(facts: &ToolFacts) -> Description {
        Description {
            title: "Execute code",
            text: description(facts),
            input: input(facts),
            output: output(facts),
            hints: Hints::Making,
        }
    }

    async fn call(call: &Call, arguments: Arguments, log: &mut Log) -> Result<CallToolResponse> {
        let Arguments { code, language, session_id, timeout, stdin, inline_images, background } =
            arguments;
        let in_background = background.unwrap_or_default();
        let which = call.workspace(session_id.as_deref(), log)?;
        let sessions = &call.services.sessions;
        let (fences, code) = call.code(code).await?;
        let named = language.as_deref().or(fences.as_ref().map(Language::name));
        let language = Language::meant(named, session_id.as_deref(), sessions).await?;
        let config = sessions.config();
        if in_background {
            background::check(call, &which, config)?;
        }
        let given = ("timeout", timeout);
        let (timeout, max_timeout) =
            background::time_limit(call, given, timeouts(config), in_background)?;
        let images = whole("inline_images", inline_images, 0..=u64::from(u32::MAX))?;
        let program = Program {
            cell: true,
            stdin: stdin.map(Into::into),
            max_timeout,
            cancel: call.context.ct.clone(),
            ..Program::new(language.runtime(), code, timeout)
        };
        let (opened, report) = call.run(which.clone(), program, in_background, log).await?;
        let Some(of_cell) = &report.cell else {
            return Err(Error::internal(&"a cell without a report of its workspace"));
        };
        let mut rendered = render(call, &opened.id, &report, of_cell).await;
        match which {
            Which::Automatic(_) => say_what_is_new(&opened, &mut rendered),
            which => say_if_new(opened.is_new && matches!(which, Which::Named(_)), &mut rendered),
        }
        call.note_lost(&opened);
        Ok(running::completed(call, &opened.id, &report, rendered, MARKS, images).await.into())
    }
}

/// Timeout of a cell if its caller names none, and the longest possible one, in seconds.
fn timeouts(config: &Config) -> (u64, u64) {
    let most = config.exec_timeout.as_secs().min(MAX_TIMEOUT_S);
    let usual = config.default_timeout.map_or(DEFAULT_TIMEOUT_S, |timeout| timeout.as_secs());
    (usual.min(most), most)
}

/// The sentence on the languages that keep nothing but files.
fn stateless(template: &Template) -> Option<String> {
    let names: Vec<_> = Language::of(template)
        .filter(|language| matches!(language, Language::Labelled(_)))
        .map(|language| language.name().to_owned())
        .collect();
    match &names[..] {
        [] => None,
        [name] => Some(format!("{name} keeps nothing.")),
        [rest @ .., last] => Some(format!("{} and {last} keep nothing.", rest.join(", "))),
    }
}

/// The description of the tool for models.
fn description(facts: &ToolFacts) -> String {
    let config = facts.config;
    let charts = if config.inline_images > 0 { ", and you see them" } else { "" };
    let is_system = facts.template.world == World::System;
    let others: Vec<_> = Language::of(facts.template)
        .filter_map(|language| match language {
            // The description begins with Python; languages of the label are at its end.
            Language::Python | Language::Labelled(_) => None,
            Language::JavaScript if is_system => Some(
                "javascript is Node: it keeps let, const and functions, and when stopped what it \
                 had done.",
            ),
            Language::JavaScript => Some(
                "javascript is QuickJS: it keeps let, const and functions; of Node's modules require has \
                 fs, path and util.",
            ),
            Language::Bash => Some("bash keeps only its folder."),
        })
        .map(str::to_owned)
        .chain(stateless(facts.template))
        .collect();
    let others = if others.is_empty() { String::new() } else { format!(" {}", others.join(" ")) };
    let (shell, back, stays) = if is_system {
        (", !shell", "Python's variables go back", "; files and threads do not")
    } else {
        ("", "variables and files go back", "")
    };
    let limits = if facts.toolsets.has(Toolset::Run) {
        "Files, libraries and limits are those of run_python, which is for a program by itself."
            .into()
    } else {
        format!(
            "Files written below /mnt/data come back as artifacts: give the person their download_url. \
             No network, {}{}. Libraries: {}. {} memory{}.{}{}",
            no_pip(facts),
            lacking(facts.template),
            libraries(facts.template),
            human_size(config.limits(&OwnSettings::default()).memory),
            cpus(facts),
            datasets(facts),
            client_timeout(facts),
        )
    };
    format!(
        "Runs a notebook cell in your workspace, where variables, imports and functions stay for the next \
         call; new_workspace in a result says that nothing from before is there. {} by IPython: the last expression's value is result; display, top-level await{shell} and \
         %magics work; figures shown or left open become artifacts{charts}. After an error what was done \
         is kept. At a timeout, a crash or out of memory {back} to what they were before the cell (state \
         rolled_back){stays}.{others} {limits}{}",
        python(facts.template),
        calls(facts),
    )
}

fn input(facts: &ToolFacts) -> Value {
    let (usual, most) = timeouts(facts.config);
    let properties = json!({
        "code": running::code_argument(facts.config),
        "language": language(facts.template),
        "session_id": string(
            "That of an upload, to work on its files. Without it: your workspace. __stateless__: a fresh \
             one for this call.",
        ),
        "timeout": background::timeout_argument(
            facts,
            format!("Seconds; default {usual}, limit {most}."),
            most,
        ),
        "background": background::argument(facts),
        "stdin": { "type": "string" },
        "inline_images": running::inline_images_argument(facts.config),
    });
    object(properties, &["code"])
}

pub(super) async fn render(
    call: &Call,
    id: &SessionId,
    report: &RunReport,
    of_cell: &CellReport,
) -> Value {
    let mut result = json!({
        "session_id": id.as_str(),
        "run_id": report.run_id.to_string(),
        "status": of_cell.status.as_str(),
        "exit_code": report.exit_code,
        "stdout": report.stdout.text,
        "stderr": report.stderr.text,
        "execution_time_ms": fine_ms(report.elapsed),
        "execution_count": of_cell.execution_count,
        "state": of_cell.state.as_str(),
        "artifacts": running::artifacts(call, id, report).await,
    });
    if let Some(value) = &of_cell.result {
        result["result"] = value.text.clone().into();
    }
    if let Some(bytes) = of_cell.memory_bytes {
        result["memory_used_bytes"] = bytes.into();
    }
    if let Some(message) = &of_cell.error_message {
        result["error_message"] = message.clone().into();
    }
    result
}

fn output(facts: &ToolFacts) -> Value {
    let more = running::exported_fields(facts.transport, facts.config);
    let statuses = CellStatus::ALL.iter().map(|status| status.as_str());
    let running = background::is_offered(facts).then_some(background::RUNNING);
    let statuses: Vec<_> = statuses.chain(running).collect();
    object(
        json!({
            "session_id": session_of_result(),
            "new_workspace": new_workspace(),
            "new_session": new_session(),
            "run_id": { "type": "string" },
            "status": { "type": "string", "enum": statuses, "description": "How the cell ended." },
            "exit_code": {
                "type": "integer",
                "description": "0 on success; 1 on an exception; that of sys.exit; -1 on timeout; 128 + signal when \
                                killed.",
            },
            "stdout": { "type": "string" },
            "stderr": { "type": "string" },
            "truncated": {
                "type": "boolean",
                "description": "True if part of stdout, stderr or result was left out; a line in it says how \
                                much and where.",
            },
            "result": {
                "type": "string",
                "description": "The value of the last expression, as a notebook shows it.",
            },
            "execution_time_ms": {
                "type": "number",
                "minimum": 0,
                "description": "Wall time of the code, to three digits.",
            },
            "memory_used_bytes": {
                "type": "integer",
                "minimum": 0,
                "description": "Memory of the interpreter after the cell.",
            },
            "execution_count": {
                "type": "integer",
                "minimum": 0,
                "description": "Cells of this language that the workspace has run so far.",
            },
            "state": {
                "type": "string",
                "enum": ["kept", "rolled_back", "lost"],
                "description": "What became of the variables: as the cell left them, exactly as before it, or \
                                gone.",
            },
            "artifacts": {
                "type": "array",
                "description": "New and changed files, also after an error.",
                "items": artifact(more, &[]),
            },
            "artifacts_omitted": {
                "type": "integer",
                "minimum": 1,
                "description": "How many more files are new or changed.",
            },
            "error_message": {
                "type": "string",
                "description": "What happened and what to do, unless status is success.",
            },
            "notes": notes(),
        }),
        background::required(
            facts,
            &[
                "session_id",
                "run_id",
                "status",
                "exit_code",
                "stdout",
                "stderr",
                "execution_time_ms",
                "execution_count",
                "state",
                "artifacts",
            ],
        ),
    )
}
