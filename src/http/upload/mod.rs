//! Files into a sandbox, streamed.
//!
//! - [`put`]: the body is the file; [`form`]: the files of a form; [`pages`]: what shows that form.
//! - [`target`]: where a request may write; [`drain`]: what is still sent after it was refused.

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

/// Memory that an upload holds, in bytes: pieces on their way in and out, and what is between the files of
/// a form.
const UPLOAD_BYTES: usize = MAX_BETWEEN + (768 << 10);

/// Most bytes of a form that are neither a file's nor the start of one.
const MAX_BETWEEN: usize = 256 << 10;
