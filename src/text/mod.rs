//! Text that is shown to people and models: cut between characters, without what moves a cursor, and
//! with sizes and times as they are written. Pure.

mod printable;
mod size;
mod time;
pub(crate) mod utf8;

pub(crate) use self::{
    printable::{printable, without_controls},
    size::human_size,
    time::whole_ms,
};
