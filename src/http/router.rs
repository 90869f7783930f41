//! Maps URLs to handlers, and applies what all answers have in common.

use axum::{
    Router,
    extract::{Request, State},
    http::{HeaderName, HeaderValue, Method, StatusCode, header, request::Parts},
    middleware::{Next, from_fn, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::{MethodRouter, any, delete, get, post, put},
};
use config::{Config, Right};
use serde_json::json;
use tower_http::{
    cors::{AllowOrigin, CorsLayer},
    timeout::RequestBodyTimeoutLayer,
};

use super::{
    audited, connections, download,
    error::{ApiError, Result, in_messages, reply},
    forward::forward,
    hosts::{self, Refusal},
    mcp::mcp,
    metrics, oauth,
    shared::Shared,
    upload, viewer,
};
use crate::{error::Error, signed_urls::Base};

/// A method of a URL.
struct Endpoint {
    method: Method,
    path: &'static str,
    /// The right that a caller with a token must have.
    needs: Option<Right>,
    handler: MethodRouter<Shared>,
}

/// All endpoints. At MCP's URL, the one for POST answers every method.
fn endpoints() -> Vec<Endpoint> {
    use Right::{Audit, Metrics, OwnSessions};
    let own = Some(OwnSessions);
    let endpoint = |method, path, needs, handler| Endpoint { method, path, needs, handler };
    vec![
        endpoint(Method::GET, "/", None, get(viewer::page)),
        endpoint(Method::GET, "/page/frame", None, get(viewer::frame)),
        endpoint(Method::GET, "/sessions", own, get(viewer::list)),
        endpoint(Method::GET, "/sessions/{session}", own, get(viewer::one)),
        endpoint(Method::DELETE, "/sessions/{session}", own, delete(viewer::end)),
        endpoint(Method::DELETE, "/sessions/{session}/runs/{run}", own, delete(viewer::cancel)),
        endpoint(
            Method::POST,
            "/sessions/{session}/approvals/{approval}",
            own,
            post(viewer::decide),
        ),
        endpoint(Method::POST, "/files", own, post(upload::post)),
        endpoint(Method::POST, "/files/", own, post(upload::post)),
        endpoint(Method::GET, "/files/{session}", own, get(download::all)),
        endpoint(Method::POST, "/files/{session}", own, post(upload::post)),
        endpoint(Method::GET, "/files/{session}/", own, get(download::all)),
        endpoint(Method::POST, "/files/{session}/", own, post(upload::post)),
        endpoint(Method::GET, "/files/{session}/{*path}", own, get(download::one)),
        endpoint(Method::PUT, "/files/{session}/{*path}", own, put(upload::put)),
        endpoint(Method::POST, "/files/{session}/{*path}", own, post(upload::post_to)),
        endpoint(Method::POST, "/mcp", own, any(mcp)),
        endpoint(Method::POST, "/mcp/", own, any(mcp)),
        endpoint(Method::GET, oauth::METADATA, None, get(oauth::metadata)),
        endpoint(
            Method::GET,
            "/.well-known/oauth-protected-resource/mcp",
            None,
            get(oauth::metadata),
        ),
        endpoint(
            Method::GET,
            "/.well-known/oauth-protected-resource/mcp/",
            None,
            get(oauth::metadata),
        ),
        endpoint(Method::GET, "/health", None, get(health)),
        endpoint(Method::GET, "/ready", None, get(ready)),
        endpoint(Method::GET, "/metrics", Some(Metrics), get(metrics::read)),
        endpoint(Method::GET, "/audit", Some(Audit), get(audited::file)),
    ]
}

/// The methods and paths of all endpoints, with the right that each needs. With a query, those about sessions have
/// other endpoints for the sessions of all callers.
pub fn rights() -> Vec<(Method, String, Option<Right>)> {
    let plain = endpoints().into_iter().map(|it| (it.method, it.path.to_owned(), it.needs));
    let all = [(Method::GET, "/sessions?all"), (Method::DELETE, "/sessions/{session}?caller=ann")];
    let all = all.map(|(method, path)| (method, path.to_owned(), Some(Right::AllSessions)));
    plain.chain(all).collect()
}

/// Refuses a request with the token of a caller that does not have the right which the endpoint needs.
async fn check_role(
    State((shared, needs)): State<(Shared, Right)>,
    request: Request,
    next: Next,
) -> Result<Response> {
    let of_others = viewer::OfOthers::of(request.uri());
    let needs = if of_others.is_some() { Right::AllSessions } else { needs };
    shared.access.check_role(request.headers(), needs)?;
    Ok(next.run(request).await)
}

/// The routes of the server, with their layers.
pub(super) fn router(shared: Shared) -> Router {
    let with_check = |Endpoint { path, needs, handler, .. }: Endpoint| match needs {
        Some(right) => {
            (path, handler.layer(from_fn_with_state((shared.clone(), right), check_role)))
        }
        None => (path, handler),
    };
    let router = endpoints()
        .into_iter()
        .map(with_check)
        .fold(Router::new(), |router, (path, handler)| router.route(path, handler))
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
        .layer(from_fn_with_state(shared.clone(), oauth::authorize))
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
            let scheme = shared.sessions.config().scheme();
            request.extensions_mut().insert(Base::at(scheme, host.as_str()));
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
