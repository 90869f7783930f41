//! One call of a tool: its services, its arguments and its line in the log.

use std::{ops::RangeInclusive, time::Duration};

use hyper::http::request::Parts;
use model::SessionId;
use parking_lot::Mutex;
use rmcp::{
    RoleServer,
    model::{CallToolResult, ContentBlock, InputResponses},
    service::RequestContext,
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use super::{
    long_text::{CutOut, LongText},
    message::{KEPT_BYTES, PLACEHOLDER},
    services::{Services, by_url, workspace},
};
use crate::{
    audit::{Entry, Record},
    error::{Error, Result},
    notes::{self, Note, Notes, WorkspaceNote},
    request::RequestMemory,
    sessions::{Opened, RuntimeName, Stateless, Which},
    trace::TraceParent,
};

/// One call.
pub(super) struct Call {
    /// The services, as the caller sees them.
    pub(super) services: Services,
    pub(super) context: RequestContext<RoleServer>,
    /// The client's answers, if an earlier attempt of this call asked for something.
    pub(super) answers: Option<InputResponses>,
    /// Notes for the caller, beside the result.
    notes: Mutex<Notes>,
    /// The session that the call means, once its tool has asked.
    which: Mutex<Option<Which>>,
    /// The session of which this call tells its caller that it was restored.
    heard: Mutex<Option<SessionId>>,
}

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
    /// The agent's part of the time.
    pub(super) agent_elapsed: Option<Duration>,
    pub(super) bytes: Option<u64>,
}

impl Log {
    /// Writes the line. `code` is `ok`, or the code of the error in the answer.
    pub(super) fn write(mut self, call: &Call, tool: &str, code: &str, elapsed: Duration) {
        let outcome = match self.outcome {
            Some(outcome) if code == OK => outcome,
            // The client does not receive the answer of a cancelled call, whatever it is.
            _ if code != OK && call.context.ct.is_cancelled() => "cancelled",
            _ => code,
        };
        if let Some(entry) = self.completed() {
            entry.end(outcome);
        }
        let trace = call.trace();
        let trace = trace.as_ref();
        tracing::info!(
            tool,
            client = call.services.sessions.caller().name(),
            session_id = self.session.as_ref().map(SessionId::as_str),
            run_id = self.run.as_deref(),
            language = self.language.as_ref().map(RuntimeName::as_str),
            outcome,
            exit_code = self.exit_code,
            // As u64, which is a number in JSON; wider types become texts.
            duration_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX),
            call_us = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX),
            agent_us =
                self.agent_elapsed.map(|it| u64::try_from(it.as_micros()).unwrap_or(u64::MAX)),
            start = self.start,
            bytes = self.bytes,
            trace_id = trace.map(|trace| &*trace.trace_id),
            span_id = trace.map(|trace| &*trace.span_id),
            trace_flags = trace.map(|trace| &*trace.flags),
            "tool call"
        );
    }

    /// Adds something to the line in the audit file. Without an audit file, `note` is not called and computes nothing.
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

/// The `session_id` of a call whose session ends with it.
pub(super) const STATELESS: &str = "__stateless__";

/// The code of a call that was carried out.
pub(super) const OK: &str = "ok";

impl Call {
    pub(super) fn new(
        services: Services,
        context: RequestContext<RoleServer>,
        answers: Option<InputResponses>,
    ) -> Self {
        Self {
            services,
            context,
            answers,
            notes: Mutex::default(),
            which: Mutex::default(),
            heard: Mutex::default(),
        }
    }

    /// The session that the call means: the one that it names or, if it names none, that of its workspace.
    ///
    /// # Errors
    /// If the name of the session, or that of the workspace in the client's URL, is invalid.
    pub(super) fn workspace(&self, session_id: Option<&str>, log: &mut Log) -> Result<Which> {
        let automatic = || workspace(&self.context).map(Which::Automatic);
        self.means(session_id, log, automatic)
    }

    /// The same for a tool that starts a new session if none is named.
    ///
    /// # Errors
    /// If no session can have that name.
    pub(super) fn session_or_new(&self, session_id: Option<&str>, log: &mut Log) -> Result<Which> {
        self.means(session_id, log, || Ok(Which::New))
    }

    fn means(
        &self,
        session_id: Option<&str>,
        log: &mut Log,
        unnamed: impl FnOnce() -> Result<Which>,
    ) -> Result<Which> {
        let which = match session_id {
            Some(STATELESS) => Which::Stateless(Stateless::default()),
            Some(id) => Which::Named(existing(id, log)?),
            None => unnamed()?,
        };
        *self.which.lock() = Some(which.clone());
        Ok(which)
    }

    /// The session that the call means: the one that it names or, if it names none, that of its workspace.
    /// `None`, with a note, if the client has no workspace yet.
    ///
    /// # Errors
    /// If no session can have that name, or the workspace cannot be restored.
    pub(super) async fn existing_workspace(
        &self,
        session_id: Option<&str>,
        log: &mut Log,
    ) -> Result<Option<Opened>> {
        if let Some(id) = session_id {
            let id = existing(id, log)?;
            return Ok(Some(Opened { id, is_new: false, lost: None }));
        }
        let workspace = workspace(&self.context)?;
        let Some(opened) = self.services.sessions.of_workspace(&workspace).await? else {
            self.note(WorkspaceNote::NoneYet.into());
            return Ok(None);
        };
        log.session = Some(opened.id.clone());
        *self.which.lock() = Some(Which::Automatic(workspace));
        Ok(Some(opened))
    }

    /// Adds a note on why a session is new, if an earlier one has ended.
    pub(super) fn note_lost(&self, opened: &Opened) {
        if let Some(lost) = &opened.lost {
            self.note(WorkspaceNote::MadeAnew(lost.why).into());
        }
    }

    /// Adds a note that a session was restored, until its caller has received one.
    pub(super) fn note_restored(&self, id: &SessionId) {
        if let Some(restored) = self.services.sessions.get(id).and_then(|it| it.restored()) {
            self.note_all(notes::of_restored(&restored));
            *self.heard.lock() = Some(id.clone());
        }
    }

    /// Ends a call. A session of its own has ended when this returns. If the caller gets the result, the note that its
    /// session is new or restored counts as delivered.
    pub(super) async fn end(&self, is_ok: bool) {
        let which = self.which.lock().take();
        let heard = self.heard.lock().take();
        if let Some(id) = heard.filter(|_| is_ok && !self.context.ct.is_cancelled())
            && let Some(live) = self.services.sessions.get(&id)
        {
            live.restored_told();
        }
        match which {
            Some(Which::Stateless(session)) => session.close().await,
            Some(Which::Automatic(workspace)) if is_ok && !self.context.ct.is_cancelled() => {
                self.services.sessions.told(&workspace);
            }
            _ => {}
        }
    }

    /// Adds a note for the caller.
    pub(super) fn note(&self, note: Note) {
        self.notes.lock().push(note);
    }

    /// Adds several notes for the caller.
    pub(super) fn note_all(&self, notes: Notes) {
        self.notes.lock().extend(notes);
    }

    /// The notes so far. A tool that puts them into its result itself may add its own.
    pub(super) fn notes(&self) -> Notes {
        self.notes.lock().clone()
    }

    /// The caller's span. The message's own comes before that of the HTTP request, which may be from a proxy, or carry
    /// several calls.
    fn trace(&self) -> Option<TraceParent> {
        let of_message = self.context.meta.get_traceparent().and_then(TraceParent::parse);
        of_message.or_else(|| TraceParent::of(&self.context.extensions.get::<Parts>()?.headers))
    }

    /// The long string of the message, if `text` stands for it. It is returned only once: a caller can write the
    /// placeholder itself, as often as it likes.
    pub(super) fn long_text(&self, text: &str) -> Option<LongText> {
        if text == PLACEHOLDER { self.cut_out()?.take() } else { None }
    }

    fn cut_out(&self) -> Option<&CutOut> {
        let extensions = &self.context.extensions;
        let of_request = extensions.get::<Parts>().map(|head| &head.extensions);
        of_request.and_then(|own| own.get()).or_else(|| extensions.get())
    }

    /// Drops the message, which its call does not need any more, and releases its memory.
    pub(super) async fn release_message(&self) {
        drop(self.cut_out().and_then(CutOut::take));
        let head = self.context.extensions.get::<Parts>();
        if let Some(memory) = head.and_then(|head| head.extensions.get::<RequestMemory>()) {
            memory.shrink_to(KEPT_BYTES).await;
        }
    }

    /// Most images in the result: as many as the call, the URL that its client uses and the settings all allow.
    pub(super) fn inline_images(&self, asked: Option<u64>) -> usize {
        let by_url = by_url(&self.context, "inline_images");
        let by_url = by_url.and_then(|value| value.parse().ok());
        let asked = asked.map(|asked| usize::try_from(asked).unwrap_or(usize::MAX));
        let limit = self.services.sessions.config().inline_images;
        [asked, by_url].into_iter().flatten().fold(limit, usize::min)
    }

    /// Passes a result on. Closes a session that was started for a call that failed: the error does not name it, so the
    /// caller could not use it.
    ///
    /// # Errors
    /// If the result is an error.
    pub(super) async fn or_close<T>(
        &self,
        started_here: bool,
        id: &SessionId,
        result: Result<T>,
    ) -> Result<T> {
        // A cancelled call has no answer that would tell the caller the session's name.
        if started_here && (result.is_err() || self.context.ct.is_cancelled()) {
            let _ = self.services.sessions.close(id).await;
        }
        result
    }
}

/// The arguments of a tool that takes a session and nothing else.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OfSession {
    pub(super) session_id: String,
}

/// A result, once as structured content and once as the same JSON in text.
pub(super) fn success(value: Value) -> CallToolResult {
    CallToolResult::structured(value)
}

/// Adds notes to a result, if it has none.
pub(super) fn add_notes(notes: &Notes, result: &mut CallToolResult) {
    let Some(value) = result.structured_content.as_mut().filter(|_| !notes.is_empty()) else {
        return;
    };
    if value.get("notes").is_some() {
        return;
    }
    notes.add_to(value);
    let text = ContentBlock::text(value.to_string());
    if let Some(block) = result.content.iter_mut().find(|block| block.as_text().is_some()) {
        *block = text;
    }
}

/// An error as one text block. No structured content: clients check that against the tool's output schema even if it is
/// an error, and then lose the message.
pub(super) fn failure(error: &Error) -> CallToolResult {
    CallToolResult::error(vec![ContentBlock::text(error.to_json().to_string())])
}

/// Marks a result whose session is new: its caller may expect files in it.
pub(super) fn say_if_new(is_new: bool, result: &mut Value) {
    if is_new {
        result["new_session"] = true.into();
    }
}

/// Marks a result whose workspace is new: its caller may expect variables and files in it.
pub(super) fn say_what_is_new(opened: &Opened, result: &mut Value) {
    if opened.is_new {
        result["new_workspace"] = true.into();
    }
}

/// Reads a whole number within the bounds of the tool's schema: numbers beyond them were corrected before.
///
/// # Errors
/// If it is not a whole number, or out of bounds.
pub(super) fn whole(
    name: &str,
    value: Option<f64>,
    bounds: RangeInclusive<u64>,
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

/// Reads the arguments of a call, which were checked against the tool's schema.
///
/// # Errors
/// If the schema and the tool do not agree.
pub(super) fn parse<T: DeserializeOwned>(arguments: Value) -> Result<T> {
    serde_json::from_value(arguments).map_err(|error| {
        Error::internal(&format!("the schema allows what the tool does not take: {error}"))
    })
}

/// The session that a call names, if it names one, noted for the log.
///
/// # Errors
/// If no session can have that name.
pub(super) fn session(id: Option<&str>, log: &mut Log) -> Result<Option<SessionId>> {
    id.map(|id| existing(id, log)).transpose()
}

/// The session that a call has to name, noted for the log.
///
/// # Errors
/// If no session can have that name.
pub(super) fn existing(id: &str, log: &mut Log) -> Result<SessionId> {
    if id == STATELESS {
        let why = "A session that ends with its call is of no use here. Leave session_id out, or pass \
                   that of an earlier result.";
        return Err(Error::InvalidArgument(why.into()));
    }
    let id: SessionId = id.parse()?;
    log.session = Some(id.clone());
    Ok(id)
}
