//! How a new stream comes in: somebody outside starts a process in the sandbox, which connects to a socket of the
//! agent's and hands over its standard input and output.
//!
//! User code can connect, too. It is turned away unread: what is started from outside has no parent here. And it can
//! be told from us in turn, by the number of who listens.

use std::{
    io::{self, IoSliceMut, Read},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener, UnixStream},
    },
    time::{Duration, Instant},
};

use nix::{
    cmsg_space,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::socket::{ControlMessageOwned, MsgFlags, getsockopt, recvmsg, sockopt::PeerCredentials},
    unistd::Pid,
};
use protocol::{
    frame::{self, Frame, Kind, MAX_BODY, PROTOCOL_VERSION},
    limits::MAX_UPLOADS,
    message::AgentHello,
};

use super::{guest::Arrived, leash::Leash};
use crate::processes::parent_of;

/// Longest that a visitor takes to hand over its stream, and then to say what it wants.
const VISIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest that it takes from its start until it has a stream to bring, or is turned away.
pub(crate) const MAX_VISIT: Duration = VISIT_TIMEOUT.saturating_mul(2);

/// What is said with the two descriptors.
pub(super) const GREETING: u8 = b'.';

/// The socket.
#[derive(Debug)]
pub(crate) struct Door(UnixListener);

/// Who has come in with a stream.
#[derive(Debug)]
pub(super) struct Visitor {
    pub(super) input: OwnedFd,
    pub(super) output: OwnedFd,
    pub(super) guest: Arrived,
}

/// The name of the socket of the agent with this number. It has no file that anybody could replace.
pub(super) fn address(agent: Pid) -> io::Result<SocketAddr> {
    // Outside a container of its own there may be several.
    let of = if agent == Pid::from_raw(1) { String::new() } else { format!("-{agent}") };
    SocketAddr::from_abstract_name(format!("llm-sandbox-agent{of}"))
}

impl Door {
    /// Makes it, while no code of the user's can have taken its name.
    pub(super) fn make() -> io::Result<Self> {
        let listener = UnixListener::bind_addr(&address(Pid::this())?)?;
        listener.set_nonblocking(true)?;
        Ok(Self(listener))
    }

    /// Whoever has come meanwhile is sent away.
    pub(super) fn turn_away(&self) {
        while let Ok((stream, _)) = self.0.accept() {
            drop(stream);
        }
    }

    /// Waits for the next that could be a server's. Does not return if none comes before the leash's end.
    pub(super) fn next(&self, leash: &Leash) -> Visitor {
        loop {
            let Some(left) = leash.left().filter(|left| !left.is_zero()) else { crate::end() };
            let mut fds = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
            let _ = poll(&mut fds, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX));
            if let Ok((stream, _)) = self.0.accept()
                && let Some(visitor) = Visitor::receive(stream)
            {
                return visitor;
            }
        }
    }
}

impl AsFd for Door {
    /// Readable when somebody has come.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Visitor {
    /// The stream of a process that comes from outside; none if it does not, or hands over something else.
    fn receive(socket: UnixStream) -> Option<Self> {
        let pid = Pid::from_raw(getsockopt(&socket, PeerCredentials).ok()?.pid());
        // Elsewhere than in a container of its own every process has a parent.
        let is_from_outside = std::process::id() != 1 || parent_of(pid) == Some(0);
        if !is_from_outside || !is_readable_within(socket.as_fd(), VISIT_TIMEOUT) {
            return None;
        }
        let mut greeting = [0];
        let mut space = cmsg_space!([i32; 2]);
        let mut parts = [IoSliceMut::new(&mut greeting)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC | MsgFlags::MSG_DONTWAIT;
        let message =
            recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut space), flags).ok()?;
        let mut files = vec![];
        for part in message.cmsgs().ok()? {
            if let ControlMessageOwned::ScmRights(numbers) = part {
                #[expect(unsafe_code, reason = "the kernel has just made them, for this process")]
                files.extend(numbers.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
            }
        }
        let [input, output] = <[OwnedFd; 2]>::try_from(files).ok()?;
        let guest = Arrived { pid, socket: socket.into() };
        (greeting == [GREETING]).then_some(Self { input, output, guest })
    }

    /// What it says first, if it says it in time.
    pub(super) fn first_frame(&self) -> Option<Frame> {
        let mut input = InTime { input: &self.input, until: Instant::now() + VISIT_TIMEOUT };
        frame::read(&mut input).ok()?
    }

    /// Tells it our version, which is not its own.
    pub(super) fn refuse_version(self) {
        let hello =
            AgentHello { version: PROTOCOL_VERSION, max_body: MAX_BODY, max_uploads: MAX_UPLOADS };
        if let Ok(head) = serde_json::to_vec(&hello) {
            let mut output = io::PipeWriter::from(self.output);
            let _ = frame::write(&mut output, 0, Kind::Hello, &head, &[]);
        }
    }
}

/// Reads no more than is asked for, and not for ever.
struct InTime<'a> {
    input: &'a OwnedFd,
    until: Instant,
}

impl Read for InTime<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.until.saturating_duration_since(Instant::now());
        if !is_readable_within(self.input.as_fd(), left) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(nix::unistd::read(self.input.as_fd(), buffer)?)
    }
}

fn is_readable_within(fd: BorrowedFd<'_>, limit: Duration) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX)) == Ok(1)
}
