//! Sockets to processes that the agent has started: what is said on them, both ways, whole message by
//! whole message. What comes is not trusted, and nobody is waited for.

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
use protocol::message::Facts;

/// What there is to read on a socket.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Received<T> {
    Message(T),
    Nothing,
    /// Nobody is there any more, or it sent an invalid message.
    End,
}

/// To a program that runs in a process which was there before it. The program can say here whatever it
/// likes.
#[derive(Debug)]
pub(crate) struct ProgramChannel(OwnedFd);

/// What a program's process says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ProgramMessage {
    /// It becomes a new interpreter, which knows nothing of the channel.
    ReExec,
    Done(Done),
}

/// The program has ended, as far as it can be seen: its process is about to exit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Done {
    /// Exit code.
    pub(crate) code: u8,
    /// Processor time, in microseconds.
    pub(crate) cpu_us: u64,
    /// What its process knows of it.
    pub(crate) facts: Box<Facts>,
}

impl ProgramChannel {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self(socket)
    }

    /// An end without a message before it means that it has died, or has closed its side.
    pub(crate) fn receive(&self) -> Received<ProgramMessage> {
        receive(&self.0, |bytes| {
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
                    // A program that writes wherever it can has not ended.
                    json => serde_json::from_slice(json).ok()?,
                },
            }))
        })
    }
}

impl AsFd for ProgramChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Sockets that keep messages apart.
pub(super) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?)
}

pub(super) fn send(socket: &OwnedFd, bytes: &[u8], files: &[i32]) -> io::Result<()> {
    let rights = [ControlMessage::ScmRights(files)];
    let rights = if files.is_empty() { &[][..] } else { &rights };
    // Whoever does not read is stuck, and we shall not be.
    let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
    sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(bytes)], rights, flags, None)?;
    Ok(())
}

pub(super) fn receive<T>(socket: &OwnedFd, parse: impl FnOnce(&[u8]) -> Option<T>) -> Received<T> {
    let mut buffer = [0; 4096];
    match recv(socket.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT) {
        Err(Errno::EAGAIN | Errno::EINTR) => Received::Nothing,
        Ok(0) | Err(_) => Received::End,
        Ok(n) => parse(&buffer[..n]).map_or(Received::End, Received::Message),
    }
}
