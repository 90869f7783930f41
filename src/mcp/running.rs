//! The common part of tools that run code: reading the code as it was sent, running it with reports of progress, and
//! completing the result with files and charts, so that it fits.

use std::{convert::Infallible, time::Duration};

use model::{Artifact, SessionId, artifact::is_picture, text::human_size};
use protocol::message::Names;
use rmcp::model::{
    CallToolResult, ContentBlock, JsonObject, NotificationMetaObject, ProgressNotificationParam,
    ProgressToken, Resource,
};
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    time::{Instant, interval_at, sleep},
};

use super::{
    arguments::hidden,
    audited,
    call::{Call, Log, success},
    languages::{Language, unfenced},
    resources,
    results::{
        budget::{self, encoded_size},
        fit::{Room, Shown, fit},
        images::{self, Inline, TooLarge},
    },
    services::Services,
};
use crate::{
    config::{Config, Transport},
    error::{Error, Result},
    listing,
    notes::{Note, Notes},
    progress::Progress,
    session::RunReport,
    sessions::{Opened, Program, Which},
};

/// Time before the first report of progress: early enough for a person who waits, late enough that most runs have
/// ended.
const FIRST_PROGRESS: Duration = Duration::from_millis(500);

/// Time between reports of progress.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);

/// Most links to images in a result. All files are named in its JSON.
const MAX_LINKS: usize = 10;

/// Time for which a call waits for the cancellation of the run before it. Over HTTP the two are requests on two
/// connections, and nothing orders them.
const CANCEL_GRACE: Duration = Duration::from_millis(300);

/// Time between two attempts while a call waits for that.
const CANCEL_POLL: Duration = Duration::from_millis(20);

/// The code of a call, even if it was cut out of the message for its length; the message is then released. Markdown
/// fences around the code are removed, and the language that they name is returned.
///
/// # Errors
/// If it is too long, empty, or no text.
pub(super) async fn code(call: &Call, code: String) -> Result<(Option<Language>, String)> {
    let code = whole(call, code).await?;
    let (language, code) = match unfenced(&code) {
        Some((language, inner)) => {
            call.note(Note::Unfenced);
            (language, inner.to_owned())
        }
        None => (None, code),
    };
    if code.trim().is_empty() {
        return Err(Error::InvalidArgument("code is empty. Give the code to run.".into()));
    }
    Ok((language, code))
}

async fn whole(call: &Call, code: String) -> Result<String> {
    let limit = call.services.sessions.config().max_code;
    let too_large =
        |size: usize| Error::CodeTooLarge { size_bytes: size as u64, limit: limit as u64 };
    let long = call.long_text(&code);
    call.release_message().await;
    let code = match long {
        None => code,
        // Each byte may be escaped as six bytes.
        Some(long) if long.len() > 6 * limit => return Err(too_large(long.len())),
        Some(long) => long.into_string(6 * limit).ok_or_else(|| {
            let why = "code contains an unpaired surrogate escape, or is not UTF-8. Write such \
                       characters as escapes of the language.";
            Error::InvalidArgument(why.into())
        })?,
    };
    if code.len() > limit { Err(too_large(code.len())) } else { Ok(code) }
}

/// Runs a program, reports its progress to the caller, and notes its result for the log.
///
/// # Errors
/// If it could not be run. A session without a given name that was started for it is then closed.
pub(super) async fn run(
    call: &Call,
    which: Which,
    mut program: Program,
    log: &mut Log,
) -> Result<(Opened, RunReport)> {
    log.bytes = Some(program.code.len() as u64);
    log.language = Some(program.language.clone());
    let memory = call.services.sessions.config().memory_limit;
    log.audit(|record| audited::program(record, &program, memory));
    let token = call.context.meta.get_progress_token();
    let (progress, heard) = token.as_ref().map(|_| watch::channel(Progress::default())).unzip();
    program.progress = progress;
    let is_nameless = matches!(which, Which::New);
    let running = run_when_free(call, which, program);
    let (opened, report) = match token.zip(heard) {
        None => running.await,
        Some((token, heard)) => tokio::select! {
            biased;
            done = running => done,
            never = report_progress(call, token, heard) => match never {},
        },
    };
    log.session = Some(opened.id.clone());
    call.note_restored(&opened.id);
    let report = call.or_close(is_nameless, &opened.id, report).await?;
    log.run = Some(report.run_id.to_string());
    log.outcome =
        Some(report.cell.as_ref().map_or(report.outcome.as_str(), |cell| cell.status.as_str()));
    log.exit_code = Some(report.exit_code);
    log.start = Some(report.start.as_str());
    log.audit(|record| audited::report(record, &report));
    log.agent_elapsed = Some(report.agent_elapsed);
    Ok((opened, report))
}

/// Runs a program. If a client cancels a run and calls again at once, the cancellation may arrive second: the call then
/// waits for it, and does not fail because the session is busy.
async fn run_when_free(call: &Call, which: Which, program: Program) -> (Opened, Result<RunReport>) {
    let Services { sessions, transport, .. } = &call.services;
    let deadline = Instant::now() + CANCEL_GRACE;
    loop {
        let ran = sessions.run(which.clone(), program.clone()).await;
        let is_busy = matches!(ran.1, Err(Error::SessionBusy { .. }));
        if !is_busy || *transport == Transport::Stdio || Instant::now() >= deadline {
            return ran;
        }
        sleep(CANCEL_POLL).await;
    }
}

/// Reports the progress of a run to the caller, until this is dropped.
pub(super) async fn report_progress(
    call: &Call,
    token: ProgressToken,
    heard: watch::Receiver<Progress>,
) -> Infallible {
    let begun = Instant::now();
    let mut tick = interval_at(begun + FIRST_PROGRESS, PROGRESS_INTERVAL);
    let mut is_named = false;
    loop {
        tick.tick().await;
        let progress = heard.borrow().clone();
        let mut message = told(&progress, begun);
        let Progress { run_id, .. } = progress;
        // cancel_execution needs the name of the run, and many clients show the message alone.
        if let Some(run_id) = run_id.as_ref().filter(|_| !is_named) {
            message = format!("{run_id}: {message}");
            is_named = true;
        }
        // Seconds, without a total: how long code takes is not known.
        let mut progress =
            ProgressNotificationParam::new(token.clone(), begun.elapsed().as_secs_f64())
                .with_message(message);
        progress.meta = run_id.map(|run_id| {
            let named = JsonObject::from_iter([("run_id".to_owned(), run_id.to_string().into())]);
            NotificationMetaObject::from(named)
        });
        // A client that does not listen still gets the result.
        let _ = call.context.peer.notify_progress(progress).await;
    }
}

/// The progress of a call that began at `begun`, in one line.
fn told(progress: &Progress, begun: Instant) -> String {
    let Progress { started, loading, since, line, .. } = progress;
    match (started, loading, line.as_str()) {
        (false, ..) => "starting the sandbox".into(),
        (_, true, _) => "loading the interpreter".into(),
        (_, _, "") => format!("running for {} s", since.unwrap_or(begun).elapsed().as_secs()),
        (_, _, line) => line.into(),
    }
}

/// The files of a run as its result has them, with the paths that they were exported to.
pub(super) async fn artifacts(call: &Call, id: &SessionId, report: &RunReport) -> Value {
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
    artifacts.collect()
}

/// Completes a tool's result of a run: adds notes, shortens it to what the caller can take, and adds the charts that
/// the run made, of which at most `inline_images` are shown.
pub(super) async fn completed(
    call: &Call,
    id: &SessionId,
    report: &RunReport,
    mut rendered: Value,
    texts: &[Shown<'_>],
    inline_images: Option<u64>,
) -> CallToolResult {
    if report.artifacts_omitted > 0 {
        rendered["artifacts_omitted"] = report.artifacts_omitted.into();
    }
    for Shown { output, mark, .. } in texts {
        if output.truncated {
            rendered[mark] = true.into();
        }
    }
    let mut notes: Notes = call.notes();
    let of_run = report.notes.clone();
    let config = call.services.sessions.config();
    let ecosystems = call.services.sessions.host().ecosystems();
    notes.extend(of_run.where_packages_are(ecosystems, &config.packages));
    notes.add_to(&mut rendered);
    fit(&mut rendered, texts, Room::new(config, budget::MESSAGE));
    let limit = call.inline_images(inline_images);
    if limit == 0 {
        return success(rendered);
    }
    let inline = Inline::new(&call.services, encoded_size(&rendered), limit);
    let (charts, too_large) = charts(inline, id, &report.artifacts).await;
    if !too_large.is_empty() {
        notes.push(Note::TooLargeToShow(Names { names: too_large, more: 0 }));
        notes.add_to(&mut rendered);
    }
    let mut result = success(rendered);
    result.content.extend(charts);
    result
}

/// The charts that the run made: the first of them as images and all as links; and the names of those that are too
/// large to be shown.
async fn charts(
    mut inline: Inline<'_>,
    id: &SessionId,
    artifacts: &[Artifact],
) -> (Vec<ContentBlock>, Vec<String>) {
    let charts = artifacts.iter().filter(|artifact| is_picture(artifact.path.mime()));
    let mut charts: Vec<_> = charts.collect();
    charts.sort_by_cached_key(|chart| numbered(chart.path.as_str()));
    charts.truncate(MAX_LINKS);
    let (mut blocks, mut too_large) = (vec![], vec![]);
    for chart in &charts {
        match inline.next(id, chart).await {
            Ok(block) => blocks.extend(block),
            Err(TooLarge) => too_large.push(chart.path.as_str().to_owned()),
        }
    }
    let mut left = images::MAX_LINK_BYTES;
    for chart in charts {
        // The artifacts have the size and the URL.
        let link = Resource::new(resources::uri(id, &chart.path), chart.path.as_str())
            .with_mime_type(chart.path.mime());
        let Some(rest) = left.checked_sub(link.uri.len() + link.name.len()) else { break };
        left = rest;
        blocks.push(ContentBlock::resource_link(link));
    }
    (blocks, too_large)
}

/// A sort key by which `figure_2.png` comes before `figure_10.png`.
fn numbered(path: &str) -> String {
    const DIGITS: usize = 20;
    let mut key = String::with_capacity(path.len() + DIGITS);
    let mut rest = path;
    while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
        let (text, number) = rest.split_at(at);
        let end = number.find(|c: char| !c.is_ascii_digit()).unwrap_or(number.len());
        key += text;
        key.extend(std::iter::repeat_n('0', DIGITS.saturating_sub(end)));
        key += &number[..end];
        rest = &number[end..];
    }
    key + rest
}

/// The fields of a file that only results of runs have.
pub(super) fn exported_fields(transport: Transport, config: &Config) -> Value {
    if transport != Transport::Stdio || config.export_dir.is_none() {
        return json!({});
    }
    json!({
        "local_path": {
            "type": "string",
            "description": "Where a copy of the file is on the client's machine.",
        },
        "not_exported": {
            "type": "string",
            "description": "Why there is no copy; download_url has the file.",
        },
    })
}

/// The schema of the argument `code`.
pub(super) fn code_argument(config: &Config) -> Value {
    let max_code = human_size(config.max_code as u64);
    json!({ "type": "string", "description": format!("At most {max_code}; put data in files.") })
}

/// The schema of the argument `inline_images`; hidden if the settings allow no images.
pub(super) fn inline_images_argument(config: &Config) -> Value {
    let argument = json!({
        "type": "integer",
        "description": format!("Charts to show; default {}.", config.inline_images),
        "minimum": 0,
        "maximum": config.inline_images,
    });
    if config.inline_images > 0 { argument } else { hidden(argument) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn seconds_are_counted_from_when_the_code_runs() {
        let begun = Instant::now();
        let mut progress = Progress::default();
        assert_eq!(told(&progress, begun), "starting the sandbox");
        (progress.started, progress.loading) = (true, true);
        sleep(Duration::from_secs(4)).await;
        assert_eq!(told(&progress, begun), "loading the interpreter");
        (progress.loading, progress.since) = (false, Some(Instant::now()));
        sleep(Duration::from_secs(1)).await;
        assert_eq!(told(&progress, begun), "running for 1 s");
        "step 2".clone_into(&mut progress.line);
        assert_eq!(told(&progress, begun), "step 2");
    }

    #[test]
    fn figures_come_in_the_order_of_their_numbers() {
        let mut names =
            ["figure_10.png", "figure_2.png", "b.png", "figure_1.png", "a12b3", "a2b30"];
        names.sort_by_cached_key(|name| numbered(name));
        assert_eq!(
            names,
            ["a2b30", "a12b3", "b.png", "figure_1.png", "figure_2.png", "figure_10.png"]
        );
    }
}
