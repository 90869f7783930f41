//! Bodies that are watched, that hold a value, or that a task writes, while they are sent.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use axum::body::{Body, Bytes, HttpBody};
use futures::{Stream, StreamExt, TryStreamExt};
use hyper::body::{Frame, SizeHint};
use tokio::io::DuplexStream;
use tokio_util::{io::ReaderStream, task::AbortOnDropHandle};

/// Bytes between the task that writes a body and the one that sends it.
const BUFFER_BYTES: usize = 64 << 10;

/// Wraps a body so that `observe` sees each piece that is sent, and `None` at the end. `observe` is dropped with the
/// body.
pub(super) fn observed(
    body: Body,
    observe: impl FnMut(Option<&Bytes>) + Send + Unpin + 'static,
) -> Body {
    Body::new(Observed { body, observe })
}

/// Wraps a body so that it holds a value until the body has been sent.
pub(super) fn holding(body: Body, held: impl Send + Unpin + 'static) -> Body {
    observed(body, move |_| _ = &held)
}

/// The bytes that a task writes while they are sent. If the task fails, the stream ends with its error.
pub(super) fn written<F: Future<Output = io::Result<()>> + Send + 'static>(
    write: impl FnOnce(DuplexStream) -> F,
) -> impl Stream<Item = io::Result<Bytes>> + Send {
    let (writer, reader) = tokio::io::duplex(BUFFER_BYTES);
    let writing = AbortOnDropHandle::new(tokio::spawn(write(writer)));
    let verdict = futures::stream::once(async move { writing.await.map_err(io::Error::other)? });
    let end = verdict.try_filter_map(|()| async { Ok(None) });
    ReaderStream::with_capacity(reader, BUFFER_BYTES).chain(end)
}

struct Observed<F> {
    body: Body,
    observe: F,
}

impl<F: FnMut(Option<&Bytes>) + Unpin> HttpBody for Observed<F> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        match &polled {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(piece) = frame.data_ref() {
                    (self.observe)(Some(piece));
                }
            }
            Poll::Ready(None) => (self.observe)(None),
            Poll::Ready(Some(Err(_))) | Poll::Pending => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
