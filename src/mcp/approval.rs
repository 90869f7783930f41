//! Asks the user of the client whether a call out of a sandbox may be made (elicitation). Clients up to 2025-11-25 are
//! asked while the call of the run waits: on the page somebody may decide first, and then the client's form is
//! withdrawn. Later ones get the same form as [answer](super::repeat).

use std::{convert::Infallible, sync::Arc};

use model::{Approval, Decision};
use rmcp::model::{ElicitRequestParams, ElicitResult, ElicitationAction, ElicitationSchema};
use serde_json::json;
use tokio::sync::watch;

use super::{call::Call, roots::is_modern};
use crate::progress::Progress;

/// The way by which decisions come that are made here.
pub(super) const BY: &str = "elicitation";

/// Maximum number of characters of the arguments in the question.
const MAX_ARGUMENTS: usize = 2000;

/// Whether the client's user can be asked while a call waits.
pub(super) fn can_ask(call: &Call) -> bool {
    // Later versions of the protocol have no requests to clients.
    !is_modern(&call.context) && has_forms(call)
}

/// Whether the client's user can be asked by an answer to the call, which the client then repeats.
pub(super) fn can_ask_in_answer(call: &Call) -> bool {
    is_modern(&call.context) && has_forms(call)
}

fn has_forms(call: &Call) -> bool {
    let elicitation = call.context.client_capabilities().and_then(|it| it.elicitation.clone());
    // A client that names no mode has forms.
    elicitation.is_some_and(|modes| modes.form.is_some() || modes.url.is_none())
}

/// Waits for work, and asks the client's user about each call that needs it meanwhile.
pub(super) async fn asking<T>(
    call: &Call,
    heard: watch::Receiver<Progress>,
    work: impl Future<Output = T>,
) -> T {
    if !can_ask(call) {
        return work.await;
    }
    tokio::select! {
        biased;
        done = work => done,
        never = Box::pin(ask_each(call, heard)) => match never {},
    }
}

async fn ask_each(call: &Call, mut heard: watch::Receiver<Progress>) -> Infallible {
    let mut asked: Option<Arc<Approval>> = None;
    loop {
        let is_new = |progress: &Progress| {
            progress
                .approval
                .as_ref()
                .is_some_and(|new| asked.as_ref().is_none_or(|asked| asked.id != new.id))
        };
        let new = heard.wait_for(is_new).await.map(|progress| progress.approval.clone());
        let Ok(Some(approval)) = new else { return std::future::pending().await };
        let is_other = |progress: &Progress| {
            progress.approval.as_ref().is_none_or(|other| other.id != approval.id)
        };
        tokio::select! {
            // Dropping the request tells the client that it is no longer wanted.
            decision = ask(call, &approval) => {
                if let Some(decision) = decision {
                    call.services.sessions.decide(&approval.session, &approval.id, decision, BY);
                }
            }
            _ = heard.wait_for(is_other) => {}
        }
        asked = Some(approval);
    }
}

/// The user's decision; `None` if the client's form was closed without one, so that the page is left.
async fn ask(call: &Call, approval: &Approval) -> Option<Decision> {
    let answer = call.context.peer.create_elicitation(form(approval)?).await.ok()?;
    decided(answer)
}

/// The form that shows a call and asks for a decision.
pub(super) fn form(approval: &Approval) -> Option<ElicitRequestParams> {
    let Approval { upstream, tool, description, arguments, .. } = approval;
    let mut shown: String = arguments.chars().take(MAX_ARGUMENTS).collect();
    if shown.len() < arguments.len() {
        shown.push_str("\n[cut: the session's page has all of it]");
    }
    let about = if description.is_empty() { String::new() } else { format!("\n{description}") };
    let message =
        format!("Code in the sandbox wants to call {upstream}.{tool}.{about}\nArguments:\n{shown}");
    let schema = json!({
        "type": "object",
        "properties": {
            "decision": {
                "type": "string",
                "title": "May the call be made?",
                "enum": ["once", "run", "session", "deny"],
                "enumNames": ["Once", "For this run", "For this session", "No"],
            },
        },
        "required": ["decision"],
    });
    let requested_schema: ElicitationSchema = serde_json::from_value(schema).ok()?;
    Some(ElicitRequestParams::FormElicitationParams { meta: None, message, requested_schema })
}

/// The decision in a form that was sent back, if there is one.
pub(super) fn decided(ElicitResult { action, content, .. }: ElicitResult) -> Option<Decision> {
    match action {
        ElicitationAction::Accept => {
            let decision = content.as_ref().and_then(|content| content.get("decision")).cloned();
            // A form without a choice decides nothing.
            serde_json::from_value(decision?).ok()
        }
        ElicitationAction::Decline => Some(Decision::Deny),
        _ => None,
    }
}
