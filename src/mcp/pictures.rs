//! Pictures for a model to look at, within what a message and a context can take.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use rmcp::model::ContentBlock;

use super::{Server, read};
use crate::{
    picture::{Budget, Shown, Studio, Unshowable},
    session::{Artifact, SessionId},
};

/// Largest picture file that is read to be made smaller, in bytes.
const MAX_FILE: u64 = 5_000_000;

/// What a message needs besides its text, which is there twice, and its pictures: links, envelope.
pub(super) const ENVELOPE: usize = 80_000;

/// Most bytes of names and addresses in links.
pub(super) const LINKS: usize = 64_000;

/// Smallest room for a picture, in bytes, in which one can still be read.
const WORTH_IT: usize = 8_000;

/// Makes pictures fit. Clones share the one place where that is done.
#[derive(Debug, Clone, Default)]
pub(super) struct Pictures(Studio);

/// What a file is to somebody who wants to look at it.
pub(super) enum Look {
    /// A picture.
    Shown(Shown),
    /// A picture that cannot be made small enough.
    TooLarge,
    /// None, whatever its name says.
    NoPicture,
}

impl Pictures {
    /// As it is if it has no more bytes than that, otherwise made smaller.
    pub(super) async fn whole(&self, file: Bytes, bytes: u64) -> Look {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        // Model interfaces refuse a picture with a longer side.
        let budget = Budget { side: 8000, bytes };
        match self.0.fit(file, budget).await {
            Ok(shown) => Look::Shown(shown),
            Err(Unshowable::TooLarge) => Look::TooLarge,
            Err(_) => Look::NoPicture,
        }
    }
}

/// The room that pictures in a result share.
pub(super) struct Inline {
    left: usize,
    bytes: usize,
}

impl Inline {
    /// For at most so many pictures, beside a result that takes so many bytes.
    pub(super) fn new(server: &Server, used: usize, most: usize) -> Self {
        let free = server.room().message.saturating_sub(used + ENVELOPE);
        Self { left: most, bytes: free / 4 * 3 }
    }

    /// The next picture, if there is room for it and it is one.
    pub(super) async fn next(
        &mut self,
        server: &Server,
        id: &SessionId,
        artifact: &Artifact,
    ) -> Option<ContentBlock> {
        let config = server.sessions.config();
        let bytes = config.inline_image_bytes.min(self.bytes);
        if self.left == 0 || bytes < WORTH_IT || artifact.size_bytes > MAX_FILE {
            return None;
        }
        let reader = server.sessions.open(id, artifact.path.clone()).await.ok()?;
        if reader.stamp().size > MAX_FILE {
            return None;
        }
        let file = read::whole(&reader, id).await.ok()?;
        let budget = Budget { side: config.inline_image_side, bytes };
        let shown = server.pictures.0.fit(file, budget).await.ok()?;
        self.left -= 1;
        self.bytes -= shown.bytes.len();
        Some(ContentBlock::image(STANDARD.encode(&shown.bytes), shown.mime))
    }
}
