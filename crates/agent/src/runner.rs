//! The thread that runs programs and cells, one after another, and keeps spares ready in between.
//!
//! ```text
//! order: a run -> snapshot -> start -> capture until it ends, or the deadline, or a kill
//!                          -> end everything else it started -> rest of the output -> snapshot -> reply
//! ```
//!
//! Output is read only as fast as it comes and held in memory only up to the cap, so that the program never waits for
//! the agent and never costs more memory than the cap. The rest is [kept](sandbox_files::kept) if there is room.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    sync::{
        Arc,
        mpsc::{self, TryRecvError},
    },
    thread,
    time::{Duration, Instant},
};

use agent_core::{
    Asks, Ended, Job, Order, Orders, Replies, Runner, Seen, Settings, Summarizing, Switch,
};
use nix::{
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
    limits::MAX_RESULT,
    message::{
        CellDone, Contents, End, Export, ExportDone, Facts, Failure, HibernateDone, Import,
        ImportDone, InspectDone, Position, Reset, ResetDone, RuntimeName, Start, Stream, WarmDone,
    },
};
use sandbox_files::tree::{self, Snapshot};

use crate::{
    confine::Watch,
    gate::Gate,
    hold::connector::Connector,
    memory,
    places::Places,
    processes::{Children, Exit, Stopped},
    runtimes::{
        Outlook, Runtime, Runtimes,
        channel::{CellReport, Done, ProgramChannel, ProgramMessage, Received},
        program::{Feed, Pipe, Program, Source, Stdin},
    },
    summary,
    transfer::Transfer,
    usage,
};

/// Interval at which the processes of a run that waits for a person are looked at: a timer of their own may continue
/// one.
const PAUSE_CHECK: Duration = Duration::from_secs(1);

/// Time limit for a cell to end after it was interrupted.
const INTERRUPT_TIMEOUT: Duration = Duration::from_millis(300);

/// Ends a run from another thread.
#[derive(Clone)]
pub(crate) struct KillSwitch(Arc<EventFd>);

impl Switch for KillSwitch {
    fn new() -> Result<Self, Failure> {
        let event = event().map_err(|error| Failure::io("an event", &error.into()))?;
        Ok(Self(Arc::new(event)))
    }

    fn throw(&self) {
        ring(&self.0);
    }
}

impl AsFd for KillSwitch {
    /// Readable once the switch is thrown.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn event() -> nix::Result<EventFd> {
    EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
}

fn ring(event: &EventFd) {
    // Fails only if the counter is full, and then it has been rung before.
    let _ = event.write(1);
}

/// Starts the thread. `data` is the data area.
pub(crate) fn start(
    places: &Places,
    data: OwnedFd,
    replies: Replies,
    connector: Connector,
    gate: Gate,
) -> io::Result<(Orders<KillSwitch>, Asks)> {
    let (sender, orders) = mpsc::channel();
    let bell = Arc::new(event()?);
    let pause = Arc::new(event()?);
    let wake = pause.clone();
    let asks = Asks::new(replies.clone(), move || ring(&wake));
    let worker = Worker {
        asks: asks.clone(),
        gate,
        pause,
        orders,
        bell: bell.clone(),
        replies,
        children: Children::new(connector)?,
        runtimes: Runtimes::new(places),
        places: places.clone(),
        data,
        waiting: vec![],
        transfer: Transfer::default(),
    };
    thread::Builder::new().name("runner".into()).spawn(move || worker.work())?;
    Ok((Orders::new(sender, move || ring(&bell)), asks))
}

struct Worker {
    asks: Asks,
    gate: Gate,
    /// Readable when the run in progress must pause, or may go on.
    pause: Arc<EventFd>,
    orders: mpsc::Receiver<Order<KillSwitch>>,
    bell: Arc<EventFd>,
    replies: Replies,
    children: Children,
    runtimes: Runtimes,
    places: Places,
    data: OwnedFd,
    /// Calls that wait until the runtimes are warm.
    waiting: Vec<u32>,
    transfer: Transfer,
}

impl Worker {
    fn work(mut self) {
        loop {
            self.children.reap(None);
            self.runtimes.attend(&mut self.children);
            let told = self.tell_outlook();
            let done = match self.orders.try_recv() {
                Ok(order) => told.and_then(|()| self.carry_out(order)),
                Err(TryRecvError::Empty) => told.map(|()| self.wait()),
                Err(TryRecvError::Disconnected) => return,
            };
            if done.is_err() {
                // No server can get the reply.
                crate::end();
            }
        }
    }

    /// Replies to the calls that wait until the runtimes are warm, once it is known whether they will be.
    fn tell_outlook(&mut self) -> io::Result<()> {
        let Some(Outlook { ready, problems }) = self.runtimes.outlook() else { return Ok(()) };
        let done = WarmDone { ready, problems, went_on: None };
        self.waiting.drain(..).try_for_each(|call| self.replies.reply(call, &done, &[]))
    }

    fn wait(&self) {
        let mut fds: Vec<_> = self.runtimes.fds().collect();
        fds.extend([self.bell.as_fd(), self.children.as_fd()]);
        let mut fds: Vec<_> =
            fds.into_iter().map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        let until = |alarm: Instant| {
            let left = alarm.saturating_duration_since(Instant::now());
            PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
        };
        let _ = poll(&mut fds, self.runtimes.alarm().map_or(PollTimeout::NONE, until));
        let _ = self.bell.read();
    }

    /// Waits for 2 ms, for the next order, or until a stopped process is continued. The reply passes several processes
    /// on its way to the caller; the work that follows here would occupy the processors for 20 ms.
    fn let_the_reply_go_first(&self) {
        let moment = PollTimeout::from(2u8);
        let fds = [self.bell.as_fd(), self.children.as_fd()];
        let _ = poll(&mut fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)), moment);
    }

    /// Runs a program or a cell to its end. All processes that are left of it are stopped by then.
    fn execute(&mut self, job: &mut Job<KillSwitch>) -> Result<(Ended, Left), Failure> {
        let Self { runtimes, children, .. } = self;
        let oom_before = memory::oom_kills();
        let (is_cell, name) = (job.run.cell, job.run.runtime.clone());
        let stdin = if job.stdin.is_some() { Stdin::Pipe } else { Stdin::Null };
        let source = Source { code: &job.code, stdin, input: job.stdin.as_deref() };
        let program = if is_cell {
            runtimes.begin(&name, children)?.start_cell(source, children)?
        } else {
            runtimes.begin(&name, children)?.start(source, children)?
        };
        job.outputs.begin();
        // Not earlier: only now is the last run reaped, and counted.
        let cpu_before = cpu();
        let (begun, main) = (program.begun, program.pid);
        let mut supervised = self.supervise(job, program);
        let Self { runtimes, children, .. } = self;
        let (mut stopped, mut cell, mut result) = (None, None, vec![]);
        if is_cell {
            let report = supervised.as_mut().ok().and_then(|it| it.report.take());
            let runtime = runtimes.of_mut(&name)?;
            let report = report.filter(is_within_limits);
            let done = runtime.end_cell(report.as_ref(), children);
            // Only now has the cell no process left that could change its result.
            let report = report.or_else(|| runtime.report());
            let report = report.unwrap_or_default();
            cell = Some(CellDone { result: report.captured, ..done });
            result = report.result;
        } else {
            let is_done = matches!(supervised, Ok(Supervised { stop: Stop::Done(_), .. }));
            let kernels = runtimes.kernels();
            stopped = (is_done && children.stop(main, &kernels)).then_some(main);
            if stopped.is_none() {
                children.end_run(&kernels);
            }
        }
        let elapsed = begun.elapsed();
        self.clear_up();
        let Supervised { stop, start, channel, mut stdout, mut stderr, paused, .. } =
            supervised.map_err(|error| Failure::io("the program's output", &error))?;
        let elapsed = elapsed.saturating_sub(paused);
        stdout.drain(&job.outputs);
        stderr.drain(&job.outputs);

        let oom_kills = memory::oom_kills().saturating_sub(oom_before);
        let mut cpu = cpu().saturating_sub(cpu_before);
        let mut facts = Facts::default();
        let end = match stop {
            Stop::Deadline(position) => {
                facts.position = position;
                End::TimedOut
            }
            Stop::Killed => End::Killed,
            Stop::NoRoom(told) => {
                job.outputs.push(Stream::Stderr, told.as_bytes());
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
                cpu = Duration::from_micros(done.cpu_us);
                facts = *done.facts;
                End::Exited { code: done.code.into() }
            }
        };
        let ended = Ended { end, start, elapsed, cpu, oom_kills, facts, cell, result };
        Ok((ended, Left { stopped, channel }))
    }

    /// Captures output until the program ends, or must be ended.
    fn supervise(&mut self, job: &mut Job<KillSwitch>, program: Program) -> io::Result<Supervised> {
        let Self { runtimes, children, .. } = self;
        let Program { pid, mut start, begun, mut channel, mut stack, .. } = program;
        let mut deadline = begun + Duration::from_millis(job.run.timeout_ms);
        let mut stdout = Pipe::new(Stream::Stdout, program.stdout)?;
        let mut stderr = Pipe::new(Stream::Stderr, program.stderr)?;
        let mut feed = Feed::new(program.stdin, job.stdin.take())?;
        let watch = self.places.watch()?;
        // The reason why it must end, once it has been interrupted.
        let mut interrupted = None;
        let mut pause = Paused::default();

        let stop = loop {
            let _ = self.pause.read();
            let is_paused = interrupted.is_none() && self.asks.is_paused();
            deadline += pause.follow(is_paused, pid, children);
            // Before the wait: the program may have ended before the signalfd could report it.
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
            // Time for which not all processes were stopped counts, so that it may end during a pause.
            let left = deadline.saturating_duration_since(Instant::now());
            let left = if is_paused && !left.is_zero() { PAUSE_CHECK } else { left };
            let mut is_urgent = false;
            let must_end = if left.is_zero() {
                let stack = stack.take();
                Some(Stop::Deadline(stack.and_then(|stack| stack.position(&job.code))))
            } else if let Some(breach) = watch.as_ref().and_then(Watch::breach) {
                is_urgent = breach.is_final;
                Some(Stop::NoRoom(breach.message))
            } else {
                job.switch.0.read().is_ok().then_some(Stop::Killed)
            };
            if let Some(why) = must_end {
                // A stopped process cannot be interrupted.
                deadline += pause.follow(false, pid, children);
                let is_first = interrupted.is_none();
                let why = interrupted.take().unwrap_or(why);
                let mut interrupt =
                    || runtimes.of_mut(&job.run.runtime).is_ok_and(Runtime::interrupt);
                if is_urgent || !(is_first && job.run.cell && interrupt()) {
                    break why;
                }
                interrupted = Some(why);
                deadline = Instant::now() + INTERRUPT_TIMEOUT;
                continue;
            }
            // Rounded up, so that the loop does not spin in the last millisecond.
            let wait =
                PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
            let readable = [Some(children.as_fd()), Some(job.switch.0.as_fd())].into_iter();
            let readable = readable.chain([stdout.as_fd(), stderr.as_fd()]);
            let readable = readable.chain([channel.as_ref().map(AsFd::as_fd)]);
            let readable = readable.chain([Some(self.pause.as_fd())]);
            let readable = readable.chain([watch.as_ref().map(AsFd::as_fd)]).flatten();
            let readable = readable.map(|fd| PollFd::new(fd, PollFlags::POLLIN));
            let writable = feed.as_fd().map(|fd| PollFd::new(fd, PollFlags::POLLOUT));
            match poll(&mut readable.chain(writable).collect::<Vec<_>>(), wait) {
                Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
            stdout.read(&job.outputs);
            stderr.read(&job.outputs);
            feed.write();
        };
        let (stop, report) = match stop {
            Stop::Done(mut done) => {
                let report = done.cell.take();
                (interrupted.unwrap_or(Stop::Done(done)), report)
            }
            stop => (interrupted.unwrap_or(stop), None),
        };
        Ok(Supervised { stop, report, start, channel, stdout, stderr, paused: pause.total })
    }

    /// Removes files that the run has written beyond the limit: it may have been faster than the watch.
    fn settle_space(
        &self,
        job: &Job<KillSwitch>,
        before: &Seen,
        ended: Result<Ended, Failure>,
    ) -> Result<Ended, Failure> {
        let has_removed = self.places.space.as_ref().is_some_and(|it| it.settle(&before.data));
        if !has_removed {
            return ended;
        }
        let told = "\nsandbox: files beyond the limit were removed\n";
        job.outputs.push(Stream::Stderr, told.as_bytes());
        ended.map(|ended| Ended { end: End::Signaled { signal: Signal::SIGXFSZ as i32 }, ..ended })
    }

    /// Undoes changes that would disturb the next run, now that no process can repeat them. A failure to do so shows in
    /// that run. Shared memory stays if there is a kernel, which may use it.
    fn clear_up(&self) {
        // A program may have made the folder inaccessible, also to the agent.
        let _ = fstat(&self.data).and_then(|stat| {
            let mode = Mode::from_bits_truncate(stat.st_mode & 0o7777);
            if mode.contains(Mode::S_IRWXU) {
                Ok(())
            } else {
                fchmod(&self.data, mode | Mode::S_IRWXU)
            }
        });
        if !self.runtimes.is_live() {
            let _ = self.places.clear_shared();
        }
    }
}

impl Runner for Worker {
    type Switch = KillSwitch;

    fn replies(&self) -> &Replies {
        &self.replies
    }

    fn configure(&mut self, settings: &Settings) {
        self.runtimes.configure(settings, &mut self.children);
    }

    fn run(&mut self, mut job: Job<KillSwitch>) -> io::Result<()> {
        let (before, was_cell) = (self.look(), job.run.cell);
        if self.asks.are_enabled() {
            self.asks.begin(job.call);
            self.gate.open(job.call);
        }
        let executed = self.execute(&mut job);
        self.asks.end();
        self.gate.close();
        let (ended, left) = executed.map_or_else(
            |failure| (Err(failure), Left::default()),
            |(ended, left)| (Ok(ended), left),
        );
        let ended = self.settle_space(&job, &before, ended);
        let start = ended.as_ref().map_or(Start::Cold, |ended| ended.start);
        self.reply(job, ended, &before)?;
        drop(left.channel);
        if let Some(main) = left.stopped {
            self.let_the_reply_go_first();
            self.children.let_die(main);
        }
        self.runtimes.resume(start, &mut self.children);
        if was_cell {
            self.let_the_reply_go_first();
            self.settle();
        }
        Ok(())
    }

    fn warm(&mut self, call: u32) -> io::Result<()> {
        self.prewarm();
        self.waiting.push(call);
        Ok(())
    }

    fn hibernate(&mut self, _: bool) -> HibernateDone {
        self.runtimes.hibernate(&mut self.children);
        self.children.sweep();
        // A container's state cannot be saved here.
        HibernateDone { kept: false }
    }

    fn prewarm(&mut self) {
        self.runtimes.prewarm(&mut self.children);
    }

    fn inspect(&mut self, runtime: &RuntimeName) -> Result<(InspectDone, Contents), Failure> {
        self.runtimes.of_mut(runtime)?.inspect(&mut self.children)
    }

    fn reset(&mut self, reset: &Reset) -> Result<ResetDone, Failure> {
        let done = self.runtimes.of_mut(&reset.runtime)?.reset(reset.undo, &mut self.children)?;
        if reset.files {
            tree::empty(&self.data).map_err(|error| Failure::io("the data area", &error.into()))?;
        }
        Ok(done)
    }

    fn export(&mut self, export: &Export) -> Result<(ExportDone, Vec<u8>), Failure> {
        self.transfer.export(export, &mut self.runtimes, &mut self.children)
    }

    fn import(&mut self, import: &Import, piece: &[u8]) -> Result<(ImportDone, Vec<u8>), Failure> {
        self.transfer.import(import, piece, &mut self.runtimes, &mut self.children)
    }

    fn summarize(&mut self, summarizing: Summarizing<KillSwitch>) -> io::Result<()> {
        let call = summarizing.call;
        let done = summary::make(summarizing, &mut self.runtimes, &mut self.children);
        self.replies.answer(call, done)
    }

    fn settle(&mut self) {
        self.runtimes.settle(&mut self.children);
    }

    fn look(&self) -> Seen {
        Seen { data: tree::snapshot(&self.data), scratch: tree::scratch(&self.places.scratch) }
    }

    fn script(&self, runtime: &RuntimeName) -> (&Path, &str) {
        (&self.places.scratch, self.runtimes.of(runtime).map_or("", Runtime::script_name))
    }

    fn datasets(&self) -> Snapshot {
        tree::datasets(&self.places.datasets)
    }

    fn explain(&self, runtime: &RuntimeName, stderr: &[u8], files: &Snapshot, ended: &mut Ended) {
        if let Some(runtime) = self.runtimes.of(runtime) {
            runtime.explain(stderr, files, ended);
        }
    }
}

/// The rest of a run until its reply has been sent.
#[derive(Default)]
struct Left {
    /// The only remaining process of the run, which is stopped, to be [killed](Children::let_die).
    stopped: Option<Pid>,
    /// A program that is done waits until this is dropped.
    channel: Option<ProgramChannel>,
}

struct Supervised {
    stop: Stop,
    /// The kernel's report of the cell, if it says that the cell is done.
    report: Option<CellReport>,
    start: Start,
    channel: Option<ProgramChannel>,
    stdout: Pipe,
    stderr: Pipe,
    /// Time for which the run waited for a person.
    paused: Duration,
}

/// The pauses of a run that waits for a person.
#[derive(Default)]
struct Paused {
    /// The processes that are stopped, since when they certainly are, and the processor time of all processes by then.
    now: Option<(Stopped, Instant, Option<Duration>)>,
    /// Time for which all were stopped.
    total: Duration,
}

impl Paused {
    /// Stops the processes of the run of this main process, or continues them. Returns the time for which all were
    /// stopped since the last call.
    fn follow(&mut self, is_paused: bool, main: Pid, children: &mut Children) -> Duration {
        let (mut stopped, since, before) = match self.now.take() {
            Some(now) => now,
            None if is_paused => (Stopped::default(), Instant::now(), None),
            None => return Duration::ZERO,
        };
        let was_still = children.pause(main, &mut stopped);
        let mut still = if was_still { since.elapsed() } else { Duration::ZERO };
        // A process that continues another between two checks, and ends, is not seen. Its processor time is.
        let used = usage::of_others();
        if let Some((used, before)) = used.zip(before) {
            still = still.saturating_sub(used.saturating_sub(before));
        }
        if is_paused {
            self.now = Some((stopped, Instant::now(), used));
        } else {
            Children::go_on(stopped);
        }
        self.total += still;
        still
    }
}

enum Stop {
    /// The program says that it is done, and its process still exists.
    Done(Done),
    Exit(Exit),
    Deadline(Option<Position>),
    Killed,
    /// The program has written more than allowed; the message says so.
    NoRoom(String),
}

/// Whether a kernel's report of a cell is consistent and within the limits.
fn is_within_limits(report: &CellReport) -> bool {
    report.result.len() <= MAX_RESULT
        && report.captured.map_or(0, |it| it.head.saturating_add(it.tail)) == report.result.len()
}

/// Processor time of all reaped children.
fn cpu() -> Duration {
    let total = |usage: Usage| usage.user_time() + usage.system_time();
    let micros = getrusage(UsageWho::RUSAGE_CHILDREN).map_or(0, |it| total(it).num_microseconds());
    Duration::from_micros(micros.try_into().unwrap_or(0))
}
