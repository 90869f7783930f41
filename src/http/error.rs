//! The errors of HTTP requests, and their answers: a status, a stable code and a sentence, as JSON.
//!
//! Handlers and layers return them with `?`. At MCP's URL every error becomes a message of that protocol,
//! whichever layer it is from, because MCP clients show nothing else ([`in_messages`]).

use std::borrow::Cow;

use axum::{
    body::Body,
    extract::Request,
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use model::InvalidSessionId;
use serde_json::{Value, json};

use crate::{
    error::Error,
    oauth::Refused,
    request::{NO_MEMORY, REFUSED},
};

/// The result of a handler.
pub(super) type Result<T> = std::result::Result<T, ApiError>;

/// The message about a missing session, for a caller that knows only its name.
const NO_SESSION: &str =
    "There is no such session. If there was one, it has ended and its files are gone.";

/// The reason why a request failed or was refused.
#[derive(Debug)]
pub(super) enum ApiError {
    /// A call that could not be carried out.
    Failed(Error),
    /// A file or session that cannot be used; most reasons are answered as "not found".
    Gone(Error),
    /// There is no such session.
    NoSession,
    /// There is no such file.
    NoFile,
    /// An error after files of the same request were written, with those files as a complete answer would show them.
    AfterFiles(Box<Self>, Vec<Value>),
    /// The request is not for this server, or has a wrong form: a status, a stable code and a sentence.
    Refused(StatusCode, &'static str, Cow<'static, str>),
    /// The request needs a credential, and carried none or an invalid one.
    Unauthorized(Needed, Tried),
    /// The caller has reached its limit of connections.
    TooManyConnections,
    /// The caller has reached its limit of requests; seconds until the next one is allowed.
    RateLimited(u64),
    /// Requests hold all memory that they may hold.
    NoMemory,
}

/// The credential that a request needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Needed {
    /// A client's token.
    Token,
    /// A client's token, or an access token of the authorization server.
    AnyToken,
    /// The token for the metrics.
    MetricsToken,
    /// A signed URL: the server has no tokens.
    SignedUrl,
}

/// Whether a request carried a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tried {
    Nothing,
    /// A token that is not valid here.
    Token,
    /// An access token that is refused.
    AccessToken(Refused),
}

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<InvalidSessionId> for ApiError {
    fn from(error: InvalidSessionId) -> Self {
        Self::Failed(error.into())
    }
}

impl ApiError {
    pub(super) fn refused(
        status: StatusCode,
        code: &'static str,
        message: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self::Refused(status, code, message.into())
    }

    /// A 404 with this message.
    pub(super) fn not_found(message: &'static str) -> Self {
        Self::refused(StatusCode::NOT_FOUND, "not_found", message)
    }

    pub(super) fn bad_request(message: &'static str) -> Self {
        Self::refused(StatusCode::BAD_REQUEST, "bad_request", message)
    }

    fn parts(self) -> (StatusCode, HeaderMap, Value) {
        let body = |code: &str, message: &str| json!({ "error": code, "message": message });
        let mut headers = HeaderMap::new();
        let mut with = |name: HeaderName, value: HeaderValue| headers.insert(name, value);
        let (status, body) = match self {
            Self::Failed(error) => (status(&error), error.to_json()),
            Self::Gone(error) => match error {
                // The session still exists but cannot be used now, or the server itself failed.
                Error::Internal(_)
                | Error::MaxSessions { .. }
                | Error::TooManySessions { .. }
                | Error::SandboxUnavailable(_) => return Self::Failed(error).parts(),
                Error::SessionNotFound(_)
                | Error::SessionEnded { .. }
                | Error::SessionEvicted(_)
                | Error::SandboxDied(_)
                | Error::ToolDied => {
                    return Self::NoSession.parts();
                }
                _ => return Self::NoFile.parts(),
            },
            Self::AfterFiles(error, files) => {
                let (status, headers, mut body) = error.parts();
                body["files"] = files.into();
                return (status, headers, body);
            }
            Self::NoSession => (StatusCode::NOT_FOUND, body("not_found", NO_SESSION)),
            Self::NoFile => (StatusCode::NOT_FOUND, body("not_found", "There is no such file.")),
            Self::Refused(status, code, message) => (status, body(code, &message)),
            Self::Unauthorized(needed, tried) => {
                let (status, code, why) = tried.parts();
                if status == StatusCode::SERVICE_UNAVAILABLE {
                    with(header::RETRY_AFTER, 10.into());
                } else if let Some(challenge) = tried.challenge(why) {
                    with(header::WWW_AUTHENTICATE, challenge);
                }
                let advice = (status == StatusCode::UNAUTHORIZED).then(|| needed.message());
                let told: Vec<_> = why
                    .map(|why| format!("The access token {why}."))
                    .into_iter()
                    .chain(advice.map(str::to_owned))
                    .collect();
                let mut body = body(code, &told.join(" "));
                if needed == Needed::SignedUrl {
                    // Tells the page in the browser that no token would help.
                    body["needs"] = "url".into();
                }
                (status, body)
            }
            Self::TooManyConnections => {
                with(header::CONNECTION, HeaderValue::from_static("close"));
                with(header::RETRY_AFTER, 10.into());
                let why = "This client has reached its limit of connections. Close some first.";
                (StatusCode::TOO_MANY_REQUESTS, body("too_many_connections", why))
            }
            Self::RateLimited(seconds) => {
                with(header::RETRY_AFTER, seconds.into());
                let why = format!("Too many requests. Try again in {seconds} s.");
                (StatusCode::TOO_MANY_REQUESTS, body("rate_limited", &why))
            }
            Self::NoMemory => {
                with(header::RETRY_AFTER, 10.into());
                (StatusCode::SERVICE_UNAVAILABLE, body("too_busy", NO_MEMORY))
            }
        };
        (status, headers, body)
    }
}

/// The body of an error's answer, attached to the answer for [`in_messages`].
#[derive(Debug, Clone)]
struct Told(Value);

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let (status, headers, body) = self.parts();
        let mut response = (status, headers, json_body(&body)).into_response();
        response.extensions_mut().insert(Told(body));
        response
    }
}

/// Turns errors at MCP's URL into messages of its protocol.
pub(super) async fn in_messages(request: Request, next: Next) -> Response {
    let is_mcp = matches!(request.uri().path(), "/mcp" | "/mcp/");
    let mut response = next.run(request).await;
    if let Some(Told(data)) = response.extensions_mut().remove().filter(|_| is_mcp) {
        let error = json!({ "code": REFUSED, "message": data["message"], "data": data });
        let message = json!({ "jsonrpc": "2.0", "id": null, "error": error });
        *response.body_mut() = Body::from(message.to_string());
    }
    response
}

impl Needed {
    fn message(self) -> &'static str {
        match self {
            Self::Token => {
                "Send one of this server's tokens, which `llm-sandbox token` prints: \
                 Authorization: Bearer <token>."
            }
            Self::AnyToken => {
                "Send an access token of this server's authorization server, or one of its own tokens: \
                 Authorization: Bearer <token>."
            }
            Self::MetricsToken => {
                "Send the token of SANDBOX_METRICS_TOKEN: Authorization: Bearer <token>."
            }
            Self::SignedUrl => {
                "Open one of the URLs that this server gave to its MCP client: this server has no \
                 tokens, and list_artifacts returns a page_url and download URLs."
            }
        }
    }
}

impl Tried {
    /// The status and code of the refusal, and why an access token is refused.
    fn parts(self) -> (StatusCode, &'static str, Option<&'static str>) {
        let refused = match self {
            Self::Nothing | Self::Token => return (StatusCode::UNAUTHORIZED, "unauthorized", None),
            Self::AccessToken(refused) => refused,
        };
        let (status, code, why) = match refused {
            Refused::Invalid(why) => (StatusCode::UNAUTHORIZED, "unauthorized", why),
            Refused::Scope => {
                let why = "lacks a scope that this server requires";
                (StatusCode::FORBIDDEN, "insufficient_scope", why)
            }
            Refused::Policy => {
                let why = "is of a caller for whom this server has no policy";
                (StatusCode::FORBIDDEN, "no_policy", why)
            }
            Refused::NoKeys => {
                let why = "cannot be checked now, because the authorization server has not told its keys; try again";
                (StatusCode::SERVICE_UNAVAILABLE, "authorization_server_unavailable", why)
            }
        };
        (status, code, Some(why))
    }

    /// The `WWW-Authenticate` header that a refusal must have (RFC 6750, section 3): without an error code for a request
    /// without a token.
    fn challenge(self, why: Option<&str>) -> Option<HeaderValue> {
        let error = match self {
            Self::Nothing => "",
            Self::Token | Self::AccessToken(Refused::Invalid(_)) => ", error=\"invalid_token\"",
            Self::AccessToken(Refused::Scope) => ", error=\"insufficient_scope\"",
            Self::AccessToken(Refused::Policy | Refused::NoKeys) => return None,
        };
        let why = why.map(|why| format!(", error_description=\"The access token {why}\""));
        let why = why.unwrap_or_default();
        HeaderValue::try_from(format!("Bearer realm=\"llm-sandbox\"{error}{why}")).ok()
    }
}

fn status(error: &Error) -> StatusCode {
    match error {
        Error::InvalidSessionId
        | Error::InvalidFilename(_)
        | Error::InvalidPath(_)
        | Error::IsFolder(_)
        | Error::InvalidBase64(_)
        | Error::InvalidArgument(_)
        | Error::UnsupportedLanguage(_) => StatusCode::BAD_REQUEST,
        Error::NotFound(_)
        | Error::NotFoundNear { .. }
        | Error::OutputNotKept(_)
        | Error::SessionNotFound(_)
        | Error::SessionEnded { .. }
        | Error::SessionEvicted(_) => StatusCode::NOT_FOUND,
        Error::FileExists(_) | Error::SessionBusy { .. } | Error::NothingToUndo(_) => {
            StatusCode::CONFLICT
        }
        // No route installs packages.
        Error::Package(_) => StatusCode::UNPROCESSABLE_ENTITY,
        Error::ArtifactTooLarge { .. }
        | Error::UploadTooLarge { .. }
        | Error::MessageTooLarge { .. }
        | Error::CodeTooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
        Error::QuotaExceeded(_) => StatusCode::INSUFFICIENT_STORAGE,
        Error::TooManySessions { .. } => StatusCode::TOO_MANY_REQUESTS,
        Error::MaxSessions { .. }
        | Error::SandboxUnavailable(_)
        | Error::SandboxDied(_)
        | Error::ToolDied => StatusCode::SERVICE_UNAVAILABLE,
        Error::Internal(_) => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// An answer that is not an error.
pub(super) fn reply(status: StatusCode, body: &Value) -> Response {
    (status, json_body(body)).into_response()
}

fn json_body(body: &Value) -> impl IntoResponse + use<> {
    ([(header::CONTENT_TYPE, "application/json")], body.to_string())
}

#[cfg(test)]
mod tests {
    use axum::{Router, body::to_bytes, middleware::from_fn};
    use tower_service::Service;

    use super::*;

    #[tokio::test]
    async fn a_client_of_mcp_is_refused_in_a_message_of_its_protocol() {
        let router = || {
            let router = Router::new().fallback(|| async { ApiError::NoMemory });
            router.layer(from_fn(in_messages))
        };
        let refusal = async |path: &str| {
            let request = Request::builder().uri(path).body(Body::empty()).expect("valid");
            let refusal = router().call(request).await.expect("infallible");
            assert_eq!(refusal.status(), StatusCode::SERVICE_UNAVAILABLE);
            assert_eq!(refusal.headers()[header::CONTENT_TYPE], "application/json");
            assert_eq!(refusal.headers()[header::RETRY_AFTER], "10");
            let body = to_bytes(refusal.into_body(), 1 << 10).await.expect("short");
            serde_json::from_slice::<Value>(&body).expect("JSON")
        };
        for path in ["/mcp", "/mcp/", "/mcp?workspace=a"] {
            let message = refusal(path).await;
            assert_eq!((&message["jsonrpc"], &message["id"]), (&"2.0".into(), &Value::Null));
            assert_eq!(message["error"]["code"], REFUSED);
            assert_eq!(message["error"]["message"], NO_MEMORY);
            assert_eq!(message["error"]["data"]["error"], "too_busy");
        }
        assert_eq!(refusal("/files/").await["error"], "too_busy");
    }

    #[test]
    fn a_file_is_gone_for_any_reason_but_a_fault_of_our_own() {
        let status = |error| ApiError::Gone(error).into_response().status();
        assert_eq!(status(Error::NotFound("a".into())), StatusCode::NOT_FOUND);
        assert_eq!(status(Error::InvalidPath("b".into())), StatusCode::NOT_FOUND);
        assert_eq!(status(Error::Internal("c".into())), StatusCode::INTERNAL_SERVER_ERROR);
    }
}
