//! The sessions of all callers, for operators: who has them and what they use, never what is in them.

use axum::http::HeaderMap;
use config::Right;
use model::{Principal, SessionId};
use serde_json::{Value, json};

use super::api::time;
use crate::{
    http::{
        audited,
        error::{ApiError, Result},
        shared::Shared,
    },
    sessions::{SessionInfo, Sessions},
};

/// The parameter in the query of `GET /sessions` for the sessions of all callers.
pub(super) const ALL: &str = "all";

/// The parameter in the query of `DELETE /sessions/{session}` with the session's caller.
pub(super) const CALLER: &str = "caller";

/// The parameters with which a request is about the sessions of all callers.
pub(in crate::http) const OF_ALL: [&str; 2] = [ALL, CALLER];

/// The live sessions of all callers.
///
/// # Errors
/// If the sender of the request may not list them.
pub(super) fn list(shared: &Shared, headers: &HeaderMap) -> Result<Value> {
    shared.viewers.permitted(headers, Right::AllSessions)?;
    let all = shared.sessions.all();
    let shown: Vec<_> = all.iter().map(|(caller, info)| summary(shared, caller, info)).collect();
    Ok(json!({ "sessions": shown }))
}

fn summary(shared: &Shared, caller: &Principal, info: &SessionInfo) -> Value {
    let runs = info.history.runs();
    let last = info.history.runs().rev().find_map(|run| run.end.as_ref());
    json!({
        "session_id": info.id.as_str(),
        "caller": caller.name(),
        "engine": shared.sessions.config().engine.as_str(),
        "state": info.history.phase().as_str(),
        "created_at": time(info.since),
        "used_at": time(info.used),
        "expires_at": time(info.expires),
        "memory_limit_bytes": info.limits.memory,
        "disk_limit_bytes": info.limits.data,
        "runs": runs.len() + info.history.forgotten(),
        "last_outcome": last.map(|end| end.outcome.as_str()),
    })
}

/// Ends a session of another caller.
///
/// # Errors
/// If the sender of the request may not end it, or there is no such session.
pub(super) async fn end(
    shared: &Shared,
    headers: &HeaderMap,
    (caller, id): (&str, &SessionId),
) -> Result<()> {
    let operator = shared.access.permitted(headers, Right::AllSessions)?;
    let of: Option<Sessions> =
        Principal::named(caller).map(|caller| shared.sessions.seen_by(caller));
    let of = of.ok_or(ApiError::NoSession)?;
    let sessions = shared.sessions.seen_by(operator);
    let entry = audited::begin(&sessions, audited::END, Some(id), Some(caller))?;
    let closed = of.close(id).await;
    if let Some(entry) = entry {
        entry.end(closed.as_ref().map_or_else(crate::error::Error::code, |()| "ok"));
    }
    closed.map_err(ApiError::Gone)
}
