//! The other side of the door: `agent --connect`, which is started in the sandbox from outside.

use std::{
    io::{self, IoSlice, Read},
    os::{fd::AsRawFd, unix::net::UnixStream},
};

use nix::{
    libc,
    sys::{
        prctl,
        socket::{ControlMessage, MsgFlags, getsockopt, sendmsg, sockopt::PeerCredentials},
    },
    unistd::Pid,
};

use super::door::{GREETING, address};

/// Hands standard input and output to the agent with this process id, and returns when the agent needs them no longer.
///
/// # Errors
/// If no process listens, or another process than the agent, which could then read what is sent.
pub(crate) fn connect(agent: Pid) -> Result<(), Box<dyn std::error::Error>> {
    // Keeps the memory and descriptors of this process out of reach of user code, as those of the agent are.
    prctl::set_dumpable(false)?;
    let mut socket = UnixStream::connect_addr(&address(agent)?)?;
    let listener = getsockopt(&socket, PeerCredentials)?.pid();
    if listener != agent.as_raw() {
        return Err("somebody else listens in the agent's place".into());
    }
    let files = [libc::STDIN_FILENO, libc::STDOUT_FILENO];
    let rights = [ControlMessage::ScmRights(&files)];
    let greeting = [IoSlice::new(&[GREETING])];
    sendmsg::<()>(socket.as_raw_fd(), &greeting, &rights, MsgFlags::empty(), None)?;
    // The agent sends nothing: it closes the socket when it has another stream, or ends.
    match socket.read(&mut [0]) {
        Err(error) if error.kind() != io::ErrorKind::ConnectionReset => Err(error.into()),
        _ => Ok(()),
    }
}
