//! Makes the summary of a file: waits for the process that does, until it is done, its time is over, or something comes
//! that a caller waits for.

use std::{os::fd::AsFd, time::Instant};

use agent_core::{Summarizing, no_summary};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use protocol::message::{Failure, FailureCode, SummarizeDone, Summary};

use crate::{
    processes::Children,
    runner::KillSwitch,
    runtimes::{Progress, Runtimes, Summarizer},
};

/// The answer to a request for a summary, with its body.
pub(crate) type Answer = Result<(SummarizeDone, Vec<u8>), Failure>;

/// Makes a summary.
pub(crate) fn make(
    summarizing: Summarizing<KillSwitch>,
    runtimes: &mut Runtimes,
    children: &mut Children,
) -> Answer {
    let Summarizing { request, file, until, switch, .. } = summarizing;
    let file = file.ok_or_else(no_summary)?;
    let mut summarizer = runtimes.summarize(&file, &request).ok_or_else(no_summary)?;
    drop(file);
    let summary = wait(&mut summarizer, until, &switch, children);
    summarizer.end(children);
    let summary = summary?;
    Ok((SummarizeDone {}, serde_json::to_vec(&summary).map_err(|_| no_summary())?))
}

fn wait(
    summarizer: &mut Summarizer,
    until: Instant,
    switch: &KillSwitch,
    children: &mut Children,
) -> Result<Box<Summary>, Failure> {
    loop {
        match summarizer.attend(children) {
            Progress::Working => {}
            Progress::Done(summary) => return Ok(summary),
            Progress::Failed => return Err(no_summary()),
        }
        let left = until.saturating_duration_since(Instant::now());
        let mut fds =
            [summarizer.as_fd(), switch.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        let ready = poll(&mut fds, PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO));
        let gives_way = fds[1].any() == Some(true);
        if gives_way
            || left.is_zero()
            || ready.is_err_and(|error| error != nix::errno::Errno::EINTR)
        {
            return Err(Failure::new(FailureCode::Busy, "no time for a summary"));
        }
    }
}
