//! An interpreter of a sandbox: the guest that cells run in, the states that it can be rolled back to, and guests
//! for programs.

use std::{
    collections::VecDeque,
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use agent_core::{Asks, Ended, Job, Summarizing, no_summary};
use protocol::message::{
    CellDone, CellState, Contents, End, Facts, Failure, FailureCode, InspectDone, ResetDone, Start,
    Summary,
};

use super::SharedFiles;
use crate::{
    javascript,
    kept::KeptKernel,
    machine::{Bounds, Guest, Halt, Machine, Switch},
    memory::Pages,
    python::{self, Told},
    runtime::{Interpreter, Language},
    state::State,
};

/// Longest time that reading the variables may take.
const LOOK: Duration = Duration::from_secs(2);

/// Instructions of a summary: more than it needs in the time that it has.
const SUMMARY_FUEL: u64 = 4_000_000_000;

/// Maximum number of pages that a spare guest copies in advance: 8 MB.
const MAX_HOT: usize = 2048;

/// An interpreter and its workspace.
pub(super) struct Kernel {
    interpreter: Arc<Interpreter>,
    files: SharedFiles,
    asks: Asks,
    /// Bytes of memory that a guest may have.
    memory: usize,
    /// The guest of the workspace; `None` if it has to be created again, as after hibernation.
    machine: Option<Machine>,
    /// The guest's state after the last cell; `None` before the first.
    present: Option<Arc<Kept>>,
    /// Older states, the oldest first.
    past: VecDeque<Arc<Kept>>,
    undo: u32,
    /// A guest for the next program.
    spare: Option<Machine>,
    /// Pages that the last program wrote. A spare copies them in advance, so that the next program does not wait for
    /// that.
    hot: Vec<u32>,
    /// The guest of the last call, until the reply to it has been sent.
    unsettled: Option<Unsettled>,
}

/// A guest after a call.
enum Unsettled {
    /// A guest whose state becomes the present state, and the state before the call.
    Kept(Machine, Arc<Kept>),
    /// A guest that is rolled back to the present state.
    Stopped(Machine),
    /// A guest that has run a program: its state is discarded.
    Program(Machine),
    /// A guest that has summarized a file: its state is discarded.
    Summary(Machine),
}

impl Unsettled {
    /// The guest whose open files stay open.
    fn of_workspace(&self) -> Option<&Machine> {
        match self {
            Self::Kept(machine, _) | Self::Stopped(machine) => Some(machine),
            Self::Program(_) | Self::Summary(_) => None,
        }
    }
}

/// The states of an interpreter after its last cells.
pub(super) struct KeptStates {
    language: &'static str,
    /// The oldest first.
    states: Vec<Arc<Kept>>,
}

impl KeptStates {
    pub(super) fn save(&self) -> KeptKernel {
        let mut older = None;
        let states = self.states.iter().map(|kept| {
            let Kept { state, count } = &**kept;
            (*count, state.save(older.replace(state)))
        });
        KeptKernel { language: self.language.to_owned(), states: states.collect() }
    }
}

/// A state, and the number of cells that were run before it.
struct Kept {
    state: State,
    count: u64,
}

impl Kernel {
    pub(super) fn new(
        interpreter: Interpreter,
        files: SharedFiles,
        asks: Asks,
        memory: u64,
    ) -> Self {
        let memory = usize::try_from(memory).unwrap_or(usize::MAX);
        let memory = interpreter.image.len().saturating_add(memory);
        Self {
            interpreter: Arc::new(interpreter),
            files,
            asks,
            memory,
            machine: None,
            present: None,
            past: VecDeque::new(),
            undo: 0,
            spare: None,
            hot: vec![],
            unsettled: None,
        }
    }

    pub(super) fn language(&self) -> Language {
        self.interpreter.language
    }

    pub(super) fn configure(&mut self, undo: u32) {
        self.undo = undo;
    }

    /// The states to save; `None` if there are no variables.
    pub(super) fn save(&self) -> Option<KeptStates> {
        let present = self.present.clone()?;
        let states = self.past.iter().cloned().chain([present]).collect();
        Some(KeptStates { language: self.language().name(), states })
    }

    /// Bytes of memory that a guest may have.
    pub(super) fn most_memory(&self) -> u64 {
        self.memory as u64
    }

    /// Loads saved states. Returns false if one of them cannot be used.
    pub(super) fn load(&mut self, kept: KeptKernel) -> bool {
        for (count, saved) in kept.states {
            let older = self.present.as_ref().map(|kept| &kept.state);
            let Some(state) = State::load(saved, older, self.memory) else {
                return false;
            };
            self.past.extend(self.present.replace(Arc::new(Kept { state, count })));
        }
        true
    }

    /// Discards the states that were loaded.
    pub(super) fn unload(&mut self) {
        (self.present, self.past) = (None, VecDeque::new());
    }

    /// Whether a node is open in one of the workspace's states.
    pub(super) fn has_open(&self, inode: u64) -> bool {
        let mut kept = self.present.iter().chain(&self.past);
        let unsettled = self.unsettled.as_ref().and_then(Unsettled::of_workspace);
        let unsettled = unsettled.map(Machine::descriptors);
        kept.any(|kept| kept.state.descriptors().has(inode))
            || unsettled.is_some_and(|descriptors| descriptors.has(inode))
    }

    /// A new guest in the state of the image.
    fn fresh(&self) -> wasmtime::Result<Machine> {
        let Interpreter { language, pre, image } = &*self.interpreter;
        let process = language.process(&self.files.now());
        let first = State::first(image);
        let guest = Guest::new(process, self.files.now.clone(), self.memory);
        let mut machine = Machine::new(pre, guest)?;
        first.open(&mut machine, image)?;
        Ok(machine)
    }

    /// The guest of the workspace, in its present state.
    fn machine(&mut self) -> wasmtime::Result<Machine> {
        if let Some(machine) = self.machine.take() {
            return Ok(machine);
        }
        if self.present.is_none()
            && let Some(spare) = self.spare.take()
        {
            return Ok(spare);
        }
        let mut machine = self.fresh()?;
        if let Some(kept) = &self.present {
            kept.state.open(&mut machine, &self.interpreter.image)?;
        }
        Ok(machine)
    }

    /// Makes the state after the last cell the present state, and prepares for the next call. No caller waits for
    /// this.
    pub(super) fn settle(&mut self, pages: &mut Pages) {
        match self.unsettled.take() {
            Some(Unsettled::Kept(machine, before)) => {
                let kept = self.keep(machine, before, pages);
                // If the kernel did not report the written pages, there is no state to roll back to.
                self.present = self.present.take().filter(|_| kept.is_ok());
            }
            Some(Unsettled::Stopped(machine)) => {
                let written = written_of(&machine, pages);
                self.restore(machine, written);
            }
            Some(Unsettled::Program(machine)) => self.spare = self.as_new(machine, pages),
            Some(Unsettled::Summary(machine)) => {
                // The pages that the last program wrote say more about the next one.
                let hot = std::mem::take(&mut self.hot);
                self.spare = self.as_new(machine, pages);
                self.hot = hot;
            }
            None => {}
        }
        if self.spare.is_none() {
            self.spare = self.fresh().ok();
            if let Some(spare) = &mut self.spare {
                spare.touch(&self.hot);
            }
        }
    }

    /// Restores a guest that has run a program to the state of the image. Restoring the pages that it wrote costs
    /// less than a new guest, which would have to copy them all again. `None` if it wrote too many pages, or its memory
    /// has grown.
    fn as_new(&mut self, mut machine: Machine, pages: &mut Pages) -> Option<Machine> {
        let (base, size) = machine.extent();
        let mut written = pages.private(base, size).ok()?;
        let is_small = written.len() <= MAX_HOT;
        let image = &self.interpreter.image;
        let is_new =
            is_small && State::first(image).restore(&mut machine, image, &written).unwrap_or(false);
        written.truncate(MAX_HOT);
        self.hot = written;
        is_new.then_some(machine)
    }

    /// Frees all memory that the next call does not need.
    pub(super) fn hibernate(&mut self) {
        (self.machine, self.spare) = (None, None);
    }

    /// Runs a program in a guest of its own.
    pub(super) fn program(
        &mut self,
        job: &mut Job<Switch>,
        fuel: Option<u64>,
    ) -> Result<Ended, Failure> {
        let start = if self.spare.is_some() { Start::Warm } else { Start::Fork };
        let machine = self.spare.take().map_or_else(|| self.fresh(), Ok);
        let mut machine = machine.map_err(|error| no_guest(&error))?;
        let (told, elapsed) = self.call(&mut machine, job, fuel, false);
        let (was_denied, fuel) = (machine.guest().was_denied, Some(machine.fuel_used()));
        self.unsettled = Some(Unsettled::Program(machine));
        let (end, told) = end_of(told, was_denied);
        let facts = Facts { fuel, ..told.map(|told| told.facts).unwrap_or_default() };
        let oom_kills = u64::from(end == End::OutOfMemory);
        let (cell, result) = (None, vec![]);
        Ok(Ended { end, start, elapsed, cpu: elapsed, oom_kills, facts, cell, result })
    }

    /// Runs the code in the guest.
    fn call(
        &self,
        machine: &mut Machine,
        job: &mut Job<Switch>,
        fuel: Option<u64>,
        is_cell: bool,
    ) -> (Result<Option<Told>, Halt>, Duration) {
        let stdin = job.stdin.take().unwrap_or_default();
        let code = String::from_utf8_lossy(&job.code);
        job.outputs.begin();
        machine.guest().process.begin(stdin, Some(job.outputs.clone()));
        machine.guest().process.allow(self.asks.are_enabled().then(|| self.asks.clone()));
        let begun = Instant::now();
        let deadline = Some(begun + Duration::from_millis(job.run.timeout_ms));
        let bounds = Bounds { deadline, switch: job.switch.clone(), fuel, ..Bounds::default() };
        machine.bound(bounds.clone());
        // No code that could have drawn random numbers has run in it.
        let is_new = !is_cell || self.present.as_ref().is_none_or(|kept| kept.count == 0);
        let told = match (self.language(), is_cell) {
            (Language::Python, true) => python::cell(machine, &code),
            (Language::Python, false) => python::program(machine, &code),
            (Language::JavaScript, _) => {
                let seeded = if is_new { javascript::seed(machine) } else { Ok(()) };
                seeded.and_then(|()| javascript::cell(machine, &code))
            }
        };
        machine.guest().process.end();
        (told, begun.elapsed().saturating_sub(bounds.paused()))
    }

    /// Runs a cell.
    pub(super) fn cell(
        &mut self,
        job: &mut Job<Switch>,
        fuel: Option<u64>,
    ) -> Result<Ended, Failure> {
        let start =
            if self.machine.is_some() || self.spare.is_some() { Start::Warm } else { Start::Fork };
        let mut machine = self.machine().map_err(|error| no_guest(&error))?;
        let fresh = self.present.is_none();
        if fresh {
            let state = State::first(&self.interpreter.image);
            self.present = Some(Arc::new(Kept { state, count: 0 }));
        }
        let before = self.present.clone().expect("just made");
        let (told, elapsed) = self.call(&mut machine, job, fuel, true);
        let (was_denied, fuel) = (machine.guest().was_denied, Some(machine.fuel_used()));
        let (end, told) = end_of(told, was_denied);
        let kept = told.is_some();
        let memory = machine.extent().1;
        let (mut count, mut can_undo) = (before.count, self.can_undo());
        if kept {
            (count, can_undo) = (count + 1, (can_undo + 1).min(self.undo));
            self.unsettled = Some(Unsettled::Kept(machine, before));
        } else if fresh {
            self.present = None;
        } else {
            self.unsettled = Some(Unsettled::Stopped(machine));
        }
        let state = if kept { CellState::Kept } else { CellState::RolledBack };
        let told = told.unwrap_or_default();
        let (captured, result) = match told.result().filter(|_| kept) {
            Some((captured, result)) => (Some(captured), result),
            None => (None, vec![]),
        };
        let cell = CellDone {
            state,
            fresh,
            count,
            result: captured,
            memory_bytes: Some(memory as u64),
            can_undo,
            lost_threads: 0,
            at_risk: false,
        };
        let facts = Facts { fuel, ..told.facts };
        let oom_kills = u64::from(end == End::OutOfMemory);
        Ok(Ended { end, start, elapsed, cpu: elapsed, oom_kills, facts, cell: Some(cell), result })
    }

    /// Summarizes a file in a guest that is not that of the workspace.
    pub(super) fn summarize(
        &mut self,
        summarizing: &Summarizing<Switch>,
    ) -> Result<Summary, Failure> {
        let machine = self.spare.take().map_or_else(|| self.fresh(), Ok);
        let mut machine = machine.map_err(|error| no_guest(&error))?;
        machine.guest().process.begin(vec![], None);
        let (deadline, switch) = (Some(summarizing.until), summarizing.switch.clone());
        machine.bound(Bounds { deadline, switch, fuel: Some(SUMMARY_FUEL), ..Bounds::default() });
        let request = &summarizing.request;
        let summary = python::summarize(&mut machine, &request.path, request.encoding.as_deref());
        machine.guest().process.end();
        self.unsettled = Some(Unsettled::Summary(machine));
        match summary {
            Ok(Some(summary)) => Ok(summary),
            Err(Halt::Deadline | Halt::Killed) => {
                Err(Failure::new(FailureCode::Busy, "no time for a summary"))
            }
            Ok(None) | Err(_) => Err(no_summary()),
        }
    }

    /// Makes the guest's state after a cell the present state.
    fn keep(
        &mut self,
        mut machine: Machine,
        before: Arc<Kept>,
        pages: &mut Pages,
    ) -> io::Result<()> {
        let state = before.state.next(&mut machine, &self.interpreter.image, pages)?;
        let count = before.count + 1;
        self.past.push_back(before);
        self.present = Some(Arc::new(Kept { state, count }));
        self.machine = Some(machine);
        // All older states together may have as much memory as a guest may have for itself.
        let own = |kept: &Arc<Kept>| kept.state.own_bytes();
        let most = self.memory - self.interpreter.image.len();
        while self.past.len() > self.undo as usize
            || self.past.iter().map(own).sum::<usize>() > most
        {
            self.past.pop_front();
        }
        Ok(())
    }

    fn count(&self) -> u64 {
        self.present.as_ref().map_or(0, |kept| kept.count)
    }

    fn can_undo(&self) -> u32 {
        u32::try_from(self.past.len()).unwrap_or(u32::MAX).min(self.undo)
    }

    /// Restores the present state of the guest, which may differ from it in the pages `written`. If these are not
    /// known, the guest is dropped.
    fn restore(&mut self, mut machine: Machine, written: io::Result<Vec<u32>>) {
        let image = &self.interpreter.image;
        let is_restored = self.present.as_ref().zip(written.ok()).is_some_and(|(kept, written)| {
            kept.state.restore(&mut machine, image, &written).unwrap_or(false)
        });
        self.machine = is_restored.then_some(machine);
    }

    /// Reports the variables of the interpreter. Does not change its state.
    pub(super) fn inspect(
        &mut self,
        pages: &mut Pages,
    ) -> Result<(InspectDone, Contents), Failure> {
        let mut done = InspectDone {
            live: false,
            count: self.count(),
            can_undo: self.can_undo(),
            memory_bytes: None,
        };
        if self.present.is_none() {
            return Ok((done, Contents::default()));
        }
        let mut machine = self.machine().map_err(|error| no_guest(&error))?;
        machine.guest().process.begin(vec![], None);
        machine.bound(Bounds { deadline: Some(Instant::now() + LOOK), ..Bounds::default() });
        let contents = match self.language() {
            Language::Python => python::look(&mut machine),
            Language::JavaScript => javascript::look(&mut machine),
        };
        machine.guest().process.end();
        (done.live, done.memory_bytes) = (true, Some(machine.extent().1 as u64));
        let written = written_of(&machine, pages);
        self.restore(machine, written);
        Ok((done, contents.ok().flatten().unwrap_or_default()))
    }

    /// Undoes `undo` cells, or resets the interpreter if `None`.
    pub(super) fn reset(
        &mut self,
        undo: Option<u32>,
        pages: &mut Pages,
    ) -> Result<ResetDone, Failure> {
        match undo {
            None => {
                (self.machine, self.present) = (None, None);
                self.past.clear();
            }
            Some(undo) => {
                let can_undo = self.can_undo();
                if undo > can_undo {
                    let detail = format!("{undo} cells cannot be taken back, only {can_undo}");
                    return Err(Failure::new(FailureCode::NothingToUndo, detail));
                }
                for _ in 0..undo {
                    self.present = self.past.pop_back();
                }
                if let Some(machine) = self.machine.take() {
                    let (base, size) = machine.extent();
                    self.restore(machine, pages.private(base, size));
                }
            }
        }
        Ok(ResetDone { count: self.count(), can_undo: self.can_undo(), lost_threads: 0 })
    }
}

/// The pages in which a guest may differ from its last state.
fn written_of(machine: &Machine, pages: &mut Pages) -> io::Result<Vec<u32>> {
    let (base, size) = machine.extent();
    pages.written(base, size)
}

/// How a call ended, and its report if it ended by itself.
fn end_of(told: Result<Option<Told>, Halt>, was_denied: bool) -> (End, Option<Told>) {
    match told {
        // The call was denied memory and failed. The new state is discarded: it leaves too little memory for other
        // calls.
        Ok(told) => {
            let told = told.unwrap_or_else(Told::failed);
            if was_denied && told.code != 0 {
                (End::OutOfMemory, None)
            } else {
                (End::Exited { code: told.code }, Some(told))
            }
        }
        Err(halt) => (halt.end(was_denied), None),
    }
}

fn no_guest(error: &wasmtime::Error) -> Failure {
    Failure::new(FailureCode::System, format!("no interpreter: {error:#}"))
}
