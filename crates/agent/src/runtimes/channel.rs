//! Sockets to processes that the agent has started, which carry whole messages in both directions. Messages are not
//! trusted, and the agent never waits for a process here.

use std::{
    io::{self, IoSlice},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use nix::{
    errno::Errno,
    sys::socket::{
        AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, recv, sendmsg, socketpair,
    },
};
use protocol::message::{Captured, Facts};
use serde::Deserialize;

/// The result of a read from a socket.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Received<T> {
    Message(T),
    Nothing,
    /// The other end is closed, or has sent an invalid message.
    End,
}

/// A channel to a program that runs in a process which existed before it. The program can send anything here.
#[derive(Debug)]
pub(crate) struct ProgramChannel {
    socket: OwnedFd,
    parse: fn(&[u8], u64) -> Option<ProgramMessage>,
    /// The number of the cell that runs, if messages name their cell.
    cell: u64,
    /// Maximum length of a message, in bytes.
    len: usize,
}

/// Maximum length of a message, in bytes: from a program's process, and from a kernel, which sends the text of a cell's
/// value or its variables.
const MAX_MESSAGE: usize = 4096;
pub(super) const MAX_KERNEL_MESSAGE: usize = 160 << 10;

/// A message from a program's process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ProgramMessage {
    /// The process becomes a new interpreter, which does not know the channel.
    ReExec,
    /// A message without meaning while a cell runs.
    Other,
    Done(Done),
}

/// The program has ended: it has no further effect, and its process is about to exit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Done {
    /// Exit code.
    pub(crate) code: u8,
    /// Processor time, in microseconds.
    pub(crate) cpu_us: u64,
    /// Facts about the program that its process knows.
    pub(crate) facts: Box<Facts>,
    /// The report of a cell.
    pub(crate) cell: Option<CellReport>,
}

/// A kernel's report of a cell that is done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CellReport {
    /// How much of `result` is the start and how much the end of the last expression's value in text form, if it has
    /// one.
    pub(crate) captured: Option<Captured>,
    /// Start and end of that text.
    pub(crate) result: Vec<u8>,
}

impl ProgramChannel {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self { socket, parse: |bytes, _| program_message(bytes), cell: 0, len: MAX_MESSAGE }
    }

    /// A channel to a kernel.
    pub(crate) fn of_kernel(socket: OwnedFd) -> Self {
        Self::of_kernel_that_says(socket, 0, |bytes, _| cell_message(bytes))
    }

    /// A channel to a kernel with its own message format, which names the cell: `cell` is the one that runs now.
    pub(crate) fn of_kernel_that_says(
        socket: OwnedFd,
        cell: u64,
        parse: fn(&[u8], u64) -> Option<ProgramMessage>,
    ) -> Self {
        Self { socket, parse, cell, len: MAX_KERNEL_MESSAGE }
    }

    /// Receives a message. An end without a message before it means that the process has died, or has closed its side.
    pub(crate) fn receive(&self) -> Received<ProgramMessage> {
        receive_up_to(&self.socket, self.len, |bytes| (self.parse)(bytes, self.cell))
    }
}

fn program_message(bytes: &[u8]) -> Option<ProgramMessage> {
    if bytes.len() == 1 {
        return Some(ProgramMessage::ReExec);
    }
    let (code, rest) = bytes.split_first_chunk()?;
    let (cpu_us, facts) = rest.split_first_chunk()?;
    Some(ProgramMessage::Done(Done {
        code: i32::from_ne_bytes(*code).try_into().ok()?,
        cpu_us: u64::from_ne_bytes(*cpu_us),
        facts: match facts {
            [] => Box::default(),
            // Invalid facts are from a program that writes to every descriptor that it can: it has not ended.
            json => serde_json::from_slice(json).ok()?,
        },
        cell: None,
    }))
}

impl AsFd for ProgramChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The head of a kernel's report of a cell, as JSON, before the text of its value.
#[derive(Deserialize)]
struct CellHead {
    facts: Facts,
    #[serde(default)]
    captured: Option<Captured>,
}

fn cell_message(bytes: &[u8]) -> Option<ProgramMessage> {
    // The kernel's process id, or an answer that came too late, such as that a copy was made.
    if bytes.len() == size_of::<i32>() || bytes.first() == Some(&b'{') {
        return Some(ProgramMessage::Other);
    }
    let (code, rest) = bytes.split_first_chunk()?;
    let (cpu_us, rest) = rest.split_first_chunk()?;
    let (len, rest) = rest.split_first_chunk()?;
    let (head, result) = rest.split_at_checked(u32::from_ne_bytes(*len).try_into().ok()?)?;
    let CellHead { facts, captured } = serde_json::from_slice(head).ok()?;
    Some(ProgramMessage::Done(Done {
        code: i32::from_ne_bytes(*code).try_into().ok()?,
        cpu_us: u64::from_ne_bytes(*cpu_us),
        facts: Box::new(facts),
        cell: Some(CellReport { captured, result: result.to_vec() }),
    }))
}

/// Creates sockets that keep messages apart.
pub(super) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?)
}

pub(super) fn send(socket: &OwnedFd, bytes: &[u8], files: &[i32]) -> io::Result<()> {
    let rights = [ControlMessage::ScmRights(files)];
    let rights = if files.is_empty() { &[][..] } else { &rights };
    // A process that does not read is stuck, and the agent must not wait for it.
    let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
    sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(bytes)], rights, flags, None)?;
    Ok(())
}

pub(super) fn receive<T>(socket: &OwnedFd, parse: impl FnOnce(&[u8]) -> Option<T>) -> Received<T> {
    receive_up_to(socket, MAX_MESSAGE, parse)
}

pub(super) fn receive_up_to<T>(
    socket: &OwnedFd,
    len: usize,
    parse: impl FnOnce(&[u8]) -> Option<T>,
) -> Received<T> {
    let mut buffer = vec![0; len];
    match recv(socket.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT) {
        Err(Errno::EAGAIN | Errno::EINTR) => Received::Nothing,
        Ok(0) | Err(_) => Received::End,
        Ok(n) => parse(&buffer[..n]).map_or(Received::End, Received::Message),
    }
}
