//! What is under way beside the loop, as it is when it is done.

use std::time::{Duration, Instant};

use model::RunId;
use protocol::message::{RuntimeName, WarmDone};

use super::super::{
    RunReport, operations::Operated, pictures::Picture, reply::Reply, run::Ran, view::View,
};
use crate::link::{Link, LinkError};

/// Work that is done, with what is needed to answer.
pub(super) enum Finished {
    Run(Box<FinishedRun>),
    /// What a run has drawn, as it was when that ended.
    Drawn(Vec<Picture>),
    /// A run that the server before this one has begun, and whose result is nobody's.
    Leftover,
    Operated(Operated),
    /// The state of this number, for viewers.
    Seen(Result<View, LinkError>, u64),
    /// What counts as nobody's activity.
    Upkeep(Upkeep),
}

pub(super) struct FinishedRun {
    pub(super) run_id: RunId,
    pub(super) timeout: Duration,
    pub(super) language: RuntimeName,
    pub(super) is_cell: bool,
    pub(super) done: Result<Ran, LinkError>,
    pub(super) reply: Reply<RunReport>,
}

pub(super) enum Upkeep {
    Checked(Operated),
    Warmed(WarmDone, Duration),
    Done,
}

/// Waits until runs start warm, or it is known that they will not.
pub(super) async fn warmed(link: Link) -> Upkeep {
    let begun = Instant::now();
    match link.warm().await {
        // Neither is there anything to say of one that hibernates already.
        Ok(done) if done.ready || !done.problems.is_empty() => {
            Upkeep::Warmed(done, begun.elapsed())
        }
        _ => Upkeep::Done,
    }
}

/// Gives up what makes runs start warm.
pub(super) async fn hibernated(link: Link) -> Upkeep {
    // A link that fails here ends, which is noticed as such.
    let _ = link.hibernate(false).await;
    Upkeep::Done
}
