//! The contents of results, within the limits of a message.
//!
//! - [`budget`]: how much fits into one message; [`fit`]: shortens the result of a program to that.
//! - [`text`]: text, a page at a time; [`images`]: images for a model to look at.
//! - [`groups`]: files by the pattern of their names.
//! - [`read`]: the content of a file; [`kind`]: its kind, if it cannot be shown.

pub(super) mod budget;
pub(super) mod fit;
pub(super) mod groups;
pub(super) mod images;
pub(super) mod kind;
pub(super) mod read;
pub(super) mod text;
