//! A run, from the program to the agent's reply: it is started, observed if its caller wants its progress, and killed
//! when it is no longer wanted.

use std::time::Duration;

use model::text::{utf8, without_controls};
use protocol::message::PeekDone;
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use super::command::Program;
use crate::link::{Link, LinkError, RunReply, RunRequest};
use crate::progress::Progress;

/// Interval at which progress is read: shorter than that at which it is passed on, so that it is recent.
const PEEK_INTERVAL: Duration = Duration::from_millis(400);

/// Longest line that is shown, in characters; only the end of a longer line is shown.
const MAX_SHOWN_CHARS: usize = 200;

/// The result of a program.
pub(super) struct Ran {
    /// The agent's id of the run.
    pub(super) call: u32,
    pub(super) reply: RunReply,
}

/// Runs a program to its end; kills it when its caller or the session no longer wants it.
pub(super) async fn execute(
    link: Link,
    program: Program,
    output_cap: usize,
    stop: CancellationToken,
) -> Result<Ran, LinkError> {
    let Program { language, cell, code, stdin, timeout, cancel, progress } = program;
    let request = RunRequest { runtime: language, code, stdin, timeout, output_cap, cell };
    let running = link.run(request).await?;
    let call = running.call;
    let finish = running.finish();
    tokio::pin!(finish);
    let unwanted = async {
        tokio::select! { () = cancel.cancelled() => {}, () = stop.cancelled() => {} }
    };
    let reply = tokio::select! {
        // A result that has arrived counts, even if something ended after it.
        biased;
        reply = &mut finish => reply,
        broken = tell(&link, call, progress) => Err(broken),
        () = unwanted => {
            link.kill(call).await?;
            finish.await
        }
    }?;
    Ok(Ran { call, reply })
}

/// Sends the progress of a run while its receiver is open. Returns only if the link ends.
async fn tell(link: &Link, run: u32, progress: Option<watch::Sender<Progress>>) -> LinkError {
    if let Some(progress) = progress {
        progress.send_modify(|it| (it.started, it.since) = (true, Some(Instant::now())));
        loop {
            tokio::select! {
                () = sleep(PEEK_INTERVAL) => {}
                () = progress.closed() => break,
            }
            match link.peek(run).await {
                Ok((done, newest)) => drop(progress.send_if_modified(|last| {
                    let since = if done.loading { Some(Instant::now()) } else { last.since };
                    let run_id = last.run_id.clone();
                    let next = Progress { run_id, since, ..seen(&done, &newest) };
                    let is_news = *last != next;
                    *last = next;
                    is_news
                })),
                // The run is over, and its reply is on the way.
                Err(LinkError::Refused(_)) => break,
                Err(error) => return error,
            }
        }
    }
    std::future::pending().await
}

fn seen(done: &PeekDone, line: &[u8]) -> Progress {
    let line = String::from_utf8_lossy(utf8::whole_start(line));
    let skip = line.chars().count().saturating_sub(MAX_SHOWN_CHARS);
    Progress {
        run_id: None,
        started: true,
        loading: done.loading,
        since: None,
        line: without_controls(line.chars().skip(skip)),
        written: done.stdout_total.saturating_add(done.stderr_total),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_line_is_shown_as_text_that_moves_no_cursor() {
        let done = PeekDone { stdout_total: 1, stderr_total: 2, loading: false };
        let line = |bytes: &[u8]| seen(&done, bytes).line;
        assert_eq!(line(" 50%|█  |".as_bytes()), " 50%|█  |");
        assert_eq!(line(b"\x1b[2J\x07\xff"), "\u{FFFD}[2J\u{FFFD}\u{FFFD}");
        assert_eq!(line(&"é".as_bytes()[1..]), "", "half a character");
        assert_eq!(line(&[&[b'x'; 300][..], b"end"].concat()), "x".repeat(197) + "end");
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_line_that_can_be_shown(
            line in prop::collection::vec(any::<u8>(), 0..600),
            stdout_total: u64,
            stderr_total: u64,
        ) {
            let done = PeekDone { stdout_total, stderr_total, loading: false };
            let progress = seen(&done, &line);
            prop_assert!(progress.line.chars().count() <= MAX_SHOWN_CHARS);
            prop_assert!(!progress.line.contains(char::is_control));
        }
    }
}
