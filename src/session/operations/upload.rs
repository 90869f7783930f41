//! An upload: a file that arrives in pieces of any size and is sent to the agent in pieces of a suitable size.
//!
//! Each piece takes a turn, not the whole upload: a slow sender does not delay the session's other file operations.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use link::LinkError;
use model::{DataPath, Existing};
use protocol::{
    frame::MAX_BODY,
    message::{FailureCode, PutDone},
};
use tokio::sync::OwnedSemaphorePermit;

use super::{Done, Operation, OperationContext, OperationError};
use crate::{content::Content, error::Error, session::explain::Effect};

/// Pieces smaller than this, in bytes, wait for the next. An upload keeps this much in memory, and it is large enough
/// that the round trip to the agent costs less than the bytes.
const MIN_PIECE_BYTES: usize = 128 << 10;

/// Bytes of an upload that may be on their way to the agent before the next piece waits for the first answer. With one
/// piece at a time, the sender, the link and the agent would wait for each other.
const AHEAD_BYTES: usize = 512 << 10;

/// A file that was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Uploaded {
    /// The file's size in bytes.
    pub size_bytes: u64,
    /// Whether the upload replaced a file of that name.
    pub replaced: bool,
}

/// Writes a file. The file appears complete or not at all.
#[derive(Debug)]
pub struct Upload {
    /// The file's path.
    pub path: DataPath,
    /// The file's content.
    pub content: Content,
    /// How an existing file of that name is handled.
    pub existing: Existing,
}

impl Operation for Upload {
    type Output = Uploaded;

    async fn perform(self, context: OperationContext) -> Result<Done<Uploaded>, OperationError> {
        let Self { path, content, existing } = self;
        let OperationContext { link, turns, .. } = context;
        let mut pieces = Pieces::new(content);
        let mut upload = link.upload(&path, existing);
        let mut ahead = Ahead::default();
        let mut open = None;
        loop {
            let next = tokio::select! {
                biased;
                next = pieces.next() => next,
                done = ahead.oldest(), if !ahead.is_empty() => {
                    done.map_err(|error| explain(error, &path))?;
                    continue;
                }
                // A sender that stops sending must not delay the end of the session.
                () = link.closed() => return Err(explain(LinkError::Closed, &path)),
            };
            let Piece { bytes, last } = match next {
                Ok(piece) => piece,
                Err(error) => {
                    drop(ahead);
                    forget(upload).await;
                    return Err(error.into());
                }
            };
            // A file of one piece is never kept open.
            if open.is_none() && !last {
                open = turns.upload().await;
            }
            let written = async {
                while ahead.bytes >= AHEAD_BYTES {
                    ahead.oldest().await?;
                }
                let turn = match turns.another_call() {
                    None => {
                        ahead.all().await?;
                        turns.call().await
                    }
                    turn => turn,
                };
                let len = bytes.len();
                ahead.push(upload.send(bytes, last).await?, len, turn);
                if last { ahead.all().await } else { Ok(None) }
            };
            if let Some(done) = written.await.map_err(|error| explain(error, &path))? {
                let bytes = upload.sent();
                let output = Uploaded { size_bytes: bytes, replaced: done.replaced };
                return Ok(Done { output, effect: Effect::FileAdded { bytes } });
            }
        }
    }
}

/// Pieces that the agent has not answered yet, each with its turn.
#[derive(Default)]
struct Ahead {
    sent: VecDeque<(link::Sent, usize, Option<OwnedSemaphorePermit>)>,
    bytes: usize,
}

impl Ahead {
    fn is_empty(&self) -> bool {
        self.sent.is_empty()
    }

    fn push(&mut self, sent: link::Sent, bytes: usize, turn: Option<OwnedSemaphorePermit>) {
        self.sent.push_back((sent, bytes, turn));
        self.bytes += bytes;
    }

    /// Waits for the answer to the oldest piece, if there is one. Dropping the future loses nothing.
    async fn oldest(&mut self) -> Result<Option<PutDone>, LinkError> {
        let Some((sent, bytes, _)) = self.sent.front_mut() else { return Ok(None) };
        let (done, bytes) = (sent.written().await, *bytes);
        self.sent.pop_front();
        self.bytes -= bytes;
        done.map(Some)
    }

    /// Waits for all answers, and returns the last one.
    async fn all(&mut self) -> Result<Option<PutDone>, LinkError> {
        let mut last = None;
        while let Some(done) = self.oldest().await? {
            last = Some(done);
        }
        Ok(last)
    }
}

fn explain(error: LinkError, path: &DataPath) -> OperationError {
    let why = match error.code() {
        Some(FailureCode::Exists) => return Error::FileExists(path.as_str().into()).into(),
        Some(FailureCode::BadPath) => format!(
            "{path} cannot be written: part of it is a file or a link, or the name is that of a \
             folder. Choose another filename."
        ),
        Some(FailureCode::NotFound) => {
            format!("{path} was not written: a program removed its folder meanwhile. Try again.")
        }
        _ => return OperationError::Link(error, path.as_str().into()),
    };
    Error::InvalidFilename(why).into()
}

/// Abandons an upload. The caller gets the sender's error even if this fails: an agent that does not answer ends the
/// link.
async fn forget(upload: link::Upload) {
    if upload.sent() > 0 {
        let _ = upload.abandon().await;
    }
}

/// A piece that is sent to the agent.
#[derive(Debug, PartialEq, Eq)]
struct Piece {
    bytes: Bytes,
    last: bool,
}

/// Joins pieces that are too small, and splits pieces that are too large.
struct Pieces {
    content: Content,
    /// The rest of the piece that arrived last.
    rest: Bytes,
    /// Bytes that are too few for a piece.
    small: BytesMut,
}

impl Pieces {
    fn new(content: Content) -> Self {
        Self { content, rest: Bytes::new(), small: BytesMut::new() }
    }

    /// The next piece. Must not be called after the last one. Dropping the future loses nothing.
    async fn next(&mut self) -> Result<Piece, Error> {
        loop {
            if self.small.is_empty() && self.rest.len() >= MIN_PIECE_BYTES {
                let bytes = self.rest.split_to(self.rest.len().min(MAX_BODY));
                return Ok(self.piece(bytes));
            }
            let len = self.rest.len().min(MIN_PIECE_BYTES - self.small.len());
            self.small.extend_from_slice(&self.rest.split_to(len));
            if self.small.len() == MIN_PIECE_BYTES {
                let bytes = self.small.split().freeze();
                return Ok(self.piece(bytes));
            }
            match self.content.next().await {
                Some(bytes) => self.rest = bytes?,
                None => return Ok(Piece { bytes: self.small.split().freeze(), last: true }),
            }
        }
    }

    /// A piece, marked as the last one if the content is known to be over. Does not wait to find out.
    fn piece(&mut self, bytes: Bytes) -> Piece {
        let last = self.rest.is_empty() && self.content.is_over();
        Piece { bytes, last }
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt, StreamExt, stream};
    use proptest::prelude::*;

    use super::*;

    fn pieces(content: impl Into<Content>) -> Vec<Piece> {
        let mut pieces = Pieces::new(content.into());
        let mut all = vec![];
        loop {
            let piece = pieces.next().now_or_never().expect("all is there").expect("no error");
            all.push(piece);
            if all[all.len() - 1].last {
                return all;
            }
        }
    }

    fn sizes(content: impl Into<Content>) -> Vec<usize> {
        pieces(content).iter().map(|piece| piece.bytes.len()).collect()
    }

    #[test]
    fn what_is_whole_goes_in_the_largest_pieces_there_are() {
        assert_eq!(sizes(vec![]), [0]);
        assert_eq!(sizes(vec![1; 10]), [10]);
        assert_eq!(sizes(vec![1; MAX_BODY]), [MAX_BODY]);
        assert_eq!(sizes(vec![1; 2 * MAX_BODY + 1]), [MAX_BODY, MAX_BODY, 1]);
    }

    #[test]
    fn what_is_there_is_sent_although_more_may_come() {
        let start = stream::iter([Ok(Bytes::from(vec![1; MIN_PIECE_BYTES]))]);
        let mut pieces = Pieces::new(Content::new(start.chain(stream::pending())));
        let first = pieces.next().now_or_never().expect("does not wait").expect("no error");
        assert_eq!((first.bytes.len(), first.last), (MIN_PIECE_BYTES, false));
        assert!(pieces.next().now_or_never().is_none());
    }

    #[test]
    fn an_error_comes_after_what_was_sent_before_it() {
        let whole = Ok(Bytes::from(vec![1; MAX_BODY]));
        let content = Content::new(stream::iter([whole, Err(Error::SessionBusy { run: None })]));
        let mut pieces = Pieces::new(content);
        let first = pieces.next().now_or_never().expect("does not wait").expect("no error");
        assert_eq!((first.bytes.len(), first.last), (MAX_BODY, false));
        assert!(pieces.next().now_or_never().expect("does not wait").is_err());
    }

    proptest! {
        #[test]
        fn any_pieces_become_sensible_ones_of_the_same_bytes(
            lens in prop::collection::vec(prop_oneof![0usize..50, 0..3 * MIN_PIECE_BYTES], 0..12),
        ) {
            let came: Vec<_> = lens.iter().zip(0u8..).map(|(len, n)| vec![n; *len]).collect();
            let content = Content::new(stream::iter(came.clone().into_iter().map(|it| Ok(it.into()))));
            let sent = pieces(content);
            for piece in &sent[..sent.len() - 1] {
                prop_assert!((MIN_PIECE_BYTES..=MAX_BODY).contains(&piece.bytes.len()));
            }
            let sent: Vec<_> = sent.iter().flat_map(|piece| piece.bytes.iter().copied()).collect();
            prop_assert!(sent == came.concat());
        }
    }
}
