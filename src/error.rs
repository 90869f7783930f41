//! Errors that callers get if a call cannot be carried out: a stable code, a sentence that a model can act on, and a
//! few fields. They are made here and nowhere else.

use std::{fmt, sync::Arc, time::Duration};

use model::{
    Approval, InvalidSessionId, RunId, SessionId,
    artifact::DATA_DIR,
    package::Fault,
    text::{human_size, human_time, quoted},
};
use protocol::limits::{MAX_FILES, MAX_KEPT_RUNS};
use serde_json::{Map, Value, json};

/// The reason why a call could not be carried out. An error of a program in its sandbox is never one of these.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Error {
    /// A session id that is not `[A-Za-z0-9_-]{1,64}`.
    InvalidSessionId,
    /// A name that a file cannot be uploaded under, and why.
    InvalidFilename(String),
    /// A path that cannot be read, and why.
    InvalidPath(String),
    /// Content that is not standard base64, and where.
    InvalidBase64(String),
    /// Any other argument that cannot be used, and why.
    InvalidArgument(String),
    /// Something of that name exists and may not be replaced.
    FileExists(String),
    /// The session has no such file. The path is relative to `/mnt/data`.
    NotFound(String),
    /// The session has no such file, but files of similar names.
    NotFoundNear {
        /// The path that was asked for, relative to `/mnt/data`.
        path: String,
        /// Similar names, the most similar first.
        near: Vec<String>,
    },
    /// The path of a folder, where a file is needed.
    IsFolder(String),
    /// The output of this run cannot be read on: it was not truncated, or is no longer stored.
    OutputNotKept(String),
    /// The file cannot be returned in a message.
    ArtifactTooLarge {
        /// Relative to `/mnt/data`.
        path: String,
        /// Size of the file, in bytes.
        size_bytes: u64,
        /// Largest file that can be returned, in bytes; `None` if an image has too many pixels instead.
        limit: Option<u64>,
        /// URL to download it.
        download_url: Option<String>,
    },
    /// The upload is over the limit.
    UploadTooLarge {
        /// Size of the upload, in bytes.
        size_bytes: u64,
        /// The limit, in bytes.
        limit: u64,
    },
    /// The file is too large for a message, which may be so long that it was not even read.
    MessageTooLarge {
        /// Limit of a file in a message, in bytes.
        limit: u64,
        /// Limit of any file, in bytes.
        most: u64,
    },
    /// The code is over the limit.
    CodeTooLarge {
        /// Size of the code, in bytes.
        size_bytes: u64,
        /// The limit, in bytes.
        limit: u64,
    },
    /// The data area is full; its size in bytes.
    QuotaExceeded(u64),
    /// There is no session of that name.
    SessionNotFound(SessionId),
    /// A session whose name this server generated has ended.
    SessionEnded {
        /// The session's name.
        id: SessionId,
        /// Time without use after which such a session expires.
        ttl: Duration,
    },
    /// The session was ended to make room for another session of its caller.
    SessionEvicted(SessionId),
    /// A run is in progress in the session.
    SessionBusy {
        /// The run, if it is known.
        run: Option<Box<BusyRun>>,
    },
    /// Fewer cells can be undone than were asked for: this many.
    NothingToUndo(u32),
    /// The language has no interpreter here. The text names it and, if known, the languages that have one.
    UnsupportedLanguage(String),
    /// The server has reached its limit of sessions.
    MaxSessions {
        /// The limit.
        limit: usize,
        /// The caller's own sessions.
        own: Vec<OwnSession>,
    },
    /// The caller has reached its limit of sessions.
    TooManySessions {
        /// The limit.
        limit: usize,
        /// The caller's own sessions.
        own: Vec<OwnSession>,
    },
    /// A package that was not installed, and why.
    Package(Fault),
    /// No sandbox can be started, or no line can be written to the audit file: the cause and the fix.
    SandboxUnavailable(String),
    /// The sandbox ended during the call.
    SandboxDied(SessionId),
    /// The process of one of the operator's own tools ended during the call.
    ToolDied,
    /// A fault of the server. The cause is in the log under this id, and only there.
    Internal(Arc<str>),
}

/// One of a caller's own sessions, for a caller who has too many of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnSession {
    /// The session's name.
    pub id: SessionId,
    /// `starting`, `running`, `in_use` by a file operation or a download, or `idle`.
    pub state: &'static str,
    /// Time since it was last used; zero while it is in use.
    pub idle: Duration,
}

/// Message for calls that are refused because each call needs its line in the audit file.
const AUDIT_UNAVAILABLE: &str = "The server cannot write to its audit file, and does nothing until it can. Nothing \
                                 was done. Tell the person: the disk may be full, the server's log has the cause.";

/// Message of [`Error::ToolDied`], whose process belongs to no session.
const TOOL_DIED: &str = "The tool's process ended unexpectedly, and this call with it. Try again once; if it \
                         comes back, tell the person.";

/// Maximum number of sessions that an error names.
const MAX_LISTED_SESSIONS: usize = 10;

/// The run that a session is busy with.
#[derive(Debug, Clone)]
pub struct BusyRun {
    /// The name of the run.
    pub id: RunId,
    /// The longest time that it can still take, without the time that people take to decide.
    pub left: Duration,
    /// The call for which it waits for a person.
    pub approval: Option<Arc<Approval>>,
    /// URL of the page on which that person can decide.
    pub page_url: Option<String>,
}

impl Error {
    /// Makes the error of a fault of the server: the chain of causes goes to the log, an id to the caller.
    pub fn internal(cause: &dyn fmt::Display) -> Self {
        let id = uuid::Uuid::new_v4().simple().to_string();
        let id: Arc<str> = id[..8].into();
        tracing::error!(error_id = &*id, cause = %cause, "internal error");
        Self::Internal(id)
    }

    /// The error of a call that is refused because its line cannot be written to the audit file.
    pub(crate) fn audit_unavailable() -> Self {
        Self::SandboxUnavailable(AUDIT_UNAVAILABLE.into())
    }

    /// The stable code, as documented in docs/tools.md.
    pub fn code(&self) -> &'static str {
        match self {
            Self::InvalidSessionId => "invalid_session_id",
            Self::InvalidFilename(_) => "invalid_filename",
            Self::InvalidPath(_) | Self::IsFolder(_) => "invalid_path",
            Self::InvalidBase64(_) => "invalid_base64",
            Self::InvalidArgument(_) => "invalid_argument",
            Self::FileExists(_) => "file_exists",
            Self::NotFound(_) | Self::NotFoundNear { .. } | Self::OutputNotKept(_) => "not_found",
            Self::ArtifactTooLarge { .. } => "artifact_too_large",
            Self::UploadTooLarge { .. } | Self::MessageTooLarge { .. } => "upload_too_large",
            Self::CodeTooLarge { .. } => "code_too_large",
            Self::QuotaExceeded(_) => "quota_exceeded",
            Self::SessionNotFound(_) | Self::SessionEnded { .. } | Self::SessionEvicted(_) => {
                "session_not_found"
            }
            Self::SessionBusy { .. } => "session_busy",
            Self::NothingToUndo(_) => "nothing_to_undo",
            Self::UnsupportedLanguage(_) => "unsupported_language",
            Self::MaxSessions { .. } | Self::TooManySessions { .. } => "max_sessions",
            Self::Package(fault) => fault.code(),
            Self::SandboxUnavailable(_) => "sandbox_unavailable",
            Self::SandboxDied(_) | Self::ToolDied => "sandbox_died",
            Self::Internal(_) => "internal",
        }
    }

    /// The whole error as it is sent: `error`, `message` and the other fields of its kind.
    pub fn to_json(&self) -> Value {
        let mut object = Map::new();
        object.insert("error".into(), self.code().into());
        object.insert("message".into(), self.to_string().into());
        match self {
            Self::ArtifactTooLarge { size_bytes, download_url, .. } => {
                object.insert("size_bytes".into(), json!(size_bytes));
                if let Some(url) = download_url {
                    object.insert("download_url".into(), json!(url));
                }
            }
            Self::SessionBusy { run: Some(run) } => {
                if let Some(url) = &run.page_url {
                    object.insert("page_url".into(), json!(url));
                }
            }
            Self::MaxSessions { own, .. } | Self::TooManySessions { own, .. } => {
                let sessions = own.iter().take(MAX_LISTED_SESSIONS).map(OwnSession::to_json);
                object.insert("sessions".into(), sessions.collect());
            }
            _ => {}
        }
        Value::Object(object)
    }
}

impl std::error::Error for Error {}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        Self::Package(fault)
    }
}

impl From<InvalidSessionId> for Error {
    fn from(InvalidSessionId: InvalidSessionId) -> Self {
        Self::InvalidSessionId
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidSessionId => InvalidSessionId.fmt(f),
            Self::InvalidFilename(why)
            | Self::InvalidPath(why)
            | Self::InvalidBase64(why)
            | Self::InvalidArgument(why)
            | Self::UnsupportedLanguage(why)
            | Self::SandboxUnavailable(why) => f.write_str(why),
            Self::Package(fault) => fault.fmt(f),
            Self::FileExists(name) => {
                write!(f, "{name} already exists. Set overwrite=true to replace.")
            }
            Self::NotFound(path) => write!(
                f,
                "No artifact at {}. list_artifacts lists the files that exist.",
                absolute(path)
            ),
            Self::NotFoundNear { path, near } => {
                let near: Vec<_> = near.iter().map(|name| quoted(name)).collect();
                let are = if near.len() == 1 { "is" } else { "are" };
                write!(f, "No artifact at {}. There {are} {}.", absolute(path), near.join(", "))
            }
            Self::IsFolder(path) => write!(
                f,
                "The path {path} is a folder. Name a file in it; list_artifacts lists them."
            ),
            Self::OutputNotKept(run) => write!(
                f,
                "There is nothing more to read of this output of {run}: it was not truncated, or \
                 it is no longer kept (only the last {MAX_KEPT_RUNS} runs with truncated output are). If you \
                 need it, run the code again and write to a file."
            ),
            Self::ArtifactTooLarge { path, size_bytes, limit: Some(limit), .. } => write!(
                f,
                "{path} is {}, exceeds {} limit. Use download_url instead.",
                human_size(*size_bytes),
                human_size(*limit)
            ),
            Self::ArtifactTooLarge { path, limit: None, .. } => write!(
                f,
                "{path} has too many pixels to be shown. Use download_url instead, or save a \
                 smaller image."
            ),
            Self::UploadTooLarge { size_bytes, limit } => write!(
                f,
                "The file is {size_bytes} bytes; the limit is {limit} ({}). Nothing was written. Upload it \
                 compressed or only what is needed of it. The operator can raise SANDBOX_MAX_UPLOAD_BYTES \
                 (docs/larger-data.md).",
                human_size(*limit)
            ),
            Self::MessageTooLarge { limit, most } if limit < most => write!(
                f,
                "A file in a message may have at most {limit} bytes ({}). Nothing was written. Call upload_file \
                 without content and send the file to its upload_url, which takes up to {}.",
                human_size(*limit),
                human_size(*most)
            ),
            Self::MessageTooLarge { limit, .. } => write!(
                f,
                "The message is larger than any valid call; a file may have at most {limit} bytes \
                 ({}). Nothing was written. Upload it compressed or only what is needed of it. The operator can \
                 raise SANDBOX_MAX_UPLOAD_BYTES (docs/larger-data.md).",
                human_size(*limit)
            ),
            Self::CodeTooLarge { size_bytes, limit } => write!(
                f,
                "The code is {size_bytes} bytes; the limit is {limit} ({}). Upload data as a file \
                 and read it from the code instead.",
                human_size(*limit)
            ),
            Self::QuotaExceeded(limit) => no_room(f, *limit),
            Self::SessionNotFound(id) => no_session(f, id),
            Self::SessionEnded { id, ttl } => write!(
                f,
                "No active session with id {id}. It was closed or unused for {}, and its files are \
                 gone. Leave session_id out and upload the data again.",
                human_time(*ttl)
            ),
            Self::SessionEvicted(id) => write!(
                f,
                "No active session with id {id}. It was idle, and was closed to make room for a \
                 new session when the maximum was reached; its files are gone. Leave session_id out \
                 and upload the data again."
            ),
            Self::SessionBusy { run } => busy(f, run.as_deref()),
            Self::NothingToUndo(can_undo) => cannot_undo(f, *can_undo),
            Self::MaxSessions { limit, own } => too_many(f, *limit, "", own),
            Self::TooManySessions { limit, own } => too_many(f, *limit, " for this client", own),
            Self::SandboxDied(id) => write!(
                f,
                "The sandbox of session {id} ended unexpectedly. The session is gone and all its \
                 files are lost. Leave session_id out and upload the data again."
            ),
            Self::ToolDied => f.write_str(TOOL_DIED),
            Self::Internal(id) => write!(
                f,
                "Internal error. Try again once; if it comes back, tell the person that the server's log \
                 has the cause under error_id {id}."
            ),
        }
    }
}

impl OwnSession {
    fn to_json(&self) -> Value {
        json!({ "session_id": self.id.as_str(), "idle_s": self.idle.as_secs(), "state": self.state })
    }
}

impl fmt::Display for OwnSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            "idle" => format!("idle {}", human_time(self.idle)),
            state => state.replace('_', " "),
        };
        write!(f, "{} ({state})", self.id)
    }
}

/// The message that a data area of this many bytes is full.
fn no_room(f: &mut fmt::Formatter<'_>, limit: u64) -> fmt::Result {
    write!(
        f,
        "The data area of this session is full ({}, at most {MAX_FILES} files). Delete files in \
         code, then try again. Nothing was written.",
        human_size(limit)
    )
}

/// The message that fewer cells can be undone than were asked for.
fn cannot_undo(f: &mut fmt::Formatter<'_>, can_undo: u32) -> fmt::Result {
    if can_undo == 0 {
        return f.write_str(
            "No cell can be taken back now, and nothing was changed. Without undo, reset_workspace \
             begins anew.",
        );
    }
    write!(
        f,
        "So many cells cannot be taken back, and nothing was changed. can_undo is {can_undo}: ask for \
         at most that many."
    )
}

/// The message that there is no session of this name.
fn no_session(f: &mut fmt::Formatter<'_>, id: &SessionId) -> fmt::Result {
    write!(
        f,
        "No active session with id {id}. If there was one, it has ended and its files are gone. "
    )?;
    f.write_str(if id.is_minted() {
        "Leave session_id out and upload the data again."
    } else {
        "The next run or upload under that name starts a new one."
    })
}

/// The message that a run is in progress, with its id and what it waits for, if they are known.
fn busy(f: &mut fmt::Formatter<'_>, run: Option<&BusyRun>) -> fmt::Result {
    f.write_str(
        "A run is already in progress for this session, which does one at a time: send calls one \
         after the other. ",
    )?;
    let Some(BusyRun { id, left, approval, page_url }) = run else {
        return f.write_str("Wait for it to complete.");
    };
    let Some(approval) = approval else {
        return write!(f, "Wait for it to complete: {id}, at most {} more.", human_time(*left));
    };
    let Approval { upstream, tool, .. } = &**approval;
    let place = if page_url.is_some() { ", for example at page_url" } else { "" };
    write!(f, "{id} waits for a person to allow {upstream}.{tool}: ask the user to decide{place}.")
}

/// The message that a limit of sessions is reached, and how a caller with these sessions can make room.
fn too_many(
    f: &mut fmt::Formatter<'_>,
    limit: usize,
    whose: &str,
    own: &[OwnSession],
) -> fmt::Result {
    write!(f, "Maximum {limit} concurrent sessions reached{whose}. ")?;
    if own.is_empty() {
        return f.write_str("None of them is yours: try again later.");
    }
    let named: Vec<_> = own.iter().take(MAX_LISTED_SESSIONS).map(ToString::to_string).collect();
    write!(
        f,
        "Close an existing session first, or continue in one. Your sessions: {}",
        named.join(", ")
    )?;
    match own.len().saturating_sub(MAX_LISTED_SESSIONS) {
        0 => f.write_str("."),
        more => write!(f, " and {more} more."),
    }
}

/// Result of a call.
pub type Result<T> = std::result::Result<T, Error>;

/// The absolute path of a file that is relative to the data area, or absolute already.
fn absolute(path: &str) -> String {
    if path.starts_with('/') { path.to_owned() } else { format!("{DATA_DIR}/{path}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(id: &str, state: &'static str, idle: u64) -> OwnSession {
        OwnSession { id: id.parse().expect("valid"), state, idle: Duration::from_secs(idle) }
    }

    /// One error of each kind. A new kind does not compile until the match below has it.
    fn all() -> Vec<Error> {
        let (minted, named) = ("sess_0123456789ab".parse(), "reports".parse());
        let (minted, named): (SessionId, SessionId) =
            (minted.expect("valid"), named.expect("valid"));
        let path = || "raw/sales.csv".to_owned();
        let too_large = |limit| Error::ArtifactTooLarge {
            path: path(),
            size_bytes: 12_000_000,
            limit,
            download_url: None,
        };
        let run_id: RunId = serde_json::from_str("\"run_20260105T120000Z_0a1b\"").expect("a name");
        let approval = Arc::new(Approval {
            id: "a1".into(),
            session: named.clone(),
            run_id: run_id.clone(),
            upstream: "crm".into(),
            tool: "delete_contact".into(),
            description: String::new(),
            arguments: "{}".into(),
            until: jiff::Timestamp::UNIX_EPOCH,
        });
        let busy = |approval, page_url| {
            let (id, left) = (run_id.clone(), Duration::from_secs(42));
            Error::SessionBusy { run: Some(Box::new(BusyRun { id, left, approval, page_url })) }
        };
        let all = vec![
            Error::InvalidSessionId,
            Error::InvalidFilename("Why, and what to do.".into()),
            Error::InvalidPath("Why, and what to do.".into()),
            Error::InvalidBase64("Why, and what to do.".into()),
            Error::InvalidArgument("Why, and what to do.".into()),
            Error::FileExists(path()),
            Error::NotFound(path()),
            Error::NotFoundNear { path: "sale.csv".into(), near: vec![path(), "a \"b\"".into()] },
            Error::IsFolder("raw".into()),
            Error::OutputNotKept("run_1".into()),
            too_large(Some(10_000_000)),
            too_large(None),
            Error::UploadTooLarge { size_bytes: 60_000_000, limit: 50_000_000 },
            Error::MessageTooLarge { limit: 50_000_000, most: 50_000_000 },
            Error::CodeTooLarge { size_bytes: 100_001, limit: 100_000 },
            Error::QuotaExceeded(256_000_000),
            Error::SessionNotFound(named.clone()),
            Error::SessionNotFound(minted.clone()),
            Error::SessionEnded { id: minted.clone(), ttl: Duration::from_secs(1800) },
            Error::SessionEvicted(minted.clone()),
            Error::SessionBusy { run: None },
            busy(None, None),
            busy(Some(approval.clone()), None),
            busy(Some(approval), Some("http://127.0.0.1/files/reports/".into())),
            Error::NothingToUndo(0),
            Error::NothingToUndo(2),
            Error::UnsupportedLanguage(
                "\"r\" does not run here. The languages are python, bash.".into(),
            ),
            Error::MaxSessions { limit: 10, own: vec![] },
            Error::TooManySessions { limit: 2, own: vec![own("reports", "idle", 90)] },
            Error::Package(crate::packages::disabled()),
            Error::SandboxUnavailable("Why, and what to do.".into()),
            Error::ToolDied,
            Error::SandboxDied(minted),
            Error::Internal("0123abcd".into()),
        ];
        for error in &all {
            match error {
                Error::InvalidSessionId
                | Error::InvalidFilename(_)
                | Error::InvalidPath(_)
                | Error::InvalidBase64(_)
                | Error::InvalidArgument(_)
                | Error::FileExists(_)
                | Error::NotFound(_)
                | Error::NotFoundNear { .. }
                | Error::IsFolder(_)
                | Error::OutputNotKept(_)
                | Error::ArtifactTooLarge { .. }
                | Error::UploadTooLarge { .. }
                | Error::MessageTooLarge { .. }
                | Error::CodeTooLarge { .. }
                | Error::QuotaExceeded(_)
                | Error::SessionNotFound(_)
                | Error::SessionEnded { .. }
                | Error::SessionEvicted(_)
                | Error::SessionBusy { .. }
                | Error::NothingToUndo(_)
                | Error::UnsupportedLanguage(_)
                | Error::MaxSessions { .. }
                | Error::TooManySessions { .. }
                | Error::Package(_)
                | Error::SandboxUnavailable(_)
                | Error::SandboxDied(_)
                | Error::ToolDied
                | Error::Internal(_) => {}
            }
        }
        all
    }

    #[test]
    fn every_kind_of_error_says_what_to_do_next() {
        let said: Vec<_> = all().iter().map(|error| format!("{}: {error}", error.code())).collect();
        assert!(said.iter().all(|said| said.ends_with('.')), "{said:#?}");
        // Errors that come from a call's arguments are in tests/promises/errors.rs.
        insta::assert_snapshot!(said.join("\n"));
    }

    #[test]
    fn a_caller_with_too_many_sessions_is_told_which_and_what_to_do() {
        let mut sessions = vec![
            own("sess_0123456789ab", "idle", 3 * 3600),
            own("b", "idle", 14 * 60 + 59),
            own("c", "idle", 59),
            own("reports", "running", 0),
            own("d", "in_use", 0),
        ];
        let error = Error::TooManySessions { limit: 5, own: sessions.clone() };
        assert_eq!(
            error.to_string(),
            "Maximum 5 concurrent sessions reached for this client. Close an existing session \
             first, or continue in one. Your sessions: sess_0123456789ab (idle \
             3 h), b (idle 14 min), c (idle 59 s), reports (running), d (in use)."
        );
        let listed = &error.to_json()["sessions"];
        assert_eq!(listed[1], json!({ "session_id": "b", "idle_s": 899, "state": "idle" }));

        sessions.extend((0..8).map(|n| own(&format!("more-{n}"), "idle", 1)));
        let error = Error::MaxSessions { limit: 13, own: sessions };
        assert!(error.to_string().ends_with("more-4 (idle 1 s) and 3 more."), "{error}");
        assert_eq!(error.to_json()["sessions"].as_array().map(Vec::len), Some(10));
        let error = Error::MaxSessions { limit: 10, own: vec![] };
        assert_eq!(
            error.to_string(),
            "Maximum 10 concurrent sessions reached. None of them is yours: try again later."
        );
    }
}
