//! When there is a fork server and a spare, and how a run is started: warm if that can be, and
//! always somehow.
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
//! Where memory is short it is asleep while there is a kernel, and no run wakes it (GaveRoom).
//!
//! All of it is for speed alone. Whatever goes wrong, the run is given a new interpreter.

use std::{
    collections::BTreeSet,
    mem,
    os::fd::{AsFd, BorrowedFd},
    time::{Duration, Instant},
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::signal::Signal,
    unistd::Pid,
};
use protocol::message::Start;

use super::{
    Layout, Outlook,
    zygote::{KernelSpare, Spare, Zygote, ZygoteStatus},
};
use crate::{
    memory,
    processes::{self, Children, Unkillable},
    runtimes::{
        channel::Received,
        program::{Program, Source},
    },
};

/// Longest that loading takes. Under gVisor and on a tenth of a processor it is slow.
const LOAD_TIMEOUT: Duration = Duration::from_secs(120);

/// Longest that a fork server which has loaded everything takes for a spare; longer, and it is stuck.
const FORK_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest that a run waits for a kernel that is being forked.
const BIRTH_TIMEOUT: Duration = Duration::from_millis(500);

/// Longest that a run waits for what it wants to be loaded. No import of it alone takes longer.
const WANTED_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest that a run waits until a fork server can defend itself; it takes an interpreter's start.
const GUARD_TIMEOUT: Duration = Duration::from_secs(1);

/// Time for which runs have the processor to themselves while something is to be loaded. One run after
/// another would otherwise keep it from ever being loaded.
const MAX_HELD_UP: Duration = Duration::from_secs(1);

/// Longest pause before a fork server that keeps dying is started again.
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// Spares that may be lost while they wait before the fork server is thought to be at fault.
const MAX_LOST_SPARES: u32 = 3;

/// Kernels that may fail before no more are asked for.
const MAX_FAILED_KERNELS: u32 = 3;

#[derive(Debug)]
enum Phase {
    /// Not wanted, or of no use.
    Off,
    Loading(Loading),
    Loaded(Zygote),
    /// Ended for its memory; starts when it is needed.
    Asleep,
    /// Ended for the memory of a kernel; asleep when that has ended.
    GaveRoom,
    /// Died; starts again then.
    Failed(Instant),
}

impl Phase {
    /// The process, where there is one.
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
    /// When it has taken too long, pauses not counted.
    until: Instant,
    paused: Option<Instant>,
    /// How long it was paused in all.
    held_up: Duration,
    /// A run can be given an interpreter of its own beside it.
    guarded: bool,
}

pub(super) struct Prefork {
    layout: Layout,
    preload: Vec<String>,
    phase: Phase,
    spare: Option<Spare>,
    /// There will be cells.
    cells: bool,
    kernel: Option<KernelSpare>,
    /// A kernel would be of use: there is none at work.
    wants_kernel: bool,
    /// Kernels that failed, one after another, before they were ready.
    failed_kernels: u32,
    /// What went wrong, for whoever asks.
    problems: Vec<String>,
    /// Spares that were lost while they waited, since one last served a run.
    lost_spares: u32,
    /// Deaths since it last served a run and lived.
    deaths: u32,
    /// It was ended for a run while it could not defend itself.
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

    /// Starts it, to load these modules, if there is a program for it, and what cells need if there will be any.
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

    /// Sees what has become of it and its spare, and does what is next. Never waits.
    pub(super) fn attend(&mut self, children: &mut Children) {
        let now = Instant::now();
        match &mut self.phase {
            Phase::Loading(loading) => match loading.zygote.receive() {
                Received::Message(ZygoteStatus::Guarded) => loading.guarded = true,
                Received::Message(ZygoteStatus::Loaded { missing, threads }) => {
                    self.problems = missing;
                    if threads > 1 {
                        // A fork of it would have locks that nobody opens.
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
                // A run beside it has taken the memory.
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
            // What is seen now need not be looked for when a run waits; what is not, is then.
            children.is_only(None);
        }
        if matches!(self.phase, Phase::Loaded(_)) && self.spare.is_none() {
            self.ask(&BTreeSet::new(), children);
        }
        self.attend_to_kernel(now, children);
    }

    /// Keeps a kernel waiting while none is at work. Programs come first, and without one a new interpreter
    /// runs the cells.
    fn attend_to_kernel(&mut self, now: Instant, children: &mut Children) {
        let Some(kernel) = &mut self.kernel else {
            let is_time = self.wants_kernel && self.spare.as_ref().is_some_and(Spare::is_ready);
            // What waits for cells must not take the memory of programs.
            let is_time = is_time && memory::is_half_free();
            if is_time && self.cells && self.failed_kernels < MAX_FAILED_KERNELS {
                self.ask_for_kernel();
            }
            return;
        };
        let (was_there, was_ready) = (kernel.pid.is_some(), kernel.is_ready);
        let is_stuck = !was_ready
            && matches!(self.phase, Phase::Loaded(_))
            && now > kernel.asked + FORK_TIMEOUT;
        if !kernel.look() || is_stuck {
            self.failed_kernels += u32::from(!was_ready);
            self.drop_kernel(children);
        } else if let Some(pid) = kernel.pid {
            if !was_there {
                // What it forks while it prepares is its own business.
                children.spare(pid);
            }
            if kernel.is_ready && !was_ready {
                self.failed_kernels = 0;
                children.trust_no_longer(pid);
                children.is_only(None);
            }
        }
    }

    fn ask_for_kernel(&mut self) {
        if let Phase::Loading(Loading { zygote, .. }) | Phase::Loaded(zygote) = &self.phase {
            // One that does not listen has died, which is seen elsewhere.
            self.kernel = zygote.ask_for_kernel().ok();
        }
    }

    fn drop_kernel(&mut self, children: &mut Children) {
        if let Some(pid) = self.kernel.take().and_then(|kernel| kernel.pid) {
            children.kill_spared(pid);
        }
    }

    /// A kernel that prepares leaves the processor to a run. One that is just being forked would be taken for
    /// somebody: it is waited for, which takes milliseconds.
    fn pause_kernel(&mut self, children: &mut Children) {
        let until = Instant::now() + BIRTH_TIMEOUT;
        while self.kernel.as_ref().is_some_and(|kernel| kernel.pid.is_none())
            && self.wait_for_message(until, children)
        {}
        if let Some(pid) = self.preparing_kernel() {
            children.signal_spared(pid, Signal::SIGSTOP);
        }
    }

    fn preparing_kernel(&self) -> Option<Pid> {
        self.kernel.as_ref().filter(|kernel| !kernel.is_ready).and_then(|kernel| kernel.pid)
    }

    fn drop_spare(&mut self, children: &mut Children) {
        if let Some(pid) = self.spare.take().and_then(|spare| spare.pid) {
            children.kill_spared(pid);
        }
    }

    /// Whether to keep a kernel waiting.
    pub(super) fn want_kernel(&mut self, wants_kernel: bool) {
        self.wants_kernel = wants_kernel;
        if wants_kernel && matches!(self.phase, Phase::GaveRoom) {
            self.phase = Phase::Asleep;
        }
    }

    /// A kernel that waits for its first cell, and how it came about; waits for it if it may come. `None`
    /// leaves the cell to a new interpreter.
    pub(super) fn take_kernel(&mut self, children: &mut Children) -> Option<(KernelSpare, Start)> {
        self.attend(children);
        if self.kernel.as_ref().and_then(|kernel| kernel.pid).is_some_and(processes::is_doomed) {
            self.drop_kernel(children);
        }
        let mut start = Start::Warm;
        if self.kernel.as_ref().is_none_or(|kernel| !kernel.is_ready) {
            start = Start::Fork;
            if !self.cells || self.failed_kernels >= MAX_FAILED_KERNELS {
                return None;
            }
            self.wake(children);
            if self.kernel.is_none() {
                self.ask_for_kernel();
            }
            let until = Instant::now() + WANTED_TIMEOUT;
            while self.kernel.as_ref().is_some_and(|kernel| !kernel.is_ready)
                && self.wait_for_message(until, children)
            {}
        }
        if self.kernel.as_ref().is_none_or(|kernel| !kernel.is_ready) {
            self.drop_kernel(children);
            return None;
        }
        let kernel = self.kernel.take()?;
        if memory::is_soon_unshared() && !memory::is_half_free() {
            // The kernel, its copies and the fork server together would be too much.
            self.give_room(children);
        }
        Some((kernel, start))
    }

    /// The fork server's process.
    pub(super) fn server(&self) -> Option<Pid> {
        self.phase.zygote().map(|zygote| zygote.pid)
    }

    /// Sets how soon the fork server is ended when memory runs out.
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

    /// Ends it, and starts it again after a pause that doubles with each death.
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

    /// Gives up its memory until it is needed.
    pub(super) fn hibernate(&mut self, children: &mut Children) {
        if !matches!(self.phase, Phase::Off | Phase::GaveRoom) {
            self.end(Phase::Asleep, children);
        }
    }

    /// Gives up its memory for as long as there is a kernel.
    pub(super) fn give_room(&mut self, children: &mut Children) {
        if !matches!(self.phase, Phase::Off) {
            self.end(Phase::GaveRoom, children);
        }
    }

    /// Starts it again if it is asleep.
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

    /// Whether it has loaded all that a program seems to import.
    pub(super) fn suits(&self, code: &[u8]) -> bool {
        let code = String::from_utf8_lossy(code);
        let has = |name: &String| first_names(&self.preload).any(|loaded| loaded == name);
        matches!(self.phase, Phase::Loaded(_))
            && !is_for_notebook(&code)
            && imported(&code).iter().all(has)
    }

    /// Starts what is in the script's file, in the quickest way that there is now; `None` leaves it
    /// to a new interpreter. Either way it meets nothing that is not this fork server's or the other's.
    pub(super) fn start(
        &mut self,
        source: Source<'_>,
        other: &mut Self,
        children: &mut Children,
    ) -> Result<Option<Program>, Unkillable> {
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
            let wants = wanted(source.code, &preload);
            // What wants nothing that has to be loaded is quicker without.
            match self.phase {
                Phase::Loaded(_) => {}
                Phase::Loading(_) if !wants.is_empty() => {}
                Phase::Asleep if !wants.is_empty() => self.wake(children),
                _ => {
                    self.has_met_somebody(other, children)?;
                    self.make_way(children);
                    other.make_way(children);
                    return Ok(None);
                }
            }
            if self.spare.is_none() {
                self.ask(&wants, children);
            }
            self.wait_for_spare(children);
        }
        if self.has_met_somebody(other, children)? && matches!(self.phase, Phase::Loaded(_)) {
            start = Start::Fork;
            self.ask(&BTreeSet::new(), children);
            self.wait_for_spare(children);
        }
        let program = self.spare.take().filter(Spare::is_ready).and_then(|spare| {
            // A cell may have stopped it.
            children.signal_spared(spare.pid?, Signal::SIGCONT);
            children.release(spare.pid?);
            spare.go(source.stdin, start, &self.layout).ok()
        });
        self.make_way(children);
        other.make_way(children);
        Ok(program)
    }

    /// Leaves the processor to a run that is not started from this.
    pub(super) fn stand_aside(&mut self, children: &mut Children) {
        self.finish_spare(children);
        self.pause_kernel(children);
        self.make_way(children);
    }

    /// Waits for a spare that is just being forked: until it says who it is, it would be taken for somebody.
    pub(super) fn finish_spare(&mut self, children: &mut Children) {
        self.attend(children);
        if matches!(self.phase, Phase::Loaded(_)) {
            self.wait_for_spare(children);
        }
        if let Some(spare) = &mut self.spare {
            spare.is_exposed = true;
        }
    }

    /// Sees to it that there is nobody but the fork servers and their spares; true if there was. Whoever
    /// it was may have reached into the spares, which then go as well.
    fn has_met_somebody(
        &mut self,
        other: &mut Self,
        children: &mut Children,
    ) -> Result<bool, Unkillable> {
        children.wait_for_the_dying();
        let met = !children.is_only(None);
        if met {
            self.drop_spare(children);
            other.drop_spare(children);
            children.sweep()?;
        }
        Ok(met)
    }

    fn wait_for_spare(&mut self, children: &mut Children) {
        let until = Instant::now() + WANTED_TIMEOUT;
        while self.spare.as_ref().is_some_and(|spare| !spare.is_ready()) {
            if !self.wait_for_message(until, children) {
                // It may come when it likes, and will find nobody.
                self.drop_spare(children);
            }
        }
    }

    /// Waits for something to attend to, and does; false if it is too late.
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

    /// Leaves the processor to a run, if there is still something to load and it has not been held up
    /// for long. A run that could look into it has it ended, but only once.
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

    /// After a run: goes on, whoever has stopped it.
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

    /// What to wait for: when one of them can be read, there is something to attend to.
    pub(super) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let zygote = self.phase.zygote().map(AsFd::as_fd);
        let spare = self.spare.as_ref().map(AsFd::as_fd);
        zygote.into_iter().chain(spare).chain(self.kernel.as_ref().map(AsFd::as_fd))
    }

    /// When there is something to attend to at the latest.
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

/// The first names of the modules that a program seems to import and that are preloaded. An estimate:
/// what it misses costs time only.
fn wanted<'a>(code: &[u8], preload: &'a [String]) -> BTreeSet<&'a str> {
    let code = String::from_utf8_lossy(code);
    let imported = imported(&code);
    // What is for a notebook only the fork server makes a program of. The first module is the soonest loaded.
    let soonest = is_for_notebook(&code).then(|| first_names(preload).next()).flatten();
    first_names(preload).filter(|name| imported.contains(*name)).chain(soonest).collect()
}

/// The first names of modules.
fn first_names(modules: &[String]) -> impl Iterator<Item = &str> {
    modules.iter().filter_map(|name| name.split('.').next())
}

/// The first names of the modules that a program seems to import.
fn imported(code: &str) -> BTreeSet<String> {
    let first =
        |name: &str| name.trim_start().split(['.', ' ', '\r']).next().unwrap_or("").to_owned();
    code.split(['\n', ';'])
        .map(str::trim_start)
        .flat_map(|line| match (line.strip_prefix("import "), line.strip_prefix("from ")) {
            (Some(names), _) => names.split(',').map(first).collect(),
            (_, Some(name)) => vec![first(name)],
            _ => vec![],
        })
        .collect()
}

/// Whether a program seems to have what only notebooks understand.
fn is_for_notebook(code: &str) -> bool {
    code.contains("display(")
        || code.lines().any(|line| line.starts_with(['%', '!']) || line.starts_with("await "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_program_imports_is_read_from_its_text() {
        let preload = ["numpy", "pandas", "matplotlib.pyplot", "json"].map(str::to_owned);
        let wants = |code: &str| wanted(code.as_bytes(), &preload).into_iter().collect::<Vec<_>>();
        assert_eq!(wants("print(2 + 2)"), Vec::<&str>::new());
        assert_eq!(wants("import os, pandas as pd\nimport  json"), ["json", "pandas"]);
        assert_eq!(wants("if True:\n    from matplotlib import pyplot"), ["matplotlib"]);
        assert_eq!(wants("x = 1; import numpy.linalg\r\n"), ["numpy"]);
        assert_eq!(wants("%matplotlib inline\nprint(1)"), ["numpy"]);
        assert_eq!(wants("x = await_this()"), Vec::<&str>::new());
        assert_eq!(wants("import pandasql\nfrom jsonl import x"), Vec::<&str>::new());
    }
}
