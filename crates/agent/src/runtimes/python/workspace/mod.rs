//! The workspace of a session's cells: the kernel that runs them, and frozen copies of it, of which the newest takes
//! over when the kernel dies.
//!
//! ```text
//!                .----------- settle: a copy of the present state ---------------.
//!                v                                                               |
//!   none -> kernel, copies of the last states -- cell --> done ------------------'  kept
//!    ^                                              '---> dead: the newest copy --'  rolled back
//!    '----------------------------------------------------'---- there is none       lost
//! ```
//!
//! Before its first cell a kernel needs no copy, because a new one has the same state. Between the calls the kernel and
//! its copies are stopped.

mod room;

use std::mem;

use nix::{sys::signal::Signal, unistd::Pid};
use protocol::message::{
    Carried, CarryLimits, CellDone, CellState, Contents, ExportDone, Failure, ImportDone,
    InspectDone, ResetDone,
};

use self::room::Room;
use super::{
    EXPENDABLE, Layout,
    carry::Written,
    kernel::{Kernel, Process},
    prefork::Prefork,
};
use crate::{
    memory,
    processes::{Children, is_doomed, memory_of, set_oom_score},
    runtimes::{
        nothing_to_undo,
        program::{Program, Stdin},
    },
};

pub(super) struct Workspace {
    layout: Layout,
    /// Maximum number of cells that can be undone.
    undo: u32,
    kernel: Option<Kernel>,
    /// Copies of states, the oldest first.
    copies: Vec<Copy>,
    /// Whether a program has run beside the kernel, or a cell in another language.
    was_disturbed: bool,
    /// Whether a cell of this workspace has just ended.
    was_own: bool,
    /// Number of threads that were lost when the kernel was replaced before a cell.
    lost_threads: usize,
}

/// A copy of the kernel that stays as it is.
struct Copy {
    process: Process,
    /// Number of cells that had been run.
    count: u64,
    /// Number of threads that were alive, and that the copy lacks.
    threads: usize,
    /// Whether the copy is worth more than the work of a cell.
    is_protected: bool,
}

impl Workspace {
    pub(super) fn new(layout: Layout) -> Self {
        Self {
            layout,
            undo: 0,
            kernel: None,
            copies: vec![],
            was_disturbed: false,
            was_own: false,
            lost_threads: 0,
        }
    }

    pub(super) fn configure(&mut self, undo: Option<u32>) {
        self.undo = undo.unwrap_or_default();
    }

    pub(super) fn is_live(&self) -> bool {
        self.kernel.is_some()
    }

    fn count(&self) -> u64 {
        self.kernel.as_ref().map_or(0, |kernel| kernel.count)
    }

    /// How many cells can be undone: there must be a copy of the state before each of them, except before the first
    /// cell.
    fn can_undo(&self, children: &Children) -> u32 {
        let count = self.count();
        let is_there = |state: u64| {
            let is_it = |copy: &Copy| copy.count == state && copy.process.is_alive(children);
            state == 0 || self.copies.iter().any(is_it)
        };
        let most = u64::from(self.undo).min(count);
        let able = (1..=most).take_while(|back| is_there(count - back)).count();
        u32::try_from(able).unwrap_or(self.undo)
    }

    /// Starts a cell, in a new kernel if there is none.
    pub(super) fn start(
        &mut self,
        stdin: Stdin,
        prefork: &mut Prefork,
        children: &mut Children,
    ) -> Result<Program, Failure> {
        children.wait_for_the_dying();
        if !self.layout.kernel.exists() {
            let detail = "the image has no program for cells";
            return Err(Failure::new(protocol::message::FailureCode::NoRuntime, detail));
        }
        // A program beside the kernel may have killed it, and it takes a while to die.
        let was_disturbed = mem::take(&mut self.was_disturbed);
        let is_there = |kernel: &Kernel| {
            let process = &kernel.process;
            process.is_alive(children)
                && (!was_disturbed || !is_doomed(process.pid) && process.answers(children))
        };
        if self.kernel.as_ref().is_some_and(|kernel| !is_there(kernel)) {
            self.recover(prefork, children);
        }
        for _ in 0..2 {
            if self.kernel.is_none() {
                self.kernel = Some(self.new_kernel(prefork, children)?);
            }
            self.weigh_for_cell(prefork, children);
            let kernel = self.kernel.as_mut().expect("just made");
            if let Ok(program) = kernel.go(stdin, &self.layout, children) {
                return Ok(program);
            }
            // The kernel has just died.
            self.recover(prefork, children);
        }
        let detail = "its interpreters die before they run a cell";
        Err(Failure::io("the workspace", &std::io::Error::other(detail)))
    }

    fn new_kernel(
        &mut self,
        prefork: &mut Prefork,
        children: &mut Children,
    ) -> Result<Kernel, Failure> {
        let spare = prefork.take_kernel(children);
        if let Some(kernel) = spare.and_then(|(spare, start)| Kernel::from_spare(spare, start)) {
            return Ok(kernel);
        }
        prefork.make_way(children);
        let kernel = Kernel::start_cold(&self.layout, children);
        kernel.map_err(|error| Failure::io("the interpreter", &error))
    }

    fn kill_kernel(&mut self, children: &mut Children) {
        if let Some(kernel) = &self.kernel {
            children.kill_spared(kernel.process.pid);
        }
    }

    /// Replaces a kernel that is dead or does not answer, not because of a cell, by a copy.
    fn recover(&mut self, prefork: &mut Prefork, children: &mut Children) {
        self.kill_kernel(children);
        children.sweep();
        match self.roll_back(children) {
            Some(threads) => {
                self.lost_threads += threads;
                // A new copy, so that the next replacement does not lose the state.
                self.keep_copy(prefork, children);
            }
            None => self.lost_threads = 0,
        }
    }

    /// Replaces the kernel, which is dead, by the copy of its state. Returns the number of threads that are lost with
    /// that; `None` if there is no copy: then the state is lost.
    fn roll_back(&mut self, children: &mut Children) -> Option<usize> {
        let kernel = self.kernel.take()?;
        if let Some(copy) = self.copies.pop_if(|copy| copy.count == kernel.count)
            && copy.process.is_alive(children)
            && copy.process.take_over(children)
        {
            let Copy { process, threads, .. } = copy;
            self.kernel = Some(Kernel { process, ..kernel });
            return Some(threads);
        }
        for copy in self.copies.drain(..) {
            copy.process.kill(children);
        }
        None
    }

    /// Ends a cell, whose kernel is done, or dead, or to be killed.
    pub(super) fn end_cell(
        &mut self,
        is_done: bool,
        prefork: &Prefork,
        children: &mut Children,
    ) -> CellDone {
        self.was_own = true;
        let before = self.count();
        let mut lost_threads = mem::take(&mut self.lost_threads);
        let pid = self.kernel.as_ref().map(|kernel| kernel.process.pid);
        // The cell may have continued copies.
        let is_kept = is_done
            && pid.is_some_and(|pid| children.is_spared(pid))
            && children.hold_all(&self.pids());
        let state = if is_kept {
            self.weigh_for_rest(children);
            if !children.is_only(None) {
                children.sweep();
            }
            if let Some(kernel) = &mut self.kernel {
                kernel.count += 1;
            }
            self.make_room(children);
            CellState::Kept
        } else {
            self.kill_kernel(children);
            children.sweep();
            match self.roll_back(children) {
                Some(threads) => {
                    lost_threads += threads;
                    CellState::RolledBack
                }
                None if before == 0 => CellState::RolledBack,
                None => CellState::Lost,
            }
        };
        let memory = self.kernel.as_ref().and_then(|kernel| memory_of(kernel.process.pid));
        CellDone {
            state,
            fresh: before == 0,
            count: self.count(),
            result: None,
            memory_bytes: memory.map(|(all, _)| all),
            can_undo: self.can_undo(children),
            lost_threads,
            at_risk: self.kernel.is_some() && self.room(prefork) != Room::Ample,
        }
    }

    /// Makes a copy of the present state for the next cell, and ends copies beyond the limit.
    pub(super) fn settle(&mut self, prefork: &mut Prefork, children: &mut Children) {
        prefork.want_kernel(self.kernel.is_none());
        let Some(kernel) = &self.kernel else { return };
        let count = kernel.count;
        self.forget_the_dead(children);
        if count > 0 && self.copies.last().is_none_or(|copy| copy.count != count) {
            self.keep_copy(prefork, children);
            self.trim(children);
        }
        self.rest(children);
    }

    /// Makes a copy of the present state, if there is room for one.
    fn keep_copy(&mut self, prefork: &mut Prefork, children: &mut Children) {
        let mut room = self.room(prefork);
        if room == Room::None && memory::is_soon_unshared() {
            // Then the fork server has much memory for itself, and a state that can be restored is worth more than
            // quick starts.
            prefork.give_room(children);
            room = self.room(prefork);
        }
        let Some(kernel) = self.kernel.as_ref().filter(|_| room != Room::None) else { return };
        if let Some((process, threads)) = kernel.process.freeze(EXPENDABLE, children) {
            set_oom_score(process.pid, EXPENDABLE);
            children.hold(process.pid);
            let (count, is_protected) = (kernel.count, room == Room::Ample);
            self.copies.push(Copy { process, count, threads, is_protected });
            self.was_disturbed = false;
        }
    }

    /// Stops the kernel and its copies, and ends all other processes, if there are any.
    fn rest(&self, children: &mut Children) {
        if !(children.hold_all(&self.pids()) && children.is_only(None)) {
            children.sweep();
        }
        self.hold(children);
    }

    /// The kernel and its copies.
    pub(super) fn pids(&self) -> Vec<Pid> {
        let kernel = self.kernel.iter().map(|kernel| kernel.process.pid);
        kernel.chain(self.copies.iter().map(|copy| copy.process.pid)).collect()
    }

    /// Notes that a program or cell has run, which has disturbed the kernel unless it was a cell of this workspace.
    pub(super) fn has_run(&mut self, children: &Children) {
        self.was_disturbed |= !mem::take(&mut self.was_own);
        self.hold(children);
    }

    /// Stops the kernel and its copies, which a program may have continued.
    pub(super) fn hold(&self, children: &Children) {
        for pid in self.pids() {
            children.signal_spared(pid, Signal::SIGSTOP);
        }
    }

    /// Forgets copies that have died, and ends all that are older.
    fn forget_the_dead(&mut self, children: &mut Children) {
        children.reap(None);
        let dead = self.copies.iter().rposition(|copy| !copy.process.is_alive(children));
        for copy in self.copies.drain(..dead.map_or(0, |dead| dead + 1)) {
            copy.process.kill(children);
        }
    }

    pub(super) fn inspect(
        &mut self,
        prefork: &mut Prefork,
        children: &mut Children,
    ) -> (InspectDone, Contents) {
        let mut contents = self.contents(children);
        if contents.is_none() && self.kernel.is_some() {
            self.recover(prefork, children);
            contents = self.contents(children);
            if contents.is_none() {
                self.end(children);
            }
        }
        self.rest(children);
        let memory = self.kernel.as_ref().and_then(|kernel| memory_of(kernel.process.pid));
        let done = InspectDone {
            live: self.is_live(),
            count: self.count(),
            can_undo: self.can_undo(children),
            memory_bytes: memory.map(|(all, _)| all),
        };
        (done, contents.unwrap_or_default())
    }

    /// Saves the variables of the kernel. If memory is short, ends the fork server and the copies before.
    pub(super) fn export(
        &mut self,
        limits: CarryLimits,
        prefork: &mut Prefork,
        children: &mut Children,
    ) -> (ExportDone, Written) {
        let answers = |kernel: &Kernel| kernel.process.answers(children);
        if self.kernel.as_ref().is_some_and(|kernel| !answers(kernel)) {
            self.recover(prefork, children);
        }
        if !memory::has_room(limits.total_bytes) {
            prefork.give_room(children);
            for copy in self.copies.drain(..) {
                copy.process.kill(children);
            }
            children.sweep();
        }
        // The agent holds the bytes in memory of the sandbox as well.
        let steps = (0..8).map(|step| limits.total_bytes >> step);
        let room = steps.into_iter().find(|bytes| memory::has_room(bytes * 2)).unwrap_or_default();
        let limits = CarryLimits { total_bytes: room, ..limits };
        let count = self.count();
        let process = self.kernel.as_ref().map(|kernel| &kernel.process);
        let written = process.and_then(|process| process.carry_out(limits, children));
        self.rest(children);
        let written =
            written.unwrap_or_else(|| Written { bytes: vec![], carried: Carried::default() });
        let total = written.bytes.len() as u64;
        (ExportDone { live: self.is_live(), count, total }, written)
    }

    /// Creates a kernel with these variables.
    pub(super) fn import(
        &mut self,
        bytes: &[u8],
        (count, limits): (u64, CarryLimits),
        prefork: &mut Prefork,
        children: &mut Children,
    ) -> Result<(ImportDone, Carried), Failure> {
        if self.kernel.is_some() {
            return Err(Failure::bad_request("there is an interpreter already"));
        }
        children.wait_for_the_dying();
        let mut kernel = self.new_kernel(prefork, children)?;
        let mut taken = kernel.process.carry_in(bytes, count, limits, children);
        if taken.as_ref().is_some_and(|taken| !taken.fits) {
            kernel.process.kill(children);
            kernel = Kernel::start_cold(&self.layout, children)
                .map_err(|error| Failure::io("the interpreter", &error))?;
            taken = kernel.process.carry_in(bytes, count, limits, children);
        }
        let Some(taken) = taken.filter(|taken| taken.fits) else {
            kernel.process.kill(children);
            children.sweep();
            let detail = "the interpreter did not take the variables over in time";
            return Err(Failure::io("the workspace", &std::io::Error::other(detail)));
        };
        // The kernel counts as used, whatever the count was.
        kernel.count = count.max(1);
        self.kernel = Some(kernel);
        self.weigh_for_rest(children);
        self.rest(children);
        Ok((ImportDone { count: self.count() }, taken.carried))
    }

    /// The variables of the kernel, if it answers.
    fn contents(&self, children: &Children) -> Option<Contents> {
        self.kernel.as_ref()?.process.inspect(children)
    }

    pub(super) fn reset(
        &mut self,
        undo: Option<u32>,
        children: &mut Children,
    ) -> Result<ResetDone, Failure> {
        let able = self.can_undo(children);
        let count = self.count();
        let back = match undo {
            None => count,
            Some(back) if back > able => return Err(nothing_to_undo(back, able)),
            Some(back) => u64::from(back),
        };
        let mut lost_threads = 0;
        let target = count - back;
        if undo.is_none() || target == 0 {
            self.end(children);
        } else if back > 0 {
            let at = self.copies.iter().position(|copy| copy.count == target);
            let copy = at.map(|at| self.copies.remove(at));
            let Some(copy) = copy.filter(|copy| copy.process.take_over(children)) else {
                return Err(nothing_to_undo(undo.unwrap_or_default(), 0));
            };
            let newer = self.copies.partition_point(|copy| copy.count < target);
            for newer in self.copies.drain(newer..) {
                newer.process.kill(children);
            }
            self.kill_kernel(children);
            lost_threads = copy.threads;
            if let Some(kernel) = &mut self.kernel {
                (kernel.process, kernel.count) = (copy.process, target);
            }
        }
        children.sweep();
        self.hold(children);
        Ok(ResetDone { count: self.count(), can_undo: self.can_undo(children), lost_threads })
    }

    /// Ends the kernel and all copies.
    fn end(&mut self, children: &mut Children) {
        self.kill_kernel(children);
        self.kernel = None;
        self.lost_threads = 0;
        for copy in self.copies.drain(..) {
            copy.process.kill(children);
        }
    }
}
