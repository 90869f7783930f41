//! Pictures of every kind, complete and incomplete.

use std::time::{Duration, Instant};

use image::{ImageBuffer, Luma, LumaA, Rgb, RgbImage, Rgba, RgbaImage, codecs::gif::GifEncoder};
use proptest::prelude::*;

use super::*;

/// The format by content, as a MIME type, and width and height: from the header alone, without decoding. The rest of
/// the file is not checked.
fn look(file: &[u8]) -> Option<(&'static str, u32, u32)> {
    Header::of(file).map(|header| (header.format.to_mime_type(), header.width, header.height))
}

/// More than any of the samples needs.
const AMPLE: Budget = Budget { side: 1000, pixels: u64::MAX, bytes: 1_000_000 };

/// Less than any of the samples has.
const SMALL: Budget = Budget { side: 10, pixels: u64::MAX, bytes: 1_000_000 };

/// 24 by 16 pixels each, made with Pillow.
const SAMPLES: [(&str, &[u8]); 9] = [
    ("image/png", include_bytes!("samples/palette.png")),
    ("image/png", include_bytes!("samples/animated.png")),
    ("image/jpeg", include_bytes!("samples/progressive.jpg")),
    ("image/jpeg", include_bytes!("samples/cmyk.jpg")),
    ("image/jpeg", TURNED),
    ("image/gif", ANIMATED_GIF),
    ("image/webp", include_bytes!("samples/lossy.webp")),
    ("image/webp", include_bytes!("samples/lossless.webp")),
    ("image/webp", include_bytes!("samples/animated.webp")),
];

/// Turned by a quarter in its EXIF data.
const TURNED: &[u8] = include_bytes!("samples/turned.jpg");

const ANIMATED_GIF: &[u8] = include_bytes!("samples/animated.gif");

fn encoded(picture: impl Into<DynamicImage>, format: ImageFormat) -> Bytes {
    let mut bytes = Cursor::new(Vec::new());
    picture.into().write_to(&mut bytes, format).unwrap();
    bytes.into_inner().into()
}

/// Noise, which no encoder makes small.
fn noise(width: u32, height: u32) -> RgbaImage {
    let mut state = 1_u32;
    RgbaImage::from_fn(width, height, |_, _| {
        Rgba(std::array::from_fn(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state.to_be_bytes()[0]
        }))
    })
}

/// Fits a file, and checks the properties of every picture that is shown.
fn show(file: &Bytes, budget: Budget) -> Result<Shown, Unshowable> {
    let shown = fit(file.clone(), budget)?;
    let format = image::guess_format(&shown.bytes).unwrap();
    assert_eq!(format.to_mime_type(), shown.mime);
    assert_eq!(look(&shown.bytes), Some((shown.mime, shown.width, shown.height)));
    let decoded = image::load_from_memory_with_format(&shown.bytes, format).unwrap();
    assert_eq!((decoded.width(), decoded.height()), (shown.width, shown.height));
    assert!(shown.width.max(shown.height) <= budget.side && shown.bytes.len() <= budget.bytes);
    let pixels = u64::from(shown.width) * u64::from(shown.height);
    assert!(pixels <= budget.pixels, "{pixels}");
    assert!(shown.scaled || file.starts_with(&shown.bytes));
    Ok(shown)
}

#[test]
fn what_fits_is_shown_as_it_is() {
    for (mime, file) in SAMPLES {
        let shown = show(&Bytes::from_static(file), AMPLE).unwrap();
        assert_eq!((shown.mime, shown.width, shown.height), (mime, 24, 16));
        // An animated PNG is shown as a copy, without the frames that were not decoded.
        assert_eq!(shown.scaled, file == SAMPLES[1].1, "{mime}");
        assert!(shown.scaled || shown.bytes == file);
    }
    let exact = Budget { side: 24, pixels: 24 * 16, bytes: SAMPLES[0].1.len() };
    assert!(!show(&Bytes::from_static(SAMPLES[0].1), exact).unwrap().scaled);
}

#[test]
fn what_is_too_large_is_scaled() {
    for (_, file) in SAMPLES {
        let shown = show(&Bytes::from_static(file), SMALL).unwrap();
        let expected = if file == TURNED { (7, 10) } else { (10, 7) };
        assert_eq!((shown.mime, shown.width, shown.height), ("image/png", expected.0, expected.1));
    }
}

#[test]
fn every_kind_of_pixel_is_scaled() {
    let kinds: [DynamicImage; 6] = [
        ImageBuffer::from_pixel(30, 20, Luma([9_u8])).into(),
        ImageBuffer::from_pixel(30, 20, LumaA([9_u8, 100])).into(),
        ImageBuffer::from_pixel(30, 20, Luma([9_u16 << 8])).into(),
        ImageBuffer::from_pixel(30, 20, LumaA([9_u16 << 8, 100 << 8])).into(),
        ImageBuffer::from_pixel(30, 20, Rgb([9_u16 << 8; 3])).into(),
        ImageBuffer::from_pixel(30, 20, Rgba([9 << 8, 9 << 8, 9 << 8, 100_u16 << 8])).into(),
    ];
    for picture in kinds {
        let transparent = picture.color().has_alpha();
        let shown = show(&encoded(picture, ImageFormat::Png), SMALL).unwrap();
        let Rgba([red, .., alpha]) =
            *image::load_from_memory(&shown.bytes).unwrap().into_rgba8().get_pixel(5, 3);
        assert!(red.abs_diff(9) <= 1, "{red}");
        assert!(alpha.abs_diff(if transparent { 100 } else { 255 }) <= 1, "{alpha}");
    }
}

#[test]
fn the_colour_of_what_is_transparent_is_not_seen() {
    let picture = RgbaImage::from_fn(64, 64, |x, _| match x {
        ..33 => Rgba([255, 0, 0, 255]),
        _ => Rgba([0, 255, 0, 0]),
    });
    let file = encoded(picture, ImageFormat::Png);
    let shown = show(&file, SMALL).unwrap();
    let scaled = image::load_from_memory(&shown.bytes).unwrap().into_rgba8();
    assert!(scaled.pixels().all(|Rgba([_, green, _, alpha])| *green == 0 || *alpha == 0));
    assert!(scaled.get_pixel(9, 0).0[3] == 0 && scaled.get_pixel(0, 0).0[3] == 255);
}

#[test]
fn what_is_opaque_is_encoded_so() {
    let file = encoded(RgbaImage::from_pixel(20, 20, Rgba([1, 2, 3, 255])), ImageFormat::Png);
    let shown = show(&file, SMALL).unwrap();
    assert!(!image::load_from_memory(&shown.bytes).unwrap().has_alpha());
}

#[test]
fn what_is_no_small_png_becomes_a_jpeg_on_white() {
    let mut picture = noise(100, 100);
    for (x, _, pixel) in picture.enumerate_pixels_mut() {
        pixel.0[3] = if x < 50 { 0 } else { 255 };
    }
    let file = encoded(picture, ImageFormat::Png);
    let shown = show(&file, Budget { side: 100, pixels: u64::MAX, bytes: 10_000 }).unwrap();
    assert_eq!(
        (shown.mime, shown.width, shown.height, shown.scaled),
        ("image/jpeg", 100, 100, true)
    );
    let decoded = image::load_from_memory(&shown.bytes).unwrap().into_rgb8();
    assert!(decoded.get_pixel(10, 50).0.iter().all(|colour| *colour > 250));

    let smaller = show(&file, Budget { side: 100, pixels: u64::MAX, bytes: 3_000 }).unwrap();
    assert!(smaller.mime == "image/jpeg" && smaller.width < 100);
    assert_eq!(
        show(&file, Budget { side: 100, pixels: u64::MAX, bytes: 300 }),
        Err(Unshowable::TooLarge)
    );
    assert_eq!(
        show(&file, Budget { side: 0, pixels: u64::MAX, bytes: 300 }),
        Err(Unshowable::TooLarge)
    );
}

#[test]
fn what_has_too_many_pixels_is_scaled_whatever_its_shape() {
    let budget = Budget { side: 100, pixels: 8_750, bytes: 1_000_000 };
    for (size, expected) in [
        ((100, 87), (100, 87)),
        ((100, 88), (99, 87)),
        ((100, 100), (93, 93)),
        ((1000, 1000), (93, 93)),
        ((400, 300), (100, 75)),
        ((300, 1000), (30, 100)),
    ] {
        let file = encoded(RgbImage::new(size.0, size.1), ImageFormat::Png);
        let shown = show(&file, budget).unwrap();
        assert_eq!((shown.width, shown.height), expected, "{size:?}");
        assert_eq!(shown.scaled, size != expected);
    }
}

#[test]
fn narrow_pictures_keep_a_pixel() {
    for (width, height) in [(1, 1), (1, 5000), (5000, 1)] {
        let file = encoded(RgbImage::new(width, height), ImageFormat::Png);
        let shown = show(&file, AMPLE).unwrap();
        assert_eq!((shown.width, shown.height), (width.min(1000), height.min(1000)));
        assert_eq!(shown.scaled, width.max(height) > 1000);
    }
}

#[test]
fn a_file_without_its_end_is_broken() {
    for (mime, file) in SAMPLES {
        for len in (0..10).map(|tenth| file.len() * tenth / 10).chain([file.len() - 1]) {
            let part = Bytes::from_static(&file[..len]);
            for budget in [AMPLE, SMALL] {
                let shown = show(&part, budget);
                assert_eq!(shown, Err(Unshowable::Broken), "{mime} {len} of {}", file.len());
            }
        }
    }
}

#[test]
fn what_follows_the_end_is_left_out() {
    for (_, file) in SAMPLES {
        let longer = Bytes::from([file, b"ANMFEXIF\xFF\xFF\xFF\xFF and more"].concat());
        for budget in [AMPLE, SMALL] {
            assert_eq!(show(&longer, budget), show(&Bytes::from_static(file), budget));
        }
    }
}

#[test]
fn other_files_are_broken() {
    for file in
        [&b""[..], b"BM\0\0\0\0\0\0\0\0\0\0", b"<svg/>", b"\x89PNG\r\n\x1a\n", b"\xFF\xD8\xFF"]
    {
        assert_eq!(fit(Bytes::from_static(file), AMPLE), Err(Unshowable::Broken));
        assert_eq!(look(file), None);
    }
}

/// Checks that a file is refused in less time, and so with less memory, than decoding would take.
fn refused_at_once(file: Vec<u8>, error: Unshowable) {
    let start = Instant::now();
    assert_eq!(fit(file.into(), AMPLE), Err(error));
    assert!(start.elapsed() < Duration::from_millis(250), "{:?}", start.elapsed());
}

#[test]
fn bombs_are_refused_at_once() {
    let real = encoded(ImageBuffer::from_pixel(6000, 6000, Luma([0_u8])), ImageFormat::Png);
    assert!(real.len() < 1_000_000, "{}", real.len());
    refused_at_once(real.to_vec(), Unshowable::TooLarge);

    let mut png = SAMPLES[0].1.to_vec();
    png[16..24].copy_from_slice(&[0, 0, 0xEA, 0x60, 0, 0, 0xEA, 0x60]);
    let sum = crc32fast::hash(&png[12..29]);
    png[29..33].copy_from_slice(&sum.to_be_bytes());
    assert_eq!(look(&png), Some(("image/png", 60_000, 60_000)));
    refused_at_once(png, Unshowable::TooLarge);

    let mut gif = ANIMATED_GIF.to_vec();
    gif[6..10].fill(0xFF);
    refused_at_once(gif, Unshowable::TooLarge);

    let long = encoded(ImageBuffer::from_pixel(70_000, 1, Luma([0_u8])), ImageFormat::Png);
    refused_at_once(long.to_vec(), Unshowable::TooLarge);
}

#[test]
fn what_is_larger_than_its_picture_is_refused_at_once() {
    // The width and height of the first frame.
    let mut gif = ANIMATED_GIF.to_vec();
    let image = gif.windows(9).position(|at| at == [0x2C, 0, 0, 0, 0, 24, 0, 16, 0]).unwrap();
    gif[image + 5..image + 9].fill(0xFF);
    refused_at_once(gif, Unshowable::TooLarge);

    let mut webp = SAMPLES[6].1.to_vec();
    let start = webp.windows(3).position(|at| at == [0x9D, 0x01, 0x2A]).unwrap();
    webp[start + 3..start + 7].copy_from_slice(&[0xFF, 0x3F, 0xFF, 0x3F]);
    refused_at_once(webp, Unshowable::Broken);

    let start = TURNED.windows(2).position(|at| at == [0xFF, 0xC0]).unwrap();
    let mut second = TURNED[start..start + 19].to_vec();
    second[5..9].fill(0xFF);
    let jpeg = [&TURNED[..start + 19], &second, &TURNED[start + 19..]].concat();
    refused_at_once(jpeg, Unshowable::Broken);
}

#[test]
fn a_jpeg_of_endless_scans_is_refused_at_once() {
    let file = SAMPLES[2].1;
    let start = file.windows(2).rposition(|at| at == [0xFF, 0xDA]).unwrap();
    let (picture, scan) = file[..file.len() - 2].split_at(start);
    let jpeg = |scans| [picture, &scan.repeat(scans), b"\xFF\xD9"].concat();
    assert!(show(&jpeg(5).into(), AMPLE).unwrap().scaled);
    refused_at_once(jpeg(50), Unshowable::TooLarge);
}

#[test]
fn frames_of_a_picture_that_is_no_animation_are_refused() {
    let mut webp = SAMPLES[8].1.to_vec();
    assert_eq!((&webp[12..16], webp[20] & 2), (&b"VP8X"[..], 2));
    webp[20] ^= 2;
    assert_eq!(fit(webp.into(), AMPLE), Err(Unshowable::Broken));
}

#[test]
fn of_a_long_animation_the_first_frame_is_shown() {
    let mut one = Vec::new();
    GifEncoder::new(&mut one)
        .encode(&vec![7; 1000 * 1000 * 3], 1000, 1000, image::ExtendedColorType::Rgb8)
        .unwrap();
    // A frame starts with an extension that has its display time.
    let start = one.windows(2).position(|at| at == [0x21, 0xF9]).unwrap();
    let (screen, frame) = one[..one.len() - 1].split_at(start);
    let long = Bytes::from([screen, &frame.repeat(97), b";"].concat());
    let shown = show(&long, AMPLE).unwrap();
    assert_eq!((shown.mime, shown.scaled), ("image/png", true));
    let short = Bytes::from([screen, &frame.repeat(2), b";"].concat());
    assert!(!show(&short, AMPLE).unwrap().scaled);
}

proptest! {
    #[test]
    fn damage_ends_in_a_picture_or_an_error(
        sample in 0..SAMPLES.len(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in prop::option::of(any::<prop::sample::Index>()),
        side in 1..40_u32,
    ) {
        let mut file = SAMPLES[sample].1.to_vec();
        for (index, byte) in damage {
            *index.get_mut(&mut file) = byte;
        }
        if let Some(cut) = cut {
            file.truncate(cut.index(file.len()));
        }
        let _ = show(&file.into(), Budget { side, pixels: u64::MAX, bytes: 100_000 });
    }

    #[test]
    fn any_bytes_end_in_a_picture_or_an_error(
        magic in prop::sample::select(vec![&b""[..], b"\x89PNG\r\n\x1a\n", b"\xFF\xD8\xFF", b"GIF89a", b"RIFF\x20\0\0\0WEBPVP8X"]),
        bytes in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let file = [magic, &bytes].concat();
        let _ = look(&file);
        let _ = show(&file.into(), AMPLE);
    }

    #[test]
    fn any_size_fits_any_budget_or_is_too_large(
        (width, height) in (1..80_u32, 1..80_u32),
        budget in (1..100_u32, 1..9_000_u64, 0..10_000_usize).prop_map(|(side, pixels, bytes)| Budget { side, pixels, bytes }),
        format in prop::sample::select(vec![ImageFormat::Png, ImageFormat::Jpeg, ImageFormat::Gif, ImageFormat::WebP]),
    ) {
        let picture = DynamicImage::from(noise(width, height));
        let file = match format {
            ImageFormat::Jpeg => encoded(picture.into_rgb8(), format),
            _ => encoded(picture, format),
        };
        match show(&file, budget) {
            Ok(shown) if shown.scaled => {
                prop_assert!(shown.width <= width && shown.height <= height);
                let [a, b] = [width * shown.height, height * shown.width];
                // Each of the steps rounds by up to half a pixel.
                prop_assert!(a.abs_diff(b) <= 4 * width.max(height), "{:?}", (shown.width, shown.height));
            }
            Ok(_) => {}
            Err(error) => prop_assert_eq!(error, Unshowable::TooLarge),
        }
    }
}

#[tokio::test]
async fn one_picture_is_made_at_a_time() {
    let studio = ImageFitter::default();
    let file = Bytes::from_static(TURNED);
    let busy = studio.place.try_acquire().unwrap();
    let other = studio.clone();
    let mut waiting = Box::pin(other.fit(file, SMALL));
    assert!(futures::poll!(&mut waiting).is_pending());
    drop(busy);
    let shown = tokio::time::timeout(Duration::from_secs(10), waiting).await.unwrap();
    assert_eq!(shown.unwrap().height, 10);
}

#[tokio::test]
async fn a_decoder_that_panics_breaks_one_picture_only() {
    let studio = ImageFitter::default();
    assert_eq!(studio.work(|| panic!("as a decoder would")).await, Err(Unshowable::Broken));
    let fit = studio.fit(Bytes::from_static(TURNED), SMALL);
    assert!(tokio::time::timeout(Duration::from_secs(10), fit).await.unwrap().is_ok());
}
