//! The shell: a new one for each program and each cell. Only the folder in which a cell ends persists until the next
//! cell.

use std::{
    ffi::OsString,
    io::{self, PipeReader, Read},
    os::{fd::AsRawFd, unix::ffi::OsStringExt},
    path::PathBuf,
    process::Command,
};

use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use protocol::message::{CellDone, Failure, ResetDone, RuntimeName};

use super::{
    Count, Runtime,
    channel::CellReport,
    cold,
    program::{Program, Source},
};
use crate::{places::Places, processes::Children};

/// The shell, by the name under which the path finds it.
const SHELL: &str = "bash";

/// The program's text, in scratch space.
const SCRIPT: &str = "main.sh";

/// Runs a cell. Its arguments are the descriptor to which it writes its last folder, its file, and the folder in which
/// it should have started if that no longer exists. A cell that sets its own trap on EXIT, or is killed, does not write
/// the folder, and the next cell starts where this one did.
const CELL: &str = r#"trap "pwd -P >&$1" EXIT
[ -z "$3" ] || echo "bash: $3 is gone, this is $PWD" >&2
eval "set --; . ${2@Q}"
"#;

/// Longest path that a cell may write, in bytes.
const MAX_FOLDER: u64 = 4096;

/// Programs and cells of the shell.
pub(super) struct Bash {
    places: Places,
    script: PathBuf,
    /// The folder in which the next cell starts.
    folder: PathBuf,
    /// The pipe to which the cell that runs writes its last folder.
    told: Option<PipeReader>,
    count: Count,
}

impl Bash {
    pub(super) fn new(places: &Places) -> Self {
        Self {
            script: places.scratch.join(SCRIPT),
            folder: places.data.clone(),
            places: places.clone(),
            told: None,
            count: Count(0),
        }
    }

    fn write_script(&self, code: &[u8]) -> Result<(), Failure> {
        let written = cold::write(&self.places, &self.script, code);
        written.map_err(|error| Failure::io("the program's file", &error))
    }
}

impl Bash {
    fn spawn_cell(&mut self, source: Source<'_>) -> io::Result<Program> {
        let (told, tell) = io::pipe()?;
        fcntl(&told, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        // The shell inherits it under the same number.
        fcntl(&tell, FcntlArg::F_SETFD(FdFlag::empty()))?;
        let mut gone = OsString::new();
        if !self.folder.is_dir() {
            gone = self.folder.clone().into();
            self.folder.clone_from(&self.places.data);
        }
        let mut command = Command::new(SHELL);
        command.args(["-c", CELL, SHELL]).arg(tell.as_raw_fd().to_string());
        command.arg(&self.script).arg(gone);
        let program = cold::start(&mut command, &self.folder, source.stdin)?;
        self.told = Some(told);
        Ok(program)
    }

    /// The folder in which the cell has ended, if it has written an absolute path.
    fn last_folder(&mut self) -> Option<PathBuf> {
        let mut told = vec![];
        // Reads what is there and not until the end, because other processes may hold the other end open.
        let _ = self.told.take()?.take(MAX_FOLDER).read_to_end(&mut told);
        let path = told.strip_suffix(b"\n")?.to_vec();
        Some(PathBuf::from(OsString::from_vec(path))).filter(|path| path.is_absolute())
    }
}

impl Runtime for Bash {
    fn name(&self) -> RuntimeName {
        RuntimeName::BASH
    }

    fn start(&mut self, source: Source<'_>, _: &mut Children) -> Result<Program, Failure> {
        self.write_script(source.code)?;
        let mut command = Command::new(SHELL);
        let program = cold::start(command.arg(&self.script), &self.places.data, source.stdin);
        program.map_err(|error| Failure::io(SHELL, &error))
    }

    fn script_name(&self) -> &'static str {
        SCRIPT
    }

    fn start_cell(&mut self, source: Source<'_>, _: &mut Children) -> Result<Program, Failure> {
        self.write_script(source.code)?;
        self.spawn_cell(source).map_err(|error| Failure::io(SHELL, &error))
    }

    fn end_cell(&mut self, _: Option<&CellReport>, children: &mut Children) -> CellDone {
        children.sweep();
        if let Some(folder) = self.last_folder() {
            self.folder = folder;
        }
        self.count.ended()
    }

    fn reset(&mut self, undo: Option<u32>, _: &mut Children) -> Result<ResetDone, Failure> {
        if undo.is_none() {
            self.folder.clone_from(&self.places.data);
        }
        self.count.reset(undo)
    }
}
