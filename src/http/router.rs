//! Maps URLs to handlers, and applies what all answers have in common.

use axum::{
    Router,
    extract::{Request, State},
    http::{HeaderName, HeaderValue, Method, StatusCode, header, request::Parts},
    middleware::{Next, from_fn, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::{any, get, post},
};
use config::Config;
use serde_json::json;
use tower_http::{
    cors::{AllowOrigin, CorsLayer},
    timeout::RequestBodyTimeoutLayer,
};

use super::{
    connections, download,
    error::{ApiError, Result, in_messages, reply},
    forward::forward,
    hosts::{self, Refusal},
    mcp::mcp,
    metrics,
    shared::Shared,
    upload, viewer,
};
use crate::{error::Error, signed_urls::Base};

/// The routes of the server, with their layers.
pub(super) fn router(shared: Shared) -> Router {
    let all = get(download::all).post(upload::post);
    let router = Router::new()
        .route("/", get(viewer::page))
        .route("/sessions", get(viewer::list))
        .route("/sessions/{session}", get(viewer::one).delete(viewer::end))
        .route("/files", post(upload::post))
        .route("/files/", post(upload::post))
        .route("/files/{session}", all.clone())
        .route("/files/{session}/", all)
        .route(
            "/files/{session}/{*path}",
            get(download::one).put(upload::put).post(upload::post_to),
        )
        .route("/mcp", any(mcp))
        .route("/mcp/", any(mcp))
        .route("/health", get(health))
        .route("/ready", get(ready))
        .route("/metrics", get(metrics::read))
        .fallback(|| async { ApiError::not_found("There is nothing at this URL.") })
        .method_not_allowed_fallback(|| async {
            let why = "This URL does not allow that method.";
            ApiError::refused(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", why)
        });
    let config = shared.sessions.config();
    let router =
        if config.allowed_origins.is_empty() { router } else { router.layer(cors(config)) };
    router
        .layer(from_fn_with_state(shared.clone(), forward))
        .layer(from_fn_with_state(shared.clone(), guard))
        .layer(from_fn(in_messages))
        .layer(from_fn_with_state(shared.clone(), metrics::count))
        .layer(from_fn(connections::occupy))
        // The timeout is between two parts of a body, not for all of it.
        .layer(RequestBodyTimeoutLayer::new(shared.limits.stall))
        .with_state(shared)
}

/// CORS for pages of the sites in the settings: what they may read. [`guard`] decides before whether they may call.
fn cors(config: &Config) -> CorsLayer {
    let listed = config.allowed_origins.clone();
    let is_listed = move |origin: &HeaderValue, _: &Parts| {
        origin.to_str().is_ok_and(|origin| hosts::is_listed(&listed, origin))
    };
    let named = |names: &[&'static str]| -> Vec<HeaderName> {
        names.iter().map(|name| HeaderName::from_static(name)).collect()
    };
    CorsLayer::new()
        .allow_origin(AllowOrigin::predicate(is_listed))
        .allow_methods([Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::DELETE])
        .allow_headers(named(&[
            "accept",
            "authorization",
            "baggage",
            "content-type",
            "if-none-match",
            "last-event-id",
            "mcp-method",
            "mcp-name",
            "mcp-protocol-version",
            "mcp-session-id",
            "prefer",
            "range",
            "traceparent",
            "tracestate",
        ]))
        .expose_headers(named(&[
            "accept-ranges",
            "content-disposition",
            "content-range",
            "etag",
            "mcp-session-id",
            "retry-after",
            "www-authenticate",
        ]))
}

/// Refuses requests for other hosts, records the host of the others, and gives every answer headers that make
/// it harmless in a browser.
async fn guard(State(shared): State<Shared>, mut request: Request, next: Next) -> Response {
    let is_signed = hosts::is_signed(request.uri());
    // The server that passed the request on has checked its host.
    let host = if shared.is_for_peers {
        hosts::wanted(&request).ok_or(Refusal::Unclear)
    } else {
        shared.hosts.check(&request)
    };
    let mut response = match host {
        Ok(host) => {
            request.extensions_mut().insert(Base::at(host.as_str()));
            next.run(request).await
        }
        Err(refusal) => turned_away(refusal).into_response(),
    };
    let headers = response.headers_mut();
    // Browsers must use this type, whatever the bytes look like.
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    // A hostile page or SVG must not run scripts or load anything in the reader's browser.
    headers
        .entry(header::CONTENT_SECURITY_POLICY)
        .or_insert(HeaderValue::from_static("sandbox; default-src 'none'"));
    // A URL may be a credential by itself, so other sites must not get it.
    headers.entry(header::REFERRER_POLICY).or_insert(HeaderValue::from_static("no-referrer"));
    // Pages of other sites may embed files for which they have a signed URL, and nothing else.
    let embedded = if is_signed { "cross-origin" } else { "same-origin" };
    headers.insert("cross-origin-resource-policy", HeaderValue::from_static(embedded));
    // A file may change at any time under the same URL: browsers must revalidate a cached copy, which costs
    // an `If-None-Match`, and only the reader's own browser may cache it.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
    response
}

fn turned_away(refusal: Refusal) -> ApiError {
    match refusal {
        Refusal::Unclear => ApiError::bad_request("The request names no host, or more than one."),
        Refusal::Another => ApiError::refused(
            StatusCode::MISDIRECTED_REQUEST,
            "unknown_host",
            "This server does not answer to that host name. Add it to SANDBOX_ALLOWED_HOSTS.",
        ),
        Refusal::Foreign => ApiError::refused(
            StatusCode::FORBIDDEN,
            "foreign_origin",
            "Pages of that site may not call this server. Add its origin to SANDBOX_ALLOWED_ORIGINS.",
        ),
    }
}

/// Says that the process answers, and which server it is.
async fn health() -> Response {
    reply(StatusCode::OK, &json!({ "status": "healthy", "server": env!("CARGO_PKG_NAME") }))
}

/// Whether a session could be started now.
async fn ready(State(shared): State<Shared>) -> Result<Response> {
    if shared.sessions.host().is_ending_soon() {
        return Err(Error::SandboxUnavailable("The server is about to end.".into()).into());
    }
    let ready = shared.readiness.ask().await;
    ready.map_err(|why| Error::SandboxUnavailable(why.to_string()))?;
    let body = json!({ "status": "ready", "sessions": shared.sessions.host().count() });
    Ok(reply(StatusCode::OK, &body))
}
