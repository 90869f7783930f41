//! A session: one sandbox, and one task that owns it.
//!
//! - [`state`]: the rules, pure. [`phase`]: what it is doing.
//! - [`origin`]: how it began; [`beginning`]: how much of a saved state it has; [`setup`]: the parts it is started
//!   with; [`handle`]: its interface; [`lease`]: its name and permit.
//! - [`driver`]: the task; [`command`]: its commands; [`reply`]: their answers; [`sandbox`]: starting and ending.
//! - [`report`]: the result of a run that its caller gets; [`results`]: results for callers that ask for them later.
//! - [`operations`]: operations beside runs, a file each; [`explain`]: what their failures mean.
//! - [`events`]: what happens, and its observers; [`history`]: past runs, for viewers; [`spill`]: their texts that
//!   memory has no room for; [`pictures`]: their pictures.
//! - [`archiving`]: restore and save with the archive; [`hold`]: sandboxes that outlive their stream.
//! - [`traceback`]: tracebacks without what a model cannot act on.
//! - [`truncated`]: runs with more output for a caller to read; [`view`]: files and variables, for viewers.
//! - [`reader`]: reading a file in pieces, without the task; [`usage`]: whether the session is in use.
//! - [`label`]: its caller in metrics; [`spans`]: the spans of its runs.

pub(crate) mod archiving;
mod beginning;
pub(crate) mod command;
pub(crate) mod driver;
pub(crate) mod events;
pub(crate) mod explain;
pub(crate) mod handle;
pub(crate) mod history;
pub(crate) mod hold;
pub(crate) mod label;
pub(crate) mod lease;
pub(crate) mod operations;
pub(crate) mod origin;
mod phase;
pub(crate) mod pictures;
pub(crate) mod reader;
pub(crate) mod reply;
pub(crate) mod report;
pub(crate) mod results;
mod sandbox;
pub(crate) mod setup;
pub(crate) mod spans;
mod spill;
pub(crate) mod state;
mod traceback;
mod truncated;
pub(crate) mod usage;
pub(crate) mod view;

pub use self::{
    history::{History, PastCell, PastRun, RunEnd},
    phase::Phase,
    reader::{FileReader, PieceSizes, ReadError},
    report::{CellReport, RunReport},
};
