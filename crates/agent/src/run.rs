//! One run: a program or a cell, from its start to the end of all processes that it has started.
//!
//! ```text
//! snapshot -> start -> capture until it ends, or the deadline, or a kill
//!          -> kill everything else it started -> rest of the output -> snapshot -> reply
//! ```
//!
//! Output is read only as fast as it comes and held in memory only up to the cap, so that the program never waits for
//! the agent and never costs more memory than the cap. The rest is [kept](sandbox_files::kept) if there is room.

use std::{
    fs::File,
    io::{self, Read, Write},
    mem,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use nix::{
    fcntl::{FcntlArg, OFlag, fcntl},
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        eventfd::{EfdFlags, EventFd},
        resource::{Usage, UsageWho, getrusage},
        signal::Signal,
        stat::{Mode, fchmod, fstat},
        time::TimeValLike,
    },
    unistd::Pid,
};
use protocol::{
    limits::{MAX_CAPTURE, MAX_CHANGED, MAX_RESULT},
    message::{CellDone, End, Facts, Failure, Position, Run, RunDone, Start, Stream},
};
use sandbox_files::{
    facts,
    kept::OutputStore,
    outputs::{Outputs, SharedOutputs},
    replies::Replies,
    tree::{self, Snapshot},
};

use crate::{
    confine::{self, Counted},
    memory,
    places::Places,
    processes::{Children, Exit, Unkillable},
    runtimes::{
        RunError, Runtimes,
        channel::{CellReport, Done, ProgramChannel, ProgramMessage, Received},
        program::{Program, Source, Stdin},
    },
};

/// Bytes at the end of standard error that are searched for its last line.
const LAST_LINE: usize = 4096;

/// Time limit for a cell to end after it was interrupted.
const INTERRUPT_TIMEOUT: Duration = Duration::from_millis(300);

/// How a run ends whose interpreter aborts.
const ABORTED: [End; 3] = [
    End::Signaled { signal: Signal::SIGABRT as i32 },
    End::Signaled { signal: Signal::SIGTRAP as i32 },
    End::Signaled { signal: Signal::SIGILL as i32 },
];

/// Ends a run from another thread.
#[derive(Debug, Clone)]
pub(crate) struct KillSwitch {
    event: Arc<EventFd>,
    over: Arc<AtomicBool>,
}

impl KillSwitch {
    pub(crate) fn throw(&self) {
        // Fails only if the counter is full, and then the switch has been thrown before.
        let _ = self.event.write(1);
    }

    /// Whether the run's reply is about to be sent, or was sent.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }
}

/// The folders of a run, and the store for its outputs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RunContext<'a> {
    pub(crate) places: &'a Places,
    pub(crate) data: &'a OwnedFd,
    /// Keeps the outputs that are cut.
    pub(crate) store: &'a Arc<OutputStore>,
}

/// A run that is ready to start.
pub(crate) struct Job {
    run: Run,
    code: Vec<u8>,
    stdin: Option<Vec<u8>>,
    places: Places,
    data: OwnedFd,
    switch: KillSwitch,
    call: u32,
    outputs: SharedOutputs,
    asked: Instant,
}

impl Job {
    pub(crate) fn new(
        call: u32,
        run: Run,
        mut body: Vec<u8>,
        context: RunContext<'_>,
    ) -> Result<Self, Failure> {
        let RunContext { places, data, store } = context;
        if run.code_len > body.len() || (!run.has_stdin && run.code_len != body.len()) {
            return Err(Failure::bad_request("the code's length is not the body's"));
        }
        if run.output_cap > MAX_CAPTURE {
            return Err(Failure::bad_request("the output cap is too large"));
        }
        let stdin = body.split_off(run.code_len);
        let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(|error| Failure::io("an event", &error.into()))?;
        Ok(Self {
            code: body,
            stdin: run.has_stdin.then_some(stdin),
            places: places.clone(),
            data: data.try_clone().map_err(|error| Failure::io("the data area", &error))?,
            switch: KillSwitch { event: Arc::new(event), over: Arc::default() },
            outputs: SharedOutputs::new(store, call, run.output_cap),
            call,
            asked: Instant::now(),
            run,
        })
    }

    pub(crate) fn kill_switch(&self) -> KillSwitch {
        self.switch.clone()
    }

    /// The outputs so far, for as long as the job runs.
    pub(crate) fn outputs(&self) -> SharedOutputs {
        self.outputs.clone()
    }

    /// Runs to the end and replies. All remaining processes of the run are stopped by then.
    pub(crate) fn run(
        mut self,
        replies: &Replies,
        runtimes: &mut Runtimes,
        children: &mut Children,
    ) -> Result<Over, Unkillable> {
        let before = tree::snapshot(&self.data);
        let places = self.places.clone();
        let scratch_before = tree::scratch(&places.scratch);
        let executed = self.execute(runtimes, children);
        let outputs = self.outputs.take().expect("nobody else takes them");
        let (over, sent) = match executed {
            Ok(mut ended) => {
                let after = tree::snapshot(&self.data);
                let (name, facts) = (&self.run.runtime, &mut ended.facts);
                let own = runtimes.script_name(name).unwrap_or_default();
                let scratch = tree::scratch(&places.scratch);
                facts.elsewhere = facts::elsewhere(&scratch_before, scratch, own, &places.scratch);
                if ended.end != (End::Exited { code: 0 }) {
                    let last = outputs.stderr().latest(LAST_LINE);
                    if ABORTED.contains(&ended.end) && runtimes.is_out_of_memory(name, &last) {
                        ended.end = End::OutOfMemory;
                    }
                    let mut hiding = runtimes.hiding_files(name, &last).into_iter();
                    facts.hidden_module = hiding.find(|path| after.contains_key(path));
                    let missing = runtimes.missing_file(name, &last);
                    facts.missing_file = missing.map(|name| facts::missing_file(&name, &after));
                }
                let (done, changed) = self.report(&mut ended, &outputs, &before, after);
                let (stdout, stderr) = (outputs.stdout().pieces(), outputs.stderr().pieces());
                let body = [&stdout[..], &stderr, &[&ended.result, &changed]].concat();
                self.switch.over.store(true, Ordering::Release);
                (ended.over, replies.reply(self.call, &done, &body))
            }
            Err(RunError::Failed(failure)) => {
                self.switch.over.store(true, Ordering::Release);
                let was_cell = self.run.cell;
                let over = Over { start: Start::Cold, stopped: None, was_cell };
                (over, replies.fail(self.call, failure))
            }
            Err(RunError::Unkillable(unkillable)) => return Err(unkillable),
        };
        if sent.is_err() {
            crate::end();
        }
        Ok(over)
    }

    fn execute(
        &mut self,
        runtimes: &mut Runtimes,
        children: &mut Children,
    ) -> Result<Ended, RunError> {
        let oom_before = memory::oom_kills();
        let stdin = if self.stdin.is_some() { Stdin::Pipe } else { Stdin::Null };
        let source = Source { code: &self.code, stdin, input: self.stdin.as_deref() };
        let program = if self.run.cell {
            runtimes.start_cell(&self.run.runtime, source, children)?
        } else {
            runtimes.start(&self.run.runtime, source, children)?
        };
        self.outputs.begin();
        // Not earlier: only now is the last run reaped, and counted.
        let cpu_before = cpu_us();
        let (begun, main) = (program.begun, program.pid);
        let mut supervised = self.supervise(program, runtimes, children);
        let (mut stopped, mut cell, mut result) = (None, None, vec![]);
        if self.run.cell {
            let report = supervised.as_mut().ok().and_then(|it| it.report.take());
            let report = report.filter(is_within_limits);
            let done = runtimes.end_cell(&self.run.runtime, report.as_ref(), children)?;
            let report = report.unwrap_or_default();
            cell = Some(CellDone { result: report.captured, ..done });
            result = report.result;
        } else {
            let is_done = matches!(supervised, Ok(Supervised { stop: Stop::Done(_), .. }));
            let kernels = runtimes.kernels();
            stopped = (is_done && children.stop(main, &kernels)).then_some(main);
            if stopped.is_none() {
                children.end_run(&kernels)?;
            }
        }
        let elapsed = begun.elapsed();
        self.clear_up(runtimes.is_live());
        let Supervised { stop, start, channel, mut stdout, mut stderr, .. } =
            supervised.map_err(|error| Failure::io("the program's output", &error))?;
        stdout.drain(&self.outputs);
        stderr.drain(&self.outputs);

        let oom_kills = memory::oom_kills().saturating_sub(oom_before);
        let mut cpu_us = cpu_us().saturating_sub(cpu_before);
        let mut facts = Facts::default();
        let end = match stop {
            Stop::Deadline(position) => {
                facts.position = position;
                End::TimedOut
            }
            Stop::Killed => End::Killed,
            Stop::TooManyFiles(told) => {
                self.outputs.push(Stream::Stderr, told.as_bytes());
                End::Signaled { signal: Signal::SIGXFSZ as i32 }
            }
            Stop::Exit(Exit::Code(code)) => End::Exited { code },
            Stop::Exit(Exit::Signal(signal))
                if signal == Signal::SIGKILL as i32 && oom_kills > 0 =>
            {
                End::OutOfMemory
            }
            Stop::Exit(Exit::Signal(signal)) => End::Signaled { signal },
            Stop::Done(done) => {
                cpu_us = done.cpu_us;
                facts = *done.facts;
                End::Exited { code: done.code.into() }
            }
        };
        Ok(Ended {
            end,
            over: Over { start, stopped, was_cell: self.run.cell },
            cell,
            result,
            _channel: channel,
            elapsed,
            cpu_us,
            oom_kills,
            facts,
        })
    }

    /// Captures output until the program ends, or must be ended.
    fn supervise(
        &mut self,
        program: Program,
        runtimes: &mut Runtimes,
        children: &mut Children,
    ) -> io::Result<Supervised> {
        let Program { pid, mut start, begun, mut channel, mut stack, .. } = program;
        let mut deadline = begun + Duration::from_millis(self.run.timeout_ms);
        let mut stdout = Pipe::new(Stream::Stdout, program.stdout)?;
        let mut stderr = Pipe::new(Stream::Stderr, program.stderr)?;
        let mut feed = Feed::new(program.stdin, self.stdin.take())?;
        let mut counted = self.places.count();
        // The reason why it must end, once it has been interrupted.
        let mut interrupted = None;

        let stop = loop {
            // Before the wait: the program may have ended before the signalfd could tell.
            if let Some(exit) = children.reap(Some(pid)) {
                break Stop::Exit(exit);
            }
            match channel.as_ref().map(ProgramChannel::receive) {
                Some(Received::Message(ProgramMessage::Done(done))) => break Stop::Done(done),
                Some(Received::Message(ProgramMessage::ReExec)) => {
                    (channel, stack) = (None, None);
                    start = Start::Cold;
                }
                Some(Received::End) => channel = None,
                Some(Received::Message(ProgramMessage::Other) | Received::Nothing) | None => {}
            }
            let mut fds = vec![
                PollFd::new(children.as_fd(), PollFlags::POLLIN),
                PollFd::new(self.switch.event.as_fd(), PollFlags::POLLIN),
            ];
            let readable = [&stdout.source, &stderr.source].into_iter().flatten();
            let readable = readable.map(AsFd::as_fd).chain(channel.as_ref().map(AsFd::as_fd));
            fds.extend(readable.map(|fd| PollFd::new(fd, PollFlags::POLLIN)));
            let writable = feed.0.iter();
            fds.extend(writable.map(|(pipe, _)| PollFd::new(pipe.as_fd(), PollFlags::POLLOUT)));

            let left = deadline.saturating_duration_since(Instant::now());
            let must_end = if left.is_zero() {
                let stack = stack.take();
                Some(Stop::Deadline(stack.and_then(|stack| stack.position(&self.code))))
            } else if let Some(told) = counted.as_mut().and_then(Counted::look) {
                Some(Stop::TooManyFiles(told))
            } else {
                self.switch.event.read().is_ok().then_some(Stop::Killed)
            };
            if let Some(why) = must_end {
                let is_first = interrupted.is_none();
                let why = interrupted.take().unwrap_or(why);
                if !(is_first && self.run.cell && runtimes.interrupt(&self.run.runtime)) {
                    break why;
                }
                interrupted = Some(why);
                deadline = Instant::now() + INTERRUPT_TIMEOUT;
                continue;
            }
            let left = if counted.is_some() { left.min(confine::INTERVAL) } else { left };
            // Rounded up, so that the loop does not spin in the last millisecond.
            let wait =
                PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
            match poll(&mut fds, wait) {
                Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
            stdout.read(&self.outputs);
            stderr.read(&self.outputs);
            feed.write();
        };
        let (stop, report) = match stop {
            Stop::Done(mut done) => {
                let report = done.cell.take();
                (interrupted.unwrap_or(Stop::Done(done)), report)
            }
            stop => (interrupted.unwrap_or(stop), None),
        };
        Ok(Supervised { stop, report, start, channel, stdout, stderr })
    }

    /// Undoes changes that would disturb the next run, now that no process can repeat them. A failure to do so shows in
    /// that run. Shared memory stays if there is a kernel, which may use it.
    fn clear_up(&self, is_live: bool) {
        // A program may have made the folder inaccessible, also to the agent.
        let _ = fstat(&self.data).and_then(|stat| {
            let mode = Mode::from_bits_truncate(stat.st_mode & 0o7777);
            if mode.contains(Mode::S_IRWXU) {
                Ok(())
            } else {
                fchmod(&self.data, mode | Mode::S_IRWXU)
            }
        });
        if !is_live {
            let _ = self.places.clear_shared();
        }
    }

    /// The reply's head, and the changed files as JSON.
    fn report(
        &self,
        ended: &mut Ended,
        outputs: &Outputs,
        before: &Snapshot,
        after: Snapshot,
    ) -> (RunDone, Vec<u8>) {
        let (changed, changed_omitted) = tree::to_json(&tree::changed(before, after), MAX_CHANGED);
        let done = RunDone {
            end: ended.end,
            start: ended.over.start,
            agent_us: u64::try_from(self.asked.elapsed().as_micros()).unwrap_or(u64::MAX),
            elapsed_us: u64::try_from(ended.elapsed.as_micros()).unwrap_or(u64::MAX),
            cpu_us: ended.cpu_us,
            oom_kills: ended.oom_kills,
            stdout: outputs.stdout().captured(),
            stderr: outputs.stderr().captured(),
            changed_len: changed.len(),
            changed_omitted,
            facts: mem::take(&mut ended.facts),
            cell: ended.cell.take(),
        };
        (done, changed)
    }
}

/// A run whose reply has been sent.
pub(crate) struct Over {
    pub(crate) start: Start,
    /// The only process that is left of it, which is stopped, to be [killed](Children::let_die).
    pub(crate) stopped: Option<Pid>,
    /// Whether it was a cell, after which the runtimes [prepare](Runtimes::settle) for the next.
    pub(crate) was_cell: bool,
}

struct Supervised {
    stop: Stop,
    /// The kernel's report of the cell, if it says that the cell is done.
    report: Option<CellReport>,
    start: Start,
    channel: Option<ProgramChannel>,
    stdout: Pipe,
    stderr: Pipe,
}

enum Stop {
    /// The program says that it is done, and its process still exists.
    Done(Done),
    Exit(Exit),
    Deadline(Option<Position>),
    Killed,
    /// The program has made more files than allowed; the message says so.
    TooManyFiles(String),
}

struct Ended {
    end: End,
    over: Over,
    /// The state of the workspace after a cell.
    cell: Option<CellDone>,
    /// Start and end of a cell's result.
    result: Vec<u8>,
    /// A program that is done waits until this is dropped.
    _channel: Option<ProgramChannel>,
    elapsed: Duration,
    cpu_us: u64,
    oom_kills: u64,
    facts: Facts,
}

/// Whether a kernel's report of a cell is consistent and within the limits.
fn is_within_limits(report: &CellReport) -> bool {
    report.result.len() <= MAX_RESULT
        && report.captured.map_or(0, |it| it.head.saturating_add(it.tail)) == report.result.len()
}

/// The agent's end of one output of the program.
struct Pipe {
    stream: Stream,
    source: Option<File>,
    /// As large as a pipe, so that one call empties that.
    buffer: Box<[u8]>,
}

impl Pipe {
    fn new(stream: Stream, pipe: OwnedFd) -> io::Result<Self> {
        set_nonblocking(&pipe)?;
        let buffer = vec![0; 64 << 10].into();
        Ok(Self { stream, source: Some(pipe.into()), buffer })
    }

    /// Reads one bufferful, if there is one; returns false if there was nothing to read.
    fn read(&mut self, outputs: &SharedOutputs) -> bool {
        let Some(source) = &mut self.source else { return false };
        let Some(n) = read_available(source, &mut self.buffer) else {
            self.source = None;
            return false;
        };
        if n > 0 {
            outputs.push(self.stream, &self.buffer[..n]);
        }
        n > 0
    }

    /// Reads the rest, when no process can write any more.
    fn drain(&mut self, outputs: &SharedOutputs) {
        while self.read(outputs) {}
    }
}

/// The rest of the program's standard input.
struct Feed(Option<(File, io::Cursor<Vec<u8>>)>);

impl Feed {
    fn new(pipe: Option<File>, bytes: Option<Vec<u8>>) -> io::Result<Self> {
        let feed = pipe.zip(bytes.map(io::Cursor::new));
        if let Some((pipe, _)) = &feed {
            set_nonblocking(pipe)?;
        }
        Ok(Self(feed))
    }

    /// Writes what fits, and closes the pipe after the last byte.
    fn write(&mut self) {
        let Some((pipe, bytes)) = &mut self.0 else { return };
        let rest = &bytes.get_ref()[usize::try_from(bytes.position()).unwrap_or(usize::MAX)..];
        match pipe.write(rest) {
            Ok(n) if n < rest.len() => bytes.set_position(bytes.position() + n as u64),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // All is written, or the program has closed its end.
            _ => self.0 = None,
        }
    }
}

fn set_nonblocking(fd: impl AsFd) -> io::Result<()> {
    fcntl(fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok(())
}

/// Processor time of all reaped children, in microseconds.
fn cpu_us() -> u64 {
    let total = |usage: Usage| usage.user_time() + usage.system_time();
    getrusage(UsageWho::RUSAGE_CHILDREN)
        .map_or(0, |usage| total(usage).num_microseconds().try_into().unwrap_or(0))
}

/// Reads what is there; `None` if no process can write any more.
fn read_available(source: &mut impl Read, buffer: &mut [u8]) -> Option<usize> {
    match source.read(buffer) {
        Ok(0) => None,
        Ok(n) => Some(n),
        Err(error)
            if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) =>
        {
            Some(0)
        }
        Err(_) => None,
    }
}
