//! Text for people and models: cut between characters, without characters that move a cursor, and with sizes and times
//! as people write them. Pure.

pub mod encoding;
mod names;
mod printable;
mod size;
mod time;
pub mod utf8;

pub use self::{
    names::{nearest, quoted, quoted_path, quoted_within},
    printable::{printable, with_escaped_controls, without_controls},
    size::human_size,
    time::{fine_ms, human_time, whole_ms},
};
