//! This server as a resource server of OAuth 2.1: its metadata (RFC 9728), and answers that name it.

use axum::{
    Extension,
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    middleware::Next,
    response::Response,
};
use serde_json::json;

use super::{
    access::bearer,
    error::{ApiError, Result, reply},
    shared::Shared,
};
use crate::signed_urls::Base;

/// The path of the metadata of a server at the root; that of this server has the path of MCP at its end.
pub(super) const METADATA: &str = "/.well-known/oauth-protected-resource";

/// Answers with the metadata.
pub(super) async fn metadata(
    State(shared): State<Shared>,
    Extension(base): Extension<Base>,
) -> Result<Response> {
    let oauth = shared.sessions.host().permissions().oauth();
    let oauth =
        oauth.ok_or_else(|| ApiError::not_found("This server has no authorization server."))?;
    let settings = oauth.settings();
    let mut body = json!({
        "resource": format!("{}/mcp", shared.urls.for_client(Some(&base)).base()),
        "resource_name": shared.sessions.config().server_name,
        "authorization_servers": [settings.issuer],
        "bearer_methods_supported": ["header"],
    });
    if !settings.scopes.is_empty() {
        body["scopes_supported"] = json!(settings.scopes);
    }
    Ok(reply(StatusCode::OK, &body))
}

/// Waits for the keys that a request's access token needs, and says in refusals where the metadata is.
pub(super) async fn authorize(
    State(shared): State<Shared>,
    request: Request,
    next: Next,
) -> Response {
    let permissions = shared.sessions.host().permissions();
    let Some(oauth) = permissions.oauth() else { return next.run(request).await };
    if let Some(bearer) = bearer(request.headers()) {
        permissions.prepare(bearer.token()).await;
    }
    let base = request.extensions().get::<Base>().cloned();
    let mut response = next.run(request).await;
    let urls = shared.urls.for_client(base.as_ref());
    complete(response.headers_mut(), urls.base(), &oauth.settings().scopes);
    response
}

/// Adds the URL of the metadata and the necessary scopes to a challenge, unless another server has added them.
fn complete(headers: &mut HeaderMap, base: &str, scopes: &[String]) {
    let Some(challenge) = headers.get(header::WWW_AUTHENTICATE).and_then(|it| it.to_str().ok())
    else {
        return;
    };
    if !challenge.starts_with("Bearer ") || challenge.contains("resource_metadata=") {
        return;
    }
    let mut challenge = format!("{challenge}, resource_metadata=\"{base}{METADATA}/mcp\"");
    if !scopes.is_empty() {
        let scope = format!(", scope=\"{}\"", scopes.join(" "));
        challenge += &scope;
    }
    if let Ok(challenge) = HeaderValue::from_str(&challenge) {
        headers.insert(header::WWW_AUTHENTICATE, challenge);
    }
}
