//! Files into a sandbox, streamed.
//!
//! - [`mod@put`]: a file as the body; [`form`]: the files of a form; [`pages`]: the page with that form.
//! - [`target`]: the file that a request may write; [`drain`]: reads the rest of a body after a refusal.

mod drain;
mod form;
mod pages;
mod put;
mod target;

pub(super) use self::{
    drain::UnreadBody,
    form::{post, post_to},
    pages::page,
    put::put,
};

/// Memory of an upload, in bytes: pieces in transit, and the bytes between the files of a form.
const UPLOAD_BYTES: usize = MAX_BETWEEN + (768 << 10);

/// Maximum number of bytes of a form that belong to no file.
const MAX_BETWEEN: usize = 256 << 10;
