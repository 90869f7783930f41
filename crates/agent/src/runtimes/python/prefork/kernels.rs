//! The spare kernel, in which the first cell of a workspace runs.

use std::time::{Duration, Instant};

use nix::{sys::signal::Signal, unistd::Pid};
use protocol::message::Start;

use super::{FORK_TIMEOUT, Loading, Phase, Prefork, WANTED_TIMEOUT};
use crate::{
    memory,
    processes::{self, Children},
    runtimes::python::zygote::{KernelSpare, Spare},
};

/// Longest time that a run waits for a kernel that is being forked.
const BIRTH_TIMEOUT: Duration = Duration::from_millis(500);

/// Number of kernels that may fail before no more are requested.
const MAX_FAILED_KERNELS: u32 = 3;

impl Prefork {
    /// Keeps a kernel ready while no other is in use. Programs come first: without a spare kernel, a new interpreter
    /// runs the cells.
    pub(super) fn attend_to_kernel(&mut self, now: Instant, children: &mut Children) {
        let Some(kernel) = &mut self.kernel else {
            let is_time = self.wants_kernel && self.spare.as_ref().is_some_and(Spare::is_ready);
            // A spare kernel must not take the memory of programs.
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
                // The processes that it forks while it prepares are spared, too.
                children.spare(pid);
            }
            if kernel.is_ready && !was_ready {
                self.failed_kernels = 0;
                children.trust_no_longer(pid);
                children.is_only(None);
            }
        }
    }

    pub(super) fn ask_for_kernel(&mut self) {
        if let Phase::Loading(Loading { zygote, .. }) | Phase::Loaded(zygote) = &self.phase {
            // Fails if the fork server has died, which is noticed elsewhere.
            self.kernel = zygote.ask_for_kernel().ok();
        }
    }

    pub(super) fn drop_kernel(&mut self, children: &mut Children) {
        if let Some(pid) = self.kernel.take().and_then(|kernel| kernel.pid) {
            children.kill_spared(pid);
        }
    }

    /// Pauses a kernel that prepares, to leave the processor to a run. Waits for a kernel that is being forked, which
    /// takes milliseconds: it would be taken for a process of the user's.
    pub(super) fn pause_kernel(&mut self, children: &mut Children) {
        let until = Instant::now() + BIRTH_TIMEOUT;
        while self.kernel.as_ref().is_some_and(|kernel| kernel.pid.is_none())
            && self.wait_for_message(until, children)
        {}
        if let Some(pid) = self.preparing_kernel() {
            children.signal_spared(pid, Signal::SIGSTOP);
        }
    }

    pub(super) fn preparing_kernel(&self) -> Option<Pid> {
        self.kernel.as_ref().filter(|kernel| !kernel.is_ready).and_then(|kernel| kernel.pid)
    }

    /// Sets whether a kernel is kept ready.
    pub(in super::super) fn want_kernel(&mut self, wants_kernel: bool) {
        self.wants_kernel = wants_kernel;
        if wants_kernel && matches!(self.phase, Phase::GaveRoom) {
            self.phase = Phase::Asleep;
        }
    }

    /// Returns a kernel that waits for its first cell, and how it was started; waits for it if it is on its way. `None`
    /// leaves the cell to a new interpreter.
    pub(in super::super) fn take_kernel(
        &mut self,
        children: &mut Children,
    ) -> Option<(KernelSpare, Start)> {
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
            // The kernel, its copies and the fork server together would need too much memory.
            self.give_room(children);
        }
        Some((kernel, start))
    }
}
