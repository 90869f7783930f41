//! A program before and after its start: its text, its process, and the agent's ends of its pipes.

use std::{fmt::Debug, fs::File, os::fd::OwnedFd, time::Instant};

use nix::unistd::Pid;
use protocol::message::{Position, Start};

use super::channel::ProgramChannel;

/// A program to be started.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Source<'a> {
    /// Its text.
    pub(crate) code: &'a [u8],
    /// The kind of its standard input.
    pub(crate) stdin: Stdin,
    /// The content of its standard input, for runtimes that do not use a pipe.
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
