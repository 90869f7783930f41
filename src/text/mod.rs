//! Text that is shown to people and models: cut between characters, without what moves a cursor, and
//! with sizes as people write them. Pure.

mod printable;
mod size;
pub(crate) mod utf8;

pub(crate) use self::{
    printable::{printable, without_controls},
    size::human_size,
};
