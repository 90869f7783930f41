//! A session: what a caller holds. One sandbox and one task that owns it.
//!
//! - [`state`]: the rules, pure. [`phase`]: what it is doing, in one word.
//! - [`setup`]: what it is made with; [`handle`]: how it is reached; [`lease`]: what it holds of the server.
//! - [`driver`]: the task; [`command`]: what it can be asked; [`reply`]: where the answer goes;
//!   [`sandbox`]: starting and ending.
//! - [`run`]: a program from start to end; [`report`]: what a caller is told of it.
//! - [`operations`]: what can be done beside runs, a file each; [`explain`]: what their failures mean.
//! - [`events`]: what happens, and who hears of it; [`history`]: what it has done, for its viewers;
//!   [`pictures`]: what it has drawn.
//! - [`traceback`]: tracebacks without what a model cannot act on.
//! - [`truncated`]: runs with more output for a caller to read; [`view`]: files and variables, for viewers.
//! - [`reader`]: reading a file in pieces, past the task; [`usage`]: whether it is in use.

pub(crate) mod archiving;
mod beginning;
pub(crate) mod command;
pub(crate) mod driver;
pub(crate) mod events;
pub(crate) mod explain;
pub(crate) mod handle;
pub(crate) mod history;
pub(crate) mod hold;
pub(crate) mod lease;
pub(crate) mod operations;
mod phase;
pub(crate) mod pictures;
pub(crate) mod reader;
pub(crate) mod reply;
pub(crate) mod report;
mod run;
mod sandbox;
pub(crate) mod setup;
mod shelf;
pub(crate) mod state;
mod traceback;
mod truncated;
pub(crate) mod usage;
pub(crate) mod view;

pub use self::{
    history::{History, PastCell, PastRun, RunEnd},
    phase::Phase,
    reader::{FileReader, Pieces, ReadError},
    report::{CellReport, RunReport},
};
