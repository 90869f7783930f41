//! Base64 as models and programs write it: with or without padding, in either alphabet, wrapped into lines, after the
//! start of a `data:` URL. Other text is refused. The text may come in pieces of any length.

use std::sync::LazyLock;

use base64::{
    DecodeError, Engine as _,
    engine::{DecodePaddingMode, GeneralPurposeConfig, Simd},
};
use memchr::memchr2_iter;
use model::text::quoted;

use crate::error::{Error, Result};

/// Decodes the standard alphabet without padding, which is removed before.
static ENGINE: LazyLock<Simd> = LazyLock::new(|| {
    Simd::standard(
        GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::RequireNone),
    )
});

/// The start of a `data:` URL. The colon is not in base64.
const DATA_URL: &[u8] = b"data:";

/// Longest start of a `data:` URL, in bytes.
const MAX_DATA_URL: usize = 256;

/// The error for a text that is not base64, with the reason.
pub(super) fn invalid(why: &str) -> Error {
    Error::InvalidBase64(format!(
        "content_base64 is not base64: {why}. Give plain text as text instead, and for a file its bytes in \
         base64."
    ))
}

/// Decodes piece by piece.
#[derive(Debug)]
pub(super) struct Decoder {
    /// The first characters, while they may still be the start of a `data:` URL.
    start: Option<Vec<u8>>,
    /// Characters that are not decoded yet: fewer than four between two pieces.
    chars: Vec<u8>,
    padding: usize,
}

impl Default for Decoder {
    fn default() -> Self {
        Self { start: Some(vec![]), chars: vec![], padding: 0 }
    }
}

impl Decoder {
    /// Appends the bytes of a piece, except for characters that need the next piece. No piece ends within a character.
    ///
    /// # Errors
    /// If it is not base64.
    pub(super) fn decode(&mut self, piece: &[u8], bytes: &mut Vec<u8>) -> Result<()> {
        let Some(mut start) = self.start.take() else {
            return self.add(piece, bytes);
        };
        // Never more than the start of a URL is stored: line breaks before it are dropped at once.
        start.extend_from_slice(if start.is_empty() { without_lines(piece) } else { piece });
        match content(&start) {
            Start::Base64(content) => self.add(content, bytes),
            Start::Unknown => {
                self.start = Some(start);
                Ok(())
            }
            Start::Other => Err(invalid("it is a data: URL of something else")),
        }
    }

    /// Appends the last bytes.
    ///
    /// # Errors
    /// If the whole is not base64.
    pub(super) fn end(mut self, bytes: &mut Vec<u8>) -> Result<()> {
        if let Some(start) = self.start.take() {
            self.add(&start, bytes)?;
        }
        let missing = (4 - self.chars.len()) % 4;
        decode(&self.chars, self.chars.len(), bytes)?;
        if self.padding > missing {
            return Err(invalid("it has too much padding"));
        }
        Ok(())
    }

    fn add(&mut self, piece: &[u8], bytes: &mut Vec<u8>) -> Result<()> {
        let mut line_start = 0;
        for line_end in memchr2_iter(b'\n', b'\r', piece).chain([piece.len()]) {
            let line = &piece[line_start..line_end];
            line_start = line_end + 1;
            let padding = line.iter().rev().take_while(|byte| **byte == b'=').count();
            let chars = &line[..line.len() - padding];
            if self.padding > 0 && !chars.is_empty() {
                return Err(invalid(AFTER_PADDING));
            }
            self.padding += padding;
            // A long line needs no copy.
            let whole = if self.chars.is_empty() { chars.len() / 4 * 4 } else { 0 };
            decode(chars, whole, bytes)?;
            self.chars.extend_from_slice(&chars[whole..]);
        }
        let whole = self.chars.len() / 4 * 4;
        decode(&self.chars, whole, bytes)?;
        self.chars.drain(..whole);
        Ok(())
    }
}

/// Decodes the first `count` characters, of either alphabet, and appends the bytes.
fn decode(chars: &[u8], count: usize, bytes: &mut Vec<u8>) -> Result<()> {
    let (wanted, decoded) = (&chars[..count], bytes.len());
    let mut result = ENGINE.decode_vec(wanted, bytes);
    if let Err(DecodeError::InvalidByte(_, b'-' | b'_')) = result {
        let standard = wanted.iter().map(|byte| match byte {
            b'-' => b'+',
            b'_' => b'/',
            other => *other,
        });
        bytes.truncate(decoded);
        result = ENGINE.decode_vec(standard.collect::<Vec<_>>(), bytes);
    }
    match result {
        Ok(()) => Ok(()),
        Err(DecodeError::InvalidByte(_, b'=')) => Err(invalid(AFTER_PADDING)),
        Err(DecodeError::InvalidByte(at, _)) => {
            let text = String::from_utf8_lossy(&chars[at..]);
            let wrong = text.chars().take(1).collect::<String>();
            Err(invalid(&format!("it contains {}", quoted(&wrong))))
        }
        Err(DecodeError::InvalidLength(_)) => Err(invalid("a part of it is missing")),
        Err(_) => Err(invalid("its last character stands for too much")),
    }
}

const AFTER_PADDING: &str = "there is something after its padding";

fn without_lines(text: &[u8]) -> &[u8] {
    let start = text.iter().position(|byte| !matches!(byte, b'\n' | b'\r'));
    &text[start.unwrap_or(text.len())..]
}

/// The meaning of the first characters of a text.
enum Start<'a> {
    Base64(&'a [u8]),
    /// More characters are needed.
    Unknown,
    /// A `data:` URL of something other than base64.
    Other,
}

fn content(text: &[u8]) -> Start<'_> {
    let text = without_lines(text);
    let scheme = &text[..text.len().min(DATA_URL.len())];
    if !scheme.eq_ignore_ascii_case(&DATA_URL[..scheme.len()]) {
        return Start::Base64(text);
    }
    match memchr::memchr(b',', text) {
        Some(comma) if text[..comma].to_ascii_lowercase().ends_with(b";base64") => {
            if comma < MAX_DATA_URL { Start::Base64(&text[comma + 1..]) } else { Start::Other }
        }
        Some(_) => Start::Other,
        None if text.len() < MAX_DATA_URL => Start::Unknown,
        // A long text without a comma: base64 that starts with these letters, or an invalid text.
        None => Start::Base64(text),
    }
}

/// Decodes a whole text.
///
/// # Errors
/// If it is not base64.
pub(super) fn decode_whole(text: &str) -> Result<Vec<u8>> {
    let (mut decoder, mut bytes) = (Decoder::default(), vec![]);
    decoder.decode(text.as_bytes(), &mut bytes)?;
    decoder.end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use base64::engine::general_purpose::STANDARD;
    use proptest::prelude::*;

    use super::*;

    fn in_pieces(text: &str, length: usize) -> Result<Vec<u8>> {
        let (mut decoder, mut bytes) = (Decoder::default(), vec![]);
        let chars: Vec<_> = text.chars().collect();
        for piece in chars.chunks(length) {
            decoder.decode(piece.iter().collect::<String>().as_bytes(), &mut bytes)?;
        }
        decoder.end(&mut bytes)?;
        Ok(bytes)
    }

    #[test]
    fn it_is_read_however_it_is_written() {
        for text in [
            "+/+/QQ==",
            "-_-_QQ==",
            "+/-_QQ",
            "+/+/QQ=",
            "+/+/\r\nQQ\n==\n",
            "data:;base64,+/+/QQ==",
            "\nDATA:text/csv;charset=utf-8;Base64,-_-_\nQQ",
        ] {
            assert_eq!(decode_whole(text).expect(text), b"\xfb\xff\xbfA", "{text}");
        }
        assert_eq!(decode_whole("").expect("nothing"), b"");
        assert_eq!(decode_whole("data:a/b;base64,").expect("nothing"), b"");
        // A text that starts with the letters of the scheme and is no URL.
        assert_eq!(decode_whole("data").expect("three bytes").len(), 3);
    }

    #[test]
    fn lines_before_the_first_character_are_not_held() {
        let (mut decoder, mut bytes) = (Decoder::default(), vec![]);
        for _ in 0..3 {
            decoder.decode("\r\n".repeat(500).as_bytes(), &mut bytes).expect("nothing yet");
            assert_eq!(decoder.start.as_ref().map(Vec::len), Some(0));
        }
        assert_eq!(bytes, b"");
    }

    #[test]
    fn what_is_no_base64_is_refused_with_what_to_do() {
        for (text, why) in [
            ("hello world", "it contains \" \""),
            ("{\"a\":1}", "it contains \"{\""),
            ("é", "it contains \"é\""),
            ("\0", r#"it contains "\u0000""#),
            ("A", "a part of it is missing"),
            ("A===", "a part of it is missing"),
            ("====", "it has too much padding"),
            ("AAA==", "it has too much padding"),
            ("QQ==QUJD", "there is something after its padding"),
            ("=AAA", "there is something after its padding"),
            ("AB==", "its last character stands for too much"),
            ("data:text/plain,hello", "it is a data: URL of something else"),
            ("data:hello", "it contains \":\""),
        ] {
            let error = decode_whole(text).expect_err(text);
            assert_eq!(error.code(), "invalid_base64");
            let message = error.to_string();
            assert!(
                message.starts_with(&format!("content_base64 is not base64: {why}. ")),
                "{message}"
            );
            assert!(message.contains("as text instead"), "{message}");
        }
        let endless = format!("data:{}", "a".repeat(10_000));
        assert!(decode_whole(&endless).is_err() && in_pieces(&endless, 7).is_err());
    }

    proptest! {
        #[test]
        fn whole_and_in_pieces_are_the_same(
            bytes in prop::collection::vec(any::<u8>(), 0..60),
            prefix in "(data:[a-z/;=]{0,12};base64,|data:|dat|)",
            wrong in "[ \n=,:A-B]{0,2}",
            at in 0usize..60,
            url_safe: bool,
            padded: bool,
            length in 1usize..20,
        ) {
            let mut text = STANDARD.encode(&bytes);
            if url_safe { text = text.replace('+', "-").replace('/', "_"); }
            if !padded { text = text.replace('=', ""); }
            let right = prefix.clone() + &text;
            if prefix.is_empty() || prefix.ends_with(',') {
                prop_assert_eq!(decode_whole(&right).expect("base64"), bytes);
            }
            text.insert_str(at.min(text.len()), &wrong);
            let text = prefix + &text;
            let (one, other) = (decode_whole(&text), in_pieces(&text, length));
            prop_assert_eq!(one.as_ref().ok(), other.as_ref().ok(), "{}", text);
            prop_assert_eq!(one.is_err(), other.is_err());
        }

        #[test]
        fn any_text_is_read_alike_whole_and_in_pieces(text in "(\\PC|data:|;base64,|=|[A-z]){0,40}", length in 1usize..9) {
            prop_assert_eq!(decode_whole(&text).ok(), in_pieces(&text, length).ok());
        }
    }
}
