//! A long string of a message, as it was received: escaped JSON that is read in pieces, so that a file of the upload
//! limit is in memory once and not three times.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use memchr::memchr;

use super::base64_text::{Decoder, invalid};
use crate::{
    content::Content,
    error::{Error, Result},
};

/// Bytes that are unescaped at a time.
const PIECE: usize = 1 << 20;

/// A JSON string with its quotes. Clones share the bytes.
#[derive(Debug, Clone)]
pub(super) struct LongText(Bytes);

/// The long string of a message, until its call takes it. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct CutOut(Arc<Mutex<Option<LongText>>>);

impl CutOut {
    pub(super) fn new(text: LongText) -> Self {
        Self(Arc::new(Mutex::new(Some(text))))
    }

    /// Takes the string; `None` if it was taken before.
    pub(super) fn take(&self) -> Option<LongText> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl LongText {
    pub(super) fn new(quoted: Bytes) -> Self {
        Self(quoted)
    }

    /// Length of the string as it was received, in bytes without the quotes; that is more than its own length if
    /// something in it is escaped.
    pub(super) fn len(&self) -> usize {
        self.0.len().saturating_sub(2)
    }

    /// The whole string, if it had at most `most` bytes in the message.
    pub(super) fn into_string(self, most: usize) -> Option<String> {
        if self.len() > most { None } else { serde_json::from_slice(&self.0).ok() }
    }

    /// The content of a file that the string is as text, of at most `limit` bytes.
    ///
    /// # Errors
    /// If it is larger, or is not text.
    pub(super) fn text(self, limit: u64) -> Result<Content> {
        let text =
            self.pieces().try_fold(0, |size, piece| piece.map(|piece| size + piece.len() as u64));
        let size_bytes = text.map_err(|_| {
            Error::InvalidArgument(
                "text contains an unpaired surrogate escape, or is not UTF-8. Give such content as \
                 content_base64."
                    .into(),
            )
        })?;
        within(size_bytes, limit)?;
        let pieces = self.pieces().map(|piece| piece.map_err(|error| Error::internal(&error)));
        Ok(Content::new(futures::stream::iter(pieces)))
    }

    /// The content of a file that the string is in base64, of at most `limit` bytes. It is decoded twice: before
    /// anything is written, to check that it is valid and how large it is, and while it is written.
    ///
    /// # Errors
    /// If it is larger, or is not base64.
    pub(super) fn base64(self, limit: u64) -> Result<Content> {
        let (mut size_bytes, mut decoded, mut bytes) =
            (0, self.decoded(), Vec::with_capacity(PIECE));
        while let Some(more) = decoded.next_into(&mut bytes) {
            more?;
            size_bytes += bytes.len() as u64;
            bytes.clear();
        }
        within(size_bytes, limit)?;
        let mut decoded = self.decoded();
        let pieces = std::iter::from_fn(move || {
            let mut bytes = Vec::with_capacity(PIECE);
            decoded.next_into(&mut bytes).map(|more| more.map(|()| bytes.into()))
        });
        Ok(Content::new(futures::stream::iter(pieces)))
    }

    fn decoded(&self) -> Decoded {
        Decoded { pieces: self.pieces(), decoder: Some(Decoder::default()) }
    }

    /// The string in pieces. No piece begins or ends within an escape or a character.
    fn pieces(&self) -> Pieces {
        Pieces(self.0.slice(1..self.0.len().saturating_sub(1).max(1)))
    }
}

/// Checks the size of an upload, in bytes.
///
/// # Errors
/// If it is over the limit.
pub(super) fn within(size_bytes: u64, limit: u64) -> Result<()> {
    if size_bytes > limit { Err(Error::UploadTooLarge { size_bytes, limit }) } else { Ok(()) }
}

/// The rest of a string in base64.
struct Decoded {
    pieces: Pieces,
    /// `None` after the end.
    decoder: Option<Decoder>,
}

impl Decoded {
    /// Appends the next bytes; `None` after the end.
    fn next_into(&mut self, bytes: &mut Vec<u8>) -> Option<Result<()>> {
        Some(match self.pieces.next() {
            Some(Ok(piece)) => self.decoder.as_mut()?.decode(&piece, bytes),
            Some(Err(_)) => Err(invalid("it contains an invalid escape")),
            None => self.decoder.take()?.end(bytes),
        })
    }
}

/// The rest of an escaped string.
#[derive(Debug, Clone)]
struct Pieces(Bytes);

impl Iterator for Pieces {
    /// UTF-8.
    type Item = serde_json::Result<Bytes>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let piece = self.0.split_to(whole_characters(&self.0, PIECE));
        // Most pieces need no copy.
        if is_plain(&piece) && std::str::from_utf8(&piece).is_ok() {
            return Some(Ok(piece));
        }
        let mut quoted = Vec::with_capacity(piece.len() + 2);
        quoted.push(b'"');
        quoted.extend_from_slice(&piece);
        quoted.push(b'"');
        Some(serde_json::from_slice::<String>(&quoted).map(Bytes::from))
    }
}

/// Whether a piece contains nothing that is, or would have to be, escaped.
fn is_plain(piece: &[u8]) -> bool {
    // A loop without an exit compiles to vector instructions, and one without a closure does so in any build.
    let mut least = u8::MAX;
    for byte in piece {
        least = least.min(*byte);
    }
    least >= b' ' && memchr(b'\\', piece).is_none()
}

/// Length of a start of about `most` bytes that ends between two characters.
fn whole_characters(escaped: &[u8], most: usize) -> usize {
    let mut at = 0;
    while at < most.min(escaped.len()) {
        let Some(found) = memchr(b'\\', &escaped[at..most.min(escaped.len())]) else { break };
        at += found;
        let is_code = escaped.get(at + 1) == Some(&b'u');
        // The second half of a pair belongs to the first.
        let is_first_half = is_code
            && matches!(escaped.get(at + 2), Some(b'd' | b'D'))
            && matches!(escaped.get(at + 3), Some(b'8' | b'9' | b'a' | b'A' | b'b' | b'B'));
        at += if is_first_half {
            12
        } else if is_code {
            6
        } else {
            2
        };
    }
    let mut end = at.max(most).min(escaped.len());
    // The end may be within a character of several bytes.
    while end < escaped.len() && escaped[end] & 0b1100_0000 == 0b1000_0000 {
        end += 1;
    }
    end
}

#[cfg(test)]
mod tests {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    use futures::FutureExt as _;
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;
    use crate::mcp::base64_text::decode_whole;

    fn long(text: &str) -> LongText {
        LongText::new(Value::from(text).to_string().into())
    }

    fn raw(escaped: &str) -> LongText {
        LongText::new(format!("\"{escaped}\"").into())
    }

    async fn all(content: Result<Content>) -> Result<Vec<u8>> {
        content?.into_bytes().await
    }

    #[tokio::test]
    async fn base64_is_decoded_however_it_is_wrapped_and_escaped() {
        let bytes: Vec<u8> = (0..3_000_001_u32).map(|n| (n % 251) as u8).collect();
        let plain = STANDARD.encode(&bytes);
        let wrapped: String = plain
            .as_bytes()
            .chunks(76)
            .map(|line| String::from_utf8_lossy(line) + "\r\n")
            .collect();
        let escaped = plain.replace('+', "\\u002B").replace('/', "\\/").replace('=', "\\u003d");
        let url = format!("data:application/octet-stream;base64,{plain}");
        let url_safe = plain.replace('+', "-").replace('/', "_").replace('=', "");
        for text in [long(&plain), long(&wrapped), raw(&escaped), long(&url), long(&url_safe)] {
            assert!(all(text.base64(u64::MAX)).await.expect("decoded") == bytes);
        }
        let all_escaped = r"\u0051\u0055\u004a\u0044";
        assert_eq!(all(raw(all_escaped).base64(3)).await.expect("decoded"), b"ABC");
    }

    #[tokio::test]
    async fn what_is_no_base64_is_refused_wherever_it_is_wrong() {
        let valid = "QUJD".repeat(PIECE / 2);
        for wrong in ["Q", "QQ==QUJD", "QUI=QUJD", "Q*==", "é", "====", "QQ=Q"] {
            for text in [wrong.to_owned(), format!("{valid}{wrong}")] {
                let error = all(long(&text).base64(u64::MAX)).await.expect_err(wrong);
                assert_eq!(error.code(), "invalid_base64", "{wrong}");
            }
        }
        let error = all(raw("QUJD\\ud83d").base64(u64::MAX)).await.expect_err("half a pair");
        assert_eq!(error.code(), "invalid_base64");
    }

    #[tokio::test]
    async fn a_file_over_the_limit_is_refused_before_anything_is_written() {
        let refused = |content: Result<Content>| match content.map(drop) {
            Err(Error::UploadTooLarge { size_bytes, .. }) => size_bytes,
            other => panic!("{other:?}"),
        };
        assert_eq!(refused(long("QUI=").base64(1)), 2);
        assert_eq!(refused(long("QUJD\nQUJD\n").base64(5)), 6);
        assert_eq!(refused(long("naïve").text(5)), 6);
        assert_eq!(all(long("naïve").text(6)).await.expect("fits"), "naïve".as_bytes());
    }

    #[test]
    fn text_that_is_none_is_refused() {
        for wrong in [&b"\"\\ud83d\""[..], b"\"\xFF\"", b"\"\\ud83d\\u0041\""] {
            let text = LongText::new(Bytes::copy_from_slice(wrong));
            assert!(text.text(u64::MAX).is_err(), "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_cut_out_is_decoded_as_what_is_not(
            text in "(data:a/b;base64,)?[A-Za-z0-9+/_=\n -]{0,40}",
            limit in 0u64..30,
        ) {
            let whole = decode_whole(&text).and_then(|bytes| within(bytes.len() as u64, limit).map(|()| bytes));
            let cut_out = all(long(&text).base64(limit)).now_or_never().expect("it is all there");
            let code = |result: Result<Vec<u8>>| result.map_err(|error| error.to_string());
            prop_assert_eq!(code(whole), code(cut_out));
        }

        #[test]
        fn pieces_of_any_text_make_the_text_again(
            text in "(\\PC|[\"\\\\\n\u{1}\u{1f600}\u{fc}]){0,60}",
            ascii: bool,
            most in 1usize..20,
        ) {
            let mut escaped = Value::from(text.clone()).to_string();
            if ascii {
                let code = |unit: u16| format!("\\u{unit:04x}");
                let escape = |c: char| c.encode_utf16(&mut [0; 2]).iter().copied().map(code).collect::<String>();
                escaped = format!("\"{}\"", text.chars().map(escape).collect::<String>());
            }
            let mut rest = &escaped.as_bytes()[1..escaped.len() - 1];
            let mut read = String::new();
            while !rest.is_empty() {
                let (piece, more) = rest.split_at(whole_characters(rest, most));
                let quoted = [b"\"", piece, b"\""].concat();
                read += &serde_json::from_slice::<String>(&quoted).expect("whole characters");
                rest = more;
            }
            prop_assert_eq!(read, text);
        }
    }
}
