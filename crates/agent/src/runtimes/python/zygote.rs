//! The process of the fork server and its spares, and the messages to them: the other side of `zygote.py`, which
//! describes the messages.

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
use protocol::message::{Start, Summarize};
use serde::{Deserialize, Serialize};

use super::{EXPENDABLE, INTERPRETER, Layout, OPTIONS, Summarizer, stack::StackPipe};
use crate::{
    processes::{self, oom_score_of, write_oom_score},
    runtimes::{
        channel::{ProgramChannel, Received, pair, receive, send},
        program::{Program, Stdin},
    },
};

/// Maximum number of characters of a file's name, or of an encoding's, in a request.
const MAX_NAME: usize = 64;

/// The process of the fork server. Dropping this closes the fork server's socket, which ends the fork server.
#[derive(Debug)]
pub(super) struct Zygote {
    pub(super) pid: Pid,
    control: OwnedFd,
    oom_score: File,
}

/// A request to it: for a spare, as soon as these modules are loaded, or for a kernel, when all are.
#[derive(Serialize)]
struct Request<'a> {
    wants: &'a BTreeSet<&'a str>,
    kernel: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    summary: Option<SummaryRequest<'a>>,
}

/// A request for a process that summarizes a file, or draws a page of it.
#[derive(Serialize)]
struct SummaryRequest<'a> {
    /// The end of the file's path, which names its kind.
    name: &'a str,
    encoding: Option<&'a str>,
    /// The page that is drawn instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    page: Option<u32>,
}

/// A message about its state.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub(super) enum ZygoteStatus {
    /// The fork server is not dumpable any more, so that user code cannot look into it.
    Guarded,
    /// Everything is loaded.
    Loaded {
        /// Modules that could not be imported, and why.
        missing: Vec<String>,
        /// Number of its threads, after the first fork.
        threads: u32,
    },
}

impl Zygote {
    pub(super) fn start(layout: &Layout, preload: &[String], cells: bool) -> io::Result<Self> {
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
            .arg(if cells { "cells" } else { "" })
            .current_dir("/")
            // The same kinds of files as those of a run, which inherits the streams that Python makes of them.
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .process_group(0);
        let child = processes::spawn(&mut command)?;
        let pid = Pid::from_raw(child.id().cast_signed());
        // Opened now, because the process will soon not be dumpable.
        let zygote = Self { pid, control, oom_score: oom_score_of(pid)? };
        zygote.set_oom_score(EXPENDABLE);
        Ok(zygote)
    }

    /// Sets how soon it and the processes that it forks from now on are killed when memory runs out.
    pub(super) fn set_oom_score(&self, score: u32) {
        write_oom_score(&self.oom_score, score);
    }

    /// Asks for a spare.
    pub(super) fn ask(&self, wants: &BTreeSet<&str>) -> io::Result<Spare> {
        let (channel, theirs) = pair()?;
        let (stdout, stdout_writer) = io::pipe()?;
        let (stderr, stderr_writer) = io::pipe()?;
        let (stack, stack_writer) = StackPipe::new()?;
        let request = serde_json::to_vec(&Request { wants, kernel: false, summary: None })?;
        let files =
            [theirs.as_fd(), stdout_writer.as_fd(), stderr_writer.as_fd(), stack_writer.as_fd()];
        send(&self.control, &request, &files.map(|file| file.as_raw_fd()))?;
        let asked = Instant::now();
        Ok(Spare { channel, stdout, stderr, stack, pid: None, is_exposed: false, asked })
    }

    /// Asks for a spare that runs cells.
    pub(super) fn ask_for_kernel(&self) -> io::Result<KernelSpare> {
        let (channel, theirs) = pair()?;
        let (stack, stack_writer) = StackPipe::new()?;
        let request =
            serde_json::to_vec(&Request { wants: &BTreeSet::new(), kernel: true, summary: None })?;
        let files = [theirs.as_raw_fd(), stack_writer.as_raw_fd()];
        send(&self.control, &request, &files)?;
        Ok(KernelSpare { channel, stack, pid: None, is_ready: false, asked: Instant::now() })
    }

    /// Asks for a process that summarizes a file.
    pub(super) fn summarize(&self, file: &File, wanted: &Summarize) -> io::Result<Summarizer> {
        let (channel, theirs) = pair()?;
        let name = wanted.path.rsplit('/').next().unwrap_or_default();
        // The message has a limit, and the kind is at the end of the name.
        let name = name.char_indices().rev().nth(MAX_NAME).map_or(name, |(at, _)| &name[at..]);
        let encoding = wanted.encoding.as_deref().filter(|it| it.len() <= MAX_NAME);
        let summary = Some(SummaryRequest { name, encoding, page: wanted.page });
        let request = Request { wants: &BTreeSet::new(), kernel: false, summary };
        let request = serde_json::to_vec(&request)?;
        send(&self.control, &request, &[theirs.as_raw_fd(), file.as_raw_fd()])?;
        Ok(Summarizer::new(channel, wanted.page.is_some()))
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

/// A process that is ready for cells, or will be.
#[derive(Debug)]
pub(super) struct KernelSpare {
    pub(super) channel: OwnedFd,
    pub(super) stack: StackPipe,
    /// Known when it has been forked. After that it prepares for some time.
    pub(super) pid: Option<Pid>,
    /// Whether the spare waits for its first cell.
    pub(super) is_ready: bool,
    pub(super) asked: Instant,
}

impl KernelSpare {
    /// Checks its state; returns false if it will never be ready.
    pub(super) fn look(&mut self) -> bool {
        if self.pid.is_none() {
            return look(&self.channel, &mut self.pid);
        }
        match receive(&self.channel, pid_of) {
            Received::Message(pid) if Some(pid) == self.pid && !self.is_ready => {
                self.is_ready = true;
            }
            Received::Nothing => {}
            Received::Message(_) | Received::End => return false,
        }
        true
    }
}

impl AsFd for KernelSpare {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

/// Receives the process id of a process, which it sends once; returns false if it never will.
fn look(channel: &OwnedFd, known: &mut Option<Pid>) -> bool {
    match receive(channel, pid_of) {
        Received::Message(pid) if known.is_none() => *known = Some(pid),
        Received::Nothing => {}
        Received::Message(_) | Received::End => return false,
    }
    true
}

/// The process that a message names.
pub(super) fn pid_of(message: &[u8]) -> Option<Pid> {
    let pid = i32::from_ne_bytes(message.try_into().ok()?);
    (pid > 1).then(|| Pid::from_raw(pid))
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
    /// Whether a program or a cell has run beside the spare, and may have killed it.
    pub(super) is_exposed: bool,
    pub(super) asked: Instant,
}

impl Spare {
    /// Whether the spare waits for the start signal.
    pub(super) fn is_ready(&self) -> bool {
        self.pid.is_some()
    }

    /// Checks whether it has become ready; returns false if it never will.
    pub(super) fn look(&mut self) -> bool {
        look(&self.channel, &mut self.pid)
    }

    /// Sends the start signal to the spare, which then runs the script's file.
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
