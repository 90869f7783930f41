//! Counts the protocol's requests by method, over either transport, before they are processed.

use std::borrow::Cow;

use bytes::Bytes;
use futures::future::BoxFuture;
use hyper::Request;
use model::Principal;
use serde::{Deserialize, de::IgnoredAny};

use super::tasks;
use crate::{
    budget::Exhausted,
    metrics::Metrics,
    request::{Answer, McpService, RequestMemory},
};

/// Methods that the server has, in any generation of the protocol.
const METHODS: [&str; 12] = [
    "initialize",
    "server/discover",
    "ping",
    CALL,
    "tools/list",
    "resources/list",
    "resources/templates/list",
    "resources/read",
    "subscriptions/listen",
    tasks::GET,
    tasks::UPDATE,
    tasks::CANCEL,
];

const CALL: &str = "tools/call";

/// Any other method.
const OTHER: &str = "other";

/// Length in bytes above which a message can only be a call, and is not searched for its method.
const LONG: usize = 256 << 10;

/// The labels of all methods.
pub(super) fn all() -> impl Iterator<Item = &'static str> {
    METHODS.into_iter().chain([OTHER])
}

/// The label of any method.
pub(super) fn known(method: &str) -> &'static str {
    METHODS.into_iter().find(|known| *known == method).unwrap_or(OTHER)
}

/// The label of a request's method; `None` if the message is no request, or cannot be read.
fn of_message(body: &[u8]) -> Option<&'static str> {
    #[derive(Deserialize)]
    struct Head<'a> {
        #[serde(borrow)]
        method: Cow<'a, str>,
        #[serde(rename = "id")]
        _id: IgnoredAny,
    }
    if body.len() > LONG {
        return Some(CALL);
    }
    serde_json::from_slice::<Head>(body).ok().map(|head| known(&head.method))
}

/// MCP over HTTP, counted.
#[derive(Debug)]
pub struct Counted<S> {
    service: S,
    metrics: Metrics,
}

impl<S> Counted<S> {
    /// Counts the requests of this service in these metrics.
    pub fn new(service: S, metrics: Metrics) -> Self {
        Self { service, metrics }
    }
}

impl<S: McpService> McpService for Counted<S> {
    fn longest_request(&self) -> usize {
        self.service.longest_request()
    }

    fn answer(
        &self,
        principal: Principal,
        memory: RequestMemory,
        request: Request<Bytes>,
    ) -> BoxFuture<'_, Result<Answer, Exhausted>> {
        if let Some(method) = of_message(request.body()) {
            self.metrics.mcp_requested(method);
        }
        self.service.answer(principal, memory, request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_a_word_of_ours_and_what_is_none_has_no_word() {
        let word = |body: &str| of_message(body.as_bytes());
        let request =
            |method: &str| format!("{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"{method}\"}}");
        assert_eq!(word(&request("tools/list")), Some("tools/list"));
        assert_eq!(word(&request("tools\\/list")), Some("tools/list"));
        assert_eq!(word(&request("zqmarkzq")), Some(OTHER));
        assert_eq!(word("{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}"), None);
        assert_eq!(word("{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}"), None);
        assert_eq!(word("no JSON"), None);
        assert_eq!(word(&" ".repeat(LONG + 1)), Some(CALL));
    }
}
