//! A language that the image's label describes: a command runs each program and each cell. Nothing persists between
//! cells except files.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::PathBuf,
    process::Command,
};

use nix::libc;
use protocol::{
    limits::MAX_RESULT,
    message::{Captured, CellDone, CommandRuntime, Failure, FailureCode, ResetDone, RuntimeName},
};

use super::{
    Count, Runtime,
    channel::CellReport,
    cold,
    program::{Program, Source},
};
use crate::{places::Places, processes::Children};

/// The file to which a command can write the result of a cell, in scratch space; hidden, as it is none of the program.
const RESULT: &str = ".result";

/// The part of the result's limit that is for its start.
const HEAD: usize = MAX_RESULT * 3 / 5;

/// Programs and cells of a language.
pub(super) struct ByCommand {
    spec: CommandRuntime,
    places: Places,
    script: PathBuf,
    result: PathBuf,
    count: Count,
}

impl ByCommand {
    pub(super) fn new(spec: CommandRuntime, places: &Places) -> Self {
        let script = places.scratch.join(&spec.file);
        Self {
            spec,
            script,
            result: places.scratch.join(RESULT),
            places: places.clone(),
            count: Count(0),
        }
    }

    fn has_result(&self) -> bool {
        self.spec.command.iter().any(|word| word.contains("{result}"))
    }
}

impl Runtime for ByCommand {
    fn name(&self) -> RuntimeName {
        self.spec.name.clone()
    }

    fn start(&mut self, source: Source<'_>, _: &mut Children) -> Result<Program, Failure> {
        let mut written = cold::write(&self.places, &self.script, source.code);
        if self.has_result() {
            // The result of an earlier cell must not be taken for that of this one.
            written = written.and_then(|()| cold::write(&self.places, &self.result, b""));
        }
        written.map_err(|error| Failure::io("the program's file", &error))?;
        let (script, result) = (self.script.to_string_lossy(), self.result.to_string_lossy());
        let fill = |word: &String| word.replace("{file}", &script).replace("{result}", &result);
        let mut words = self.spec.command.iter().map(fill);
        let program = words.next().unwrap_or_default();
        let mut command = Command::new(&program);
        let started = cold::start(command.args(words), &self.places.data, source.stdin);
        started.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                Failure::new(FailureCode::NoRuntime, format!("{program} is not installed"))
            }
            _ => Failure::io(&program, &error),
        })
    }

    fn script_name(&self) -> &str {
        &self.spec.file
    }

    fn start_cell(
        &mut self,
        source: Source<'_>,
        children: &mut Children,
    ) -> Result<Program, Failure> {
        self.start(source, children)
    }

    fn report(&self) -> Option<CellReport> {
        self.has_result().then(|| read_result(&self.result).ok()).flatten()
    }

    fn end_cell(&mut self, _: Option<&CellReport>, children: &mut Children) -> CellDone {
        children.sweep();
        self.count.ended()
    }

    fn reset(&mut self, undo: Option<u32>, _: &mut Children) -> Result<ResetDone, Failure> {
        self.count.reset(undo)
    }
}

/// Reads the start and the end of a result. The program may have replaced its file by anything.
fn read_result(path: &PathBuf) -> io::Result<CellReport> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.len() == 0 {
        return Ok(CellReport::default());
    }
    let total = metadata.len();
    let whole = usize::try_from(total).ok().filter(|len| *len <= MAX_RESULT);
    let head = whole.unwrap_or(HEAD);
    let tail = if whole.is_some() { 0 } else { MAX_RESULT - HEAD };
    let mut result = read_at(&file, 0, head)?;
    result.extend(read_at(&file, total - tail as u64, tail)?);
    Ok(CellReport { captured: Some(Captured { head, tail, total }), result })
}

fn read_at(file: &File, at: u64, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, at)?;
    Ok(bytes)
}
