//! JavaScript, by Node: a new process for each program; cells run in one that lives on between them.
//!
//! ```text
//! none -- cell --> kernel -- done, exit, error, interrupted --> kernel, stopped
//!  ^                  '----- dead, or not to be interrupted --> none; a spare starts
//!  '-- reset --'
//! ```
//!
//! A Node that waits takes 20 MB of memory that is not shared, and few workspaces use JavaScript: the first Node is
//! started for the first cell, which takes a tenth of a second. Only after that there is a spare when the kernel has
//! ended, unless there is no room for what Python loads either.

mod kernel;

use std::{path::PathBuf, process::Command};

use agent_core::{Ended, Settings};
use nix::sys::signal::Signal;
use protocol::message::{
    CellDone, CellState, Contents, End, Failure, InspectDone, ResetDone, RuntimeName, Start,
};
use sandbox_files::tree::Snapshot;

use super::{
    Runtime,
    channel::CellReport,
    cold, nothing_to_undo,
    program::{Program, Source},
};
use crate::{
    places::Places,
    processes::{Children, is_doomed_by},
};
use kernel::{Cell, Kernel};

/// The interpreter, by the name under which the path finds it.
const INTERPRETER: &str = "node";

/// The program's text, in scratch space.
const SCRIPT: &str = "main.js";

/// The module that gives programs the global `tools`, among the runtimes' files.
const CALLS: &str = "javascript/calls.cjs";

/// Signals that Node catches to restore the terminal before it ends by them.
const CAUGHT: [Signal; 2] = [Signal::SIGINT, Signal::SIGTERM];

/// A cell's standard input, in scratch space until it has been opened.
const STDIN: &str = "main.stdin";

/// The message of Node before it aborts because its heap is full.
const HEAP_IS_FULL: &str = "JavaScript heap out of memory";

/// How a run ends whose interpreter aborts.
const ABORTED: [End; 3] = [
    End::Signaled { signal: Signal::SIGABRT as i32 },
    End::Signaled { signal: Signal::SIGTRAP as i32 },
    End::Signaled { signal: Signal::SIGILL as i32 },
];

/// Programs and cells in JavaScript.
pub(super) struct JavaScript {
    places: Places,
    script: PathBuf,
    stdin: PathBuf,
    kernel: Option<Kernel>,
    /// The next kernel. No user code has run in it.
    spare: Option<Kernel>,
    /// Whether the kernel was new when the cell that runs started.
    fresh: bool,
    /// Whether there was a program or a cell, so that there may be more.
    is_wanted: bool,
    /// Whether there is memory for processes that only make cells start faster.
    has_room: bool,
}

impl JavaScript {
    pub(super) fn new(places: &Places) -> Self {
        Self {
            script: places.scratch.join(SCRIPT),
            stdin: places.scratch.join(STDIN),
            places: places.clone(),
            kernel: None,
            spare: None,
            fresh: false,
            is_wanted: false,
            has_room: false,
        }
    }

    fn write(&self, source: Source<'_>) -> Result<(), Failure> {
        let written = cold::write(&self.places, &self.script, source.code);
        written.map_err(|error| Failure::io("the program's file", &error))
    }

    fn start_spare(&mut self, children: &mut Children) {
        if self.is_wanted
            && self.has_room
            && self.spare.is_none()
            && self.kernel.is_none()
            && let Ok(spare) = Kernel::start(&self.places)
        {
            children.keep(spare.pid());
            self.spare = Some(spare);
        }
    }

    /// Forgets the kernel and the spare if they have died.
    fn forget_the_dead(&mut self, children: &Children) {
        self.kernel.take_if(|kernel| !children.is_spared(kernel.pid()));
        self.spare.take_if(|spare| !children.is_spared(spare.pid()));
    }

    /// Forgets the kernel and the spare if a program beside them may have killed them: they take a while to die.
    fn forget_the_dying(&mut self, children: &mut Children) {
        children.reap(None);
        self.forget_the_dead(children);
        for place in [&mut self.kernel, &mut self.spare] {
            if let Some(dying) =
                place.take_if(|kernel| is_doomed_by(kernel.pid(), &CAUGHT) || !kernel.answers())
            {
                children.kill_spared(dying.pid());
            }
        }
    }

    /// Returns the kernel, or a new one, and how it was started.
    fn take_kernel(&mut self, children: &mut Children) -> Result<(Kernel, Start), Failure> {
        self.forget_the_dying(children);
        self.fresh = self.kernel.is_none();
        if let Some(kernel) = self.kernel.take().or_else(|| self.spare.take()) {
            return Ok((kernel, Start::Warm));
        }
        let kernel = Kernel::start(&self.places);
        let kernel = kernel.map_err(|error| Failure::io(INTERPRETER, &error))?;
        Ok((kernel, Start::Cold))
    }

    /// Stops the kernel if it has answered, and otherwise kills it; ends the processes that it has started.
    fn hold_or_kill(&mut self, has_answered: bool, children: &mut Children) {
        let held = |kernel: &Kernel| {
            has_answered && children.is_spared(kernel.pid()) && children.hold(kernel.pid())
        };
        if !self.kernel.as_ref().is_some_and(held)
            && let Some(kernel) = self.kernel.take()
        {
            children.kill_spared(kernel.pid());
        }
        if !children.is_only(None) {
            children.sweep();
        }
        self.forget_the_dead(children);
    }

    fn count(&self) -> u64 {
        self.kernel.as_ref().map_or(0, Kernel::count)
    }
}

impl Runtime for JavaScript {
    fn name(&self) -> RuntimeName {
        RuntimeName::JAVASCRIPT
    }

    fn start(&mut self, source: Source<'_>, _: &mut Children) -> Result<Program, Failure> {
        self.is_wanted = true;
        self.write(source)?;
        let mut command = Command::new(INTERPRETER);
        command.args(kernel::heap_limit());
        command.arg("--require").arg(self.places.runtimes.join(CALLS)).arg(&self.script);
        let program = cold::start(&mut command, &self.places.data, source.stdin);
        program.map_err(|error| Failure::io(INTERPRETER, &error))
    }

    fn script_name(&self) -> &'static str {
        SCRIPT
    }

    fn explain(&self, stderr: &[u8], _: &Snapshot, ended: &mut Ended) {
        // Node's heap has a limit of its own, at which Node aborts.
        if ABORTED.contains(&ended.end) && String::from_utf8_lossy(stderr).contains(HEAP_IS_FULL) {
            ended.end = End::OutOfMemory;
        }
    }

    fn configure(&mut self, settings: &Settings, _: &mut Children) {
        self.has_room = settings.preload.is_some();
    }

    fn attend(&mut self, children: &mut Children) {
        self.forget_the_dead(children);
    }

    fn hibernate(&mut self, children: &mut Children) {
        if let Some(spare) = self.spare.take() {
            children.kill_spared(spare.pid());
        }
    }

    fn prewarm(&mut self, children: &mut Children) {
        self.start_spare(children);
    }

    fn resume(&mut self, _: Start, children: &mut Children) {
        // A program may have continued the kernel.
        if let Some(kernel) = &self.kernel {
            children.signal_spared(kernel.pid(), Signal::SIGSTOP);
        }
    }

    fn start_cell(
        &mut self,
        source: Source<'_>,
        children: &mut Children,
    ) -> Result<Program, Failure> {
        self.is_wanted = true;
        self.write(source)?;
        if let Some(input) = source.input {
            let written = cold::write(&self.places, &self.stdin, input);
            written.map_err(|error| Failure::io("the program's input", &error))?;
        }
        let (mut kernel, start) = self.take_kernel(children)?;
        children.keep(kernel.pid());
        let stdin = source.input.map(|_| &*self.stdin);
        let program = kernel.begin(Cell { file: &self.script, stdin }, start);
        self.kernel = Some(kernel);
        program.map_err(|error| Failure::io(INTERPRETER, &error))
    }

    fn interrupt(&mut self) -> bool {
        self.kernel.as_ref().is_some_and(Kernel::interrupt)
    }

    fn end_cell(&mut self, report: Option<&CellReport>, children: &mut Children) -> CellDone {
        self.hold_or_kill(report.is_some(), children);
        let state = match self.kernel {
            Some(_) => CellState::Kept,
            // The kernel was new, so that nothing was lost.
            None if self.fresh => CellState::RolledBack,
            None => CellState::Lost,
        };
        CellDone {
            state,
            fresh: self.fresh,
            count: self.count(),
            result: None,
            memory_bytes: self.kernel.as_ref().and_then(Kernel::memory_bytes),
            can_undo: 0,
            lost_threads: 0,
            at_risk: false,
        }
    }

    fn settle(&mut self, children: &mut Children) {
        self.start_spare(children);
    }

    fn is_live(&self) -> bool {
        self.kernel.is_some()
    }

    fn inspect(&mut self, children: &mut Children) -> Result<(InspectDone, Contents), Failure> {
        self.forget_the_dead(children);
        let mut contents = Contents::default();
        if let Some(kernel) = &self.kernel {
            let told = kernel.inspect();
            self.hold_or_kill(told.is_some(), children);
            contents = told.unwrap_or_default();
        }
        let done = InspectDone {
            live: self.kernel.is_some(),
            count: self.count(),
            can_undo: 0,
            memory_bytes: self.kernel.as_ref().and_then(Kernel::memory_bytes),
        };
        Ok((done, contents))
    }

    fn reset(&mut self, undo: Option<u32>, children: &mut Children) -> Result<ResetDone, Failure> {
        match undo {
            Some(undo @ 1..) => return Err(nothing_to_undo(undo, 0)),
            Some(0) => {}
            None => {
                if let Some(kernel) = self.kernel.take() {
                    children.kill_spared(kernel.pid());
                    children.sweep();
                }
            }
        }
        Ok(ResetDone { count: self.count(), can_undo: 0, lost_threads: 0 })
    }
}
