//! Makes the summary of a file, or the image of a page: waits for the process that does, until it is done, its time is
//! over, or something comes that a caller waits for.

use std::{os::fd::AsFd, time::Instant};

use agent_core::{Summarizing, no_summary};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use protocol::message::{Document, Failure, FailureCode, PageProblem, SummarizeDone, Summary};

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
    let report = wait(&mut summarizer, until, &switch, children);
    summarizer.end(children);
    if request.page.is_some() {
        // A program that draws pages starts others, and a document may have taken it over.
        children.end_run(&runtimes.kernels());
    }
    let report = match report {
        // The file's fault: the process has used its memory or time. A page that gives way can be asked for again.
        Err(failure)
            if request.page.is_some()
                && (failure.code == FailureCode::NotFound || Instant::now() >= until) =>
        {
            let document = Document { pages: 0, problem: Some(PageProblem::TooLarge) };
            return Ok((SummarizeDone { document: Some(document) }, vec![]));
        }
        report => report?,
    };
    let answer = if request.page.is_some() { page(report) } else { summary(&report) };
    answer.ok_or_else(no_summary)
}

fn summary(report: &[u8]) -> Option<(SummarizeDone, Vec<u8>)> {
    let summary: Summary = serde_json::from_slice(report).ok()?;
    Some((SummarizeDone::default(), serde_json::to_vec(&summary).ok()?))
}

/// The report on a page: a line that describes the document, and the image.
fn page(mut report: Vec<u8>) -> Option<(SummarizeDone, Vec<u8>)> {
    let end = report.iter().position(|byte| *byte == b'\n')?;
    let image = report.split_off(end + 1);
    let document: Document = serde_json::from_slice(&report).ok()?;
    Some((SummarizeDone { document: Some(document) }, image))
}

fn wait(
    summarizer: &mut Summarizer,
    until: Instant,
    switch: &KillSwitch,
    children: &mut Children,
) -> Result<Vec<u8>, Failure> {
    loop {
        match summarizer.attend(children) {
            Progress::Working => {}
            Progress::Done(report) => return Ok(report),
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
