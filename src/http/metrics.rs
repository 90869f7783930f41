//! `GET /metrics`, and counting of requests.

use std::time::Duration;

use axum::{
    extract::{MatchedPath, Request, State},
    http::{HeaderMap, Method, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use tokio::time::timeout;

use super::{error::Result, shared::Shared};
use crate::metrics::CONTENT_TYPE;

/// Time for the engine to answer. A scraper waits for less time than a health check, and needs the other
/// metrics in any case.
const READY_TIMEOUT: Duration = Duration::from_secs(2);

/// All metrics, for callers who may read them.
pub(super) async fn read(State(shared): State<Shared>, headers: HeaderMap) -> Result<Response> {
    shared.access.may_read_metrics(&headers)?;
    let ready = timeout(READY_TIMEOUT, shared.readiness.ask()).await;
    let text = shared.sessions.host().metrics().text(matches!(ready, Ok(Ok(()))));
    Ok(([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response())
}

/// Counts requests and their answers, of all clients.
pub(super) async fn count(State(shared): State<Shared>, request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map_or("other", MatchedPath::as_str);
    let (route, method) = (route.to_owned(), word(request.method()));
    let response = next.run(request).await;
    shared.sessions.host().metrics().requested(route, method, response.status().as_u16());
    response
}

/// The method as a label; "other" if it is unknown, because clients can invent methods.
fn word(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}
