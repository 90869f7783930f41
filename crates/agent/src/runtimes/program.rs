//! A program before and after its start: its text, its process, and the agent's ends of its pipes.

use std::{
    fmt::Debug,
    fs::File,
    io::{self, Read, Write},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Instant,
};

use nix::{
    fcntl::{FcntlArg, OFlag, fcntl},
    unistd::Pid,
};
use protocol::message::{Position, Start, Stream};
use sandbox_files::outputs::SharedOutputs;

use super::channel::ProgramChannel;

/// A program to be started.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Source<'a> {
    /// The program's text.
    pub(crate) code: &'a [u8],
    /// The kind of the program's standard input.
    pub(crate) stdin: Stdin,
    /// The content of the program's standard input, for runtimes that do not use a pipe.
    pub(crate) input: Option<&'a [u8]>,
}

/// The kinds of a program's standard input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stdin {
    /// A pipe whose other end the agent has.
    Pipe,
    /// `/dev/null`.
    Null,
}

/// A program that runs.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) pid: Pid,
    pub(crate) start: Start,
    pub(crate) begun: Instant,
    /// The end of the pipe to which its standard input is written, if it has any.
    pub(crate) stdin: Option<File>,
    pub(crate) stdout: OwnedFd,
    pub(crate) stderr: OwnedFd,
    /// The channel on which it says that it is done, if it was forked from a process that is ready.
    pub(crate) channel: Option<ProgramChannel>,
    /// Finds the line at which it is, if it can be asked.
    pub(crate) stack: Option<Box<dyn Locate>>,
}

/// Finds the line at which a program is.
pub(crate) trait Locate: Debug {
    /// The innermost line of user code, given the program's text; `None` if the program does not answer in a moment.
    fn position(&self, code: &[u8]) -> Option<Position>;
}

/// The agent's end of one output of a program.
pub(crate) struct Pipe {
    stream: Stream,
    source: Option<File>,
    /// As large as a pipe, so that one call empties that.
    buffer: Box<[u8]>,
}

impl Pipe {
    pub(crate) fn new(stream: Stream, pipe: OwnedFd) -> io::Result<Self> {
        set_nonblocking(&pipe)?;
        let buffer = vec![0; 64 << 10].into();
        Ok(Self { stream, source: Some(pipe.into()), buffer })
    }

    /// The descriptor; `None` if no process can write any more.
    pub(crate) fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.source.as_ref().map(AsFd::as_fd)
    }

    /// Reads one bufferful, if there is one; returns false if there was nothing to read.
    pub(crate) fn read(&mut self, outputs: &SharedOutputs) -> bool {
        let Some(source) = &mut self.source else { return false };
        match source.read(&mut self.buffer) {
            Ok(n @ 1..) => {
                outputs.push(self.stream, &self.buffer[..n]);
                return true;
            }
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) => {}
            // No process can write any more.
            Ok(0) | Err(_) => self.source = None,
        }
        false
    }

    /// Reads the rest, when no process can write any more.
    pub(crate) fn drain(&mut self, outputs: &SharedOutputs) {
        while self.read(outputs) {}
    }
}

/// The rest of a program's standard input.
pub(crate) struct Feed(Option<(File, io::Cursor<Vec<u8>>)>);

impl Feed {
    pub(crate) fn new(pipe: Option<File>, bytes: Option<Vec<u8>>) -> io::Result<Self> {
        let feed = pipe.zip(bytes.map(io::Cursor::new));
        if let Some((pipe, _)) = &feed {
            set_nonblocking(pipe)?;
        }
        Ok(Self(feed))
    }

    /// The descriptor; `None` if all is written, or the program has closed its end.
    pub(crate) fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.as_ref().map(|(pipe, _)| pipe.as_fd())
    }

    /// Writes what fits, and closes the pipe after the last byte.
    pub(crate) fn write(&mut self) {
        let Some((pipe, bytes)) = &mut self.0 else { return };
        let rest = &bytes.get_ref()[usize::try_from(bytes.position()).unwrap_or(usize::MAX)..];
        match pipe.write(rest) {
            Ok(n) if n < rest.len() => bytes.set_position(bytes.position() + n as u64),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // All is written, or the program has closed its end.
            _ => self.0 = None,
        }
    }
}

fn set_nonblocking(fd: impl AsFd) -> io::Result<()> {
    fcntl(fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok(())
}
