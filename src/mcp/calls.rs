//! One tool call, from its arguments to its result.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use rmcp::model::{CallToolResult, ContentBlock};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Server, stdio};
use crate::{
    artifact::{self, DataPath, is_picture},
    error::{Error, Result},
    session::{Artifact, FileReader, RunReport, SessionId},
    sessions::Program,
};

/// Largest picture and largest other file that fit into a message that every client takes:
/// TypeScript ones drop a stdio connection at 10 MiB. Base64 adds a third, and what is not a
/// picture is sent twice, as text and as structured content.
const MAX_PICTURE: u64 = 7_800_000;
const MAX_BASE64: u64 = 3_900_000;

/// Most bytes of listed files in a message, where they stand twice: as they are, and as a text in
/// which quotes and backslashes are escaped once more.
const MAX_LISTING: usize = 8 << 20;

/// Carries a call out, logs it and renders what came of it.
pub(super) async fn call(
    server: &Server,
    tool: &str,
    arguments: Value,
    cancel: CancellationToken,
) -> CallToolResult {
    let started = Instant::now();
    let mut log = Log::default();
    let result = match tool {
        "upload_file" => upload_file(server, arguments, cancel, &mut log).await,
        "run_python" => run_python(server, arguments, cancel, &mut log).await,
        "list_artifacts" => list_artifacts(server, arguments, &mut log).await,
        "read_artifact" => read_artifact(server, arguments, &mut log).await,
        "close_session" => close_session(server, arguments, &mut log).await,
        stdio::OVERSIZED => {
            Err(Error::MessageTooLarge { limit: server.sessions.config().max_upload })
        }
        other => Err(Error::InvalidArgument(format!("There is no tool {other}."))),
    };
    let outcome = match &result {
        Ok(_) => log.outcome.unwrap_or("ok"),
        Err(error) => error.code(),
    };
    tracing::info!(
        tool,
        session_id = log.session.as_ref().map(SessionId::as_str),
        run_id = log.run,
        outcome,
        exit_code = log.exit_code,
        // As u64, which is a number in JSON; wider ones are texts.
        duration_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
        call_us = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX),
        agent_us = log.agent_us,
        start = log.start,
        bytes = log.bytes,
        "tool call"
    );
    result.unwrap_or_else(|error| super::error(&error))
}

/// What the log line of a call says besides its tool and time: never code, data or output.
#[derive(Default)]
struct Log {
    session: Option<SessionId>,
    run: Option<String>,
    outcome: Option<&'static str>,
    exit_code: Option<i32>,
    /// How a run came to its interpreter.
    start: Option<&'static str>,
    /// The agent's part of the time.
    agent_us: Option<u64>,
    bytes: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UploadFile {
    session_id: Option<String>,
    filename: String,
    content_base64: String,
    overwrite: Option<bool>,
}

async fn upload_file(
    server: &Server,
    arguments: Value,
    cancel: CancellationToken,
    log: &mut Log,
) -> Result<CallToolResult> {
    let UploadFile { session_id, filename, mut content_base64, overwrite } = parse(arguments)?;
    let given = session(session_id.as_deref(), log)?;
    let path = DataPath::relative(&filename)
        .map_err(|why| Error::InvalidFilename(format!("The filename {why}.")))?;
    // As command-line tools wrap it.
    if content_base64.contains(['\n', '\r']) {
        content_base64.retain(|c| !matches!(c, '\n' | '\r'));
    }
    let limit = server.sessions.config().max_upload;
    let size_bytes = decoded_len(&content_base64);
    if size_bytes > limit {
        return Err(Error::UploadTooLarge { size_bytes, limit });
    }
    let bytes = STANDARD.decode(&content_base64).map_err(|error| {
        Error::InvalidBase64(format!(
            "content_base64 is not standard base64 with padding ({error})."
        ))
    })?;
    drop(content_base64);
    log.bytes = Some(bytes.len() as u64);

    let sessions = &server.sessions;
    let overwrite = overwrite.unwrap_or(false);
    let (id, done) = sessions.upload(given.clone(), path.clone(), bytes.into(), overwrite).await;
    log.session = Some(id.clone());
    or_close(server, given.is_none(), &id, &cancel, done).await?;
    Ok(success(json!({
        "session_id": id.as_str(),
        "path": path.absolute(),
        "size_bytes": size_bytes,
    })))
}

/// Bytes that well-formed base64 stands for.
fn decoded_len(base64: &str) -> u64 {
    let padding = base64.bytes().rev().take(2).filter(|byte| *byte == b'=').count();
    (base64.len() as u64 / 4 * 3).saturating_sub(padding as u64)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RunPython {
    session_id: Option<String>,
    code: String,
    timeout_s: Option<f64>,
}

async fn run_python(
    server: &Server,
    arguments: Value,
    cancel: CancellationToken,
    log: &mut Log,
) -> Result<CallToolResult> {
    let RunPython { session_id, code, timeout_s } = parse(arguments)?;
    let given = session(session_id.as_deref(), log)?;
    let config = server.sessions.config();
    if code.len() > config.max_code {
        return Err(Error::CodeTooLarge {
            size_bytes: code.len() as u64,
            limit: config.max_code as u64,
        });
    }
    let timeout = match timeout_s {
        None => config.exec_timeout,
        // Clients without integers write 30 as 30.0.
        Some(s) if s.fract() == 0.0 && s >= 1.0 && s <= config.exec_timeout.as_secs_f64() => {
            std::time::Duration::from_secs_f64(s)
        }
        Some(_) => {
            return Err(Error::InvalidArgument(format!(
                "timeout_s must be a whole number from 1 to {}.",
                config.exec_timeout.as_secs()
            )));
        }
    };
    log.bytes = Some(code.len() as u64);
    let program =
        Program { code: code.into(), stdin: None, timeout, cancel: cancel.clone(), progress: None };
    let (id, report) = server.sessions.run(given.clone(), program).await;
    log.session = Some(id.clone());
    let report = or_close(server, given.is_none(), &id, &cancel, report).await?;
    log.run = Some(report.run_id.to_string());
    log.outcome = Some(report.outcome.as_str());
    log.exit_code = Some(report.exit_code);
    log.start = Some(report.start.as_str());
    log.agent_us = Some(report.agent_us);
    Ok(success(render_run(server, &id, &report)))
}

fn render_run(server: &Server, id: &SessionId, report: &RunReport) -> Value {
    let artifacts: Vec<_> =
        report.artifacts.iter().map(|artifact| render_artifact(server, id, artifact)).collect();
    let mut result = json!({
        "session_id": id.as_str(),
        "run_id": report.run_id.to_string(),
        "exit_code": report.exit_code,
        "outcome": report.outcome.as_str(),
        "stdout": report.stdout.text,
        "stderr": report.stderr.text,
        "stdout_truncated": report.stdout.truncated,
        "stderr_truncated": report.stderr.truncated,
        "artifacts": artifacts,
        "duration_ms": report.duration_ms,
    });
    if report.artifacts_omitted > 0 {
        result["artifacts_omitted"] = report.artifacts_omitted.into();
    }
    result
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OfSession {
    session_id: String,
}

async fn list_artifacts(
    server: &Server,
    arguments: Value,
    log: &mut Log,
) -> Result<CallToolResult> {
    let id = existing(&parse::<OfSession>(arguments)?.session_id, log)?;
    let listing = server.sessions.list(&id).await?;
    let mut artifacts = vec![];
    let mut size = 0;
    for artifact in &listing.artifacts {
        let mut rendered = render_artifact(server, &id, artifact);
        rendered["modified_at"] = rfc3339(artifact.modified_ns).into();
        let text = rendered.to_string();
        size += text.len() + Value::from(&*text).to_string().len();
        if size > MAX_LISTING {
            break;
        }
        artifacts.push(rendered);
    }
    log.bytes = Some(size as u64);
    let omitted = listing.artifacts.len() - artifacts.len() + usize::from(listing.more);
    let mut result = json!({ "session_id": id.as_str(), "artifacts": artifacts });
    if omitted > 0 {
        result["artifacts_omitted"] = omitted.into();
    }
    Ok(success(result))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReadArtifact {
    session_id: String,
    path: String,
    format: Option<Format>,
}

#[derive(Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Format {
    Auto,
    Base64,
}

async fn read_artifact(server: &Server, arguments: Value, log: &mut Log) -> Result<CallToolResult> {
    let ReadArtifact { session_id, path, format } = parse(arguments)?;
    let id = existing(&session_id, log)?;
    let path =
        DataPath::anywhere(&path).map_err(|why| Error::InvalidPath(format!("The path {why}.")))?;
    let reader = server.sessions.open(&id, path.clone()).await?;
    let size_bytes = reader.stamp().size;
    let mime = path.mime();
    let as_picture = is_picture(mime) && format != Some(Format::Base64);

    let fits = if as_picture { MAX_PICTURE } else { MAX_BASE64 };
    let limit = server.sessions.config().max_artifact_read.min(fits);
    if size_bytes > limit {
        let download_url = url(server, &id, &path);
        let path = path.as_str().to_owned();
        return Err(Error::ArtifactTooLarge { path, size_bytes, limit, download_url });
    }
    let content = STANDARD.encode(read(&reader, &id).await?);
    log.bytes = Some(size_bytes);
    let mut result = json!({
        "session_id": id.as_str(),
        "path": path.absolute(),
        "filename": path.as_str(),
        "mime_type": mime,
        "size_bytes": size_bytes,
    });
    if as_picture {
        let mut picture = success(result);
        picture.content.insert(0, ContentBlock::image(content, mime));
        return Ok(picture);
    }
    result["content_base64"] = content.into();
    Ok(success(result))
}

async fn read(reader: &FileReader, id: &SessionId) -> Result<Vec<u8>> {
    use crate::{link::LinkError, session::ReadError};
    reader.read().await.map_err(|error| match error {
        ReadError::Changed => Error::InvalidArgument(format!(
            "{} was changed while it was read. Try again when the run that writes it has ended.",
            reader.path()
        )),
        ReadError::Link(LinkError::Refused(_)) => Error::NotFound(reader.path().as_str().into()),
        ReadError::Link(_) => Error::SandboxDied(id.clone()),
    })
}

async fn close_session(server: &Server, arguments: Value, log: &mut Log) -> Result<CallToolResult> {
    let id = existing(&parse::<OfSession>(arguments)?.session_id, log)?;
    server.sessions.close(&id).await?;
    Ok(success(json!({ "session_id": id.as_str(), "status": "closed" })))
}

/// A result, once as structured content and once as the same JSON in text.
fn success(value: Value) -> CallToolResult {
    CallToolResult::structured(value)
}

/// Passes a result on. A session that was started for a call that failed is of no use to anybody:
/// the error does not name it.
async fn or_close<T>(
    server: &Server,
    started_here: bool,
    id: &SessionId,
    cancel: &CancellationToken,
    result: Result<T>,
) -> Result<T> {
    // Nobody hears of a call that was cancelled, so nobody would know the session's name.
    if started_here && (result.is_err() || cancel.is_cancelled()) {
        let _ = server.sessions.close(id).await;
    }
    result
}

fn render_artifact(server: &Server, id: &SessionId, artifact: &Artifact) -> Value {
    let mut rendered = json!({
        "path": artifact.path.absolute(),
        "filename": artifact.path.as_str(),
        "size_bytes": artifact.size_bytes,
        "mime_type": artifact.path.mime(),
    });
    if let Some(url) = url(server, id, &artifact.path) {
        rendered["download_url"] = url.into();
    }
    rendered
}

fn url(server: &Server, id: &SessionId, path: &DataPath) -> Option<String> {
    let base = server.files.as_deref()?;
    Some(artifact::download_url(base, id.as_str(), path.as_str()))
}

fn rfc3339(ns: i64) -> String {
    jiff::Timestamp::from_nanosecond(ns.into()).map_or_else(
        // Beyond the year 9999: a program may set any time it likes.
        |_| "9999-12-31T23:59:59Z".into(),
        |time| time.strftime("%Y-%m-%dT%H:%M:%S.%3fZ").to_string(),
    )
}

fn parse<T: DeserializeOwned>(arguments: Value) -> Result<T> {
    serde_path_to_error::deserialize(arguments).map_err(|error| {
        let path = error.path().to_string();
        let at = if path == "." { String::new() } else { format!("{}: ", shown(&path, 100)) };
        let mut why = shown(&error.inner().to_string(), 300);
        if why == "missing field `session_id`" {
            why.push_str(", as returned by upload_file or run_python");
        }
        Error::InvalidArgument(format!("{at}{why}."))
    })
}

/// Names and values of a caller, for a message: they may be of any length and hold anything.
fn shown(text: &str, most: usize) -> String {
    let printable = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
    text.chars().take(most).map(printable).collect()
}

fn session(id: Option<&str>, log: &mut Log) -> Result<Option<SessionId>> {
    id.map(|id| existing(id, log)).transpose()
}

fn existing(id: &str, log: &mut Log) -> Result<SessionId> {
    let id: SessionId = id.parse()?;
    log.session = Some(id.clone());
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_decoded_length_is_known_before_decoding() {
        for len in 0..20 {
            let encoded = STANDARD.encode(vec![7; len]);
            assert_eq!(decoded_len(&encoded), len as u64);
        }
    }

    #[test]
    fn a_bad_argument_is_named() {
        let message = |arguments| match parse::<ReadArtifact>(arguments).map(drop) {
            Err(error) => error.to_string(),
            Ok(()) => "accepted".into(),
        };
        let path = |path| json!({ "session_id": "s", "path": path });
        assert_eq!(message(path(json!("a"))), "accepted");
        assert!(message(path(json!(7))).starts_with("path: invalid type: integer `7`"));
        assert_eq!(message(json!({ "session_id": "s" })), "missing field `path`.");
        let unknown = json!({ "session_id": "s", "path": "a", "colour": 1 });
        assert!(message(unknown).contains("unknown field `colour`"));
        let unknown = json!({ "session_id": "s", "path": "a", "x\u{1b}".repeat(9999): 1 });
        let message_of_long = message(unknown);
        assert!(message_of_long.len() < 1500 && !message_of_long.contains(char::is_control));
        let format = json!({ "session_id": "s", "path": "a", "format": "hex" });
        assert!(message(format).contains("unknown variant `hex`, expected `auto` or `base64`"));
    }

    #[test]
    fn any_time_that_a_program_can_set_is_rendered() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(rfc3339(1_500_000_000), "1970-01-01T00:00:01.500Z");
        for ns in [i64::MIN, -1, i64::MAX] {
            assert!(rfc3339(ns).ends_with('Z'));
        }
    }
}
