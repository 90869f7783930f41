//! What goes into a result, within what a message can take.
//!
//! - [`budget`]: how much fits into one message; [`fit`]: making the result of a program do so.
//! - [`text`]: text, a page at a time; [`images`]: images for a model to look at.
//! - [`read`]: the content of a file; [`kind`]: what it is, if it is not shown.

pub(super) mod budget;
pub(super) mod fit;
pub(super) mod images;
pub(super) mod kind;
pub(super) mod read;
pub(super) mod text;
