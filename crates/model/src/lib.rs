//! Values that all parts of the server share: names, paths, outcomes, texts. Plain data; nothing here reads, writes or
//! waits.
//!
//! - [`SessionId`], [`RunId`], [`Principal`], [`SessionKey`]: the names of sessions, runs and callers.
//! - [`DataPath`], [`Artifact`], [`artifact`]: the files of a session, as callers name them.
//! - [`Dataset`]: data of the operator that sandboxes can read.
//! - [`UpstreamName`]: a server or service of the operator that programs in sandboxes can call.
//! - [`Approval`], [`Decision`]: such a call of which a person must decide.
//! - [`Outcome`], [`CellStatus`], [`Output`]: how a run or cell ends, and what it prints.
//! - [`OwnSettings`], [`Lost`]: a session's own settings, and why a session was lost.
//! - [`SessionRecord`], [`WorkspaceId`]: what a later server needs to know of a session.
//! - [`package`]: packages as callers request them. [`text`]: texts for people and models.

pub mod approval;
pub mod artifact;
mod caller;
mod dataset;
mod ids;
mod outcome;
pub mod package;
mod record;
mod session;
pub mod text;
mod upstream;
mod world;

pub use self::{
    approval::{Approval, Decision},
    artifact::{Artifact, DataPath, Existing, FilePath, FoundFile, InvalidPath},
    caller::Principal,
    dataset::{DATASETS_DIR, Dataset, DatasetName, DatasetSource, InvalidDatasetName},
    ids::{InvalidSessionId, RunId, SessionId},
    outcome::{CellStatus, Outcome, Output},
    record::{SessionRecord, WorkspaceId},
    session::{Lost, LostReason, OwnSettings, SessionKey},
    upstream::{InvalidUpstreamName, UpstreamName},
    world::World,
};
