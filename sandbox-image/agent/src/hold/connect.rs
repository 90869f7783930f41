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

/// Hands standard input and output to the agent with this number, and lives as long as that has use for them.
///
/// # Errors
/// If nobody listens, or another than the agent, who would learn what is said to it.
pub(crate) fn connect(agent: Pid) -> Result<(), Box<dyn std::error::Error>> {
    // What it holds is out of reach of the user's code, as the agent's own is.
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
    // The agent never says anything: it closes the socket when it has another stream, or ends.
    match socket.read(&mut [0]) {
        Err(error) if error.kind() != io::ErrorKind::ConnectionReset => Err(error.into()),
        _ => Ok(()),
    }
}
