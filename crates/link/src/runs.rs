//! Runs over the link: how a program is sent, and how its reply is read and checked.
//!
//! ```text
//! request   Run | code, standard input
//! reply     RunDone | stdout head, stdout tail, stderr head, stderr tail, changed files as JSON
//! ```

use std::{ops::RangeInclusive, time::Duration};

use bytes::Bytes;
use protocol::{
    limits::{MAX_RESULT, MAX_UNDO},
    message::{
        Call, Captured, CellDone, End, Facts, FileEntry, Request, Run, RunDone, RuntimeName, Start,
    },
    resume::Remember,
};
use tokio::time::{Instant, timeout_at};

use super::{
    Link, LinkError,
    asks::Asks,
    millis,
    wire::{Awaited, broken},
};

/// Interval at which it is looked whether a run is still paused.
const PAUSE_CHECK: Duration = Duration::from_secs(1);

/// Numbers of Linux's signals, including real-time signals.
const SIGNALS: RangeInclusive<i32> = 1..=64;

/// A program to be run.
#[derive(Debug, Clone)]
pub struct RunRequest {
    /// The language whose interpreter runs it.
    pub runtime: RuntimeName,
    /// The program's text.
    pub code: Bytes,
    /// The program's standard input; `/dev/null` if `None`.
    pub stdin: Option<Bytes>,
    /// Wall time after which it is killed.
    pub timeout: Duration,
    /// Maximum number of bytes returned of each output: three fifths from its start and two fifths from its end.
    pub output_cap: usize,
    /// Whether the program is a cell of the workspace.
    pub cell: bool,
}

/// The result of a program. All values from the agent that can be checked have been checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunReply {
    /// The number of the run, by which the agent keeps its output.
    pub call: u32,
    /// Why the program ended. A signal has a valid number.
    pub end: End,
    /// How the program's interpreter was started.
    pub start: Start,
    /// Wall time of the program, no longer than the call took.
    pub elapsed: Duration,
    /// Wall time of the agent's work for the run, as the agent reports it.
    pub agent_elapsed: Duration,
    /// Processor time of the program's processes, as the agent reports it.
    pub cpu: Duration,
    /// Standard output, at most as much as was requested.
    pub stdout: CapturedOutput,
    /// Standard error, at most as much as was requested.
    pub stderr: CapturedOutput,
    /// New and changed files, by path. Their names may be anything.
    pub changed: Vec<FileEntry>,
    /// Changed files that did not fit.
    pub changed_omitted: usize,
    /// Other facts that the sandbox reports, which may be anything.
    pub facts: Facts,
    /// The effect on the workspace, if the program was a cell.
    pub cell: Option<CellReply>,
}

/// The effect of a cell on its workspace, as the agent reports it. The result has at most [`MAX_RESULT`] bytes, and at
/// most [`MAX_UNDO`] cells can be undone.
pub type CellReply = CellDone<CapturedOutput>;

/// The captured part of an output.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CapturedOutput {
    /// Bytes from the start.
    pub head: Bytes,
    /// Bytes from the end.
    pub tail: Bytes,
    /// Bytes that the program wrote, as the agent reports it. Nothing lies between head and tail unless it is more than
    /// they have.
    pub total: u64,
}

/// A run in progress: wait for [`finish`](Self::finish), or kill it by its number meanwhile.
#[derive(Debug)]
pub struct Running {
    /// The number of the run for [`Link::kill`].
    pub call: u32,
    pub(super) answer: Awaited,
    pub(super) begun: Instant,
    /// Longest time that it may take.
    pub(super) limit: Duration,
    pub(super) asked: Asked,
    /// The pauses of the link's runs, and their time before this run.
    pub(super) asks: Asks,
    pub(super) paused_before: Duration,
}

/// The values that a reply is checked against.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    pub(super) output_cap: usize,
    pub(super) cell: bool,
}

impl Running {
    /// Waits for the end.
    ///
    /// # Errors
    /// [`LinkError::Refused`] if the program could not be run, [`LinkError::Broken`] if the reply does not arrive in
    /// time or is invalid, [`LinkError::Closed`] if the link ends first.
    pub async fn finish(mut self) -> Result<RunReply, LinkError> {
        let closed = self.answer.closed.clone();
        let answered = self.answer_in_time().await;
        self.asks.end(self.call);
        let (done, body) = answered?;
        decode(self.call, done, body, self.asked, self.begun.elapsed())
            .map_err(|why| broken(&closed, why))
    }

    /// Waits for the answer. Time for which the run is paused does not count.
    async fn answer_in_time(&mut self) -> Result<(RunDone, Bytes), LinkError> {
        let Self { answer, begun, limit, asks, paused_before, .. } = self;
        let closed = answer.closed.clone();
        let answer = answer.decode::<Run>();
        tokio::pin!(answer);
        let end = || *begun + *limit + asks.paused().saturating_sub(*paused_before);
        loop {
            let until = if asks.is_paused() { Instant::now() + PAUSE_CHECK } else { end() };
            match timeout_at(until, &mut answer).await {
                Ok(answer) => return answer,
                Err(_) if asks.is_paused() || Instant::now() < end() => {}
                Err(_) => return Err(broken(&closed, "no answer to a call")),
            }
        }
    }
}

impl Link {
    /// Starts a program. Resolves when it has been sent.
    ///
    /// # Errors
    /// [`LinkError::Closed`] if the link has ended.
    pub async fn run(&self, request: RunRequest) -> Result<Running, LinkError> {
        self.run_noted(request, None::<fn(u32) -> Bytes>).await
    }

    /// Starts a program, after the agent was sent the note to [remember](Self::remember) that is made from the run's
    /// number. Resolves when both have been sent.
    ///
    /// # Errors
    /// [`LinkError::Closed`] if the link has ended.
    pub async fn run_noted(
        &self,
        request: RunRequest,
        note: Option<impl FnOnce(u32) -> Bytes>,
    ) -> Result<Running, LinkError> {
        let RunRequest { runtime, code, stdin, timeout, output_cap, cell } = request;
        let run = Run {
            runtime,
            code_len: code.len(),
            has_stdin: stdin.is_some(),
            timeout_ms: millis(timeout),
            output_cap,
            cell,
        };
        let body = match stdin {
            Some(stdin) => [code, stdin].concat().into(),
            None => code,
        };
        self.start(&run, body, timeout, Asked { output_cap, cell }, note).await
    }

    /// Starts a tool's program. The body is a [`CallInput`](protocol::message::CallInput) as JSON. Resolves when it
    /// has been sent.
    ///
    /// # Errors
    /// [`LinkError::Closed`] if the link has ended.
    pub async fn call_tool(&self, call: &Call, body: Bytes) -> Result<Running, LinkError> {
        let asked = Asked { output_cap: call.output_cap, cell: false };
        let timeout = Duration::from_millis(call.timeout_ms);
        self.start(call, body, timeout, asked, None::<fn(u32) -> Bytes>).await
    }

    async fn start<R: Request<Reply = RunDone>>(
        &self,
        request: &R,
        body: Bytes,
        timeout: Duration,
        asked: Asked,
        note: Option<impl FnOnce(u32) -> Bytes>,
    ) -> Result<Running, LinkError> {
        let begun = Instant::now();
        let (call, answer) = self.calls.begin();
        self.asks.begin(call);
        if let Some(note) = note {
            // The reply does not delay the run: nobody waits for it.
            let (remember, _) = self.calls.begin();
            self.send(remember, &Remember {}, note(call)).await?;
        }
        self.send(call, request, body).await?;
        let answer = Awaited { answer, closed: self.closed.clone() };
        let limit = timeout.saturating_add(self.silence);
        let (asks, paused_before) = (self.asks.clone(), self.asks.paused());
        Ok(Running { call, answer, begun, limit, asked, asks, paused_before })
    }
}

/// Reads the agent's reply. It is not trusted: a value that does not fit is an error.
fn decode(
    number: u32,
    done: RunDone,
    mut body: Bytes,
    asked: Asked,
    took: Duration,
) -> Result<RunReply, &'static str> {
    // More would make a message that the client may not accept, which would end all its sessions.
    for captured in [done.stdout, done.stderr] {
        if captured.head.saturating_add(captured.tail) > asked.output_cap {
            return Err("more output than was asked for");
        }
    }
    if let End::Signaled { signal } = done.end
        && !SIGNALS.contains(&signal)
    {
        return Err("there is no such signal");
    }
    if done.cell.is_some() != asked.cell {
        return Err("the reply to another kind of run");
    }
    let mut take = |len: usize| {
        if len > body.len() {
            Err("the reply is shorter than it says")
        } else {
            Ok(body.split_to(len))
        }
    };
    let mut output = |Captured { head, tail, total }: Captured| {
        Ok::<_, &'static str>(CapturedOutput { head: take(head)?, tail: take(tail)?, total })
    };
    let (stdout, stderr) = (output(done.stdout)?, output(done.stderr)?);
    let cell = match done.cell {
        Some(CellDone { result: Some(result), .. })
            if result.head.saturating_add(result.tail) > MAX_RESULT =>
        {
            return Err("a longer result than there may be");
        }
        Some(cell) => {
            let CellDone { state, fresh, count, memory_bytes, lost_threads, at_risk, .. } = cell;
            let result = cell.result.map(&mut output).transpose()?;
            let can_undo = cell.can_undo.min(MAX_UNDO);
            let cell = CellDone {
                state,
                fresh,
                count,
                result,
                memory_bytes,
                can_undo,
                lost_threads,
                at_risk,
            };
            Some(cell)
        }
        None => None,
    };
    let changed = take(done.changed_len)?;
    let changed = if changed.is_empty() {
        vec![]
    } else {
        serde_json::from_slice(&changed).map_err(|_| "the list of files cannot be read")?
    };
    Ok(RunReply {
        call: number,
        end: done.end,
        start: done.start,
        // The agent's time is limited to what can be true.
        elapsed: Duration::from_micros(done.elapsed_us).min(took),
        agent_elapsed: Duration::from_micros(done.agent_us),
        cpu: Duration::from_micros(done.cpu_us),
        stdout,
        stderr,
        changed,
        changed_omitted: done.changed_omitted,
        facts: done.facts,
        cell,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use protocol::message::Stamp;

    use super::*;

    const CAP: Asked = Asked { output_cap: 1000, cell: false };
    const TOOK: Duration = Duration::from_millis(5);

    fn done(end: End, stdout: (&[u8], &[u8], u64)) -> (RunDone, Bytes) {
        let (head, tail, total) = stdout;
        let done = RunDone {
            end,
            start: Start::Warm,
            elapsed_us: 1_500,
            agent_us: 1_600,
            cpu_us: 1,
            oom_kills: 0,
            stdout: Captured { head: head.len(), tail: tail.len(), total },
            stderr: Captured::default(),
            changed_len: 0,
            changed_omitted: 0,
            facts: Facts::default(),
            cell: None,
        };
        (done, [head, tail].concat().into())
    }

    const OK: End = End::Exited { code: 0 };

    #[test]
    fn a_reply_is_taken_apart_as_it_was_put_together() {
        let (mut done, _) = done(OK, (b"he", b"tail", 50));
        done.stderr = Captured { head: 3, tail: 0, total: 3 };
        let entry = FileEntry {
            path: "a.csv".into(),
            stamp: Stamp { ino: 1, size: 2, mtime_ns: 3, ctime_ns: 4 },
        };
        let json = serde_json::to_vec(&[&entry]).expect("serializes");
        (done.changed_len, done.changed_omitted) = (json.len(), 7);
        let body = [&b"hetailerr"[..], &json].concat().into();
        let reply = decode(7, done, body, CAP, TOOK).expect("well-formed");
        let captured = |head: &'static [u8], tail: &'static [u8], total| CapturedOutput {
            head: Bytes::from_static(head),
            tail: Bytes::from_static(tail),
            total,
        };
        assert_eq!(reply.stdout, captured(b"he", b"tail", 50));
        assert_eq!(reply.stderr, captured(b"err", b"", 3));
        assert_eq!((reply.changed, reply.changed_omitted), (vec![entry], 7));
        assert_eq!(reply.agent_elapsed, Duration::from_micros(1_600));
    }

    #[test]
    fn no_run_takes_longer_than_its_call() {
        let (mut done, body) = done(OK, (b"", b"", 0));
        let elapsed = |done: &RunDone| {
            decode(7, done.clone(), body.clone(), CAP, TOOK).map(|run| run.elapsed)
        };
        assert_eq!(elapsed(&done), Ok(Duration::from_micros(1_500)));
        done.elapsed_us = u64::MAX;
        assert_eq!(elapsed(&done), Ok(TOOK));
    }

    #[test]
    fn a_reply_that_lies_about_its_length_is_refused() {
        let (mut done, body) = done(OK, (b"abc", b"", 3));
        done.stderr.tail = 1;
        assert!(decode(7, done, body, CAP, TOOK).is_err());
    }

    #[test]
    fn figures_that_no_agent_could_mean_are_refused() {
        let read = |end, kept: usize| {
            let (done, body) = done(end, (&vec![0; kept], b"", 0));
            decode(7, done, body, CAP, TOOK)
        };
        assert!(read(OK, 1000).is_ok());
        assert!(read(OK, 1001).is_err(), "more than the cap");
        for signal in [i32::MIN, -1, 0, 65, i32::MAX] {
            assert!(read(End::Signaled { signal }, 0).is_err(), "{signal}");
        }
    }

    /// Lengths that mostly fit, and any others.
    fn any_length() -> impl Strategy<Value = usize> {
        prop_oneof![4 => 0usize..400, 1 => Just(2), 1 => any::<usize>()]
    }

    pub(crate) fn any_done() -> impl Strategy<Value = RunDone> {
        let end = prop_oneof![
            any::<i32>().prop_map(|code| End::Exited { code }),
            any::<i32>().prop_map(|signal| End::Signaled { signal }),
            (-1i32..70).prop_map(|signal| End::Signaled { signal }),
            Just(End::OutOfMemory),
            Just(End::TimedOut),
            Just(End::Killed),
        ];
        let captured = || {
            (any_length(), any_length(), prop_oneof![0u64..900, any::<u64>()])
                .prop_map(|(head, tail, total)| Captured { head, tail, total })
        };
        let changed_len = prop_oneof![3 => Just(0), 1 => any_length()];
        (end, any::<u64>(), captured(), captured(), changed_len, any::<usize>()).prop_map(
            |(end, elapsed_us, stdout, stderr, changed_len, changed_omitted)| RunDone {
                end,
                start: Start::Cold,
                elapsed_us,
                agent_us: 0,
                cpu_us: 0,
                oom_kills: 0,
                stdout,
                stderr,
                changed_len,
                changed_omitted,
                facts: Facts::default(),
                cell: None,
            },
        )
    }

    proptest! {
        #[test]
        fn any_reply_is_read_within_its_limits_or_refused(
            done in any_done(),
            body in prop::collection::vec(any::<u8>(), 0..3000),
        ) {
            let changed_len = done.changed_len;
            if let Ok(reply) = decode(7, done, body.into(), CAP, TOOK) {
                for output in [&reply.stdout, &reply.stderr] {
                    prop_assert!(output.head.len() + output.tail.len() <= CAP.output_cap);
                }
                prop_assert!(reply.elapsed <= TOOK && reply.changed.len() <= changed_len);
            }
        }
    }
}
