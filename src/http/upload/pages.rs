//! Pages of our own: what a person sees who opens the URL of an upload.

use axum::{
    http::header,
    response::{Html, IntoResponse, Response},
};

/// A form that puts a file there.
pub(in crate::http) fn page() -> Response {
    ours(include_str!("upload.html"))
}

/// What is shown once the file is there.
pub(super) fn uploaded() -> Response {
    ours(include_str!("uploaded.html"))
}

/// A page that may do no more than it has to.
fn ours(page: &'static str) -> Response {
    const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; \
                          frame-ancestors 'none'; base-uri 'none'";
    // Without a referrer, browsers would send the form as from nowhere.
    let headers =
        [(header::CONTENT_SECURITY_POLICY, POLICY), (header::REFERRER_POLICY, "same-origin")];
    (headers, Html(page)).into_response()
}
