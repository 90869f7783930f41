//! The fork server's process and its spares, and what is said to them: the other side of
//! `zygote.py`, where the messages are drawn.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, IoSlice, PipeReader},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::process::CommandExt,
    },
    process::{Command, Stdio},
    time::Instant,
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, FdFlag, fcntl},
    sys::socket::{
        AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, recv, sendmsg, socketpair,
    },
    unistd::Pid,
};
use protocol::message::Start;
use serde::{Deserialize, Serialize};

use crate::{
    Places, processes,
    program::{Program, python_path},
};

/// The fork server as a process. Dropping it closes its socket, at which it ends by itself.
#[derive(Debug)]
pub(crate) struct Zygote {
    pub(crate) pid: Pid,
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
pub(crate) enum News {
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

/// What there is to read on a socket.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Heard<T> {
    Word(T),
    Nothing,
    /// Nobody is there any more, or it speaks in riddles.
    End,
}

impl Zygote {
    pub(crate) fn start(places: &Places, preload: &[String]) -> io::Result<Self> {
        let (control, theirs) = pair()?;
        // Only this thread starts processes, so no other inherits it.
        fcntl(&theirs, FcntlArg::F_SETFD(FdFlag::empty()))?;
        let mut command = Command::new("python3");
        command
            .args(["-P", "-s"])
            .arg(&places.zygote)
            .arg(places.script())
            .arg(&places.data)
            .arg(python_path(&places.data))
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
    pub(crate) fn ask(&self, wants: &BTreeSet<&str>) -> io::Result<Spare> {
        let (link, theirs) = pair()?;
        let (stdout, stdout_writer) = io::pipe()?;
        let (stderr, stderr_writer) = io::pipe()?;
        let request = serde_json::to_vec(&Request { wants })?;
        let files = [theirs.as_raw_fd(), stdout_writer.as_raw_fd(), stderr_writer.as_raw_fd()];
        send(&self.control, &request, &files)?;
        Ok(Spare { link, stdout, stderr, pid: None, asked: Instant::now() })
    }

    pub(crate) fn hear(&self) -> Heard<News> {
        hear(&self.control, |bytes| serde_json::from_slice(bytes).ok())
    }
}

impl AsFd for Zygote {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }
}

/// A process that is ready for a program, or will be.
#[derive(Debug)]
pub(crate) struct Spare {
    link: OwnedFd,
    stdout: PipeReader,
    stderr: PipeReader,
    /// Known when it waits.
    pub(crate) pid: Option<Pid>,
    pub(crate) asked: Instant,
}

impl Spare {
    /// It waits for the word.
    pub(crate) fn is_ready(&self) -> bool {
        self.pid.is_some()
    }

    /// Looks whether it has become ready; false if it never will.
    pub(crate) fn look(&mut self) -> bool {
        match hear(&self.link, |bytes| Some(i32::from_ne_bytes(bytes.try_into().ok()?))) {
            Heard::Word(pid) if pid > 1 && self.pid.is_none() => {
                self.pid = Some(Pid::from_raw(pid));
            }
            Heard::Nothing => {}
            Heard::Word(_) | Heard::End => return false,
        }
        true
    }

    /// Gives it the word to run what is in the script's file.
    pub(crate) fn go(self, stdin: bool, start: Start) -> io::Result<Program> {
        let pid = self.pid.ok_or(io::ErrorKind::NotConnected)?;
        let (theirs, stdin) = if stdin { Some(io::pipe()?) } else { None }.unzip();
        let files: Vec<_> = theirs.iter().map(AsRawFd::as_raw_fd).collect();
        let begun = Instant::now();
        send(&self.link, &[1], &files)?;
        Ok(Program {
            pid,
            start,
            begun,
            stdin: stdin.map(|pipe| File::from(OwnedFd::from(pipe))),
            stdout: self.stdout.into(),
            stderr: self.stderr.into(),
            link: Some(Link(self.link)),
        })
    }
}

impl AsFd for Spare {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }
}

/// To a program that runs in what was a spare. The program can say here whatever it likes.
#[derive(Debug)]
pub(crate) struct Link(OwnedFd);

/// What a program's process says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Word {
    /// It becomes a new interpreter, which knows nothing of the link.
    StartsOver,
    Done(Done),
}

/// The program has ended, as far as it can be seen: its process is about to exit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Done {
    /// Exit code.
    pub(crate) code: u8,
    /// Processor time, in microseconds.
    pub(crate) cpu_us: u64,
}

impl Link {
    /// An end without a word before it means that it has died, or has closed its side.
    pub(crate) fn hear(&self) -> Heard<Word> {
        hear(&self.0, |bytes| {
            if bytes.len() == 1 {
                return Some(Word::StartsOver);
            }
            let (code, cpu_us) = bytes.split_first_chunk()?;
            let code = i32::from_ne_bytes(*code).try_into().ok()?;
            Some(Word::Done(Done { code, cpu_us: u64::from_ne_bytes(cpu_us.try_into().ok()?) }))
        })
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Sockets that keep messages apart.
fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?)
}

fn send(socket: &OwnedFd, bytes: &[u8], files: &[i32]) -> io::Result<()> {
    let rights = [ControlMessage::ScmRights(files)];
    let rights = if files.is_empty() { &[][..] } else { &rights };
    // Whoever does not read is stuck, and we shall not be.
    let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
    sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(bytes)], rights, flags, None)?;
    Ok(())
}

fn hear<T>(socket: &OwnedFd, parse: impl FnOnce(&[u8]) -> Option<T>) -> Heard<T> {
    let mut buffer = [0; 4096];
    match recv(socket.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT) {
        Err(Errno::EAGAIN | Errno::EINTR) => Heard::Nothing,
        Ok(0) | Err(_) => Heard::End,
        Ok(n) => parse(&buffer[..n]).map_or(Heard::End, Heard::Word),
    }
}
