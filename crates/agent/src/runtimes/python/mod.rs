//! Python: a new interpreter for each program, or, if there is a fork server, a fork of one that has loaded the data
//! libraries.

mod carry;
mod kernel;
mod prefork;
mod stack;
mod summarizer;
mod workspace;
mod zygote;

use std::{
    ffi::OsString, fs::File, io, os::fd::BorrowedFd, path::PathBuf, process::Command, time::Instant,
};

use agent_core::{Ended, Settings};
use nix::unistd::Pid;
use protocol::message::{
    Carried, CarryLimits, CellDone, Contents, ExportDone, Failure, ImportDone, InspectDone,
    ResetDone, RuntimeName, Start, Summarize,
};
use sandbox_files::{python_errors, tree::Snapshot};

use super::{
    Outlook, Runtime,
    channel::CellReport,
    cold,
    program::{Program, Source, Stdin},
};
use crate::{places::Places, processes::Children};
use prefork::Prefork;
pub(crate) use summarizer::{Progress, Summarizer};
use workspace::Workspace;

/// The interpreter, by the name under which the path finds it.
const INTERPRETER: &str = "python3";

/// The program's text, in scratch space.
const SCRIPT: &str = "main.py";

/// The user's own modules come from the data area, and from nowhere else: a file that an earlier run left beside the
/// script or in its home would hide a library of its name.
const OPTIONS: [&str; 2] = ["-P", "-s"];

/// The scores that say how soon the system kills a process when memory runs out: before all others, or after them. A
/// run and its processes are expendable. So are the fork server and its forks while nothing runs, because it can be
/// started again, and a state that was said to be kept cannot.
const EXPENDABLE: u32 = 1000;
const PROTECTED: u32 = 0;

/// The paths of the user's files and of the runtime's programs.
#[derive(Debug, Clone)]
struct Layout {
    places: Places,
    /// The program's text, whose name tracebacks show.
    script: PathBuf,
    /// The fork server's program. Without it every run is a new interpreter.
    zygote: PathBuf,
    /// The kernel's program. Without it there are no cells.
    kernel: PathBuf,
}

impl Layout {
    /// The data area, and then the path that the image sets.
    fn python_path(&self) -> OsString {
        let mut path = self.places.data.as_os_str().to_owned();
        if let Some(more) = makers_path() {
            path.push(":");
            path.push(more);
        }
        path
    }

    /// Puts the code where the interpreter and its tracebacks find it.
    fn write_script(&self, code: &[u8]) -> io::Result<()> {
        cold::write(&self.places, &self.script, code)
    }

    /// Starts a new interpreter on the script.
    fn start_cold(&self, stdin: Stdin) -> io::Result<Program> {
        let mut command = Command::new(INTERPRETER);
        command.args(OPTIONS).arg(&self.script).env("PYTHONPATH", self.python_path());
        cold::start(&mut command, &self.places.data, stdin)
    }
}

/// The path that the image sets.
fn makers_path() -> Option<OsString> {
    std::env::var_os("PYTHONPATH").filter(|path| !path.is_empty())
}

/// Modules that many programs import and that need no library; the light fork server has loaded them. A program that
/// imports no others is started from it: the fork and its end take a fraction of the time that they take with the
/// libraries in memory.
const LIGHT: &str = "__future__ abc base64 bisect collections contextlib copy csv dataclasses datetime decimal \
    enum fractions functools gc glob hashlib heapq io itertools json math operator os pathlib \
    random re signal statistics string struct sys textwrap threading time traceback types typing \
    warnings";

/// Programs in Python.
pub(super) struct Python {
    layout: Layout,
    /// The fork server with the libraries, and with what cells need.
    prefork: Prefork,
    /// The fork server without them.
    light: Prefork,
    /// Whether the program that runs was started from the light one.
    is_light: bool,
    workspace: Workspace,
}

impl Python {
    pub(super) fn new(places: &Places) -> Self {
        let layout = Layout {
            script: places.scratch.join(SCRIPT),
            zygote: places.runtimes.join("python/zygote.py"),
            kernel: places.runtimes.join("python/kernel.py"),
            places: places.clone(),
        };
        Self {
            prefork: Prefork::new(layout.clone()),
            light: Prefork::new(layout.clone()),
            is_light: false,
            workspace: Workspace::new(layout.clone()),
            layout,
        }
    }
}

impl Python {
    /// Sets how soon the fork servers are killed when memory runs out.
    fn set_oom_score(&self, score: u32) {
        self.prefork.set_oom_score(score);
        self.light.set_oom_score(score);
    }
}

impl Runtime for Python {
    fn name(&self) -> RuntimeName {
        RuntimeName::PYTHON
    }

    fn start(&mut self, source: Source<'_>, children: &mut Children) -> Result<Program, Failure> {
        self.layout
            .write_script(source.code)
            .map_err(|error| Failure::io("the program's file", &error))?;
        self.is_light = self.light.suits(source.code);
        let (from, other) = if self.is_light {
            (&mut self.light, &mut self.prefork)
        } else {
            (&mut self.prefork, &mut self.light)
        };
        let program = from.start(source, other, children);
        self.set_oom_score(PROTECTED);
        if let Some(program) = program {
            return Ok(program);
        }
        let program = self.layout.start_cold(source.stdin);
        program.map_err(|error| Failure::io(INTERPRETER, &error))
    }

    fn script_name(&self) -> &'static str {
        SCRIPT
    }

    fn explain(&self, stderr: &[u8], files: &Snapshot, ended: &mut Ended) {
        python_errors::explain(stderr, files, &mut ended.facts);
    }

    fn configure(&mut self, settings: &Settings, children: &mut Children) {
        self.workspace.configure(settings.undo);
        if let Some(preload) = &settings.preload {
            self.prefork.configure(preload, settings.undo.is_some(), children);
            let light: Vec<String> = LIGHT.split(' ').map(str::to_owned).collect();
            if preload.iter().any(|name| !light.contains(name)) {
                self.light.configure(&light, false, children);
            }
        }
    }

    fn attend(&mut self, children: &mut Children) {
        self.prefork.attend(children);
        self.light.attend(children);
    }

    fn outlook(&self) -> Option<Outlook> {
        self.prefork.outlook()
    }

    fn hibernate(&mut self, children: &mut Children) {
        self.prefork.hibernate(children);
        self.light.hibernate(children);
    }

    fn prewarm(&mut self, children: &mut Children) {
        self.prefork.wake(children);
        self.light.wake(children);
    }

    fn stand_aside(&mut self, children: &mut Children) {
        self.prefork.stand_aside(children);
        self.light.stand_aside(children);
    }

    fn resume(&mut self, start: Start, children: &mut Children) {
        self.set_oom_score(EXPENDABLE);
        let starts = if self.is_light { (Start::Cold, start) } else { (start, Start::Cold) };
        self.prefork.resume(starts.0, children);
        self.light.resume(starts.1, children);
        self.workspace.has_run(children);
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.prefork.fds().chain(self.light.fds()).collect()
    }

    fn alarm(&self) -> Option<Instant> {
        self.prefork.alarm().into_iter().chain(self.light.alarm()).min()
    }

    fn start_cell(
        &mut self,
        source: Source<'_>,
        children: &mut Children,
    ) -> Result<Program, Failure> {
        self.layout
            .write_script(source.code)
            .map_err(|error| Failure::io("the cell's file", &error))?;
        self.prefork.finish_spare(children);
        self.light.stand_aside(children);
        self.workspace.start(source.stdin, &mut self.prefork, children)
    }

    fn end_cell(&mut self, report: Option<&CellReport>, children: &mut Children) -> CellDone {
        self.workspace.end_cell(report.is_some(), &self.prefork, children)
    }

    fn settle(&mut self, children: &mut Children) {
        self.workspace.settle(&mut self.prefork, children);
    }

    fn is_live(&self) -> bool {
        self.workspace.is_live()
    }

    fn kernels(&self) -> Vec<Pid> {
        self.workspace.pids()
    }

    fn summarize(&self, file: &File, request: &Summarize) -> Option<Summarizer> {
        // Parquet's library is loaded in one of them; the other forks faster.
        let (first, second) = if summarizer::needs_libraries(&request.path) {
            (&self.prefork, &self.light)
        } else {
            (&self.light, &self.prefork)
        };
        first.summarize(file, request).or_else(|| second.summarize(file, request))
    }

    fn inspect(&mut self, children: &mut Children) -> Result<(InspectDone, Contents), Failure> {
        Ok(self.workspace.inspect(&mut self.prefork, children))
    }

    fn reset(&mut self, undo: Option<u32>, children: &mut Children) -> Result<ResetDone, Failure> {
        self.workspace.reset(undo, children)
    }

    fn export(
        &mut self,
        limits: CarryLimits,
        children: &mut Children,
    ) -> Result<(ExportDone, Carried, Vec<u8>), Failure> {
        let (done, written) = self.workspace.export(limits, &mut self.prefork, children);
        Ok((done, written.carried, written.bytes))
    }

    fn import(
        &mut self,
        bytes: &[u8],
        count: u64,
        limits: CarryLimits,
        children: &mut Children,
    ) -> Result<(ImportDone, Carried), Failure> {
        self.prefork.finish_spare(children);
        self.light.stand_aside(children);
        self.workspace.import(bytes, (count, limits), &mut self.prefork, children)
    }
}
