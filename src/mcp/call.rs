//! One call of a tool: its services, its arguments, and the program that it runs.

use std::{ops::RangeInclusive, time::Duration};

use config::{Toolsets, Transport};
use hyper::http::request::Parts;
use model::SessionId;
use parking_lot::Mutex;
use rmcp::{
    ErrorData, RoleServer,
    model::{CallToolResponse, CallToolResult, ContentBlock, ErrorCode, InputResponses},
    service::RequestContext,
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::{
    sync::{oneshot, watch},
    time::{Instant, sleep},
};

use super::{
    approval::{self, asking},
    audited::{self, Log},
    background::OfCall,
    languages::{Language, unfenced},
    long_text::{CutOut, LongText},
    message::{KEPT_BYTES, PLACEHOLDER},
    running::{page, reporting},
    services::{Services, by_url, workspace},
    tasks,
};
use crate::{
    error::{Error, Result},
    notes::{self, Note, Notes, WorkspaceNote},
    progress::Progress,
    request::{ANSWER_BYTES, NO_MEMORY, REFUSED, RequestMemory},
    session::RunReport,
    sessions::{Opened, Program, STATELESS, Stateless, Which, session_name},
};

/// One call.
pub(super) struct Call {
    /// The services, as the caller sees them.
    pub(super) services: Services,
    /// The toolsets that the client is offered.
    pub(super) toolsets: Toolsets,
    pub(super) context: RequestContext<RoleServer>,
    /// The client's answers, if an earlier attempt of this call asked for input.
    pub(super) answers: Option<InputResponses>,
    /// The run of the call, if it runs something.
    pub(super) run: OfCall,
    /// Notes for the caller, beside the result.
    notes: Mutex<Notes>,
    /// The session that the call means, once its tool has asked.
    which: Mutex<Option<Which>>,
    /// The restored session about which this call's result has a note.
    heard: Mutex<Option<SessionId>>,
}

/// Time for which a call waits for the cancellation of the run before it. Over HTTP the two are requests on two
/// connections, and nothing orders them.
const CANCEL_GRACE: Duration = Duration::from_millis(300);

/// Time between two attempts of a call while it waits for the cancelled run to end.
const CANCEL_POLL: Duration = Duration::from_millis(20);

impl Call {
    /// A new call, and the receiver of the answer if it is answered before its end.
    pub(super) fn new(
        services: Services,
        toolsets: Toolsets,
        context: RequestContext<RoleServer>,
        answers: Option<InputResponses>,
    ) -> (Self, oneshot::Receiver<CallToolResponse>) {
        let (run, early) = OfCall::new();
        let call = Self {
            services,
            toolsets,
            context,
            answers,
            run,
            notes: Mutex::default(),
            which: Mutex::default(),
            heard: Mutex::default(),
        };
        (call, early)
    }

    /// Whether the client gets no answer, because it has cancelled the call.
    pub(super) fn is_cancelled(&self) -> bool {
        self.context.ct.is_cancelled() && !self.run.is_answered()
    }

    /// The session that the call means: the one that it names or, if it names none, that of its workspace.
    ///
    /// # Errors
    /// If the name of the session, or that of the workspace in the client's URL, is invalid.
    pub(super) fn workspace(&self, session_id: Option<&str>, log: &mut Log) -> Result<Which> {
        let automatic = || workspace(&self.context).map(Which::Automatic);
        self.means(session_id, log, automatic)
    }

    /// The session that the call names; otherwise a new one.
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
        let Some(opened) = self.services.sessions.workspaces().session(&workspace).await? else {
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
        if let Some(id) = heard.filter(|_| is_ok && !self.is_cancelled())
            && let Some(live) = self.services.sessions.get(&id)
        {
            live.restored_told();
        }
        match which {
            Some(Which::Stateless(session)) => session.close().await,
            Some(Which::Automatic(workspace)) if is_ok && !self.is_cancelled() => {
                self.services.sessions.workspaces().told(&workspace);
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

    /// Maximum number of images in the result: as many as the call, the URL that its client uses and the settings all
    /// allow.
    pub(super) fn inline_images(&self, asked: Option<u64>) -> usize {
        let by_url = by_url(&self.context, "inline_images");
        let by_url = by_url.and_then(|value| value.parse().ok());
        let asked = asked.map(|asked| usize::try_from(asked).unwrap_or(usize::MAX));
        let limit = self.services.sessions.config().inline_images;
        [asked, by_url].into_iter().flatten().fold(limit, usize::min)
    }

    /// The code of a call, even if it was cut out of the message for its length; the message is then released.
    /// Markdown fences around the code are removed, and the language that they name is returned.
    ///
    /// # Errors
    /// If it is too long, empty, or no text.
    pub(super) async fn code(&self, code: String) -> Result<(Option<Language>, String)> {
        let code = self.whole_code(code).await?;
        let template = self.services.sessions.template().await;
        let (language, code) = match unfenced(&code, &template) {
            Some((language, inner)) => {
                self.note(Note::Unfenced);
                (language, inner.to_owned())
            }
            None => (None, code),
        };
        if code.trim().is_empty() {
            return Err(Error::InvalidArgument("code is empty. Give the code to run.".into()));
        }
        Ok((language, code))
    }

    async fn whole_code(&self, code: String) -> Result<String> {
        let limit = self.services.sessions.config().max_code;
        let too_large =
            |size: usize| Error::CodeTooLarge { size_bytes: size as u64, limit: limit as u64 };
        let long = self.long_text(&code);
        self.release_message().await;
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

    /// Runs a program, reports its progress to the caller, and notes its result for the log. In the background, the
    /// caller has its answer when the run has begun; a caller that takes tasks has it soon.
    ///
    /// # Errors
    /// If it could not be run. A session without a given name that was started for it is then closed.
    pub(super) async fn run(
        &self,
        which: Which,
        mut program: Program,
        in_background: bool,
        log: &mut Log,
    ) -> Result<(Opened, RunReport)> {
        log.bytes = Some(program.code.len() as u64);
        log.language = Some(program.language.clone());
        let memory = self.services.sessions.config().memory_limit;
        log.audit(|record| audited::program(record, &program, memory));
        let (language, run_id) = (Some(program.language.clone()), Some(program.run_id.clone()));
        let begins = Progress { run_id, language, ..Progress::default() };
        let (progress, heard) = watch::channel(begins);
        // The answer of a call that takes long is a task, unless its session ends with it.
        let may_be_task = self.takes_tasks() && !matches!(which, Which::Stateless(_));
        let may_be_asked = !self.services.sessions.upstreams().is_empty();
        let may_go_on =
            in_background || may_be_task || may_be_asked && approval::can_ask_in_answer(self);
        let may_be_asked = may_be_asked && approval::can_ask(self);
        let is_heard =
            may_go_on || may_be_asked || self.context.meta.get_progress_token().is_some();
        program.progress = is_heard.then_some(progress);
        let is_nameless = matches!(which, Which::New);
        let (opened, report) = if may_go_on {
            let soon = may_be_task.then_some(tasks::SOON);
            let after = if in_background { Some(Duration::ZERO) } else { soon };
            self.run_in_background(which, program, heard, after).await
        } else {
            let running = Box::pin(self.run_when_free(which, program));
            let running = asking(self, heard.clone(), running);
            reporting(self, heard, running).await
        };
        log.session = Some(opened.id.clone());
        self.note_restored(&opened.id);
        let report = self.or_close(is_nameless, &opened.id, report).await?;
        self.run.began(&self.services.sessions, &opened.id, &report.run_id);
        log.run = Some(report.run_id.to_string());
        log.start = Some(report.start.as_str());
        log.ran(&report);
        log.audit(|record| audited::report(record, &report));
        Ok((opened, report))
    }

    /// Runs a program. If a client cancels a run and calls again at once, the cancellation may arrive second: the call
    /// then waits for it, and does not fail because the session is busy.
    pub(super) async fn run_when_free(
        &self,
        which: Which,
        program: Program,
    ) -> (Opened, Result<RunReport>) {
        let Services { sessions, transport, .. } = &self.services;
        let deadline = Instant::now() + CANCEL_GRACE;
        loop {
            let mut ran = sessions.run(which.clone(), program.clone()).await;
            let is_busy = matches!(ran.1, Err(Error::SessionBusy { .. }));
            if !is_busy || *transport == Transport::Stdio || Instant::now() >= deadline {
                if let Err(Error::SessionBusy { run: Some(run) }) = &mut ran.1
                    && let Some(approval) = &run.approval
                {
                    run.page_url = page(self, &approval.session);
                }
                return ran;
            }
            sleep(CANCEL_POLL).await;
        }
    }

    /// Passes a result on. Closes a session that was started for a call that failed: the error does not name it, so the
    /// caller could not use it.
    pub(super) async fn or_close<T>(
        &self,
        started_here: bool,
        id: &SessionId,
        result: Result<T>,
    ) -> Result<T> {
        // A cancelled call has no answer that would tell the caller the session's name; an early one has told it.
        if started_here && (result.is_err() || self.is_cancelled()) && !self.run.has_told_session()
        {
            let _ = self.services.sessions.close(id).await;
        }
        result
    }
}

/// Takes the memory of a call and its answer before the call is carried out. Over stdio none is counted: there is one
/// client, which waits for its own answers.
pub(super) async fn take_memory(
    context: &RequestContext<RoleServer>,
) -> std::result::Result<(), ErrorData> {
    let head = context.extensions.get::<Parts>();
    let Some(memory) = head.and_then(|head| head.extensions.get::<RequestMemory>()) else {
        return Ok(());
    };
    let grown = memory.grow(ANSWER_BYTES).await;
    grown.map_err(|_| ErrorData::new(ErrorCode(REFUSED), NO_MEMORY, None))
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
pub(super) fn session(id: Option<&str>, log: &mut Log) -> Result<Option<SessionId>> {
    id.map(|id| existing(id, log)).transpose()
}

/// The session that a call has to name, noted for the log.
pub(super) fn existing(id: &str, log: &mut Log) -> Result<SessionId> {
    let id = session_name(id)?;
    log.session = Some(id.clone());
    Ok(id)
}
