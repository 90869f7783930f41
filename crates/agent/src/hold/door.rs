//! The door: takes in a new stream. A process that is started in the sandbox from outside connects to a socket of the
//! agent and hands over its standard input and output.
//!
//! User code can connect, too. The agent rejects it without reading: only a process that was started from outside has
//! no parent here. That process in turn recognizes the agent by the process id of the listener.

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

use super::{connector::Arrived, leash::Leash};
use crate::processes::parent_of;

/// Time limit for a visitor to hand over its stream, and again to send its first frame.
const VISIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest time from the start of a visitor until its stream is taken or rejected.
pub(crate) const MAX_VISIT: Duration = VISIT_TIMEOUT.saturating_mul(2);

/// The byte that is sent with the two descriptors.
pub(super) const GREETING: u8 = b'.';

/// The socket on which the agent listens for visitors.
#[derive(Debug)]
pub(crate) struct Door(UnixListener);

/// A process that has handed over a stream.
#[derive(Debug)]
pub(super) struct Visitor {
    pub(super) input: OwnedFd,
    pub(super) output: OwnedFd,
    pub(super) connector: Arrived,
}

/// The address of the socket of the agent with this process id. It has no file that another process could replace.
pub(super) fn address(agent: Pid) -> io::Result<SocketAddr> {
    // Outside a container there may be several agents.
    let of = if agent == Pid::from_raw(1) { String::new() } else { format!("-{agent}") };
    SocketAddr::from_abstract_name(format!("llm-sandbox-agent{of}"))
}

impl Door {
    /// Creates the socket, before any user code runs that could take its name.
    pub(super) fn make() -> io::Result<Self> {
        let listener = UnixListener::bind_addr(&address(Pid::this())?)?;
        listener.set_nonblocking(true)?;
        Ok(Self(listener))
    }

    /// Rejects the visitors that wait.
    pub(super) fn turn_away(&self) {
        while let Ok((stream, _)) = self.0.accept() {
            drop(stream);
        }
    }

    /// Waits for the next visitor that may come from a server. Ends the agent if none comes before the leash expires.
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
    /// Readable when a visitor waits.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Visitor {
    /// Receives the stream of a process; `None` if the process is not from outside, or hands over something else.
    fn receive(socket: UnixStream) -> Option<Self> {
        let pid = Pid::from_raw(getsockopt(&socket, PeerCredentials).ok()?.pid());
        // Outside a container every process has a parent.
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
        let connector = Arrived { pid, socket: socket.into() };
        (greeting == [GREETING]).then_some(Self { input, output, connector })
    }

    /// The first frame of the stream; `None` if it does not come in time.
    pub(super) fn first_frame(&self) -> Option<Frame> {
        let mut input = InTime { input: &self.input, until: Instant::now() + VISIT_TIMEOUT };
        frame::read(&mut input).ok()?
    }

    /// Tells a visitor with another protocol version the agent's version.
    pub(super) fn refuse_version(self) {
        let hello =
            AgentHello { version: PROTOCOL_VERSION, max_body: MAX_BODY, max_uploads: MAX_UPLOADS };
        if let Ok(head) = serde_json::to_vec(&hello) {
            let mut output = io::PipeWriter::from(self.output);
            let _ = frame::write(&mut output, 0, Kind::Hello, &head, &[]);
        }
    }
}

/// Reads no more bytes than are asked for, and only until a deadline.
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
