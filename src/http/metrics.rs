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
use crate::{
    metrics::CONTENT_TYPE,
    trace::{Kind, Parent, Span},
};

/// Time for the engine to answer. A scraper waits for less time than a health check, and needs the other
/// metrics in any case.
const READY_TIMEOUT: Duration = Duration::from_secs(2);

/// The label of unknown methods and routes.
const OTHER: &str = "other";

/// All metrics, for callers who may read them.
pub(super) async fn read(State(shared): State<Shared>, headers: HeaderMap) -> Result<Response> {
    let names = shared.access.may_read_metrics(&headers)?;
    let ready = timeout(READY_TIMEOUT, shared.readiness.ask()).await;
    let text = shared.sessions.host().metrics().text(matches!(ready, Ok(Ok(()))), names);
    Ok(([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response())
}

/// Counts requests and their answers, of all clients. Requests of files have a span: those of MCP have one for each
/// message, and the others touch no session.
pub(super) async fn count(State(shared): State<Shared>, request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map_or(OTHER, MatchedPath::as_str);
    let (route, method) = (route.to_owned(), word(request.method()));
    let parent = Parent::of_headers(request.headers());
    let response = if route.starts_with("/files") {
        // Without the URL, which has names of files and signatures.
        let (name, known) = if method == OTHER { ("HTTP", "_OTHER") } else { (method, method) };
        let span = Span::begin(&parent, Kind::Server, format!("{name} {route}"));
        span.set("http.request.method", known);
        span.set("http.route", route.clone());
        let response = span.around(next.run(request)).await;
        span.set("http.response.status_code", i64::from(response.status().as_u16()));
        if response.status().is_server_error() {
            span.fail(response.status().as_str().to_owned());
        }
        response
    } else {
        parent.around(next.run(request)).await
    };
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
        _ => OTHER,
    }
}
