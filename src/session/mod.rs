//! A session: what a caller holds. One sandbox and one task that owns it.
//!
//! - [`state`]: the rules, pure.
//! - [`driver`]: the task; [`command`]: what it can be asked; [`sandbox`]: starting and ending.
//! - [`run`]: a program from start to end; [`report`]: what it looks like to a caller.
//! - [`upload`]: a file on its way in, at its sender's pace.
//! - [`history`]: what it has done, for people who look; [`looks`]: the files, for them.
//! - [`reader`]: reading a file in pieces, past the task; [`usage`]: whether it is in use.

pub(crate) mod command;
pub(crate) mod driver;
pub(crate) mod handle;
pub(crate) mod history;
mod looks;
pub(crate) mod reader;
pub(crate) mod report;
mod run;
mod sandbox;
pub(crate) mod setup;
pub(crate) mod state;
pub(crate) mod upload;
pub(crate) mod usage;

pub use self::{
    history::{Doing, Excerpt, History, PastRun, RunEnd},
    reader::{FileReader, Pieces, ReadError},
    report::{Artifact, Outcome, Output, RunReport},
};
pub use crate::ids::{RunId, SessionId};
