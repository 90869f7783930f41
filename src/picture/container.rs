//! The outer structure of an image file: its format and size, from its first bytes, and whether it is complete. Pure,
//! allocates nothing.
//!
//! Decoders are tolerant: a JPEG without its second half is half an image to them. Some also allocate memory for a size
//! that they have not compared with the requested one. So all sizes and the end of the file are checked here, before a
//! decoder is called.

use image::ImageFormat;

/// The format and the size in the first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    /// One of the four formats that are shown.
    pub(super) format: ImageFormat,
    /// In pixels, not 0.
    pub(super) width: u32,
    /// In pixels, not 0.
    pub(super) height: u32,
}

/// A complete file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Whole<'a> {
    /// The file without the bytes after the picture's end.
    pub(super) picture: &'a [u8],
    /// More than one in an animation, 0 in a GIF without a picture.
    pub(super) frames: u32,
    /// Scans of a JPEG, each of which covers the whole picture.
    pub(super) scans: u32,
    /// Length of the longest lossless bitstream of a WebP.
    pub(super) lossless: usize,
}

impl Header {
    /// `None` if the file has none of the four formats, or ends before its size.
    pub(super) fn of(file: &[u8]) -> Option<Self> {
        let format = image::guess_format(file).ok()?;
        let (width, height) = match format {
            ImageFormat::Png => {
                let mut rest = file.get(8..)?;
                let (b"IHDR", data) = png_chunk(&mut rest)? else { return None };
                (u32::from_be_bytes(at(data, 0)?), u32::from_be_bytes(at(data, 4)?))
            }
            ImageFormat::Jpeg => {
                let mut rest = file.get(2..)?;
                let data = loop {
                    let (marker, data) = jpeg_segment(&mut rest)?;
                    if is_start_of_frame(marker) {
                        break data;
                    }
                };
                (u16::from_be_bytes(at(data, 3)?).into(), u16::from_be_bytes(at(data, 1)?).into())
            }
            ImageFormat::Gif => {
                (u16::from_le_bytes(at(file, 6)?).into(), u16::from_le_bytes(at(file, 8)?).into())
            }
            ImageFormat::WebP => {
                let mut rest = file.get(12..)?;
                let kind = rest.split_off(..8)?.first_chunk()?;
                // Not the whole chunk: the size is at its start.
                webp_size(*kind, rest)?
            }
            _ => return None,
        };
        (width > 0 && height > 0).then_some(Self { format, width, height })
    }

    /// Reads the file to the picture's end. `None` if the end is missing, or if a part is larger than the picture.
    pub(super) fn whole(self, file: &[u8]) -> Option<Whole<'_>> {
        let mut rest = file;
        let (mut frames, mut scans, mut lossless) = (1, 0, 0);
        match self.format {
            ImageFormat::Png => {
                rest.split_off(..8)?;
                loop {
                    match png_chunk(&mut rest)? {
                        (b"acTL", data) => frames = u32::from_be_bytes(at(data, 0)?),
                        (b"IEND", _) => break,
                        _ => {}
                    }
                }
            }
            ImageFormat::Jpeg => {
                rest.split_off(..2)?;
                let mut starts = 0;
                loop {
                    match jpeg_segment(&mut rest)?.0 {
                        END_OF_IMAGE => break,
                        START_OF_SCAN => scans += 1,
                        marker => starts += u32::from(is_start_of_frame(marker)),
                    }
                }
                // The size of a second frame was not checked.
                if starts != 1 {
                    return None;
                }
            }
            ImageFormat::Gif => frames = gif(&mut rest)?,
            ImageFormat::WebP => {
                let head = rest.split_off(..8)?;
                let len = usize::try_from(u32::from_le_bytes(at(head, 4)?)).ok()?;
                let body = rest.split_off(..len)?;
                frames = self.webp(body.get(4..)?, false, &mut lossless)?.max(1);
            }
            _ => return None,
        }
        Some(Whole { picture: &file[..file.len() - rest.len()], frames, scans, lossless })
    }

    /// Reads the chunks of a WebP, or of one of its frames. Returns the number of frames.
    fn webp(self, mut chunks: &[u8], in_frame: bool, lossless: &mut usize) -> Option<u32> {
        let mut frames = 0;
        while !chunks.is_empty() {
            let (kind, data) = riff_chunk(&mut chunks)?;
            if let Some((width, height)) = webp_size(*kind, data)
                && (width > self.width || height > self.height)
            {
                return None;
            }
            match kind {
                b"ALPH" | b"VP8L" => *lossless = data.len().max(*lossless),
                b"ANMF" if !in_frame => {
                    self.webp(data.get(16..)?, true, lossless)?;
                    frames += 1;
                }
                _ => {}
            }
        }
        Some(frames)
    }
}

const START_OF_SCAN: u8 = 0xDA;

const END_OF_IMAGE: u8 = 0xD9;

/// Whether a marker starts a JPEG's frame and gives its size; three markers of the range do not.
fn is_start_of_frame(marker: u8) -> bool {
    matches!(marker, 0xC0..=0xCF) && !matches!(marker, 0xC4 | 0xC8 | 0xCC)
}

/// The `N` bytes at an offset.
fn at<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..)?.first_chunk().copied()
}

/// Takes a chunk: length, kind, data, checksum of the latter two (PNG, section 5.3). Decoders differ in which checksums
/// they check.
fn png_chunk<'a>(rest: &mut &'a [u8]) -> Option<(&'a [u8; 4], &'a [u8])> {
    let len = usize::try_from(u32::from_be_bytes(at(rest, 0)?)).ok()?;
    let chunk = rest.split_off(..len.checked_add(8)?)?.get(4..)?;
    let sum = u32::from_be_bytes(at(rest.split_off(..4)?, 0)?);
    (crc32fast::hash(chunk) == sum).then_some(())?;
    chunk.split_first_chunk()
}

/// Takes a marker and its segment, after the rest of coded data (ITU T.81, section B.1.1).
fn jpeg_segment<'a>(rest: &mut &'a [u8]) -> Option<(u8, &'a [u8])> {
    loop {
        let start = rest.iter().position(|byte| *byte == 0xFF)?;
        *rest = &rest[start..];
        let fill = rest.iter().position(|byte| *byte != 0xFF)?;
        let marker = rest[fill];
        *rest = &rest[fill + 1..];
        match marker {
            // A data byte of FF, TEM, restarts: all within coded data.
            0x00 | 0x01 | 0xD0..=0xD7 => {}
            0xD8 | END_OF_IMAGE => return Some((marker, &[])),
            0xC0..=0xEF | 0xFE => {
                let len = u16::from_be_bytes(at(rest, 0)?).into();
                return Some((marker, rest.split_off(..len)?.get(2..)?));
            }
            // Reserved: libjpeg accepts none of them.
            _ => return None,
        }
    }
}

/// Reads to the trailer of a GIF (GIF89a, appendix B). Returns the number of frames.
fn gif(rest: &mut &[u8]) -> Option<u32> {
    let screen = rest.split_off(..13)?;
    gif_colours(rest, screen[10])?;
    let mut frames = 0;
    loop {
        match rest.split_off_first()? {
            // Extension.
            0x21 => {
                rest.split_off_first()?;
            }
            // Image.
            0x2C => {
                let image = rest.split_off(..9)?;
                gif_colours(rest, image[8])?;
                rest.split_off_first()?;
                frames += 1;
            }
            // Trailer.
            0x3B => return Some(frames),
            _ => return None,
        }
        loop {
            let len = usize::from(*rest.split_off_first()?);
            if len == 0 {
                break;
            }
            rest.split_off(..len)?;
        }
    }
}

/// Takes a colour table, if the flags announce one.
fn gif_colours(rest: &mut &[u8], flags: u8) -> Option<()> {
    if flags & 0x80 != 0 {
        rest.split_off(..3 << ((flags & 7) + 1))?;
    }
    Some(())
}

/// Takes a chunk: kind, length, data, a padding byte if the length is odd (RFC 9649, section 2.3).
fn riff_chunk<'a>(rest: &mut &'a [u8]) -> Option<(&'a [u8; 4], &'a [u8])> {
    let head = rest.split_off(..8)?;
    let len = usize::try_from(u32::from_le_bytes(at(head, 4)?)).ok()?;
    let data = rest.split_off(..len)?;
    // Some writers omit the last padding byte.
    rest.split_off(..(len % 2).min(rest.len()))?;
    Some((head.first_chunk()?, data))
}

/// The size that a chunk of a WebP declares (RFC 9649, sections 2.5 to 2.7).
fn webp_size(kind: [u8; 4], data: &[u8]) -> Option<(u32, u32)> {
    match &kind {
        b"VP8 " => {
            let side = |offset| Some(u32::from(u16::from_le_bytes(at(data, offset)?) & 0x3FFF));
            Some((side(6)?, side(8)?))
        }
        b"VP8L" => {
            let bits = u32::from_le_bytes(at(data, 1)?);
            Some(((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1))
        }
        b"VP8X" => {
            // Width and height have three bytes each.
            let [width, height] = [at(data, 4)?, at(data, 6)?].map(u32::from_le_bytes);
            Some(((width & 0xFF_FFFF) + 1, (height >> 8) + 1))
        }
        _ => None,
    }
}
