//! The common part of tools that run code besides the run itself ([`Call::run`]): reports of progress, and the result
//! with files and charts, so that it fits.

use std::{convert::Infallible, time::Duration};

use config::{Config, Toolset, Toolsets, Transport};
use model::{
    Approval, Artifact, SessionId, artifact::is_picture, package::Ecosystem, text::human_size,
};
use protocol::message::Names;
use rmcp::model::{
    CallToolResult, ContentBlock, JsonObject, NotificationMetaObject, ProgressNotificationParam,
    ProgressToken, Resource,
};
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until},
};

use super::{
    arguments::hidden,
    call::{Call, success},
    languages::Language,
    resources,
    results::{
        budget::{self, encoded_size},
        fit::{Room, TextField, fit},
        images::{self, Inline, TooLarge},
    },
};
use crate::{
    listing,
    notes::{Note, Notes},
    progress::Progress,
    session::RunReport,
    sessions::Sessions,
};

/// Time before the first report of progress, unless there is output before: early enough for a person who waits, late
/// enough that most runs have ended.
const FIRST_PROGRESS: Duration = Duration::from_millis(500);

/// Time between reports of progress while there is no output.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);

/// Shortest time between two reports.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);

/// Maximum number of links to images in a result. All files are named in its JSON.
const MAX_LINKS: usize = 10;

/// Waits for work, and reports its progress to the caller if that has asked for it.
pub(super) async fn reporting<T>(
    call: &Call,
    heard: watch::Receiver<Progress>,
    work: impl Future<Output = T>,
) -> T {
    let Some(token) = call.context.meta.get_progress_token() else { return work.await };
    tokio::select! {
        biased;
        done = work => done,
        never = report_progress(call, token, heard) => match never {},
    }
}

/// Reports progress until this is dropped: lines of output as they come, and in between what is going on.
async fn report_progress(
    call: &Call,
    token: ProgressToken,
    mut heard: watch::Receiver<Progress>,
) -> Infallible {
    let begun = Instant::now();
    let mut next = begun + FIRST_PROGRESS;
    let (mut told, mut is_named) = (Told::default(), false);
    loop {
        tokio::select! {
            Ok(()) = heard.changed() => {}
            () = sleep_until(next) => {}
        }
        let (message, run_id) = {
            let progress = heard.borrow_and_update();
            let is_time = Instant::now() >= next || told.waits(&progress);
            let waits = progress.approval.as_ref().map(|approval| waiting(call, approval));
            let now = || waits.unwrap_or_else(|| state(&progress, begun));
            let news = told.news(&progress).or_else(|| is_time.then(now));
            (news, progress.run_id.clone())
        };
        let Some(mut message) = message else { continue };
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
        next = Instant::now() + PROGRESS_INTERVAL;
        sleep(SHORTEST_INTERVAL).await;
    }
}

/// The output of a run that its caller has been told.
#[derive(Default)]
struct Told {
    /// The position after the last line.
    lines: u64,
    bar: String,
    /// The call that waits for a person.
    approval: Option<String>,
}

impl Told {
    /// Whether another call waits for a person than before.
    fn waits(&mut self, progress: &Progress) -> bool {
        let now = progress.approval.as_ref().map(|approval| approval.id.clone());
        let is_new = now.is_some() && self.approval != now;
        self.approval = now;
        is_new
    }

    /// The lines that the caller has not been told, or the state of a progress bar.
    fn news(&mut self, progress: &Progress) -> Option<String> {
        let lines = progress.lines.since(std::mem::replace(&mut self.lines, progress.lines.end()));
        if !lines.is_empty() {
            return Some(lines.into_owned());
        }
        if self.bar == progress.bar {
            return None;
        }
        self.bar.clone_from(&progress.bar);
        Some(self.bar.clone()).filter(|bar| !bar.is_empty())
    }
}

/// The message that a call waits for a person, and where that person decides.
pub(super) fn waiting(call: &Call, Approval { session, upstream, tool, .. }: &Approval) -> String {
    let page = page(call, session).map(|url| format!(": {url}")).unwrap_or_default();
    format!("waiting for a person to allow {upstream}.{tool}{page}")
}

/// URL of a session's page, if it has one.
pub(super) fn page(call: &Call, session: &SessionId) -> Option<String> {
    call.services.links(session).map(|(urls, session)| urls.page(session))
}

/// The state of a call that began at `begun`, in one line.
fn state(progress: &Progress, begun: Instant) -> String {
    let Progress { started, language, loading, since, .. } = progress;
    if !started {
        return "starting the sandbox".into();
    }
    if *loading {
        let language = language.as_ref().and_then(Language::built_in);
        let title = language.as_ref().map_or("the interpreter", Language::title);
        return format!("loading {title}");
    }
    format!("running for {} s", since.unwrap_or(begun).elapsed().as_secs())
}

/// The ecosystems of which a client with these toolsets can install packages.
pub(super) fn packages(sessions: &Sessions, toolsets: Toolsets) -> &'static [Ecosystem] {
    if toolsets.has(Toolset::Code) { sessions.packages().ecosystems() } else { &[] }
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

/// The outputs of a run as fields of its result, which is marked if it lacks files or parts of them. `marks` are the
/// fields that say that an output was truncated; `is_kept` if the caller has `read_output` for all of the outputs.
pub(super) fn text_fields<'a>(
    report: &'a RunReport,
    marks: [&'static str; 2],
    is_kept: bool,
    rendered: &mut Value,
) -> Vec<TextField<'a>> {
    let [of_stdout, of_stderr] = marks;
    let mut fields = vec![
        TextField { field: "stdout", output: &report.stdout, mark: of_stdout, is_kept },
        TextField { field: "stderr", output: &report.stderr, mark: of_stderr, is_kept },
    ];
    // A result is not stored for `read_output`: its own text says what is missing.
    let result = report.cell.as_ref().and_then(|cell| cell.result.as_ref());
    let of_result = |output| TextField { field: "result", output, mark: of_stdout, is_kept: false };
    fields.extend(result.map(of_result));
    if report.artifacts_omitted > 0 {
        rendered["artifacts_omitted"] = report.artifacts_omitted.into();
    }
    for TextField { output, mark, .. } in &fields {
        if output.truncated {
            rendered[*mark] = true.into();
        }
    }
    fields
}

/// Completes a tool's result of a run: adds notes, shortens it to what the caller can take, and adds the charts that
/// the run made, of which at most `inline_images` are shown. `marks` are the fields that say that the outputs were
/// truncated.
pub(super) async fn completed(
    call: &Call,
    id: &SessionId,
    report: &RunReport,
    mut rendered: Value,
    marks: [&'static str; 2],
    inline_images: Option<u64>,
) -> CallToolResult {
    let has_read_output = call.toolsets.has(Toolset::Run);
    let texts = text_fields(report, marks, has_read_output, &mut rendered);
    let mut notes: Notes = call.notes();
    let of_run = report.notes.clone();
    let config = call.services.sessions.config();
    let ecosystems = packages(&call.services.sessions, call.toolsets);
    notes.extend(of_run.where_packages_are(ecosystems, &config.packages));
    notes.add_to(&mut rendered);
    fit(&mut rendered, &texts, Room::new(config, budget::MESSAGE));
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
        assert_eq!(state(&progress, begun), "starting the sandbox");
        (progress.started, progress.loading) = (true, true);
        sleep(Duration::from_secs(4)).await;
        assert_eq!(state(&progress, begun), "loading the interpreter");
        progress.language = Some(Language::JavaScript.runtime());
        assert_eq!(state(&progress, begun), "loading JavaScript");
        (progress.loading, progress.since) = (false, Some(Instant::now()));
        sleep(Duration::from_secs(1)).await;
        assert_eq!(state(&progress, begun), "running for 1 s");
    }

    #[test]
    fn each_line_is_told_once_and_each_state_of_a_bar() {
        let (mut told, mut progress) = (Told::default(), Progress::default());
        assert_eq!(told.news(&progress), None);
        progress.lines.push("step 1");
        progress.lines.push("step 2");
        "50%|# |".clone_into(&mut progress.bar);
        assert_eq!(told.news(&progress).as_deref(), Some("step 1\nstep 2"));
        assert_eq!(told.news(&progress).as_deref(), Some("50%|# |"));
        assert_eq!(told.news(&progress), None);
        progress.bar.clear();
        assert_eq!(told.news(&progress), None);
        progress.lines.push("step 3");
        assert_eq!(told.news(&progress).as_deref(), Some("step 3"));
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
