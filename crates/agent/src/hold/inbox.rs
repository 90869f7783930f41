//! The receiving end of the stream.

use std::{
    io::{self, Read},
    os::fd::{AsFd, AsRawFd, OwnedFd},
    sync::Arc,
};

use nix::{
    libc,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::eventfd::EventFd,
};

/// Reads standard input until it ends, or the stream counts as lost. Bytes that are unread then count as not received.
#[derive(Debug)]
pub(crate) struct Inbox {
    /// Readable while the stream is lost.
    bell: Arc<EventFd>,
}

impl Inbox {
    pub(super) fn new(bell: Arc<EventFd>) -> Self {
        Self { bell }
    }
}

impl Read for Inbox {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let stdin = io::stdin();
        let mut fds = [
            PollFd::new(self.bell.as_fd(), PollFlags::POLLIN),
            PollFd::new(stdin.as_fd(), PollFlags::POLLIN),
        ];
        poll(&mut fds, PollTimeout::NONE)?;
        let is_lost = fds[0].any().unwrap_or_default();
        if is_lost { Ok(0) } else { Ok(nix::unistd::read(stdin.as_fd(), buffer)?) }
    }
}

/// Makes this descriptor standard input, from which all further frames come.
pub(super) fn connect(input: &OwnedFd) {
    replace(input, libc::STDIN_FILENO);
}

/// Closes both ends of a lost stream, and puts pipes in their place whose other ends are closed.
pub(super) fn disconnect() {
    if let (Ok((input, _)), Ok((_, output))) = (io::pipe(), io::pipe()) {
        replace(&input.into(), libc::STDIN_FILENO);
        replace(&output.into(), libc::STDOUT_FILENO);
    }
}

/// Makes a descriptor number refer to the file of another descriptor.
#[expect(
    unsafe_code,
    reason = "both are open, and nobody owns the number that gets another meaning"
)]
pub(super) fn replace(with: &OwnedFd, number: i32) {
    // Fails only for an invalid number.
    let _ = unsafe { libc::dup3(with.as_raw_fd(), number, libc::O_CLOEXEC) };
}
