//! The sessions of all callers, for operators: who has them and what they use, never what is in them. Of several
//! servers, the one that is asked asks the others.

use std::time::Duration;

use axum::{
    body::Body,
    extract::Request,
    http::{HeaderMap, Uri, header},
};
use config::Right;
use futures::{StreamExt, stream};
use http_body_util::{BodyExt, Limited};
use model::{Principal, SessionId};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::api::state;
use crate::{
    http::{
        audited,
        error::{ApiError, Result},
        shared::Shared,
    },
    sessions::{Dormant, SessionInfo, Sessions, shown::rfc3339},
};

/// The parameter in the query of `GET /sessions` for the sessions of all callers.
const ALL: &str = "all";

/// The parameter in the query of `DELETE /sessions/{session}` with the session's caller.
const CALLER: &str = "caller";

/// Maximum number of servers that are asked at a time.
const ASKED_AT_ONCE: usize = 8;

/// Longest wait for the answer of another server.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of bytes of another server's answer.
const MAX_ANSWER_BYTES: usize = 16 << 20;

/// The sessions of other callers that a request is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::http) enum OfOthers {
    /// The sessions of all callers.
    All,
    /// The sessions of the caller with this name.
    Caller(String),
}

impl OfOthers {
    /// The sessions of other callers that the URL names; `None` if it is about the sender's own.
    pub(in crate::http) fn of(uri: &Uri) -> Option<Self> {
        if !uri.path().starts_with("/sessions") {
            return None;
        }
        let pairs = || form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes());
        let caller = pairs().find(|(name, _)| name == CALLER);
        let caller = caller.map(|(_, value)| Self::Caller(value.into_owned()));
        caller.or_else(|| pairs().any(|(name, _)| name == ALL).then_some(Self::All))
    }
}

/// The sessions of all callers on all servers.
///
/// # Errors
/// If the sender of the request may not list them.
pub(super) async fn list(shared: &Shared, headers: &HeaderMap) -> Result<Value> {
    shared.viewers.permitted(headers, Right::AllSessions)?;
    let all = shared.sessions.all();
    let engine = shared.sessions.config().engine.as_str();
    let server = shared.sessions.shared_callers().and_then(|callers| callers.name());
    let dormant = |it: &Dormant, state| {
        json!({
            "session_id": it.id.as_str(),
            "caller": it.caller.name(),
            "engine": engine,
            "state": state,
            "created_at": it.since.filter(|_| state == state::ASLEEP).map(rfc3339),
            "archived_at": it.since.filter(|_| state == state::ARCHIVED).map(rfc3339),
            "disk_bytes": it.bytes,
        })
    };
    let mut shown: Vec<_> =
        all.live().await.iter().map(|(caller, info)| summary(engine, caller, info)).collect();
    shown.extend(all.saved().iter().map(|it| dormant(it, state::ASLEEP)));
    if let Some(server) = server {
        for session in &mut shown {
            session["server"] = server.clone().into();
        }
    }
    // The servers share the archive.
    if !shared.is_for_peers {
        shown.extend(all.archived().await.iter().map(|it| dormant(it, state::ARCHIVED)));
    }
    for session in &mut shown {
        if let Some(fields) = session.as_object_mut() {
            fields.retain(|_, value| !value.is_null());
        }
    }
    let mut listed = json!({ "sessions": shown });
    if !shared.is_for_peers {
        add_of_peers(&mut listed, shared, headers).await;
    }
    Ok(listed)
}

fn summary(engine: &str, caller: &Principal, info: &SessionInfo) -> Value {
    let runs = info.history.runs();
    let last = info.history.runs().rev().find_map(|run| run.end.as_ref());
    let mut shown = json!({
        "session_id": info.id.as_str(),
        "caller": caller.name(),
        "client": info.client.as_deref(),
        "engine": engine,
        "state": info.history.phase().for_operators(),
        "created_at": rfc3339(info.since),
        "used_at": rfc3339(info.used),
        "expires_at": rfc3339(info.expires),
        "runs": runs.len() + info.history.forgotten(),
        "last_outcome": last.map(|end| end.outcome.as_str()),
    });
    if let Some(fields) = shown.as_object_mut() {
        fields.extend(info.resources());
    }
    shown
}

/// Adds the sessions of the other servers, and the names of servers that did not answer.
async fn add_of_peers(listed: &mut Value, shared: &Shared, headers: &HeaderMap) {
    let (Some(peers), Some(callers)) = (&shared.peers, shared.sessions.shared_callers()) else {
        return;
    };
    let ask = async |claim| {
        let answered = async {
            let mut request = Request::get(format!("/sessions?{ALL}")).body(Body::empty()).ok()?;
            for name in [header::AUTHORIZATION, header::HOST] {
                let value = headers.get(&name)?.clone();
                request.headers_mut().insert(name, value);
            }
            let response = peers.send(&claim, request).await.ok()?;
            let response = response.status().is_success().then_some(response)?;
            let body = Limited::new(response.into_body(), MAX_ANSWER_BYTES).collect().await.ok()?;
            let mut listed: Value = serde_json::from_slice(&body.to_bytes()).ok()?;
            Some(listed["sessions"].as_array_mut()?.split_off(0))
        };
        timeout(ANSWER_TIMEOUT, answered).await.ok().flatten().ok_or(claim.server.clone())
    };
    let answers = stream::iter(callers.servers()).map(ask).buffered(ASKED_AT_ONCE);
    let (mut all, mut silent) = (vec![], vec![]);
    for answer in answers.collect::<Vec<_>>().await {
        match answer {
            Ok(sessions) => all.extend(sessions),
            Err(server) => silent.push(server),
        }
    }
    if let Some(sessions) = listed["sessions"].as_array_mut() {
        sessions.extend(all);
    }
    if !silent.is_empty() {
        listed["servers_without_answer"] = silent.into();
    }
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
    let sessions = shared.sessions.seen_by(operator.principal);
    let entry = audited::begin(&sessions, audited::END, Some(id), Some(caller))?;
    let closed = of.close(id).await;
    if closed.is_ok() {
        tracing::info!(session_id = %id, client = caller, by = sessions.caller().name(), "an operator has ended a session");
    }
    if let Some(entry) = entry {
        entry.end(closed.as_ref().map_or_else(crate::error::Error::code, |()| "ok"));
    }
    closed.map_err(ApiError::Gone)
}
