//! The content of an upload, from the edge that receives it to the link.

use std::{fmt, pin::Pin};

use bytes::Bytes;
use futures::{
    FutureExt, Stream, StreamExt,
    stream::{self, BoxStream, Peekable},
};

use crate::error::Error;

/// The content of an upload, in pieces of any size. An error comes from the sender, and ends the upload.
pub struct Content(Peekable<BoxStream<'static, Result<Bytes, Error>>>);

impl Content {
    /// Makes a content of these pieces.
    pub fn new(pieces: impl Stream<Item = Result<Bytes, Error>> + Send + 'static) -> Self {
        Self(pieces.boxed().peekable())
    }

    /// The next piece; `None` after the last.
    pub(crate) async fn next(&mut self) -> Option<Result<Bytes, Error>> {
        self.0.next().await
    }

    /// Whether it is known without waiting that no piece follows.
    pub(crate) fn is_over(&mut self) -> bool {
        let peeked = Pin::new(&mut self.0).peek().now_or_never();
        peeked.is_some_and(|next| next.is_none())
    }

    /// The pieces as a stream.
    pub(crate) fn into_stream(self) -> impl Stream<Item = Result<Bytes, Error>> + Send + 'static {
        self.0
    }

    /// The whole content, for tests of code that makes contents.
    #[cfg(test)]
    pub(crate) async fn into_bytes(self) -> Result<Vec<u8>, Error> {
        let pieces: Vec<_> = futures::TryStreamExt::try_collect(self.0).await?;
        Ok(pieces.concat())
    }
}

impl From<Bytes> for Content {
    fn from(whole: Bytes) -> Self {
        Self::new(stream::iter([Ok(whole)]))
    }
}

impl From<Vec<u8>> for Content {
    fn from(whole: Vec<u8>) -> Self {
        Bytes::from(whole).into()
    }
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Content").finish_non_exhaustive()
    }
}
