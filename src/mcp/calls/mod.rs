//! One tool call, from its arguments to its result.
//!
//! - [`upload`]: files in, by content, by address or, over stdio, from the host.
//! - [`run`]: programs, with what is heard of them meanwhile and the pictures that they make.
//! - [`files`]: what there is, and what is in it.
//! - [`output`]: what did not fit into a run's result.

mod files;
mod output;
mod run;
mod upload;

use hyper::http::request::Parts;
use rmcp::{
    RoleServer,
    model::{CallToolRequestParams, CallToolResponse, CallToolResult, InputResponses, JsonObject},
    service::RequestContext,
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    Server,
    http::RequestMemory,
    long_text::{CutOut, LongText},
    message::PLACEHOLDER,
    stdio,
};
use crate::{
    addresses::{Addresses, Incarnation},
    error::{Error, Result},
    session::SessionId,
    trace::TraceParent,
};

/// What one call has to do with.
pub(super) struct Call {
    /// With the sessions as the caller sees them.
    pub(super) server: Server,
    pub(super) context: RequestContext<RoleServer>,
    /// What the client was asked for when the call was made before.
    pub(super) answers: Option<InputResponses>,
}

/// Carries a call out, logs it and renders what came of it.
pub(super) async fn call(call: Call, request: CallToolRequestParams) -> CallToolResponse {
    let started = Instant::now();
    let mut log = Log::default();
    let tool = &*request.name;
    let arguments = call.restored(tool, request.arguments.unwrap_or_default());
    if tool != "upload_file" {
        call.release_message().await;
    }
    let result = match arguments {
        Ok(arguments) => carry_out(&call, tool, Value::Object(arguments), &mut log).await,
        Err(error) => Err(error),
    };
    call.release_message().await;
    let code = result.as_ref().map_or_else(Error::code, |_| "ok");
    let outcome = log.outcome.filter(|_| result.is_ok()).unwrap_or(code);
    let elapsed = started.elapsed();
    call.server.sessions.figures().tool_called(tool, code, elapsed);
    let trace = call.trace();
    let trace = trace.as_ref();
    tracing::info!(
        tool,
        client = call.server.sessions.caller().name(),
        session_id = log.session.as_ref().map(SessionId::as_str),
        run_id = log.run,
        outcome,
        exit_code = log.exit_code,
        // As u64, which is a number in JSON; wider ones are texts.
        duration_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX),
        call_us = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX),
        agent_us = log.agent_us,
        start = log.start,
        bytes = log.bytes,
        trace_id = trace.map(|trace| &*trace.trace_id),
        span_id = trace.map(|trace| &*trace.span_id),
        trace_flags = trace.map(|trace| &*trace.flags),
        "tool call"
    );
    result.unwrap_or_else(|error| super::error(&error).into())
}

async fn carry_out(
    call: &Call,
    tool: &str,
    arguments: Value,
    log: &mut Log,
) -> Result<CallToolResponse> {
    match tool {
        "upload_file" => upload::upload_file(call, arguments, log).await,
        "run_python" => run::run_python(call, arguments, log).await.map(Into::into),
        "list_artifacts" => files::list_artifacts(call, arguments, log).await.map(Into::into),
        "read_artifact" => files::read_artifact(call, arguments, log).await.map(Into::into),
        "read_output" => output::read_output(call, arguments, log).await.map(Into::into),
        "close_session" => close_session(call, arguments, log).await.map(Into::into),
        stdio::OVERSIZED => {
            Err(Error::MessageTooLarge { limit: call.server.sessions.config().max_upload })
        }
        other => Err(Error::InvalidArgument(format!("There is no tool {other}."))),
    }
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

impl Call {
    /// The caller's span. The message's own word on it comes first: one request over HTTP may be that
    /// of a proxy, or carry several calls.
    fn trace(&self) -> Option<TraceParent> {
        let of_message = self.context.meta.get_traceparent().and_then(TraceParent::parse);
        of_message.or_else(|| TraceParent::of(&self.context.extensions.get::<Parts>()?.headers))
    }

    /// The long string of the message, if `text` stands for it. It is given once: a caller could have
    /// written the placeholder itself, as often as it likes.
    fn long_text(&self, text: &str) -> Option<LongText> {
        if text == PLACEHOLDER { self.cut_out()?.take() } else { None }
    }

    fn cut_out(&self) -> Option<&CutOut> {
        let extensions = &self.context.extensions;
        let of_request = extensions.get::<Parts>().map(|head| &head.extensions);
        of_request.and_then(|own| own.get()).or_else(|| extensions.get())
    }

    /// Lets go of the message, which its call does not need any more.
    async fn release_message(&self) {
        drop(self.cut_out().and_then(CutOut::take));
        let head = self.context.extensions.get::<Parts>();
        if let Some(memory) = head.and_then(|head| head.extensions.get::<RequestMemory>()) {
            memory.release_message().await;
        }
    }

    /// The arguments with the code where it was cut out for its length. Nothing else that is so long can be
    /// valid: it stays cut out, and so is no name of anything. A file is read from it in pieces instead.
    fn restored(&self, tool: &str, mut arguments: JsonObject) -> Result<JsonObject> {
        let code = arguments.get_mut("code").filter(|_| tool == "run_python");
        let Some((code, long)) = code.and_then(|code| {
            let long = self.long_text(code.as_str()?)?;
            Some((code, long))
        }) else {
            return Ok(arguments);
        };
        let limit = self.server.sessions.config().max_code;
        let size_bytes = long.len() as u64;
        // Each byte may be escaped, as six.
        *code = match long.into_string(6 * limit) {
            Some(text) => text.into(),
            None if size_bytes > 6 * limit as u64 => {
                return Err(Error::CodeTooLarge { size_bytes, limit: limit as u64 });
            }
            None => {
                let why = "code holds an escape that stands for no character, or is not UTF-8.";
                return Err(Error::InvalidArgument(why.into()));
            }
        };
        Ok(arguments)
    }

    /// The addresses of a session's files, if files are served and it is still there.
    fn links<'a>(&'a self, id: &'a SessionId) -> Option<(&'a Addresses, Incarnation<'a>)> {
        let number = self.server.sessions.number(id)?;
        Some((self.server.addresses.as_ref()?, Incarnation { id, number }))
    }

    /// Passes a result on. A session that was started for a call that failed is of no use to
    /// anybody: the error does not name it.
    async fn or_close<T>(
        &self,
        started_here: bool,
        id: &SessionId,
        result: Result<T>,
    ) -> Result<T> {
        // Nobody hears of a call that was cancelled, so nobody would know the session's name.
        if started_here && (result.is_err() || self.context.ct.is_cancelled()) {
            let _ = self.server.sessions.close(id).await;
        }
        result
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OfSession {
    session_id: String,
}

async fn close_session(call: &Call, arguments: Value, log: &mut Log) -> Result<CallToolResult> {
    let id = existing(&parse::<OfSession>(arguments)?.session_id, log)?;
    call.server.sessions.close(&id).await?;
    Ok(success(json!({ "session_id": id.as_str(), "status": "closed" })))
}

/// A result, once as structured content and once as the same JSON in text.
fn success(value: Value) -> CallToolResult {
    CallToolResult::structured(value)
}

/// Says that a session of that name had to be started: whoever named it may think that files are there.
fn say_if_new(is_new: bool, result: &mut Value) {
    if is_new {
        result["new_session"] = true.into();
    }
}

/// A whole number within bounds. Clients without integers write 30 as 30.0.
fn whole(
    name: &str,
    value: Option<f64>,
    bounds: std::ops::RangeInclusive<u64>,
) -> Result<Option<u64>> {
    let Some(value) = value else { return Ok(None) };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "within the bounds, which are small enough to be exact"
    )]
    if value.fract() == 0.0 && value >= *bounds.start() as f64 && value <= *bounds.end() as f64 {
        return Ok(Some(value as u64));
    }
    let (least, most) = bounds.into_inner();
    Err(Error::InvalidArgument(format!("{name} must be a whole number from {least} to {most}.")))
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
    fn a_bad_argument_is_named() {
        let message = |arguments| match parse::<files::ReadArtifact>(arguments).map(drop) {
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
        assert!(
            message(format)
                .contains("unknown variant `hex`, expected one of `auto`, `text`, `base64`")
        );
    }
}
