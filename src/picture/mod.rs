//! Prepares an image file of a sandbox for a model: the file itself if it is complete and small enough, otherwise a
//! smaller copy.
//!
//! ```text
//! file -- container: format, size, end -- decoded, all of it -- fits? -- the file itself
//!              |                              |                  |
//!         too large, broken               broken         scaled, PNG -- JPEG -- smaller JPEGs
//! ```
//!
//! The APIs of models refuse an image that does not have its declared type, or that cannot be decoded, and with it the
//! conversation that contains it. So the type is read from the bytes, and nothing is shown that was not decoded here.
//!
//! The bytes come from untrusted code. Pixels, memory and frames are limited before a decoder is called. If the decoder
//! fails nevertheless, the result is [`Unshowable::Broken`].

mod container;

use std::{io::Cursor, sync::Arc};

use bytes::Bytes;
use image::{
    AnimationDecoder, DynamicImage, GenericImageView, ImageDecoder, ImageError, ImageFormat,
    ImageReader, ImageResult, Limits, Rgba,
    codecs::{
        gif::GifDecoder,
        jpeg::JpegEncoder,
        png::{CompressionType, FilterType as RowFilter, PngEncoder},
        webp::WebPDecoder,
    },
    imageops::FilterType,
    metadata::Orientation,
};
use tokio::{sync::Semaphore, task::spawn_blocking};
use zune_jpeg::{
    JpegDecoder,
    zune_core::{bytestream::ZCursor, options::DecoderOptions},
};

use self::container::{Header, Whole};

/// Maximum number of pixels of a picture: 20 by 13 inches at 300 dots per inch.
const MAX_PIXELS: u64 = 24_000_000;

/// Longest side in pixels. matplotlib draws nothing larger either.
const MAX_SIDE: u32 = 65_535;

/// Maximum number of bytes of a decoded picture, or of the memory that a decoder says it needs besides.
const MAX_DECODED: u64 = 100_000_000;

/// Maximum number of pixels of all frames of an animation that is shown as it is.
const MAX_ANIMATED_PIXELS: u64 = 4 * MAX_PIXELS;

/// Longest lossless bitstream of a WebP. The decoder's code tables have no other limit: they may be several hundred
/// times as long as the bytes that describe them.
const MAX_WEBP_LOSSLESS: usize = 512 << 10;

/// Maximum number of scans of a progressive JPEG. Each scan takes as long as a whole picture. libjpeg writes ten.
const MAX_SCANS: u32 = 30;

/// JPEG quality, of 100. With less, text gets halos.
const QUALITY: u8 = 85;

/// How often a JPEG that is too large is scaled down, to three quarters of its sides each time.
const STEPS: u32 = 5;

/// The limits of a picture that is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Budget {
    /// Longest side in pixels.
    pub side: u32,
    /// Width times height, on which a model's cost depends.
    pub pixels: u64,
    /// Encoded bytes.
    pub bytes: usize,
}

impl Budget {
    /// Longest side of a copy of a picture of this size: at most its own, and at least 1.
    fn longest_side(self, (width, height): (u32, u32)) -> u32 {
        let longest = width.max(height).max(1);
        let pixels = u128::from(width) * u128::from(height);
        let by_pixels = u128::from(self.pixels) * u128::from(longest).pow(2) / pixels.max(1);
        let by_pixels = u32::try_from(by_pixels.isqrt()).unwrap_or(u32::MAX);
        let mut side = longest.min(self.side).min(by_pixels);
        // The other side is rounded to the nearest pixel, and is at least 1.
        let is_over = |side| {
            let [width, height] = [width, height].map(|len| u64::from(scaled(len, longest, side)));
            width * height > self.pixels
        };
        while side > 1 && is_over(side) {
            side -= 1;
        }
        side.max(1)
    }
}

/// A length in a picture whose longest side is scaled from `longest` to `side`.
fn scaled(len: u32, longest: u32, side: u32) -> u32 {
    let len = (u64::from(len) * u64::from(side) + u64::from(longest / 2)) / u64::from(longest);
    u32::try_from(len).expect("at most `side`, as `len` is at most `longest`").max(1)
}

/// A picture as it is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shown {
    /// A complete file.
    pub bytes: Bytes,
    /// The type of the bytes: `image/png`, `image/jpeg`, `image/gif` or `image/webp`.
    pub mime: &'static str,
    /// Whether this is a copy that was made to fit, not the file itself up to the picture's end.
    pub scaled: bool,
    /// In pixels.
    pub width: u32,
    /// In pixels.
    pub height: u32,
}

/// Why a picture is not shown. The texts continue a sentence that begins with "the picture".
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unshowable {
    /// The picture has none of the four formats, is incomplete, or cannot be decoded.
    #[error("is not a whole PNG, JPEG, GIF or WebP")]
    Broken,
    /// The picture is too large to be decoded here, or even its smallest copy does not fit.
    #[error("is too large to be shown")]
    TooLarge,
}

impl From<ImageError> for Unshowable {
    fn from(error: ImageError) -> Self {
        match error {
            ImageError::Limits(_) => Self::TooLarge,
            _ => Self::Broken,
        }
    }
}

/// Decides how a file is shown.
///
/// Blocking: it takes milliseconds for a chart, and for the largest pictures one or two seconds and up to 400 MB of
/// memory. [`ImageFitter`] handles both.
///
/// # Errors
/// If the file has none of the formats, is damaged, or does not fit.
pub(crate) fn fit(file: Bytes, budget: Budget) -> Result<Shown, Unshowable> {
    let header = Header::of(&file).ok_or(Unshowable::Broken)?;
    let Header { format, width, height } = header;
    let pixels = u64::from(width) * u64::from(height);
    if pixels > MAX_PIXELS || width.max(height) > MAX_SIDE {
        return Err(Unshowable::TooLarge);
    }
    let whole = header.whole(&file).ok_or(Unshowable::Broken)?;
    if whole.lossless > MAX_WEBP_LOSSLESS || whole.scans > MAX_SCANS {
        return Err(Unshowable::TooLarge);
    }
    let animated = whole.frames > 1;
    let as_it_is = width.max(height) <= budget.side
        && pixels <= budget.pixels
        && whole.picture.len() <= budget.bytes
        && match format {
            // Its other frames are not decoded here, so they are not passed on either.
            ImageFormat::Png => !animated,
            ImageFormat::Jpeg => is_flawless_jpeg(whole),
            _ => pixels.saturating_mul(whole.frames.into()) <= MAX_ANIMATED_PIXELS,
        };
    if as_it_is && animated {
        decode_frames(header, whole)?;
    } else {
        let (picture, orientation) = decode(header, whole)?;
        if !as_it_is {
            return copy(picture, orientation, budget);
        }
    }
    // Decoders differ in how they treat bytes after the end, so only the part that was decoded is passed on.
    let bytes = file.slice(..whole.picture.len());
    Ok(Shown { bytes, mime: format.to_mime_type(), scaled: false, width, height })
}

/// Fits pictures one at a time, so that only one decoded picture is in memory. Clones share the limit.
#[derive(Debug, Clone)]
pub(crate) struct ImageFitter {
    place: Arc<Semaphore>,
}

impl Default for ImageFitter {
    fn default() -> Self {
        Self { place: Arc::new(Semaphore::new(1)) }
    }
}

impl ImageFitter {
    /// Like [`fit()`], after a wait for its turn.
    ///
    /// # Errors
    /// The errors of [`fit()`].
    pub(crate) async fn fit(&self, file: Bytes, budget: Budget) -> Result<Shown, Unshowable> {
        self.work(move || fit(file, budget)).await
    }

    async fn work(
        &self,
        work: impl FnOnce() -> Result<Shown, Unshowable> + Send + 'static,
    ) -> Result<Shown, Unshowable> {
        let place =
            Arc::clone(&self.place).acquire_owned().await.expect("nothing closes the semaphore");
        let worker = spawn_blocking(move || {
            // The permit belongs to the work, which continues even if its caller no longer waits.
            let _place = place;
            work()
        });
        // A panic comes from the decoder, and the panic hook has reported it.
        worker.await.unwrap_or(Err(Unshowable::Broken))
    }
}

fn limits() -> Limits {
    let mut limits = Limits::no_limits();
    limits.max_image_width = Some(MAX_SIDE);
    limits.max_image_height = Some(MAX_SIDE);
    limits.max_alloc = Some(MAX_DECODED);
    limits
}

/// Decodes a picture, or the first frame of an animation. Does not turn it upright: that is cheaper after scaling.
fn decode(header: Header, whole: Whole) -> Result<(DynamicImage, Orientation), Unshowable> {
    let mut limits = limits();
    let mut reader = ImageReader::with_format(Cursor::new(whole.picture), header.format);
    reader.limits(limits.clone());
    let mut decoder = reader.into_decoder()?;
    if decoder.dimensions() != (header.width, header.height) {
        return Err(Unshowable::Broken);
    }
    limits.reserve(decoder.total_bytes())?;
    decoder.set_limits(limits)?;
    let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    Ok((DynamicImage::from_decoder(decoder)?, orientation))
}

/// Whether a JPEG decodes in strict mode. [`decode()`] tolerates flaws, as browsers do, so a file with flaws is shown
/// as a copy without them.
fn is_flawless_jpeg(whole: Whole) -> bool {
    let side = usize::try_from(MAX_SIDE).unwrap_or(usize::MAX);
    let options =
        DecoderOptions::new_safe().set_strict_mode(true).set_max_width(side).set_max_height(side);
    JpegDecoder::new_with_options(ZCursor::new(whole.picture), options).decode().is_ok()
}

/// Decodes all frames of an animation, one at a time, only to check that this is possible.
fn decode_frames(header: Header, whole: Whole) -> Result<(), Unshowable> {
    let file = Cursor::new(whole.picture);
    let mut frames = if header.format == ImageFormat::Gif {
        let mut decoder = GifDecoder::new(file)?;
        decoder.set_limits(limits())?;
        decoder.into_frames()
    } else {
        let decoder = WebPDecoder::new(file)?;
        // A file may have frames and declare that it has none; then the decoder panics.
        if !decoder.has_animation() {
            return Err(Unshowable::Broken);
        }
        decoder.into_frames()
    };
    for _ in 0..whole.frames {
        frames.next().ok_or(Unshowable::Broken)??;
    }
    Ok(())
}

/// Makes a copy that fits.
fn copy(
    picture: DynamicImage,
    orientation: Orientation,
    budget: Budget,
) -> Result<Shown, Unshowable> {
    if budget.side == 0 {
        return Err(Unshowable::TooLarge);
    }
    let side = budget.longest_side(picture.dimensions());
    let mut picture = without_unused_alpha(scale(in_eight_bits(picture), side));
    picture.apply_orientation(orientation);
    let shown = |picture: &DynamicImage, bytes: Vec<u8>, mime| {
        let (width, height) = picture.dimensions();
        Shown { bytes: bytes.into(), mime, scaled: true, width, height }
    };
    let bytes = png(&picture)?;
    if bytes.len() <= budget.bytes {
        return Ok(shown(&picture, bytes, "image/png"));
    }
    let mut picture = on_white(picture);
    for _ in 0..=STEPS {
        let bytes = jpeg(&picture)?;
        if bytes.len() <= budget.bytes {
            return Ok(shown(&picture, bytes, "image/jpeg"));
        }
        // A side of one pixel stays one pixel.
        let longest = picture.width().max(picture.height()).max(2);
        picture = scale(picture, longest * 3 / 4);
    }
    Err(Unshowable::TooLarge)
}

/// Converts a picture to 8 bits: gray, colour, or colour with transparency.
fn in_eight_bits(picture: DynamicImage) -> DynamicImage {
    match picture {
        DynamicImage::ImageLuma8(_) | DynamicImage::ImageRgb8(_) => picture,
        DynamicImage::ImageLuma16(_) => picture.into_luma8().into(),
        DynamicImage::ImageRgb16(_) => picture.into_rgb8().into(),
        _ => picture.into_rgba8().into(),
    }
}

/// Scales down to a longest side.
fn scale(mut picture: DynamicImage, side: u32) -> DynamicImage {
    let (width, height) = picture.dimensions();
    let longest = width.max(height);
    if longest <= side {
        return picture;
    }
    let scaled = |len| scaled(len, longest, side);
    // Transparent pixels have a colour too, which must not bleed into their neighbours: while scaling, each colour is
    // multiplied by its alpha.
    if let Some(pixels) = picture.as_mut_rgba8() {
        for Rgba([colours @ .., alpha]) in pixels.pixels_mut() {
            *colours = colours.map(|colour| part_of(colour, *alpha));
        }
    }
    let mut picture = picture.resize_exact(scaled(width), scaled(height), FilterType::Lanczos3);
    if let Some(pixels) = picture.as_mut_rgba8() {
        for Rgba([colours @ .., alpha]) in pixels.pixels_mut() {
            *colours = colours.map(|colour| {
                let whole = u32::from(colour) * 255 / u32::from(*alpha).max(1);
                u8::try_from(whole).unwrap_or(255)
            });
        }
    }
    picture
}

/// `value` times `alpha`, where 255 is 1.
fn part_of(value: u8, alpha: u8) -> u8 {
    let part = (u32::from(value) * u32::from(alpha) + 127) / 255;
    u8::try_from(part).expect("at most `value`, as `alpha` is at most 255")
}

/// Removes the alpha channel if nothing is transparent, as in most charts.
fn without_unused_alpha(picture: DynamicImage) -> DynamicImage {
    match &picture {
        DynamicImage::ImageRgba8(pixels) if pixels.pixels().all(|pixel| pixel.0[3] == 255) => {
            picture.into_rgb8().into()
        }
        _ => picture,
    }
}

/// Draws a picture on white, as it looks on a page; JPEG has no transparency.
fn on_white(mut picture: DynamicImage) -> DynamicImage {
    let Some(pixels) = picture.as_mut_rgba8() else { return picture };
    for Rgba([colours @ .., alpha]) in pixels.pixels_mut() {
        *colours = colours.map(|colour| 255 - part_of(255 - colour, *alpha));
    }
    picture.into_rgb8().into()
}

fn png(picture: &DynamicImage) -> ImageResult<Vec<u8>> {
    let mut bytes = Vec::new();
    picture.write_with_encoder(PngEncoder::new_with_quality(
        &mut bytes,
        CompressionType::Level(4),
        RowFilter::Adaptive,
    ))?;
    Ok(bytes)
}

fn jpeg(picture: &DynamicImage) -> ImageResult<Vec<u8>> {
    let mut bytes = Vec::new();
    picture.write_with_encoder(JpegEncoder::new_with_quality(&mut bytes, QUALITY))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests;
