//! The agent's end of the stream: requests in, replies out.

use std::{
    error::Error,
    fmt,
    io::{self, Read},
    sync::{Arc, Mutex},
};

use protocol::{
    frame::{self, Frame, Kind, MAX_BODY, MAX_HEAD, PROTOCOL_VERSION},
    limits::MAX_UPLOADS,
    message::{AgentHello, Failure, PeerVersion, Request, ServerHello},
};
use serde::Serialize;

/// The maximum length of a failure's detail, in characters. A path of thousands of control characters would grow
/// sixfold as JSON.
const MAX_DETAIL: usize = 512;

/// A receiver of whole frames.
pub trait Outlet: fmt::Debug + Send {
    /// Sends a frame.
    ///
    /// # Errors
    /// If the other end is closed, and no other will follow.
    fn send(&mut self, call: u32, kind: Kind, head: &[u8], body: &[&[u8]]) -> io::Result<()>;
}

impl Outlet for io::Stdout {
    fn send(&mut self, call: u32, kind: Kind, head: &[u8], body: &[&[u8]]) -> io::Result<()> {
        frame::write(self, call, kind, head, body)
    }
}

/// The outlet for replies, one whole frame after another. Clones share it.
#[derive(Debug, Clone)]
pub struct Replies(Arc<Mutex<dyn Outlet>>);

impl Replies {
    /// Sends replies to standard output, to which nothing else may be written.
    pub fn to_stdout() -> Self {
        Self::to(Arc::new(Mutex::new(io::stdout())))
    }

    /// Sends replies to this outlet.
    pub fn to(outlet: Arc<Mutex<impl Outlet + 'static>>) -> Self {
        Self(outlet)
    }

    /// Sends the first frame.
    ///
    /// # Errors
    /// If the other end is closed.
    pub fn hello(&self, hello: &AgentHello) -> io::Result<()> {
        self.write(0, Kind::Hello, hello, &[])
    }

    /// Answers a request.
    ///
    /// # Errors
    /// As with [`hello`](Self::hello).
    pub fn reply(&self, call: u32, head: &impl Serialize, body: &[&[u8]]) -> io::Result<()> {
        self.write(call, Kind::Reply, head, body)
    }

    /// Reports why a request could not be carried out.
    ///
    /// # Errors
    /// As with [`hello`](Self::hello).
    pub fn fail(&self, call: u32, mut failure: Failure) -> io::Result<()> {
        failure.detail = failure.detail.chars().take(MAX_DETAIL).collect();
        self.write(call, Kind::Failure, &failure, &[])
    }

    /// Sends a reply or a failure, depending on the result.
    ///
    /// # Errors
    /// As with [`hello`](Self::hello).
    pub fn answer<T: Serialize>(
        &self,
        call: u32,
        done: Result<(T, Vec<u8>), Failure>,
    ) -> io::Result<()> {
        match done {
            Ok((head, body)) => self.reply(call, &head, &[&body]),
            Err(failure) => self.fail(call, failure),
        }
    }

    fn write(
        &self,
        call: u32,
        kind: Kind,
        head: &impl Serialize,
        body: &[&[u8]],
    ) -> io::Result<()> {
        let head = serde_json::to_vec(head)?;
        debug_assert!(head.len() <= MAX_HEAD);
        let mut out = self.0.lock().expect("no thread panics while it writes");
        out.send(call, kind, &head, body)
    }
}

/// Answers the server's hello. A server of another version gets the agent's version before it is refused, so that it
/// can say what is wrong.
///
/// # Errors
/// If the frame is not a hello, or is of another version, or the other end is closed.
pub fn greet(first: &Frame, replies: &Replies) -> Result<ServerHello, Box<dyn Error>> {
    if first.kind != Kind::Hello {
        return Err(format!("the server sent {:?} before its hello", first.kind).into());
    }
    let theirs: PeerVersion = serde_json::from_slice(&first.head)?;
    replies.hello(&AgentHello {
        version: PROTOCOL_VERSION,
        max_body: MAX_BODY,
        max_uploads: MAX_UPLOADS,
    })?;
    if theirs.version != PROTOCOL_VERSION {
        return Err(format!(
            "the server speaks protocol {}, this agent {PROTOCOL_VERSION}",
            theirs.version
        )
        .into());
    }
    Ok(serde_json::from_slice(&first.head)?)
}

/// Reads the next frame; `None` at the end of the stream, even in the middle of a frame: a server may be killed while
/// it writes.
///
/// # Errors
/// If the bytes are not a frame, or cannot be read.
pub fn next_frame(input: &mut impl Read) -> io::Result<Option<Frame>> {
    match frame::read(input) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        other => other,
    }
}

/// Parses the head of a request.
///
/// # Errors
/// If the head does not have the request's form.
pub fn parse<R: Request>(head: &[u8]) -> Result<R, Failure> {
    serde_json::from_slice(head).map_err(|error| Failure::bad_request(error.to_string()))
}
