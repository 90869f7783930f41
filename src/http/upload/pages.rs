//! The pages for a person who opens an upload URL.

use axum::{
    http::header,
    response::{Html, IntoResponse, Response},
};

/// The form that uploads a file.
pub(in crate::http) fn page() -> Response {
    ours(include_str!("upload.html"))
}

/// The page that is shown after the upload.
pub(super) fn uploaded() -> Response {
    ours(include_str!("uploaded.html"))
}

/// A page that may do no more than it needs.
fn ours(page: &'static str) -> Response {
    const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; \
                          frame-ancestors 'none'; base-uri 'none'";
    // Without a referrer, browsers would send the form with the origin `null`.
    let headers =
        [(header::CONTENT_SECURITY_POLICY, POLICY), (header::REFERRER_POLICY, "same-origin")];
    (headers, Html(page)).into_response()
}
