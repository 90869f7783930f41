//! `run_python`.

use std::{collections::HashMap, convert::Infallible, time::Duration};

use rmcp::model::{
    CallToolResult, ContentBlock, ProgressNotificationParam, ProgressToken, Resource,
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    time::{Instant, interval_at},
};

use super::{Call, Log, parse, say_if_new, session, success, whole};
use crate::{
    artifact::is_picture,
    error::{Error, Result},
    listing,
    mcp::{
        pictures::{self, Inline},
        resources, room, text,
    },
    session::{Artifact, RunReport, SessionId},
    sessions::{Opened, Program, Progress},
};

/// When a caller who asked for it first hears of a run: soon enough not to wonder, late enough that
/// most runs have ended.
const FIRST_NEWS: Duration = Duration::from_millis(500);

/// Time between news.
const NEWS: Duration = Duration::from_secs(2);

/// Links to pictures in a result. All files are named in its JSON.
const MAX_LINKS: usize = 10;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RunPython {
    session_id: Option<String>,
    code: String,
    timeout_s: Option<f64>,
    inline_images: Option<f64>,
}

pub(super) async fn run_python(
    call: &Call,
    arguments: Value,
    log: &mut Log,
) -> Result<CallToolResult> {
    let RunPython { session_id, code, timeout_s, inline_images } = parse(arguments)?;
    let given = session(session_id.as_deref(), log)?;
    let sessions = &call.server.sessions;
    let config = sessions.config();
    if code.len() > config.max_code {
        return Err(Error::CodeTooLarge {
            size_bytes: code.len() as u64,
            limit: config.max_code as u64,
        });
    }
    let longest = config.exec_timeout.as_secs();
    let timeout = whole("timeout_s", timeout_s, 1..=longest)?.unwrap_or(longest);
    let images = whole("inline_images", inline_images, 0..=u64::from(u32::MAX))?;
    log.bytes = Some(code.len() as u64);

    let token = call.context.meta.get_progress_token();
    let (progress, news) = token.as_ref().map(|_| watch::channel(Progress::default())).unzip();
    let program = Program {
        code: code.into(),
        stdin: None,
        timeout: Duration::from_secs(timeout),
        cancel: call.context.ct.clone(),
        progress,
    };
    let running = sessions.run(given.clone(), program);
    let (Opened { id, is_new }, report) = match token.zip(news) {
        None => running.await,
        Some((token, news)) => tokio::select! {
            biased;
            done = running => done,
            never = tell(call, token, news, timeout) => match never {},
        },
    };
    log.session = Some(id.clone());
    let report = call.or_close(given.is_none(), &id, report).await?;
    log.run = Some(report.run_id.to_string());
    log.outcome = Some(report.outcome.as_str());
    log.exit_code = Some(report.exit_code);
    log.start = Some(report.start.as_str());
    log.agent_us = Some(report.agent_us);

    let mut rendered = render(call, &id, &report).await;
    say_if_new(is_new && given.is_some(), &mut rendered);
    fit(&mut rendered, call.server.room().message - pictures::ENVELOPE);
    let mut result = success(rendered);
    add_pictures(call, &id, &report.artifacts, images, &mut result).await;
    Ok(result)
}

/// Tells the caller how the run goes, for as long as it does.
async fn tell(
    call: &Call,
    token: ProgressToken,
    news: watch::Receiver<Progress>,
    timeout: u64,
) -> Infallible {
    let begun = Instant::now();
    let mut tick = interval_at(begun + FIRST_NEWS, NEWS);
    loop {
        tick.tick().await;
        let elapsed = begun.elapsed();
        let message = match &*news.borrow() {
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
        // Who does not listen still gets the result.
        let _ = call.context.peer.notify_progress(progress).await;
    }
}

async fn render(call: &Call, id: &SessionId, report: &RunReport) -> Value {
    let links = call.links(id);
    let exported = match &call.server.export {
        Some(export) => export.all(&call.server.sessions, id, &report.artifacts).await,
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
        "stdout_truncated": report.stdout.truncated,
        "stderr_truncated": report.stderr.truncated,
        "artifacts": artifacts.collect::<Vec<_>>(),
        "duration_ms": report.duration_ms,
    });
    if report.artifacts_omitted > 0 {
        result["artifacts_omitted"] = report.artifacts_omitted.into();
    }
    result
}

/// Shortens a result until it fits into a message. Only what is hardly text needs that, as control
/// characters take up to thirteen bytes each, and very many very long names.
fn fit(result: &mut Value, room: usize) {
    while room::twice(result) > room {
        let sizes =
            ["stdout", "stderr", "artifacts"].map(|name| (room::twice(&result[name]), name));
        let name = sizes.into_iter().max().map_or("artifacts", |(_, name)| name);
        if let Some(artifacts) = result[name].as_array_mut() {
            let omitted = artifacts.split_off(artifacts.len() / 2).len();
            let before = result["artifacts_omitted"].as_u64().unwrap_or(0);
            result["artifacts_omitted"] = (before + omitted as u64).into();
        } else {
            let Some(shorter) = result[name].as_str().and_then(text::without_middle) else {
                return;
            };
            result[name] = shorter.into();
            result[format!("{name}_truncated")] = true.into();
        }
    }
}

/// Adds the charts that the run made: the first of them to look at, and links to the whole files.
async fn add_pictures(
    call: &Call,
    id: &SessionId,
    artifacts: &[Artifact],
    asked: Option<u64>,
    result: &mut CallToolResult,
) {
    let most = call.server.inline_images(&call.context, asked);
    let pictures = artifacts.iter().filter(|artifact| is_picture(artifact.path.mime()));
    let pictures: Vec<_> = pictures.take(MAX_LINKS).collect();
    if most == 0 || pictures.is_empty() {
        return;
    }
    let used = result.structured_content.as_ref().map_or(0, room::twice);
    let mut inline = Inline::new(&call.server, used, most);
    for picture in &pictures {
        if let Some(block) = inline.next(&call.server, id, picture).await {
            result.content.push(block);
        }
    }
    // As in the artifacts: signed a second later a URL is another.
    let urls: HashMap<String, String> = result
        .structured_content
        .iter()
        .flat_map(|shown| shown["artifacts"].as_array().into_iter().flatten())
        .filter_map(|shown| Some((shown["filename"].as_str()?, shown["download_url"].as_str()?)))
        .map(|(name, url)| (name.to_owned(), url.to_owned()))
        .collect();
    let mut left = pictures::LINKS;
    for picture in pictures {
        let mut link = Resource::new(resources::uri(id, &picture.path), picture.path.as_str())
            .with_mime_type(picture.path.mime())
            .with_size(picture.size_bytes);
        if let Some(url) = urls.get(picture.path.as_str()) {
            link = link.with_description(format!("In full size: {url}"));
        }
        let size =
            link.uri.len() + link.name.len() + link.description.as_ref().map_or(0, String::len);
        let Some(rest) = left.checked_sub(size) else { return };
        left = rest;
        result.content.push(ContentBlock::resource_link(link));
    }
}
