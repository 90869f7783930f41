//! The gate: a socket on which the programs of a run put questions to the server.
//!
//! ```text
//! program -- connect --> gate -- a thread --> Asks --> server
//!                         '-- between two runs: closed at once
//! ```
//!
//! A question and its answer are a length (four bytes, the lowest first) and JSON, which the agent does not read. A
//! connection carries one question at a time; its end withdraws that. All connections end with the run.

use std::{
    io::{self, Read, Write},
    net::Shutdown,
    os::{
        fd::AsFd,
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener, UnixStream},
    },
    sync::{Arc, Mutex, MutexGuard, mpsc},
    thread,
};

use agent_core::Asks;
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::eventfd::{EfdFlags, EventFd},
};
use protocol::message::MAX_ASK;

/// The environment variable of programs that has the socket's name.
pub(crate) const VARIABLE: &str = "SANDBOX_TOOLS";

/// Maximum number of open connections, of which most have no question.
const MAX_CONNECTIONS: usize = 64;

/// Bytes of stack of the thread of a connection.
const STACK: usize = 64 << 10;

/// The socket's name in a container. It has no file that a program could replace.
pub(crate) const NAME: &str = "llm-sandbox-tools";

/// The connections of the run in progress; `None` between two runs. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Gate(Arc<Mutex<Option<Open>>>);

/// A run and its connections.
struct Open {
    /// The call id of the run. Its connections ask nothing in the time of another.
    run: u32,
    streams: Vec<Arc<UnixStream>>,
}

/// The socket's name.
pub(crate) fn name() -> String {
    // Outside a container there may be several agents.
    match std::process::id() {
        1 => NAME.into(),
        id => format!("{NAME}-{id}"),
    }
}

impl Gate {
    /// Listens, before any user code runs that could take the socket's name. The questions go to `asks`.
    pub(crate) fn listen(&self, asks: Asks) -> io::Result<()> {
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name())?)?;
        let gate = self.clone();
        let accept = move || {
            for stream in listener.incoming().flatten() {
                gate.admit(stream, &asks);
            }
        };
        thread::Builder::new().name("gate".into()).stack_size(STACK).spawn(accept).map(drop)
    }

    /// Opens for the run with this call id.
    pub(crate) fn open(&self, run: u32) {
        *self.lock() = Some(Open { run, streams: vec![] });
    }

    /// Ends all connections.
    pub(crate) fn close(&self) {
        for stream in self.lock().take().into_iter().flat_map(|open| open.streams) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn admit(&self, stream: UnixStream, asks: &Asks) {
        let stream = Arc::new(stream);
        let run = {
            let mut open = self.lock();
            let is_free = |open: &&mut Open| open.streams.len() < MAX_CONNECTIONS;
            let Some(open) = open.as_mut().filter(is_free) else { return };
            open.streams.push(stream.clone());
            open.run
        };
        let (gate, asks) = (self.clone(), asks.clone());
        let serve = move || {
            let _ = serve(&stream, (&asks, run));
            let _ = stream.shutdown(Shutdown::Both);
            gate.forget(&stream);
        };
        // Without a thread, the connection ends with the run.
        let _ = thread::Builder::new().name("question".into()).stack_size(STACK).spawn(serve);
    }

    fn forget(&self, stream: &Arc<UnixStream>) {
        let mut open = self.lock();
        open.iter_mut().for_each(|open| open.streams.retain(|other| !Arc::ptr_eq(other, stream)));
    }

    fn lock(&self) -> MutexGuard<'_, Option<Open>> {
        self.0.lock().expect("no thread panics while it holds this")
    }
}

/// Passes on one question of a run after another, until the connection ends.
fn serve(mut stream: &UnixStream, (asks, run): (&Asks, u32)) -> io::Result<()> {
    let answered = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?);
    loop {
        let mut len = [0; 4];
        stream.read_exact(&mut len)?;
        let len = u32::from_le_bytes(len) as usize;
        if len > MAX_ASK {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut question = vec![0; len];
        stream.read_exact(&mut question)?;
        let (sender, answer) = mpsc::channel();
        let bell = answered.clone();
        let then = Box::new(move |answer| {
            // Fails if the connection has ended.
            let _ = sender.send(answer);
            let _ = bell.write(1);
        });
        let number = asks.ask(run, question, then).ok_or(io::ErrorKind::ConnectionRefused)?;
        let Some(answer) = wait(stream, &answered, &answer)? else {
            asks.withdraw(number);
            return Ok(());
        };
        let len = u32::try_from(answer.len()).map_err(|_| io::ErrorKind::InvalidData)?;
        stream.write_all(&[&len.to_le_bytes()[..], &answer].concat())?;
    }
}

/// Waits for the answer; `None` if the program goes away, or its run ends, before it comes.
fn wait(
    stream: &UnixStream,
    answered: &EventFd,
    answer: &mpsc::Receiver<Vec<u8>>,
) -> io::Result<Option<Vec<u8>>> {
    loop {
        let mut fds = [
            // Also readable when the other end is closed. A program that sends more before it has its answer is not ours.
            PollFd::new(stream.as_fd(), PollFlags::POLLIN),
            PollFd::new(answered.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let _ = answered.read();
        if let Ok(answer) = answer.try_recv() {
            return Ok(Some(answer));
        }
        if fds[0].any().unwrap_or_default() {
            return Ok(None);
        }
    }
}
