//! The writing half of the stream: how requests are answered.

use std::{
    io,
    sync::{Arc, Mutex},
};

use protocol::{
    frame::{self, Kind, MAX_HEAD},
    message::{AgentHello, Failure},
};
use serde::Serialize;

/// Most characters of a failure's detail. A path of thousands of control characters would grow
/// sixfold as JSON.
const MAX_DETAIL: usize = 512;

/// Where replies go, one whole frame after another; clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Replies(Arc<Mutex<io::Stdout>>);

impl Replies {
    /// Over standard output, to which nothing else may be written.
    pub(crate) fn to_stdout() -> Self {
        Self(Arc::new(Mutex::new(io::stdout())))
    }

    pub(crate) fn hello(&self, hello: &AgentHello) -> io::Result<()> {
        self.write(0, Kind::Hello, hello, &[])
    }

    pub(crate) fn reply(&self, call: u32, head: &impl Serialize, body: &[&[u8]]) -> io::Result<()> {
        self.write(call, Kind::Reply, head, body)
    }

    pub(crate) fn fail(&self, call: u32, mut failure: Failure) -> io::Result<()> {
        failure.detail = failure.detail.chars().take(MAX_DETAIL).collect();
        self.write(call, Kind::Failure, &failure, &[])
    }

    /// Replies or fails, whatever came of the request.
    pub(crate) fn answer<T: Serialize>(
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
        frame::write(&mut *out, call, kind, &head, body)
    }
}
