//! The page for people: `GET /`, and a session's at `GET /files/{session}/`.
//!
//! One document, the same for all users: it requests its data ([`api`](super::api)) with the token that the
//! user enters or the signature in its URL. It loads nothing from elsewhere and runs no script but its own.

use std::sync::LazyLock;

use axum::{
    http::{HeaderMap, header},
    response::{Html, IntoResponse, Response},
};
use base64::{Engine, prelude::BASE64_STANDARD};
use sha2::{Digest, Sha256};

const STYLE: &str = include_str!("page/style.css");
const SCRIPT: &str = include_str!("page/script.js");

static DOCUMENT: LazyLock<String> = LazyLock::new(|| {
    let frame = include_str!("page/index.html");
    frame.replace("/* style.css */", STYLE).replace("/* script.js */", SCRIPT)
});

/// Allows only the page's own style and script, by hash. Files from sandboxes are shown as images, as text
/// and, from memory with a type that we set, as PDF; they are never run.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    let hash = |text: &str| format!("'sha256-{}'", BASE64_STANDARD.encode(Sha256::digest(text)));
    format!(
        "default-src 'none'; script-src {}; style-src {}; img-src 'self' data:; connect-src 'self'; \
         frame-src blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
         require-trusted-types-for 'script'",
        hash(SCRIPT),
        hash(STYLE)
    )
});

pub(in crate::http) async fn page() -> Response {
    let headers = [(header::CONTENT_SECURITY_POLICY, &**POLICY), (header::VARY, "Accept")];
    (headers, Html(&**DOCUMENT)).into_response()
}

/// Whether a browser sends the request, for a person: other clients that ask for a session want its files.
pub(in crate::http) fn is_wanted(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepted.into_iter().any(|accepted| accepted.contains("text/html"))
}
