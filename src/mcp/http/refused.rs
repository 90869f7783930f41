//! Refusals of requests, as messages of the protocol: clients show nothing else.

use http_body_util::{BodyExt, Full};
use hyper::{Response, StatusCode};
use serde_json::Value;

use super::answer::{JSON, is_json, message, typed, whole};
use crate::{
    mcp::message::UNREADABLE_MESSAGE,
    request::{Answer, REFUSED},
};

/// Addition to rmcp's refusal of a request that has no MCP session and is not of a protocol without them.
const NEITHER: &str = ". Send initialize first, or the header MCP-Protocol-Version: 2026-07-28.";

/// A refusal with this status.
pub(super) fn refused(status: StatusCode, message: &str) -> Answer {
    answer(status, None, REFUSED, message)
}

/// The answer to an invalid message.
pub(super) fn invalid(message: &str) -> Answer {
    answer(StatusCode::BAD_REQUEST, None, -32600, message)
}

/// An answer of rmcp to a request with this body. A refusal in plain text becomes a message of the protocol.
pub(super) async fn explained(response: Answer, body: &[u8], was_json: bool) -> Answer {
    let status = response.status();
    if !(status.is_client_error() || status.is_server_error()) || is_json(response.headers()) {
        return response;
    }
    if status == StatusCode::UNSUPPORTED_MEDIA_TYPE && was_json {
        return unreadable(body);
    }
    // Other headers stay: they say which methods are allowed.
    let (head, text) = response.into_parts();
    let text = whole(text).await;
    let mut text = String::from_utf8_lossy(&text);
    if text.ends_with("Session ID is required") {
        text += NEITHER;
    }
    let json = message(None, REFUSED, &text);
    typed(Response::from_parts(head, Full::from(json).boxed_unsync()), JSON)
}

/// The answer to a body that is no JSON, or no message; rmcp calls either an unsupported type.
fn unreadable(body: &[u8]) -> Answer {
    let (id, code, message) = match serde_json::from_slice::<Value>(body) {
        Ok(value) => {
            let id = value.get("id").filter(|id| id.is_string() || id.is_number()).cloned();
            (id, -32600, "The body is not one JSON-RPC message.")
        }
        Err(_) => (None, -32700, UNREADABLE_MESSAGE),
    };
    answer(StatusCode::BAD_REQUEST, id, code, message)
}

fn answer(status: StatusCode, id: Option<Value>, code: i32, text: &str) -> Answer {
    let mut response = Response::new(Full::from(message(id, code, text)).boxed_unsync());
    *response.status_mut() = status;
    typed(response, JSON)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_request_without_an_mcp_session_is_told_how_to_get_one() {
        let text = Full::from("Bad Request: Session ID is required").boxed_unsync();
        let mut response = Response::new(text);
        *response.status_mut() = StatusCode::BAD_REQUEST;
        let answer = explained(response, b"{}", true).await;
        let json: Value = serde_json::from_slice(&whole(answer.into_body()).await).expect("JSON");
        let message = json["error"]["message"].as_str().expect("a text");
        assert!(message.contains("Send initialize first"), "{message}");
    }
}
