//! `run_python`.

use std::{convert::Infallible, time::Duration};

use protocol::limits::KEPT_FROM;
use rmcp::model::{
    CallToolResponse, CallToolResult, ContentBlock, ProgressNotificationParam, ProgressToken,
    Resource,
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    time::{Instant, interval_at, sleep},
};

use super::schema::{artifact, new_session, notes, object, session_of_result, string};
use crate::{
    artifact::is_picture,
    backend::Template,
    config::{Config, Transport},
    error::{Error, Result},
    listing,
    mcp::{
        arguments::hidden,
        call::{Call, Log, say_if_new, session, success, whole},
        resources,
        results::{
            budget::{MAX_CHARS, chars, encoded_size},
            images::{self, Inline},
            text,
        },
        services::Services,
        tool::{Description, Facts, Hints, Tool, Toolset},
    },
    notes::Note,
    session::{Artifact, Outcome, RunReport, SessionId},
    sessions::{Opened, Program, Progress},
    text::{human_size, human_time, quoted, whole_ms},
};

/// Time before a caller who asked for progress first hears of a run: soon enough not to wonder, late
/// enough that most runs have ended.
const FIRST_PROGRESS: Duration = Duration::from_millis(500);

/// Time between reports of progress.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);

/// Links to images in a result. All files are named in its JSON.
const MAX_LINKS: usize = 10;

pub(super) struct RunPython;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Arguments {
    session_id: Option<String>,
    code: String,
    timeout_s: Option<f64>,
    inline_images: Option<f64>,
    language: Option<String>,
}

impl Tool for RunPython {
    const NAME: &'static str = "run_python";
    const TOOLSET: Toolset = Toolset::Run;
    // Code of which every byte is escaped is long.
    const READS_LONG_TEXT: bool = true;
    const ALIASES: &'static [(&'static str, &'static str)] =
        &[("script", "code"), ("timeout", "timeout_s")];
    type Arguments = Arguments;

    fn describe(facts: &Facts) -> Description {
        Description {
            title: "Run Python",
            text: description(facts),
            input: input(facts.config),
            output: output(facts),
            hints: Hints::Destructive,
        }
    }

    async fn call(call: &Call, arguments: Arguments, log: &mut Log) -> Result<CallToolResponse> {
        let Arguments { session_id, code, timeout_s, inline_images, language } = arguments;
        let given = session(session_id.as_deref(), log)?;
        let sessions = &call.services.sessions;
        let config = sessions.config();
        let code = whole_code(call, code).await?;
        let code = runnable(code, language.as_deref(), call)?;
        let max_timeout = config.exec_timeout.as_secs();
        let timeout = whole("timeout_s", timeout_s, 1..=max_timeout)?.unwrap_or(max_timeout);
        let images = whole("inline_images", inline_images, 0..=u64::from(u32::MAX))?;
        log.bytes = Some(code.len() as u64);

        let token = call.context.meta.get_progress_token();
        let (progress, heard) = token.as_ref().map(|_| watch::channel(Progress::default())).unzip();
        let program = Program {
            code: code.into(),
            stdin: None,
            timeout: Duration::from_secs(timeout),
            cancel: call.context.ct.clone(),
            progress,
        };
        let running = run(call, given.clone(), program);
        let (Opened { id, is_new }, report) = match token.zip(heard) {
            None => running.await,
            Some((token, heard)) => tokio::select! {
                biased;
                done = running => done,
                never = report_progress(call, token, heard, timeout) => match never {},
            },
        };
        log.session = Some(id.clone());
        let report = call.or_close(given.is_none(), &id, report).await?;
        log.run = Some(report.run_id.to_string());
        log.outcome = Some(report.outcome.as_str());
        log.exit_code = Some(report.exit_code);
        log.start = Some(report.start.as_str());
        log.agent_elapsed = Some(report.agent_elapsed);

        let mut rendered = render(call, &id, &report).await;
        say_if_new(is_new && given.is_some(), &mut rendered);
        let mut notes = call.notes();
        notes.extend(report.notes.clone());
        notes.add_to(&mut rendered);
        fit(&mut rendered, &report, Room::new(config, call.services.budget().message));
        let mut result = success(rendered);
        let limit = call.inline_images(images);
        if limit > 0 {
            let used = result.structured_content.as_ref().map_or(0, encoded_size);
            let inline = Inline::new(&call.services, used, limit);
            add_charts(inline, &id, &report.artifacts, &mut result).await;
        }
        Ok(result.into())
    }
}

/// Time that a cancel may come after the call that it makes room for. Over HTTP they are two requests on
/// two connections, and nothing orders them.
const CANCEL_GRACE: Duration = Duration::from_millis(300);

/// Time between two looks whether it has come.
const CANCEL_POLL: Duration = Duration::from_millis(20);

/// Runs a program. Where a client cancels a run and calls again at once, the cancel may come second: the
/// session is then not busy for it.
async fn run(
    call: &Call,
    given: Option<SessionId>,
    program: Program,
) -> (Opened, Result<RunReport>) {
    let Services { sessions, transport, .. } = &call.services;
    let deadline = Instant::now() + CANCEL_GRACE;
    loop {
        let ran = sessions.run(given.clone(), program.clone()).await;
        let is_busy = matches!(ran.1, Err(Error::SessionBusy { .. }));
        if !is_busy || *transport == Transport::Stdio || Instant::now() >= deadline {
            return ran;
        }
        sleep(CANCEL_POLL).await;
    }
}

/// What a model is told about running programs.
fn description(facts: &Facts) -> String {
    let config = facts.config;
    let charts = match config.inline_images {
        0 => String::new(),
        1 => "; you see the first of a run".into(),
        most => format!("; you see the first {most} of a run"),
    };
    format!(
        "Runs a {} program in the session's container, in /mnt/data. Each call is a new process: \
         files in /mnt/data stay, variables and imports do not. Print what you want to see. \
         plt.show() or savefig makes charts{charts}. Files written below /mnt/data (not /tmp or ~) \
         come back as artifacts: give the person their download_url, never a sandbox: link. No network, \
         no pip. Libraries: {}; fonts for Latin, CJK, emoji. Limits: {} s, {} memory, {} CPU. Long \
         output is cut in the middle; read_output reads on. An error is a normal result: exit_code 1 \
         and a short traceback in stderr; fix the code and run again. One run at a time in a session. \
         Carry the returned session_id to every later call; unused for {}, a session is gone with its \
         files.{}",
        python(facts.template),
        libraries(facts.template),
        config.exec_timeout.as_secs(),
        human_size(config.memory_limit),
        config.cpu_limit,
        human_time(config.session_ttl),
        client_timeout(config),
    )
}

/// The interpreter and, if it is known, its version: `Python 3.13`.
fn python(template: &Template) -> String {
    let runtime = template.runtimes.iter().find(|runtime| runtime.name == "python");
    let version = runtime.and_then(|runtime| runtime.version.as_deref());
    let version = version.map(|version| version.split('.').take(2).collect::<Vec<_>>().join("."));
    version.map_or_else(|| "Python".into(), |version| format!("Python {version}"))
}

/// What clients that give up early have to be told; nothing else can be done for them.
fn client_timeout(config: &Config) -> String {
    // The usual limit of those that have one.
    const USUAL_TIMEOUT_S: u64 = 60;
    if config.exec_timeout.as_secs() <= USUAL_TIMEOUT_S {
        return String::new();
    }
    format!(" If the client itself gives up after {USUAL_TIMEOUT_S} s, set a lower timeout_s.")
}

fn input(config: &Config) -> Value {
    let max_timeout = config.exec_timeout.as_secs();
    let inline_images = json!({
        "type": "integer",
        "description": format!("Charts to show; default {}.", config.inline_images),
        "minimum": 0,
        "maximum": config.inline_images,
    });
    let max_code = human_size(config.max_code as u64);
    let properties = json!({
        "code": string(&format!("At most {max_code}; put data in files.")),
        "session_id": string("From an earlier result. Leave it out to start a session."),
        "timeout_s": {
            "type": "integer",
            "description": format!("Default and limit: {max_timeout}."),
            "minimum": 1,
            "maximum": max_timeout,
        },
        "inline_images":
            if config.inline_images > 0 { inline_images } else { hidden(inline_images) },
        "language": hidden(json!({ "type": "string" })),
    });
    object(properties, &["code"])
}

/// The program that is to run: what Markdown put around it is taken off.
fn runnable(code: String, language: Option<&str>, call: &Call) -> Result<String> {
    if let Some(other) = language.filter(|language| !is_python(language)) {
        let why = format!("Only Python runs here, not {}. Write it in Python.", quoted(other));
        return Err(Error::InvalidArgument(why));
    }
    let code = match unfenced(&code) {
        Some(inner) => {
            call.note(Note::Unfenced);
            inner.to_owned()
        }
        None => code,
    };
    if code.trim().is_empty() {
        return Err(Error::InvalidArgument("code is empty. Give a Python program.".into()));
    }
    Ok(code)
}

fn is_python(language: &str) -> bool {
    let language = language.trim().to_ascii_lowercase();
    matches!(&*language, "" | "python" | "python3" | "py" | "ipython")
}

/// What is between the fences of Markdown, if they are around all of it. No Python starts with one.
fn unfenced(code: &str) -> Option<&str> {
    const FENCE: &str = "```";
    let (first, rest) = code.trim().strip_prefix(FENCE)?.split_once('\n')?;
    let inner = rest.strip_suffix(FENCE)?;
    let ends_in_a_line = inner.is_empty() || inner.trim_end_matches([' ', '\t']).ends_with('\n');
    let is_one_block = !inner.lines().any(|line| line.trim_start().starts_with(FENCE));
    (is_python(first) && ends_in_a_line && is_one_block).then_some(inner)
}

fn output(facts: &Facts) -> Value {
    let mut more = json!({});
    if facts.transport == Transport::Stdio && facts.config.export_dir.is_some() {
        more["local_path"] = json!({
            "type": "string",
            "description": "Where a copy of the file is on the client's machine.",
        });
        more["not_exported"] = json!({
            "type": "string",
            "description": "Why there is no copy; download_url has the file.",
        });
    }
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
            "stdout": { "type": "string" },
            "stderr": { "type": "string" },
            "stdout_truncated": {
                "type": "boolean",
                "description": "True if part of stdout was left out; a line in it says how much and \
                                where. read_output returns it.",
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
    )
}

/// The code, also where it was cut out of the message for its length; the message is then released.
async fn whole_code(call: &Call, code: String) -> Result<String> {
    let limit = call.services.sessions.config().max_code;
    let too_large =
        |size: usize| Error::CodeTooLarge { size_bytes: size as u64, limit: limit as u64 };
    let long = call.long_text(&code);
    call.release_message().await;
    let code = match long {
        None => code,
        // Each byte may be escaped, as six.
        Some(long) if long.len() > 6 * limit => return Err(too_large(long.len())),
        Some(long) => long.into_string(6 * limit).ok_or_else(|| {
            let why = "code contains an unpaired surrogate escape, or is not UTF-8. Write such \
                       characters as Python escapes.";
            Error::InvalidArgument(why.into())
        })?,
    };
    if code.len() > limit { Err(too_large(code.len())) } else { Ok(code) }
}

/// Tells the caller how the run is going, until this is dropped.
async fn report_progress(
    call: &Call,
    token: ProgressToken,
    heard: watch::Receiver<Progress>,
    timeout: u64,
) -> Infallible {
    let begun = Instant::now();
    let mut tick = interval_at(begun + FIRST_PROGRESS, PROGRESS_INTERVAL);
    loop {
        tick.tick().await;
        let elapsed = begun.elapsed();
        let message = match &*heard.borrow() {
            Progress { started: false, .. } => "starting the sandbox".to_owned(),
            Progress { line, .. } if line.is_empty() => {
                format!("running for {} s", elapsed.as_secs())
            }
            Progress { line, .. } => line.clone(),
        };
        #[expect(clippy::cast_precision_loss, reason = "seconds of a day at most")]
        let progress = ProgressNotificationParam::new(token.clone(), elapsed.as_secs_f64())
            .with_total((timeout as f64).max(elapsed.as_secs_f64()))
            .with_message(message);
        // A client that does not listen still gets the result.
        let _ = call.context.peer.notify_progress(progress).await;
    }
}

async fn render(call: &Call, id: &SessionId, report: &RunReport) -> Value {
    let links = call.services.links(id);
    let exported = match &call.services.export {
        Some(export) => export.all(&call.services.sessions, id, &report.artifacts).await,
        None => vec![],
    };
    let artifacts = report.artifacts.iter().enumerate().map(|(n, artifact)| {
        let mut rendered = listing::artifact(links, artifact);
        match exported.get(n) {
            Some(Ok(path)) => rendered["local_path"] = path.to_string_lossy().into(),
            Some(Err(why)) => rendered["not_exported"] = why.to_string().into(),
            None => {}
        }
        rendered
    });
    let mut result = json!({
        "session_id": id.as_str(),
        "run_id": report.run_id.to_string(),
        "exit_code": report.exit_code,
        "outcome": report.outcome.as_str(),
        "stdout": report.stdout.text,
        "stderr": report.stderr.text,
        "artifacts": artifacts.collect::<Vec<_>>(),
        "duration_ms": whole_ms(report.elapsed),
    });
    for (field, output) in
        [("stdout_truncated", &report.stdout), ("stderr_truncated", &report.stderr)]
    {
        if output.truncated {
            result[field] = true.into();
        }
    }
    if report.artifacts_omitted > 0 {
        result["artifacts_omitted"] = report.artifacts_omitted.into();
    }
    result
}

/// What a result may take, see [`fit`].
#[derive(Debug, Clone, Copy)]
struct Room {
    /// Of the JSON, as clients count them.
    chars: usize,
    /// Of the message.
    bytes: usize,
}

impl Room {
    /// Whoever allows longer outputs wants to see more of them: twice each byte that is over, escaped.
    fn new(config: &Config, message: usize) -> Self {
        let chars = MAX_CHARS + 4 * config.max_output.saturating_sub(USUAL_OUTPUT);
        Self { chars, bytes: message - images::ENVELOPE }
    }
}

/// Bytes of each output for which there is room in [`MAX_CHARS`].
const USUAL_OUTPUT: usize = 20_000;

/// Shortens a result until it fits: the longer output first, but none to less than is kept for
/// `read_output` in any case, and then the list of files, which `list_artifacts` has as well.
fn fit(result: &mut Value, report: &RunReport, room: Room) {
    let mut most = room.chars;
    loop {
        fit_chars(result, report, most);
        // Of hardly anything but characters of several bytes, and of the largest outputs.
        if encoded_size(result) <= room.bytes || most <= MIN_CHARS {
            return;
        }
        most = most / 4 * 3;
    }
}

/// Characters of both fields that say of an output that it was truncated, and of its quotes.
const TRUNCATED: usize = 60;

/// Characters below which nothing can be too large for a message.
const MIN_CHARS: usize = 30_000;

fn fit_chars(result: &mut Value, report: &RunReport, most: usize) {
    let excess = |result: &Value| chars(result).saturating_sub(most);
    if excess(result) == 0 {
        return;
    }
    let outputs = [("stdout", &report.stdout), ("stderr", &report.stderr)];
    let sizes = outputs.map(|(name, _)| chars(&result[name]));
    let rest = chars(result) - sizes[0] - sizes[1];
    let room = most.saturating_sub(rest + TRUNCATED);
    for (n, (name, output)) in outputs.into_iter().enumerate() {
        // What one does not need the other gets.
        let limit = room.saturating_sub(sizes[1 - n]).max(room / 2).max(KEPT_FROM);
        let total = if output.truncated { output.total } else { output.text.len() as u64 };
        if sizes[n] > limit
            && let Some(shorter) =
                text::without_middle(&output.text, output.gap.as_ref(), limit, total)
        {
            result[name] = shorter.into();
            result[format!("{name}_truncated")] = true.into();
        }
    }
    while excess(result) > 0 {
        let Some(files) = result["artifacts"].as_array_mut().filter(|files| !files.is_empty())
        else {
            return;
        };
        let keep = files.len() * 3 / 4;
        let omitted = files.split_off(keep).len() as u64;
        let before = result["artifacts_omitted"].as_u64().unwrap_or(0);
        result["artifacts_omitted"] = (before + omitted).into();
    }
}

/// Adds the charts that the run made: the first of them to look at, and links to the whole files.
async fn add_charts(
    mut inline: Inline<'_>,
    id: &SessionId,
    artifacts: &[Artifact],
    result: &mut CallToolResult,
) {
    let charts = artifacts.iter().filter(|artifact| is_picture(artifact.path.mime()));
    let charts: Vec<_> = charts.take(MAX_LINKS).collect();
    for chart in &charts {
        if let Some(block) = inline.next(id, chart).await {
            result.content.push(block);
        }
    }
    let mut left = images::MAX_LINK_BYTES;
    for chart in charts {
        // The artifacts have the size and the URL.
        let link = Resource::new(resources::uri(id, &chart.path), chart.path.as_str())
            .with_mime_type(chart.path.mime());
        let Some(rest) = left.checked_sub(link.uri.len() + link.name.len()) else { return };
        left = rest;
        result.content.push(ContentBlock::resource_link(link));
    }
}

/// What programs can import beside the standard library.
fn libraries(template: &Template) -> String {
    let names = template.libraries("python");
    if names.is_empty() { "the standard library".into() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fences_are_taken_off_where_they_are_around_all_of_the_code() {
        for (code, inner) in [
            ("```python\nprint(1)\n```", "print(1)\n"),
            ("```\nprint(1)\n```", "print(1)\n"),
            ("\n ```py \r\nif 1:\n    print(1)\n  ```\n", "if 1:\n    print(1)\n  "),
            ("```Python\n```", ""),
        ] {
            assert_eq!(unfenced(code), Some(inner), "{code}");
        }
        for code in [
            "print(1)",
            "```print(1)```",
            "```bash\nls\n```",
            "```python\nprint(1)",
            "```\na\n```\ntext\n```\nb\n```",
            "Here it is:\n```python\nprint(1)\n```",
            "```python\nprint('''```",
            "s = '''\n```\nx\n```\n'''",
        ] {
            assert_eq!(unfenced(code), None, "{code}");
        }
    }

    #[test]
    fn python_has_many_names_and_other_languages_have_others() {
        assert!(["python", "Python3", " py "].into_iter().all(is_python));
        assert!(!["javascript", "bash", "r", "sql"].into_iter().any(is_python));
    }
}
