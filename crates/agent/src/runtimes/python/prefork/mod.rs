//! Decides when there is a fork server and a spare, and how a run is started: warm if possible, and otherwise with a
//! new interpreter.
//!
//! ```text
//!            configure            loaded
//!   Off ------------------> Loading -----> Loaded: one spare is kept waiting
//!    ^                      ^  ^  |          |   |
//!    |       a wanted module|  |  '----------+   | hibernate
//!    | threads              |  |       |died     v
//!    '---------     Asleep -'  '---- Failed    Asleep
//! ```
//!
//! If memory is short, the fork server is asleep while there is a kernel, and no run wakes it (GaveRoom).
//!
//! All of this only saves time. Whatever goes wrong, the run gets a new interpreter.

mod imports;
mod kernels;

use std::{
    collections::BTreeSet,
    fs::File,
    mem,
    os::fd::{AsFd, BorrowedFd},
    time::{Duration, Instant},
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::signal::Signal,
    unistd::Pid,
};
use protocol::message::{Start, Summarize};

use super::{
    Layout, Outlook, Summarizer,
    zygote::{KernelSpare, Spare, Zygote, ZygoteStatus},
};
use crate::{
    processes::{self, Children},
    runtimes::{
        channel::Received,
        program::{Program, Source},
    },
};

/// Time limit for loading, which is slow under gVisor and on a tenth of a processor.
const LOAD_TIMEOUT: Duration = Duration::from_secs(120);

/// Time limit for a spare from a fork server that has loaded everything; after that it is stuck.
const FORK_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest time that a run waits until its modules are loaded. If it imports them itself, that does not take longer.
const WANTED_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest time that a run waits until a fork server is guarded; that takes as long as an interpreter's start.
const GUARD_TIMEOUT: Duration = Duration::from_secs(1);

/// Maximum total time for which loading is paused while runs have the processor to themselves. Without a limit, one run
/// after another would keep it from ever ending.
const MAX_HELD_UP: Duration = Duration::from_secs(1);

/// Longest pause before a fork server that keeps dying is started again.
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// Number of waiting spares that may be lost before the fork server counts as the cause.
const MAX_LOST_SPARES: u32 = 3;

#[derive(Debug)]
enum Phase {
    /// Not wanted, or not usable.
    Off,
    Loading(Loading),
    Loaded(Zygote),
    /// Ended to free its memory; starts when it is needed.
    Asleep,
    /// Ended to make room for a kernel; asleep when that has ended.
    GaveRoom,
    /// Died; starts again at this time.
    Failed(Instant),
}

impl Phase {
    /// The process, if there is one.
    fn zygote(&self) -> Option<&Zygote> {
        match self {
            Self::Loading(Loading { zygote, .. }) | Self::Loaded(zygote) => Some(zygote),
            Self::Off | Self::Asleep | Self::GaveRoom | Self::Failed(_) => None,
        }
    }
}

#[derive(Debug)]
struct Loading {
    zygote: Zygote,
    /// The time at which it has taken too long, pauses not counted.
    until: Instant,
    paused: Option<Instant>,
    /// Total time of the pauses.
    held_up: Duration,
    /// Whether the fork server is guarded, so that a run can have an interpreter of its own beside it.
    guarded: bool,
}

pub(super) struct Prefork {
    layout: Layout,
    preload: Vec<String>,
    phase: Phase,
    spare: Option<Spare>,
    /// Whether there will be cells.
    cells: bool,
    kernel: Option<KernelSpare>,
    /// Whether a spare kernel would be of use, because no kernel is in use.
    wants_kernel: bool,
    /// Number of kernels in a row that failed before they were ready.
    failed_kernels: u32,
    /// Problems, for the outlook.
    problems: Vec<String>,
    /// Number of spares that were lost while they waited, since one last served a run.
    lost_spares: u32,
    /// Number of deaths since it last served a run and survived that.
    deaths: u32,
    /// Whether the fork server was ended for a run because it was not guarded yet.
    gave_way: bool,
}

impl Prefork {
    pub(super) fn new(layout: Layout) -> Self {
        Self {
            layout,
            preload: vec![],
            phase: Phase::Off,
            spare: None,
            cells: false,
            kernel: None,
            wants_kernel: true,
            failed_kernels: 0,
            problems: vec![],
            lost_spares: 0,
            deaths: 0,
            gave_way: false,
        }
    }

    /// Starts the fork server to load these modules, and what cells need if there will be any. Does nothing if the
    /// image has no fork server.
    pub(super) fn configure(&mut self, preload: &[String], cells: bool, children: &mut Children) {
        if matches!(self.phase, Phase::Off) && self.layout.zygote.exists() {
            self.cells = cells;
            preload.clone_into(&mut self.preload);
            self.load(children);
        }
    }

    fn load(&mut self, children: &mut Children) {
        self.problems.clear();
        match Zygote::start(&self.layout, &self.preload, self.cells) {
            Ok(zygote) => {
                children.spare(zygote.pid);
                let until = Instant::now() + LOAD_TIMEOUT;
                self.phase = Phase::Loading(Loading {
                    zygote,
                    until,
                    paused: None,
                    held_up: Duration::ZERO,
                    guarded: false,
                });
            }
            Err(error) => self.fail(format!("not started: {error}"), children),
        }
    }

    /// Checks the fork server and its spares, and takes the next step. Never waits.
    pub(super) fn attend(&mut self, children: &mut Children) {
        let now = Instant::now();
        match &mut self.phase {
            Phase::Loading(loading) => match loading.zygote.receive() {
                Received::Message(ZygoteStatus::Guarded) => loading.guarded = true,
                Received::Message(ZygoteStatus::Loaded { missing, threads }) => {
                    self.problems = missing;
                    if threads > 1 {
                        // A fork of the fork server would have locks that no thread releases.
                        let threads = format!("the modules start {} threads", threads - 1);
                        self.problems.push(threads);
                        self.end(Phase::Off, children);
                    } else if let Phase::Loading(loading) =
                        mem::replace(&mut self.phase, Phase::Off)
                    {
                        self.phase = Phase::Loaded(loading.zygote);
                    }
                }
                Received::End => self.fail("died while loading".into(), children),
                Received::Nothing if now > loading.until && loading.paused.is_none() => {
                    self.fail("loading takes too long".into(), children);
                }
                Received::Nothing => {}
            },
            Phase::Loaded(zygote) => {
                if zygote.receive() != Received::Nothing {
                    self.fail("died".into(), children);
                }
            }
            Phase::Failed(until) if now >= *until => self.load(children),
            Phase::Off | Phase::Asleep | Phase::GaveRoom | Phase::Failed(_) => {}
        }
        let was_ready = self.spare.as_ref().is_some_and(Spare::is_ready);
        if let Some(spare) = &mut self.spare {
            let is_alive = spare.look();
            let is_stuck = !spare.is_ready()
                && matches!(self.phase, Phase::Loaded(_))
                && now > spare.asked + FORK_TIMEOUT;
            if !is_alive && was_ready && self.lost_spares < MAX_LOST_SPARES {
                // A run beside the fork server has taken the memory.
                self.lost_spares += 1;
                self.drop_spare(children);
            } else if !is_alive || is_stuck {
                self.fail("a spare failed".into(), children);
            }
        }
        if let Some(pid) = self.spare.as_ref().and_then(|spare| spare.pid)
            && !was_ready
        {
            children.keep(pid);
            // The check is made now, so that a run need not wait for it. If it fails, it is repeated when the run
            // starts.
            children.is_only(None);
        }
        if matches!(self.phase, Phase::Loaded(_)) && self.spare.is_none() {
            self.ask(&BTreeSet::new(), children);
        }
        self.attend_to_kernel(now, children);
    }

    fn drop_spare(&mut self, children: &mut Children) {
        if let Some(pid) = self.spare.take().and_then(|spare| spare.pid) {
            children.kill_spared(pid);
        }
    }

    /// Asks the fork server for a process that summarizes a file.
    pub(super) fn summarize(&self, file: &File, request: &Summarize) -> Option<Summarizer> {
        // Fails if the fork server has died, which is noticed elsewhere.
        self.phase.zygote()?.summarize(file, request).ok()
    }

    /// The fork server's process.
    pub(super) fn server(&self) -> Option<Pid> {
        self.phase.zygote().map(|zygote| zygote.pid)
    }

    /// Sets how soon the fork server is killed when memory runs out.
    pub(super) fn set_oom_score(&self, score: u32) {
        if let Some(zygote) = self.phase.zygote() {
            zygote.set_oom_score(score);
        }
    }

    fn ask(&mut self, wants: &BTreeSet<&str>, children: &mut Children) {
        let Some(zygote) = self.phase.zygote() else { return };
        match zygote.ask(wants) {
            Ok(spare) => self.spare = Some(spare),
            Err(error) => self.fail(format!("does not listen: {error}"), children),
        }
    }

    /// Ends the fork server, and starts it again after a pause that doubles with each death.
    fn fail(&mut self, why: String, children: &mut Children) {
        let pause = match self.deaths {
            0 => Duration::ZERO,
            n => Duration::from_millis(250).saturating_mul(1 << n.min(10)).min(MAX_PAUSE),
        };
        self.deaths = self.deaths.saturating_add(1);
        self.problems.push(why);
        self.end(Phase::Failed(Instant::now() + pause), children);
    }

    fn end(&mut self, phase: Phase, children: &mut Children) {
        self.drop_spare(children);
        self.drop_kernel(children);
        if let Some(zygote) = mem::replace(&mut self.phase, phase).zygote() {
            children.kill_spared(zygote.pid);
        }
    }

    /// Frees its memory until it is needed.
    pub(super) fn hibernate(&mut self, children: &mut Children) {
        if !matches!(self.phase, Phase::Off | Phase::GaveRoom) {
            self.end(Phase::Asleep, children);
        }
    }

    /// Frees its memory for as long as there is a kernel.
    pub(super) fn give_room(&mut self, children: &mut Children) {
        if !matches!(self.phase, Phase::Off) {
            self.end(Phase::GaveRoom, children);
        }
    }

    /// Starts the fork server again if it is asleep.
    pub(super) fn wake(&mut self, children: &mut Children) {
        if matches!(self.phase, Phase::Asleep) {
            self.load(children);
        }
    }

    /// Whether the next run starts warm, and what went wrong; `None` while that is not known yet.
    pub(super) fn outlook(&self) -> Option<Outlook> {
        let ready = self.spare.as_ref().is_some_and(Spare::is_ready);
        let known = match &self.phase {
            Phase::Off | Phase::Asleep | Phase::GaveRoom => true,
            Phase::Failed(until) => Instant::now() < *until,
            Phase::Loading(_) | Phase::Loaded(_) => ready,
        };
        known.then(|| Outlook { ready, problems: self.problems.clone() })
    }

    /// Whether the fork server has loaded all modules that a program seems to import.
    pub(super) fn suits(&self, code: &[u8]) -> bool {
        matches!(self.phase, Phase::Loaded(_)) && imports::suffice(code, &self.preload)
    }

    /// Starts the program in the script's file, in the quickest way that is available; `None` leaves it to a new
    /// interpreter. Either way it meets no other processes than those of the two fork servers.
    pub(super) fn start(
        &mut self,
        source: Source<'_>,
        other: &mut Self,
        children: &mut Children,
    ) -> Option<Program> {
        self.attend(children);
        let is_doomed =
            |spare: &Spare| spare.is_exposed && spare.pid.is_some_and(processes::is_doomed);
        if self.spare.as_ref().is_some_and(is_doomed) {
            self.drop_spare(children);
        }
        self.pause_kernel(children);
        other.finish_spare(children);
        other.pause_kernel(children);
        let mut start = Start::Warm;
        if !self.spare.as_ref().is_some_and(Spare::is_ready) {
            start = Start::Fork;
            let preload = self.preload.clone();
            let wants = imports::wanted(source.code, &preload);
            // A program that needs no module which has to be loaded starts faster in a new interpreter.
            match self.phase {
                Phase::Loaded(_) => {}
                Phase::Loading(_) if !wants.is_empty() => {}
                Phase::Asleep if !wants.is_empty() => self.wake(children),
                _ => {
                    self.has_met_somebody(other, children);
                    self.make_way(children);
                    other.make_way(children);
                    return None;
                }
            }
            if self.spare.is_none() {
                self.ask(&wants, children);
            }
            self.wait_for_spare(children);
        }
        if self.has_met_somebody(other, children) && matches!(self.phase, Phase::Loaded(_)) {
            start = Start::Fork;
            self.ask(&BTreeSet::new(), children);
            self.wait_for_spare(children);
        }
        let program = self.spare.take().filter(Spare::is_ready).and_then(|spare| {
            // A cell may have stopped the spare.
            children.signal_spared(spare.pid?, Signal::SIGCONT);
            children.release(spare.pid?);
            spare.go(source.stdin, start, &self.layout).ok()
        });
        self.make_way(children);
        other.make_way(children);
        program
    }

    /// Leaves the processor to a run that is not started from this fork server.
    pub(super) fn stand_aside(&mut self, children: &mut Children) {
        self.finish_spare(children);
        self.pause_kernel(children);
        self.make_way(children);
    }

    /// Waits for a spare that is being forked: until it says who it is, it would be taken for a process of the user's.
    pub(super) fn finish_spare(&mut self, children: &mut Children) {
        self.attend(children);
        if matches!(self.phase, Phase::Loaded(_)) {
            self.wait_for_spare(children);
        }
        if let Some(spare) = &mut self.spare {
            spare.is_exposed = true;
        }
    }

    /// Ends all processes except the fork servers and their spares; returns true if there were any. They may have
    /// reached into the spares, which are then ended as well.
    fn has_met_somebody(&mut self, other: &mut Self, children: &mut Children) -> bool {
        children.wait_for_the_dying();
        let met = !children.is_only(None);
        if met {
            self.drop_spare(children);
            other.drop_spare(children);
            children.sweep();
        }
        met
    }

    fn wait_for_spare(&mut self, children: &mut Children) {
        let until = Instant::now() + WANTED_TIMEOUT;
        while self.spare.as_ref().is_some_and(|spare| !spare.is_ready()) {
            if !self.wait_for_message(until, children) {
                // A spare that comes later finds its channel closed.
                self.drop_spare(children);
            }
        }
    }

    /// Waits until a descriptor can be read or the time is over, and attends to it; returns false if no time is left.
    fn wait_for_message(&mut self, until: Instant, children: &mut Children) -> bool {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        let mut fds: Vec<_> = self.fds().map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        let _ = poll(&mut fds, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX));
        self.attend(children);
        true
    }

    /// Pauses loading, to leave the processor to a run, unless it has been paused for long. A fork server that is not
    /// guarded yet is ended, because the run could look into it; after the first time, waits for up to a second until
    /// it is guarded.
    pub(super) fn make_way(&mut self, children: &mut Children) {
        let until = Instant::now() + GUARD_TIMEOUT;
        while self.gave_way
            && matches!(&self.phase, Phase::Loading(loading) if !loading.guarded)
            && self.wait_for_message(until, children)
        {}
        let Phase::Loading(loading) = &mut self.phase else { return };
        if loading.guarded {
            if loading.held_up < MAX_HELD_UP {
                loading.paused = Some(Instant::now());
                children.signal_spared(loading.zygote.pid, Signal::SIGSTOP);
            }
        } else {
            self.gave_way = true;
            self.end(Phase::Asleep, children);
        }
    }

    /// Continues after a run, which may have stopped it.
    pub(super) fn resume(&mut self, start: Start, children: &mut Children) {
        let zygote = self.phase.zygote().map(|zygote| zygote.pid);
        if let Some(zygote) = zygote {
            children.signal_spared(zygote, Signal::SIGCONT);
        }
        if let Phase::Loading(loading) = &mut self.phase
            && let Some(paused) = loading.paused.take()
        {
            loading.until += paused.elapsed();
            loading.held_up += paused.elapsed();
        }
        if let Some(pid) = self.preparing_kernel() {
            children.signal_spared(pid, Signal::SIGCONT);
        }
        if let Some(kernel) = &mut self.kernel {
            kernel.asked = Instant::now();
        }
        if start != Start::Cold && zygote.is_some_and(|zygote| children.is_spared(zygote)) {
            self.deaths = 0;
            self.lost_spares = 0;
        }
        self.wake(children);
    }

    /// The descriptors to wait for: if one can be read, [`attend`](Self::attend) has something to do.
    pub(super) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let zygote = self.phase.zygote().map(AsFd::as_fd);
        let spare = self.spare.as_ref().map(AsFd::as_fd);
        zygote.into_iter().chain(spare).chain(self.kernel.as_ref().map(AsFd::as_fd))
    }

    /// The latest time at which [`attend`](Self::attend) has something to do.
    pub(super) fn alarm(&self) -> Option<Instant> {
        match &self.phase {
            Phase::Loading(loading) => Some(loading.until),
            Phase::Failed(until) => Some(*until),
            Phase::Loaded(_) => {
                let spare = self.spare.as_ref().filter(|spare| !spare.is_ready());
                let kernel = self.kernel.as_ref().filter(|kernel| !kernel.is_ready);
                let asked = spare.map(|spare| spare.asked).or(kernel.map(|kernel| kernel.asked));
                Some(asked? + FORK_TIMEOUT)
            }
            Phase::Off | Phase::Asleep | Phase::GaveRoom => None,
        }
    }
}
