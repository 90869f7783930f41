//! Frames in and out: the link's writer and reader, and the calls between them.

use std::{
    collections::HashMap,
    io,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use bytes::{Bytes, BytesMut};
use parking_lot::{Mutex, MutexGuard};
use protocol::{
    frame::{FrameError, Kind, PREFIX_LEN, Prefix},
    message::Failure,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    sync::{mpsc, oneshot},
};

use crate::text::printable;

/// A frame to be written.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) call: u32,
    pub(super) kind: Kind,
    pub(super) head: Vec<u8>,
    pub(super) body: Bytes,
}

/// Head and body of a reply, or the failure that came in its place.
pub(super) type Answer = Result<(Bytes, Bytes), Failure>;

/// The calls that wait for an answer.
#[derive(Debug, Default)]
pub(super) struct Calls {
    waiting: Mutex<HashMap<u32, oneshot::Sender<Answer>>>,
    last: AtomicU32,
}

impl Calls {
    pub(super) fn begin(&self) -> (u32, oneshot::Receiver<Answer>) {
        // 0 is the hello's. After four thousand million calls an id comes again; it is long free.
        let call = self.number().wrapping_add(1).max(1);
        let (sender, receiver) = oneshot::channel();
        self.lock().insert(call, sender);
        (call, receiver)
    }

    pub(super) fn end(&self, call: u32) -> Option<oneshot::Sender<Answer>> {
        self.lock().remove(&call)
    }

    /// A number that nothing else on this link has had lately.
    pub(super) fn number(&self) -> u32 {
        self.last.fetch_add(1, Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u32, oneshot::Sender<Answer>>> {
        self.waiting.lock()
    }
}

/// Writes what is in the queue, until that is closed.
pub(super) async fn write_frames(
    mut writer: impl AsyncWrite + Unpin,
    mut queue: mpsc::Receiver<Outgoing>,
) -> Result<(), String> {
    let mut start = Vec::new();
    while let Some(Outgoing { call, kind, head, body }) = queue.recv().await {
        let prefix = Prefix { call, kind, head_len: head.len(), body_len: body.len() };
        start.clear();
        start.extend_from_slice(&prefix.encode().map_err(|error| error.to_string())?);
        start.extend_from_slice(&head);
        let written = async {
            writer.write_all(&start).await?;
            writer.write_all(&body).await?;
            writer.flush().await
        };
        written.await.map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Gives each answer to the call that waits for it, until the stream ends or breaks the rules.
pub(super) async fn read_frames(
    mut reader: impl AsyncRead + Unpin,
    calls: Arc<Calls>,
) -> Result<(), String> {
    loop {
        let (prefix, head, body) =
            read_frame(&mut reader).await.map_err(|error| error.to_string())?;
        let answer = match prefix.kind {
            Kind::Reply => Ok((head, body)),
            Kind::Failure => Err(read_failure(&head)?),
            other => return Err(format!("a {other:?} frame from the agent")),
        };
        let waiting = calls.end(prefix.call).ok_or("an answer to no call")?;
        // A caller that has gone away no longer wants it.
        let _ = waiting.send(answer);
    }
}

/// The detail is for the log, where it shall neither fill pages nor pass for lines of ours.
fn read_failure(head: &[u8]) -> Result<Failure, String> {
    let Failure { code, detail } =
        serde_json::from_slice(head).map_err(|error| printable(&error.to_string()))?;
    Ok(Failure { code, detail: printable(&detail) })
}

/// Reads one frame; its caps are checked before anything is allocated.
pub(super) async fn read_frame(
    reader: &mut (impl AsyncRead + Unpin),
) -> io::Result<(Prefix, Bytes, Bytes)> {
    let mut prefix = [0; PREFIX_LEN];
    reader.read_exact(&mut prefix).await?;
    let prefix = Prefix::decode(prefix)
        .map_err(|error: FrameError| io::Error::new(io::ErrorKind::InvalidData, error))?;
    let mut rest = BytesMut::zeroed(prefix.head_len + prefix.body_len);
    reader.read_exact(&mut rest).await?;
    let head = rest.split_to(prefix.head_len).freeze();
    Ok((prefix, head, rest.freeze()))
}
