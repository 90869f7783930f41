//! `run_python`.

use backend::Template;
use config::{Config, Toolset};
use model::{
    Outcome, OwnSettings, SessionId, World,
    package::Ecosystem,
    text::{human_size, human_time, quoted, whole_ms},
};
use rmcp::model::CallToolResponse;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    calls, datasets,
    schema::{artifact, new_session, notes, object, session_of_result, string},
};
use crate::{
    error::{Error, Result},
    mcp::{
        arguments::hidden,
        audited::Log,
        background,
        call::{Call, say_if_new, whole},
        languages::Language,
        running,
        tool::{Description, Hints, Tool, ToolFacts},
    },
    session::RunReport,
    sessions::{Opened, Program, RuntimeName, Which},
};

/// The fields that say that an output was truncated.
pub(super) const MARKS: [&str; 2] = ["stdout_truncated", "stderr_truncated"];

pub(in crate::mcp) struct RunPython;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::mcp) struct Arguments {
    session_id: Option<String>,
    code: String,
    timeout_s: Option<f64>,
    inline_images: Option<f64>,
    background: Option<bool>,
    language: Option<String>,
}

impl Tool for RunPython {
    const NAME: &'static str = "run_python";
    const TOOLSET: Toolset = Toolset::Run;
    const HAS_VIEW: bool = true;
    // Code in which every byte is escaped is a long text.
    const READS_LONG_TEXT: bool = true;
    const ALIASES: &'static [(&'static str, &'static str)] =
        &[("script", "code"), ("timeout", "timeout_s")];
    type Arguments = Arguments;

    fn describe(facts: &ToolFacts) -> Description {
        Description {
            title: "Run Python",
            text: description(facts),
            input: input(facts),
            output: output(facts),
            hints: Hints::Destructive,
        }
    }

    fn is_listed(facts: &ToolFacts) -> bool {
        facts.config.python
    }

    async fn call(call: &Call, arguments: Arguments, log: &mut Log) -> Result<CallToolResponse> {
        if !call.services.sessions.config().python {
            let template = call.services.sessions.template().await;
            Language::chosen(Some(Language::Python.name()), &template)?;
        }
        let Arguments { session_id, code, timeout_s, inline_images, background, language } =
            arguments;
        let in_background = background.unwrap_or_default();
        let which = call.session_or_new(session_id.as_deref(), log)?;
        let is_named = matches!(which, Which::Named(_));
        let (fences, code) = call.code(code).await?;
        let named = language.as_deref().or(fences.as_ref().map(Language::name));
        let is_other = |name: &&str| Language::built_in_named(name) != Some(Language::Python);
        if let Some(other) = named.filter(is_other) {
            let why = format!("Only Python runs here, not {}. Write it in Python.", quoted(other));
            return Err(Error::InvalidArgument(why));
        }
        let config = call.services.sessions.config();
        if in_background {
            background::check(call, &which, config)?;
        }
        let given = ("timeout_s", timeout_s);
        let (timeout, max_timeout) =
            background::time_limit(call, given, timeouts(config), in_background)?;
        let images = whole("inline_images", inline_images, 0..=u64::from(u32::MAX))?;
        let program = Program {
            max_timeout,
            cancel: call.context.ct.clone(),
            ..Program::new(RuntimeName::PYTHON, code, timeout)
        };
        let (Opened { id, is_new, .. }, report) =
            call.run(which, program, in_background, log).await?;
        let mut rendered = render(call, &id, &report).await;
        say_if_new(is_new && is_named, &mut rendered);
        Ok(running::completed(call, &id, &report, rendered, MARKS, images).await.into())
    }
}

/// The description of the tool for models.
fn description(facts: &ToolFacts) -> String {
    let config = facts.config;
    let charts = match config.inline_images {
        0 => String::new(),
        1 => "; you see the first of a run".into(),
        most => format!("; you see the first {most} of a run"),
    };
    format!(
        "Runs a {} program in the session's sandbox, in /mnt/data. Each call is a new process: \
         files in /mnt/data stay, variables and imports do not. Print what you want to see. \
         plt.show() or savefig makes charts{charts}. Files written below /mnt/data (not /tmp or ~) \
         come back as artifacts: give the person their download_url, never a sandbox: link. No network, \
         {}{}. Libraries: {}; fonts for Latin, CJK, emoji. Limits: {} s, {} memory{}. Clock: {}. Long \
         output is cut in the middle; read_output reads on. An error is a normal result: exit_code 1 \
         and a short traceback in stderr; fix the code and run again. One run at a time in a session. \
         Carry the returned session_id to every later call; unused for {}, a session is gone with its \
         files.{}{}{}",
        python(facts.template),
        no_pip(facts),
        lacking(facts.template),
        libraries(facts.template),
        timeouts(config).0,
        human_size(config.limits(&OwnSettings::default()).memory),
        cpus(facts),
        config.timezone.as_deref().unwrap_or("UTC"),
        human_time(config.ttl(&OwnSettings::default())),
        datasets(facts),
        calls(facts),
        client_timeout(facts),
    )
}

/// Timeout of a program if its caller names none, and the longest possible one, in seconds.
fn timeouts(config: &Config) -> (u64, u64) {
    let most = config.exec_timeout;
    (config.default_timeout.unwrap_or(most).as_secs(), most.as_secs())
}

/// The description of a timeout: the one that holds if a caller names none, and the longest possible one.
pub(super) fn timeout_described((usual, most): (u64, u64)) -> String {
    if usual == most {
        format!("Default and limit: {most}.")
    } else {
        format!("Default {usual}, limit {most}.")
    }
}

/// The interpreter and, if it is known, its version: `Python 3.13`.
pub(super) fn python(template: &Template) -> String {
    let runtime = template.runtimes.iter().find(|runtime| runtime.name == "python");
    let version = runtime.and_then(|runtime| runtime.version.as_deref());
    let version = version.map(|version| version.split('.').take(2).collect::<Vec<_>>().join("."));
    version.map_or_else(|| "Python".into(), |version| format!("Python {version}"))
}

/// Advice for clients that give up early.
pub(super) fn client_timeout(facts: &ToolFacts) -> String {
    // The usual timeout of clients that have a timeout.
    const USUAL_TIMEOUT_S: u64 = 60;
    if facts.config.exec_timeout.as_secs() <= USUAL_TIMEOUT_S {
        return String::new();
    }
    let advice =
        if background::is_offered(facts) { "pass background" } else { "set a lower timeout_s" };
    format!(" If the client itself gives up after {USUAL_TIMEOUT_S} s, {advice}.")
}

fn input(facts: &ToolFacts) -> Value {
    let config = facts.config;
    let timeouts = timeouts(config);
    let properties = json!({
        "code": running::code_argument(config),
        "session_id": string("From an earlier result. Leave it out to start a session."),
        "timeout_s": background::timeout_argument(facts, timeout_described(timeouts), timeouts.1),
        "background": background::argument(facts),
        "inline_images": running::inline_images_argument(config),
        "language": hidden(json!({ "type": "string" })),
    });
    object(properties, &["code"])
}

fn output(facts: &ToolFacts) -> Value {
    let more = running::exported_fields(facts.transport, facts.config);
    let outcomes: Vec<_> = Outcome::ALL.iter().map(|outcome| outcome.as_str()).collect();
    object(
        json!({
            "session_id": session_of_result(),
            "new_session": new_session(),
            "run_id": { "type": "string" },
            "exit_code": {
                "type": "integer",
                "description": "The process's own; -1 on timeout; 128 + signal when killed by a signal.",
            },
            "outcome": { "type": "string", "enum": outcomes, "description": "Why the run ended." },
            "status": { "type": "string", "description": "Only with background: running." },
            "stdout": { "type": "string" },
            "stderr": { "type": "string" },
            "stdout_truncated": {
                "type": "boolean",
                "description": "True if part of stdout was left out; a line in it says how much, and \
                                how to read it.",
            },
            "stderr_truncated": { "type": "boolean" },
            "artifacts": {
                "type": "array",
                "description": "New and changed files, if exit_code is 0.",
                "items": artifact(more, &[]),
            },
            "artifacts_omitted": {
                "type": "integer",
                "minimum": 1,
                "description": "How many more files are new or changed; list_artifacts lists them.",
            },
            "duration_ms": { "type": "integer", "minimum": 0, "description": "Wall time of the code." },
            "notes": notes(),
        }),
        background::required(
            facts,
            &[
                "session_id",
                "run_id",
                "exit_code",
                "outcome",
                "stdout",
                "stderr",
                "artifacts",
                "duration_ms",
            ],
        ),
    )
}

pub(super) async fn render(call: &Call, id: &SessionId, report: &RunReport) -> Value {
    json!({
        "session_id": id.as_str(),
        "run_id": report.run_id.to_string(),
        "exit_code": report.exit_code,
        "outcome": report.outcome.as_str(),
        "stdout": report.stdout.text,
        "stderr": report.stderr.text,
        "artifacts": running::artifacts(call, id, report).await,
        "duration_ms": whole_ms(report.elapsed),
    })
}

/// States that there is no pip, and what replaces it.
pub(super) fn no_pip(facts: &ToolFacts) -> &'static str {
    if facts.packages.contains(&Ecosystem::PyPi) {
        "no pip (install_package instead)"
    } else {
        "no pip"
    }
}

/// The limit of processors, after that of memory. It does not apply to a sandbox with an interpreter alone.
pub(super) fn cpus(facts: &ToolFacts) -> String {
    match facts.template.world {
        World::System => format!(", {} CPU", facts.config.cpu_limit),
        World::Interpreter => String::new(),
    }
}

/// Names features, besides a network, that a sandbox with an interpreter alone lacks.
pub(super) fn lacking(template: &Template) -> &'static str {
    match template.world {
        World::System => "",
        World::Interpreter => ", no processes or threads",
    }
}

/// The libraries that programs can import beside the standard library.
pub(super) fn libraries(template: &Template) -> String {
    let names = template.libraries("python");
    if names.is_empty() { "the standard library".into() } else { names.join(", ") }
}
