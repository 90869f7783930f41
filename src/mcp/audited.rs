//! The lines of a call in the log and, if there is one, in the audit file.

use std::time::Duration;

use config::Engine;
use model::SessionId;
use rmcp::model::{CallToolResponse, CallToolResult, ContentBlock, JsonObject, ResourceContents};
use serde::{Serialize, Serializer};
use serde_json::Value;

use super::{
    call::{Call, failure},
    message::PLACEHOLDER,
    services::Services,
};
use crate::{
    audit::{ArtifactList, CannotWrite, Digest, Entry, Limits, Record},
    error::{Error, Result},
    session::RunReport,
    sessions::{Program, RuntimeName},
    trace,
};

/// The code of a call that was carried out.
pub(super) const OK: &str = "ok";

/// The fields of a call's log line besides its tool and time, and its line in the audit file: never code, data or
/// output.
#[derive(Default)]
pub(super) struct Log {
    /// The line in the audit file, if there is one.
    pub(super) audit: Option<Entry>,
    pub(super) session: Option<SessionId>,
    pub(super) run: Option<String>,
    pub(super) language: Option<RuntimeName>,
    pub(super) outcome: Option<&'static str>,
    pub(super) exit_code: Option<i32>,
    /// How a run got its interpreter.
    pub(super) start: Option<&'static str>,
    pub(super) ran: Option<Ran>,
    pub(super) bytes: Option<u64>,
}

/// Figures of a run.
pub(super) struct Ran {
    /// The agent's part of the time.
    agent: Duration,
    /// Wall time of the code.
    elapsed: Duration,
    cpu: Duration,
    /// Instructions, if the engine counts them.
    fuel: Option<u64>,
    /// Memory of a cell's interpreter after it, in bytes.
    memory: Option<u64>,
    /// Bytes of output in the result.
    output: u64,
}

impl Log {
    /// Notes the end of a run.
    pub(super) fn ran(&mut self, report: &RunReport) {
        let cell = report.cell.as_ref();
        self.outcome = Some(cell.map_or(report.outcome.as_str(), |cell| cell.status.as_str()));
        self.exit_code = Some(report.exit_code);
        self.ran = Some(Ran {
            agent: report.agent_elapsed,
            elapsed: report.elapsed,
            cpu: report.cpu,
            fuel: report.fuel,
            memory: cell.and_then(|cell| cell.memory_bytes),
            output: report.output_bytes(),
        });
    }

    /// Writes the line. `code` is `ok`, or the code of the error in the answer.
    pub(super) fn write(mut self, call: &Call, tool: &str, code: &str, elapsed: Duration) {
        let outcome = match self.outcome {
            Some(outcome) if code == OK => outcome,
            // The client does not receive the answer of a cancelled call, whatever it is.
            _ if code != OK && call.is_cancelled() => "cancelled",
            _ => code,
        };
        if let Some(entry) = self.completed() {
            entry.end(outcome);
        }
        let (session, language) = (self.session.as_ref(), self.language.as_ref());
        trace::note([
            ("llm_sandbox.outcome", Some(outcome.to_owned().into())),
            ("llm_sandbox.session_id", session.map(|id| id.to_string().into())),
            ("llm_sandbox.run_id", self.run.clone().map(Into::into)),
            ("llm_sandbox.language", language.map(|it| it.as_str().to_owned().into())),
        ]);
        let (ran, ids) = (self.ran.as_ref(), trace::ids());
        let ids = ids.as_ref();
        // As u64, which is a number in JSON; wider types become texts.
        let millis = |it: Duration| u64::try_from(it.as_millis()).unwrap_or(u64::MAX);
        let micros = |it: Duration| u64::try_from(it.as_micros()).unwrap_or(u64::MAX);
        tracing::info!(
            tool,
            client = call.services.sessions.caller().name(),
            session_id = session.map(SessionId::as_str),
            run_id = self.run.as_deref(),
            language = language.map(RuntimeName::as_str),
            outcome,
            exit_code = self.exit_code,
            duration_ms = millis(elapsed),
            execution_ms = ran.map(|ran| millis(ran.elapsed)),
            cpu_ms = ran.map(|ran| millis(ran.cpu)),
            fuel = ran.and_then(|ran| ran.fuel),
            call_us = micros(elapsed),
            agent_us = ran.map(|ran| micros(ran.agent)),
            start = self.start,
            memory_bytes = ran.and_then(|ran| ran.memory),
            output_bytes = ran.map(|ran| ran.output),
            bytes = self.bytes,
            trace_id = ids.map(|ids| &*ids.trace_id),
            span_id = ids.map(|ids| &*ids.span_id),
            trace_flags = ids.map(|ids| &*ids.flags),
            "tool call"
        );
    }

    /// Adds facts to the line in the audit file. Without an audit file, `note` is not called and computes nothing.
    pub(super) fn audit(&mut self, note: impl FnOnce(&mut Record)) {
        if let Some(entry) = &mut self.audit {
            note(&mut entry.record);
        }
    }

    /// The line in the audit file, with the fields that both lines have.
    fn completed(&mut self) -> Option<Entry> {
        let mut entry = self.audit.take()?;
        let record = &mut entry.record;
        record.session_id = self.session.as_ref().map(ToString::to_string);
        record.run_id.clone_from(&self.run);
        record.exit_code = self.exit_code;
        Some(entry)
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        // If a call was dropped or has panicked, dropping its entry writes its line.
        drop(self.completed());
    }
}

/// Longest text, in bytes, that is hashed as an argument. A longer text is code, standard input or a file, of which the
/// line has a digest of its own: hashing it twice would be most of what a line costs.
const MAX_TEXT: usize = 16 << 10;

/// A tool's arguments with [`PLACEHOLDER`] for each long text, whether it was cut out of the message or not.
pub(super) struct WithoutLongTexts<'a>(pub(super) &'a JsonObject);

impl Serialize for WithoutLongTexts<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| match value {
            Value::String(text) if text.len() > MAX_TEXT => (name, Hashed::Text(PLACEHOLDER)),
            value => (name, Hashed::Value(value)),
        }))
    }
}

#[derive(Serialize)]
#[serde(untagged)]
enum Hashed<'a> {
    Text(&'static str),
    Value(&'a Value),
}

/// Begins the line of a call that is about to be made; `None` without an audit file.
///
/// # Errors
/// If the audit file cannot be written: the call is then not made.
pub(super) fn begin(
    services: &Services,
    tool: &str,
    arguments: &impl Serialize,
) -> Result<Option<Entry>> {
    let sessions = &services.sessions;
    let Some(audit) = sessions.host().audit() else { return Ok(None) };
    let begun = Entry::begin(audit, sessions.caller(), tool);
    let mut entry = begun.map_err(|CannotWrite| {
        sessions.host().metrics().audit_refused();
        Error::audit_unavailable()
    })?;
    entry.record.inputs.arguments = Some(Digest::of_json(arguments));
    Ok(Some(entry))
}

/// Adds the result of a call, while its session still exists.
pub(super) fn complete(call: &Call, log: &mut Log, result: &Result<CallToolResponse>) {
    let Some(entry) = &mut log.audit else { return };
    let record = &mut entry.record;
    if let Some(live) = log.session.as_ref().and_then(|id| call.services.sessions.get(id)) {
        record.image = live.image().as_deref().map(str::to_owned);
        let timeout_s = record.limits.and_then(|limits| limits.timeout_s);
        let engine = call.services.sessions.config().engine;
        record.limits = Some(of_session(&live.limits(), engine, timeout_s));
    }
    let failed;
    let response = match result {
        Ok(CallToolResponse::Complete(response)) => response,
        // A request for the client's input is not the answer.
        Ok(_) => return,
        Err(error) => {
            failed = failure(error);
            &failed
        }
    };
    answered(record, response);
}

/// Adds a result as its client gets it.
pub(super) fn answered(record: &mut Record, result: &CallToolResult) {
    for block in &result.content {
        match block {
            ContentBlock::Text(text) if record.outputs.answer.is_none() => {
                record.outputs.answer = Some(Digest::of(&text.text));
            }
            ContentBlock::Image(image) => record.outputs.attached.push(Digest::of(&image.data)),
            ContentBlock::Resource(resource) => {
                record.outputs.attached.push(of_resource(&resource.resource));
            }
            _ => {}
        }
    }
}

/// The digest of a resource's content: of its text, or of its base64.
pub(super) fn of_resource(contents: &ResourceContents) -> Digest {
    match contents {
        ResourceContents::TextResourceContents { text, .. } => Digest::of(text),
        ResourceContents::BlobResourceContents { blob, .. } => Digest::of(blob),
        _ => Digest::of(b""),
    }
}

/// Adds a program that is about to be run.
pub(super) fn program(record: &mut Record, program: &Program, memory: u64) {
    record.language = Some(program.language.as_str().to_owned());
    record.code = Some(Digest::of(&program.code));
    record.inputs.stdin = program.stdin.as_ref().map(Digest::of);
    record.limits = Some(limits(memory, program.timeout));
}

/// Limits of which only memory and timeout are known.
pub(super) fn limits(memory: u64, timeout: Duration) -> Limits {
    let timeout_s = Some(timeout.as_secs_f64());
    Limits { memory, cpus: None, pids: None, data: None, timeout_s }
}

/// The limits of a session that apply on this engine.
fn of_session(limits: &backend::Limits, engine: Engine, timeout_s: Option<f64>) -> Limits {
    // A sandbox of the embedded engine is one thread.
    let is_system = engine != Engine::Wasm;
    Limits {
        memory: limits.memory,
        cpus: is_system.then_some(limits.cpus),
        pids: is_system.then_some(limits.pids),
        data: Some(limits.data),
        timeout_s,
    }
}

/// Adds the outputs of a program.
pub(super) fn report(record: &mut Record, report: &RunReport) {
    let outputs = &mut record.outputs;
    outputs.stdout = Some(Digest::of(&report.stdout.text));
    outputs.stderr = Some(Digest::of(&report.stderr.text));
    let result = report.cell.as_ref().and_then(|cell| cell.result.as_ref());
    outputs.result = result.map(|result| Digest::of(&result.text));
    let has_files = !report.artifacts.is_empty();
    outputs.artifacts = has_files.then(|| ArtifactList::of(&report.artifacts));
}

#[cfg(test)]
mod tests {
    use config::Config;
    use model::OwnSettings;

    use super::*;

    #[test]
    fn only_limits_that_apply_on_the_engine_are_in_a_line() {
        let limits = Config::default().limits(&OwnSettings::default());
        let of = |engine| of_session(&limits, engine, None);
        let (docker, wasm) = (of(Engine::Docker), of(Engine::Wasm));
        assert!(docker.cpus.is_some() && docker.pids.is_some());
        assert!(wasm.cpus.is_none() && wasm.pids.is_none());
        assert_eq!((wasm.memory, wasm.data), (limits.memory, Some(limits.data)));
    }
}
