//! The page for people: `GET /`, and a session's at `GET /files/{session}/`.
//!
//! One document, the same for all users: it requests its data ([`api`](super::api)) with the token that the
//! user enters or the signature in its URL. It loads nothing from elsewhere and runs no script but its own. HTML files
//! from sandboxes run in a frame of their own, `GET /page/frame`.

use std::sync::LazyLock;

use axum::{
    http::{HeaderMap, HeaderName, header},
    response::{Html, IntoResponse, Response},
};
use base64::{Engine, prelude::BASE64_STANDARD};
use sha2::{Digest, Sha256};

/// The style of all pages for people.
pub(in crate::http) const STYLE: &str = include_str!("page/style.css");

/// The parts of the script, as one script: a part uses only those before it while the page starts.
const SCRIPT: &str = concat!(
    include_str!("page/base.js"),
    include_str!("page/ask.js"),
    include_str!("page/list.js"),
    include_str!("page/sessions.js"),
    include_str!("page/preview.js"),
    include_str!("page/markdown.js"),
    include_str!("page/office.js"),
    include_str!("page/parquet.js"),
    include_str!("page/notebook.js"),
    include_str!("page/runs.js"),
    include_str!("page/upload.js"),
    include_str!("page/session.js"),
    include_str!("page/viewer.js"),
    include_str!("page/start.js"),
);

static DOCUMENT: LazyLock<String> = LazyLock::new(|| {
    let frame = include_str!("page/index.html");
    frame.replace("/* style.css */", STYLE).replace("/* script.js */", SCRIPT)
});

/// Allows only the page's own style and script, by hash. Files from sandboxes are shown as images, as text
/// and, from memory with a type that we set, as PDF; HTML is passed to [`frame`]. The one trusted type, `xml`, is for
/// parsing XML, which runs nothing.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    format!(
        "default-src 'none'; script-src {}; style-src {}; img-src 'self' data: blob:; connect-src 'self'; \
         frame-src 'self' blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
         require-trusted-types-for 'script'; trusted-types xml",
        hash(SCRIPT),
        hash(STYLE)
    )
});

/// The source of a policy that allows this script or style.
pub(in crate::http) fn hash(text: &str) -> String {
    format!("'sha256-{}'", BASE64_STANDARD.encode(Sha256::digest(text)))
}

pub(in crate::http) async fn page() -> Response {
    let headers = [(header::CONTENT_SECURITY_POLICY, &**POLICY), (header::VARY, "Accept")];
    (headers, Html(&**DOCUMENT)).into_response()
}

/// The frame of HTML files, empty: the page passes the file's text in a message, so that this URL names no file and
/// needs no signature. Its origin is opaque, also if somebody opens it outside the page, and it has no network. Its
/// scripts cannot be limited by hashes, because they are the file's.
pub(in crate::http) async fn frame() -> Response {
    const FRAME: &str = include_str!("page/frame.html");
    const POLICY: &str = "sandbox allow-scripts; default-src 'none'; \
                          script-src 'unsafe-inline' 'unsafe-eval' data: blob:; style-src 'unsafe-inline' data:; \
                          img-src data: blob:; font-src data:; media-src data: blob:; worker-src blob:; \
                          connect-src 'none'; form-action 'none'; base-uri 'none'; frame-ancestors 'self'; \
                          webrtc 'block'";
    let headers = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (HeaderName::from_static("x-dns-prefetch-control"), "off"),
        (
            HeaderName::from_static("permissions-policy"),
            "camera=(), microphone=(), geolocation=(), clipboard-read=(), clipboard-write=()",
        ),
    ];
    (headers, Html(FRAME)).into_response()
}

/// Whether a browser sends the request, for a person: other clients that ask for a session want its files.
pub(in crate::http) fn is_wanted(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepted.into_iter().any(|accepted| accepted.contains("text/html"))
}
