//! The fork server's process and its spares, and what is said to them: the other side of
//! `zygote.py`, where the messages are drawn.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, PipeReader},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::process::CommandExt,
    },
    process::{Command, Stdio},
    time::Instant,
};

use nix::{
    fcntl::{FcntlArg, FdFlag, fcntl},
    unistd::Pid,
};
use protocol::message::Start;
use serde::{Deserialize, Serialize};

use super::{INTERPRETER, Layout, OPTIONS, stack::StackPipe};
use crate::{
    processes,
    runtimes::{
        channel::{ProgramChannel, Received, pair, receive, send},
        program::{Program, Stdin},
    },
};

/// The fork server as a process. Dropping it closes its socket, at which it ends by itself.
#[derive(Debug)]
pub(super) struct Zygote {
    pub(super) pid: Pid,
    control: OwnedFd,
}

/// What is asked of it: a spare, as soon as these modules are loaded.
#[derive(Serialize)]
struct Request<'a> {
    wants: &'a BTreeSet<&'a str>,
}

/// What it says of itself.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub(super) enum ZygoteStatus {
    /// Nobody can look into it any more.
    Guarded,
    /// Everything is loaded.
    Loaded {
        /// What could not be imported, and why.
        missing: Vec<String>,
        /// Its threads, after the first fork.
        threads: u32,
    },
}

impl Zygote {
    pub(super) fn start(layout: &Layout, preload: &[String]) -> io::Result<Self> {
        let (control, theirs) = pair()?;
        // Only this thread starts processes, so no other inherits it.
        fcntl(&theirs, FcntlArg::F_SETFD(FdFlag::empty()))?;
        let mut command = Command::new(INTERPRETER);
        command
            .args(OPTIONS)
            .arg(&layout.zygote)
            .arg(&layout.script)
            .arg(&layout.places.data)
            .arg(layout.python_path())
            .arg(preload.join(","))
            .arg(theirs.as_raw_fd().to_string())
            .current_dir("/")
            // Of the same kinds as a run's, which inherits what Python makes of them.
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .process_group(0);
        let child = processes::with_no_signal_blocked(|| command.spawn())??;
        Ok(Self { pid: Pid::from_raw(child.id().cast_signed()), control })
    }

    /// Asks for a spare.
    pub(super) fn ask(&self, wants: &BTreeSet<&str>) -> io::Result<Spare> {
        let (channel, theirs) = pair()?;
        let (stdout, stdout_writer) = io::pipe()?;
        let (stderr, stderr_writer) = io::pipe()?;
        let (stack, stack_writer) = StackPipe::new()?;
        let request = serde_json::to_vec(&Request { wants })?;
        let files =
            [theirs.as_fd(), stdout_writer.as_fd(), stderr_writer.as_fd(), stack_writer.as_fd()];
        send(&self.control, &request, &files.map(|file| file.as_raw_fd()))?;
        Ok(Spare { channel, stdout, stderr, stack, pid: None, asked: Instant::now() })
    }

    pub(super) fn receive(&self) -> Received<ZygoteStatus> {
        receive(&self.control, |bytes| serde_json::from_slice(bytes).ok())
    }
}

impl AsFd for Zygote {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }
}

/// A process that is ready for a program, or will be.
#[derive(Debug)]
pub(super) struct Spare {
    channel: OwnedFd,
    stdout: PipeReader,
    stderr: PipeReader,
    stack: StackPipe,
    /// Known when it waits.
    pub(super) pid: Option<Pid>,
    pub(super) asked: Instant,
}

impl Spare {
    /// It waits for the start signal.
    pub(super) fn is_ready(&self) -> bool {
        self.pid.is_some()
    }

    /// Looks whether it has become ready; false if it never will.
    pub(super) fn look(&mut self) -> bool {
        match receive(&self.channel, |bytes| Some(i32::from_ne_bytes(bytes.try_into().ok()?))) {
            Received::Message(pid) if pid > 1 && self.pid.is_none() => {
                self.pid = Some(Pid::from_raw(pid));
            }
            Received::Nothing => {}
            Received::Message(_) | Received::End => return false,
        }
        true
    }

    /// Sends it the start signal, to run what is in the script's file.
    pub(super) fn go(self, stdin: Stdin, start: Start, layout: &Layout) -> io::Result<Program> {
        let pid = self.pid.ok_or(io::ErrorKind::NotConnected)?;
        let (theirs, stdin) = match stdin {
            Stdin::Pipe => Some(io::pipe()?),
            Stdin::Null => None,
        }
        .unzip();
        let files: Vec<_> = theirs.iter().map(AsRawFd::as_raw_fd).collect();
        let begun = Instant::now();
        send(&self.channel, &[1], &files)?;
        Ok(Program {
            pid,
            start,
            begun,
            stdin: stdin.map(|pipe| File::from(OwnedFd::from(pipe))),
            stdout: self.stdout.into(),
            stderr: self.stderr.into(),
            channel: Some(ProgramChannel::new(self.channel)),
            stack: Some(Box::new(self.stack.of(pid, layout))),
        })
    }
}

impl AsFd for Spare {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}
