//! Results of the work in progress beside the loop.

use std::time::{Duration, Instant};

use model::RunId;
use protocol::message::{RuntimeName, WarmDone};

use super::super::{
    RunReport, operations::Operated, pictures::Picture, reply::Reply, run::Ran, view::View,
};
use crate::link::{Link, LinkError};

/// Finished work, with everything that its answer needs.
pub(super) enum Finished {
    Run(Box<FinishedRun>),
    /// The pictures of a run, as they were when it ended.
    Drawn(Vec<Picture>),
    /// The end of a run that the previous server has begun. No caller waits for its result.
    Leftover,
    Operated(Operated),
    /// The view of the state with this number.
    Seen(Result<View, LinkError>, u64),
    /// Work that does not count as activity.
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

/// Waits until runs start warm, or will not.
pub(super) async fn warmed(link: Link) -> Upkeep {
    let begun = Instant::now();
    match link.warm().await {
        // There is nothing to report if it hibernates already.
        Ok(done) if done.ready || !done.problems.is_empty() => {
            Upkeep::Warmed(done, begun.elapsed())
        }
        _ => Upkeep::Done,
    }
}

/// Gives up what makes runs start warm.
pub(super) async fn hibernated(link: Link) -> Upkeep {
    // If the link fails, it ends, and the loop notices that.
    let _ = link.hibernate(false).await;
    Upkeep::Done
}
