//! Base64 as models and programs write it: with or without padding, in either alphabet, wrapped into lines,
//! behind the start of a `data:` URL. What is not base64 is refused. It may come in pieces of any length.
//!
//! ```text
//! data:image/png;base64,iVBO\nRw0-  --> Cleaner --> iVBORw0+ --> Decoder --> bytes
//! ```

use base64::{
    Engine as _,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};

use crate::{
    error::{Error, Result},
    text::quoted,
};

/// Of the standard alphabet, without padding, which was taken off.
const ENGINE: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::RequireNone),
);

/// What a `data:` URL starts with. The colon is in no base64.
const DATA_URL: &[u8] = b"data:";

/// Longest start of a `data:` URL, in bytes.
const MAX_DATA_URL: usize = 256;

/// That something is not base64, and where.
pub(super) fn invalid(why: &str) -> Error {
    Error::InvalidBase64(format!(
        "content_base64 is not base64: {why}. Give plain text as text instead, and for a file its bytes in \
         base64."
    ))
}

/// Takes off what base64 can do without, and checks the rest.
#[derive(Debug)]
pub(super) struct Cleaner {
    /// The start, as long as it may be that of a `data:` URL.
    start: Option<Vec<u8>>,
    /// Characters that stand for bits.
    chars: u64,
    padding: u64,
}

impl Default for Cleaner {
    fn default() -> Self {
        Self { start: Some(vec![]), chars: 0, padding: 0 }
    }
}

impl Cleaner {
    /// The characters of a piece that stand for bits, in the standard alphabet.
    ///
    /// # Errors
    /// If there is something else in it.
    pub(super) fn clean(&mut self, piece: &str) -> Result<Vec<u8>> {
        let mut clean = Vec::with_capacity(piece.len());
        let Some(mut start) = self.start.take() else {
            self.add(piece, &mut clean)?;
            return Ok(clean);
        };
        // Never more than the start of a URL is held: what comes before it goes at once.
        let piece = if start.is_empty() { piece.trim_start_matches(['\n', '\r']) } else { piece };
        start.extend_from_slice(piece.as_bytes());
        // Pieces are whole characters.
        let text = String::from_utf8(start).map_err(|_| invalid("it is not UTF-8"))?;
        match content(&text) {
            Start::Base64(content) => self.add(content, &mut clean)?,
            Start::Unknown => self.start = Some(text.into_bytes()),
            Start::Other => return Err(invalid("it is a data: URL of something else")),
        }
        Ok(clean)
    }

    /// What was held back as a possible start.
    ///
    /// # Errors
    /// If it is not base64, or the whole cannot be.
    pub(super) fn end(&mut self) -> Result<Vec<u8>> {
        let mut clean = vec![];
        if let Some(start) = self.start.take() {
            let text = String::from_utf8(start).map_err(|_| invalid("it is not UTF-8"))?;
            self.add(&text, &mut clean)?;
        }
        let needed = (4 - self.chars % 4) % 4;
        if self.chars % 4 == 1 {
            return Err(invalid("a part of it is missing"));
        }
        if self.padding > needed {
            return Err(invalid("it has too much padding"));
        }
        Ok(clean)
    }

    /// Bytes that what came so far stands for.
    pub(super) fn bytes(&self) -> u64 {
        self.chars * 3 / 4
    }

    fn add(&mut self, piece: &str, clean: &mut Vec<u8>) -> Result<()> {
        for (at, byte) in piece.bytes().enumerate() {
            let char = match byte {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'+' | b'/' => byte,
                b'-' => b'+',
                b'_' => b'/',
                b'\n' | b'\r' => continue,
                b'=' => {
                    self.padding += 1;
                    continue;
                }
                _ => {
                    let char = piece[at..].chars().next().unwrap_or_default().to_string();
                    return Err(invalid(&format!("it contains {}", quoted(&char))));
                }
            };
            if self.padding > 0 {
                return Err(invalid("there is something after its padding"));
            }
            self.chars += 1;
            clean.push(char);
        }
        Ok(())
    }
}

/// What the first characters are.
enum Start<'a> {
    Base64(&'a str),
    /// More has to come.
    Unknown,
    /// A URL of what is not base64.
    Other,
}

fn content(text: &str) -> Start<'_> {
    let text = text.trim_start_matches(['\n', '\r']);
    let scheme = &text.as_bytes()[..text.len().min(DATA_URL.len())];
    if !scheme.eq_ignore_ascii_case(&DATA_URL[..scheme.len()]) {
        return Start::Base64(text);
    }
    match text.split_once(',') {
        Some((head, content)) if head.to_ascii_lowercase().ends_with(";base64") => {
            if head.len() < MAX_DATA_URL { Start::Base64(content) } else { Start::Other }
        }
        Some(_) => Start::Other,
        None if text.len() < MAX_DATA_URL => Start::Unknown,
        // Long, and without a comma: base64 that starts with these letters, or nothing that is known.
        None => Start::Base64(text),
    }
}

/// Decodes what a [`Cleaner`] leaves, piece by piece.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    cleaner: Cleaner,
    /// Fewer than four characters.
    left: Vec<u8>,
}

impl Decoder {
    /// Bytes of a piece, but for what is needed to go on.
    ///
    /// # Errors
    /// If it is not base64.
    pub(super) fn decode(&mut self, piece: &str) -> Result<Vec<u8>> {
        let clean = self.cleaner.clean(piece)?;
        self.whole(&clean)
    }

    /// What is left.
    ///
    /// # Errors
    /// If the whole is not base64.
    pub(super) fn end(&mut self) -> Result<Vec<u8>> {
        let clean = self.cleaner.end()?;
        let mut bytes = self.whole(&clean)?;
        bytes.extend(decode(&std::mem::take(&mut self.left))?);
        Ok(bytes)
    }

    fn whole(&mut self, clean: &[u8]) -> Result<Vec<u8>> {
        self.left.extend_from_slice(clean);
        let rest = self.left.split_off(self.left.len() / 4 * 4);
        decode(&std::mem::replace(&mut self.left, rest))
    }
}

fn decode(clean: &[u8]) -> Result<Vec<u8>> {
    ENGINE.decode(clean).map_err(|_| invalid("its last character stands for too much"))
}

/// Decodes a text that is whole.
///
/// # Errors
/// If it is not base64, or `check` refuses so many bytes.
pub(super) fn decode_whole(text: &str, check: impl FnOnce(u64) -> Result<()>) -> Result<Vec<u8>> {
    let mut cleaner = Cleaner::default();
    let mut clean = cleaner.clean(text)?;
    clean.extend(cleaner.end()?);
    check(cleaner.bytes())?;
    decode(&clean)
}

#[cfg(test)]
mod tests {
    use base64::engine::general_purpose::STANDARD;
    use proptest::prelude::*;

    use super::*;

    fn whole(text: &str) -> Result<Vec<u8>> {
        decode_whole(text, |_| Ok(()))
    }

    fn in_pieces(text: &str, length: usize) -> Result<Vec<u8>> {
        let (mut decoder, mut bytes) = (Decoder::default(), vec![]);
        let chars: Vec<_> = text.chars().collect();
        for piece in chars.chunks(length) {
            bytes.extend(decoder.decode(&piece.iter().collect::<String>())?);
        }
        bytes.extend(decoder.end()?);
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
            assert_eq!(whole(text).expect(text), b"\xfb\xff\xbfA", "{text}");
        }
        assert_eq!(whole("").expect("nothing"), b"");
        assert_eq!(whole("data:a/b;base64,").expect("nothing"), b"");
        // What starts with the letters of a URL's scheme and is none.
        assert_eq!(whole("data").expect("three bytes").len(), 3);
    }

    #[test]
    fn lines_before_the_first_character_are_not_held() {
        let mut cleaner = Cleaner::default();
        for _ in 0..3 {
            assert_eq!(cleaner.clean(&"\r\n".repeat(500)).expect("nothing yet"), b"");
            assert_eq!(cleaner.start.as_ref().map(Vec::len), Some(0));
        }
    }

    #[test]
    fn what_is_no_base64_is_refused_with_what_to_do() {
        for (text, why) in [
            ("hello world", "it contains \" \""),
            ("{\"a\":1}", "it contains \"{\""),
            ("é", "it contains \"é\""),
            ("\0", "it contains \"\u{FFFD}\""),
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
            let error = whole(text).expect_err(text);
            assert_eq!(error.code(), "invalid_base64");
            let message = error.to_string();
            assert!(
                message.starts_with(&format!("content_base64 is not base64: {why}. ")),
                "{message}"
            );
            assert!(message.contains("as text instead"), "{message}");
        }
        let endless = format!("data:{}", "a".repeat(10_000));
        assert!(whole(&endless).is_err() && in_pieces(&endless, 7).is_err());
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
                prop_assert_eq!(whole(&right).expect("base64"), bytes);
            }
            text.insert_str(at.min(text.len()), &wrong);
            let text = prefix + &text;
            let (one, other) = (whole(&text), in_pieces(&text, length));
            prop_assert_eq!(one.as_ref().ok(), other.as_ref().ok(), "{}", text);
            prop_assert_eq!(one.is_err(), other.is_err());
        }

        #[test]
        fn any_text_is_read_alike_whole_and_in_pieces(text in "(\\PC|data:|;base64,|=|[A-z]){0,40}", length in 1usize..9) {
            prop_assert_eq!(whole(&text).ok(), in_pieces(&text, length).ok());
        }
    }
}
