//! Images for a model to look at, within what a message and a context can take.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use model::{Artifact, SessionId};
use rmcp::model::ContentBlock;

use super::{budget::MESSAGE, read};
use crate::sessions::Open;
use crate::{
    mcp::services::Services,
    picture::{Budget, ImageFitter, Shown, Unshowable},
};

/// Largest image file that is read to be made smaller, in bytes.
const MAX_FILE_BYTES: u64 = 5_000_000;

/// Bytes that a message needs besides its text, which is there twice, and its images: links, envelope.
pub(in crate::mcp) const ENVELOPE: usize = 80_000;

/// Maximum number of bytes of names and URLs in links.
pub(in crate::mcp) const MAX_LINK_BYTES: usize = 64_000;

/// Minimum number of bytes in which an image can still be read.
const MIN_IMAGE_BYTES: usize = 8_000;

/// Longest side in pixels: model interfaces scale what is longer down to this, and some refuse what is
/// longer than 2000.
pub(in crate::mcp) const MAX_SIDE: u32 = 1568;

/// Maximum number of pixels of a chart in a result whose longest side may have `side` pixels: those of a rectangle that
/// is seven eighths as wide as it is long. Models pay by the pixel: with the default, a square chart and all texts
/// about it cost less than 1,500 tokens.
fn inline_pixels(side: u32) -> u64 {
    u64::from(side) * u64::from(side) / 8 * 7
}

/// A file as a model can look at it.
pub(in crate::mcp) enum Fitted {
    /// An image.
    Image(Shown),
    /// An image that cannot be made small enough.
    TooLarge,
    /// Not an image, whatever its name says.
    NotAnImage,
}

/// An image as it is if it has at most `bytes` bytes, otherwise made smaller.
pub(in crate::mcp) async fn fit(images: &ImageFitter, file: Bytes, bytes: u64) -> Fitted {
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    match images.fit(file, Budget { side: MAX_SIDE, pixels: u64::MAX, bytes }).await {
        Ok(shown) => Fitted::Image(shown),
        Err(Unshowable::TooLarge) => Fitted::TooLarge,
        Err(_) => Fitted::NotAnImage,
    }
}

/// An image is too large to be shown.
pub(in crate::mcp) struct TooLarge;

/// The images in one result, and the rest of the message for them.
pub(in crate::mcp) struct Inline<'a> {
    services: &'a Services,
    left: usize,
    bytes: usize,
}

impl<'a> Inline<'a> {
    /// Makes room for at most `limit` images, beside a result that takes `used` bytes.
    pub(in crate::mcp) fn new(services: &'a Services, used: usize, limit: usize) -> Self {
        let free = MESSAGE.saturating_sub(used + ENVELOPE);
        Self { services, left: limit, bytes: free / 4 * 3 }
    }

    /// The next image, if there is room for it and the file is one.
    ///
    /// # Errors
    /// If the image is too large.
    pub(in crate::mcp) async fn next(
        &mut self,
        id: &SessionId,
        artifact: &Artifact,
    ) -> Result<Option<ContentBlock>, TooLarge> {
        let sessions = &self.services.sessions;
        if self.room().is_none() {
            return Ok(None);
        }
        let open = Open { path: artifact.path.clone().into() };
        let Ok(reader) = sessions.perform(id, open).await else { return Ok(None) };
        if reader.stamp().size > MAX_FILE_BYTES {
            return Err(TooLarge);
        }
        let Ok(file) = read::whole(&reader, id).await else { return Ok(None) };
        self.fitted(file).await
    }

    /// Fits an image that was read before.
    pub(in crate::mcp) async fn fitted(
        &mut self,
        file: Bytes,
    ) -> Result<Option<ContentBlock>, TooLarge> {
        let config = self.services.sessions.config();
        let Some(bytes) = self.room() else { return Ok(None) };
        let side = config.inline_image_side;
        let budget = Budget { side, pixels: inline_pixels(side), bytes };
        let shown = match self.services.images.fit(file, budget).await {
            Ok(shown) => shown,
            Err(Unshowable::TooLarge) => return Err(TooLarge),
            Err(Unshowable::Broken) => return Ok(None),
        };
        self.left -= 1;
        self.bytes -= shown.bytes.len();
        Ok(Some(ContentBlock::image(STANDARD.encode(&shown.bytes), shown.mime)))
    }

    /// Maximum number of bytes of the next image; `None` if no further image may be shown.
    fn room(&self) -> Option<usize> {
        let bytes = self.services.sessions.config().inline_image_bytes.min(self.bytes);
        (self.left > 0 && bytes >= MIN_IMAGE_BYTES).then_some(bytes)
    }
}
