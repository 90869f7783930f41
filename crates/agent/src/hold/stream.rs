//! The two ends of the stream: the inbox receives frames, the outbox sends them. The outbox keeps the frames that were
//! sent last, for a server that has not received them before the stream was lost.

use std::{
    collections::VecDeque,
    io::{self, BufWriter, ErrorKind, Read, Write},
    os::fd::{AsFd, AsRawFd, OwnedFd},
    sync::Arc,
};

use agent_core::Outlet;
use nix::{
    errno::Errno,
    fcntl::{FcntlArg, OFlag, fcntl},
    libc,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::eventfd::EventFd,
};
use protocol::{
    frame::{self, Kind},
    message::{Failure, FailureCode},
};

/// Maximum bytes of stored frames: more than pipes and relays hold in transit, and several of the largest frames.
const MAX_KEPT_BYTES: usize = 4 << 20;

/// Bytes that the pipe to the server holds, if the kernel allows it: with the usual 64 KiB, a large file makes both
/// sides wait for each other all the time. A pod's user has 64 MiB for the pipes of all its pods on a machine.
const PIPE_BYTES: i32 = 256 << 10;

/// Maximum number of stored frames, including those that were shortened to a failure. More than the calls that are
/// unanswered at a time.
const MAX_KEPT_FRAMES: usize = 1024;

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

/// Sends frames over standard output.
#[derive(Debug)]
pub(crate) struct Outbox {
    /// Readable while the stream is lost.
    bell: Arc<EventFd>,
    /// Whether frames are stored. If not, the agent ends with the stream.
    keeps: bool,
    is_connected: bool,
    /// The newest replies and failures, the oldest first.
    kept: VecDeque<Sent>,
    /// Bytes of the stored frames.
    bytes: usize,
    /// Number of replies and failures since frames are stored.
    count: u64,
}

/// A frame that was sent, or waits for the next stream.
#[derive(Debug)]
struct Sent {
    call: u32,
    wire: Vec<u8>,
}

impl Outbox {
    pub(super) fn new(bell: Arc<EventFd>) -> Self {
        widen();
        Self { bell, keeps: false, is_connected: true, kept: VecDeque::new(), bytes: 0, count: 0 }
    }

    /// Keeps frames from now on.
    pub(super) fn keep(&mut self) {
        self.keeps = true;
        do_not_block();
    }

    /// Makes this descriptor standard output, to which all further frames go.
    pub(super) fn connect(&mut self, output: &OwnedFd) {
        replace(output, libc::STDOUT_FILENO);
        widen();
        self.is_connected = true;
    }

    /// Whether the reply to this call is stored.
    pub(super) fn has(&self, call: u32) -> bool {
        self.kept.iter().any(|sent| sent.call == call)
    }

    /// The number of replies and failures that another server has missed, if it gets only that to the last run.
    pub(super) fn missed(&self, last_run: Option<u32>) -> u64 {
        self.count - u64::from(last_run.is_some_and(|call| self.has(call)))
    }

    /// Connects, and sends the answer to the first frame, and then the frames that the server has not received. If
    /// `received` is `None`, it is another server: it gets the reply to the last run, and all other stored frames are
    /// dropped.
    ///
    /// # Errors
    /// If the stream is lost again, or `received` does not match the stored frames.
    pub(super) fn resume(
        &mut self,
        output: &OwnedFd,
        received: Option<u64>,
        last_run: Option<u32>,
        head: &[u8],
        note: &[u8],
    ) -> io::Result<()> {
        let first = self.count - self.kept.len() as u64;
        match received {
            None => {
                self.kept.retain(|sent| Some(sent.call) == last_run);
                self.bytes = self.kept.iter().map(|sent| sent.wire.len()).sum();
            }
            Some(received) if (first..=self.count).contains(&received) => {
                self.forget(usize::try_from(received - first).unwrap_or(usize::MAX));
            }
            Some(_) => return Err(ErrorKind::InvalidInput.into()),
        }
        self.connect(output);
        do_not_block();
        let mut start = vec![];
        frame::write(&mut start, 0, Kind::Reply, head, &[note])?;
        let mut frames = std::iter::once(&start).chain(self.kept.iter().map(|sent| &sent.wire));
        let written = frames.try_for_each(|wire| self.write(wire));
        self.is_connected = written.is_ok();
        written
    }

    /// Drops the oldest frames.
    fn forget(&mut self, frames: usize) {
        let gone = self.kept.drain(..frames.min(self.kept.len()));
        self.bytes -= gone.map(|sent| sent.wire.len()).sum::<usize>();
    }

    /// If too many bytes are stored, shortens the oldest frames to failures, so that each call still gets an answer.
    fn make_room(&mut self) {
        for sent in &mut self.kept {
            if self.bytes <= MAX_KEPT_BYTES {
                break;
            }
            let lost = Failure::new(FailureCode::System, "the reply was lost with the stream");
            let head = serde_json::to_vec(&lost).unwrap_or_default();
            let before = sent.wire.len();
            if before > frame::PREFIX_LEN + head.len() {
                sent.wire.clear();
                // The frame is far below the size limits.
                let _ = frame::write(&mut sent.wire, sent.call, Kind::Failure, &head, &[]);
                sent.wire.shrink_to_fit();
                self.bytes = self.bytes + sent.wire.len() - before;
            }
        }
        self.forget(self.kept.len().saturating_sub(MAX_KEPT_FRAMES));
    }

    /// Writes all bytes, unless the stream is lost meanwhile.
    fn write(&self, mut wire: &[u8]) -> io::Result<()> {
        let stdout = io::stdout();
        while !wire.is_empty() {
            match nix::unistd::write(stdout.as_fd(), wire) {
                Ok(written) => wire = &wire[written..],
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => {
                    let mut fds = [
                        PollFd::new(self.bell.as_fd(), PollFlags::POLLIN),
                        PollFd::new(stdout.as_fd(), PollFlags::POLLOUT),
                    ];
                    poll(&mut fds, PollTimeout::NONE)?;
                    if fds[0].any().unwrap_or_default() {
                        return Err(ErrorKind::BrokenPipe.into());
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

impl Outlet for Outbox {
    fn send(&mut self, call: u32, kind: Kind, head: &[u8], body: &[&[u8]]) -> io::Result<()> {
        let counts = matches!(kind, Kind::Reply | Kind::Failure);
        if self.keeps && matches!(kind, Kind::Ask | Kind::Withdraw) {
            // Not stored: open questions are sent again with the next stream.
            if self.is_connected {
                let mut wire = vec![];
                frame::write(&mut wire, call, kind, head, body)?;
                self.is_connected = self.write(&wire).is_ok();
            }
            return Ok(());
        }
        if !self.keeps || !counts {
            // A small frame takes one write, and a large one is not copied.
            return frame::write(&mut BufWriter::new(Unkept(self)), call, kind, head, body);
        }
        let length = head.len() + body.iter().map(|piece| piece.len()).sum::<usize>();
        let mut wire = Vec::with_capacity(frame::PREFIX_LEN + length);
        frame::write(&mut wire, call, kind, head, body)?;
        if self.is_connected {
            self.is_connected = self.write(&wire).is_ok();
        }
        self.count += 1;
        self.bytes += wire.len();
        self.kept.push_back(Sent { call, wire });
        self.make_room();
        // Not an error if the stream is lost: the next stream gets the frame, or the leash ends the agent.
        Ok(())
    }
}

/// Writes frames that are not stored.
struct Unkept<'a>(&'a Outbox);

impl Write for Unkept<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn widen() {
    // Fails if standard output is not a pipe.
    let _ = fcntl(io::stdout().as_fd(), FcntlArg::F_SETPIPE_SZ(PIPE_BYTES));
}

/// Makes writes return if they would wait, so that a loss of the stream is noticed.
fn do_not_block() {
    let stdout = io::stdout();
    if let Ok(flags) = fcntl(stdout.as_fd(), FcntlArg::F_GETFL) {
        let flags = OFlag::from_bits_retain(flags) | OFlag::O_NONBLOCK;
        let _ = fcntl(stdout.as_fd(), FcntlArg::F_SETFL(flags));
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::eventfd::EfdFlags;

    use super::*;

    /// An outbox that keeps frames and has no stream.
    fn lost() -> Outbox {
        let bell = Arc::new(EventFd::from_flags(EfdFlags::EFD_NONBLOCK).expect("made"));
        Outbox { keeps: true, is_connected: false, ..Outbox::new(bell) }
    }

    fn send(outbox: &mut Outbox, call: u32, body: &[u8]) {
        outbox.send(call, Kind::Reply, b"{}", &[body]).expect("kept");
    }

    fn calls(outbox: &Outbox) -> Vec<u32> {
        outbox.kept.iter().map(|sent| sent.call).collect()
    }

    #[test]
    fn what_was_received_is_forgotten_and_the_rest_is_kept_in_order() {
        let mut outbox = lost();
        for call in 1..=5 {
            send(&mut outbox, call, b"x");
        }
        let first = outbox.count - outbox.kept.len() as u64;
        assert_eq!(first, 0);
        outbox.forget(2);
        assert_eq!(calls(&outbox), [3, 4, 5]);
        assert_eq!(outbox.bytes, outbox.kept.iter().map(|sent| sent.wire.len()).sum::<usize>());
    }

    #[test]
    fn of_more_than_can_be_kept_each_call_still_gets_an_answer() {
        let mut outbox = lost();
        let large = vec![0; 1 << 20];
        for call in 1..=10 {
            send(&mut outbox, call, &large);
        }
        assert!(outbox.bytes <= MAX_KEPT_BYTES, "{}", outbox.bytes);
        assert_eq!(calls(&outbox), (1..=10).collect::<Vec<_>>());
        let kinds = outbox.kept.iter().map(|sent| {
            frame::read(&mut sent.wire.as_slice()).expect("whole").expect("a frame").kind
        });
        let kinds: Vec<_> = kinds.collect();
        assert!(kinds.starts_with(&[Kind::Failure; 6]) && kinds.ends_with(&[Kind::Reply; 3]));
        for call in 11..3000 {
            send(&mut outbox, call, b"");
        }
        assert_eq!(outbox.kept.len(), MAX_KEPT_FRAMES);
    }
}
