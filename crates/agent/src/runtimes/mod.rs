//! The runtimes, which interpret programs, each in a folder of its own. Other code knows only the name of a runtime.
//!
//! ```text
//! runner -- Runtimes --+-- python      a new interpreter, or a fork of one that has loaded its modules
//!                      +-- javascript  a new Node; one that lives on runs the cells
//!                      +-- bash        a new shell
//!                      +-- command     a new process of a command that the image's label names; no code here is needed
//!                      '-- ..          to add one with state: a folder here, a folder in the image, a row below
//! ```

mod bash;
pub(crate) mod channel;
mod cold;
mod command;
mod javascript;
pub(crate) mod program;
mod python;

use std::{fs::File, os::fd::BorrowedFd, time::Instant};

use agent_core::{Ended, Settings};
use nix::unistd::Pid;
use protocol::message::{
    Carried, CarryLimits, CellDone, CellState, Contents, ExportDone, Failure, FailureCode,
    ImportDone, InspectDone, ResetDone, RuntimeName, Start, Summarize,
};
use sandbox_files::tree::Snapshot;

use crate::{places::Places, processes::Children};
use channel::CellReport;
use program::{Program, Source};
pub(crate) use python::{Progress, Summarizer};

/// Runs programs of one language, and its cells if the language has an interpreter that lives on between them: a
/// kernel.
///
/// ```text
/// start_cell -> the runner captures -> end_cell -> reply -> settle
///                   '- its time is over -> interrupt: the kernel may still say that it is done
/// ```
///
/// Between the calls a kernel is stopped.
pub(crate) trait Runtime: Send {
    /// The runtime's name in requests.
    fn name(&self) -> RuntimeName;

    /// Starts a program, in the quickest way that is available. When it starts, there are no other processes except the
    /// agent, the spared ones, and those that these have forked for themselves.
    fn start(&mut self, source: Source<'_>, children: &mut Children) -> Result<Program, Failure>;

    /// The name of the file in scratch space that contains a program's text.
    fn script_name(&self) -> &str;

    /// Adds to a run that did not succeed what the end of its standard error says. `files` are those of the data area.
    fn explain(&self, _stderr: &[u8], _files: &Snapshot, _ended: &mut Ended) {}

    /// Begins to prepare for programs and cells.
    fn configure(&mut self, _settings: &Settings, _children: &mut Children) {}

    /// Checks its processes, and does what is next. Never waits.
    fn attend(&mut self, _children: &mut Children) {}

    /// How the next program starts; `None` while that is not known yet.
    fn outlook(&self) -> Option<Outlook> {
        // Nothing is prepared that could be waited for.
        Some(Outlook { ready: true, problems: vec![] })
    }

    /// Gives up the memory that only makes programs start faster, until it is needed.
    fn hibernate(&mut self, _children: &mut Children) {}

    /// Prepares for a program that comes soon.
    fn prewarm(&mut self, _children: &mut Children) {}

    /// Pauses work so that a program or cell of another runtime has the processor, and discards a half-started process,
    /// which would be mistaken for a part of that program.
    fn stand_aside(&mut self, _children: &mut Children) {}

    /// Continues after a run whose program had started in this way.
    fn resume(&mut self, _start: Start, _children: &mut Children) {}

    /// The descriptors to wait for: if one can be read, [`attend`](Self::attend) has something to do.
    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        vec![]
    }

    /// The latest time at which [`attend`](Self::attend) has something to do.
    fn alarm(&self) -> Option<Instant> {
        None
    }

    /// Starts a cell in the kernel, which is created if there is none. If the program has no channel, it is a process
    /// of its own, which ends with the cell.
    fn start_cell(
        &mut self,
        _source: Source<'_>,
        _children: &mut Children,
    ) -> Result<Program, Failure> {
        Err(self.keeps_no_state())
    }

    /// Interrupts a cell that is cancelled or whose time is over. Returns true if the kernel was asked, and may soon
    /// report that the cell is done; otherwise the kernel must be killed.
    fn interrupt(&mut self) -> bool {
        false
    }

    /// The report of a cell that has ended without one on a channel.
    fn report(&self) -> Option<CellReport> {
        None
    }

    /// Ends a cell: with its report if the kernel says that it is done, without one if the kernel is dead or must be
    /// killed. Stops the kernel, ends all other processes that are not spared, and returns the state of the workspace,
    /// without the result.
    fn end_cell(&mut self, report: Option<&CellReport>, children: &mut Children) -> CellDone;

    /// Prepares for the next cell, after the reply to a cell or a reset has been sent. Takes a second at most.
    fn settle(&mut self, _children: &mut Children) {}

    /// Whether there is a kernel, which may use what is outside its memory.
    fn is_live(&self) -> bool {
        false
    }

    /// The kernel and its copies, which are stopped between the calls.
    fn kernels(&self) -> Vec<Pid> {
        vec![]
    }

    /// Starts a process that summarizes a file; `None` if the runtime cannot.
    fn summarize(&self, _file: &File, _request: &Summarize) -> Option<Summarizer> {
        None
    }

    /// Lists what the kernel holds.
    fn inspect(&mut self, _children: &mut Children) -> Result<(InspectDone, Contents), Failure> {
        Err(self.keeps_no_state())
    }

    /// Undoes this number of cells, or ends the kernel.
    fn reset(&mut self, undo: Option<u32>, _children: &mut Children) -> Result<ResetDone, Failure> {
        match undo {
            None | Some(0) => Ok(ResetDone { count: 0, can_undo: 0, lost_threads: 0 }),
            Some(undo) => Err(nothing_to_undo(undo, 0)),
        }
    }

    /// Saves the variables of the kernel. Returns what became of them, and the bytes.
    fn export(
        &mut self,
        _limits: CarryLimits,
        _children: &mut Children,
    ) -> Result<(ExportDone, Carried, Vec<u8>), Failure> {
        Err(self.carries_nothing())
    }

    /// Creates a kernel from saved variables, which counts as having run `count` cells.
    fn import(
        &mut self,
        _bytes: &[u8],
        _count: u64,
        _limits: CarryLimits,
        _children: &mut Children,
    ) -> Result<(ImportDone, Carried), Failure> {
        Err(self.carries_nothing())
    }

    /// The failure if variables cannot be saved and restored.
    fn carries_nothing(&self) -> Failure {
        let detail = format!("variables of {:?} cannot be carried", self.name().as_str());
        Failure::new(FailureCode::NoRuntime, detail)
    }

    /// The failure if there are no cells.
    fn keeps_no_state(&self) -> Failure {
        let detail = format!("{:?} keeps no state here", self.name().as_str());
        Failure::new(FailureCode::NoRuntime, detail)
    }
}

/// The number of cells of a language in which each is a process of its own.
struct Count(u64);

impl Count {
    /// Counts a cell that has ended. There are no variables that it could have lost.
    fn ended(&mut self) -> CellDone {
        let fresh = self.0 == 0;
        self.0 += 1;
        CellDone {
            state: CellState::Kept,
            fresh,
            count: self.0,
            result: None,
            memory_bytes: None,
            can_undo: 0,
            lost_threads: 0,
            at_risk: false,
        }
    }

    fn reset(&mut self, undo: Option<u32>) -> Result<ResetDone, Failure> {
        match undo {
            Some(undo @ 1..) => return Err(nothing_to_undo(undo, 0)),
            Some(0) => {}
            None => self.0 = 0,
        }
        Ok(ResetDone { count: self.0, can_undo: 0, lost_threads: 0 })
    }
}

/// The failure if fewer cells can be undone than were asked for.
pub(crate) fn nothing_to_undo(asked: u32, can_undo: u32) -> Failure {
    let detail = format!("{asked} cells cannot be taken back, only {can_undo}");
    Failure::new(FailureCode::NothingToUndo, detail)
}

/// How the next program starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Outlook {
    /// Whether the next program starts warm.
    pub(crate) ready: bool,
    /// Problems on the way there.
    pub(crate) problems: Vec<String>,
}

/// The runtimes that this sandbox has.
pub(crate) struct Runtimes {
    all: Vec<Box<dyn Runtime>>,
    places: Places,
}

impl Runtimes {
    pub(crate) fn new(places: &Places) -> Self {
        Self {
            all: vec![
                Box::new(python::Python::new(places)),
                Box::new(javascript::JavaScript::new(places)),
                Box::new(bash::Bash::new(places)),
            ],
            places: places.clone(),
        }
    }

    /// The runtime of this name, for a program or cell that begins: the others stand aside.
    pub(crate) fn begin(
        &mut self,
        name: &RuntimeName,
        children: &mut Children,
    ) -> Result<&mut dyn Runtime, Failure> {
        for other in self.all.iter_mut().filter(|runtime| runtime.name() != *name) {
            other.stand_aside(children);
        }
        self.of_mut(name)
    }

    /// The runtime of this name.
    pub(crate) fn of_mut(&mut self, name: &RuntimeName) -> Result<&mut dyn Runtime, Failure> {
        if let Some(at) = self.all.iter().position(|runtime| runtime.name() == *name) {
            return Ok(&mut *self.all[at]);
        }
        let names: Vec<_> = self.all.iter().map(|runtime| runtime.name()).collect();
        let known: Vec<_> = names.iter().map(RuntimeName::as_str).collect();
        let detail = format!("no runtime {:?} here, only {}", name.as_str(), known.join(", "));
        Err(Failure::new(FailureCode::NoRuntime, detail))
    }

    /// The runtime of this name, if there is one.
    pub(crate) fn of(&self, name: &RuntimeName) -> Option<&dyn Runtime> {
        self.all.iter().find(|runtime| runtime.name() == *name).map(|runtime| &**runtime)
    }

    /// Starts a process that summarizes a file, if a runtime can.
    pub(crate) fn summarize(&self, file: &File, request: &Summarize) -> Option<Summarizer> {
        self.all.iter().find_map(|runtime| runtime.summarize(file, request))
    }

    /// Prepares for the next cells.
    pub(crate) fn settle(&mut self, children: &mut Children) {
        self.each(|runtime| runtime.settle(children));
    }

    /// Whether any kernel lives.
    pub(crate) fn is_live(&self) -> bool {
        self.all.iter().any(|runtime| runtime.is_live())
    }

    /// All kernels and their copies.
    pub(crate) fn kernels(&self) -> Vec<Pid> {
        self.all.iter().flat_map(|runtime| runtime.kernels()).collect()
    }

    pub(crate) fn configure(&mut self, settings: &Settings, children: &mut Children) {
        for spec in &settings.commands {
            if self.of(&spec.name).is_none() {
                self.all.push(Box::new(command::ByCommand::new(spec.clone(), &self.places)));
            }
        }
        self.each(|runtime| runtime.configure(settings, children));
    }

    pub(crate) fn attend(&mut self, children: &mut Children) {
        self.each(|runtime| runtime.attend(children));
    }

    /// How the next programs start; `None` until that is known of all runtimes.
    pub(crate) fn outlook(&self) -> Option<Outlook> {
        let mut all = Outlook { ready: true, problems: vec![] };
        for runtime in &self.all {
            let Outlook { ready, problems } = runtime.outlook()?;
            all.ready &= ready;
            all.problems.extend(problems);
        }
        Some(all)
    }

    pub(crate) fn hibernate(&mut self, children: &mut Children) {
        self.each(|runtime| runtime.hibernate(children));
    }

    pub(crate) fn prewarm(&mut self, children: &mut Children) {
        self.each(|runtime| runtime.prewarm(children));
    }

    pub(crate) fn resume(&mut self, start: Start, children: &mut Children) {
        self.each(|runtime| runtime.resume(start, children));
    }

    pub(crate) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.all.iter().flat_map(|runtime| runtime.fds())
    }

    pub(crate) fn alarm(&self) -> Option<Instant> {
        self.all.iter().filter_map(|runtime| runtime.alarm()).min()
    }

    fn each(&mut self, act: impl FnMut(&mut Box<dyn Runtime>)) {
        self.all.iter_mut().for_each(act);
    }
}
