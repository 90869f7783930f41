//! The pages for a person who opens an upload URL.

use std::sync::LazyLock;

use axum::{
    http::header,
    response::{Html, IntoResponse, Response},
};
use model::{
    DataPath, SessionId,
    text::{human_size, without_controls},
};

use crate::http::viewer::{STYLE, hash};

/// The form that uploads a file of at most `limit` bytes.
pub(in crate::http) fn page(id: &SessionId, path: &DataPath, limit: u64) -> Response {
    ours(include_str!("upload.html"), id, path, &human_size(limit))
}

/// The page that is shown after the upload.
pub(super) fn uploaded(id: &SessionId, path: &DataPath) -> Response {
    ours(include_str!("uploaded.html"), id, path, "")
}

/// A page in the style of the session page that may do no more than it needs.
fn ours(page: &str, id: &SessionId, path: &DataPath, limit: &str) -> Response {
    static POLICY: LazyLock<String> = LazyLock::new(|| {
        format!(
            "default-src 'none'; style-src {}; img-src data:; form-action 'self'; frame-ancestors 'none'; \
             base-uri 'none'",
            hash(STYLE)
        )
    });
    // The filename comes last, because it may contain the other marks.
    let page = page
        .replace("/* style.css */", STYLE)
        .replace("{limit}", limit)
        .replace("{session}", &escaped(id.as_str()))
        .replace("{file}", &escaped(&without_controls(path.as_str().chars())));
    // Without a referrer, browsers would send the form with the origin `null`.
    let headers =
        [(header::CONTENT_SECURITY_POLICY, &**POLICY), (header::REFERRER_POLICY, "same-origin")];
    (headers, Html(page)).into_response()
}

/// A text as HTML shows it.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
