//! A program before it has started, and after: its text, its process and the ends of its pipes that we
//! hold.

use std::{fmt::Debug, fs::File, os::fd::OwnedFd, time::Instant};

use nix::unistd::Pid;
use protocol::message::{Position, Start};

use super::channel::ProgramChannel;

/// A program to be started.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Source<'a> {
    /// Its text.
    pub(crate) code: &'a [u8],
    /// What its standard input is.
    pub(crate) stdin: Stdin,
    /// What it can read there, for runtimes that have no use for a pipe.
    pub(crate) input: Option<&'a [u8]>,
}

/// What a program's standard input is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stdin {
    /// A pipe, of which we hold the other end.
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
    /// Where its standard input is written, if it has any.
    pub(crate) stdin: Option<File>,
    pub(crate) stdout: OwnedFd,
    pub(crate) stderr: OwnedFd,
    /// Where it says that it is done, if it was forked from a process that is ready.
    pub(crate) channel: Option<ProgramChannel>,
    /// Asks it where it stands, if it can be asked.
    pub(crate) stack: Option<Box<dyn Locate>>,
}

/// Finds out where a program stands.
pub(crate) trait Locate: Debug {
    /// The innermost line of the user's own, given the program's text; `None` if the program does not say in
    /// a moment.
    fn position(&self, code: &[u8]) -> Option<Position>;
}
